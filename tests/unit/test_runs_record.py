from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.errors import RecordError
from labctl.runs.baseline import Baseline, ComputeBaseline, LinkBaseline
from labctl.runs.record import (
    ClockSample,
    FailedCheck,
    Failure,
    LabPhase,
    NodeFacts,
    Origin,
    Owner,
    Parameters,
    RemoteRun,
    RunRecord,
    ServerState,
    Span,
    StoredFile,
    UnitEnded,
    from_text,
    read_record,
    to_text,
    write_record,
)

RUN_ID = "20261130T141502Z-3fa9c1"
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/records"


def full_record() -> RunRecord:
    return RunRecord(
        run_id=RUN_ID,
        lab="rehearsal",
        provider="rehearsal",
        outcome="failed",
        parameters=Parameters("script", False, True, 60.0, script="x.py", args=("-a", "é")),
        tasks=2,
        origin=Origin(1796048102.5, 12.25, "boot"),
        remote=RemoteRun("tf0", "/var/lib/labctl/runs/x", "labctl-run.service", "b0", 5.0),
        nodes=(
            NodeFacts(
                "tf0",
                0,
                "10.132.0.2:2222",
                {"python": "3.11.2"},
                2,
                "EPYC",
                "b0",
                cpu_limit=0.5,
                load_1min=1.25,
                proxies=("http_proxy",),
            ),
        ),
        labctl_version="0.1.0",
        payload_sha256="aa",
        spec_sha256="bb",
        tags={"why": "test"},
        owner=Owner(1, 2, "host", "boot"),
        checks={"ok": 14},
        spans=(Span("push", "labctl", 0.5, 0.25, "labctl"),),
        clock=(ClockSample("tf0", 0.1, -0.002, 0.001),),
        servers_before=(
            ServerState(
                "tf1",
                "active",
                "i",
                3.0,
                "b1",
                startup_s=4.5,
                phases=(Span("import_tensorflow", "tf1", 1796048000.5, 4.0, "join-server"),),
                spec_sha256="bb",
                inter_op=2,
                process_state="S",
                cpu_s=5.5,
                wait_s=0.25,
            ),
        ),
        unit_end=UnitEnded("exit-code", "exited", "11", 9.5),
        failure=Failure("script", "it failed"),
        warnings=("watch out",),
        files=(StoredFile("events.jsonl", "tf0", 3, "cc"),),
        wall_s=4.5,
        failed_checks=(FailedCheck("port", "tf1", "refused", "answers", "start it"),),
        baseline=Baseline(
            {"tf0": "b0", "tf1": "b1"},
            (LinkBaseline("tf0", "tf1", 7.4e9, 8e-5, 3, 1796048000.0, "iperf 3.12"),),
            (ComputeBaseline("tf0", 1000, 98.5, 2, "scipy-openblas 0.3.31", 1796048000.0),),
            ("network: iperf3 is not installed on tf2",),
        ),
        lab_phases=(LabPhase("boot", "tf0", "up", 1796040000.0, 8.5),),
    )


def stored(tmp_path: Path) -> Path:
    folder = tmp_path / RUN_ID
    folder.mkdir()
    write_record(folder, full_record())
    return folder


def test_record_survives_the_file(tmp_path: Path) -> None:
    assert read_record(stored(tmp_path)) == full_record()


def test_records_from_before_a_field_was_added_still_read() -> None:
    (folder,) = FIXTURES.glob("20261130T153419Z-*")
    record = read_record(folder)
    assert (record.outcome, record.baseline, record.lab_phases) == ("ok", None, ())
    assert record.nodes[1].cpu_limit is None
    assert record.servers_before[0].process_state == ""


def test_unknown_fields_of_the_same_format_are_no_damage() -> None:
    data = json.loads(to_text(full_record()))
    data["later"] = {"x": 1}
    data["parameters"]["later"] = 2
    assert from_text(json.dumps(data), "x") == full_record()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "update labctl"),
        ({"format": True}, "no integer"),
        ({"format": "1"}, "no integer"),
        ({"format": 0}, "no integer"),
        ({"outcome": "fine"}, "outcome"),
        ({"tasks": "2"}, "tasks"),
        ({"wall_s": "long"}, "wall_s"),
        ({"wall_s": float("inf")}, "wall_s"),
        ({"wall_s": float("nan")}, "wall_s"),
        ({"origin": None}, "origin"),
        ({"clock": [{"node": "tf0"}]}, "clock[0].at_s is missing"),
        ({"tags": {"a": 1}}, "tags.a"),
        ({"spans": {}}, "spans"),
        ({"spans": [1]}, "spans[0]: found int, expected an object"),
        ({"nodes": [{"name": "a", "task": 0, "tf_address": "b", "cpus": "2"}]}, "nodes[0].cpus"),
        ({"baseline": {"boot_ids": {}, "links": [{"source": 1}]}}, "baseline.links[0].source"),
        ({"nodes": []}, "nodes: found [], expected 1 to 1000 entries"),
        ({"wall_s": -5}, "wall_s: found -5, expected 0 to"),
        ({"tasks": 10**400}, "tasks: found 1000"),
        ({"lab": "\ud800"}, "lab"),
        ({"tags": {"\ud800": "x"}}, "tags"),
        ({"run_id": "../x"}, "run_id"),
    ],
)
def test_what_cannot_be_read_is_said(change: dict[str, Any], said: str) -> None:
    data = {**json.loads(to_text(full_record())), **change}
    with pytest.raises(RecordError) as caught:
        from_text(json.dumps(data), "run.json")
    assert caught.value.exit_code == 8
    assert said in str(caught.value)


