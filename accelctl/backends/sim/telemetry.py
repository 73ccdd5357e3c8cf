"""The simulated device as a monitor sees it: only from the process that has it open, for there is no kernel to ask.

Looking changes nothing: no time passes, and no job takes effect that the device has not been asked about.
"""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.lifecycle import NotOffered
from accelctl.abi.telemetry import Draft, Gauge, Seat, Tick
from accelctl.backends.sim.device import Device, OpenFile
from accelctl.backends.sim.driver import ALIVE, SimSyscalls
from accelctl.backends.sim.memory import VA_BASE
from accelctl.hal.devfile import PAGE
from accelctl.model.snapshot import Gone, PoolLevel, QueueLevel, SpaceLevel, key

SOURCE = "the simulated driver"
MOST_RANGES = 512


class SimGauge:
    """One simulated chip."""

    def __init__(self, identity: str, calls: SimSyscalls) -> None:
        self._id, self._calls = identity, calls

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Gauge."""
        self._calls.look(lambda device: self._write(draft, device))

    def _write(self, draft: Draft, device: Device) -> None:
        files = list(device.files.values())
        used = device.vram.used * PAGE
        levels = {
            "memory_total_bytes": device.options.vram_bytes,
            "memory_used_bytes": used,
            "handles": sum(len(file.handles.things) for file in files),
            "open_files": len(files),
            "mapped_bytes": sum(shared.thing.pages * PAGE for _, shared in device.maps.values()),
        }
        for name, value in levels.items():
            draft.level(self._id, name, value, SOURCE)
        draft.devices[self._id].update(name="simulated accelerator", chip="sim", simulated=True)
        draft.gone(self._id, "busy_ratio", Gone("not_applicable", "its time is its own: a tick for each call"))
        pool = f"{self._id}/vram"
        cached = device.vram.waiting * PAGE
        draft.pools.append(
            PoolLevel(
                id=pool,
                device=self._id,
                capacity_bytes=device.options.vram_bytes,
                in_use_bytes=used,
                cached_bytes=cached,
                reserved_bytes=used + cached,
            )
        )
        draft.sources[key("pools", pool, "in_use_bytes")] = SOURCE
        for number, file in device.files.items():
            draft.queues.extend(_queues(self._id, number, file))
            draft.spaces.extend(_spaces(self._id, number, file, device.options.va_bytes))

    def close(self) -> None:
        """Nothing is held."""


def _queues(identity: str, number: int, file: OpenFile) -> Iterator[QueueLevel]:
    for queue, jobs in file.queues.things.items():
        running = len(jobs.flying)
        yield QueueLevel(
            id=f"{identity}/file {number}/queue {queue}",
            device=identity,
            state="lost" if jobs.dead else "busy" if running else "idle",
            depth=jobs.depth,
            submitted=jobs.submitted,
            running=running,
            finished=jobs.passed,
        )


def _spaces(identity: str, number: int, file: OpenFile, size: int) -> Iterator[SpaceLevel]:
    for vm, table in file.vms.things.items():
        ranges = joined(sorted((va, length) for va, (length, _) in table.mappings.items()))
        mapped = sum(length for _, length in ranges)
        yield SpaceLevel(
            id=f"{identity}/file {number}/vm {vm}",
            device=identity,
            base=VA_BASE,
            size_bytes=size,
            reserved_bytes=0,
            mapped_bytes=mapped,
            free_bytes=max(0, size - mapped),
            largest_hole_bytes=_largest_hole(ranges, VA_BASE, VA_BASE + size),
            ranges=tuple((va, length, "mapped") for va, length in ranges[:MOST_RANGES]),
        )


def joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbours as one; the input rises."""
    found: list[tuple[int, int]] = []
    for start, size in ranges:
        if found and sum(found[-1]) == start:
            found[-1] = found[-1][0], found[-1][1] + size
        else:
            found.append((start, size))
    return found


def _largest_hole(ranges: list[tuple[int, int]], base: int, end: int) -> int:
    ends = [base, *(start + size for start, size in ranges)]
    starts = [*(start for start, _ in ranges), end]
    return max(0, *(start - before for before, start in zip(ends, starts, strict=True)))


class SimTelemetry:
    """What the chip offers."""

    def open(self, seat: Seat) -> Gauge:
        """A gauge of the chip that the session has open; without a session, of the only one that is open here."""
        here = [one for one in ALIVE if one.device.files]
        if seat.session is not None:
            here = [one for one in here if seat.session.files and seat.session.files[0].fd in one.device.files]
        if len(here) != 1:
            raise NotOffered("no simulated device is open in this process" if not here else "several are open")
        return SimGauge(seat.device.id, here[0])


TELEMETRY = SimTelemetry()
