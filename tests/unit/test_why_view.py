"""What `labctl why` shows of a run, and the plain data that it prints for programs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from labctl.analysis.causes import device, gpu
from labctl.analysis.causes.model import Proof, Verdict
from labctl.analysis.causes.rules import judge_all
from labctl.analysis.explained import Explained
from labctl.runs.baseline import Baseline, ComputeBaseline
from labctl.runs.record import Failure
from labctl.views.why import compute_bound, price_text, why_lines, why_object
from tests.unit.explained_samples import explained, healthy, hung, starved, traced
from tests.unit.stories import HEALTHY, MATPOW, START_S, run

KEYS = [
    "cause",
    "status",
    "scope",
    "title",
    "seconds",
    "confidence",
    "evidence",
    "remedy",
    "proved",
]


def shown(of: Explained, state: str = "ok") -> list[str]:
    return why_lines(of, judge_all(of), state=state, name="last")


def test_found_causes_come_first_with_their_price() -> None:
    lines = shown(starved())
    assert lines[0].startswith("lab demo · 2 tasks · A^5 + B^5 · L 1000 · chain · fed · CPU · run ")
    assert lines[1:3] == ["outcome    ok", ""]
    first = next(line for line in lines if line.startswith("1 "))
    assert first.startswith("1  One inter-op thread on task:0 holds up what task:1 waits for")
    assert first.endswith("costs 29.0 ms of each 72.1 ms step")
    text = "\n".join(lines)
    assert "\n   remedy     --inter-op 2 (or --feed staged)\n   confidence high\n" in text
    assert "\n2  TensorFlow's import" in text
    assert "costs 1.50 s once" in text
    assert text.index("\nruled out: ") < text.index("\nnot measured: ") < text.index("\nnext: ")
    assert "recursion (0 calls: chain does not recurse)" in " ".join(text.split())
    assert lines[-1] == "next: labctl why last --prove · labctl report last · labctl trace last"
    assert not any(line.startswith("healthy") for line in lines)


def test_causes_with_one_reason_stand_together() -> None:
    text = " ".join("\n".join(shown(healthy())).split())
    assert "and 9 more (no GPU was asked for)" in text
    assert text.count("no GPU was asked for") == 1
    of_gpus = {rule.cause for rule in (*device.RULES[1:], *gpu.RULES)}
    others = [each for each in judge_all(healthy()) if each.cause not in of_gpus]
    assert all(each.cause in text for each in others if each.status != "found")


def test_a_healthy_step_is_said_to_be_compute_bound() -> None:
    peaks = [ComputeBaseline(f"tf{k}", 1000, 260.0, 1, "blas", START_S) for k in (0, 1)]
    of = explained(traced(), baseline=Baseline({}, compute=tuple(peaks[:1])))
    text = " ".join("\n".join(shown(of)).split())
    assert "healthy each step is compute-bound: 32.1 of 40.1 ms (80 %) is compute" in text
    assert "tf0 at 250 GFLOP/s, 96 % of its own peak" in text
    assert "tf1 at 250 GFLOP/s, its peak not known (labctl check --compute)" in text
    assert "--prove" not in text


def test_a_step_that_mostly_waits_is_not_called_compute_bound() -> None:
    assert compute_bound(explained(traced(wire_s=0.05))) is None
    assert compute_bound(hung()) is None
    share, _ = compute_bound(healthy()) or (0.0, ())
    assert share == pytest.approx(32.1 / 40.1)


def test_a_run_that_failed_or_hung_says_how_it_ended() -> None:
    failure = Failure("timeout", "the node ended the run at its deadline in phase first_step", None)
    of = hung()
    of = replace(of, data=replace(of.data, record=replace(of.data.record, failure=failure)))
    lines = shown(of, "timeout")
    assert lines[1] == (
        "outcome    timeout: the node ended the run at its deadline in phase first_step"
    )
    assert lines[-1].endswith("labctl trace last · labctl logs last")
    assert "the run ended before a traced step" in " ".join("\n".join(lines).split())


def test_nothing_found_is_said_plainly() -> None:
    nothing = [each for each in judge_all(hung()) if each.status != "found"]
    lines = why_lines(hung(), nothing, state="timeout", name="last")
    assert any(line.startswith("found      no cause of the catalogue") for line in lines)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("running", "it is still running"),
        ("detached", "it goes on without labctl"),
        ("interrupted", "its labctl has ended"),
    ],
)
def test_a_run_that_goes_on_is_told_so(state: str, says: str) -> None:
    of = run(HEALTHY[:6], outcome="running", wall_s=None, ended_at_s=None)
    lines = shown(of, state)
    assert says in " ".join(" ".join(lines[1:3]).split())
    assert lines[-1] == "next: labctl attach last · labctl cancel last"


def test_lines_fit_the_screen_and_obey_nothing() -> None:
    of = replace(starved(), problems=("events.jsonl: line 7 is none: \x1b[2J" + " word" * 40,))
    lines = shown(of)
    assert any(
        line.startswith("record     events.jsonl: line 7 is none: \\x1b[2J") for line in lines
    )
    assert not any("\x1b" in line for line in lines)
    told = [line for line in lines if not line.startswith(("next:", "1 ", "lab "))]
    assert max(len(line) for line in told) <= 100


def test_prices() -> None:
    verdict = Verdict("x", "found", "step", "X", 0.0302, "high", ("e",))
    assert price_text(verdict, 0.075) == "costs 30.2 ms of each 75.0 ms step"
    assert price_text(verdict, None) == "costs 30.2 ms of each step"
    assert price_text(replace(verdict, scope="once", seconds=8.5), 0.075) == "costs 8.50 s once"
    assert price_text(replace(verdict, seconds=None), 0.075) == ""


def test_the_object_has_what_the_contract_names() -> None:
    verdicts = judge_all(starved())
    data = json.loads(json.dumps(why_object(verdicts), allow_nan=False))
    assert all(list(each) == KEYS for each in data)
    first = data[0]
    assert (first["cause"], first["status"], first["scope"]) == (
        "inter-op-starved",
        "found",
        "step",
    )
    assert first["seconds"] == pytest.approx(0.029)
    assert first["proved"] is None
    statuses = [each["status"] for each in data]
    assert statuses == sorted(statuses, key=["found", "ruled_out", "not_measured"].index)
    assert all(each["seconds"] is None for each in data if each["status"] != "found")


def test_a_proof_is_shown_and_printed() -> None:
    of = starved()
    first, *others = judge_all(of)
    pair = "--inter-op 1 against --inter-op 2"
    proof = Proof("confirmed", 0.0304, 0.0297, 0.0311, pair, ("a", "b"))
    verdicts = [replace(first, proved=proof), *others]
    text = "\n".join(why_lines(of, verdicts, state="ok", name="last"))
    assert "confirmed" in text
    assert "30.4 ms" in text
    proved = why_object(verdicts)[0]["proved"]
    assert proved["outcome"] == "confirmed"
    assert (proved["seconds"], proved["low_s"], proved["high_s"]) == (0.0304, 0.0297, 0.0311)
    assert (proved["pair"], proved["runs"]) == (pair, ["a", "b"])


def test_a_script_has_a_verdict_too() -> None:
    script = replace(
        MATPOW, experiment="script", script="mine.py", device=None, size=None, power=None
    )
    lines = shown(run(HEALTHY, parameters=script))
    assert lines[0].startswith("lab demo · 2 tasks · mine.py")
    assert "a script" in " ".join("\n".join(lines).split())
