"""`labctl plan`: what a run will take, before it is run."""

from __future__ import annotations

from typing import Annotated

import typer

from labctl.cli.options import DebugOption, JsonOption, LabOption


def plan(
    *,
    size: Annotated[
        int | None, typer.Option("--size", "-L", help="L of the L x L matrices. [default: 1000]")
    ] = None,
    power: Annotated[
        int | None, typer.Option("--power", "-n", help="n, factors of each product. [default: 5]")
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(help="Matrices, one a task. [default: the lab's nodes]")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="listing, chain, recursive or squaring. [default: chain]")
    ] = None,
    feed: Annotated[str | None, typer.Option(help="fed or staged. [default: fed]")] = None,
    placement: Annotated[
        str | None, typer.Option(help="lab, one-host or one-process. [default: lab]")
    ] = None,
    inter_op: Annotated[
        str | None,
        typer.Option(
            "--inter-op",
            metavar="N|default",
            help="Inter-op threads of the client's server. [default: 2]",
        ),
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(help="Warm steps after the cold one. [default: 10]")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Hold a GPU beside it, by the answer's instruction table; or list."
        ),
    ] = None,
    score: Annotated[
        bool,
        typer.Option("--score", help="Show how good the predictions of the stored runs were."),
    ] = False,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """Foresee step and total of a run from what this lab's runs have measured."""
    import time

    from labctl.analysis.outlook import look_ahead
    from labctl.analysis.score import score as score_all
    from labctl.console import out, out_json, say
    from labctl.drive.foresee import find_device, work_for
    from labctl.drive.history import keep_plan, read_history, read_plans
    from labctl.drive.plan import RunOptions
    from labctl.errors import UsageError
    from labctl.lab.home import Home
    from labctl.runs.store import RunStore
    from labctl.views import plan as view

    if device == "list":
        if json:
            out_json(view.device_objects())
        else:
            out("\n".join(view.device_lines()))
        return 0
    options = RunOptions(
        size=size,
        power=power,
        algorithm=algorithm,
        feed=feed,
        placement=placement,
        inter_op=inter_op,
        repeat=repeat,
    )
    gpu = None if device is None else find_device(device)
    home = Home.find()
    local_dir = home.local_dir(home.choose(lab))
    facts = read_history(RunStore(local_dir))
    if score:
        if tasks is not None or gpu is not None or options != RunOptions():
            raise UsageError("--score is given with options of a run", do="leave one of them out")
        plans, lost = read_plans(local_dir)
        if lost:
            say(f"{lost} lines of {local_dir}/plans.jsonl cannot be read and are left out")
        found = score_all(facts, plans)
        if json:
            out_json(view.score_object(found))
        else:
            out("\n".join(view.score_lines(found)))
        return 0
    outlook = look_ahead(work_for(options, tasks, facts), facts, gpu)
    if outlook.prediction is not None:
        keep_plan(local_dir, outlook.prediction, time.time())
    if json:
        out_json(view.plan_object(outlook))
    else:
        out("\n".join(view.plan_lines(outlook)))
    return 0
