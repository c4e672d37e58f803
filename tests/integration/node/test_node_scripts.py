"""Users' scripts: the environment they get, what becomes of their output and exit, and the examples."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from labctl.node import wire
from labctl.node.wire import RunPlan, ScriptPlan

if TYPE_CHECKING:
    from tests.integration.node.conftest import Finished, Nodes

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def _run(nodes: Nodes, cluster: tuple[str, ...], text: str, *arguments: str) -> Finished:
    plan = RunPlan("r", cluster, script=ScriptPlan("my script.py", arguments))
    return nodes.client(plan, {"my script.py": textwrap.dedent(text), "beside.py": "here = 1\n"})


def test_script_runs_as_main_with_its_arguments_and_its_cluster(
    nodes: Nodes, cluster: tuple[str, ...]
) -> None:
    run = _run(
        nodes,
        cluster,
        """
        import json, os, sys, threading, atexit, time
        import beside
        atexit.register(print, "last")
        threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
        print(json.dumps([__name__, sys.argv[1:], os.environ["TF_CONFIG"], os.environ["LABCTL_CLUSTER"],
                          sys.path[0] == os.getcwd(), beside.here]))
        """,
        "--x",
        "a b",
    )
    assert run.status == wire.EXIT_OK, run.stderr
    head, *rest = run.stdout.decode().splitlines()
    name, arguments, tf_config, spec, first_on_path, here = json.loads(head)
    assert (name, arguments, first_on_path, here) == ("__main__", ["--x", "a b"], True, 1)
    assert json.loads(tf_config) == {
        "cluster": {"local": list(cluster)},
        "task": {"type": "local", "index": 0},
    }
    assert spec == wire.spec_text(cluster)
    assert rest == ["thread", "last"]
    assert run.phases == ["interpreter", "wait_for_peers", "script"]


def test_output_passes_unharmed(nodes: Nodes, cluster: tuple[str, ...]) -> None:
    run = _run(
        nodes,
        cluster,
        """
        import sys
        for stream in (sys.stdout, sys.stderr):
            stream.buffer.write(bytes(range(256)) * 12_000)
            stream.buffer.write(b"no newline \\xff at the end")
        """,
    )
    whole = bytes(range(256)) * 12_000 + b"no newline \xff at the end"
    assert run.status == wire.EXIT_OK
    assert run.stdout == whole
    assert run.stderr == whole


@pytest.mark.parametrize(
    ("text", "ends", "words"),
    [
        ("import sys; sys.exit(7)", ("SystemExit", 7), b"exit status 7"),
        ("import sys; print('out'); sys.exit('no data')", ("SystemExit", 1), b"no data"),
        ("def f():\n    raise ValueError('bad value')\nf()", ("ValueError", 1), b"line 2, in f"),
        ("1 +", ("SyntaxError", 1), b"my script.py"),
        ("raise KeyboardInterrupt", ("KeyboardInterrupt", 1), b"KeyboardInterrupt"),
    ],
)
def test_failing_script_is_a_failed_run_with_its_own_exit(
    nodes: Nodes, cluster: tuple[str, ...], text: str, ends: tuple[str, int], words: bytes
) -> None:
    run = _run(nodes, cluster, text)
    error = run.one("error")
    assert run.status == wire.EXIT_FAILED
    assert error["kind"] == "script"
    assert (error["type"], error["script_exit"]) == ends
    assert words in run.stderr
    assert b"runpy" not in run.stderr


def test_exit_zero_is_no_failure(nodes: Nodes, cluster: tuple[str, ...]) -> None:
    run = _run(nodes, cluster, "import sys; sys.exit(0)")
    assert run.status == wire.EXIT_OK
    assert not run.of("error")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("parameter_server/train.py", ("--steps", "150"), ["task 2: 150 steps", "relative error"]),
        ("tf_function/train.py", ("--steps", "60"), ["2 workers", "accuracy"]),
        ("transfer/roundtrip.py", ("--mib", "1", "--repeat", "3"), ["task 0 to task 2", "2 edges"]),
    ],
)
def test_examples_run_on_a_lab(
    nodes: Nodes, cluster: tuple[str, ...], name: str, arguments: tuple[str, ...], words: list[str]
) -> None:
    path = EXAMPLES / name
    plan = RunPlan("r", cluster, script=ScriptPlan(path.name, arguments))
    run = nodes.client(plan, {path.name: path.read_text()})
    assert run.status == wire.EXIT_OK, run.stderr[-3000:]
    for word in words:
        assert word in run.stdout.decode()


def test_the_questions_listing_prints_its_two_times(nodes: Nodes, cluster: tuple[str, ...]) -> None:
    text = (EXAMPLES / "question/client.py").read_text()
    plan = RunPlan("r", cluster, script=ScriptPlan("client.py", ("-L", "200")))
    run = nodes.client(plan, {"client.py": text})
    assert run.status == wire.EXIT_OK, run.stderr[-3000:]
    section, stopwatch, computed = run.stdout.decode().splitlines()
    assert section.startswith("Distributed Computation time: 0:00:")
    assert computed.startswith("Computed A^6 + B^6, not A^5 + B^5")
    script = next(each for each in run.of("phase_end") if each["phase"] == "script")
    elapsed_us = int(stopwatch.removesuffix("[us] End-2-End.").split("took:")[1])
    assert 0.5 < elapsed_us * 1000 / script["duration_ns"] <= 1
