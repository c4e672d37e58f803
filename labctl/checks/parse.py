"""A node's answer, checked before anything believes it: JSON text in, frozen values out."""

from __future__ import annotations

import json
from collections.abc import Mapping

from labctl.checks.facts import (
    ComputeFacts,
    DiskFacts,
    LinkFacts,
    ListenerFacts,
    MeansFacts,
    NodeFacts,
    ProcessFacts,
    ReachFacts,
    RunFacts,
    ServerFacts,
    SpecFacts,
    UnitFacts,
    VenvFacts,
)
from labctl.checks.gpu_parse import gpu_facts
from labctl.checks.reader import FactsError, Reader, plain
from labctl.remote.base import Result


def answer_of(result: Result) -> object:
    """Return the JSON document that a probe printed.

    Raises:
        FactsError: It did not end well, or printed something else.
    """
    if not result.ok:
        ended = f"exit {result.returncode}" if result.signal is None else f"signal {result.signal}"
        lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
        raise FactsError(f"ended with {ended}" + (f": {plain(lines[-1])}" if lines else ""))
    if result.truncated:
        raise FactsError("printed more than a probe does")
    try:
        return json.loads(result.text)
    except (ValueError, RecursionError) as error:
        raise FactsError("printed no JSON") from error


def node_facts(data: object) -> NodeFacts:
    """Return the facts of a facts probe's answer.

    Raises:
        FactsError: It is not such an answer.
    """
    top = Reader(data)
    cpu = top.object("cpu")
    server, gpu = top.object_or_none("server"), top.object_or_none("gpu")
    return NodeFacts(
        user=top.text("user"),
        root=top.flag("root"),
        sudo_error=top.text_or_none("sudo_error"),
        python=top.text("python"),
        units=top.named("units", _unit),
        units_error=top.text_or_none("units_error"),
        journal=top.texts("journal", limit=2000),
        server=None if server is None else _server(server),
        manager_proxies=top.words("manager_proxies"),
        login_proxies=top.words("login_proxies"),
        firewall_table=top.flag_or_none("firewall_table"),
        spec=_spec(top.object("spec")),
        venv=_venv(top.object("venv")),
        addresses=top.texts("addresses"),
        disk=top.each("disk", _disk),
        machine=cpu.text("machine"),
        cpu_flags=cpu.texts("flags"),
        holders=top.each("holders", _process),
        runs=top.each("runs", _run),
        strays=top.each("strays", _process),
        gpu=None if gpu is None else gpu_facts(gpu),
    )


def reach_facts(data: object) -> Mapping[str, ReachFacts]:
    """Return the answer of a ports probe to `reach`, by the target's name.

    Raises:
        FactsError: It is not such an answer.
    """
    return Reader({"reach": data}).named(
        "reach",
        lambda each: ReachFacts(
            addresses=each.texts("addresses"),
            state=each.text("state"),
            took_ms=each.number("ms"),
            detail=each.text("detail"),
        ),
    )


def listener_facts(data: object) -> ListenerFacts:
    """Return the answer of a ports probe to `listen`.

    Raises:
        FactsError: It is not such an answer.
    """
    top = Reader(data)
    return ListenerFacts(top.whole("pid"), top.text("start"), top.text_or_none("error"))


def means_facts(data: object) -> MeansFacts:
    """Return the answer of a baseline probe to `look`.

    Raises:
        FactsError: It is not such an answer.
    """
    top = Reader(data)
    return MeansFacts(
        iperf3=top.text("iperf3"),
        cpus=frozenset(top.wholes("cpus")),
        boot_id=top.text("boot_id"),
        load_1min=top.number_or_none("load_1min") if "load_1min" in top.names() else None,
    )


def link_facts(data: object) -> LinkFacts:
    """Return the answer of a baseline probe to `link`.

    Raises:
        FactsError: It is not such an answer.
    """
    top = Reader(data)
    return LinkFacts(
        rtt_s=top.number_or_none("rtt_s"),
        bits_per_s=top.number_or_none("bits_per_s"),
        retransmits=top.whole_or_none("retransmits"),
        error=top.text_or_none("error"),
    )


def serve_error(data: object) -> str | None:
    """Return what a baseline probe's answer to `serve` says went wrong, None for nothing.

    Raises:
        FactsError: It is not such an answer.
    """
    return Reader(data).text_or_none("error")


def compute_facts(data: object) -> ComputeFacts:
    """Return the answer of a baseline probe to `compute`.

    Raises:
        FactsError: It is not such an answer, or says why there is none.
    """
    top = Reader(data)
    if (error := top.text_or_none("error")) is not None:
        raise FactsError(error)
    return ComputeFacts(top.number("gflops"), top.whole("threads"), top.text("library"))


def _unit(each: Reader) -> UnitFacts:
    return UnitFacts(
        load=each.text("load"),
        active=each.text("active"),
        sub=each.text("sub"),
        result=each.text("result"),
        description=each.text("description"),
        main_pid=each.whole("main_pid"),
        restarts=each.whole("restarts"),
        started_at_s=each.number_or_none("started_at_s"),
        since_s=each.number_or_none("since_s"),
    )


def _process(each: Reader) -> ProcessFacts:
    return ProcessFacts(each.whole("pid"), each.text("command"), each.text("unit"))


def _server(each: Reader) -> ServerFacts:
    return ServerFacts(each.texts("argv"), each.words_or_none("proxies"), each.wholes("ports"))


def _spec(each: Reader) -> SpecFacts:
    text = each.text_or_none("text", limit=1 << 16)
    return SpecFacts(text, each.number_or_none("mtime_s"), each.text_or_none("error"))


def _venv(each: Reader) -> VenvFacts:
    return VenvFacts(each.text_or_none("error"), each.text("python"), each.words("packages"))


def _disk(each: Reader) -> DiskFacts:
    return DiskFacts(each.text("path"), each.whole("free_bytes"), each.whole_or_none("free_inodes"))


def _run(each: Reader) -> RunFacts:
    return RunFacts(each.text("name"), each.number("age_s"), each.flag("ended"))
