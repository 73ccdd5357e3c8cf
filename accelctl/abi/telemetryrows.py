"""Gauges that are tables: which fact of a chip's room is which number of a snapshot.

Where a file is, what reading it does and which kernel has it is said once, in the chip's ``chip.toml``; probe has found
the files already. A row here says only what the number is called and how its text becomes one. The texts come from
hardware and firmware, which have their own ways to say "no value": all ones of 16, 32 or 64 bit, a temperature below
absolute zero, a load of 150 % (lm-sensors/lm-sensors#310, NVIDIA/go-dcgm#75, flightlessmango/MangoHud#868). Such a text
is an absence. It is never clamped into range, because a clamped lie looks like a fact; a real 0 stays 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import NamedTuple

from accelctl.abi.lifecycle import NotOffered
from accelctl.abi.telemetry import Draft, Gauge, Seat, Tick, why_gone
from accelctl.hal.root import Converter, SysRoot
from accelctl.model.convert import NO_VALUE, whole
from accelctl.model.device import Device
from accelctl.model.reading import STABLE, Reading
from accelctl.model.snapshot import EventMark, PoolLevel, key

_WIDE = frozenset({0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF})
ALL_ONES = _WIDE | {0xFFFF}
"""What a register, or a field of firmware, that is not there reads as."""
ABSOLUTE_ZERO_CELSIUS = -273.15
HOTTEST_CELSIUS = 1000
"""Silicon is long gone; what is above is no temperature."""
_SETTLED = frozenset({"not_offered", "not_captured", "no_driver", "not_applicable", "not_allowed"})
"""Absences that reading again does not change; a driver that is bound later makes probe look again."""


def _number(text: str, none: frozenset[int] = ALL_ONES) -> int | None:
    if text.strip("[]").lower() in NO_VALUE:
        return None
    number = whole(text)
    return None if number in none else number


def percent(text: str) -> float | None:
    """Per cent of time or capacity -> ratio."""
    number = _number(text)
    return number / 100 if number is not None and 0 <= number <= 100 else None


def rpm(text: str) -> int | None:
    """Turns per minute."""
    number = _number(text)
    return number if number is not None and number >= 0 else None


def celsius(text: str, per_degree: int = 1, none: frozenset[int] = ALL_ONES) -> float | None:
    """Whole degrees, as firmware tables have them."""
    number = _number(text, none)
    degrees = None if number is None else number / per_degree
    return degrees if degrees is not None and ABSOLUTE_ZERO_CELSIUS < degrees < HOTTEST_CELSIUS else None


milli_celsius: Converter = partial(celsius, per_degree=1000, none=_WIDE)
"""As hwmon has them: 65535 is 65.535 degrees there (Documentation/hwmon/sysfs-interface.rst)."""


def milliwatts(text: str) -> float | None:
    """Milliwatts, as firmware tables have them."""
    return _number(text)


def microwatts(text: str) -> float | None:
    """Microwatts of hwmon -> milliwatts."""
    number = _number(text, _WIDE)
    return None if number is None else number / 1000


def size(text: str) -> int | None:
    """Bytes."""
    number = _number(text, _WIDE)
    return number if number is not None and number >= 0 else None


def hertz(text: str, factor: int = 1) -> int | None:
    """Hertz."""
    number = _number(text, _WIDE)
    return None if number is None or number < 0 else number * factor


def megahertz(text: str) -> int | None:
    """Megahertz -> hertz."""
    return None if _number(text) is None else hertz(text, 1_000_000)


def count(text: str) -> int | None:
    """A counter since the driver was loaded."""
    number = _number(text, _WIDE)
    return number if number is not None and number >= 0 else None


class Level(NamedTuple):
    """A number of the device: a field of DeviceLevel. Of several rows with one name the first that has a value counts.

    fact: a key of probe's facts, ``*`` for any part ("clocks/gt*/act_mhz"); of several files the largest value counts.
    """

    name: str
    fact: str
    convert: Converter


class Pool(NamedTuple):
    """A pool of the driver: fields of PoolLevel and the facts they come from."""

    name: str
    capacity: str
    in_use: str


class Steps(NamedTuple):
    """A counter of something bad: each rise is an event."""

    fact: str
    kind: str
    """Of the event: reset, fault, aer."""
    level: str
    what: str


def files(device: Device, fact: str) -> Iterator[str]:
    """The files behind a fact of probe, or behind all facts that fit its stars; none that the driver does not have."""
    if "*" not in fact:
        reading = device.reading(fact)
        found = [] if reading is None else [reading]
    else:
        found = [reading for name, reading in device.facts.items() if fnmatchcase(name, fact)]
    yield from (reading.source for reading in found if not _settled(reading))


def _settled(reading: Reading) -> bool:
    return reading.absence is not None and reading.absence.kind in _SETTLED


class TableGauge:
    """Reads its rows at each tick."""

    def __init__(
        self,
        root: SysRoot,
        device: Device,
        levels: Sequence[Level],
        pools: Sequence[Pool] = (),
        steps: Sequence[Steps] = (),
    ) -> None:
        self.root, self.device = root, device
        self._levels = [(row, tuple(files(device, row.fact))) for row in levels]
        self._pools = [row for row in pools if any((*files(device, row.capacity), *files(device, row.in_use)))]
        self._steps = [(row, path) for row in steps for path in files(device, row.fact)]
        self._counts: dict[str, int] = {}
        self._stable = {one.source for one in device.facts.values() if one.scope == STABLE}
        self._known: dict[str, Reading] = {}
        """What was read in this tick, and what does not change."""

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Gauge."""
        self._known = {path: one for path, one in self._known.items() if path in self._stable and one.present}
        done: set[str] = set()
        for row, paths in self._levels:
            if row.name not in done and self._level(draft, row, paths):
                done.add(row.name)
        for pool in self._pools:
            self._pool(draft, f"{self.device.id}/{pool.name}", pool)
        for steps, path in self._steps:
            self._step(draft, tick, steps, path)

    def _level(self, draft: Draft, row: Level, paths: Sequence[str]) -> bool:
        identity = self.device.id
        if not paths:
            told = self.device.reading(row.fact)
            if told is not None and told.absence is not None:
                draft.gone(identity, row.name, why_gone(told))
            return False
        readings = [self._read(draft, path, row.convert) for path in paths]
        best = max((one for one in readings if one.present), key=lambda one: float(one.value), default=None)
        draft.take(identity, row.name, best or readings[0])
        return best is not None

    def _pool(self, draft: Draft, identity: str, row: Pool) -> None:
        level = PoolLevel(
            id=identity,
            device=self.device.id,
            capacity_bytes=self._bytes(draft, key("pools", identity, "capacity_bytes"), row.capacity),
            in_use_bytes=self._bytes(draft, key("pools", identity, "in_use_bytes"), row.in_use),
        )
        draft.pools.append(level)

    def _bytes(self, draft: Draft, series: str, fact: str) -> int | None:
        reading = self.device.reading(fact)
        if reading is None:
            return None
        if not _settled(reading):
            reading = self._read(draft, reading.source, size)
        if reading.absence is None:
            draft.sources[series] = reading.source
            return int(reading.value)
        draft.absences[series] = why_gone(reading)
        return None

    def _step(self, draft: Draft, tick: Tick, row: Steps, path: str) -> None:
        """A counter that went back began anew: its rise is not known."""
        now = self._read(draft, path, count).value
        if now is None:
            return
        before = self._counts.get(path, now)
        self._counts[path] = now
        if now > before:
            text = row.what if now == before + 1 else f"{row.what}, {now - before} times"
            mark = EventMark(at_ns=tick.now_ns, kind=row.kind, device=self.device.id, level=row.level, text=text)
            draft.events.append(mark)

    def _read(self, draft: Draft, path: str, convert: Converter) -> Reading:
        """Each file once a tick: a number may stand in several rows, with one way to read it."""
        reading = self._known.get(path)
        if reading is None:
            draft.reads += 1
            reading = self._known[path] = self.root.read(path, convert)
        return reading

    def close(self) -> None:
        """Nothing is held: the root keeps files open."""


class Table:
    """The Telemetry contract of a chip that is rows alone; ``gauge`` adds to them what no row can say."""

    def __init__(
        self,
        *levels: Level,
        pools: Sequence[Pool] = (),
        steps: Sequence[Steps] = (),
        gauge: Callable[..., Gauge] = TableGauge,
    ) -> None:
        self._rows, self._gauge = (levels, pools, steps), gauge

    def open(self, seat: Seat) -> Gauge:
        """See Telemetry."""
        if seat.root is None:
            raise NotOffered("it is read from files, and there is no root to read them from")
        return self._gauge(seat.root, seat.device, *self._rows)
