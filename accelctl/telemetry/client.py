"""Clients of devices: what each said last in its fdinfo, and what that makes for its device."""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.hal import drmfdinfo
from accelctl.hal.drmfdinfo import DrmClient, Meter
from accelctl.hal.keptfiles import KeptFile

Key = tuple[str, str]
"""(device, client id): client ids are the driver's, and two devices may use the same."""

LOCAL = ("vram", "local")
"""Regions on the device itself, by the drivers' names. Where a driver has one, the device's own count is of it."""


class Client:
    """One client, the file that tells of it, and what it said last."""

    __slots__ = (
        "_meter", "at_ns", "busy", "data", "file", "holders", "key", "local", "ratios", "reading", "restless", "sizes",
        "total", "unknown", "whose",
    )  # fmt: skip

    def __init__(self, key: Key) -> None:
        self.key = key
        self.whose = "", b""
        """(device, the lines that say whose it is): by these its duplicates are known."""
        self.file: KeptFile | None = None
        self.holders: dict[int, int] = {}
        """Process -> descriptors."""
        self.data = b""
        self.at_ns: int | None = None
        """When it was last read, if that was not in the tick before."""
        self.reading: DrmClient | None = None
        self.ratios: dict[str, float] = {}
        self.busy = False
        self.restless = False
        """Whether one more reading that says the same would say something new: that work has ended, or that there was
        none since the first one."""
        self.sizes: tuple[tuple[str, int], ...] = ()
        """(region, bytes), without those that are empty or unknown."""
        self.unknown = ""
        """A line of memory that was not understood, and that no other one stands in for."""
        self.total: int | None = None
        self.local: int | None = None
        self._meter = Meter()

    def take(self, data: bytes, reading: DrmClient, before_ns: int, now_ns: int) -> bool:
        """A reading that says something new; True where it does so of memory. ``before_ns``: the tick before."""
        old = self.reading
        self.ratios = self._meter.ratios(reading, before_ns if self.at_ns is None else self.at_ns, now_ns)
        self.data, self.reading, self.at_ns = data, reading, None
        self.busy = any(self.ratios.values())
        self.restless = not reading.shares and (self.busy or len(self.ratios) < len(reading.engines))
        if old is not None and old.regions is reading.regions and old.unknown is reading.unknown:
            return False
        known = [(region, size) for region in reading.regions if (size := reading.size(region)) is not None]
        local = [size for region, size in known if region.startswith(LOCAL)]
        self.local = sum(local) if local else None
        self.total = sum(size for _, size in known) if known else None
        self.sizes = tuple((region, size) for region, size in known if size)
        self.unknown = _not_understood(reading)
        return True

    def calm(self) -> None:
        """A second reading said the same."""
        self.ratios = dict.fromkeys(self.reading.engines if self.reading is not None else (), 0.0)
        self.busy = self.restless = False

    def rest(self, ratio: float | None, before_ns: int) -> bool:
        """It is not read in this tick: its device sleeps (then nothing works), or its file hung (then nothing is
        known). True where that is new."""
        if self.at_ns is None:
            self.at_ns = before_ns
        engines = self.reading.engines if self.reading is not None else ()
        ratios = {} if ratio is None else dict.fromkeys(engines, ratio)
        new, self.ratios, self.busy, self.restless = ratios != self.ratios, ratios, False, False
        return new

    def is_same(self, reading: DrmClient) -> bool:
        """Whether a text that its file gives now is of this client still: a descriptor's number may be used again."""
        old = self.reading
        return old is None or (old.driver, old.pdev, old.client_id) == (
            reading.driver,
            reading.pdev,
            reading.client_id,
        )


def _not_understood(reading: DrmClient) -> str:
    """The line that keeps a region's size from being known; "" where all are."""
    for line in sorted(reading.unknown):
        word, _, region = line.removeprefix("drm-").partition("-")
        of_memory = word in ("total", "resident", "memory") and not region.startswith("cycles-")
        if of_memory and (region not in reading.regions or reading.size(region) is None):
            return line
    return ""


class EngineState:
    """One engine of a device, over its clients."""

    __slots__ = ("capacity", "clock_hz", "measured")

    def __init__(self) -> None:
        self.capacity = 1
        self.clock_hz: int | None = None
        self.measured = False
        """Whether two readings of it were had: before, its load is not known."""


class Group:
    """The clients of one device."""

    def __init__(self) -> None:
        self.clients: dict[Key, Client] = {}
        self.engines: dict[str, EngineState] = {}
        self._busy: dict[Key, Client] = {}
        self._attributed: int | None = None
        self._counted = False

    def note(self, client: Client, memory: bool) -> None:
        """A client's reading changed: engines come with it, and one that no client has any more goes."""
        if memory:
            self._counted = False
        if client.busy:
            self._busy[client.key] = client
        else:
            self._busy.pop(client.key, None)
        reading = client.reading
        if reading is None:
            return
        if not self.engines.keys() <= reading.engines.keys():
            self._drop_vanished()
        for name, engine in reading.engines.items():
            state = self.engines.get(name)
            if state is None:
                state = self.engines[name] = EngineState()
            state.capacity = engine.capacity
            state.clock_hz = engine.curfreq_hz
            state.measured = state.measured or name in client.ratios
        for name in reading.shares:
            self.engines.setdefault(name, EngineState()).measured = True

    def remove(self, client: Client) -> None:
        """A client is gone."""
        self.clients.pop(client.key, None)
        self._busy.pop(client.key, None)
        self._counted = False
        self._drop_vanished()

    def _drop_vanished(self) -> None:
        """(At most a look at each client, and as a rule at one or two.)"""
        for name in [name for name in self.engines if not any(_has(one, name) for one in self.clients.values())]:
            del self.engines[name]

    def attributed(self) -> int | None:
        """Memory of all clients, each counted once: on the device where the driver says so, else all of it."""
        if not self._counted:
            clients = self.clients.values()
            local = [one.local for one in clients if one.local is not None]
            known = local or [one.total for one in clients if one.total is not None]
            self._attributed = sum(known) if known else None
            self._counted = True
        return self._attributed

    def ratios(self) -> Iterator[tuple[str, EngineState, float | None]]:
        """(engine, its state, busy ratio)."""
        busy = drmfdinfo.join([one.ratios for one in self._busy.values()])
        for name, state in self.engines.items():
            yield name, state, busy.get(name, 0.0 if state.measured else None)


def _has(client: Client, engine: str) -> bool:
    reading = client.reading
    return reading is not None and (engine in reading.engines or engine in reading.shares)
