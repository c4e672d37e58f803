"""Whole runs on scripted machines: no process, no socket, and a clock that nobody waits for."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from labctl.checks.doctor import Checked
from labctl.checks.gpu_facts import GpuNeed
from labctl.checks.model import CheckResult
from labctl.drive import collect, push
from labctl.drive.follow import SERVER_GRACE_S
from labctl.drive.interrupts import Interrupts
from labctl.drive.links import Links
from labctl.drive.places import JOIN_SERVICE, RUN_UNIT
from labctl.drive.plan import RunOptions, make_request
from labctl.drive.run import attach, cancel, run
from labctl.drive.session import Session
from labctl.drive.start import CUDA_ENVIRONMENT, CUDA_KERNEL_CACHE
from labctl.drive.timing import Timeline
from labctl.errors import (
    HostUnreachableError,
    LabBusyError,
    PeerUnreachableError,
    RemoteCommandError,
    UserInterruptError,
)
from labctl.lab.model import Lab, Node, SshTarget
from labctl.node import wire
from labctl.remote.base import Executor
from labctl.remote.clock import CLOCK_ARGV
from labctl.remote.fake import Call, FakeExecutor, FakeUnits, Reply
from labctl.remote.follow import DIGEST_SCRIPT
from labctl.remote.units import UnitEnd, UnitSpec
from labctl.runs import lab_files
from labctl.runs.observer import Silent
from labctl.runs.record import FailedCheck, LabPhase, RunRecord
from labctl.runs.store import RunStore

PYTHON = "/opt/labctl/venv/bin/python"
OTHER = "20260101T000000Z-abcdef"


class FakeClock:
    """Time that passes only while somebody sleeps; what is due happens then."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def mono_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        for at_s, what in sorted(self.due, key=lambda each: each[0]):
            if at_s <= until_s:
                self.now_s = max(self.now_s, at_s)
                self.due.remove((at_s, what))
                what()
        self.now_s = until_s

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.due.append((self.now_s + seconds, what))


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.written: dict[str, bytes] = {}

    def note(self, text: str) -> None:
        self.notes.append(text)

    def output(self, node: str, stream: str, data: bytes) -> None:
        assert node == "tf0"
        self.written[stream] = self.written.get(stream, b"") + data


