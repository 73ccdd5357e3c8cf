"""What drivers count in debugfs: buffer handles and memory pools of a device. Root's; others get the absence.

Files and formats are those of hal.bookfile (Linux 6.12); all are on the list of what is free to read, because their
show functions only walk lists. Some walk every buffer of every client, so they are not asked at every tick.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from accelctl.hal import bookfile
from accelctl.hal.allowlist import DEBUGFS
from accelctl.hal.root import SysRoot
from accelctl.model.device import Device
from accelctl.model.reading import Reading
from accelctl.model.snapshot import Gone, PoolLevel, key
from accelctl.telemetry.source import Draft, Tick

EVERY_NS = 5_000_000_000
_CARD = re.compile(r"drm/card([0-9]{1,9})/")


class Book(NamedTuple):
    """One number of a driver: a field of DeviceLevel, or with ``pool`` what is in use of a pool of that name."""

    drivers: tuple[str, ...]
    file: str
    parse: Callable[[str], int]
    field: str = ""
    pool: str = ""


BOOKS = (
    Book(("amdgpu",), "amdgpu_gem_info", bookfile.amdgpu_handles, field="handles"),
    Book(("qxl",), "qxl_buffers", bookfile.qxl_objects, field="handles"),
    Book(("v3d",), "bo_stats", lambda text: bookfile.v3d_stats(text)[0], field="handles"),
    Book(("v3d",), "bo_stats", lambda text: bookfile.v3d_stats(text)[1], field="memory_used_bytes"),
    Book(("msm", "etnaviv"), "gem", lambda text: bookfile.closing_total(text)[0], field="handles"),
    Book(("msm", "etnaviv"), "gem", lambda text: bookfile.closing_total(text)[1], field="memory_used_bytes"),
    Book(("i915",), "i915_gem_objects", lambda text: bookfile.i915_objects(text)[0], field="handles"),
    Book(("qxl",), "qxl_mem_mm", bookfile.ttm_usage, pool="vram"),
    Book(("qxl",), "qxl_surf_mm", bookfile.ttm_usage, pool="surfaces"),
    Book(("bochs-drm", "ast", "hibmc"), "vram-mm", bookfile.ttm_usage, pool="vram"),
    Book(("xe",), "vram0_mm", bookfile.ttm_usage, pool="vram0"),
    Book(("xe",), "gtt_mm", bookfile.ttm_usage, pool="gtt"),
    Book(("xe",), "stolen_mm", bookfile.ttm_usage, pool="stolen"),
)


class Debugfs:
    """The books of all devices that are awake."""

    name = "debugfs"

    def __init__(self, root: SysRoot, devices: Iterable[Device]) -> None:
        self._root = root
        self._books = [(device, book, path) for device in devices for book, path in _books(device)]
        self._read: list[tuple[str, Book, Reading]] = []
        self._due = 0

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Source. Between two looks the last numbers stand."""
        if tick.monotonic_ns >= self._due:
            self._due = tick.monotonic_ns + EVERY_NS
            awake = [one for one in self._books if one[0].id not in tick.asleep]
            self._read = [(device.id, book, self._root.read(path, book.parse)) for device, book, path in awake]
            draft.reads += len(awake)
        for device, book, reading in self._read:
            if device in tick.asleep:
                continue
            if book.field:
                draft.take(device, book.field, reading)
            elif reading.present:
                identity = f"{device}/{book.pool}"
                draft.pools.append(PoolLevel(id=identity, device=device, in_use_bytes=reading.value))
                draft.sources[key("pools", identity, "in_use_bytes")] = reading.source
        self._without(draft)

    def _without(self, draft: Draft) -> None:
        """Handles that no file counts."""
        counted = {device.id for device, book, _ in self._books if book.field == "handles"}
        for device in draft.devices:
            if device not in counted:
                draft.gone(device, "handles", Gone("not_offered", "this driver counts no handles in debugfs"))

    def close(self) -> None:
        """The root keeps the files."""


def _books(device: Device) -> list[tuple[Book, str]]:
    """By driver; the folder bears the number of the card node."""
    drivers = {device.value("driver"), device.value("driver_of_minor")}
    numbers = [match.group(1) for name in device.under("drm") if (match := _CARD.match(name))]
    folder = f"{DEBUGFS}dri/{numbers[0]}" if numbers else ""
    return [(book, f"{folder}/{book.file}") for book in BOOKS if folder and not drivers.isdisjoint(book.drivers)]
