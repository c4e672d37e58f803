"""What the probes found, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labctl.checks.gpu_facts import GpuFacts, GpuNeed
from labctl.errors import LabctlError
from labctl.lab.model import Lab
from labctl.remote.clock import Offset


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """A systemd unit, its properties by systemd's names.

    Attributes:
        load: LoadState.
        active: ActiveState.
        sub: SubState.
        result: Result.
        description: Description.
        main_pid: MainPID, 0 if none.
        restarts: NRestarts.
        started_at_s: Unix time on the node of its main process's start, None if it never started.
        since_s: Seconds since its state changed, None if unknown.
    """

    load: str
    active: str
    sub: str
    result: str
    description: str
    main_pid: int
    restarts: int
    started_at_s: float | None
    since_s: float | None

    @property
    def running(self) -> bool:
        return self.active in {"active", "activating", "deactivating", "reloading"}


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process; pid 0 is one that the probe may not see."""

    pid: int
    command: str
    unit: str

    @property
    def is_listener(self) -> bool:
        """It is the temporary listener of a check; several may stand side by side."""
        return self.command == "labctl-listen"

    def __str__(self) -> str:
        if self.pid == 0:
            return "a process of another user"
        words = self.command.split()
        name = words[0].rsplit("/", 1)[-1] if words else "?"
        rest = " ".join([name, *words[1:]])
        return f"{rest if len(rest) <= 60 else rest[:59] + '…'}, pid {self.pid}"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The join server's process.

    Attributes:
        argv: Its command line.
        proxies: Proxy variables in its environment, None if that may not be read.
        ports: TCP ports that it listens on.
    """

    argv: tuple[str, ...]
    proxies: Mapping[str, str] | None
    ports: tuple[int, ...]

    def option(self, name: str) -> str | None:
        """Return the value that follows an option on its command line."""
        for index, word in enumerate(self.argv[:-1]):
            if word == name:
                return self.argv[index + 1]
        return None


@dataclass(frozen=True, slots=True)
class SpecFacts:
    """The cluster spec's file.

    Attributes:
        text: Its text, None if it cannot be read.
        mtime_s: Unix time on the node of its last change.
        error: Why it cannot be read.
    """

    text: str | None
    mtime_s: float | None
    error: str | None


@dataclass(frozen=True, slots=True)
class VenvFacts:
    """TensorFlow's Python.

    Attributes:
        error: Why it does not run, else None.
        python: Its version.
        packages: Versions by name, of `tensorflow`, `tensorflow-cpu` and `numpy` where installed.
    """

    error: str | None
    python: str
    packages: Mapping[str, str]

    @property
    def tensorflow(self) -> str | None:
        """Version of TensorFlow, whichever build it is."""
        return self.packages.get("tensorflow") or self.packages.get("tensorflow-cpu")


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Room below a path; `free_inodes` is None where the file system does not count them."""

    path: str
    free_bytes: int
    free_inodes: int | None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run directory on the node."""

    name: str
    age_s: float
    ended: bool


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node, as its facts probe found it.

    Attributes:
        user: The login user.
        root: The probe ran as root.
        sudo_error: Why `sudo -n` did not work, None if it did or was not needed.
        python: Version of the system's Python.
        units: Units by name.
        units_error: Why systemd could not be asked.
        journal: Last lines of a join server that is not active, oldest first.
        server: The join server's process, None if there is none.
        manager_proxies: Proxy variables that systemd gives to every unit.
        login_proxies: Proxy variables of `/etc/environment`.
        firewall_table: The lab's nftables table is loaded; None if unknown.
        spec: The cluster spec's file.
        venv: TensorFlow's Python.
        addresses: Addresses of the node's interfaces.
        disk: Room by path.
        machine: Architecture, e.g. `x86_64`.
        cpu_flags: Those of interest to TensorFlow.
        holders: Processes that listen on the node's TF port.
        runs: Run directories, newest first.
        strays: Processes of the client's user outside its unit.
        gpu: None if not asked for.
    """

    user: str
    root: bool
    sudo_error: str | None
    python: str
    units: Mapping[str, UnitFacts]
    units_error: str | None
    journal: tuple[str, ...]
    server: ServerFacts | None
    manager_proxies: Mapping[str, str]
    login_proxies: Mapping[str, str]
    firewall_table: bool | None
    spec: SpecFacts
    venv: VenvFacts
    addresses: tuple[str, ...]
    disk: tuple[DiskFacts, ...]
    machine: str
    cpu_flags: tuple[str, ...]
    holders: tuple[ProcessFacts, ...]
    runs: tuple[RunFacts, ...]
    strays: tuple[ProcessFacts, ...]
    gpu: GpuFacts | None


@dataclass(frozen=True, slots=True)
class ReachFacts:
    """One attempt to reach a peer's port.

    Attributes:
        addresses: What the peer's data address resolved to there.
        state: `answers`, `refused`, `timed out`, `not resolvable`, `unreachable` or `no gRPC server`.
        took_ms: From connecting to the answer.
        detail: More about the state, or "".
    """

    addresses: tuple[str, ...]
    state: str
    took_ms: float
    detail: str


@dataclass(frozen=True, slots=True)
class ListenerFacts:
    """The temporary listener: pid 0 and an error if it could not be opened."""

    pid: int
    start: str
    error: str | None


@dataclass(frozen=True, slots=True)
class MeansFacts:
    """What a node has for measuring.

    Attributes:
        iperf3: Program and version, "" if it is not installed.
        cpus: Numbers of the CPUs that a process may use there.
        boot_id: The node's boot.
        load_1min: Its load average; None if unknown.
    """

    iperf3: str
    cpus: frozenset[int]
    boot_id: str
    load_1min: float | None = None


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """One measurement from a node to another.

    Attributes:
        rtt_s: Median round trip of one byte, seconds; None if not measured.
        bits_per_s: What the receiver got in bits/s; None if not measured.
        retransmits: TCP segments sent again; None if unknown.
        error: Why it was broken off, else None.
    """

    rtt_s: float | None
    bits_per_s: float | None
    retransmits: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class ComputeFacts:
    """One measurement of numpy's product on a node.

    Attributes:
        gflops: 10^9 operations per second, of the best repetition.
        threads: CPUs that it could use.
        library: BLAS that computed, "" if numpy does not say.
    """

    gflops: float
    threads: int
    library: str


@dataclass(frozen=True, slots=True)
class Contact:
    """How a node was met over SSH.

    Attributes:
        connect_s: Seconds to the end of the first command, the connection included.
        error: Why it could not be met.
    """

    connect_s: float
    error: LabctlError | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """All that was found out about a lab; the judges read nothing else.

    Attributes:
        lab: The lab.
        gpu: What is wanted of GPUs, None if they are not asked for.
        contacts: By node.
        facts: By node; a node that could not be asked is absent.
        unreadable: Why a node that was met has no facts.
        listener: The temporary listener on task 0's port; None if there was no need or no way to open one.
        reach: By (from, to), names of nodes; absent pairs were not tried.
        outside: `open`, `refused` or `filtered`: each node's TF port as this machine sees it, by node and
            address; empty if this machine is a node.
        offsets: Clock offset of each node to this machine's; absent if not measured.
    """

    lab: Lab
    gpu: GpuNeed | None
    contacts: Mapping[str, Contact]
    facts: Mapping[str, NodeFacts]
    unreadable: Mapping[str, str]
    listener: ListenerFacts | None
    reach: Mapping[tuple[str, str], ReachFacts]
    outside: Mapping[str, Mapping[str, str]]
    offsets: Mapping[str, Offset]
