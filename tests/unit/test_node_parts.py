"""Events, host facts, error kinds, the watchdog's arithmetic and the payload."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labctl.node import bundle, errors, host, ports, watch, wire
from labctl.node.cluster import Peers, peers_lost
from labctl.node.errors import NodeError
from labctl.node.events import EventLog
from labctl.node.ports import Answer


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog.to_file(str(tmp_path / "events.jsonl"), "client", 0)


def test_events_have_the_common_fields(log: EventLog, tmp_path: Path) -> None:
    log.emit(wire.NOTE, text="größer\n")
    (event,) = _lines(tmp_path / "events.jsonl")
    assert event["event"] == "note"
    assert event["text"] == "größer\n"
    assert (event["source"], event["task"]) == ("client", 0)
    assert isinstance(event["t"], int)
    assert isinstance(event["mono"], int)


def test_phase_ends_even_when_its_body_raises(log: EventLog, tmp_path: Path) -> None:
    with log.phase(wire.PHASE_GRAPH):
        pass
    with pytest.raises(KeyError), log.phase(wire.PHASE_SERVER):
        raise KeyError
    good_begin, good_end, bad_begin, bad_end = _lines(tmp_path / "events.jsonl")
    assert (good_begin["event"], good_end["event"]) == ("phase_begin", "phase_end")
    assert "failed" not in good_end
    assert bad_begin["phase"] == bad_end["phase"] == "server"
    assert bad_end["failed"] is True
    assert 0 <= good_end["duration_ns"] <= good_end["mono"] - good_begin["mono"]


def test_events_of_many_threads_and_two_writers_stay_whole(log: EventLog, tmp_path: Path) -> None:
    other = EventLog.to_file(str(tmp_path / "events.jsonl"), "join-server", 1)

    def write(writer: EventLog, name: int) -> None:
        for index in range(200):
            writer.emit(wire.NOTE, text=f"{name}-{index}-" + "x" * 500)

    threads = [threading.Thread(target=write, args=((log, other)[n % 2], n)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = [event["text"].rsplit("-", 1)[0] for event in _lines(tmp_path / "events.jsonl")]
    assert sorted(texts) == sorted(f"{n}-{index}" for n in range(6) for index in range(200))


def test_nothing_follows_bye(log: EventLog, tmp_path: Path) -> None:
    assert log.end(12) == 12
    late = threading.Thread(target=log.emit, args=(wire.NOTE,), daemon=True)
    late.start()
    late.join(0.2)
    assert late.is_alive()
    assert [event["event"] for event in _lines(tmp_path / "events.jsonl")] == ["bye"]


def test_no_event_holds_what_json_does_not(log: EventLog) -> None:
    with pytest.raises(ValueError, match="JSON"):
        log.emit(wire.RESULT, relative_error=float("nan"))


def test_introduction_dates_the_interpreter_from_the_process_start(
    log: EventLog, tmp_path: Path
) -> None:
    host.introduce(log)
    hello, begin, end = _lines(tmp_path / "events.jsonl")
    assert hello["pid"] == os.getpid()
    assert hello["process_start_t"] == begin["t"] < end["t"]
    assert end["t"] - begin["t"] == end["mono"] - begin["mono"] == end["duration_ns"]
    assert hello["numpy"]
    assert hello["cpus"] >= 1
    assert hello["kernel"] == os.uname().release


def test_proxies_go_in_any_case() -> None:
    environment = {
        "http_proxy": "x",
        "HTTPS_PROXY": "x",
        "no_proxy": "x",
        "PROXY": "x",
        "PATH": "x",
    }
    assert host.drop_proxies(environment) == ["HTTPS_PROXY", "http_proxy", "no_proxy"]
    assert environment == {"PROXY": "x", "PATH": "x"}


def test_environment_tells_what_steers_tensorflow_and_no_proxys_value() -> None:
    environment = {
        "XLA_FLAGS": "--x",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "GRPC_VERBOSITY": "DEBUG",
        "grpc_proxy": "http://me:secret@192.0.2.1:3128",
        "PATH": "/bin",
        "MY_TF_KEY": "secret",
        "TF_VAR_password": "secret",
        "TF_TOKEN_example": "secret",
    }
    assert host.telling_environment(environment) == {
        "CUDA_VISIBLE_DEVICES": "",
        "GRPC_VERBOSITY": "DEBUG",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "XLA_FLAGS": "--x",
        "grpc_proxy": None,
    }


def test_cgroup_limits_are_the_tightest_on_the_way_up(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/outer/inner\n3:cpu,cpuacct:/outer\n0::/a/b\n")
    for name, text in {
        "memory/outer/memory.limit_in_bytes": "9223372036854771712",
        "memory/outer/memory.usage_in_bytes": "7",
        "memory/outer/inner/memory.limit_in_bytes": str(300 * 2**20),
        "memory/outer/inner/memory.usage_in_bytes": str(100 * 2**20),
        "cpu/outer/cpu.cfs_quota_us": "150000",
        "cpu/outer/cpu.cfs_period_us": "100000",
        "a/cpu.max": "max 100000",
        "a/b/cpu.max": "250000 100000",
        "a/memory.max": "max",
        "a/memory.current": "5",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    arguments = str(tmp_path), str(own)
    assert host.memory_limit(*arguments) == 300 * 2**20
    assert host.available_memory(*arguments) == 200 * 2**20
    assert host.cpu_limit(*arguments) == 1.5
    (tmp_path / "cpu/outer/cpu.cfs_quota_us").write_text("-1\n")
    assert host.cpu_limit(*arguments) == 2.5


def test_no_cgroup_no_limit(tmp_path: Path) -> None:
    arguments = str(tmp_path), str(tmp_path / "none")
    assert host.memory_limit(*arguments) is None
    assert host.cpu_limit(*arguments) is None
    kernel = host.available_memory(*arguments)
    assert kernel is not None
    assert kernel > 2**20


def test_cpu_model() -> None:
    assert host.cpu_model("processor\t: 0\nmodel name\t: AMD EPYC 7B13\n") == "AMD EPYC 7B13"
    assert host.cpu_model("processor\t: 0\n") is None


@pytest.mark.parametrize(
    ("type_name", "message", "kind"),
    [
        (
            "AbortedError",
            "RecvTensor expects a different device incarnation: 1 vs. 2",
            "peer-restarted",
        ),
        ("CancelledError", "RPC: CANCELLED", "peer-restarted"),
        ("InternalError", "expects a different device incarnation", "peer-restarted"),
        ("UnavailableError", "Socket closed", "peer-unavailable"),
        ("UnknownError", "Could not start gRPC server", "port-in-use"),
        ("InvalidArgumentError", "but available devices are [ CPU:0 ]", "no-device"),
        ("InvalidArgumentError", "/job:local/task:1: unknown device.", "wrong-cluster"),
        ("ResourceExhaustedError", "OOM when allocating tensor", "out-of-memory"),
        ("ValueError", "the answer was restarted by hand", "unexpected"),
    ],
)
def test_kinds_of_tensorflow_errors(type_name: str, message: str, kind: str) -> None:
    assert errors.classify(type_name, message) == kind


def test_shortened_message_has_no_log_tail_and_an_end() -> None:
    assert errors.shorten("why\nRecent warning and error logs:\n W0 noise") == "why"
    assert len(errors.shorten("x" * 10_000)) < 2000


@pytest.mark.parametrize(
    ("kind", "message", "summary"),
    [
        ("unexpected", "bad value\nmore", "X: bad value"),
        ("unexpected", "", "X: no message"),
        (
            "peer-unavailable",
            "Graph execution error:\n\n=====\nUNAVAILABLE: From /job:local/task:1:\nSocket closed\nmore",
            "X: Socket closed",
        ),
        (
            "no-device",
            "Cannot assign a device: /job:local/replica:0/task:1/device:GPU:0 is not there",
            "task 1 has no GPU device",
        ),
    ],
)
def test_summary_is_the_telling_line(kind: str, message: str, summary: str) -> None:
    assert errors.summarise(kind, "X", message) == summary


def test_error_text_and_fields_have_the_three_parts() -> None:
    error = errors.bad_plan("seen", expected="wanted", do="act")
    assert str(error) == "seen\n  expected  wanted\n  do        act"
    assert error.fields()["kind"] == "bad-plan"
    assert (error.fields()["message"], error.fields()["do"]) == ("seen", "act")


@dataclass(frozen=True)
class _Scripted(Peers):
    """Peers whose answers are given beforehand, the last one for ever."""

    answers: list[dict[int, ports.State]]
    asked: list[float] = field(default_factory=list)

    def probe(self, timeout_s: float = 0) -> dict[int, Answer]:
        self.asked.append(timeout_s)
        now = self.answers[min(len(self.asked), len(self.answers)) - 1]
        return {task: Answer(state) for task, state in now.items()}


def _watched(
    answers: list[dict[int, ports.State]], rounds: int = 20
) -> tuple[list[str], list[str]]:
    """Return the messages of `on_silent` and `on_lost`."""
    silent: list[str] = []
    lost: list[str] = []
    peers = _Scripted(dict.fromkeys(answers[0], "192.0.2.1:2222"), answers)
    dog = watch.Watchdog(
        peers,
        watch.Patience(interval_s=0.001, grace_s=0.01),
        on_answers=lambda _: None,
        on_silent=lambda error, _: silent.append(error.found),
        on_lost=lambda error: lost.append(error.found),
    )
    dog.start()
    while dog.is_alive() and len(peers.asked) < rounds:
        dog.join(0.01)
    dog.stop()
    dog.join(10)
    assert not dog.is_alive()
    return silent, lost


def test_watchdog_needs_two_misses_in_a_row() -> None:
    up: dict[int, ports.State] = {1: "answers"}
    down: dict[int, ports.State] = {1: "refused"}
    assert _watched([up, down, up, down, up]) == ([], [])
    silent, lost = _watched([up, down, down])
    assert len(silent) == len(lost) == 1
    assert "task 1 at 192.0.2.1:2222: refused" in lost[0]


def test_stall_is_news_once_and_whenever_an_answer_changes() -> None:
    now = 100.0
    stall = watch.Stall(clock=lambda: now)
    up, down = {1: Answer("answers")}, {1: Answer("refused")}
    assert not stall.news(up)
    with stall:
        now += wire.STALL_S - 0.1
        assert not stall.news(down)
        now += 0.2
        assert [stall.news(each) for each in (up, up, down, down)] == [True, False, True, False]
    now += 60
    assert not stall.news(up)
    with stall:
        assert not stall.news(down)
        now += wire.STALL_S
        assert stall.news(down)


def test_watchdog_tells_every_round_of_answers() -> None:
    told: list[dict[int, str]] = []
    peers = _Scripted({1: "192.0.2.1:2222"}, [{1: "answers"}, {1: "refused"}, {1: "answers"}])
    dog = watch.Watchdog(
        peers,
        watch.Patience(interval_s=0.001),
        on_answers=lambda answers: told.append({t: a.state for t, a in answers.items()}),
        on_silent=lambda *_: None,
        on_lost=lambda _: None,
    )
    dog.start()
    while len(told) < 3:
        dog.join(0.01)
    dog.stop()
    dog.join(10)
    assert told[:3] == [{1: "answers"}, {1: "refused"}, {1: "answers"}]


def test_watchdog_counts_each_peer_by_itself() -> None:
    first: dict[int, ports.State] = {1: "answers", 2: "timed out"}
    second: dict[int, ports.State] = {1: "refused", 2: "answers"}
    assert _watched([first, second, first, second, {1: "answers", 2: "answers"}]) == ([], [])
    _, lost = _watched([first, {1: "answers", 2: "timed out"}])
    assert "task 2" in lost[0]
    assert "task 1" not in lost[0]


def test_peers_lost_names_address_and_state() -> None:
    answers = {1: Answer("answers"), 2: Answer("not resolvable", "Name or service not known")}
    error = peers_lost({1: "a:1", 2: "b:2"}, answers, "for 3 s")
    assert isinstance(error, NodeError)
    assert error.found == (
        "no TensorFlow server answers for 3 s:"
        " task 2 at b:2: not resolvable (Name or service not known)"
    )
    assert error.status == wire.EXIT_PEER_LOST


def test_port_in_use_says_so_even_when_the_holder_cannot_be_seen() -> None:
    error = ports.port_in_use(1)  # nothing listens there
    assert error.found == "port 1 is in use by another process that cannot be seen from here"
    assert error.status == wire.EXIT_PORT_IN_USE


def test_payload_is_the_same_twice_and_holds_what_runs_on_nodes() -> None:
    first, second = bundle.payload_bytes(), bundle.payload_bytes()
    assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        names = archive.namelist()
        assert (
            archive.read("__main__.py") == Path(bundle.__file__).with_name("launch.py").read_bytes()
        )
    assert names == list(bundle.payload_files())
    assert "labctl_node/experiments/matpow.py" in names
    assert "labctl_node/launch.py" not in names
    assert "labctl_node/bundle.py" not in names


def test_payload_imports_nothing_of_the_rest_of_labctl() -> None:
    for name, content in bundle.payload_files().items():
        text = content.decode()
        assert "from labctl." not in text, name
        assert "import labctl\n" not in text, name
