"""The commands for machines that cost money: `stop`, `start`, `extend`."""

from __future__ import annotations

from typing import Annotated

import typer

from labctl.cli.options import DebugOption, JsonOption, LabOption


def stop(
    *,
    lab: LabOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even while a run may go on; it ends with the machines.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """Power a cloud lab's machines off; their disks stay and are billed, labctl start goes on."""
    from labctl.console import say
    from labctl.lab.home import Home
    from labctl.providers import choose, listing

    home = Home.find()
    name = home.choose(lab)
    provider = choose.cloud_provider(home, name, "stop")
    if not force:
        choose.refuse_open_runs(home, name)
    status = provider.stop(name, say)
    listing.print_status(home, name, provider.name, status, json=json)
    if not json:
        say(f"next: labctl start --lab {name}, or labctl down --lab {name}")


def start(
    *,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """Power a stopped cloud lab's machines on; inventory and host keys follow their new addresses."""
    from labctl.console import say
    from labctl.lab.home import Home
    from labctl.providers import choose, listing
    from labctl.runs import lab_files

    home = Home.find()
    name = home.choose(lab)
    provider = choose.cloud_provider(home, name, "start")
    status = provider.start(name, say)
    nodes = [each.name for each in status.machines]
    lab_files.forget_baseline(home.make_local_dir(name))
    lab_files.add_phases(home.make_local_dir(name), "up", status.phases, nodes)
    listing.print_status(home, name, provider.name, status, json=json)


def extend(
    *,
    hours: Annotated[
        float,
        typer.Argument(metavar="[HOURS]", help="From now on; an earlier deadline stays later."),
    ] = 2.0,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """Put off the timer with which each node powers itself off; exit 4 if a node does not answer."""
    from labctl.console import out, out_json, say
    from labctl.drive.extend import check_hours
    from labctl.drive.extend import extend as put_off
    from labctl.errors import RemoteCommandError
    from labctl.lab.home import Home
    from labctl.lab.model import LOOPBACK
    from labctl.playbook import load_lab
    from labctl.providers import choose, listing

    check_hours(hours)
    home = Home.find()
    name = home.choose(lab)
    if name == LOOPBACK:
        from labctl.errors import UsageError

        raise UsageError("the loopback lab has no machines that power off", do="--lab NAME")
    found = put_off(load_lab(home, name), hours)
    for note in choose.note_extension(home, name, [each.deadline_unix_s for each in found]):
        say(note)
    if json:
        out_json(
            [
                {
                    "node": each.node,
                    "deadline_unix_s": each.deadline_unix_s,
                    "armed": each.armed,
                    "error": each.error.found if each.error is not None else None,
                }
                for each in found
            ]
        )
    else:
        for each in found:
            if each.error is None:
                out(f"{each.node}  {listing.timer_text(each.deadline_unix_s, armed=each.armed)}")
    errors = [each.error for each in found if each.error is not None]
    if idle := [each.node for each in found if each.error is None and not each.armed]:
        errors.insert(
            0,
            RemoteCommandError(
                f"the dead-man timer of {', '.join(idle)} does not run",
                expected="a timer that powers the node off at its deadline",
                do="labctl provision arms it again",
            ),
        )
    for error in errors[:-1]:
        say(f"labctl: {error}")
    if errors:
        raise errors[-1]