ABSURD = [
    ("origin.unix_s", -1.0),
    ("origin.unix_s", 7.3e9),
    ("origin.mono_s", 1e300),
    ("wall_s", 1e300),
    ("remote.started_at_s", 1e300),
    ("remote.node", "../../etc"),
    ("remote.node", "x" * 256),
    ("unit_end.ended_at_s", -1e12),
    ("nodes.0.name", ""),
    ("nodes.0.name", ".."),
    ("nodes.0.name", "a/b"),
    ("nodes.0.name", "a\0b"),
    ("nodes.0.task", 10**9),
    ("nodes.0.cpus", 0),
    ("nodes.0.cpu_limit", 1e300),
    ("spans.0.duration_s", -1e-9),
    ("spans.0.duration_s", 1e300),
    ("spans.0.start_s", -1e300),
    ("clock.0.at_s", 1e300),
    ("clock.0.offset_s", 4e9),
    ("clock.0.error_s", -1.0),
    ("servers_before.0.started_at_s", 1e300),
    ("servers_before.0.startup_s", 1e300),
    ("servers_before.0.phases.0.start_s", 1e300),
    ("lab_phases.0.started_unix_s", 1e300),
    ("lab_phases.0.duration_s", -1.0),
    ("baseline.links.0.bits_per_s", -1.0),
    ("baseline.links.0.rtt_s", -1.0),
    ("baseline.links.0.at_unix_s", 1e300),
    ("baseline.compute.0.gflops", 0),
    ("baseline.compute.0.gflops", 1e300),
    ("baseline.compute.0.size", 0),
    ("parameters.size", 0),
    ("parameters.size", 10**9),
    ("parameters.power", 10**400),
    ("parameters.repeat", 10**9),
    ("parameters.timeout_s", -1.0),
    ("files.0.size", -1),
]


@pytest.mark.parametrize(("place", "value"), ABSURD)
def test_an_absurd_value_is_refused_by_the_name_of_its_place(place: str, value: Any) -> None:
    data = inner = json.loads(to_text(full_record()))
    *before, last = [int(part) if part.isdecimal() else part for part in place.split(".")]
    for key in before:
        inner = inner[key]
    inner[last] = value
    said = re.sub(r"\.(\d+)", r"[\1]", place)
    with pytest.raises(RecordError, match=re.escape(f"run.json is damaged: {said}: found")):
        from_text(json.dumps(data), "run.json")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_device_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_link(path: Path) -> None:
    path.symlink_to(FIXTURES / "20261130T153419Z-f99880/run.json")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (make_fifo, "no regular file"),
        (make_device_link, "link is not followed"),
        (make_link, "link is not followed"),
        (Path.mkdir, "no regular file"),
    ],
)
def test_only_a_plain_file_is_read(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    folder = stored(tmp_path)
    (folder / "run.json").unlink()
    make(folder / "run.json")
    with pytest.raises(RecordError, match=said):
        read_record(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value inside a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inside:
        yield (*path, key)
        if isinstance(each, dict | list):
            yield from places(each, (*path, key))


PLACES = sorted(places(json.loads(to_text(full_record()))), key=str)


@settings(deadline=None)
@given(place=st.sampled_from(PLACES), value=JSON)
def test_a_record_with_anything_in_any_place_reads_or_says_where(
    place: tuple[str | int, ...], value: Any
) -> None:
    data = inner = json.loads(to_text(full_record()))
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    record, said = None, ""
    try:
        record = from_text(json.dumps(data), "run.json")
    except RecordError as error:
        said = error.found
    if record is None:
        assert str(place[0]) in said
    else:
        assert from_text(to_text(record), "run.json") == record


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format": 1}', b"[" * 99999]
)
def test_damaged_files_are_record_errors(tmp_path: Path, content: bytes) -> None:
    folder = stored(tmp_path)
    (folder / "run.json").write_bytes(content)
    with pytest.raises(RecordError, match="damaged"):
        read_record(folder)


def test_a_directory_without_a_record_and_one_of_another_run_are_damaged(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    moved = folder.rename(tmp_path / "20261130T141502Z-000000")
    with pytest.raises(RecordError, match=f"is of run {RUN_ID}"):
        read_record(moved)
    (moved / "run.json").unlink()
    with pytest.raises(RecordError, match=r"has no run\.json"):
        read_record(moved)


def test_a_write_that_fails_leaves_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stored(tmp_path)

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("labctl.runs.atomic.os.fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write_record(folder, replace(full_record(), outcome="ok"))
    monkeypatch.undo()
    assert read_record(folder).outcome == "failed"
    assert [path.name for path in folder.iterdir()] == ["run.json"]


def test_offset_is_that_of_the_tightest_measurement() -> None:
    samples = (ClockSample("tf0", 0, 0.5, 0.1), ClockSample("tf0", 9, 0.4, 0.01))
    record = replace(full_record(), clock=samples, origin=Origin(1000.0, 0.0, "b"))
    assert record.offset_s("tf0") == 0.4
    assert record.offset_s("tf7") == 0.0
    assert record.since_origin_s("tf0", 1002.4) == pytest.approx(2.0)
