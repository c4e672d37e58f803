"""The page of a run: whole, harmless whatever a record holds, and honest about what it does not."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench.records import Shape, run_id, write_run
from labctl.__main__ import run
from labctl.analysis.causes.model import Proof, Verdict
from labctl.analysis.causes.rules import judge_all
from labctl.analysis.explain import explain
from labctl.analysis.explained import Explained
from labctl.lab.home import Home
from labctl.runs.data import RunData, load
from labctl.runs.record import Failure, NodeFacts, Span, write_record
from labctl.views.report.metrics import METRICS
from labctl.views.report.page import render
from tests.unit import stories
from tests.unit.gpu_samples import traced_on_gpus

DOCS = Path(__file__).resolve().parents[2] / "docs/report.md"
FIXTURE = Path(__file__).resolve().parents[1] / "fixtures/records/20261130T153419Z-f99880"
VOID = {"meta", "link", "br"}
SECTIONS = [
    "why", "waterfall", "ledger", "steps", "edges", "traced", "use",
    "baseline", "lab", "nodes", "clocks", "notes", "again",
]  # fmt: skip
STEP_CAUSE = Verdict(
    cause="inter-op-starved",
    status="found",
    scope="step",
    title="One inter-op thread on task:0 holds up what task:1 waits for",
    seconds=0.018,
    confidence="high",
    evidence=("task:0 has 1 inter-op thread",),
    remedy="--inter-op 2",
    proved=Proof("confirmed", 0.0185, 0.017, 0.02, "--inter-op 1 against --inter-op 2", ("a", "b")),
)


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def named(self, tag: str, **having: str) -> list[dict[str, str]]:
        return [
            attributes
            for name, attributes in self.elements
            if name == tag
            and all(attributes.get(key.replace("_", "-")) == value for key, value in having.items())
        ]

    @property
    def words(self) -> str:
        return " ".join(
            text
            for tag, texts in self.texts.items()
            if tag not in {"style", "script"}
            for text in texts
        )


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    folder = tmp_path_factory.mktemp("runs") / run_id(0)
    write_run(folder, Shape(steps=1500, trace_records=240))
    return replace(explain(load(folder)), problems=())


def page(
    explained: Explained, verdicts: Sequence[Verdict] | None = None, state: str = "ok"
) -> Page:
    return Page(render(explained, judge_all(explained) if verdicts is None else verdicts, state))


def test_the_page_has_every_section_and_asks_for_nothing(large: Explained) -> None:
    text = render(large, judge_all(large), "ok")
    read = Page(text)
    assert [each["id"] for each in read.named("section")] == SECTIONS
    assert [each["href"] for each in read.named("a") if "href" in each][1:] == [
        f"#{each}" for each in SECTIONS
    ]
    for _, attributes in read.elements:
        assert "src" not in attributes
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "#").startswith(("#", "data:image/svg+xml,"))
    assert "@import" not in text
    assert "url(" not in text.replace("url(#hatch)", "")


def test_only_its_own_style_and_script_may_run(large: Explained) -> None:
    text = render(large, (), "ok")
    policy = Page(text).named("meta", http_equiv="Content-Security-Policy")[0]["content"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        content = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(content) == 1
        digest = base64.b64encode(hashlib.sha256(content[0].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_every_figure_is_defined_on_the_page_and_in_the_docs(large: Explained) -> None:
    shown = page(large, [STEP_CAUSE]).named("abbr") + page(traced_on_gpus(), ()).named("abbr")
    assert {each["data-metric"] for each in shown} == set(METRICS)
    assert all(each["title"] == METRICS[each["data-metric"]].meaning for each in shown)
    listed = re.findall(
        r"^\| ([^|]+) \| ([^|]*) \| ([^|]+) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE
    )
    rows = [
        (label, unit.strip(), meaning)
        for label, unit, meaning in listed
        if label not in {"figure", "---"}
    ]
    assert sorted(rows) == sorted((m.label, m.unit, m.meaning) for m in METRICS.values())


def test_bars_and_tables_are_the_ledgers(large: Explained) -> None:
    text = render(large, (), "ok")
    ledgers = {"run": large.ledger.rows, **{each.node: each.rows for each in large.nodes}}
    assert set(ledgers) == {"run", "labctl", "tf0", "tf1"}
    drawn = text.partition('id="chart-waterfall"')[2].partition("</figure>")[0]
    for name, rows in ledgers.items():
        expected = [(f"{row.start_s:.6f}", f"{row.duration_s:.6f}") for row in rows]
        assert expected
        track = drawn.partition(f'data-lane="{name}"')[2].partition('<svg class="track"')[0]
        assert re.findall(r'data-start="([^"]*)" data-length="([^"]*)"', track) == expected
        table = text.partition(f'data-ledger="{name}"')[2].partition("</table>")[0]
        assert re.findall(r'data-start="([^"]*)" data-length="([^"]*)"', table) == expected


def test_a_verdict_has_its_price_its_share_and_its_proof(large: Explained) -> None:
    assert large.stats.warm_median_ms is not None
    words = page(large, [STEP_CAUSE]).words
    assert "18.0 ms of each" in words
    assert f"{1800 / large.stats.warm_median_ms:.0f} %" in words
    assert (
        "confirmed: 18.5 ms, 95 % interval 17.0 ms to 20.0 ms, by --inter-op 1 against --inter-op 2"
        in words
    )
    unpriced = page(large, [replace(STEP_CAUSE, seconds=None, proved=None)]).words
    assert "cost not known" in unpriced
    assert "ms of each" not in unpriced


HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x1b[31m{{ 7*7 }}"
)


def hostile(explained: Explained) -> Explained:
    """Return a run in which every text that a node or a user gives is hostile."""
    record = explained.data.record
    node = NodeFacts(
        HOSTILE, 0, HOSTILE, {"tensorflow": HOSTILE, HOSTILE: HOSTILE}, 1, HOSTILE, HOSTILE
    )
    bad = replace(
        record,
        lab=HOSTILE,
        nodes=(node, *record.nodes[1:]),
        tags={HOSTILE: HOSTILE},
        warnings=(HOSTILE,),
        failure=Failure(HOSTILE, HOSTILE, HOSTILE),
        spans=(*record.spans, Span(HOSTILE, HOSTILE, 0.1, 0.2, HOSTILE)),
        parameters=replace(
            record.parameters, args=(HOSTILE,), environment=(HOSTILE,), feed=HOSTILE
        ),
    )
    events = tuple(
        replace(
            event, data={k: HOSTILE if isinstance(v, str) else v for k, v in event.data.items()}
        )
        for event in explained.data.events
    )
    mixed = (*explained.data.events[:40], *events)
    return explain(replace(explained.data, record=bad, events=mixed, problems=(HOSTILE,)))


def test_texts_of_nodes_stay_text(large: Explained) -> None:
    run_ = hostile(large)
    verdict = replace(STEP_CAUSE, cause=HOSTILE, title=HOSTILE, evidence=(HOSTILE,), remedy=HOSTILE)
    text = render(run_, [verdict, replace(verdict, status="ruled_out")], HOSTILE)
    read = Page(text)
    assert len(read.named("script")) == 2
    assert read.named("img") == []
    assert read.words.count("<script>alert(1)</script>") >= 10
    assert "{{ 7*7 }}" in read.words
    assert "\u202e" not in text
    assert "\x1b" not in text
    data = re.findall(
        r'<script type="application/json" id="steps-data">(.*?)</script>', text, re.DOTALL
    )[0]
    assert "<" not in data
    assert HOSTILE in {kind for _, kind, _, _ in json.loads(data)}


def bare() -> Explained:
    """Return a run of which there is next to nothing."""
    record = replace(
        stories.run().data.record, outcome="failed", wall_s=None, nodes=(), spans=(), unit_end=None
    )
    return explain(RunData(Path("/nowhere"), record, ()))


@pytest.mark.parametrize(
    "section", ["waterfall", "ledger", "steps", "edges", "traced", "use", "baseline", "clocks"]
)
def test_what_is_missing_is_said(section: str) -> None:
    explained = bare()
    text = render(explained, judge_all(explained), "failed")
    Page(text)
    part = text.partition(f'<section id="{section}"')[2].partition("</section>")[0]
    assert "not measured" in part
    assert ">0<" not in part


def test_no_page_shows_what_python_calls_nothing(large: Explained) -> None:
    for explained in (bare(), large, explain(load(FIXTURE))):
        words = page(explained, state=explained.data.record.outcome).words
        assert re.findall(r"\b(?:None|nan|inf|True|False|undefined)\b", words) == []


def test_clocks_that_were_never_measured_have_no_bound(large: Explained) -> None:
    data = replace(large.data, record=replace(large.data.record, clock=()))
    words = page(explain(data)).words
    assert "inf" not in words.split()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("running", "is still running"),
        ("interrupted", "lost its labctl"),
        ("detached", "goes on without labctl"),
    ],
)
def test_a_run_that_goes_on_is_said_to(state: str, said: str) -> None:
    assert said in page(stories.run(outcome="running"), state=state).words


def test_a_damaged_record_still_has_a_page(tmp_path: Path) -> None:
    folder = tmp_path / run_id(1)
    write_run(folder, Shape(steps=20, trace_records=40))
    for name in ("events.jsonl", "trace/step_stats.20.pb", "logs/tf0/stderr"):
        file = folder / name
        file.write_bytes(file.read_bytes()[:-7] + b"\xff\xfe{")
    explained = explain(load(folder))
    words = page(explained).words
    assert "events.jsonl" in words
    assert "notes on this record" in words or "note on this record" in words


# The command


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABCTL_LAB", "bench")
    folder = Home.find().make_local_dir("bench") / "runs" / run_id(0)
    write_run(folder, Shape())
    return folder


def test_report_writes_one_file_beside_the_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((each, each.stat().st_mtime_ns) for each in folder.rglob("*"))
    assert run(["report"]) == 0
    file = folder.parent.parent / "reports" / f"{folder.name}.html"
    assert capsys.readouterr().out == f"{file}\n"
    assert run(["report", folder.name, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"run_id": folder.name, "file": str(file), "size_bytes": file.stat().st_size}
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    assert sorted((each, each.stat().st_mtime_ns) for each in folder.rglob("*")) == before


def test_report_takes_a_directory_and_a_file(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "page.html"
    assert run(["report", str(folder), "-o", str(target)]) == 0
    assert Page(target.read_text(encoding="utf-8")).named("section", id="why")


def test_report_refuses_what_is_no_file_and_what_is_no_record(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", "-o", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err
    (tmp_path / "plain").write_text("")
    assert run(["report", "-o", str(tmp_path / "plain" / "page.html")]) == 2
    record = load(folder).record
    write_record(folder, replace(record, run_id="20300101T000001Z-000001"))
    assert run(["report"]) == 8
    assert capsys.readouterr().out == ""
