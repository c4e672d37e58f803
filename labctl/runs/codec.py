"""Frozen dataclasses to and from plain JSON data, checked against their type hints.

Unknown keys are dropped, so that a record with an additional field of the same format still reads.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Return dataclasses as dicts and tuples as lists, all the way down."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [encode(each) for each in value]
    if isinstance(value, dict):
        return {key: encode(each) for key, each in value.items()}
    return value


def decode(cls: type[T], data: Any, where: str = "") -> T:
    """Return an instance of a dataclass.

    Args:
        cls: The dataclass; its fields are scalars, tuples, `dict[str, ...]`, unions and dataclasses.
        data: What `json.loads` gave.
        where: Name of the place, for messages.

    Raises:
        ValueError: A value is missing or of the wrong type; the message names its place.
    """
    if not isinstance(data, dict):
        message = f"{where or 'document'}: found {type(data).__name__}, expected an object"
        raise ValueError(message)  # noqa: TRY004 the value is wrong, not a caller's type
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        place = f"{where}.{field.name}" if where else field.name
        if field.name in data:
            values[field.name] = _value(hints[field.name], data[field.name], place)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{place} is missing")
    return cls(**values)


def _value(hint: Any, data: Any, place: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        return _union(args, data, place)
    if origin is typing.Literal:
        return _expect(data in args, data, place, f"one of {', '.join(map(str, args))}")
    if origin is tuple:
        _expect(isinstance(data, list), data, place, "a list")
        return tuple(_value(args[0], each, f"{place}[{i}]") for i, each in enumerate(data))
    if origin is dict:
        _expect(isinstance(data, dict), data, place, "an object")
        return {str(key): _value(args[1], each, f"{place}.{key}") for key, each in data.items()}
    if dataclasses.is_dataclass(hint):
        return decode(typing.cast("type[Any]", hint), data, place)
    if hint is float:
        number = isinstance(data, int | float) and not isinstance(data, bool)
        _expect(number and abs(data) <= sys.float_info.max, data, place, "a finite number")
        return float(data)
    if hint is int:
        return _expect(
            isinstance(data, int) and not isinstance(data, bool), data, place, "an integer"
        )
    return _expect(isinstance(data, hint), data, place, hint.__name__)


def _union(args: tuple[Any, ...], data: Any, place: str) -> Any:
    if data is None and types.NoneType in args:
        return None
    problem = ValueError(f"{place} is null")
    for arg in args:
        if arg is not types.NoneType:
            try:
                return _value(arg, data, place)
            except ValueError as error:
                problem = error
    raise problem


def _expect(holds: bool, data: Any, place: str, expected: str) -> Any:
    if not holds:
        raise ValueError(f"{place}: found {data!r:.60}, expected {expected}")
    return data
