"""What makes machines: one small protocol, whichever provider stands behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from labctl.providers.cloud.model import CloudOptions
from labctl.runs.record import LabPhase

Report = Callable[[str], None]
"""Takes one line about progress, meant for the user."""

State = Literal["up", "partly", "stopped", "down", "unknown"]


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """What `labctl up` was asked for; None leaves a standing lab as it is and gives a new one the default.

    Attributes:
        nodes: Number of machines, 1 to 8.
        release: Debian release, a codename.
        memory_bytes: Bound of each machine's memory, in bytes.
        cpus_per_node: CPUs of each machine.
        cloud: What only machines of a cloud have; None as all of it left open.
        reuse: Start machines that are stopped.
    """

    nodes: int | None = None
    release: str | None = None
    memory_bytes: int | None = None
    cpus_per_node: int | None = None
    cloud: CloudOptions | None = None
    reuse: bool = False


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """One machine as it is now.

    Attributes:
        name: Node name, e.g. `tf0`.
        address: Its address in the lab's network.
        running: It runs; whether it answers is for `labctl check` to say.
        stopped: It is powered off and can be started again.
        note: What the user should know of it, "" for nothing.
    """

    name: str
    address: str
    running: bool
    stopped: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class LabStatus:
    """A lab's machines.

    Attributes:
        machines: In task order; empty when none was ever made or all are gone.
        cost: What the lab has cost so far, USD; None if a price is unknown.
        phases: What `up` just did for it; () where it found all done.
        unknown: Why the cloud could not be asked, "" if it was; the machines are those of its last answer then.
        asked_unix_s: When the cloud gave that answer; None where nobody has to be asked.
        usd_per_hour: What it costs as it is, None if a price is unknown.
        deadline_unix_s: When its dead-man timer ends its machines at the latest, None without one.
        notes: What the user should know.
    """

    machines: tuple[MachineStatus, ...]
    cost: float | None = 0.0
    phases: tuple[LabPhase, ...] = ()
    unknown: str = ""
    asked_unix_s: float | None = None
    usd_per_hour: float | None = 0.0
    deadline_unix_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """`up` when all machines run, `partly` when some do, `stopped` when none but some could, else `down`."""
        if self.unknown:
            return "unknown"
        running = [machine.running for machine in self.machines]
        if running and all(running):
            return "up"
        if any(running):
            return "partly"
        return "stopped" if any(machine.stopped for machine in self.machines) else "down"


@dataclass(frozen=True, slots=True)
class MachineCost:
    """What one machine cost.

    Attributes:
        node: Node name.
        machine_type: As the cloud names it.
        running_h: Hours that it ran.
        stopped_h: Hours that it was powered off and its disk was billed.
        usd: What both cost, None if a price is unknown.
    """

    node: str
    machine_type: str
    running_h: float
    stopped_h: float
    usd: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return it for `labctl down --json`."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a teardown did.

    Attributes:
        removed: Things that are gone now, each a short phrase.
        left: Things of the lab that are still there, with the reason.
        forgotten: Things still there that labctl no longer removes (`--force`).
        cost: What the lab cost in all, USD; None if a price is unknown.
        kept: Files of the user's own that stay, such as an edited group_vars; no resource among them.
        machines: What each machine of a cloud cost.
        hours: From the first machine's creation to the last one's end; None where no machine of a cloud was.
        first_step_h: Hours from that creation to the first step of a run, None if there was none.
        asked: Whom and when was asked whether anything is left, "" where nobody has to be.
        created_unix_s: When the first machine of a cloud was made.
    """

    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    cost: float | None = 0.0
    kept: tuple[str, ...] = ()
    machines: tuple[MachineCost, ...] = ()
    hours: float | None = None
    first_step_h: float | None = None
    asked: str = ""
    created_unix_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the receipt of `labctl down --json`."""
        of_cloud = {
            "machines": [each.to_dict() for each in self.machines],
            "hours": self.hours,
            "first_step_h": self.first_step_h,
            "asked": self.asked,
        }
        return {
            "removed": list(self.removed),
            "left": list(self.left),
            "forgotten": list(self.forgotten),
            "cost": self.cost,
            "kept": list(self.kept),
            **(of_cloud if self.asked else {}),
        }


class Provider(Protocol):
    """Makes, lists and removes the machines of labs."""

    name: str

    def up(self, lab: str, options: MachineOptions, report: Report) -> LabStatus:
        """Make a lab as asked, or heal one that stands; returns when every machine takes SSH logins.

        Raises:
            ConfigError: This host cannot do it, or the options contradict the standing lab.
            LabBusyError: Another command works on the lab's machines.
            DeadlineError: A machine was not ready in time.
        """
        ...

    def status(self, lab: str) -> LabStatus:
        """Return the machines as they are; needs no rights."""
        ...

    def owns(self, lab: str) -> bool:
        """Return whether this provider has made anything of a lab."""
        ...

    def down(self, lab: str, *, force: bool, report: Report) -> Receipt:
        """Remove all that was made for a lab. A second call finds nothing and says so.

        Args:
            lab: Its name.
            force: Forget what cannot be removed instead of leaving it on the books.
            report: Progress.

        Raises:
            ConfigError: This user or host cannot do it.
            LabBusyError: Another command works on the lab's machines.
        """
        ...
