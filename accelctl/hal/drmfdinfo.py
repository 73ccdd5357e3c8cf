"""What a DRM file says of itself in /proc/PID/fdinfo: memory by region, busy time by engine, whose it is.

Grammar: kernel Documentation/gpu/drm-usage-stats.rst, and drm_file.c for how sizes are printed: bytes without a unit
when the number is 0 or no multiple of 1024, else KiB, else MiB, so that one line changes its unit while it is watched.
Private lines are those of amdgpu (amdgpu_fdinfo.c), panthor (Documentation/gpu/panthor.rst) and v3d (v3d_drv.c).

No driver at hand prints drm- lines (vgem, vkms and virtio-gpu have none): all of this is proven on recorded and
synthetic input only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_BYTES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_HERTZ = {"": 1, "Hz": 1, "KHz": 1000, "MHz": 1000_000}
_PLAIN = {"": 1}
_NS = {"ns": 1}
_JOBS = {"": 1, "jobs": 1}
_OLD_KB = {"kB": 1 << 10}
_TOO_LARGE = 1 << 63
"""From here on it is an error in the place of a number: -1 as an unsigned one."""

_PRIVATE = {
    "amd-evicted-": _BYTES,
    "amd-requested-": _BYTES,
    "panthor-resident-": _BYTES,
    "panthor-active-": _BYTES,
    "v3d-jobs-": _JOBS,
}


class Region(NamedTuple):
    """One kind of memory, in bytes. None: not said, or not understood (see :attr:`DrmClient.unknown`)."""

    total: int | None = None
    shared: int | None = None
    resident: int | None = None
    """In place now. Older kernels print ``drm-memory-R`` for it; where both stand they are the same number twice."""
    purgeable: int | None = None
    active: int | None = None


class Engine(NamedTuple):
    """One engine, or a group of ``capacity`` equal ones; counters since the client began. See :class:`Meter`."""

    busy_ns: int | None = None
    cycles: int | None = None
    total_cycles: int | None = None
    """What the engine's clock counted meanwhile, busy or not."""
    maxfreq_hz: int | None = None
    curfreq_hz: int | None = None
    capacity: int = 1


class DrmClient(NamedTuple):
    """One reading of one client, which is one open DRM file; descriptors that were duplicated all print the same."""

    driver: str
    pdev: str
    """PCI address of the device, "" on other buses. A virtual function has its own; a partition prints its parent's."""
    client_id: str
    """A number as text; "" where the driver gives none. Unique together with the device only."""
    name: str
    engines: Mapping[str, Engine]
    regions: Mapping[str, Region]
    private: Mapping[str, int]
    """The driver's own lines, by their whole key: bytes, or jobs."""
    shares: Mapping[str, float]
    """Of amdgpu before Linux 5.19: engine -> busy ratio that the driver worked out over its last jobs."""
    unknown: frozenset[str]
    """Keys whose value was not understood: they are nowhere else in here."""

    def size(self, region: str) -> int | None:
        """What the client has in a region: resident, where the driver says it, else total."""
        if f"drm-resident-{region}" in self.unknown or f"drm-memory-{region}" in self.unknown:
            return None
        found = self.regions[region]
        return found.total if found.resident is None else found.resident


def _amount(value: str, units: Mapping[str, int]) -> int | None:
    number, _, unit = value.partition(" ")
    scale = units.get(unit.strip())
    if scale is None or not number.isdigit() or not number.isascii() or len(number) > 20:
        return None
    amount = int(number) * scale
    return amount if amount < _TOO_LARGE else None


_SIZES = {"total": 0, "shared": 1, "resident": 2, "purgeable": 3, "active": 4, "memory": 5}
_COUNTERS = {"engine": (0, _NS), "cycles": (1, _PLAIN), "maxfreq": (3, _HERTZ), "curfreq": (4, _HERTZ)}
_TEXTS = ("driver", "pdev", "client-id", "client-name")


