"""A world with a cloud in memory, for tests of what labctl does with clouds."""

from __future__ import annotations

from dataclasses import dataclass, field

from labctl.lab.home import Home
from labctl.lab.model import Lab, Node
from labctl.providers.base import MachineOptions
from labctl.providers.cloud.fake import FakeCloud
from labctl.providers.cloud.model import CloudOptions
from labctl.providers.cloud.prices import Prices, Row
from labctl.providers.cloud.provider import CloudProvider
from labctl.providers.cloud.reach import Patience
from labctl.providers.cloud.world import World
from labctl.remote.base import Executor
from labctl.remote.fake import FakeExecutor, Reply

START_S = 1_796_000_000.0
ROWS = [
    Row("aws", "us-east-1", "machine", "g4dn.xlarge", 0.526, "a table", "2026-01-02"),
    Row("aws", "us-east-1", "machine", "m6i.large", 0.096, "a table", "2026-01-02"),
    Row("aws", "us-east-1", "disk", "", 0.08, "another table", "2025-12-31"),
    Row("aws", "us-east-1", "address", "", 0.005, "a table", "2026-01-02"),
    Row("gcp", "us-central1", "machine", "n1-standard-4", 0.19, "a table", "2026-01-02"),
    Row("gcp", "us-central1", "gpu", "T4", 0.35, "a table", "2026-01-02"),
    Row("gcp", "us-central1", "disk", "", 0.1, "a table", "2026-01-02"),
    Row("gcp", "us-central1", "address", "", 0.005, "a table", "2026-01-02"),
]


@dataclass
class Clock:
    """A clock that goes on only when somebody waits.

    Attributes:
        now_s: Seconds.
        waits: Every wait so far.
    """

    now_s: float = START_S
    waits: list[float] = field(default_factory=list)

    def time(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds


@dataclass
class Worlds:
    """A home with a cloud and everything else in memory.

    Attributes:
        home: Whose labs.
        clock: Of all.
        said: What the user was told.
        nodes: Executors by node name, made when they are asked for.
        asked_address: How often this machine's address was asked.
    """

    home: Home
    provider: str = "aws"
    clock: Clock = field(default_factory=Clock)
    said: list[str] = field(default_factory=list)
    nodes: dict[str, FakeExecutor] = field(default_factory=dict)
    asked_address: int = 0

    def __post_init__(self) -> None:
        self.cloud = FakeCloud(self.provider, self.clock.time)

    def executor(self, node: Node, lab: Lab) -> Executor:
        del lab
        if node.name not in self.nodes:
            self.nodes[node.name] = FakeExecutor(node.name).on(["true"], Reply())
        return self.nodes[node.name]

    def own_cidr(self) -> str:
        self.asked_address += 1
        return "198.51.100.200/32"

    @property
    def world(self) -> World:
        return World(
            runner=self.cloud,
            opener=self.executor,
            require=lambda _: None,
            own_cidr=self.own_cidr,
            region=lambda _: None,
            project=lambda cloud: "my-project" if cloud.name == "gcp" else "",
            prices=Prices(ROWS),
            unix_s=self.clock.time,
            sleep=self.clock.sleep,
            patience=Patience(60.0, self.clock.sleep, self.clock.time),
        )

    @property
    def labs(self) -> CloudProvider:
        return CloudProvider(self.home, self.provider, self.world)

    def tell(self, text: str) -> None:
        self.said.append(text)


def options(nodes: int | None = None, *, reuse: bool = False, **cloud: object) -> MachineOptions:
    """Return options of `up` for a cloud."""
    return MachineOptions(nodes=nodes, cloud=CloudOptions(**cloud), reuse=reuse)  # type: ignore[arg-type]
