"""Rates, amounts and forecasts in words that someone who has never seen this tool understands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accelctl.abi.lifecycle import CPU_MAP, FD, GPU_MAP, HANDLE, HOST_PAGES, IOVA, QUEUE, VA, Stage
from accelctl.memory import in_bytes
from accelctl.model.verdict import Forecast, Series

BYTES = "bytes"

FITS: dict[str, tuple[str, ...]] = {
    HANDLE: (HANDLE,),
    FD: (FD,),
    CPU_MAP: (CPU_MAP,),
    GPU_MAP: (GPU_MAP, IOVA),
    IOVA: (IOVA, GPU_MAP),
    VA: (VA,),
    QUEUE: (QUEUE,),
    HOST_PAGES: (HOST_PAGES, IOVA),
    BYTES: (HANDLE, FD, HOST_PAGES, GPU_MAP, CPU_MAP),
}
"""Kind of a counter -> kinds of stages that can hold what it counts. Memory stays with the last reference, which may be
a mapping or a descriptor (ROCm/legacy-rocm-build#6021)."""

ERRORS = {FD: "EMFILE", CPU_MAP: "ENOMEM"}
"""How the next one fails: open(2) and mmap(2). Of device resources each driver has its own answer."""


def stages_for(kind: str, stages: Iterable[Stage]) -> tuple[str, ...]:
    """Names of the stages that can hold what such a counter counts, in the order of the lifecycle. ``kind`` is one of
    the lifecycle's or "bytes"; an unknown one names none."""
    fits = FITS.get(kind, ())
    return tuple(dict.fromkeys(stage.name for stage in stages if stage.kind in fits))


def amount(count: float, unit: str) -> str:
    """``1 handle``, ``2.5 handles``, ``64 KiB``."""
    if unit == BYTES:
        return _size(count)
    word = unit[:-1] if count == 1 and unit.endswith("s") else unit
    return f"{_number(count)} {word}"


def rate(per_cycle: float, unit: str, exact: bool = True) -> str:
    """``1 handle every 100 cycles``, ``16 MiB every cycle``, ``about 64 KiB every 1,000 cycles``."""
    about = "" if exact else "about "
    if unit == BYTES:
        if abs(per_cycle) >= 4096:
            return f"{about}{_size(per_cycle)} every cycle"
        return f"{about}{_size(per_cycle * 1000)} every 1,000 cycles"
    if per_cycle >= 1:
        return f"{about}{amount(per_cycle, unit)} every cycle"
    every = 1 / per_cycle
    return f"{about}{amount(1, unit)} every {_number(every)} cycles"


def forecast(series: Series, per_cycle: float) -> Forecast | None:
    """When it is exhausted at this rate; None without a capacity or without growth. Whole cycles that still fit."""
    samples = series.samples
    if series.capacity is None or per_cycle <= 0 or not samples:
        return None
    first, last = samples[0], samples[-1]
    total, left = (_fitting(series.capacity - at.value, per_cycle) for at in (first, last))
    cycles, seconds = last.cycles - first.cycles, last.seconds - first.seconds
    pace = seconds / cycles if cycles > 0 and seconds > 0 else None
    return Forecast(total, left, pace and left * pace, ERRORS.get(series.kind, ""))


def outlook(at_stake: Forecast | None, exact: bool = True) -> str:
    """``; from the start 1,012 cycles fit, the next one fails with EMFILE (1,002 left, 5 min)``; empty without one."""
    if at_stake is None:
        return ""
    how = f" with {at_stake.error}" if at_stake.error else ""
    cycles, left = (at_stake.cycles, at_stake.left) if exact else map(_rounded, (at_stake.cycles, at_stake.left))
    time = f", {duration(at_stake.seconds)}" if at_stake.seconds is not None else ""
    about, then = ("", "the next one fails") if exact else ("about ", "then it fails")
    return f"; {about}{cycles:,} cycles fit from the start, {then}{how} ({left:,} left{time})"


def _rounded(count: int) -> int:
    """Three digits: more would claim what an estimate does not know."""
    return int(float(f"{count:.3g}"))


def duration(seconds: float) -> str:
    """``30 s``, ``5 min``, ``25 h``, ``12 days``."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def listed(names: Sequence[str]) -> str:
    """``, stage object`` or ``, stage object or gpu_map``; empty for none."""
    return f", stage {' or '.join(names)}" if names else ""


def _fitting(room: float, per_cycle: float) -> int:
    # An estimate of 0.1 per cycle must not lose a whole cycle to binary fractions.
    return max(0, int(room / per_cycle * (1 + 1e-12) + 1e-9))


def _size(count: float) -> str:
    """Whole units exactly ("1012 KiB"), else three digits ("74.2 MiB")."""
    exact = in_bytes(int(abs(count))) if count == int(count) and int(count) % 1024 == 0 else ""
    if exact and len(exact.split()[0]) <= 4:
        return f"-{exact}" if count < 0 else exact
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= size:
            return f"{_number(count / size)} {unit}"
    return f"{round(count):,} bytes"


def _number(count: float) -> str:
    """Three digits, but whole numbers whole."""
    if abs(count - round(count)) < 1e-9 * max(1.0, abs(count)):
        return f"{round(count):,}"
    return f"{float(f'{count:.3g}'):,g}"
