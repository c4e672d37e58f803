"""Frozen dataclasses to and from plain JSON data, checked against their type hints.

Unknown keys are dropped, so that a record with an additional field of the same format still reads. What a type
asks for is worked out once: a store of a thousand records is read in a moment.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_Decoder = Callable[[Any], Any]
_MOST_INT = 2**63


class _WrongError(Exception):
    """A value is not what its type asks for.

    Args:
        what: What is wrong with it; follows the name of its place.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.place = ""

    def inside(self, part: str) -> _WrongError:
        """Return self with the name of the place around it put before its own."""
        self.place = part + self.place
        return self


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
        cls: The dataclass; its fields are scalars, tuples, `dict[str, ...]`, unions and dataclasses, or one of
            these annotated with checks of `labctl.runs.bounds`.
        data: What `json.loads` gave.
        where: Name of the place, for messages.

    Raises:
        ValueError: A value is missing, of the wrong type or out of bounds; the message names its place.
    """
    try:
        instance: T = _decoder(typing.cast("typing.Hashable", cls))(data)
    except _WrongError as error:
        place = where + (error.place if where else error.place.removeprefix("."))
        raise ValueError(f"{place or 'document'}{error.what}") from None
    return instance


@functools.cache
def _decoder(hint: Any) -> _Decoder:
    """Return the function that makes a value of a type, or raises _WrongError."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        return _union(args)
    if origin is typing.Annotated:
        return _checked(_decoder(args[0]), args[1:])
    if origin is typing.Literal:
        return _literal(args)
    if origin is tuple:
        return _tuple(_decoder(args[0]))
    if origin is dict:
        return _dict(_decoder(args[1]))
    if dataclasses.is_dataclass(hint):
        return _dataclass(typing.cast("type[Any]", hint))
    return {float: _float, int: _int, str: _str}.get(hint) or _plain(hint)


def _dataclass(cls: type[Any]) -> _Decoder:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [
        (
            field.name,
            _decoder(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(cls)
    ]

    def decoded(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _WrongError(f": found {type(data).__name__}, expected an object")
        values = {}
        for name, decoder, needed in fields:
            if name in data:
                try:
                    values[name] = decoder(data[name])
                except _WrongError as error:
                    raise error.inside(f".{name}") from None
            elif needed:
                raise _WrongError(" is missing").inside(f".{name}")
        return cls(**values)

    return decoded


def _union(args: tuple[Any, ...]) -> _Decoder:
    decoders = [_decoder(arg) for arg in args if arg is not types.NoneType]
    optional = types.NoneType in args

    def decoded(data: Any) -> Any:
        if data is None and optional:
            return None
        problem = _WrongError(" is null")
        for decoder in decoders:
            try:
                return decoder(data)
            except _WrongError as error:
                problem = error
        raise problem

    return decoded


def _checked(inner: _Decoder, checks: tuple[Any, ...]) -> _Decoder:
    """Return a decoder that also asks each check of `labctl.runs.bounds`."""

    def decoded(data: Any) -> Any:
        value = inner(data)
        for check in checks:
            if not check.holds(value):
                raise _wrong(data, check.expected)
        return value

    return decoded


def _literal(choices: tuple[Any, ...]) -> _Decoder:
    expected = f"one of {', '.join(map(str, choices))}"

    def decoded(data: Any) -> Any:
        if data not in choices:
            raise _wrong(data, expected)
        return data

    return decoded


def _tuple(inner: _Decoder) -> _Decoder:
    def decoded(data: Any) -> Any:
        if not isinstance(data, list):
            raise _wrong(data, "a list")
        values = []
        for index, each in enumerate(data):
            try:
                values.append(inner(each))
            except _WrongError as error:
                raise error.inside(f"[{index}]") from None
        return tuple(values)

    return decoded


def _dict(inner: _Decoder) -> _Decoder:
    def decoded(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _wrong(data, "an object")
        values = {}
        for key, each in data.items():
            try:
                values[_str(key)] = inner(each)
            except _WrongError as error:
                raise error.inside(f".{key}") from None
        return values

    return decoded


def _float(data: Any) -> float:
    number = isinstance(data, int | float) and not isinstance(data, bool)
    if not number or not abs(data) <= sys.float_info.max:
        raise _wrong(data, "a finite number")
    return float(data)


def _int(data: Any) -> int:
    if not isinstance(data, int) or isinstance(data, bool):
        raise _wrong(data, "an integer")
    if abs(data) >= _MOST_INT:
        raise _wrong(data, "an integer of 63 bits")
    return data


def _str(data: Any) -> str:
    if not isinstance(data, str):
        raise _wrong(data, "str")
    try:
        data.encode()
    except UnicodeEncodeError:
        raise _wrong(data, "text without half characters") from None
    return data


def _plain(kind: type[Any]) -> _Decoder:
    def decoded(data: Any) -> Any:
        if not isinstance(data, kind):
            raise _wrong(data, kind.__name__)
        return data

    return decoded


def _wrong(data: Any, expected: str) -> _WrongError:
    return _WrongError(f": found {data!r:.60}, expected {expected}")
