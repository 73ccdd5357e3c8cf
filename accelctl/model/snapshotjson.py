"""Snapshots as plain JSON values and back.

Both ways follow the fields of the records themselves, so a field that is added there needs nothing here. Reading trusts
nothing: a recording may come from anybody. Whatever does not fit is one UsageError that names the place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from accelctl.errors import UsageError
from accelctl.model.snapshot import Snapshot

MOST = (1 << 64) - 1
"""Counts are at most what the kernel's u64 holds."""
_Reader = Callable[[Any], Any]
T = TypeVar("T")


class _Misfit(Exception):
    """A value that does not fit; its place is put together on the way out, so reading what fits costs nothing."""

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text)
        self.text, self.hint, self.place = text, hint, ""

    def within(self, part: str) -> _Misfit:
        """It is in that part of something."""
        self.place = part + self.place
        return self


class _Field(NamedTuple):
    name: str
    default: Any
    """``_REQUIRED`` where there is none."""
    read: _Reader


_REQUIRED = object()


def plain(snapshot: Snapshot, *, sparse: bool = False) -> dict[str, Any]:
    """JSON values of a Snapshot. ``sparse``: without the fields that have their default."""
    found: dict[str, Any] = _plain(snapshot, sparse)
    return found


def read(value: Any, where: str = "snapshot") -> Snapshot:
    """The Snapshot that these JSON values (in full or sparse) are. UsageError where they are none; ``where`` begins its
    message."""
    return read_as(Snapshot, value, where)


def read_as(kind: type[T], value: Any, where: str) -> T:
    """The same for any record whose fields are of the kinds that a Snapshot's are."""
    try:
        made = _record(cast("Any", kind))(value)
    except _Misfit as misfit:
        raise UsageError(f"{where}{misfit.place}: {misfit.text}", misfit.hint) from None
    assert isinstance(made, kind)
    return made


def _plain(value: Any, sparse: bool) -> Any:
    kind = type(value)
    if kind in (str, int, bool, NoneType):
        return value
    if kind is float:
        return value if isfinite(value) else None
    if kind is tuple or kind is list:
        return [_plain(one, sparse) for one in value]
    if kind is dict:
        return {name: _plain(one, sparse) for name, one in value.items()}
    if dataclasses.is_dataclass(kind):
        found = {}
        for name, default, _ in _fields(kind):
            one = getattr(value, name)
            if not sparse or one != default:
                found[name] = _plain(one, sparse)
        return found
    return {name: getattr(value, name) for name in value._fields}


@cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return tuple(_Field(one.name, _default(one), _reader(hints[one.name])) for one in dataclasses.fields(kind))
    defaults = kind._field_defaults
    return tuple(_Field(name, defaults.get(name, _REQUIRED), _reader(hints[name])) for name in kind._fields)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _REQUIRED


def _reader(hint: Any) -> _Reader:
    """What turns a JSON value into a value of that type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        (other,) = (one for one in inner if one is not NoneType)
        return _optional(_reader(other))
    if origin is tuple:
        return _many(_reader(inner[0])) if inner[1:] == (...,) else _row(tuple(map(_reader, inner)))
    if origin is dict:
        return _mapping(_reader(inner[1]))
    if hint in _SCALARS:
        return _SCALARS[hint]
    return _record(hint)


def _wrong(wanted: str, value: Any) -> _Misfit:
    kinds = {list: "a list", dict: "an object", NoneType: "null"}
    return _Misfit(f"{wanted} is expected, not {kinds.get(type(value)) or repr(value)[:40]}")


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _wrong("text", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair: legal JSON, and nothing that can be shown
            raise _wrong("text", value) from None
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not -MOST <= value <= MOST:
        raise _wrong("a whole number of 64 bits", value)
    return value


def _number(value: Any) -> float:
    if type(value) is int and -MOST <= value <= MOST:
        return value
    if type(value) is not float or not isfinite(value):
        raise _wrong("a number", value)
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise _wrong("true or false", value)
    return value


_SCALARS: dict[Any, _Reader] = {str: _text, int: _whole, float: _number, bool: _truth}


def _optional(inner: _Reader) -> _Reader:
    return lambda value: None if value is None else inner(value)


def _many(inner: _Reader) -> _Reader:
    def convert(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong("a list", value)
        found: list[Any] = []
        try:
            for one in value:
                found.append(inner(one))
        except _Misfit as misfit:
            raise misfit.within(f"[{len(found)}]") from None
        return tuple(found)

    return convert


def _row(inner: tuple[_Reader, ...]) -> _Reader:
    def convert(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(inner):
            raise _wrong(f"a list of {len(inner)} values", value)
        return tuple([one(part) for one, part in zip(inner, value, strict=True)])

    return convert


def _mapping(inner: _Reader) -> _Reader:
    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong("an object", value)
        found = {}
        for name, one in value.items():
            try:
                found[_text(name)] = inner(one)
            except _Misfit as misfit:
                raise misfit.within(f"[{name[:80]!r}]") from None
        return found

    return convert


@cache
def _record(kind: Any) -> _Reader:
    known = {field.name: field for field in _fields(kind)}
    required = tuple(field.name for field in known.values() if field.default is _REQUIRED)

    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong("an object", value)
        found = {}
        for name, one in value.items():
            field = known.get(name)
            if field is None:
                raise _Misfit(f"no field is called {name[:40]!r}", "a newer accelctl may have written it")
            try:
                found[name] = field.read(one)
            except _Misfit as misfit:
                raise misfit.within(f".{name}") from None
        for name in required:
            if name not in found:
                raise _Misfit(f"{name} is missing")
        return kind(**found)

    return convert
