from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.drive.plan import MAX_SIZE, RunOptions, make_request
from labctl.errors import UsageError
from labctl.lab.inventory import loopback_lab
from labctl.node import wire

LAB = loopback_lab(Path("/nowhere"), (2222, 2223, 2224))


def test_options_not_given_are_the_plans_defaults() -> None:
    request = make_request(RunOptions())
    assert request.matpow == wire.MatpowPlan()
    assert request.script is None
    assert (request.gpu, request.peers, request.trace, request.files) == (False, True, True, {})
    assert request.parameters.timeout_s == 600


def test_every_option_reaches_the_client() -> None:
    options = RunOptions(
        gpu=True,
        size=64,
        power=7,
        algorithm="listing",
        feed="staged",
        placement="one-host",
        api="tf2",
        inter_op="default",
        repeat=3,
        trace=False,
        tags=("a=b", "empty="),
    )
    request = make_request(options)
    plan = wire.RunPlan.from_json(request.plan("id", LAB).to_json())
    assert plan.cluster == ("127.0.0.1:2222", "127.0.0.1:2223", "127.0.0.1:2224")
    assert plan.matpow == wire.MatpowPlan(
        size=64,
        power=7,
        algorithm="listing",
        feed="staged",
        placement="one-host",
        api="tf2",
        device="gpu",
        inter_op=None,
        repeat=3,
    )
    assert (plan.trace, request.gpu, request.peers) == (False, True, False)
    assert request.tags == {"a": "b", "empty": ""}
    parameters = request.parameters
    assert (parameters.size, parameters.power, parameters.device) == (64, 7, "gpu")


@pytest.mark.parametrize(("placement", "tasks"), [("lab", 3), ("one-host", 3), ("one-process", 1)])
def test_tasks_are_those_that_take_part(placement: str, tasks: int) -> None:
    assert make_request(RunOptions(placement=placement)).tasks(LAB) == tasks


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 0}, "--size 0"),
        ({"size": MAX_SIZE + 1}, "--size"),
        ({"power": 0}, "--power 0"),
        ({"power": 1001}, "--power 1001"),
        ({"repeat": -1}, "--repeat -1"),
        ({"algorithm": "strassen"}, "listing, chain, recursive, squaring"),
        ({"feed": "pipe"}, "fed, staged"),
        ({"placement": "cloud"}, "one-process"),
        ({"api": "jax"}, "session, tf2"),
        ({"inter_op": "0"}, "--inter-op"),
        ({"inter_op": "two"}, "1 to 1024, or default"),
        ({"inter_op": "٣"}, "--inter-op"),
        ({"inter_op": "9" * 30}, "--inter-op"),
        ({"timeout_s": 0.0}, "--timeout 0"),
        ({"timeout_s": float("nan")}, "--timeout nan"),
        ({"timeout_s": float("inf")}, "--timeout inf"),
        ({"tags": ("novalue",)}, "key=value"),
        ({"tags": ("a=1", "a=2")}, "given twice"),
        ({"tags": ("a=\x1b[2J",)}, "--tag"),
        ({"args": ("x",)}, "without a script"),
        ({"companions": (Path("x"),)}, "without a script"),
        ({"fresh": True, "placement": "one-process"}, "--fresh does not fit"),
    ],
)
def test_options_that_cannot_be_meant_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_request(RunOptions(**options))
    assert caught.value.exit_code == 2
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "option"),
    [
        ("--size", {"size": 10}),
        ("--power", {"power": 2}),
        ("--algorithm", {"algorithm": "chain"}),
        ("--feed", {"feed": "fed"}),
        ("--placement", {"placement": "lab"}),
        ("--api", {"api": "session"}),
        ("--inter-op", {"inter_op": "2"}),
        ("--repeat", {"repeat": 1}),
        ("--trace", {"trace": True}),
    ],
)
def test_options_of_the_experiment_do_not_fit_a_script(
    tmp_path: Path, flag: str, option: dict[str, Any]
) -> None:
    script = tmp_path / "mine.py"
    script.write_text("pass")
    with pytest.raises(UsageError, match=f"^{flag} is of the built-in experiment"):
        make_request(replace(RunOptions(script=script), **option))


def test_a_script_goes_with_its_arguments_and_companions(tmp_path: Path) -> None:
    script, helper = tmp_path / "mine.py", tmp_path / "helper.py"
    script.write_bytes(b"import helper\n")
    helper.write_bytes(b"\xff")
    request = make_request(
        RunOptions(script=script, args=("--x", "1"), companions=(helper,), gpu=True)
    )
    assert request.files == {"mine.py": b"import helper\n", "helper.py": b"\xff"}
    plan = wire.RunPlan.from_json(request.plan("id", LAB).to_json())
    assert plan.script == wire.ScriptPlan("mine.py", ("--x", "1"))
    assert plan.matpow is None
    assert request.gpu
    assert request.parameters.size is None
    assert request.parameters.companions == ("helper.py",)


def test_files_that_cannot_be_sent_are_refused_before_anything_is_touched(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    twin = tmp_path / "twin"
    twin.mkdir()
    for name in ("mine.py", "-odd.py", "has blank.py"):
        (tmp_path / name).write_text("pass")
    (twin / "mine.py").write_text("pass")
    huge = tmp_path / "huge.bin"
    with huge.open("wb") as file:
        file.truncate(65 * 1024 * 1024)
    mine = tmp_path / "mine.py"
    for options, said in (
        (RunOptions(script=tmp_path / "missing.py"), "No such file"),
        (RunOptions(script=twin), "cannot read"),
        (RunOptions(script=plan), "cannot be sent"),
        (RunOptions(script=tmp_path / "-odd.py"), "cannot be sent"),
        (RunOptions(script=tmp_path / "has blank.py"), "cannot be sent"),
        (RunOptions(script=mine, companions=(twin / "mine.py",)), "two files"),
        (RunOptions(script=mine, companions=(huge,)), "at most"),
    ):
        with pytest.raises(UsageError, match=said):
            make_request(options)
