"""Names of nodes as a set, in the notation of cluster tools: node[001-016,020], rack[1-2]-node[01-04].

Every run of digits is a dimension. Padding with zeros is part of a name: node1 and node01 are two nodes. A range keeps
the width of its first number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from accelctl.errors import UsageError

MOST = 1_000_000
"""Names that a set may expand to; a cluster is smaller, a slip of the finger is not."""
_DIGITS = re.compile(r"([0-9]{1,18})")
"""Of a longer number each so many are one: a name may come from anybody, and Python makes no number of 4301 digits."""
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_SET = re.compile(rf"{_ITEM.pattern}(?:,{_ITEM.pattern})*")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_SPAN = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


class _Numbers(NamedTuple):
    """Values of one dimension, and to how many digits they are padded (0: they are not)."""

    width: int
    values: frozenset[int]


_Item = tuple[_Numbers, ...]


def natural(name: str) -> tuple[tuple[str, int, str], ...]:
    """A key that sorts node9 before node10."""
    parts = _DIGITS.split(name)
    numbers = [*parts[1::2], ""]
    return tuple((text, int(digits or 0), digits) for text, digits in zip(parts[::2], numbers, strict=True))


def fold(names: Iterable[str]) -> str:
    """The set as one text; names that hold brackets or commas stand in it as they are."""
    split: dict[tuple[str, ...], list[list[str]]] = {}
    for name in dict.fromkeys(names):
        parts = _DIGITS.split(name)
        split.setdefault(tuple(parts[::2]), []).append(parts[1::2])
    found = []
    for texts, rows in split.items():
        widths = [{len(row[at]) for row in rows if _padded(row[at])} for at in range(len(texts) - 1)]
        items = {
            tuple(
                _Numbers(len(digits) if len(digits) in known else 0, frozenset((int(digits),)))
                for digits, known in zip(row, widths, strict=True)
            )
            for row in rows
        }
        found += [_written(texts, item) for item in _merged(items, len(texts) - 1)]
    return ",".join(sorted(found, key=natural))


def _padded(digits: str) -> bool:
    return len(digits) > 1 and digits[0] == "0"


def _merged(items: set[_Item], dimensions: int) -> set[_Item]:
    """Items that differ in one dimension only become one, the last dimension first."""
    for at in reversed(range(dimensions)):
        alike: dict[tuple[object, ...], set[int]] = {}
        for item in items:
            alike.setdefault((*item[:at], item[at].width, *item[at + 1 :]), set()).update(item[at].values)
        items = {
            (*key[:at], _Numbers(key[at], frozenset(values)), *key[at + 1 :])  # type: ignore[arg-type]
            for key, values in alike.items()
        }
    return items


def _written(texts: tuple[str, ...], item: _Item) -> str:
    numbers = [_ranges(one) for one in item]
    return "".join(text + number for text, number in zip(texts, [*numbers, ""], strict=True))


def _ranges(numbers: _Numbers) -> str:
    spans: list[list[int]] = []
    for value in sorted(numbers.values):
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    written = ",".join(
        f"{low:0{numbers.width}d}" + (f"-{high:0{numbers.width}d}" if high != low else "") for low, high in spans
    )
    return written if written.isdigit() else f"[{written}]"


def expand(text: str) -> list[str]:
    """Every name of a set, in its order, each once. UsageError for what is none."""
    if _SET.fullmatch(text) is None:
        raise UsageError(f"{text[:60]!r} is no set of nodes", "write it as node[001-016,020]")
    names: dict[str, None] = {}
    for item in _ITEM.findall(text):
        parts: list[list[str]] = []
        for numbers, plain in _PART.findall(item.strip()):
            parts.append([plain] if plain else _expanded(numbers, text))
        size = 1
        for part in parts:
            size *= len(part) or 1
        if size + len(names) > MOST:
            raise UsageError(f"{text[:60]}: more than {MOST} nodes")
        names.update(dict.fromkeys("".join(one) for one in product(*parts)))
    return list(names)


def _expanded(numbers: str, text: str) -> list[str]:
    found: list[str] = []
    for span in numbers.split(","):
        match = _SPAN.fullmatch(span)
        if match is None:
            raise UsageError(f"{text[:60]!r}: {span[:20]!r} is no range of numbers", "write it as node[001-016,020]")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise UsageError(f"{text[:60]!r}: {span[:20]!r} goes down", "write it as node[001-016,020]")
        if int(high) - int(low) >= MOST:
            raise UsageError(f"{text[:60]}: more than {MOST} nodes")
        width = len(low) if _padded(low) else 0
        found += [f"{number:0{width}d}" for number in range(int(low), int(high) + 1)]
    return found
