"""A node's answer, checked before anything believes it: JSON text in, frozen values out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from labctl.checks.facts import (
    ComputeFacts,
    DiskFacts,
    GpuFacts,
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
from labctl.remote.base import Result

_MAX_TEXT = 300
_MAX_ITEMS = 1000

T = TypeVar("T")


class FactsError(ValueError):
    """A node's answer is not what the probe prints."""


class _Reader:
    """Reads one JSON object, field by field, with types; keeps nothing that could harm a terminal."""

    def __init__(self, data: object, where: str = "answer") -> None:
        if not isinstance(data, dict):
            raise FactsError(f"{where} is no object")
        self._data, self._where = data, where

    def _value(self, key: str) -> Any:
        if key not in self._data:
            raise FactsError(f"{self._where}.{key} is missing")
        return self._data[key]

    def names(self) -> list[str]:
        return list(self._data)[:_MAX_ITEMS]

    def _wrong(self, key: str, kind: str) -> FactsError:
        return FactsError(f"{self._where}.{key} is no {kind}")

    def text(self, key: str, *, limit: int = _MAX_TEXT) -> str:
        value = self._value(key)
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return plain(value, limit)

    def text_or_none(self, key: str, *, limit: int = _MAX_TEXT) -> str | None:
        return None if self._value(key) is None else self.text(key, limit=limit)

    def flag(self, key: str) -> bool:
        value = self._value(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "flag")
        return value

    def flag_or_none(self, key: str) -> bool | None:
        return None if self._value(key) is None else self.flag(key)

    def whole(self, key: str) -> int:
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
            raise self._wrong(key, "whole number")
        return value

    def whole_or_none(self, key: str) -> int | None:
        return None if self._value(key) is None else self.whole(key)

    def number(self, key: str) -> float:
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "number")
        if not math.isfinite(value) or abs(value) > 1e15:
            raise self._wrong(key, "number in range")
        return float(value)

    def number_or_none(self, key: str) -> float | None:
        return None if self._value(key) is None else self.number(key)

    def items(self, key: str) -> list[Any]:
        value = self._value(key)
        if not isinstance(value, list):
            raise self._wrong(key, "list")
        return value[:_MAX_ITEMS]

    def texts(self, key: str, *, limit: int = _MAX_TEXT) -> tuple[str, ...]:
        items = self.items(key)
        if not all(isinstance(item, str) for item in items):
            raise self._wrong(key, "list of texts")
        return tuple(plain(item, limit) for item in items)

    def wholes(self, key: str) -> tuple[int, ...]:
        items = self.items(key)
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise self._wrong(key, "list of whole numbers")
        return tuple(items)

    def each(self, key: str, read: Callable[[_Reader], T]) -> tuple[T, ...]:
        where = f"{self._where}.{key}"
        return tuple(read(_Reader(item, where)) for item in self.items(key))

    def object(self, key: str) -> _Reader:
        return _Reader(self._value(key), f"{self._where}.{key}")

    def object_or_none(self, key: str) -> _Reader | None:
        return None if self._value(key) is None else self.object(key)

    def named(self, key: str, read: Callable[[_Reader], T]) -> Mapping[str, T]:
        inner = self.object(key)
        return MappingProxyType({plain(name): read(inner.object(name)) for name in inner.names()})

    def words(self, key: str) -> Mapping[str, str]:
        inner = self.object(key)
        return MappingProxyType({plain(name): inner.text(name) for name in inner.names()})

    def words_or_none(self, key: str) -> Mapping[str, str] | None:
        return None if self._value(key) is None else self.words(key)


def plain(text: str, limit: int = _MAX_TEXT) -> str:
    """Return a text on one line without control characters, cut to `limit` characters."""
    cleaned = "".join(char if char.isprintable() else " " for char in text[: limit + 1]).strip()
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


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
    top = _Reader(data)
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
        gpu=None if gpu is None else _gpu(gpu),
    )


def reach_facts(data: object) -> Mapping[str, ReachFacts]:
    """Return the answer of a ports probe to `reach`, by the target's name.

    Raises:
        FactsError: It is not such an answer.
    """
    return _Reader({"reach": data}).named(
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
    top = _Reader(data)
    return ListenerFacts(top.whole("pid"), top.text("start"), top.text_or_none("error"))


def means_facts(data: object) -> MeansFacts:
    """Return the answer of a baseline probe to `look`.

    Raises:
        FactsError: It is not such an answer.
    """
    top = _Reader(data)
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
    top = _Reader(data)
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
    return _Reader(data).text_or_none("error")


def compute_facts(data: object) -> ComputeFacts:
    """Return the answer of a baseline probe to `compute`.

    Raises:
        FactsError: It is not such an answer, or says why there is none.
    """
    top = _Reader(data)
    if (error := top.text_or_none("error")) is not None:
        raise FactsError(error)
    return ComputeFacts(top.number("gflops"), top.whole("threads"), top.text("library"))


def _unit(each: _Reader) -> UnitFacts:
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


def _process(each: _Reader) -> ProcessFacts:
    return ProcessFacts(each.whole("pid"), each.text("command"), each.text("unit"))


def _server(each: _Reader) -> ServerFacts:
    return ServerFacts(each.texts("argv"), each.words_or_none("proxies"), each.wholes("ports"))


def _spec(each: _Reader) -> SpecFacts:
    text = each.text_or_none("text", limit=1 << 16)
    return SpecFacts(text, each.number_or_none("mtime_s"), each.text_or_none("error"))


def _venv(each: _Reader) -> VenvFacts:
    return VenvFacts(each.text_or_none("error"), each.text("python"), each.words("packages"))


def _disk(each: _Reader) -> DiskFacts:
    return DiskFacts(each.text("path"), each.whole("free_bytes"), each.whole_or_none("free_inodes"))


def _run(each: _Reader) -> RunFacts:
    return RunFacts(each.text("name"), each.number("age_s"), each.flag("ended"))


def _gpu(each: _Reader) -> GpuFacts:
    return GpuFacts(each.texts("devices"), each.texts("dev_nodes"), each.text_or_none("error"))
