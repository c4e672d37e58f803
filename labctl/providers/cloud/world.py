"""What a provider needs of the world outside: the cloud's playbooks, SSH, clocks, this machine's address."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from labctl.lab.home import Home
from labctl.lab.model import Lab, Node
from labctl.providers.cloud import address, credentials
from labctl.providers.cloud.catalogue import Cloud
from labctl.providers.cloud.plays import AnsibleRunner, Runner
from labctl.providers.cloud.prices import Prices, table
from labctl.providers.cloud.reach import Opener, Patience
from labctl.remote.base import Executor


def _open(node: Node, lab: Lab) -> Executor:
    from labctl.remote.connect import open_executor

    return open_executor(node, lab)


@dataclass(frozen=True, slots=True)
class World:
    """The outside, each part replaceable.

    Attributes:
        runner: Runs playbooks.
        opener: Makes executors for nodes.
        require: Checks packages and credentials.
        own_cidr: Finds this machine's public address.
        region: Region that environment or profile name.
        project: Project that the environment names.
        prices: The price table.
        unix_s: Wall clock.
        sleep: Waits.
        patience: With machines that boot.
    """

    runner: Runner
    opener: Opener = _open
    require: Callable[[Cloud], None] = credentials.require
    own_cidr: Callable[[], str] = address.own_cidr
    region: Callable[[Cloud], str | None] = credentials.region
    project: Callable[[Cloud], str] = credentials.project
    prices: Prices = field(default_factory=table)
    unix_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    patience: Patience = field(default_factory=Patience)


def real_world(home: Home) -> World:
    """Return the real one."""
    return World(AnsibleRunner(home))
