"""TOML writing, for files that people read, compare and keep under version control: one form for one content.

Plain values stand before tables, as TOML needs it; otherwise the order is that of the mapping. A small table of plain
values is one line. The inverse of ``model.toml.loads``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_WIDTH = 110
"""A list that is longer stands one value a line, a table has a heading."""


def dumps(document: Mapping[str, Any]) -> str:
    """The text. ValueError, in one line, for a value that TOML does not have (None, a NaN, 2^64)."""
    return "\n".join(_table((), document)).lstrip("\n") + "\n"


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    inner: dict[str, Any] = {}
    for name, value in table.items():
        line = f"{_key(name)} = {_small(value)}" if _is_table(value) else ""
        if _is_tables(value) or (_is_table(value) and (not path or not line.endswith("}") or len(line) > _WIDTH)):
            inner[name] = value
        else:
            yield line or f"{_key(name)} = {_value(value, name)}"
    for name, value in inner.items():
        here = (*path, name)
        dotted = ".".join(map(_key, here))
        if _is_table(value):
            yield from ("", f"[{dotted}]")
            yield from _table(here, value)
        else:
            for one in value:
                yield from ("", f"[[{dotted}]]")
                yield from _table(here, one)


def _small(table: Mapping[str, Any]) -> str:
    """A table in one line; empty where it holds tables."""
    if any(_is_table(value) or _is_tables(value) for value in table.values()):
        return ""
    parts = (f"{_key(key)} = {_line(value, key)}" for key, value in table.items())
    return f"{{ {', '.join(parts)} }}" if table else "{}"


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: object) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(map(_is_table, value))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: object, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int) and _LEAST <= value <= _MOST:
        return str(value)
    if isinstance(value, float) and isfinite(value):
        return repr(value)
    if isinstance(value, Sequence) and not any(map(_is_table, value)):
        return _list([_value(one, name) for one in value])
    raise ValueError(f"{name}: TOML has no {str(value)[:40]}")


def _line(value: object, name: str) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_line(one, name) for one in value)}]"
    return _value(value, name)


def _list(values: list[str]) -> str:
    line = f"[{', '.join(values)}]"
    return line if len(line) <= _WIDTH else "\n".join(("[", *(f"  {one}," for one in values), "]"))


def _text(text: str) -> str:
    """A basic string, with everything escaped that could not stand in a line (TOML 1.0, "String")."""
    text.encode()  # a lone surrogate is no text: UnicodeEncodeError is a ValueError
    return '"' + "".join(map(_letter, text)) + '"'


def _letter(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    code = ord(letter)
    return f"\\u{code:04X}" if code < 0x20 or code == 0x7F else letter
