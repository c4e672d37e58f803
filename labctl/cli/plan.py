"""`labctl plan`: what a run will take, before it is run."""

from __future__ import annotations

from typing import Annotated

import typer

from labctl.cli.options import (
    DebugOption,
    InterOpOption,
    JsonOption,
    LabOption,
    PlacementOption,
    PowerOption,
    RepeatOption,
    SizeOption,
)


def plan(
    *,
    size: SizeOption = None,
    power: PowerOption = None,
    tasks: Annotated[
        int | None, typer.Option(help="Matrices, one a task. [default: the lab's nodes]")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="listing, chain, recursive or squaring. [default: chain]")
    ] = None,
    feed: Annotated[str | None, typer.Option(help="fed or staged. [default: fed]")] = None,
    placement: PlacementOption = None,
    inter_op: InterOpOption = None,
    repeat: RepeatOption = None,
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu",
            help="Foresee it on the lab's own GPUs: by GPU runs and labctl check --gpu-probe.",
        ),
    ] = False,
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
    from labctl.cli.runs import store_of
    from labctl.console import out, out_json, say
    from labctl.drive.foresee import find_device, work_for
    from labctl.drive.history import keep_plan, read_history, read_plans
    from labctl.drive.plan import RunOptions
    from labctl.errors import UsageError
    from labctl.runs.lab_files import read_baseline
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
        gpu=gpu or None,
    )
    beside = None if device is None else find_device(device)
    store = store_of(lab)
    local_dir = store.root.parent
    facts = read_history(store)
    if score:
        if tasks is not None or beside is not None or options != RunOptions():
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
    baseline = read_baseline(local_dir) if gpu else None
    work = work_for(options, tasks, facts, baseline)
    outlook = look_ahead(work, facts, beside, baseline)
    if outlook.prediction is not None:
        keep_plan(local_dir, outlook.prediction, time.time())
    if json:
        out_json(view.plan_object(outlook))
    else:
        out("\n".join(view.plan_lines(outlook)))
    return 0
