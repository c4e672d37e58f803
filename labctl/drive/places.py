"""Where a run lives on its node, and under which names."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass

from labctl.errors import ConfigError
from labctl.lab.model import LOOPBACK, Lab, Node

RUN_UNIT = "labctl-run.service"
JOIN_SERVICE = "tf-join-server.service"
CLIENT_USER = "labctl"
STATE_DIR = "/var/lib/labctl"
RUNS_DIR = f"{STATE_DIR}/runs"
DESCRIPTION = "labctl run "


@dataclass(frozen=True, slots=True)
class Places:
    """Names and paths of a lab's runs.

    Attributes:
        runs_dir: Directory of all run directories on task 0's node.
        user: System user that the client runs as; None for the caller.
        python: Interpreter with TensorFlow.
        loopback: Every node is this machine and join servers are started for each run.
    """

    runs_dir: str
    user: str | None
    python: str
    loopback: bool

    def directory(self, run_id: str) -> str:
        """Return a run's directory on task 0's node."""
        return f"{self.runs_dir}/{run_id}"

    def join_directory(self, run_id: str, node: Node) -> str:
        """Return the directory of a join server that is started for a loopback run."""
        return f"{self.directory(run_id)}/join-{node.task_index}"


def places(lab: Lab) -> Places:
    """Return the places of a lab."""
    if lab.name == LOOPBACK:
        runs_dir = str(lab.local_dir.absolute() / "node" / "runs")
        return Places(runs_dir, None, sys.executable, loopback=True)
    return Places(RUNS_DIR, CLIENT_USER, lab.client.python, loopback=False)


def join_unit(node: Node) -> str:
    """Return the name of a loopback run's join server unit."""
    return f"labctl-join-{node.task_index}.service"


def require_local_tensorflow() -> None:
    """Check that this interpreter can run a loopback lab, without importing TensorFlow.

    Raises:
        ConfigError: TensorFlow or numpy is missing.
    """
    for module in ("numpy", "tensorflow"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"{module} is not installed for {sys.executable}",
                expected="TensorFlow beside labctl: the loopback lab runs it on this machine",
                do="pip install 'labctl[loopback]'",
            )


def run_of(description: str) -> str | None:
    """Return the run id in a unit's description, None if it is of something else."""
    words = description.removeprefix(DESCRIPTION).split(maxsplit=1)
    return words[0] if words and description.startswith(DESCRIPTION) else None