@dataclass
class World:
    """Two machines, and the commands that work on them."""

    home: Path
    clock: FakeClock = field(default_factory=FakeClock)
    interrupts: Interrupts = field(default_factory=Interrupts)
    notes: Notes = field(default_factory=Notes)
    results: list[CheckResult] = field(default_factory=list)
    client: Callable[[World, str], None] | None = None
    journal: bytes = b""
    room: bytes = b"     Avail\n  99999999999\n"
    process: bytes = b"1 (python) S 0 0 0 0 0 0 0 0 0 0 250 50 0 0\n100\n3000000000 500000000 7\n"
    facts: dict[str, Any] = field(default_factory=dict)
    iperf3: str = "iperf 3.12"
    filtered: str | None = None
    measured: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home.mkdir(exist_ok=True)
        nodes = tuple(
            Node(name, index, f"10.0.0.{index + 2}", 2222, ssh=SshTarget(name))
            for index, name in enumerate(("tf0", "tf1"))
        )
        self.lab = Lab("unit", nodes, self.home, "rehearsal", self.home)
        self.machines = {node.name: self._machine(node.name) for node in nodes}
        self.all_units = {name: FakeUnits(machine) for name, machine in self.machines.items()}
        self.all_units["tf1"].install(JOIN_SERVICE)
        self.units.on_start = self._started

    @property
    def tf0(self) -> FakeExecutor:
        return self.machines["tf0"]

    @property
    def units(self) -> FakeUnits:
        return self.all_units["tf0"]

    @property
    def store(self) -> RunStore:
        return RunStore(self.home)

    def gate(
        self,
        lab: Lab,
        executors: Mapping[str, Executor],
        gpu: GpuNeed | None,
        names: frozenset[str],
    ) -> Checked:
        assert lab is self.lab
        assert set(executors) == set(self.machines)
        assert (gpu is not None) == ("gpu" in names)
        self.asked, self.need = names, gpu
        return Checked(tuple(self.results))

    def session(self) -> Session:
        self.interrupts = Interrupts()
        links = Links(self.lab, Opener(self))
        timeline = Timeline(self.clock)
        return Session(self.lab, links, self.clock, timeline, self.notes, self.interrupts)

    def run(self, **options: Any) -> RunRecord:
        options.setdefault("timeout_s", 60.0)
        request = make_request(RunOptions(**options))
        return run(self.session(), request, Opener(self), self.gate)

    def attach(self) -> RunRecord:
        return attach(self.session(), self.store.find("last"))

    def file(self, name: str) -> str:
        return f"{self.units.specs[-1].directory}/{name}"

    def write(self, name: str, data: bytes) -> None:
        path = self.file(name)
        self.tf0.files[path] = self.tf0.files.get(path, b"") + data

    def emit(self, event: str, /, **data: Any) -> None:
        head = {"event": event, "t": round(self.clock.now_s * 1e9), "mono": 0}
        line = json.dumps({**head, "source": "client", "task": 0, **data})
        self.write(wire.EVENTS_FILE, line.encode() + b"\n")

    def end(self, status: int = 0) -> None:
        result = "success" if status == 0 else "exit-code"
        self.units.finish(RUN_UNIT, UnitEnd(result, "exited", str(status), self.clock.now_s))

    def occupy(self) -> None:
        self.units.install(RUN_UNIT, description=f"labctl run {OTHER}")

    def answers(self, name: str) -> dict[str, dict[str, Any]]:
        """Return what a node says to the requests of a measurement."""
        link = {"rtt_s": 1e-4, "bits_per_s": 8e9, "retransmits": 0, "error": self.filtered}
        return {
            "look": {"iperf3": self.iperf3, "cpus": [0], "boot_id": f"boot of {name}"},
            "serve": {"error": None},
            "link": link,
        }

    def _started(self, spec: UnitSpec) -> None:
        # systemd's stamp: FakeUnits counts its starts instead.
        state = self.units.states[spec.name]
        self.units.states[spec.name] = replace(state, started_at_s=self.clock.now_s)
        assert self.client is not None
        self.client(self, spec.directory)

    def _machine(self, name: str) -> FakeExecutor:
        machine = FakeExecutor(name)
        machine.clock_ns = lambda: round(self.clock.now_s * 1e9)

        def unpack(call: Call) -> Reply:
            with tarfile.open(fileobj=io.BytesIO(call.input)) as archive:
                for member in archive:
                    content = archive.extractfile(member)
                    assert content is not None
                    machine.files[f"{call.argv[-1]}/{member.name}"] = content.read()
            return Reply()

        def tee(call: Call) -> Reply:
            machine.files[call.argv[-1]] = call.input
            return Reply()

        def venv(call: Call) -> Reply:
            if call.input:  # a probe
                peak = {"error": None, "gflops": 50.0, "threads": 1, "library": "openblas"}
                return Reply(json.dumps(peak).encode())
            facts = {
                "python": "3.11.2",
                "tensorflow": "2.21.0",
                "cpus": 1,
                "boot_id": f"boot of {name}",
                **self.facts,
            }
            return Reply(json.dumps(facts).encode())

        def system(call: Call) -> Reply:
            kind = json.loads(call.input)["request"]["kind"]
            self.measured.append((name, kind))
            return Reply(json.dumps(self.answers(name)[kind]).encode())

        def shell(call: Call) -> Reply:
            if "schedstat" in call.argv[2]:
                return Reply(self.process)
            if call.argv[2] == DIGEST_SCRIPT:
                data = machine.files[call.argv[5]][: int(call.argv[4])]
                return Reply(hashlib.sha256(data).hexdigest().encode() + b"  -\n")
            if call.argv[4].isdecimal():  # how many lines to read
                return Reply(self.journal)
            machine.files[call.argv[4]] = f"journal of {name}\n".encode()
            return Reply()

        machine.on(("id", "-gn"), Reply(b"admin\n"))
        machine.on(("install",), Reply())
        machine.on(("tar",), unpack)
        machine.on(("tee",), tee)
        machine.on(("ls",), Reply(b""))
        machine.on(("rm",), Reply())
        machine.on(("find",), Reply(b""))
        machine.on(("df",), lambda _: Reply(self.room))
        machine.on(("sh",), shell)
        machine.on((PYTHON,), venv)
        machine.on(("/usr/bin/python3",), system)
        machine.on(("systemd-run",), system)
        machine.on(CLOCK_ARGV, lambda _: Reply(str(machine.clock_ns()).encode() + b"\n"))
        return machine


