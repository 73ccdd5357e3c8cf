"""From the text of a kernel file to a typed value: pure functions, one per format.

Every converter takes the text without NUL bytes and outer white space. It returns None where the text says that there
is no value ("", "Unknown", "(null)", a fixed "not set" number), and raises ValueError where the text is not what the
format allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

#: Texts by which kernels and firmware say "no value" (seen in captured machines, see docs/evidence.md).
NO_VALUE = frozenset({"", "unknown", "(null)", "n/a", "none given", "not specified"})

_DPM = re.compile(r"^(\S+):\s*(\d{1,9}(?:\.\d{1,9})?)\s*mhz\s*(\*)?\s*$", re.IGNORECASE | re.ASCII)
_SPEED = re.compile(r"^(\d{1,4}(?:\.\d{1,3})?)\s*GT/s\b", re.ASCII)
_WHOLE = {10: re.compile(r"[+-]?[0-9]{1,20}"), 16: re.compile(r"(?:0[xX])?[0-9a-fA-F]{1,16}")}
_INT64 = 1 << 64


def _bounded(number: int) -> int:
    if not -_INT64 < number < _INT64:
        raise ValueError("number wider than 64 bit")
    return number


def whole(text: str, base: int = 10) -> int:
    """A whole number as kernels print it, of at most 64 bit; ValueError for anything else.

    int() alone would also take 1_000, digits of other scripts, and thousands of digits (which then cannot be printed).
    """
    if base == 10 and _is_short(text):
        return int(text)
    if _WHOLE[base].fullmatch(text) is None:
        raise ValueError("not a number")
    return _bounded(int(text, base))


def _is_short(text: str) -> bool:
    """Digits alone, few enough for 64 bit: nearly every number is."""
    return text.isdigit() and len(text) <= 18 and text.isascii()


def is_index(name: str) -> bool:
    """Is a name a number that the kernel counts with (``nodes/0``)? str.isdigit() is also true of other scripts."""
    return len(name) <= 9 and name.isascii() and name.isdigit()


def to_text(text: str) -> str | None:
    """The text itself; None where there is none. A driver's own "unknown" stays what the driver said."""
    return None if text in ("", "(null)") else text


def to_int(text: str) -> int | None:
    """A decimal number (or 0x-prefixed one)."""
    if _is_short(text):
        return int(text)
    if text.lower() in NO_VALUE:
        return None
    return whole(text, 16 if text[:2].lower() == "0x" else 10)


def to_hex(text: str) -> str | None:
    """An identifier: lower-case 0x text, kept as text because its width carries meaning."""
    if text.lower() in NO_VALUE:
        return None
    whole(text, 16)
    return "0x" + text.lower().removeprefix("0x")


def to_bool(text: str) -> bool | None:
    """0/1 flags, also written y/n or yes/no or enabled/disabled."""
    word = text.lower()
    if word in NO_VALUE:
        return None
    if word in ("1", "y", "yes", "on", "enabled"):
        return True
    if word in ("0", "n", "no", "off", "disabled"):
        return False
    raise ValueError("not a flag")


def to_speed(text: str) -> float | None:
    """A PCIe rate in GT/s. "Unknown" and, on the oldest kernels, a rate without decimals are legal."""
    if text.lower().startswith("unknown") or not text:
        return None
    match = _SPEED.match(text)
    if match is None:
        raise ValueError("not a link speed")
    return float(match.group(1))


def to_width(text: str) -> int | None:
    """Lanes of a PCIe link. 63 is what a link register full of ones reads as: the device does not answer."""
    width = to_int(text)
    if width is not None and not 0 <= width <= 32:
        raise ValueError("no width a link can have; a register that reads all ones")
    return width


def scaled(factor: float) -> Callable[[str], float | int | None]:
    """A number times ``factor``; stays an integer where the result is exact and the factor whole."""

    def convert(text: str) -> float | int | None:
        number = to_int(text)
        if number is None:
            return None
        if isinstance(factor, int):
            return number * factor
        # A division is exact where a product with 0.001 is not: 53000 milli-degrees are 53.0, never 53.000000000000004.
        return number / round(1 / factor)

    return convert


def to_dpm(text: str) -> dict[str, Any]:
    """An amdgpu pp_dpm_* table: ``levels`` as [label, MHz, active]; several or none may be active (kernel doc
    gpu/amdgpu/thermal).
    """
    levels: list[list[Any]] = []
    for line in text.splitlines():
        match = _DPM.match(line.strip())
        if match is not None:
            rate = float(match.group(2))
            levels.append([match.group(1), int(rate) if rate.is_integer() else rate, match.group(3) is not None])
        elif line.strip():
            raise ValueError("not a clock table")
    return {"levels": levels, "active_mhz": [level[1] for level in levels if level[2]]}


def to_ints(text: str) -> list[int] | None:
    """Numbers separated by blanks."""
    return [whole(word, 16 if word[:2].lower() == "0x" else 10) for word in text.split()] or None


def to_kv(text: str) -> dict[str, str] | None:
    """Lines of "key: value" or "key value"; later lines win, lines without a value keep an empty text."""
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        head, colon, tail = line.partition(":")
        if not colon:
            head, _, tail = line.strip().partition(" ")
        if head.strip():
            pairs[head.strip()] = tail.strip()
    return pairs or None


def to_list(text: str) -> list[str] | None:
    """Words separated by blanks."""
    return text.split() or None


CONVERTERS: dict[str, Callable[[str], Any]] = {
    "text": to_text,
    "int": to_int,
    "hex": to_hex,
    "bool": to_bool,
    "list": to_list,
    "list_int": to_ints,
    "kv": to_kv,
    "dpm": to_dpm,
    "gts": to_speed,
    "lanes": to_width,
    "hz": to_int,
    "khz": scaled(1000),
    "mhz": scaled(1_000_000),
    "bytes": to_int,
    "kib": scaled(1024),
    "mib": scaled(1024 * 1024),
    "milli": scaled(0.001),
    "micro": scaled(0.000001),
    "percent": to_int,
}
