"""What is asked of a cloud, what it would cost, and what the cloud says is there.

The playbooks of `playbooks/cloud` speak these words too: their README states the variables that they take and the
JSON that they answer with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CLOUDS = ("aws", "gcp")

Kind = Literal["machine", "disk", "address", "network", "subnet", "gateway", "firewall", "key"]


@dataclass(frozen=True, slots=True)
class CloudOptions:
    """What `labctl up` was asked for in a cloud; None leaves a standing lab as it is, a new one gets the default.

    Attributes:
        project: Project that pays; `gcp` only.
        region: E.g. `eu-central-1` or `europe-west4`.
        zone: E.g. `eu-central-1a` or `europe-west4-a`.
        machine_type: E.g. `g4dn.xlarge` or `n1-standard-8`.
        gpu_type: E.g. `T4`; "" for none. On `aws` it must be what the machine type has.
        gpu_count: GPUs of each machine.
        image: Image's name, family or id.
        disk_gb: Size of each boot disk, GB.
        spot: Spot (preemptible) machines.
        network: An existing network to use, by name or id; "" makes one.
        ssh_by: Which address SSH goes to: `public`, or `private` from inside the network or over a VPN.
        owner: Stands in the label `labctl-owner`.
        admin_cidrs: Networks that SSH is open to; () finds the caller's own address.
        max_hours: The dead-man timer: after so many hours each node powers itself off.
        idle_minutes: It also does so after so long without a run; 0 never.
    """

    project: str | None = None
    region: str | None = None
    zone: str | None = None
    machine_type: str | None = None
    gpu_type: str | None = None
    gpu_count: int | None = None
    image: str | None = None
    disk_gb: int | None = None
    spot: bool | None = None
    network: str | None = None
    ssh_by: Literal["public", "private"] | None = None
    owner: str | None = None
    admin_cidrs: tuple[str, ...] = ()
    max_hours: float | None = None
    idle_minutes: float | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """What one hour costs.

    Attributes:
        usd_per_hour: On demand, without tax.
        source: Where the figure comes from.
        as_of: Day on which it was read, ISO.
    """

    usd_per_hour: float
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class PlannedMachine:
    """A machine that `up` would make.

    Attributes:
        node: Node name.
        task: Task index.
        machine_type: As the cloud names it.
        gpu: E.g. `1 x T4`, "" for none.
        disk_gb: Boot disk, GB.
        image: What its image resolved to: id and name.
        zone: Where.
        spot: It may be taken away at any time.
        price: Machine, GPUs and disk together; None where the table has none.
    """

    node: str
    task: int
    machine_type: str
    gpu: str
    disk_gb: int
    image: str
    zone: str
    spot: bool
    price: Price | None


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that the cloud has with the lab's label, as it answered.

    Attributes:
        kind: What it is.
        id: The cloud's id or name of it.
        name: Its name tag, "" for none.
        node: The node that it belongs to, "" for none.
        state: As the cloud says, e.g. `running`, `stopped`, `terminated`, `in-use`.
        billable: It costs money as it is.
        zone: Where, "" for nowhere in particular.
        machine_type: Of a machine, else "".
        private_address: Of a machine, "" without one.
        public_address: Of a machine or address, "" without one.
        created_unix_s: When it was made, None if the cloud does not say.
        stopped_unix_s: When a stopped machine stopped, None if it runs or the cloud does not say.
    """

    kind: Kind
    id: str
    name: str = ""
    node: str = ""
    state: str = ""
    billable: bool = False
    zone: str = ""
    machine_type: str = ""
    private_address: str = ""
    public_address: str = ""
    created_unix_s: float | None = None
    stopped_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The cloud's answer to "what is there with this lab's label".

    Attributes:
        provider: `aws` or `gcp`.
        asked_unix_s: When it was asked.
        resources: All that it has, in no order; one that is being removed counts until it is gone.
    """

    provider: str
    asked_unix_s: float
    resources: tuple[Resource, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the cloud would refuse the lab, found without spending anything.

    Attributes:
        subject: `credentials`, `region`, `zone`, `machine-type`, `image`, `quota` or `network`.
        found: What was found.
        expected: What was expected.
        do: What helps.
    """

    subject: str
    found: str
    expected: str
    do: str


@dataclass(frozen=True, slots=True)
class Validated:
    """What the cloud says of a plan before anything is made.

    Attributes:
        account: Account or project that would pay.
        machines: (node, machine type, image, zone) of each machine as the cloud resolved them.
        problems: () when it would go.
        unchecked: What could not be looked at, with the reason.
    """

    account: str
    machines: tuple[tuple[str, str, str, str], ...] = ()
    problems: tuple[Problem, ...] = ()
    unchecked: tuple[str, ...] = ()