class Opener:
    def __init__(self, world: World) -> None:
        self._world = world

    def executor(self, node: Node, lab: Lab) -> Executor:
        assert lab is self._world.lab
        return self._world.machines[node.name]

    def units(self, node: Node, executor: Executor, lab: Lab) -> FakeUnits:
        assert lab is self._world.lab
        assert executor is self._world.machines[node.name]
        return self._world.all_units[node.name]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home")


def good_client(world: World, directory: str) -> None:
    """A client that does its work within three seconds."""
    after = world.clock.after
    after(1.0, lambda: world.emit("hello", process_start_t=0, python="3.12.1"))
    after(1.0, lambda: world.write("stdout", b"one\n"))
    after(2.0, lambda: world.emit("step", index=0, kind="cold", total=2, duration_ns=500_000_000))
    after(2.5, lambda: world.emit("step", index=1, kind="warm", total=2, duration_ns=150_000_000))
    after(2.5, lambda: world.write("stderr", b"\xff\x00 no newline"))
    after(2.6, lambda: world.emit("result", ok=True, relative_error=1e-7))
    after(3.0, world.end)


def endless_client(world: World, directory: str) -> None:
    """A client that begins its first step and stays there."""
    world.clock.after(1.0, lambda: world.emit("phase_begin", phase="first_step"))
    world.clock.after(1.0, lambda: world.write("stdout", b"begun\n"))


def test_a_run_ends_in_a_complete_record(world: World) -> None:
    world.client = good_client
    record = world.run(size=64, tags=("a=b",))
    assert (record.outcome, record.failure, record.owner) == ("ok", None, None)
    folder = world.store.root / record.run_id
    assert (folder / "logs/tf0/stdout").read_bytes() == b"one\n"
    assert (folder / "logs/tf0/stderr").read_bytes() == b"\xff\x00 no newline"
    assert (folder / "logs/tf1/join-server.jsonl").read_text() == "journal of tf1\n"
    for file in record.files:
        data = (folder / file.path).read_bytes()
        assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert {file.path for file in record.files} == {
        "events.jsonl",
        "logs/tf0/stdout",
        "logs/tf0/stderr",
        "logs/tf0/exit.json",
        "logs/tf1/join-server.jsonl",
    }
    assert len((folder / "steps.jsonl").read_text().splitlines()) == 2
    assert record.nodes[0].versions == {"python": "3.12.1", "tensorflow": "2.21.0"}
    assert record.nodes[1].versions["python"] == "3.11.2"
    assert record.tags == {"a": "b"}
    assert record.wall_s == world.clock.now_s
    assert world.notes.written == {"stdout": b"one\n", "stderr": b"\xff\x00 no newline"}
    assert world.store.find("last").readable() == record


