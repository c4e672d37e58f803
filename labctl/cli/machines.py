"""The commands that make, list, choose and remove labs: `up`, `down`, `labs`, `use`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labctl import console
from labctl.cli.options import DebugOption, JsonOption, LabOption

if TYPE_CHECKING:
    from labctl.lab.home import Home
    from labctl.providers.base import LabStatus, MachineOptions

RegionOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Cloud: region; default that of your environment or profile."
    ),
]
ProjectOption = Annotated[
    str | None,
    typer.Option(metavar="ID", help="gcp: project that pays; default GOOGLE_CLOUD_PROJECT."),
]


def up(
    *,
    lab: LabOption = None,
    provider: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What makes the machines: rehearsal, aws or gcp; default the lab's own, else rehearsal.",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="Machines, 1 to 8; 2 for a new lab.")
    ] = None,
    release: Annotated[
        str | None,
        typer.Option(help="Rehearsal: Debian release, bookworm (12) or trixie (13)."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Rehearsal: bound of each machine's memory, e.g. 4G."),
    ] = None,
    cpus_per_node: Annotated[
        int | None,
        typer.Option(metavar="N", help="Rehearsal: CPUs of each machine; default an equal share."),
    ] = None,
    project: ProjectOption = None,
    region: RegionOption = None,
    zone: Annotated[str | None, typer.Option(metavar="NAME", help="Cloud: zone.")] = None,
    machine_type: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Cloud: machine type; default one with the GPUs of --gpu."
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE[:N]", help="Cloud: GPUs of each machine, or none. [default: T4:1]"
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="[OWNER/]NAME", help="Cloud: image, by id, name pattern or family."),
    ] = None,
    disk: Annotated[
        int | None, typer.Option(metavar="GB", help="Cloud: boot disk of each machine.")
    ] = None,
    spot: Annotated[
        bool | None, typer.Option("--spot/--no-spot", help="Cloud: spot machines.")
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Cloud: an existing network; default one of its own."),
    ] = None,
    ssh_by: Annotated[
        Literal["public", "private"] | None,
        typer.Option(help="Cloud: the address that SSH goes to. [default: public]"),
    ] = None,
    owner: Annotated[
        str | None, typer.Option(metavar="NAME", help="Cloud: who, for the labels; default you.")
    ] = None,
    admin_cidr: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK",
            help="Cloud: SSH is open to it; may be repeated. Default this machine's public address.",
        ),
    ] = None,
    max_hours: Annotated[
        float | None,
        typer.Option(
            metavar="H", help="Cloud: each node powers itself off after so long. [default: 8]"
        ),
    ] = None,
    idle_minutes: Annotated[
        float | None,
        typer.Option(
            metavar="MIN", help="Cloud: also after so long without a run; 0 never. [default: 60]"
        ),
    ] = None,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Cloud: start machines that are stopped.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Cloud: ask whether it would go, print the plan, make nothing."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Cloud: do not ask before money is spent.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """Make a lab's machines, keys and inventory, or heal a lab that stands; in a cloud after plan and price."""
    from labctl.lab.home import Home
    from labctl.providers import choose, listing
    from labctl.providers.cloud.options import cloud_options
    from labctl.runs import lab_files

    home = Home.find()
    name = choose.lab_to_make(home, lab, provider)
    maker = choose.provider_to_make(home, name, provider)
    choose.refuse_others(
        maker,
        {
            "--release": release,
            "--memory": memory,
            "--cpus-per-node": cpus_per_node,
            "--project": project,
            "--region": region,
            "--zone": zone,
            "--machine-type": machine_type,
            "--gpu": gpu,
            "--image": image,
            "--disk": disk,
            "--spot/--no-spot": None if spot is None else str(spot),
            "--network": network,
            "--ssh-by": ssh_by,
            "--owner": owner,
            "--admin-cidr": admin_cidr,
            "--max-hours": max_hours,
            "--idle-minutes": idle_minutes,
            "--reuse": reuse,
            "--dry-run": dry_run,
            "--yes": yes,
        },
    )
    options = choose.machine_options(nodes, release, memory, cpus_per_node)
    if maker == choose.DEFAULT_LAB:
        status: LabStatus | None = choose.rehearsal(home).up(name, options, console.say)
    else:
        asked = cloud_options(
            project=project,
            region=region,
            zone=zone,
            machine_type=machine_type,
            gpu=gpu,
            image=image,
            disk=disk,
            spot=spot,
            network=network,
            ssh_by=ssh_by,
            owner=owner,
            admin_cidrs=tuple(admin_cidr or ()),
            max_hours=max_hours,
            idle_minutes=idle_minutes,
        )
        wanted = choose.in_cloud(options, asked, reuse=reuse)
        status = _up_in_cloud(home, name, maker, wanted, dry_run=dry_run, yes=yes, json=json)
    if status is None:
        return
    nodes_now = [each.name for each in status.machines]
    lab_files.add_phases(home.make_local_dir(name), "up", status.phases, nodes_now)
    listing.print_status(home, name, maker, status, json=json)
    if not json:
        _say_next(home, name, status)


