"""Quantities as people type them on a command line: 256MiB, 90s, 10k; and options that have some of them."""

from __future__ import annotations

import math
import re

from accelctl.errors import UsageError

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)\Z", re.ASCII)
_BYTES = {"": 1, "b": 1} | {
    unit: 1 << shift
    for letter, shift in (("k", 10), ("m", 20), ("g", 30), ("t", 40))
    for unit in (letter, f"{letter}b", f"{letter}ib")
}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_COUNT = {"": 1, "k": 1000, "m": 1000_000}


def size_bytes(option: str, text: str) -> int:
    """Bytes; units are powers of 1024 whichever way they are written. UsageError, one line, for anything else."""
    return int(_parse(option, text, _BYTES, "a size such as 256MiB"))


def seconds(option: str, text: str) -> float:
    """Seconds. UsageError for anything else."""
    return _parse(option, text, _SECONDS, "a time such as 30s or 5m")


def count(option: str, text: str) -> int:
    """A whole number; k and M are thousands and millions. UsageError for anything else."""
    value = _parse(option, text, _COUNT, "a number such as 2000 or 20k")
    if value != int(value):
        raise UsageError(f"{option} {text}: not a whole number")
    return int(value)


def pairs(option: str, text: str) -> dict[str, str]:
    """Options in one word: KEY=VALUE;KEY=VALUE. UsageError for anything else."""
    found = {}
    for part in filter(None, text.split(";")):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} {part!r}: not KEY=VALUE", f"{option} 'leak=object:1000;noise=ar1:4096'")
        found[key.strip()] = value.strip()
    return found


def _parse(option: str, text: str, units: dict[str, int] | dict[str, float], example: str) -> float:
    match = _NUMBER.match(text.strip())
    factor = units.get(match.group(2).lower()) if match else None
    if match is None or factor is None or len(text) > 40:
        raise UsageError(f"{option} {text[:40]!r}: not {example}")
    value = float(match.group(1)) * factor
    if not math.isfinite(value) or value > 1 << 62:
        raise UsageError(f"{option} {text[:40]!r}: too large")
    return value
