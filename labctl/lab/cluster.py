"""The TensorFlow cluster of a lab, checked before TensorFlow sees it.

TF 2.21 accepts duplicate, unresolvable and `user@host` addresses, turns port 99999 into 34463 and aborts the
process on an odd job name; so nothing is left to it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from labctl.errors import InventoryError
from labctl.lab.model import Lab, Node

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?\Z|\[[0-9A-Fa-f:.]+\]\Z")


def check_data_address(node: str, address: str) -> None:
    """Raise InventoryError if an address cannot stand in a cluster spec.

    Raises:
        InventoryError: It has a user, a scheme, a port, blanks, or is no host name or address.
    """
    if not _HOST.match(address):
        raise InventoryError(
            f"tf_data_address of {node} is {address!r}",
            expected="a host name, an IPv4 address or an IPv6 address in brackets; no user@, scheme or port",
            do=f"correct it for {node} in the inventory",
        )


def check_port(node: str, port: int) -> None:
    """Raise InventoryError if a port is outside 1 to 65535."""
    if not 1 <= port <= 65535:
        raise InventoryError(
            f"tf_port of {node} is {port}",
            expected="a number from 1 to 65535",
            do=f"correct it for {node} in the inventory",
        )


def check_cluster(nodes: Sequence[Node], *, where: str) -> tuple[Node, ...]:
    """Return the nodes in task order.

    Args:
        nodes: In any order.
        where: The inventory, for messages.

    Raises:
        InventoryError: Fewer than two nodes, task indices that are not 0..N-1, two tasks at one address, or an
            address or port that cannot be one.
    """
    if len(nodes) < 2:
        raise InventoryError(
            f"group tf_cluster has {len(nodes)} host{'' if len(nodes) == 1 else 's'} in {where}",
            expected="two or more, one TensorFlow task each",
            do="add hosts under tf_cluster, or labctl up --nodes 2",
        )
    by_index: dict[int, Node] = {}
    for node in nodes:
        other = by_index.setdefault(node.task_index, node)
        if other is not node:
            raise InventoryError(
                f"tf_task_index {node.task_index} is given to both {other.name} and {node.name} in {where}",
                expected=f"each of 0 to {len(nodes) - 1} once",
                do="give each host an index of its own",
            )
    if sorted(by_index) != list(range(len(nodes))):
        found = ", ".join(str(index) for index in sorted(by_index))
        raise InventoryError(
            f"tf_task_index values are {found} in {where}",
            expected=f"0 to {len(nodes) - 1} without a gap",
            do="number the hosts from 0",
        )
    ordered = tuple(by_index[index] for index in range(len(nodes)))
    for node in ordered:
        check_data_address(node.name, node.data_address)
        check_port(node.name, node.tf_port)
    for address, count in Counter(node.tf_address for node in ordered).items():
        if count > 1:
            names = " and ".join(node.name for node in ordered if node.tf_address == address)
            raise InventoryError(
                f"{names} share the address {address} in {where}",
                expected="an address and port of its own for each task",
                do="set tf_data_address (or tf_port) for each host",
            )
    return ordered


def cluster_addresses(lab: Lab) -> tuple[str, ...]:
    """Return `host:port` of each task in task order: the cluster spec's list."""
    return tuple(node.tf_address for node in lab.nodes)
