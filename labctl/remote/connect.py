"""A lab's node to the executor and the units that fit it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labctl.lab.model import Lab, Node
    from labctl.remote.base import Executor
    from labctl.remote.units import Units


def open_executor(node: Node, lab: Lab) -> Executor:
    """Return an executor for a node; it connects on first use and its maker closes it.

    Args:
        node: A node of the lab.
        lab: The lab; where it has a `known_hosts` of its own, host keys are looked up there first.
    """
    if node.ssh is None:
        from labctl.remote.local import LocalExecutor

        return LocalExecutor(node.name)
    from labctl.remote.ssh import SshExecutor

    own = () if lab.provider == "none" else (lab.local_dir / "known_hosts",)
    mend = f"labctl up --lab {lab.name}, which records the host keys of its machines anew"
    return SshExecutor(
        node.name,
        node.ssh,
        known_hosts=own,
        wrong_key_advice=mend if lab.provider == "rehearsal" else None,
    )


def open_units(node: Node, executor: Executor, lab: Lab) -> Units:
    """Return the units of a node, run through an executor of `open_executor`."""
    if node.ssh is None:
        from labctl.remote.units_process import ProcessUnits

        return ProcessUnits(executor, str(lab.local_dir / "units" / node.name))
    from labctl.remote.units_systemd import SystemdUnits

    return SystemdUnits(executor)