def _up_in_cloud(
    home: Home,
    lab: str,
    maker: str,
    options: MachineOptions,
    *,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> LabStatus | None:
    """Plan, show, ask, do; returns None where nothing was to be done."""
    from labctl.providers import choose
    from labctl.providers.cloud.plan import plan_dict, plan_lines

    provider = choose.cloud(home, maker)
    plan = provider.plan(lab, options, console.say)
    if dry_run and json:
        console.out_json(plan_dict(plan))
    elif dry_run:
        console.out("\n".join(plan_lines(plan)))
    elif plan.costs:
        console.say("\n".join(plan_lines(plan)))
    try:
        agreed = not dry_run and (yes or not plan.costs or _confirm(plan.wish.lab))
    except BaseException:
        provider.drop_plan(lab)
        raise
    if not agreed:
        provider.drop_plan(lab)
        if not dry_run:
            console.say("nothing was made")
        return None
    return provider.carry_out(plan, console.say)


def _confirm(lab: str) -> bool:
    """Ask before money is spent.

    Raises:
        UsageError: There is no terminal to ask on.
    """
    import sys

    from labctl.errors import UsageError

    if not sys.stdin.isatty():
        raise UsageError(
            f"lab {lab} costs money, and there is no terminal to ask on",
            expected="a yes",
            do="give --yes, or --dry-run to see the plan only",
        )
    return typer.confirm("make it?", err=True)


def _say_next(home: Home, name: str, status: LabStatus) -> None:
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
        bool, typer.Option("--force", help="Forget what cannot be removed or kept, and list it.")
    ] = False,
    provider: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="aws or gcp: ask there for a lab that is not known here."
        ),
    ] = None,
    project: ProjectOption = None,
    region: RegionOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """Bring a lab's runs home, remove its machines and all else made for it, print a receipt; records stay."""
    from labctl.cli.tear_down import tear_down
    from labctl.lab.home import Home
    from labctl.providers import choose
    from labctl.providers.cloud.options import cloud_options

    home = Home.find()
    name = choose.lab_to_remove(home, lab)
    if lab is None and name != choose.DEFAULT_LAB and name != home.active():
        console.say(f"taking down lab {name}")
    where = cloud_options(project=project, region=region)
    cloud = choose.cloud_to_ask(home, name, provider, where)
    tear_down(home, name, cloud, where, force=force, json=json, named=lab is not None)


def labs(
    *,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> None:
    """List the labs: provider, nodes, state as the cloud says, cost, timer; the active one is marked."""
    import time

    from labctl.lab.home import Home
    from labctl.providers import listing

    rows = listing.lab_rows(Home.find())
    if json:
        console.out_json([row.to_dict() for row in rows])
        return
    for line in listing.lab_lines(rows, time.time()):
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
