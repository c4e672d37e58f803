"""`labctl check`: is the lab usable?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from labctl.cli.options import DebugOption, JsonOption, LabOption

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from labctl.checks.model import CheckResult
    from labctl.lab.model import Lab


def check(
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NODE", help="Show this node only; may be repeated."),
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="A GPU must be usable on every node.")] = False,
    network: Annotated[
        bool,
        typer.Option("--network", help="Also measure TCP between task 0 and each other task."),
    ] = False,
    compute: Annotated[
        bool, typer.Option("--compute", help="Also measure each node's own float32 product.")
    ] = False,
    gpu_probe: Annotated[
        bool,
        typer.Option("--gpu-probe", help="Also measure the GPUs' cold start, products and copies."),
    ] = False,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """Run the named checks on every node: is the lab usable?"""
    from contextlib import ExitStack

    from labctl.checks.doctor import run_checks
    from labctl.checks.gpu_facts import GpuNeed
    from labctl.console import out_json, stderr_console
    from labctl.errors import UsageError
    from labctl.lab.home import Home
    from labctl.node.wire import MatpowPlan
    from labctl.playbook import load_lab
    from labctl.remote.connect import open_executor

    home = Home.find()
    model = load_lab(home, home.choose(lab))
    names = [each.name for each in model.nodes]
    for each in node or ():
        if each not in names:
            raise UsageError(
                f"lab {model.name} has no node {each!r}", expected=f"one of {', '.join(names)}"
            )
    console = stderr_console()
    with ExitStack() as stack:
        executors = {}
        for one in model.nodes:
            executors[one.name] = open_executor(one, model)
            stack.callback(executors[one.name].close)
        with console.status(f"lab {model.name}: checking") as status:
            results = run_checks(
                model,
                executors,
                gpu=GpuNeed(MatpowPlan().size) if gpu else None,
                progress=lambda text: status.update(f"lab {model.name}: {text}"),
            )
            wished = {"network": network, "compute": compute, "gpu-probe": gpu_probe}
            parts = [name for name, on in wished.items() if on]
            if parts:
                home.make_local_dir(model.name)
                results += _measured(
                    model, parts, lambda text: status.update(f"lab {model.name}: {text}")
                )
    shown = [result for result in results if not node or result.node in node]
    if json:
        out_json([result.to_json() for result in shown])
    else:
        _print(model.name, shown)
    _refuse(model.name, shown)
    return 0


def _measured(lab: Lab, parts: Sequence[str], progress: Callable[[str], None]) -> list[CheckResult]:
    """Measure parts of the lab's baseline, keep them for later runs, and return them as checks."""
    from labctl.drive import baseline, gpu_bench, start
    from labctl.drive.links import Links, RealOpener
    from labctl.drive.timing import SystemClock
    from labctl.errors import LabctlError

    links, clock = Links(lab, RealOpener()), SystemClock()
    others = [part for part in parts if part != gpu_bench.GPU_PROBE]
    results = []
    try:
        links.client.call(start.refuse_if_busy)
        if others:
            found = baseline.measure(lab, links, clock, parts=others, progress=progress)
            results += baseline.as_checks(lab, found, others)
        if gpu_bench.GPU_PROBE in parts:
            results += gpu_bench.probe_gpus(lab, links, clock, progress)
    except LabctlError as error:
        results = baseline.not_measured(lab, others, error.found)
        if gpu_bench.GPU_PROBE in parts:
            results += gpu_bench.not_probed(lab, error.found)
    finally:
        links.close()
    return results


def _refuse(lab: str, results: Sequence[CheckResult]) -> None:
    """Raise RefusedError if a result is a fail."""
    from labctl.errors import RefusedError

    failed = [result for result in results if result.status == "fail"]
    if not failed:
        return
    names = ", ".join(f"{result.name} ({result.node})" for result in failed)
    first = failed[0]
    raise RefusedError(
        f"{len(failed)} of {len(results)} checks of lab {lab} failed: {names}",
        expected=f"{first.name} on {first.node}: {first.expected}",
        do=first.do,
    )


def _print(lab: str, results: Sequence[CheckResult]) -> None:
    """Print failures with what to do, then what was skipped by reason, then what is well."""
    from rich.table import Table
    from rich.text import Text

    from labctl.console import stdout_console

    table = Table(box=None, pad_edge=False)
    for title in ("", "check", "node", "found"):
        table.add_column(title, no_wrap=title == "", overflow="fold")
    for result in results:
        if result.status == "fail":
            advice = f"\nexpected  {result.expected}\ndo        {result.do}"
            text = Text(result.found).append(advice, style="dim")
            table.add_row(Text("fail", style="bold red"), result.name, result.node, text)
    for (names, found), nodes in _skipped(results).items():
        table.add_row(Text("skipped", style="yellow"), names, " ".join(nodes), Text(found))
    well: dict[tuple[str, str], list[str]] = {}
    for each in results:
        if each.status == "ok":
            well.setdefault((each.name, each.found), []).append(each.node)
    for (name, found), nodes in well.items():
        table.add_row(Text("ok", style="green"), name, " ".join(nodes), Text(found))
    console = stdout_console()
    console.print(table)
    counts = [
        f"{sum(each.status == status for each in results)} {word}"
        for status, word in (("ok", "ok"), ("fail", "failed"), ("skipped", "skipped"))
    ]
    console.print(f"lab {lab} · {' · '.join(counts)}")
    if not any(each.status == "fail" for each in results):
        console.print("next: labctl run")


def _skipped(results: Sequence[CheckResult]) -> dict[tuple[str, str], list[str]]:
    """Return the nodes by what was skipped there, for one reason each."""
    names: dict[tuple[str, str], list[str]] = {}
    for each in results:
        if each.status == "skipped":
            names.setdefault((each.node, each.found), []).append(each.name)
    nodes: dict[tuple[str, str], list[str]] = {}
    for (node, found), group in names.items():
        nodes.setdefault((", ".join(group), found), []).append(node)
    return nodes
