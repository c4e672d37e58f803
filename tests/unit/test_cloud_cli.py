"""`labctl up`, `down`, `labs`, `stop`, `start` and `extend` from the command line, with a cloud in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.__main__ import run
from labctl.errors import HostUnreachableError
from labctl.lab.home import Home
from labctl.lab.model import Lab, Node, SshTarget
from labctl.providers import choose, listing
from labctl.providers.cloud.fake import Fault
from labctl.remote.fake import FakeExecutor, Reply
from tests.unit.cloud_worlds import START_S, Worlds

UP = ["up", "--provider", "aws", "--lab", "demo"]


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worlds:
    worlds = Worlds(Home.find())
    monkeypatch.setattr(choose, "cloud", lambda *_: worlds.labs)
    monkeypatch.setattr(listing, "_asker", lambda _: lambda _, lab: worlds.labs.status(lab))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert worlds.home.root == tmp_path / "home"
    return worlds


def test_a_dry_run_prints_the_plan_and_leaves_nothing(
    aws: Worlds, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*UP, "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "tf0  make  g4dn.xlarge  1 x T4" in shown.out
    assert "asking aws" in shown.err
    assert aws.cloud.resources == []
    assert list(aws.home.root.iterdir()) == []
    assert run([*UP, "--dry-run", "--json", "--gpu", "none", "--nodes", "3"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["new"] == ["tf0", "tf1", "tf2"]
    assert plan["machines"][0]["machine_type"] == "m6i.large"


def test_money_is_not_spent_without_a_yes(aws: Worlds, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(UP) == 2
    shown = capsys.readouterr()
    assert "lab demo costs money, and there is no terminal to ask on" in shown.err
    assert "USD/h for all" in shown.err
    assert aws.cloud.resources == []
    assert list(aws.home.root.iterdir()) == []


@pytest.mark.parametrize(("answer", "made"), [(True, 2), (False, 0)])
def test_a_user_at_a_terminal_is_asked(
    aws: Worlds,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: bool,
    made: int,
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: answer)
    assert run(UP) == 0
    assert len([each for _, each in aws.cloud.resources if each.kind == "machine"]) == made
    assert ("nothing was made" in capsys.readouterr().err) is not answer


def test_up_down_and_what_is_listed_between(
    aws: Worlds, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*UP, "--yes"]) == 0
    assert "next: labctl provision" in capsys.readouterr().err
    assert run([*UP, "--json"]) == 0  # nothing new: nothing is asked
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["provider"]) == ("up", "aws")
    assert status["usd_per_hour"] == pytest.approx(1.075, abs=0.01)
    assert run(["labs"]) == 0
    assert "*  demo  aws       2      up" in capsys.readouterr().out
    assert run(["stop"]) == 0
    assert run(["labs", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["state"] == "stopped"
    assert row["notes"] == [
        "tf0 stopped by labctl stop, its disk is billed",
        "tf1 stopped by labctl stop, its disk is billed",
    ]
    assert run(["start", "--json"]) == 0
    capsys.readouterr()
    assert run(["down"]) == 0
    shown = capsys.readouterr().out
    assert "removed    machine tf0 (machine-" in shown
    assert "left       nothing with label labctl-lab=demo (asked aws at 2026-" in shown
    assert "no run came to its first step" in shown
    assert run(["labs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_options_of_other_providers(aws: Worlds, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "--lab", "x", "--gpu", "T4", "--dry-run"]) == 2
    assert "--gpu, --dry-run: not of provider rehearsal" in capsys.readouterr().err
    assert run([*UP, "--memory", "4G"]) == 2
    assert "--memory: not of provider aws" in capsys.readouterr().err
    assert aws.cloud.calls == []


def test_down_that_leaves_something_says_so(
    aws: Worlds, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*UP, "--yes"])
    aws.cloud.sticky = frozenset({"disk"})
    capsys.readouterr()
    assert run(["down"]) == 1
    shown = capsys.readouterr()
    assert "left       disk tf0 (disk-" in shown.out
    assert "lab demo is not gone" in shown.err
    assert run(["down", "--json", "--force"]) == 0
    receipt = json.loads(capsys.readouterr().out)
    assert len(receipt["forgotten"]) == 2
    assert receipt["machines"][0]["node"] == "tf0"


def test_an_error_of_the_cloud_has_its_exit_code(
    aws: Worlds, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.cloud.fail("find", Fault(message="An error occurred (ExpiredToken)"))
    assert run([*UP, "--yes"]) == 3
    shown = capsys.readouterr().err
    assert "aws sso login" in shown
    assert "Traceback" not in shown


def test_commands_of_clouds_on_other_labs(aws: Worlds, capsys: pytest.CaptureFixture[str]) -> None:
    folder = aws.home.inventory("mine")
    folder.mkdir(parents=True)
    (folder / "hosts.yml").write_text("tf_cluster: {}\n")
    assert run(["stop", "--lab", "mine"]) == 3
    assert "lab mine is in no cloud" in capsys.readouterr().err
    assert run(["extend", "--lab", "loopback"]) == 2
    assert run(["extend", "0", "--lab", "mine"]) == 2


def node(index: int) -> Node:
    return Node(f"tf{index}", index, f"10.132.0.{10 + index}", 2222, SshTarget("127.0.0.1"))


Opened = Callable[[Node, Lab], FakeExecutor]


def test_extend_goes_on_where_a_node_does_not_answer(
    aws: Worlds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*UP, "--yes"])
    lab = Lab("demo", (node(0), node(1)), None, "aws", aws.home.local_dir("demo"))
    monkeypatch.setattr("labctl.playbook.load_lab", lambda *_: lab)
    until = START_S + 20 * 3600
    fine = json.dumps({"armed": True, "deadline_unix_s": until, "booted_unix_s": 1.0}).encode()
    machines = {
        "tf0": FakeExecutor("tf0").on(["python3"], HostUnreachableError("tf0 does not answer")),
        "tf1": FakeExecutor("tf1").on(["python3"], Reply(fine)),
    }
    monkeypatch.setattr("labctl.remote.connect.open_executor", lambda each, _: machines[each.name])
    capsys.readouterr()
    assert run(["extend", "5"]) == 4
    shown = capsys.readouterr()
    assert "tf1  powers itself off at 2026-" in shown.out
    assert "tf0 does not answer" in shown.err
    assert machines["tf1"].calls[0].argv[1:] == (
        "/opt/lab-deadman/deadman.py",
        "extend",
        "5",
    )
    assert machines["tf1"].calls[0].sudo
    assert aws.labs.status("demo").deadline_unix_s == until


def test_extend_of_a_timer_that_does_not_run_is_an_error(
    aws: Worlds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab("demo", (node(0),), None, "none", aws.home.local_dir("demo"))
    monkeypatch.setattr("labctl.playbook.load_lab", lambda *_: lab)
    said = json.dumps({"armed": False, "deadline_unix_s": START_S, "booted_unix_s": 1.0}).encode()
    machine = FakeExecutor("tf0").on(["python3"], Reply(said))
    monkeypatch.setattr("labctl.remote.connect.open_executor", lambda *_: machine)
    assert run(["extend", "--lab", "demo", "--json"]) == 5
    assert "timer of tf0 does not run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(returncode=2, stderr=b"can't open file"), "has no dead-man timer"),
        (Reply(b"{}"), "answered '{}'"),
        (Reply(b"nonsense"), "answered 'nonsense'"),
        (Reply(returncode=1, stderr=b"locked"), "locked"),
    ],
)
def test_extend_of_a_node_without_a_timer(
    aws: Worlds,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reply: Reply,
    words: str,
) -> None:
    lab = Lab("demo", (node(0),), None, "none", aws.home.local_dir("demo"))
    monkeypatch.setattr("labctl.playbook.load_lab", lambda *_: lab)
    machine = FakeExecutor("tf0").on(["python3"], reply)
    monkeypatch.setattr("labctl.remote.connect.open_executor", lambda *_: machine)
    assert run(["extend", "--lab", "demo", "--json"]) == 5
    shown = capsys.readouterr()
    assert words in shown.err
    assert json.loads(shown.out)[0]["deadline_unix_s"] is None
