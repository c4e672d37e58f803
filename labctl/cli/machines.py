"""The commands that make, list, choose and remove labs: `up`, `down`, `labs`, `use`."""

from __future__ import annotations

from typing import Annotated

import typer

from labctl import console
from labctl.cli.options import DebugOption, JsonOption, LabOption


def up(
    *,
    lab: LabOption = None,
    provider: Annotated[
        str, typer.Option(metavar="NAME", help="What makes the machines: rehearsal.")
    ] = "rehearsal",
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="Machines, 1 to 8; 2 for a new lab.")
    ] = None,
    release: Annotated[
        str | None, typer.Option(help="Debian release: bookworm (12) or trixie (13).")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bound of each machine's memory, e.g. 4G.")
    ] = None,
    cpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", help="CPUs of each machine; default an equal share.")
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """Make a lab's machines, keys and inventory, or heal a lab that stands."""
    from labctl.lab.home import Home
    from labctl.providers import choose
    from labctl.runs import lab_files

    home = Home.find()
    name = choose.lab_to_make(home, lab)
    options = choose.machine_options(nodes, release, memory, cpus_per_node)
    status = choose.provider(home, provider).up(name, options, console.say)
    nodes_now = [each.name for each in status.machines]
    lab_files.add_phases(home.make_local_dir(name), "up", status.phases, nodes_now)
    target = home.inventory(name)
    if json:
        console.out_json(choose.up_dict(home, name, provider, status))
        return
    console.say(f"lab {name} is {status.state}: {target / 'hosts.yml'}")
    if home.active() != name:
        console.say(f"the active lab is {home.active()}; labctl use {name} makes it this one")
    named = "" if home.active() == name else f" --lab {name}"
    if len(status.machines) < 2:
        console.say(f"next: labctl up{named} --nodes 2, as TensorFlow's lab is of two or more")
    else:
        console.say(f"next: labctl provision{named}")


def down(
    *,
    lab: LabOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Forget what cannot be removed, and list it.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """Remove a lab's machines and all that labctl made for it; run records stay."""
    from labctl.errors import RefusedError
    from labctl.lab.home import Home
    from labctl.providers import choose

    home = Home.find()
    name = choose.lab_to_remove(home, lab)
    if lab is None and name != choose.DEFAULT_LAB and name != home.active():
        console.say(f"taking down lab {name}")
    receipt = choose.provider_of(home, name).down(name, force=force, report=console.say)
    if json:
        console.out_json(receipt.to_dict())
    else:
        for line in choose.receipt_lines(name, receipt):
            console.out(line)
    if lab is None and home.active() is None and home.labs():
        console.say(f"labs that stay: {', '.join(home.labs())} (labctl down --lab NAME)")
    for path in receipt.kept:
        console.say(f"kept {path}: it is yours")
    if receipt.left:
        raise RefusedError(
            f"lab {name} is not gone: {receipt.left[0]}",
            expected="nothing left",
            do="labctl down again, or labctl down --force to forget them",
        )


def labs(
    *,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """List the labs: provider, nodes, state, cost; the active one is marked."""
    from labctl.lab.home import Home
    from labctl.providers import choose

    rows = choose.lab_rows(Home.find())
    if json:
        console.out_json([row.to_dict() for row in rows])
        return
    for line in choose.lab_lines(rows):
        console.out(line)


def use(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lab.")],
    *,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """Make a lab the default of every command."""
    from labctl.lab.home import Home

    home = Home.find()
    home.activate(name)
    if json:
        console.out_json({"active": name})
    else:
        console.say(f"lab {name} is active")