def test_the_client_gets_its_own_directory_user_and_deadline(world: World) -> None:
    world.client = good_client
    record = world.run(timeout_s=30.0)
    directory = f"/var/lib/labctl/runs/{record.run_id}"
    (spec,) = world.units.specs
    assert spec.argv == (PYTHON, f"{directory}/payload.pyz", "client", "--plan", "plan.json")
    assert (spec.name, spec.description) == (RUN_UNIT, f"labctl run {record.run_id}")
    assert (spec.directory, spec.user) == (directory, "labctl")
    assert (spec.environment_file, spec.writable) == (CUDA_ENVIRONMENT, (CUDA_KERNEL_CACHE,))
    assert 30 < spec.deadline_s < 120
    made = next(call for call in world.tf0.calls if call.argv[0] == "install")
    expected = ("install", "-d", "-o", "labctl", "-g", "admin", "-m", "2750", directory)
    assert (made.argv, made.sudo) == (expected, True)
    plan = wire.RunPlan.from_json(world.tf0.files[f"{directory}/plan.json"].decode())
    assert plan.cluster == ("10.0.0.2:2222", "10.0.0.3:2222")
    payload = world.tf0.files[f"{directory}/payload.pyz"]
    assert hashlib.sha256(payload).hexdigest() == record.payload_sha256


def test_a_busy_lab_is_refused_before_anything_is_touched(world: World) -> None:
    world.occupy()
    with pytest.raises(LabBusyError) as caught:
        world.run(fresh=True)
    assert OTHER in caught.value.found
    assert f"labctl attach {OTHER}" in str(caught.value.do)
    assert world.store.entries() == []
    assert world.tf0.calls == []
    assert world.all_units["tf1"].restarted == []


def test_a_run_that_comes_second_at_the_start_leaves_nothing(world: World) -> None:
    unpack = world.tf0._scripts[("tar",)][0]
    assert callable(unpack)

    def lose_the_race(call: Call) -> Reply:
        world.occupy()
        assert callable(unpack)
        return unpack(call)

    world.tf0.on(("tar",), lose_the_race)
    with pytest.raises(LabBusyError, match=OTHER):
        world.run()
    assert world.store.entries() == []
    removed = [call.argv[-1] for call in world.tf0.calls if call.argv[0] == "rm"]
    assert len(removed) == 1
    assert removed[0].startswith("/var/lib/labctl/runs/1970")
    assert world.units.states[RUN_UNIT].running


def test_a_check_that_fails_stops_the_run_with_its_error(world: World) -> None:
    error = PeerUnreachableError("10.0.0.3:2222 refused")
    world.results = [
        CheckResult("ssh", "tf0", "ok", "answers"),
        CheckResult("port", "tf1", "fail", "refused", "answers", "start it", error),
    ]
    with pytest.raises(PeerUnreachableError, match="refused"):
        world.run()
    assert world.store.entries() == []
    assert world.units.specs == []


def test_only_checks_that_matter_are_asked_for(world: World) -> None:
    world.client = good_client
    world.run()
    assert {"port", "spec", "unit", "tensorflow"} <= world.asked
    assert "gpu" not in world.asked
    world.run(placement="one-process", gpu=True)
    assert not {"port", "spec", "unit"} & world.asked
    assert "gpu" in world.asked
    assert world.store.find("last").readable().servers_before == ()


def test_a_start_that_fails_is_stored_with_its_reason(world: World) -> None:
    world.tf0.on(("install",), Reply(stderr=b"install: invalid user: 'labctl'\n", returncode=1))
    with pytest.raises(RemoteCommandError, match="invalid user"):
        world.run()
    record = world.store.find("last").readable()
    assert record.outcome == "failed"
    assert record.failure is not None
    assert "invalid user" in record.failure.message
    assert record.owner is None


def test_ctrl_c_ends_the_client_on_its_node(world: World) -> None:
    world.client = endless_client
    world.clock.after(5.0, lambda: setattr(world.interrupts, "wanted", True))
    record = world.run()
    assert record.outcome == "cancelled"
    assert not world.units.states[RUN_UNIT].running
    assert world.file(wire.CANCELLED_FILE) in world.tf0.files
    assert (world.store.root / record.run_id / "logs/tf0/stdout").read_bytes() == b"begun\n"
    assert world.clock.now_s < 10


