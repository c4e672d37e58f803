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
        fetch="none",
        sum_task=2,
        soft_placement=True,
        environment=("TF_X=1=2", "EMPTY="),
        skip_checks=True,
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
        fetch="none",
        sum_task=2,
        soft_placement=True,
    )
    assert plan.environment == {"TF_X": "1=2", "EMPTY": ""}
    assert (plan.trace, request.peers, request.skip_checks) == (False, False, True)
    assert request.tags == {"a": "b", "empty": ""}
    parameters = request.parameters
    assert (parameters.size, parameters.power, parameters.device) == (64, 7, "gpu")
    assert (parameters.fetch, parameters.sum_task, parameters.soft_placement) == ("none", 2, True)
    assert parameters.environment == ("EMPTY", "TF_X")
    assert parameters.skip_checks


def test_a_gpu_that_tensorflow_may_replace_is_asked_of_no_node() -> None:
    hard, soft = (make_request(RunOptions(gpu=True, soft_placement=soft)) for soft in (False, True))
    assert (hard.gpu, soft.gpu) == (True, False)
    assert (hard.parameters.device, soft.parameters.device) == ("gpu", "gpu")


def test_a_variable_without_a_value_has_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_PROXY", "http://me:secret@192.0.2.1:3128")
    request = make_request(RunOptions(environment=("GRPC_PROXY", "_x=")))
    assert request.environment == {"GRPC_PROXY": "http://me:secret@192.0.2.1:3128", "_x": ""}
    assert request.parameters.environment == ("GRPC_PROXY", "_x")
    assert "secret" not in str(request.parameters)


def test_a_secret_of_a_variable_stands_in_no_message() -> None:
    for text in ("1=secret", "A=" + "secret" * 10_000, "A=secret\0", "TF_CONFIG=secret"):
        with pytest.raises(UsageError) as caught:
            make_request(RunOptions(environment=(text,)))
        assert "--env" in str(caught.value)
        assert "secret" not in str(caught.value)


def test_what_the_lab_does_not_have_is_named_once_it_is_known() -> None:
    make_request(RunOptions(sum_task=2)).require_fits(LAB)
    with pytest.raises(UsageError, match=r"^--sum-on 3") as caught:
        make_request(RunOptions(sum_task=3)).require_fits(LAB)
    assert "0 to 2" in str(caught.value)
    make_request(RunOptions(size=13_377, feed="constant")).require_fits(LAB)
    with pytest.raises(UsageError, match=r"3 matrices do not fit a graph") as caught:
        make_request(RunOptions(size=13_378, feed="constant")).require_fits(LAB)
    assert "--size 13377 or less" in str(caught.value)
    make_request(RunOptions(size=20_000)).require_fits(LAB)


def test_a_script_is_given_variables_too(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("pass")
    request = make_request(RunOptions(script=script, environment=("A=1",), skip_checks=True))
    assert request.plan("id", LAB).environment == {"A": "1"}
    assert request.parameters.environment == ("A",)
    assert request.skip_checks
    assert request.parameters.skip_checks
    request.require_fits(LAB)


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
        ({"feed": "pipe"}, "fed, staged, constant"),
        ({"fetch": "all"}, "sum, none"),
        ({"sum_task": -1}, "--sum-on -1"),
        ({"sum_task": 1, "placement": "one-process"}, "no other task"),
        ({"soft_placement": True}, "without --gpu"),
        ({"environment": ("A=1", "A=2")}, "given twice"),
        ({"environment": ("9A=1",)}, "--env '9A'"),
        ({"environment": ("=1",)}, "--env ''"),
        ({"environment": ("NOT_SET_ANYWHERE",)}, "not set here"),
        ({"environment": ("LABCTL_CLUSTER=x",)}, "sets it itself"),
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
        ("--fetch", {"fetch": "sum"}),
        ("--sum-on", {"sum_task": 0}),
        ("--soft-placement", {"soft_placement": True}),
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
    assert plan.script == wire.ScriptPlan("mine.py", ("--x", "1"), "gpu")
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
