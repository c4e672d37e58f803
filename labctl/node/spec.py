"""The cluster spec, checked before TensorFlow sees it.

TensorFlow 2.21 itself accepts duplicate addresses, users before an `@` and unresolvable names, maps port 99999 to
34463, and aborts the process on some job names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from . import wire
from .errors import BAD_SPEC, NodeError

_ADDRESS = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?):(?P<port>[0-9]{1,5})"
)
_EXPECTED = "HOST:PORT, no user, no scheme, no blanks, port 1 to 65535"


def bad_spec(found: str, *, expected: str, do: str) -> NodeError:
    """Return the error for a cluster spec or task that cannot be served."""
    return NodeError(found, expected=expected, do=do, kind=BAD_SPEC, status=wire.EXIT_BAD_SPEC)


def split_address(address: str) -> tuple[str, int]:
    """Return host (an IPv6 address without its brackets) and port.

    Raises:
        NodeError: It is not `host:port`.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise bad_spec(
            f"address {address!r} in the cluster spec cannot be used",
            expected=_EXPECTED,
            do="correct tf_data_address or tf_port in the inventory and provision again",
        )
    return match["host"].strip("[]"), int(match["port"])


def check_addresses(addresses: Sequence[Any]) -> tuple[str, ...]:
    """Return the addresses of a cluster, in task order, if TensorFlow can serve them.

    Raises:
        NodeError: One is malformed, two are the same, or there are fewer than two.
    """
    seen: dict[str, int] = {}
    for task, address in enumerate(addresses):
        split_address(address if isinstance(address, str) else repr(address))
        if address in seen:
            raise bad_spec(
                f"tasks {seen[address]} and {task} have the same address {address}",
                expected="one address for each task",
                do="give each node its own tf_data_address or tf_port in the inventory",
            )
        seen[address] = task
    if len(seen) < 2:
        raise bad_spec(
            f"the cluster spec has {len(seen)} task{'' if len(seen) == 1 else 's'}",
            expected="two or more",
            do="add nodes to the group tf_cluster and provision again",
        )
    return tuple(addresses)


def parse_spec(text: str) -> tuple[str, ...]:
    """Return the addresses of a cluster spec file, in task order.

    Args:
        text: A document like `wire.spec_text` writes.

    Raises:
        NodeError: It is not JSON, has another form or another job, or `check_addresses` refuses it.
    """
    expected = f'{{"cluster": {{"{wire.JOB_NAME}": ["HOST:PORT", …]}}}}'
    do = "provision again: ansible-playbook provision.yml"
    try:
        document = json.loads(text)
    except ValueError as error:
        raise bad_spec(
            f"the cluster spec is not JSON: {error}", expected=expected, do=do
        ) from error
    jobs = document.get("cluster") if isinstance(document, dict) else None
    if not isinstance(jobs, dict) or list(jobs) != [wire.JOB_NAME]:
        named = f"jobs {sorted(jobs)}" if isinstance(jobs, dict) else "no object 'cluster'"
        raise bad_spec(f"the cluster spec has {named}", expected=expected, do=do)
    addresses = jobs[wire.JOB_NAME]
    if not isinstance(addresses, list):
        raise bad_spec(f"job {wire.JOB_NAME} is no list of addresses", expected=expected, do=do)
    return check_addresses(addresses)


def check_task(task: int, addresses: Sequence[str]) -> int:
    """Return a task's index if the cluster has it.

    Raises:
        NodeError: It has not.
    """
    if not 0 <= task < len(addresses):
        raise bad_spec(
            f"task {task} is not in the cluster spec, which has {len(addresses)} tasks",
            expected=f"0 to {len(addresses) - 1}",
            do="correct tf_task_index in the inventory and provision again",
        )
    return task