class _Found:
    """Lines sorted by what they are about. A name that comes twice counts where it came first."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.sizes: dict[str, list[int | None]] = {}
        self.engines: dict[str, list[int | None]] = {}
        self.private: dict[str, int] = {}
        self.unknown: set[str] = set()

    def line(self, key: str, value: str) -> None:
        """One line whose key begins with drm-. The order of the questions matters: ``drm-total-cycles-rcs`` is no
        region, ``drm-engine-capacity-vcs`` no engine."""
        word, _, rest = key[4:].partition("-")
        if word == "total" and rest.startswith("cycles-"):
            self._put(self.engines, rest[7:], 2, key, value, _PLAIN)
        elif word in _SIZES:
            self._put(self.sizes, rest, _SIZES[word], key, value, _BYTES)
        elif word == "engine" and rest.startswith("capacity-"):
            self._put(self.engines, rest[9:], 5, key, value, _PLAIN)
        elif word in _COUNTERS:
            column, units = _COUNTERS[word]
            self._put(self.engines, rest, column, key, value, units)
        elif key[4:] in _TEXTS:
            self.texts.setdefault(key[4:], value)

    def _put(
        self, rows: dict[str, list[int | None]], name: str, column: int, key: str, value: str, units: Mapping[str, int]
    ) -> None:
        if not name or " " in name or "\t" in name:
            return
        amount = _amount(value, units)
        if amount is None:
            self.unknown.add(key)
            return
        row = rows.get(name)
        if row is None:
            row = rows[name] = [None] * 6
        if row[column] is None:
            row[column] = amount

    def own(self, key: str, value: str) -> None:
        """A line that may be one of a driver's private ones."""
        for prefix, units in _PRIVATE.items():
            if key.startswith(prefix):
                amount = _amount(value, units)
                if amount is None:
                    self.unknown.add(key)
                else:
                    self.private.setdefault(key, amount)


def parse(text: str) -> DrmClient | None:
    """The fdinfo of a DRM file; None where no driver says anything in it. Never raises, whatever the text."""
    found = _Found()
    old: dict[str, str] = {}
    for line in text.split("\n"):
        key, colon, value = line.partition(":")
        if not colon:
            continue
        key = key.rstrip()
        if key.startswith("drm-"):
            found.line(key, value.strip())
        elif "-" in key:
            found.own(key, value.strip())
        else:
            old.setdefault(key, value.strip())
    driver = found.texts.get("driver", "")
    if not driver:
        return _old_amdgpu(old) if "vram mem" in old else None
    number = found.texts.get("client-id", "")
    return DrmClient(
        driver,
        found.texts.get("pdev", "").lower(),
        number if number.isascii() and number.isdigit() else "",
        found.texts.get("client-name", ""),
        {name: _engine(row) for name, row in found.engines.items() if row[0] is not None or row[1] is not None},
        {name: _region(row) for name, row in found.sizes.items()},
        found.private,
        {},
        frozenset(found.unknown),
    )


def _region(row: list[int | None]) -> Region:
    total, shared, resident, purgeable, active, alias = row
    return Region(total, shared, alias if resident is None else resident, purgeable, active)


def _engine(row: list[int | None]) -> Engine:
    ns, cycles, total, maxfreq, curfreq, capacity = row
    return Engine(ns, cycles, total, maxfreq or None, curfreq, capacity or 1)  # a capacity of 0 is not allowed


def _old_amdgpu(fields: Mapping[str, str]) -> DrmClient:
    """amdgpu of Linux 5.14 to 5.18: ``pdev``, ``pasid`` (one for each open file), ``vram mem: N kB``, ``gfx0: 12.5%``.

    Its kB are 1024 bytes. Behind the point of the load stand hundredths without their leading zero: 12.5% is 12.05 %.
    """
    regions: dict[str, Region] = {}
    unknown: set[str] = set()
    shares: dict[str, float] = {}
    for key, value in fields.items():
        if key.endswith(" mem"):
            size = _amount(value, _OLD_KB)
            if size is None:
                unknown.add(key)
            else:
                regions[key[:-4]] = Region(resident=size)
        elif value.endswith("%"):
            whole, _, hundredths = value[:-1].partition(".")
            percent, part = _amount(whole, _PLAIN), _amount(hundredths, _PLAIN)
            if percent is None or part is None or part > 99 or percent * 100 + part > 10_000:
                unknown.add(key)
            else:
                shares[key] = (percent * 100 + part) / 10_000
    pasid = fields.get("pasid", "")
    number = pasid if pasid.isascii() and pasid.isdigit() else ""
    return DrmClient("amdgpu", fields.get("pdev", "").lower(), number, "", {}, regions, {}, shares, frozenset(unknown))


_WHOSE = (b"\ndrm-driver:", b"\ndrm-pdev:", b"\ndrm-client-id:")


def whose(data: bytes) -> bytes:
    """The lines that say whose a text is, to tell a duplicate by without parsing it; b"" where it does not say."""
    text = b"\n" + data
    at = [text.find(key) for key in _WHOSE]
    if at[0] < 0 or at[2] < 0:
        return b""
    return b"".join(text[start : text.find(b"\n", start + 1)] for start in at if start >= 0)


