"""Reads a node's answer field by field, with types; keeps nothing that could harm a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

_MAX_TEXT = 300
_MAX_ITEMS = 1000

T = TypeVar("T")


class FactsError(ValueError):
    """A node's answer is not what the probe prints."""


class Reader:
    """Reads one JSON object, field by field, with types; keeps nothing that could harm a terminal."""

    def __init__(self, data: object, where: str = "answer") -> None:
        if not isinstance(data, dict):
            raise FactsError(f"{where} is no object")
        self._data, self._where = data, where

    def value(self, key: str) -> Any:
        if key not in self._data:
            raise FactsError(f"{self._where}.{key} is missing")
        return self._data[key]

    def names(self) -> list[str]:
        return list(self._data)[:_MAX_ITEMS]

    def wrong(self, key: str, kind: str) -> FactsError:
        return FactsError(f"{self._where}.{key} is no {kind}")

    def text(self, key: str, *, limit: int = _MAX_TEXT) -> str:
        value = self.value(key)
        if not isinstance(value, str):
            raise self.wrong(key, "text")
        return plain(value, limit)

    def text_or_none(self, key: str, *, limit: int = _MAX_TEXT) -> str | None:
        return None if self.value(key) is None else self.text(key, limit=limit)

    def flag(self, key: str) -> bool:
        value = self.value(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "flag")
        return value

    def flag_or_none(self, key: str) -> bool | None:
        return None if self.value(key) is None else self.flag(key)

    def whole(self, key: str) -> int:
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
            raise self.wrong(key, "whole number")
        return value

    def whole_or_none(self, key: str) -> int | None:
        return None if self.value(key) is None else self.whole(key)

    def number(self, key: str) -> float:
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "number")
        if not math.isfinite(value) or abs(value) > 1e15:
            raise self.wrong(key, "number in range")
        return float(value)

    def number_or_none(self, key: str) -> float | None:
        return None if self.value(key) is None else self.number(key)

    def items(self, key: str) -> list[Any]:
        value = self.value(key)
        if not isinstance(value, list):
            raise self.wrong(key, "list")
        return value[:_MAX_ITEMS]

    def texts(self, key: str, *, limit: int = _MAX_TEXT) -> tuple[str, ...]:
        items = self.items(key)
        if not all(isinstance(item, str) for item in items):
            raise self.wrong(key, "list of texts")
        return tuple(plain(item, limit) for item in items)

    def wholes(self, key: str) -> tuple[int, ...]:
        items = self.items(key)
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise self.wrong(key, "list of whole numbers")
        return tuple(items)

    def each(self, key: str, read: Callable[[Reader], T]) -> tuple[T, ...]:
        where = f"{self._where}.{key}"
        return tuple(read(Reader(item, where)) for item in self.items(key))

    def object(self, key: str) -> Reader:
        return Reader(self.value(key), f"{self._where}.{key}")

    def list_or_none(self, key: str) -> list[Any] | None:
        return None if self.value(key) is None else self.items(key)

    def all_words(self) -> Mapping[str, str]:
        return MappingProxyType({plain(name): self.text(name) for name in self.names()})

    def object_or_none(self, key: str) -> Reader | None:
        return None if self.value(key) is None else self.object(key)

    def named(self, key: str, read: Callable[[Reader], T]) -> Mapping[str, T]:
        inner = self.object(key)
        return MappingProxyType({plain(name): read(inner.object(name)) for name in inner.names()})

    def words(self, key: str) -> Mapping[str, str]:
        inner = self.object(key)
        return MappingProxyType({plain(name): inner.text(name) for name in inner.names()})

    def words_or_none(self, key: str) -> Mapping[str, str] | None:
        return None if self.value(key) is None else self.words(key)


def plain(text: str, limit: int = _MAX_TEXT) -> str:
    """Return a text on one line without control characters, cut to `limit` characters."""
    cleaned = "".join(char if char.isprintable() else " " for char in text[: limit + 1]).strip()
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"
