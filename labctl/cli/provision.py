"""`labctl provision`: the playbook `provision.yml` for a lab, timed by role."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated

import typer

from labctl.cli.options import DebugOption, JsonOption, LabOption

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from labctl.errors import PlaybookError
    from labctl.playbook import PlaybookOutcome
    from labctl.runs.record import LabPhase


def provision(
    ansible_args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ANSIBLE ARGS]", help="Handed to ansible-playbook, e.g. -- --check --diff"
        ),
    ] = None,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """Install TensorFlow on the lab's nodes and start the join servers."""
    from labctl.console import out_json, stderr_console
    from labctl.errors import UsageError
    from labctl.lab.home import Home
    from labctl.lab.model import LOOPBACK
    from labctl.playbook import load_lab, run_playbook
    from labctl.runs import lab_files

    home = Home.find()
    name = home.choose(lab)
    if name == LOOPBACK:
        raise UsageError(
            "the loopback lab has no machines to provision",
            do=f"labctl run --lab {LOOPBACK}, or labctl up",
        )
    model = load_lab(home, name)
    console = stderr_console()
    started_unix_s = time.time()
    console.print(f"lab {name} · {len(model.nodes)} nodes · provision.yml")
    with console.status("starting ansible-playbook") as status:
        role = ""

        def show(event: Mapping[str, object]) -> None:
            nonlocal role
            data = event.get("event_data")
            if event.get("event") != "playbook_on_task_start" or not isinstance(data, dict):
                return
            current = str(data.get("role") or data.get("play") or "")
            if current != role:
                role = current
                if not console.is_terminal:
                    console.print(f"  {role}")
            status.update(f"{role}: {data.get('task')}")

        outcome = run_playbook(
            home, name, "provision.yml", extra_args=ansible_args or (), on_event=show
        )
    if json:
        out_json(_as_json(outcome))
    else:
        _print(outcome)
    if outcome.rc != 0:
        raise _error(outcome)
    if not {"--check", "-C"} & set(ansible_args or ()):
        folder = home.make_local_dir(name)
        phases = _phases(outcome, started_unix_s, home.content / "roles")
        lab_files.add_phases(folder, "provision", phases, [node.name for node in model.nodes])
        lab_files.forget_baseline(
            folder, keep_gpus=True
        )  # the rules of the network may be others now
    return 0


def _phases(outcome: PlaybookOutcome, started_unix_s: float, roles: Path) -> list[LabPhase]:
    """Return what a playbook's time went to: its start, then roles, and plays for tasks outside roles."""
    from labctl.runs.record import LabPhase

    def phase(name: str, start_s: float, duration_s: float) -> LabPhase:
        return LabPhase(name, "", "provision", started_unix_s + start_s, duration_s)

    first_s = outcome.stretches[0].start_s if outcome.stretches else outcome.wall_s
    return [
        phase("ansible-playbook", 0.0, first_s),
        *(
            phase(
                f"role {each.role}" if (roles / each.role).is_dir() else f"play {each.role}",
                each.start_s,
                each.duration_s,
            )
            for each in outcome.stretches
        ),
    ]


def _as_json(outcome: PlaybookOutcome) -> dict[str, object]:
    return {**dataclasses.asdict(outcome), "log": str(outcome.log)}


def _error(outcome: PlaybookOutcome) -> PlaybookError:
    """Return the first failure in three parts: the roles' own messages have them already."""
    from labctl.errors import PlaybookError, three_parts

    again = f"see {outcome.log}; correct it and run labctl provision again"
    if not outcome.failures:
        return PlaybookError(
            f"ansible-playbook {outcome.playbook} ended with {outcome.rc}", do=again
        )
    first = outcome.failures[0]
    others = sorted({each.host for each in outcome.failures} - {first.host})
    more = f" (also failed: {', '.join(others)})" if others else ""
    found, expected, do = three_parts(first.message)
    where = "" if found.startswith(first.host) or first.host == "localhost" else f"{first.host}: "
    what = "" if expected else f" in '{first.task}'"
    if first.unreachable:
        what = ", it did not answer"
    return PlaybookError(f"{where}{found}{what}{more}", expected=expected, do=do or again)


def _print(outcome: PlaybookOutcome) -> None:
    from rich.table import Table

    from labctl.console import stdout_console

    console = stdout_console()
    table = Table(box=None, pad_edge=False)
    table.add_column("role")
    table.add_column("seconds", justify="right")
    for role in outcome.roles:
        table.add_row(role.role, f"{role.duration_s:.1f}")
    table.add_row("all", f"{outcome.wall_s:.1f}", style="bold")
    console.print(table)
    for host, stats in outcome.hosts.items():
        console.print(
            f"{host}  ok={stats.ok} changed={stats.changed} failed={stats.failed} unreachable={stats.unreachable}"
        )
    if outcome.rc == 0 and outcome.hosts:
        console.print("next: labctl check · labctl run")