def test_an_interrupt_before_there_is_anything_to_say_leaves_no_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(text: str) -> None:
        raise UserInterruptError(text)

    monkeypatch.setattr(world.notes, "note", interrupt)
    with pytest.raises(UserInterruptError):
        world.run()
    assert list(world.store.root.iterdir()) == []


def test_a_run_whose_labctl_died_before_the_start_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def die(*args: object) -> None:
        raise KilledError

    monkeypatch.setattr(push, "push", die)
    with pytest.raises(KilledError):
        world.run()
    record = world.attach()
    assert record.outcome == "failed"
    assert record.failure is not None
    assert "never started on tf0" in record.failure.message


def test_a_second_ctrl_c_leaves_at_once_and_says_how_to_go_on(world: World) -> None:
    interrupts = world.interrupts
    with pytest.raises(UserInterruptError, match="interrupted before the start"):
        interrupts._handle(2, None)
    interrupts.run_id = "the-run"
    interrupts._handle(2, None)
    assert interrupts.wanted
    with pytest.raises(UserInterruptError) as caught:
        interrupts._handle(2, None)
    assert "labctl attach the-run" in str(caught.value)


def test_a_run_does_not_outlive_its_deadline(world: World) -> None:
    world.client = endless_client
    record = world.run(timeout_s=20.0)
    assert record.outcome == "timeout"
    assert record.failure is not None
    assert record.failure.message == "no end within 20 s in phase first_step"
    assert 20 <= world.clock.now_s < 25
    assert not world.units.states[RUN_UNIT].running


def restart_server(world: World) -> None:
    units = world.all_units["tf1"]
    state = units.states[JOIN_SERVICE]
    units.states[JOIN_SERVICE] = replace(state, invocation_id="1" * 32, started_at_s=3661.0)


def test_a_restarted_server_ends_the_run_in_bounded_time(world: World) -> None:
    world.client = endless_client
    world.clock.after(5.0, lambda: restart_server(world))
    record = world.run()
    assert record.outcome == "failed"
    assert record.failure is not None
    assert record.failure.message == "server on tf1 restarted at 01:01:01 UTC"
    assert 5 + SERVER_GRACE_S <= world.clock.now_s < 30
    assert not world.units.states[RUN_UNIT].running


def test_a_client_that_notices_the_restart_may_end_by_itself(world: World) -> None:
    def client(world: World, directory: str) -> None:
        world.clock.after(5.0, lambda: restart_server(world))
        world.clock.after(
            6.0, lambda: world.emit("error", kind="peer-restarted", message="Aborted")
        )
        world.clock.after(6.5, lambda: world.end(wire.EXIT_FAILED))

    world.client = client
    record = world.run()
    assert record.failure is not None
    assert record.failure.kind == "server-restarted"
    assert world.clock.now_s < 9
    assert record.unit_end is not None
    assert record.unit_end.exit_status == str(wire.EXIT_FAILED)


def test_a_broken_link_costs_and_repeats_nothing(world: World) -> None:
    world.client = good_client
    world.clock.after(1.2, lambda: setattr(world.tf0, "broken", True))
    world.clock.after(20.0, lambda: setattr(world.tf0, "broken", False))
    record = world.run()
    assert record.outcome == "ok"
    assert (world.store.root / record.run_id / "logs/tf0/stdout").read_bytes() == b"one\n"
    assert any("connected to tf0 again" in note for note in world.notes.notes)
    assert len(world.units.specs) == 1


