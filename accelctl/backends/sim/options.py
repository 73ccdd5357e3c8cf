"""What can be ordered of the simulated chip, read from KEY=VALUE pairs of text.

Every mistake is one line and says what would have been right: these words come from a command line.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from accelctl.errors import UsageError
from accelctl.hal.devfile import PAGE
from accelctl.model import quantity

STAGES = ("object", "cpu_map", "gpu_map", "export", "queue")
"""Stages that the driver serves: what it can forget to give back, or refuse to give."""
ALIASES = {"fd": "export"}
NOISES: dict[str, tuple[float, float]] = {"ar1": (0.9, 0.0), "steps": (50_000.0, 1.0), "sawtooth": (10_000.0, 2.0)}
"""Kind of noise -> default of its second number, and the least it may be."""
MOST_VRAM = 1 << 40
MOST_TICKS = 1 << 48


class NoiseSpec(NamedTuple):
    """One source: ``size`` in bytes, and what else the kind wants (correlation, or ticks)."""

    kind: str
    size: int
    other: float


class Refusal(NamedTuple):
    """Every ``nth`` acquisition of a stage fails with ``errno``."""

    nth: int
    errno: int


class SimOptions(NamedTuple):
    """How the chip behaves. Sizes in bytes, times in ticks."""

    vram_bytes: int = 1 << 30
    va_bytes: int = 1 << 38
    """Device addresses that a VM has."""
    seed: int = 1
    leak: Mapping[str, int] = {}
    """Stage -> every so many releases are acknowledged and not done."""
    fail: Mapping[str, Refusal] = {}
    noise: tuple[NoiseSpec, ...] = ()
    noise_ticks: int = 8
    """Ticks at which AR(1) noise has its correlation: about one cycle, so it is that from reading to reading."""
    others: int = -1
    """Bytes that others have from the start."""
    foreign: float = 0.0
    """Bytes that others take per 1000 ticks."""
    foreign_step: tuple[tuple[int, int], ...] = ()
    """(bytes, tick): what others take or (negative) give back at once."""
    latency: int = 16
    """Ticks that a job takes."""
    slots: int = 65536
    """Mappings that one VM holds."""
    lost: int = 0
    """Tick at which the device dies; 0: it does not."""
    books: str = "all"
    """device: the session tells nothing but the device-wide counter, which is noisy."""


def parse(options: Mapping[str, str]) -> SimOptions:
    """UsageError, one line, for a key that there is not or a value that makes no sense."""
    found: dict[str, Any] = {}
    for key, text in options.items():
        reader = _READERS.get(key)
        if reader is None:
            raise UsageError(f"--sim {key[:40]}: no such option", f"one of {', '.join(_READERS)}")
        found[key] = reader(f"--sim {key}", text)
    made = SimOptions(**found)
    if made.others < 0:  # noise around nothing would be cut off at zero
        moved = made.noise or made.foreign or made.foreign_step
        made = made._replace(others=made.vram_bytes // 4 // PAGE * PAGE if moved else 0)
    if made.others > made.vram_bytes:
        raise UsageError(f"--sim others: {made.others} bytes are more than the {made.vram_bytes} that there are")
    return made


def _wrong(option: str, text: str, right: str) -> UsageError:
    return UsageError(f"{option}={text[:40]!r}: not {right}")


def _between(low: int, high: int, read: Callable[[str, str], int] = quantity.count) -> Callable[[str, str], int]:
    def reader(option: str, text: str) -> int:
        value = read(option, text)
        if not low <= value <= high:
            raise UsageError(f"{option}={text[:40]}: must be between {low} and {high}")
        return value

    return reader


def _pages(option: str, text: str) -> int:
    value = _between(PAGE, MOST_VRAM, quantity.size_bytes)(option, text)
    if value % PAGE:
        raise _wrong(option, text, f"whole pages of {PAGE} bytes")
    return value


def _stage(option: str, text: str, word: str, known: tuple[str, ...]) -> str:
    stage = ALIASES.get(word, word)
    if stage not in known:
        raise _wrong(option, text, f"STAGE:N with a stage of {', '.join(known)}")
    return stage


def _leak(option: str, text: str) -> dict[str, int]:
    """``STAGE:N``, several joined by "+"."""
    found = {}
    for part in text.split("+"):
        stage, _, nth = part.partition(":")
        found[_stage(option, text, stage, (*STAGES, "va"))] = _nth(option, nth)
    return found


def _fail(option: str, text: str) -> dict[str, Refusal]:
    """``STAGE:N`` or ``STAGE:N:ERRNO``, several joined by "+"."""
    found = {}
    for part in text.split("+"):
        stage, _, rest = part.partition(":")
        nth, _, name = rest.partition(":")
        number = getattr(errno, name, None) if name else errno.ENOMEM
        if not isinstance(number, int):
            raise _wrong(option, text, "STAGE:N:ERRNO with the name of an errno")
        found[_stage(option, text, stage, STAGES)] = Refusal(_nth(option, nth), number)
    return found


def _nth(option: str, text: str) -> int:
    return _between(1, 10**9)(option, text or "?")


def _noise(option: str, text: str) -> tuple[NoiseSpec, ...]:
    """``none``, or sources joined by "+": ``ar1:SIGMA[,PHI]``, ``steps:SIZE[,EVERY]``, ``sawtooth:HEIGHT[,PERIOD]``."""
    if text == "none":
        return ()
    found = []
    for part in text.split("+"):
        kind, _, numbers = part.partition(":")
        size, comma, other = numbers.partition(",")
        if kind not in NOISES or not size or (comma and not other):
            raise _wrong(option, text, "none, ar1:SIGMA[,PHI], steps:SIZE[,EVERY] or sawtooth:HEIGHT[,PERIOD]")
        default, least = NOISES[kind]
        value = _real(option, other) if other else default
        if not least <= value <= MOST_TICKS or (kind == "ar1" and value >= 1):  # written so that NaN is refused too
            right = "a correlation from 0 to below 1" if kind == "ar1" else f"at least {least:g} ticks"
            raise _wrong(option, text, right)
        found.append(NoiseSpec(kind, _between(0, MOST_VRAM, quantity.size_bytes)(option, size), value))
    return tuple(found)


def _real(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _wrong(option, text, "a number") from None


def _steps(option: str, text: str) -> tuple[tuple[int, int], ...]:
    """``BYTES@TICK``, several joined by "+"; BYTES may be negative."""
    found = []
    for part in text.split("+"):
        size, at, tick = part.partition("@")
        if not at:
            raise _wrong(option, text, "BYTES@TICK")
        amount = _between(0, MOST_VRAM, quantity.size_bytes)(option, size.removeprefix("-"))
        found.append((-amount if size.startswith("-") else amount, _between(0, MOST_TICKS)(option, tick)))
    return tuple(found)


def _books(option: str, text: str) -> str:
    if text not in ("all", "device", "noisy"):
        raise _wrong(option, text, "all or device")
    return "all" if text == "all" else "device"


_READERS: dict[str, Callable[[str, str], Any]] = {
    "vram_bytes": _pages,
    "va_bytes": _pages,
    "seed": _between(0, 1 << 62),
    "leak": _leak,
    "fail": _fail,
    "noise": _noise,
    "noise_ticks": _between(1, MOST_TICKS),
    "others": _between(0, MOST_VRAM, quantity.size_bytes),
    "foreign": _between(0, MOST_VRAM, quantity.size_bytes),
    "foreign_step": _steps,
    "latency": _between(0, MOST_TICKS),
    "slots": _between(1, 1 << 20),
    "lost": _between(1, MOST_TICKS),
    "books": _books,
}
KEYS = tuple(_READERS)
