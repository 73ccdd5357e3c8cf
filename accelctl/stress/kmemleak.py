"""Memory that the kernel lost while we ran, as kmemleak tells it, and which of it is ours.

An object is listed only when it is older than 5 seconds, and when two scans found it unchanged with nothing pointing to
it (mm/kmemleak.c: MSECS_MIN_AGE, update_checksum). So a search waits, and scans twice. What was lost before the run
is subtracted; what a kernel thread lost meanwhile has another comm and pid, and is reported as not ours.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from accelctl.hal import kmemleak as hal
from accelctl.hal.kmemleak import available

__all__ = ["Entry", "Found", "available", "parse", "search", "since", "sort_out"]

AGE_S = 5.5
_ENTRY = re.compile(r"^unreferenced object(?: \(percpu\))? 0x([0-9a-f]{1,16}) \(size (\d{1,20})\):$", re.MULTILINE)
_WHO = re.compile(r"""\s*comm "(.*?)", pid (-?\d{1,10}), jiffies (\d{1,20})(?: \(age [^)\n]*\))?$""", re.S | re.M)
_FRAME = re.compile(r"^    (?:\[<[0-9a-fx]+>\] )?([^\s\[][^\n]*)$", re.MULTILINE)


class Entry(NamedTuple):
    """One lost object. ``pid`` is the thread that allocated it; ``backtrace`` where, innermost first."""

    address: int
    size: int
    comm: str
    pid: int
    jiffies: int
    backtrace: tuple[str, ...]

    def __str__(self) -> str:
        where = " < ".join(frame.partition("+")[0] for frame in self.backtrace[:8])
        return f'{self.size} bytes at {self.address:#x} by "{self.comm}" (pid {self.pid}): {where or "no backtrace"}'


class Found(NamedTuple):
    """What is new since the baseline."""

    ours: tuple[Entry, ...]
    others: tuple[Entry, ...]


def parse(text: str) -> tuple[Entry, ...]:
    """The entries of a report. Raises ValueError where it is not one."""
    heads = list(_ENTRY.finditer(text))
    if text[: heads[0].start() if heads else None].strip():
        raise ValueError(f"not a report of kmemleak: {text[:60]!r}")
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return tuple(_entry(head, text[head.end() : end]) for head, end in zip(heads, ends, strict=False))


def _entry(head: re.Match[str], body: str) -> Entry:
    who = _WHO.match(body)
    if who is None:
        raise ValueError(f"an object without its process: {body[:60]!r}")
    _, _, frames = body[who.end() :].partition("\n  backtrace")
    lines = frames.partition("\n")[2]  # the first line goes on with "(crc 0):" or ":"
    trace = tuple(match[1].strip() for match in _FRAME.finditer(lines))
    return Entry(int(head[1], 16), int(head[2]), who[1], int(who[2]), int(who[3]), trace)


def search(
    *,
    age_s: float = AGE_S,
    sleep: Callable[[float], None] = time.sleep,
    scan: Callable[[], None] = hal.scan,
    report: Callable[[], str] = hal.report,
) -> tuple[Entry, ...]:
    """Wait until everything lost is old enough, scan twice, read. Raises OSError, ValueError."""
    sleep(age_s)
    scan()
    scan()
    return parse(report())


def since(baseline: Collection[Entry], now: Collection[Entry]) -> tuple[Entry, ...]:
    """What is new. An address that was freed and lost again is new: it has other jiffies."""
    known = {(entry.address, entry.jiffies, entry.size) for entry in baseline}
    return tuple(entry for entry in now if (entry.address, entry.jiffies, entry.size) not in known)


def sort_out(
    baseline: Collection[Entry], now: Collection[Entry], pids: Collection[int], comms: Collection[str] = ()
) -> Found:
    """New entries: allocated by these threads or commands, and the rest. A comm has 15 bytes, as in the kernel."""
    cut = {comm.encode("utf-8", "surrogateescape")[:15].decode("utf-8", "surrogateescape") for comm in comms}
    new = since(baseline, now)
    ours = tuple(entry for entry in new if entry.pid in pids or entry.comm in cut)
    return Found(ours, tuple(entry for entry in new if entry not in ours))
