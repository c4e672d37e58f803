"""`labctl why --prove`: which runs it makes, what it keeps, and on which labs it refuses to."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.__main__ import run
from labctl.analysis.causes.model import Proof, Verdict
from labctl.analysis.pairs import Tried
from labctl.drive import prove as prove_module
from labctl.drive.batch import Variant
from labctl.drive.prove import (
    proofs_file,
    prove,
    read_proofs,
    with_proofs,
    write_proofs,
)
from labctl.errors import ConfigError, RefusedError, UsageError
from labctl.lab.home import Home
from labctl.lab.model import Lab, Node, SshTarget
from labctl.runs.record import RunRecord, read_record
from labctl.runs.store import Entry, RunStore
from labctl.views.prove import prove_lines
from tests.unit.test_compare_cli import FIXTURE, put

LAB = "drive"
PROOF = Proof("confirmed", 0.03, 0.029, 0.032, "--inter-op 1 against --inter-op 2", ("a", "b"))


def verdict(cause: str, status: str = "found", seconds: float | None = 0.03) -> Verdict:
    return Verdict(cause, status, "step", cause, seconds, "high", ())  # type: ignore[arg-type]


class Bench:
    """A lab whose batches give stored runs with made-up step times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = Home.find()
        self.store = RunStore(self.home.make_local_dir(LAB))
        self.folder = self.home.inventory(LAB)
        self.folder.mkdir(parents=True)
        (self.folder / "hosts.yml").write_text("all: {}\n")
        nodes = tuple(
            Node(each.name, each.task, *_address(each.tf_address), ssh=SshTarget(each.name))
            for each in read_record(FIXTURE).nodes
        )
        self.lab = Lab(LAB, nodes, self.folder, "rehearsal", self.store.root.parent)
        self.asked: list[Variant] = []
        self.step_s: dict[str, float] = {}
        self.change: Callable[[RunRecord], RunRecord] = lambda record: record
        self.own = self.stored(0, lambda record: record)
        monkeypatch.setattr(prove_module, "load_lab", lambda *_: self.lab)
        monkeypatch.setattr(prove_module, "run_batch", self.batch)

    def stored(self, number: int, change: Callable[[RunRecord], RunRecord], **told: Any) -> Entry:
        def changed(record: RunRecord) -> RunRecord:
            own = replace(record.parameters, inter_op=1, feed="fed", fetch="sum", sum_task=0)
            return change(replace(record, lab=LAB, parameters=own))

        return self.store.find(put(self.store, number, told.get("factor", 1.0), "a", changed))

    def batch(
        self,
        home: Home,
        lab_name: str,
        variants: Sequence[Variant],
        repeats: int,
        tags: Mapping[str, str],
        *,
        on_run: Callable[[str, Entry], None],
        **_: Any,
    ) -> None:
        assert (home, lab_name) == (self.home, LAB)
        assert tags == {"proves": self.own.run_id}
        self.asked = list(variants)
        number = 10
        for k in range(repeats):
            for variant in variants:
                factor = self.step_s.get(variant.label, 1.0) * (1 + 0.001 * k)
                on_run(variant.label, self.stored(number, self.change, factor=factor))
                number += 1

    def prove(self, *verdicts: Verdict, **told: Any) -> tuple[Tried, ...]:
        return prove(self.home, LAB, self.own, verdicts, **told)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_found_causes_are_tried_and_share_the_runs_as_recorded(bench: Bench) -> None:
    bench.step_s = {"--inter-op 2": 0.7, "--feed staged": 0.999}
    tried = bench.prove(
        verdict("inter-op-starved", seconds=0.03),
        verdict("feed", seconds=0.04),
        verdict("cpu-starved"),
        verdict("fetch", "ruled_out", None),
    )
    labels = [variant.label for variant in bench.asked]
    assert labels == ["as recorded", "--inter-op 2", "--feed staged"]
    by_cause = {each.cause: each for each in tried}
    assert list(by_cause) == ["inter-op-starved", "feed", "cpu-starved"]
    starved, feed = by_cause["inter-op-starved"].proof, by_cause["feed"].proof
    assert starved is not None
    assert feed is not None
    assert (starved.outcome, feed.outcome) == ("confirmed", "refuted")
    assert starved.seconds == pytest.approx(0.03, rel=0.1)
    assert by_cause["cpu-starved"].proof is None
    assert "on the node" in by_cause["cpu-starved"].why_not
    kept, problem = read_proofs(bench.store.root.parent, bench.own.run_id)
    assert problem == ""
    assert kept == {"inter-op-starved": starved, "feed": feed}
    lines = prove_lines(tried)
    assert lines[0].startswith("proof     inter-op-starved: confirmed; 30.")
    assert any("not tried" in line for line in lines)


