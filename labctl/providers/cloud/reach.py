"""Waiting until new machines take SSH logins, their host keys known beforehand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from labctl.errors import (
    AuthenticationError,
    DeadlineError,
    HostKeyError,
    LabctlError,
    UnreachableError,
)
from labctl.lab.model import Lab, Node
from labctl.providers.base import Report
from labctl.providers.phases import PhaseLog
from labctl.remote.base import Executor

READY_S = 420.0  # a cloud's machine boots in one to three minutes, one with many GPUs in five
_WRONG_KEY_S = 60.0  # an image's own sshd may answer before cloud-init has put the key in place
_EACH_S = 15.0

Opener = Callable[[Node, Lab], Executor]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited, and by which clock.

    Attributes:
        ready_s: For logins.
        sleep: Waits.
        now_s: Monotonic clock.
    """

    ready_s: float = READY_S
    sleep: Callable[[float], None] = time.sleep
    now_s: Callable[[], float] = time.monotonic


def wait_for_logins(
    lab: Lab, opener: Opener, report: Report, log: PhaseLog, patience: Patience
) -> None:
    """Return when every node takes logins.

    Args:
        lab: The lab.
        opener: Makes executors.
        report: Progress.
        log: Gets a phase for each node that had to be waited for.
        patience: For how long.

    Raises:
        DeadlineError: A node was not ready in time.
        UnreachableError: A node answers with another host key, or refuses the lab's key to the end.
    """
    given_up = threading.Event()

    def wait(node: Node) -> LabctlError | None:
        started_s = patience.now_s()
        error = _wait(node, lab, opener, patience, given_up)
        if error is None:
            waited_s = patience.now_s() - started_s
            host = node.ssh.host if node.ssh is not None else node.data_address
            report(f"{node.name}: {host} takes logins, after {waited_s:.0f} s")
            log.add("ssh", node.name, started_s, patience.now_s())
        return error

    with ThreadPoolExecutor(max_workers=len(lab.nodes)) as pool:
        try:
            errors = list(pool.map(wait, lab.nodes))
        except BaseException:
            given_up.set()
            raise
    for error in errors:
        if error is not None:
            raise error


def _wait(
    node: Node, lab: Lab, opener: Opener, patience: Patience, given_up: threading.Event
) -> LabctlError | None:
    """Return None when a node takes logins, else why it does not."""
    started_s = patience.now_s()
    while True:
        error = _try(node, lab, opener)
        if error is None:
            return None
        waited_s = patience.now_s() - started_s
        limit_s = _WRONG_KEY_S if isinstance(error, HostKeyError) else patience.ready_s
        if given_up.is_set() or waited_s >= min(limit_s, patience.ready_s):
            return _final(node, lab, error, waited_s)
        patience.sleep(3.0)


def _try(node: Node, lab: Lab, opener: Opener) -> LabctlError | None:
    executor = opener(node, lab)
    try:
        executor.run(["true"], timeout_s=_EACH_S)
    except (UnreachableError, DeadlineError) as error:
        return error
    finally:
        executor.close()
    return None


def _final(node: Node, lab: Lab, error: LabctlError, waited_s: float) -> LabctlError:
    if isinstance(error, HostKeyError | AuthenticationError):
        return error
    host = node.ssh.host if node.ssh is not None else node.data_address
    return DeadlineError(
        f"{node.name} ({host}) took no login within {waited_s:.0f} s: {error.found}",
        expected="sshd on it, and SSH open from here",
        do=f"labctl up --lab {lab.name} waits again, with --admin-cidr ADDRESS/32 if your address "
        f"has changed; labctl down --lab {lab.name} removes it",
    )
