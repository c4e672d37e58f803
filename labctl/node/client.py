"""The client of a run: task 0, which drives the experiment or the user's script. It always ends.

TensorFlow blocks for ever on a dead peer, even when a session is left after an error; so every way out of
here is `os._exit`, after the events and streams are written.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from . import host, limits, wire
from .children import STARTUP_S_PER_TASK, Children, start_children
from .cluster import Peers, peers_lost, report_peer, wait_for_peers
from .errors import (
    HINTS,
    PEER_KINDS,
    PEER_LOST,
    UNEXPECTED,
    NodeError,
    bad_plan,
    classify,
    shorten,
    summarise,
)
from .events import EventLog
from .experiment import Experiment
from .gpu import Gpu
from .ports import Answer, require_free_port
from .script import run_script
from .spec import check_addresses
from .usage import UsageReporter
from .watch import Patience, Stall, Watchdog
from .wire import MatpowPlan, RunPlan

_FLUSH_WITHIN_S = 2.0
_CLOSE_WITHIN_S = 5.0
_EXPERIMENT_PATIENCE = Patience()
_SCRIPT_PATIENCE = Patience(grace_s=10.0, forgiving=True)


def run_client(plan_file: str, payload: str) -> NoReturn:
    """Carry out a run plan in the current directory and end the process.

    Args:
        plan_file: The plan, JSON.
        payload: Path of the directory or zip file that this program was started from.
    """
    began_ns = time.perf_counter_ns()
    directory = Path.cwd()
    events = EventLog.to_file(wire.EVENTS_FILE, "client", 0)
    client = _Client(events, payload, directory, began_ns)
    try:
        status = client.run(plan_file)
    except BaseException as error:  # noqa: BLE001 whatever it is, the process ends here
        # Within this block: when it is left, the traceback goes, and with it a session, which may block.
        client.leave(client.fail(error))
    client.leave(status)


class _Client:
    """One run's state: who the peers are, and how to end."""

    def __init__(self, events: EventLog, payload: str, directory: Path, began_ns: int) -> None:
        self._events = events
        self._payload = payload
        self._directory = directory
        self._began_ns = began_ns
        self._peers = Peers({})
        self._watchdog: Watchdog | None = None
        self._stall = Stall()
        self._usage = UsageReporter(events, always=True)
        self._experiment: Experiment | None = None
        self._gpu: Gpu | None = None

    def run(self, plan_file: str) -> int:
        """Carry out a plan and return the exit status.

        Raises:
            NodeError: It cannot be run, or failed.
        """
        dropped = host.drop_proxies(os.environ)
        try:
            plan = _read_plan(plan_file)
            os.environ.update(plan.environment)
        finally:
            host.introduce(self._events)
        self._usage.start()
        if dropped:
            self._events.emit(wire.NOTE, text=f"cleared {', '.join(dropped)}: gRPC would obey them")
        check_addresses(plan.cluster)
        if plan.matpow is not None:
            return self._run_matpow(plan, plan.matpow)
        assert plan.script is not None  # noqa: S101 a plan has either, `from_json` checks it
        limits.check_script(plan.script, self._directory)
        if plan.script.device == "gpu":
            self._wake_gpus()
        self._await_peers(Peers(dict(enumerate(plan.cluster[1:], start=1))), plan.peer_timeout_s)
        self._watch(_SCRIPT_PATIENCE)
        with self._events.phase(wire.PHASE_SCRIPT), self._stall:
            run_script(plan.script, plan.cluster, self._directory)
        return wire.EXIT_OK

    def fail(self, error: BaseException) -> int:
        """Report an exception and return the exit status it means."""
        fields: dict[str, Any]
        if isinstance(error, NodeError):
            fields, status = error.fields(), error.status
        else:
            fields, status = _explain(error), wire.EXIT_FAILED
        if fields["kind"] in PEER_KINDS and status != wire.EXIT_PEER_LOST:
            status, extra = self._blame(status)
            fields.update(extra)
        if fields["kind"] == UNEXPECTED and not isinstance(error, NodeError):
            traceback.print_exception(error)
        with suppress(OSError):  # a full disk must not keep the process from ending
            self._events.emit(wire.ERROR, **fields)
        if fields["detail"]:
            sys.stderr.write(f"{fields['detail']}\n")
        text = NodeError(fields["message"], expected=fields["expected"], do=fields["do"])
        sys.stderr.write(f"labctl client: {text}\n")
        return status

    def leave(self, status: int) -> NoReturn:
        """End the process, without waiting for TensorFlow."""
        if self._gpu is None:
            self._usage.stop()
        else:
            with suppress(RuntimeError):  # no thread could be started
                _within(_FLUSH_WITHIN_S, self._tell_of_gpus)
        with suppress(OSError):
            self._events.end(status)
        _within(_FLUSH_WITHIN_S, _flush)
        os._exit(status)

    def _blame(self, status: int) -> tuple[int, dict[str, Any]]:
        """Return exit status and error fields that hold if a peer does not answer right now."""
        silent = self._peers.silent()
        self._report(silent)
        if not silent:
            return status, {}
        lost = peers_lost(self._peers.addresses, silent, "any more")
        return wire.EXIT_PEER_LOST, {
            "kind": PEER_LOST, "message": lost.found, "expected": lost.expected, "do": lost.do,
        }  # fmt: skip

    def _await_peers(
        self, peers: Peers, timeout_s: float, children: Children | None = None
    ) -> None:
        self._peers = peers
        between = None if children is None else children.require_alive
        with self._events.phase(wire.PHASE_PEERS):
            wait_for_peers(peers, self._events, timeout_s, between=between)

    def _watch(self, patience: Patience) -> None:
        self._watchdog = Watchdog(
            self._peers,
            patience,
            on_answers=self._tell_if_stalled,
            on_silent=lambda error, silent: self._warn(error, silent, patience),
            on_lost=lambda error: self.leave(self.fail(error)),
        )
        self._watchdog.start()

    def _tell_if_stalled(self, answers: dict[int, Answer]) -> None:
        if self._stall.news(answers):
            self._report(answers)

    def _warn(self, error: NodeError, silent: dict[int, Answer], patience: Patience) -> None:
        self._report(silent)
        self._events.emit(wire.NOTE, text=f"{error.found}; the run ends in {patience.grace_s:g} s")

    def _report(self, answers: dict[int, Answer]) -> None:
        for task, answer in answers.items():
            report_peer(self._events, task, self._peers.addresses[task], answer)

    def _run_matpow(self, plan: RunPlan, matpow: MatpowPlan) -> int:
        tasks = len(plan.cluster)
        limits.check_matpow(matpow, tasks, host.available_memory())
        children = None
        addresses: tuple[str, ...] = ()
        if matpow.placement == "one-host":
            children = start_children(matpow, tasks, self._payload, self._directory)
            addresses, timeout_s = children.addresses, STARTUP_S_PER_TASK * tasks
        elif matpow.placement == "lab":
            addresses, timeout_s = plan.cluster, plan.peer_timeout_s
        if addresses:
            require_free_port(addresses[0])
            peers = Peers(dict(enumerate(addresses[1:], start=1)))
            self._await_peers(peers, timeout_s, children)
            self._watch(_EXPERIMENT_PATIENCE)
        if matpow.device == "gpu":
            self._wake_gpus()
        self._experiment = experiment = Experiment(
            self._events, self._stall, self._directory, self._began_ns, self._gpu
        )
        ok = experiment.run(matpow, tasks, addresses, trace=plan.trace)
        self._close(experiment)
        if children is not None:
            children.end()
        return wire.EXIT_OK if ok else wire.EXIT_WRONG

    def _wake_gpus(self) -> None:
        self._gpu = Gpu(self._events)
        self._gpu.wake()
        self._usage.watch(self._gpu)

    def _tell_of_gpus(self) -> None:
        """Write the last of what is known of the GPUs. May block where their driver does not answer any more."""
        self._usage.stop()
        if self._gpu is not None:
            with suppress(OSError):
                self._gpu.kernel_cache("end")

    def _close(self, experiment: Experiment) -> None:
        """Free the other tasks' memory; what is not done in time is left undone, the result stands."""
        if self._watchdog is not None:
            self._watchdog.stop()
        _within(_CLOSE_WITHIN_S, experiment.close)


def _read_plan(path: str) -> RunPlan:
    try:
        return RunPlan.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise bad_plan(
            f"plan {path}: {error}",
            expected=f"a run plan of format {wire.PLAN_FORMAT}",
            do="use the same version of labctl for the plan and the payload",
        ) from error


def _explain(error: BaseException) -> dict[str, Any]:
    """Return the fields of the `error` event of an exception that is not ours."""
    detail = shorten(getattr(error, "message", None) or str(error))
    name = type(error).__name__
    kind = classify(name, detail)
    expected, do = HINTS.get(kind, (None, None))
    return {
        "kind": kind,
        "type": name,
        "message": summarise(kind, name, detail),
        "expected": expected,
        "do": do,
        "detail": detail,
    }


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def _within(seconds: float, action: Any) -> None:
    """Call something that may block, and go on after some seconds whether it has returned or not."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)