def test_runs_of_pairs_are_short_and_as_the_run_was(bench: Bench) -> None:
    bench.prove(verdict("inter-op-starved"))
    own = bench.own.readable().parameters
    for variant in bench.asked:
        options = variant.options
        assert (options.trace, options.detach, options.gpu) == (False, False, False)
        assert (options.size, options.power, options.feed) == (own.size, own.power, own.feed)
        assert options.repeat == 15  # 1.5 s of steps of some 0.1 s
    assert [variant.options.inter_op for variant in bench.asked] == ["1", "2"]


def test_a_cause_can_be_tried_whatever_its_verdict(bench: Bench) -> None:
    verdicts = [verdict("fetch", "ruled_out", None), verdict("inter-op-starved")]
    (tried,) = bench.prove(*verdicts, causes=["fetch"], repeats=4)
    assert tried.proof is not None
    assert tried.proof.outcome == "refuted"
    assert len(tried.proof.runs) == 8
    with pytest.raises(UsageError, match="no cause"):
        bench.prove(*verdicts, causes=["flux"])
    with pytest.raises(UsageError, match="--repeat 2"):
        bench.prove(*verdicts, repeats=2)


def test_nothing_found_starts_nothing(bench: Bench) -> None:
    assert bench.prove(verdict("fetch", "ruled_out", None)) == ()
    assert bench.asked == []
    assert "nothing to prove" in prove_lines(())[0]


def test_the_way_between_the_tasks_is_tried_without_products(bench: Bench) -> None:
    bench.prove(verdict("transfer"))
    first, second = (variant.options for variant in bench.asked)
    assert (first.placement, second.placement) == ("lab", "one-process")
    assert {(each.power, each.feed, each.fetch) for each in (first, second)} == {
        (1, "staged", "none")
    }


def test_a_gpus_kernel_cache_is_tried_by_a_variable_of_the_client(bench: Bench) -> None:
    record = bench.own.readable()
    on_gpu = replace(
        record, parameters=replace(record.parameters, device="gpu", soft_placement=False)
    )
    bench.own = replace(bench.own, record=on_gpu)
    bench.prove(verdict("ptx-jit"), verdict("no-persistence"))
    asked = [(each.options.gpu, each.options.environment) for each in bench.asked]
    assert asked == [
        (True, ("CUDA_CACHE_DISABLE=1",)),
        (True, ("CUDA_CACHE_DISABLE=0",)),
        (True, ()),
    ]


def test_a_setting_whose_runs_fail_proves_nothing(bench: Bench) -> None:
    bench.change = lambda record: replace(record, outcome="failed")
    (tried,) = bench.prove(verdict("inter-op-starved"))
    assert tried.proof is None
    assert "ended failed" in tried.why_not
    assert not proofs_file(bench.store.root.parent, bench.own.run_id).exists()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda record: replace(record, outcome="timeout"), "ended timeout"),
        (
            lambda record: replace(
                record, parameters=replace(record.parameters, environment=("http_proxy",))
            ),
            "--env http_proxy",
        ),
        (
            lambda record: replace(
                record, parameters=replace(record.parameters, experiment="script")
            ),
            "built-in experiment",
        ),
    ],
)
def test_runs_that_have_no_pairs_say_why(
    bench: Bench, change: Callable[[RunRecord], RunRecord], word: str
) -> None:
    bench.own = bench.stored(1, change)
    (tried,) = bench.prove(verdict("inter-op-starved"))
    assert word in tried.why_not
    assert bench.asked == []


