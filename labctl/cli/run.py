"""`labctl run`, `attach`, `cancel` and `logs`."""

from __future__ import annotations

from pathlib import Path
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

ShowOutputOption = Annotated[
    bool,
    typer.Option(
        "--show-output", "-v", help="Show what the client writes, each line with its node."
    ),
]


def run(
    *,
    script: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SCRIPT]", help="Your own script; default: the built-in experiment."
        ),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="Arguments of the script.")
    ] = None,
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu", help="Compute on GPUs; with --cpu: on both, in pairs, and compare them."
        ),
    ] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Compute on CPUs. [default]")] = False,
    pairs: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --gpu --cpu: runs on each device. [default: 3]"),
    ] = None,
    size: SizeOption = None,
    power: PowerOption = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="listing (the question's, n + 1 factors), chain, recursive or squaring. [default: chain]"
        ),
    ] = None,
    feed: Annotated[
        str | None,
        typer.Option(
            help="fed: inputs sent with every step; staged: held by their task; constant: in the graph."
            " [default: fed]"
        ),
    ] = None,
    placement: PlacementOption = None,
    api: Annotated[
        str | None,
        typer.Option(help="session (tf.compat.v1) or tf2 (tf.function). [default: session]"),
    ] = None,
    inter_op: InterOpOption = None,
    repeat: RepeatOption = None,
    trace: Annotated[
        bool | None,
        typer.Option(
            "--trace/--no-trace", help="Take some more steps, traced and probing. [default: trace]"
        ),
    ] = None,
    fetch: Annotated[
        str | None,
        typer.Option(
            help="sum: each step brings the result back; none: it only computes. [default: sum]"
        ),
    ] = None,
    sum_on: Annotated[
        int | None,
        typer.Option("--sum-on", metavar="TASK", help="Task that adds the powers up. [default: 0]"),
    ] = None,
    soft_placement: Annotated[
        bool,
        typer.Option(
            "--soft-placement", help="With --gpu: TensorFlow may compute elsewhere than asked."
        ),
    ] = False,
    environment: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME[=VALUE]",
            help="Variable for the client; without a value this shell's. May be repeated.",
        ),
    ] = None,
    skip_checks: Annotated[
        bool, typer.Option("--skip-checks", help="Start even though checks fail.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Restart the join servers first: cold figures are cold.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="End the run on its node after this long.")
    ] = 600.0,
    companions: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="FILE", help="Send this file too; may be repeated."),
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="K=V", help="Note for the record; may be repeated."),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Return when the run has started; labctl attach goes on."),
    ] = False,
    show_output: ShowOutputOption = False,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """Run the experiment, or a script of your own, on the lab; Ctrl-C cancels it on its node."""
    from labctl.cli.driving import open_session, report, run_both
    from labctl.drive.links import RealOpener
    from labctl.drive.plan import RunOptions, make_request
    from labctl.drive.run import run as do_run
    from labctl.errors import UsageError

    options = RunOptions(
        script=script,
        args=tuple(args or ()),
        companions=tuple(companions or ()),
        gpu=True if gpu else False if cpu else None,
        size=size,
        power=power,
        algorithm=algorithm,
        feed=feed,
        placement=placement,
        api=api,
        inter_op=inter_op,
        repeat=repeat,
        trace=trace,
        fresh=fresh,
        timeout_s=timeout,
        tags=tuple(tags or ()),
        detach=detach,
        fetch=fetch,
        sum_task=sum_on,
        soft_placement=soft_placement,
        environment=tuple(environment or ()),
        skip_checks=skip_checks,
    )
    if gpu and cpu:
        if show_output:
            raise UsageError("--show-output does not fit --gpu --cpu", do="leave it out")
        run_both(lab, options, pairs, json=json)
        return
    if pairs is not None:
        raise UsageError("--pairs is given without --gpu --cpu", do="give both, or leave it out")
    request = make_request(options)
    with open_session(lab, show_output=show_output) as session:
        request.require_fits(session.lab)
        record = do_run(session, request, RealOpener())
    report(session.store, record.run_id, json=json)


def attach(
    *,
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="Run id, unique prefix, or `last`.")
    ] = "last",
    show_output: ShowOutputOption = False,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """Follow a run again from where it was left; Ctrl-C cancels it on its node."""
    from labctl.cli.driving import find_run, open_session, report
    from labctl.drive.run import attach as do_attach

    store, entry = find_run(lab, run)
    if entry.readable().open:
        with open_session(lab, show_output=show_output) as session:
            do_attach(session, entry)
    report(store, entry.run_id, json=json)


def cancel(
    *,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run id, unique prefix, or `last`.")],
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """End a run on its node and keep its logs."""
    from labctl.cli.driving import find_run, open_session, wait_for_end
    from labctl.cli.show import print_run
    from labctl.console import say
    from labctl.drive.run import cancel as do_cancel

    store, entry = find_run(lab, run)
    if not entry.readable().open:
        say(f"run {entry.run_id} has ended already: {entry.state}")
    else:
        with open_session(lab) as session:
            if do_cancel(session, entry) is None:
                wait_for_end(store, entry.run_id)
    print_run(store, entry.run_id, json=json, head=True)


def logs(
    *,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="Run id, unique prefix, or `last`; without it the join servers' journals.",
        ),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NODE", help="Only this node; may be repeated."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only from then on: 90s, 10min, 2h, 14:05, 14:05:30 or 2026-11-30T14:05 (UTC).",
        ),
    ] = None,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """Show the nodes' logs interleaved by corrected time, each line with its node."""
    from labctl.cli.driving import live_logs, run_logs

    if run is None:
        live_logs(lab, tuple(node or ()), follow=follow, since=since, json=json)
    else:
        run_logs(lab, run, tuple(node or ()), follow=follow, since=since, json=json)
