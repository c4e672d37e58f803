"""What makes machines: one small protocol, whichever provider stands behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from labctl.runs.record import LabPhase

Report = Callable[[str], None]
"""Takes one line about progress, meant for the user."""

State = Literal["up", "partly", "down", "unknown"]


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """What `labctl up` was asked for; None leaves a standing lab as it is and gives a new one the default.

    Attributes:
        nodes: Number of machines, 1 to 8.
        release: Debian release, a codename.
        memory_bytes: Bound of each machine's memory, in bytes.
        cpus_per_node: CPUs of each machine.
    """

    nodes: int | None = None
    release: str | None = None
    memory_bytes: int | None = None
    cpus_per_node: int | None = None


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """One machine as it is now.

    Attributes:
        name: Node name, e.g. `tf0`.
        address: Its address in the lab's network.
        running: It runs; whether it answers is for `labctl check` to say.
    """

    name: str
    address: str
    running: bool


@dataclass(frozen=True, slots=True)
class LabStatus:
    """A lab's machines.

    Attributes:
        machines: In task order; empty when none was ever made or all are gone.
        cost: What the lab has cost so far, USD.
        phases: What `up` just did for it; () where it found all done.
    """

    machines: tuple[MachineStatus, ...]
    cost: float = 0.0
    phases: tuple[LabPhase, ...] = ()

    @property
    def state(self) -> State:
        """`up` when all machines run, `partly` when some do, else `down`."""
        running = [machine.running for machine in self.machines]
        if running and all(running):
            return "up"
        return "partly" if any(running) else "down"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a teardown did.

    Attributes:
        removed: Things that are gone now, each a short phrase.
        left: Things of the lab that are still there, with the reason.
        forgotten: Things still there of which labctl has dropped its knowledge (`--force`).
        cost: What the lab cost in all, USD.
        kept: Files of the user's own that stay, such as an edited group_vars; no resource among them.
    """

    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    cost: float = 0.0
    kept: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the receipt of `labctl down --json`."""
        return {
            "removed": list(self.removed),
            "left": list(self.left),
            "forgotten": list(self.forgotten),
            "cost": self.cost,
            "kept": list(self.kept),
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