def parse_again(old: DrmClient, before: bytes, after: bytes) -> DrmClient | None:
    """As :func:`parse` of ``after``, where ``before`` gave ``old``: while a client works only its counters move, and
    the other lines need not be understood again."""
    lines = after.split(b"\n")
    known = before.split(b"\n")
    if len(lines) != len(known) or old.unknown:
        return parse(after.decode("utf-8", "replace"))
    found = _Found()
    for one, other in zip(known, lines, strict=True):
        if one != other:
            key, _, value = other.partition(b":")
            if not key.startswith(_MOVING) or key != one.partition(b":")[0] or after.count(key + b":") != 1:
                return parse(after.decode("utf-8", "replace"))
            found.line(key.decode("utf-8", "replace"), value.decode("utf-8", "replace").strip())
    if found.unknown:
        return parse(after.decode("utf-8", "replace"))
    engines = dict(old.engines)
    for name, row in found.engines.items():
        engine = engines.get(name)
        if engine is None or row[5] is not None:
            return parse(after.decode("utf-8", "replace"))
        moved = zip(_ENGINE, row[:5], strict=True)
        engines[name] = engine._replace(**{field: value for field, value in moved if value is not None})
    return old._replace(engines=engines)


_MOVING = (b"drm-engine-", b"drm-cycles-", b"drm-total-cycles-")
_ENGINE = Engine._fields[:5]


class Meter:
    """Busy ratios of one client, from readings one after another.

    A counter may fall for a while (the kernel's document allows it): then its largest value stands until it is passed.
    An engine may be left out (amdgpu prints none that never worked, xe none on a virtual function): then it has no
    ratio, and the next one is over all the time since it was last seen.
    """

    __slots__ = ("_gone", "_seen")

    def __init__(self) -> None:
        self._seen: dict[str, Engine] = {}
        self._gone: dict[str, int] = {}

    def ratios(self, client: DrmClient, before_ns: int, now_ns: int) -> dict[str, float]:
        """Engine -> 0 to 1, of engines that were read before. ``before_ns`` is when the file was last read, though it
        may have said nothing new; the clock is one that never goes back."""
        found = dict(client.shares)
        for name, new in client.engines.items():
            old = self._seen.get(name)
            self._seen[name] = now = new if old is None else _largest(old, new)
            since = self._gone.pop(name, before_ns)
            ratio = None if old is None else _ratio(old, now, now_ns - since)
            if ratio is not None:
                found[name] = ratio
        if len(self._seen) > len(client.engines):
            for name in self._seen.keys() - client.engines.keys():
                self._gone.setdefault(name, before_ns)
        return found


def _largest(old: Engine, new: Engine) -> Engine:
    """The counters that hold. A clock that fell has begun anew (the device slept): so have the cycles beside it."""
    if new.total_cycles is not None and old.total_cycles is not None and new.total_cycles < old.total_cycles:
        return new
    return new._replace(
        busy_ns=_more(old.busy_ns, new.busy_ns),
        cycles=_more(old.cycles, new.cycles),
    )


def _more(old: int | None, new: int | None) -> int | None:
    return old if new is None else new if old is None else max(old, new)


def _ratio(old: Engine, new: Engine, elapsed_ns: int) -> float | None:
    """By the engine's own clock where there is one, else by time, else by cycles against the highest frequency."""
    cycles = None if old.cycles is None or new.cycles is None else new.cycles - old.cycles
    if cycles is not None and old.total_cycles is not None and new.total_cycles is not None:
        ticks = new.total_cycles - old.total_cycles
        if ticks < 0:
            return None
        busy = cycles / ticks if ticks else 0.0
    elif elapsed_ns <= 0:
        return None
    elif old.busy_ns is not None and new.busy_ns is not None:
        busy = (new.busy_ns - old.busy_ns) / elapsed_ns
    elif cycles is not None and new.maxfreq_hz is not None:
        busy = cycles * 1e9 / (new.maxfreq_hz * elapsed_ns)
    else:
        return None
    return min(1.0, busy / new.capacity)  # the reading and its time are not one moment


def join(ratios: list[Mapping[str, float]]) -> dict[str, float]:
    """Engine -> busy ratio of a device, over its clients: what they have of one engine adds up, to 1 at most (drivers
    that time jobs from scheduled to finished count overlapping ones twice)."""
    totals: dict[str, float] = {}
    for one in ratios:
        for name, ratio in one.items():
            totals[name] = totals.get(name, 0.0) + ratio
    return {name: min(1.0, ratio) for name, ratio in totals.items()}


def busiest(engines: Mapping[str, float]) -> float | None:
    """How busy a device is: as its busiest engine. A sum over engines would pass 100 %."""
    return max(engines.values(), default=None)
