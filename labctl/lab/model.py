"""A lab as plain data: frozen, complete, and the same whoever made the machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

JOB_NAME = "local"
DEFAULT_PORT = 2222
LOOPBACK = "loopback"


@dataclass(frozen=True, slots=True)
class SshTarget:
    """How to reach a node over SSH, before OpenSSH's own configuration is applied.

    Attributes:
        host: `ansible_host`: a name, an address or an alias of `~/.ssh/config`.
        user: Login user, or None for what OpenSSH would take.
        port: Port, or None for what OpenSSH would take.
        key_file: Private key, `~` expanded, or None for agent and defaults.
        options: Further `ssh` arguments from the inventory, e.g. ("-o", "ProxyJump=me@gate").
    """

    host: str
    user: str | None = None
    port: int | None = None
    key_file: Path | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One machine and the TensorFlow task that it runs.

    Attributes:
        name: The inventory's host name, e.g. `tf0`.
        task_index: 0 for the client's node; unique and contiguous in a lab.
        data_address: Address or name under which TF peers reach this node.
        tf_port: Port of this task's TF server, 1 to 65535.
        ssh: How to reach it; None for the loopback lab, whose nodes are this machine.
        python: Interpreter of the TensorFlow venv on the node.
    """

    name: str
    task_index: int
    data_address: str
    tf_port: int
    ssh: SshTarget | None
    python: str = "/opt/labctl/venv/bin/python"

    @property
    def tf_address(self) -> str:
        """`host:port` as it stands in the cluster spec."""
        return f"{self.data_address}:{self.tf_port}"


@dataclass(frozen=True, slots=True)
class Lab:
    """A named set of nodes.

    Attributes:
        name: Name of the inventory directory.
        nodes: Ordered by task index, at least two.
        inventory: The inventory directory; None for the loopback lab.
        provider: `rehearsal`, `aws`, `gcp`, `none` or `loopback`.
        local_dir: `.lab/<name>`: keys, known_hosts, state and run records.
    """

    name: str
    nodes: tuple[Node, ...]
    inventory: Path | None
    provider: str
    local_dir: Path

    @property
    def client(self) -> Node:
        """The node of task 0."""
        return self.nodes[0]

    @property
    def workers(self) -> tuple[Node, ...]:
        """The nodes that run a join server, in task order."""
        return self.nodes[1:]

    def node(self, name: str) -> Node:
        """Return the node of that name.

        Raises:
            KeyError: No node has it.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