def test_a_run_out_of_sight_is_lost_and_attach_brings_it_home(world: World) -> None:
    world.client = good_client
    world.clock.after(1.2, lambda: setattr(world.tf0, "broken", True))
    record = world.run(timeout_s=30.0)
    assert (record.outcome, record.exit_code, record.open) == ("lost", 4, True)
    assert 90 <= world.clock.now_s < 120
    world.tf0.broken = False
    world.clock.sleep(100)
    attached = world.attach()
    assert attached.outcome == "ok"
    assert (world.store.root / record.run_id / "logs/tf0/stdout").read_bytes() == b"one\n"
    assert attached.wall_s == pytest.approx(world.clock.now_s)
    assert "unattended" in {span.phase for span in attached.spans}
    assert attached.origin == record.origin


def test_a_node_that_restarts_takes_the_run_with_it(world: World) -> None:
    def reboot() -> None:
        state = world.units.states[RUN_UNIT]
        world.units.states[RUN_UNIT] = replace(
            state, active="inactive", description="", boot_id="another"
        )

    world.client = endless_client
    world.clock.after(5.0, reboot)
    record = world.run()
    assert record.failure is not None
    assert record.failure.kind == "node-rebooted"
    assert world.clock.now_s < 15


def test_a_node_that_goes_down_cleanly_is_told_from_a_signal(world: World) -> None:
    def reboot() -> None:
        world.units.finish(RUN_UNIT, UnitEnd("success", "killed", "TERM", world.clock.now_s))
        state = world.units.states[RUN_UNIT]
        world.units.states[RUN_UNIT] = replace(state, boot_id="another")

    world.client = endless_client
    world.clock.after(5.0, reboot)
    record = world.run()
    assert record.failure is not None
    assert (record.failure.kind, record.failure.message) == (
        "node-rebooted",
        "tf0 restarted in mid-run",
    )