def test_a_lab_that_is_gone_is_exit_3(bench: Bench) -> None:
    (bench.folder / "hosts.yml").unlink()
    with pytest.raises(ConfigError, match="is gone"):
        bench.prove(verdict("inter-op-starved"))


def test_a_lab_with_other_addresses_is_refused(bench: Bench) -> None:
    first, second = bench.lab.nodes
    bench.lab = replace(bench.lab, nodes=(first, replace(second, data_address="10.9.9.9")))
    with pytest.raises(RefusedError, match=r"10\.9\.9\.9"):
        bench.prove(verdict("inter-op-starved"))


def test_a_lab_of_another_name_is_refused(bench: Bench) -> None:
    bench.own = bench.stored(1, lambda record: replace(record, lab="other"))
    with pytest.raises(RefusedError, match="of lab other"):
        bench.prove(verdict("inter-op-starved"))


def test_other_versions_on_the_machines_are_refused(bench: Bench) -> None:
    def newer(record: RunRecord) -> RunRecord:
        nodes = tuple(
            replace(each, versions={**each.versions, "tensorflow": "9.9"}) for each in record.nodes
        )
        return replace(record, nodes=nodes)

    bench.change = newer
    with pytest.raises(RefusedError, match=r"tensorflow on tf0 is 9\.9 now"):
        bench.prove(verdict("inter-op-starved"))


def test_a_record_from_elsewhere_is_refused(bench: Bench, tmp_path: Path) -> None:
    bench.own = replace(bench.own, path=tmp_path / bench.own.run_id)
    with pytest.raises(RefusedError, match="not in the store"):
        bench.prove(verdict("inter-op-starved"))


def test_proofs_are_private_whole_and_added_to(tmp_path: Path) -> None:
    write_proofs(tmp_path, "run", {"fetch": PROOF})
    write_proofs(tmp_path, "run", {"feed": replace(PROOF, outcome="refuted")})
    path = proofs_file(tmp_path, "run")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept, problem = read_proofs(tmp_path, "run")
    assert (set(kept), problem) == ({"fetch", "feed"}, "")
    assert kept["fetch"] == PROOF
    assert read_proofs(tmp_path, "other") == ({}, "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"format": 1}',
        '{"format": 1, "proofs": 3}',
        '{"format": 1, "proofs": {"fetch": {"outcome": "maybe"}}}',
        '{"format": 9, "proofs": {}}',
        "\ud800",
    ],
)
def test_a_damaged_file_of_proofs_is_named(tmp_path: Path, text: str) -> None:
    path = proofs_file(tmp_path, "run")
    path.parent.mkdir()
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    kept, problem = read_proofs(tmp_path, "run")
    assert kept == {}
    assert str(path) in problem


def test_proofs_go_with_their_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABCTL_LAB", LAB)
    write_proofs(bench.store.root.parent, bench.own.run_id, {"fetch": PROOF})
    assert run(["runs", "rm", bench.own.run_id, "--yes"]) == 0
    assert not proofs_file(bench.store.root.parent, bench.own.run_id).exists()


def test_verdicts_take_their_proofs() -> None:
    first, second = with_proofs([verdict("fetch"), verdict("feed")], {"fetch": PROOF})
    assert (first.proved, second.proved) == (PROOF, None)


def test_why_shows_what_was_proved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LABCTL_LAB", LAB)
    run_id = bench.own.run_id
    assert run(["why", run_id, "--prove", "--cause", "fetch", "--json"]) == 0
    said = capsys.readouterr()
    assert "proof     fetch: refuted" in said.err
    told = {each["cause"]: each for each in json.loads(said.out)}
    assert told["fetch"]["proved"]["outcome"] == "refuted"
    assert run(["why", run_id, "--json"]) == 0
    again = {each["cause"]: each for each in json.loads(capsys.readouterr().out)}
    assert again["fetch"]["proved"] == told["fetch"]["proved"]
    assert again["import"]["proved"] is None
    proofs_file(bench.store.root.parent, run_id).write_text("{")
    assert run(["why", run_id]) == 0
    assert "cannot be read" in capsys.readouterr().err
    assert run(["why", run_id, "--cause", "fetch"]) == 2
    assert run(["why", run_id, "--repeat", "3"]) == 2
    assert "without --prove" in capsys.readouterr().err
