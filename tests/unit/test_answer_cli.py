"""`labctl answer` on stored rounds, through the only exit; and which runs a round is made of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from labctl.__main__ import run
from labctl.analysis import evidence
from labctl.drive import answer as drive
from labctl.drive.batch import Variant
from labctl.drive.plan import make_request
from labctl.lab.home import Home
from labctl.lab.model import Lab
from labctl.runs.observer import Silent
from labctl.runs.record import Outcome, read_record, write_record
from labctl.runs.store import Entry, RunStore

RECORDS = Path(__file__).resolve().parents[1] / "fixtures/records"
FED, STAGED = "20261130T181128Z-7aa9b1", "20261130T181529Z-a52ef3"
TAG = "20261130T190000Z"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("LABCTL_LAB", "asked")
    return RunStore(Home.find().make_local_dir("asked"))


def put(
    store: RunStore, name: str, label: str, number: int, *, tag: str = TAG, outcome: Outcome = "ok"
) -> str:
    run_id = f"20261130T19{number:02d}00Z-{number:06x}"
    shutil.copytree(RECORDS / name, store.root / run_id)
    tags = {"answer": tag, "variant": label}
    record = replace(read_record(RECORDS / name), run_id=run_id, tags=tags, outcome=outcome)
    write_record(store.root / run_id, record)
    return run_id


def put_round(store: RunStore, *, tag: str = TAG, first: int = 1) -> None:
    for place, (name, label) in enumerate(
        ((FED, "chain"), (STAGED, "staged"), (FED, "chain"), (STAGED, "staged"))
    ):
        put(store, name, label, first + place, tag=tag)


def test_a_stored_round_is_told_again(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    put_round(store)
    assert run(["answer", "--from", "last", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tag"] == TAG
    assert {label: len(runs) for label, runs in found["runs"].items()} == {"chain": 2, "staged": 2}
    verdicts = {each["claim"]: each["verdict"] for each in found["claims"]}
    assert verdicts["memory-latency"] == "needs-gpu"
    assert verdicts["recursion"] == "not-measured"
    assert verdicts["transfers"] in {"refuted", "undecided"}
    assert run(["answer", "--from", TAG[:10]]) == 0
    assert "round 20261130T190000Z" in capsys.readouterr().out


def test_the_document_depends_on_the_records_alone(
    store: RunStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_round(store)
    texts = []
    for name in ("one.md", "two.md"):
        assert run(["answer", "--from", TAG, "--write", str(tmp_path / name)]) == 0
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert texts[0].startswith("# The question, answered\n")
    assert str(store.root) not in texts[0]


def test_a_variant_without_a_good_run_ends_the_command_with_5(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put_round(store)
    failed = put(store, FED, "recursive", 9, outcome="failed")
    assert run(["answer", "--from", "last"]) == 5
    captured = capsys.readouterr()
    assert f"warning recursive: run {failed} ended failed" in captured.out
    assert f"labctl why {failed}" in captured.err


def test_the_newest_round_is_the_last(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    put_round(store)
    put_round(store, tag="20261130T191500Z", first=20)
    assert run(["answer", "--from", "last", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tag"] == "20261130T191500Z"
    assert run(["answer", "--from", "2026"]) == 8
    assert "fits 2 rounds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--from", "last"], 8),
        (["--from", "20200101"], 8),
        (["--from", "last", "--quick"], 2),
        (["--write", "/nowhere/at/all.md"], 2),
    ],
)
def test_what_cannot_be_answered_is_refused(
    store: RunStore, capsys: pytest.CaptureFixture[str], argv: list[str], code: int
) -> None:
    assert run(["answer", *argv]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("labctl: ")


@pytest.mark.parametrize("quick", [True, False])
def test_every_variant_may_be_meant_and_has_a_label_that_the_analysis_knows(quick: bool) -> None:
    batches = drive.batches(quick=quick)
    variants = [variant for batch in batches for variant in batch.variants]
    labels = [variant.label for variant in variants]
    assert len(set(labels)) == len(labels)
    known = {evidence.LISTING, evidence.LISTING_FRESH, evidence.LISTING_TWO, evidence.CHAIN,
             evidence.RECURSIVE, evidence.SQUARING, evidence.STAGED, *evidence.SWEEP.values()}  # fmt: skip
    assert set(labels) <= known
    if not quick:
        assert set(labels) == known
    for variant in variants:
        parameters = make_request(variant.options).parameters
        assert parameters.trace
        assert parameters.device == "cpu"
        assert parameters.power == 5


def test_the_listing_is_run_as_it_stands() -> None:
    listing = next(v for v in drive.batches(quick=True)[0].variants if v.label == evidence.LISTING)
    parameters = make_request(listing.options).parameters
    assert (parameters.size, parameters.power, parameters.algorithm) == (1000, 5, "listing")
    assert (parameters.feed, parameters.inter_op, parameters.soft_placement) == ("fed", None, False)


@dataclass
class Batches:
    """Stands for `run_batch`: stores a record for each run; the first run of the labels in `fails` fails."""

    store: RunStore
    fails: set[str]
    done: list[tuple[list[str], int, Mapping[str, str]]] = field(default_factory=list)
    number: int = 0

    def __call__(
        self, _home: Home, _lab: str, variants: Sequence[Variant], repeats: int,
        tags: Mapping[str, str], **_: Any,
    ) -> dict[str, list[Entry]]:  # fmt: skip
        self.done.append(([variant.label for variant in variants], repeats, tags))
        return {variant.label: list(self._runs(variant.label, repeats)) for variant in variants}

    def _runs(self, label: str, repeats: int) -> Iterator[Entry]:
        for _ in range(repeats):
            self.number += 1
            failed = label in self.fails
            self.fails.discard(label)
            outcome: Outcome = "failed" if failed else "ok"
            yield self.store.find(put(self.store, FED, label, self.number, outcome=outcome))
            if failed:
                return


@pytest.fixture
def batches(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Batches:
    made = Batches(store, set())
    lab = Lab("asked", (), None, "loopback", store.root.parent)
    monkeypatch.setattr(drive, "run_batch", made)
    monkeypatch.setattr(drive, "load_lab", lambda *_: lab)
    return made


def test_a_round_runs_its_batches_under_one_tag(batches: Batches) -> None:
    tag = drive.run_round(Home.find(), "asked", quick=False, unix_s=0.0, observer=Silent())
    assert tag == "19700101T000000Z"
    assert all(tags == {"answer": tag} for _, _, tags in batches.done)
    assert len(batches.done) == 3
    assert batches.number <= 24
    labels = {label for some, _, _ in batches.done for label in some}
    assert evidence.LISTING_FRESH not in labels  # a loopback lab's servers are always new


def test_what_a_failed_run_cut_short_is_run_once_more(batches: Batches) -> None:
    batches.fails = {evidence.CHAIN}
    drive.run_round(Home.find(), "asked", quick=True, unix_s=0.0, observer=Silent())
    assert [(labels, repeats) for labels, repeats, _ in batches.done][1] == ([evidence.CHAIN], 3)
    _, runs = drive.find_round(batches.store, TAG)
    assert [entry.state for entry in runs[evidence.CHAIN]] == ["failed", "ok", "ok", "ok"]


def test_a_failed_run_beside_good_ones_is_a_warning(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put_round(store)
    put(store, FED, "chain", 9, outcome="failed")
    assert run(["answer", "--from", "last"]) == 0
    assert "warning chain: run" in capsys.readouterr().out