def test_files_out_of_reach_leave_the_run_open_and_attach_fetches_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node goes down when the run has ended and before its files are home."""
    fetch = collect.collect

    def out_of_reach(*args: Any) -> dict[str, Any]:
        world.tf0.broken = True
        return fetch(*args)

    world.client = good_client
    monkeypatch.setattr(collect, "collect", out_of_reach)
    record = world.run()
    assert (record.outcome, record.open) == ("lost", True)
    monkeypatch.undo()
    world.tf0.broken = False
    attached = world.attach()
    assert attached.outcome == "ok"
    assert {file.path for file in attached.files} >= {"events.jsonl", "logs/tf0/stdout"}


def test_an_end_that_found_no_room_is_told(world: World) -> None:
    def vanish() -> None:
        state = world.units.states[RUN_UNIT]
        world.units.states[RUN_UNIT] = replace(state, active="inactive", description="")

    world.client = endless_client
    world.clock.after(5.0, vanish)
    world.room = b"     Avail\n    4096\n"
    record = world.run()
    assert record.failure is not None
    assert record.failure.message.endswith("its disk is full (4 KiB free)")


def test_a_detached_run_is_left_alone_until_attach(world: World) -> None:
    world.client = good_client
    record = world.run(detach=True)
    assert (record.outcome, record.owner, record.wall_s) == ("running", None, None)
    assert world.store.find("last").state == "detached"
    world.clock.sleep(10)
    assert world.attach().outcome == "ok"


def test_the_end_of_a_run_counts_however_late_one_looks(world: World) -> None:
    world.client = lambda world, _: world.clock.after(3.0, lambda: world.end(3))
    world.run(detach=True)
    world.clock.sleep(10_000)
    record = world.attach()
    assert record.failure is not None
    assert (record.outcome, record.failure.kind) == ("failed", "exit-status")


def test_what_a_servers_start_took_is_noted(world: World) -> None:
    def line(at_s: float, event: str, **data: Any) -> str:
        head = {
            "event": event,
            "t": round(at_s * 1e9),
            "mono": 0,
            "source": "join-server",
            "task": 1,
        }
        entry = {
            "__REALTIME_TIMESTAMP": "1",
            "__CURSOR": "c",
            "MESSAGE": json.dumps({**head, **data}),
        }
        return json.dumps(entry)

    rows = [line(2.0, "hello", process_start_t=1_000_000_000), line(9.5, "ready")]
    world.journal = "\n".join(rows).encode()
    world.client = good_client
    (server,) = world.run().servers_before
    assert server.startup_s == pytest.approx(8.5)


def test_servers_are_looked_at_before_and_after_a_run_that_hangs(world: World) -> None:
    def hang(world: World, directory: str) -> None:
        endless_client(world, directory)
        world.process = world.process.replace(b") S", b") T").replace(b" 250 50 ", b" 260 50 ")

    world.client = hang
    record = world.run(timeout_s=20.0)
    assert record.outcome == "timeout"
    (before,), (after,) = record.servers_before, record.servers_after
    assert (before.process_state, before.cpu_s, before.wait_s) == ("S", 3.0, 0.5)
    assert (after.process_state, after.cpu_s, after.wait_s) == ("T", 3.1, 0.5)


def test_a_nodes_limit_load_and_proxies_are_kept(world: World) -> None:
    def client(world: World, directory: str) -> None:
        world.emit("hello", process_start_t=0, cpu_limit=0.25)
        good_client(world, directory)

    world.client = client
    world.facts = {"cpu_limit": 0.5, "load_1min": 1.5, "proxies": ["http_proxy"]}
    tf0, tf1 = world.run().nodes
    assert (tf0.cpu_limit, tf1.cpu_limit) == (0.25, 0.5)
    assert (tf1.load_1min, tf1.proxies) == (1.5, ("http_proxy",))


def test_the_first_run_that_traces_measures_the_lab_and_later_ones_use_it(world: World) -> None:
    world.client = good_client
    first = world.run()
    assert first.baseline is not None
    assert {(each.source, each.target) for each in first.baseline.links} == {
        ("tf0", "tf1"),
        ("tf1", "tf0"),
    }
    assert [each.gflops for each in first.baseline.compute] == [50.0, 50.0]
    assert first.warnings == ()
    assert "baseline" in {span.phase for span in first.spans}
    world.measured.clear()
    second = world.run()
    assert second.baseline == first.baseline
    assert world.measured == []
    assert "baseline" not in {span.phase for span in second.spans}


def test_a_run_that_beats_the_baseline_has_it_measured_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.client = good_client
    monkeypatch.setattr("labctl.drive.run.better_than", lambda *_: ["one", "two"])
    first = world.run()
    assert first.warnings == (
        "the baseline is too low (one, two): the next run that traces measures it anew",
    )
    assert first == world.store.find("last").readable()
    world.measured.clear()
    monkeypatch.setattr("labctl.drive.run.better_than", lambda *_: [])
    assert world.run().warnings == ()
    assert world.measured != []


@pytest.mark.parametrize("options", [{"trace": False}, {"placement": "one-process"}])
def test_a_run_that_needs_no_baseline_measures_none(world: World, options: dict[str, Any]) -> None:
    world.client = good_client
    assert world.run(**options).baseline is None
    assert world.measured == []


def test_another_boot_makes_a_baseline_stale(world: World) -> None:
    world.client = good_client
    world.run()
    world.facts = {"boot_id": "another"}
    assert world.run(trace=False).baseline is None


def test_what_cannot_be_measured_is_a_warning_once(world: World) -> None:
    world.client = good_client
    world.filtered = "timed out"
    record = world.run()
    assert record.outcome == "ok"
    assert record.baseline is not None
    assert record.baseline.links == ()
    assert len(record.baseline.compute) == 2
    assert len(record.warnings) == 2
    assert all("network" in each and "timed out" in each for each in record.warnings)
    assert world.run().warnings == ()


def test_a_lab_without_iperf3_says_what_installs_it(world: World) -> None:
    world.client = good_client
    world.iperf3 = ""
    record = world.run()
    assert any("labctl provision" in each and "tf1" in each for each in record.warnings)
    assert {kind for _, kind in world.measured} == {"look"}


def test_checks_that_fail_are_kept_when_they_are_skipped(world: World) -> None:
    world.client = good_client
    error = PeerUnreachableError("10.0.0.3:2222 refused")
    port = CheckResult("port", "tf1", "fail", "refused", "answers", "start it", error)
    world.results = [CheckResult("ssh", "tf0", "ok", "answers"), port]
    record = world.run(skip_checks=True)
    assert record.outcome == "ok"
    assert record.failed_checks == (FailedCheck("port", "tf1", "refused", "answers", "start it"),)
    assert record.checks["ok"] == 1
    assert any("port" in each and "tf1" in each for each in record.warnings)
    assert record.parameters.skip_checks


def test_a_host_out_of_reach_stops_the_run_whatever_is_skipped(world: World) -> None:
    error = HostUnreachableError("tf1 does not answer")
    world.results = [CheckResult("ssh", "tf1", "fail", "no answer", "one", "start it", error)]
    with pytest.raises(HostUnreachableError, match="does not answer"):
        world.run(skip_checks=True)
    assert world.store.entries() == []


def test_how_the_lab_was_made_goes_into_the_record(world: World) -> None:
    phases = (LabPhase("boot", "tf0", "up", 5.0, 8.0),)
    lab_files.add_phases(world.home, "up", phases, ("tf0", "tf1"))
    world.client = good_client
    assert world.run().lab_phases == phases


def test_cancel_ends_a_run_that_nobody_follows(world: World) -> None:
    world.client = endless_client
    world.run(detach=True)
    record = cancel(world.session(), world.store.find("last"))
    assert record is not None
    assert record.outcome == "cancelled"
    assert not world.units.states[RUN_UNIT].running


def test_another_runs_client_is_never_stopped(world: World) -> None:
    world.client = endless_client
    world.run(detach=True)
    world.occupy()
    record = cancel(world.session(), world.store.find("last"))
    assert record is not None
    assert record.failure is not None
    assert record.failure.kind == "no-end"
    assert world.units.states[RUN_UNIT].running
    told = next(span for span in record.spans if span.phase == "notice")
    assert record.wall_s is not None
    assert (
        told.start_s + told.duration_s <= record.wall_s
    )  # waiting for a client that left no end is a row too


def test_fresh_restarts_the_join_servers_first(world: World) -> None:
    world.client = good_client
    record = world.run(fresh=True)
    assert world.all_units["tf1"].restarted == [JOIN_SERVICE]
    assert "restart_servers" in {span.phase for span in record.spans}


def test_old_run_directories_go_and_nothing_else(world: World) -> None:
    names = [f"20260101T0000{second:02}Z-abcdef" for second in range(23)]
    listing = "\n".join(["keep-me", *reversed(names), "zzz"])
    world.tf0.on(("ls",), Reply(listing.encode()))
    world.client = good_client
    world.run()
    removed = next(call.argv for call in world.tf0.calls if call.argv[:2] == ("rm", "-rf"))
    assert removed[3:] == tuple(f"/var/lib/labctl/runs/{name}" for name in names[:3])


def test_a_log_that_cannot_be_had_is_a_warning(world: World) -> None:
    world.client = good_client
    denied = Reply(stderr=b"not permitted\n", returncode=1)
    world.machines["tf1"].on(("sh",), denied)
    record = world.run()
    assert record.outcome == "ok"
    assert any("not permitted" in warning for warning in record.warnings)


def test_trace_files_come_home_and_nothing_from_outside(world: World) -> None:
    def client(world: World, directory: str) -> None:
        world.write("trace/step_stats.pb", b"\x08\x01")
        good_client(world, directory)

    world.client = client
    world.tf0.on(("find",), Reply(b"trace/step_stats.pb\0trace/../../../etc/passwd\0"))
    record = world.run()
    assert "trace/step_stats.pb" in {file.path for file in record.files}
    assert (world.store.root / record.run_id / "trace/step_stats.pb").read_bytes() == b"\x08\x01"
    assert not any(".." in file.path for file in record.files)
