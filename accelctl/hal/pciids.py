"""Names for PCI ids: from the machine's pci.ids, and from the chip rooms where that file has none.

The file has some 38,000 lines and a report needs a dozen of them. So it is searched, not parsed: one find for the
vendor's line, then within the vendor's block. Format: pci.ids(5) of pciutils.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from accelctl.hal.root import SysRoot
from accelctl.hal.tree import LiveTree
from accelctl.model.reading import Reading, absent

PATHS = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids", "usr/share/pci.ids")
_LIMIT = 16 << 20  # bytes; the file has 1.5 MB
_NEXT_VENDOR = re.compile(rb"\n(?![\t#\n])")
_NEXT_DEVICE = re.compile(rb"\n\t(?!\t)")
_INSTALL = "sudo apt install pci.ids (Fedora, RHEL: hwdata)"


class RoomName(NamedTuple):
    """A name that a chip room gives, and where it has it from."""

    name: str
    source: str


#: (vendor, device or None, subsystem device or None), four lower-case hexadecimal digits each.
RoomKey = tuple[str, str | None, str | None]


class PciNames:
    """Names by id, looked up when asked for. Ids are hexadecimal text with or without 0x; the file is read once, at
    the first question.

    A captured machine without the file is served from the running machine's, and the source says so.
    """

    def __init__(self, root: SysRoot, rooms: Mapping[RoomKey, RoomName] | None = None) -> None:
        self._root = root
        self._rooms = rooms or {}
        self._data: bytes | None = None
        self._source = ""
        self._blocks: dict[str, tuple[int, int] | None] = {}
        self._known: list[tuple[int, int]] = [(0, 0)]  # (position, line number), sorted

    def vendor(self, vendor: str) -> Reading:
        """Name of a vendor."""
        key = _digits(vendor)
        block = self._vendor_block(key)
        if block is None:
            return self._from_rooms((key, None, None), f"vendor {key}")
        return self._name(block[0], 4)

    def device(self, vendor: str, device: str, subsystem_device: str | None = None) -> Reading:
        """Name of a device. The subsystem device only serves chip rooms: some vendors tell their chips apart by
        nothing else."""
        key, number = _digits(vendor), _digits(device)
        block = self._device_block(key, number)
        if block is not None:
            return self._name(block[0], 5)
        subsystem = None if subsystem_device is None else _digits(subsystem_device)
        return self._from_rooms((key, number, subsystem), f"device {key}:{number}")

    def subsystem(self, vendor: str, device: str, subsystem_vendor: str, subsystem_device: str) -> Reading:
        """Name of the card a device sits on."""
        key, number = _digits(vendor), _digits(device)
        card = f"{_digits(subsystem_vendor)} {_digits(subsystem_device)}"
        block = self._device_block(key, number)
        if block is not None:
            start = self._bytes().find(b"\n\t\t" + card.encode() + b"  ", *block)
            if start >= 0:
                return self._name(start + 1, 11)
        return self._missing(f"card {card} on {key}:{number}")

    # -- the file --

    def _bytes(self) -> bytes:
        if self._data is None:
            self._data = self._load()
        return self._data

    def _load(self) -> bytes:
        for path in PATHS:
            data = self._root.data(path, limit=_LIMIT)
            if data:
                self._source = path
                return b"\n" + data
        if not self._root.live:
            running = SysRoot(LiveTree())
            for path in PATHS:
                data = running.data(path, limit=_LIMIT)
                if data:
                    self._source = f"{path} of the running machine"
                    return b"\n" + data
        return b"\n"

    def _vendor_block(self, vendor: str) -> tuple[int, int] | None:
        """Where a vendor's lines begin and end; the begin is its own line."""
        if vendor not in self._blocks:
            data = self._bytes()
            start = data.find(b"\n" + vendor.encode() + b"  ")
            end = _NEXT_VENDOR.search(data, start + 1) if start >= 0 else None
            self._blocks[vendor] = None if start < 0 else (start + 1, end.start() if end is not None else len(data))
        return self._blocks[vendor]

    def _device_block(self, vendor: str, device: str) -> tuple[int, int] | None:
        block = self._vendor_block(vendor)
        if block is None:
            return None
        data = self._bytes()
        start = data.find(b"\n\t" + device.encode() + b"  ", *block)
        if start < 0:
            return None
        end = _NEXT_DEVICE.search(data, start + 1, block[1])
        return start + 1, end.start() if end is not None else block[1]

    def _name(self, start: int, width: int) -> Reading:
        """The name on the line that begins at ``start``, behind an id that ends ``width`` bytes later and two
        blanks."""
        data = self._bytes()
        line_end = data.find(b"\n", start)
        line = data[start : len(data) if line_end < 0 else line_end]
        name = line[width:].decode("utf-8", "replace").strip()
        return Reading(name, f"{self._source} line {self._line(start)}", line.decode("utf-8", "replace").strip())

    def _line(self, position: int) -> int:
        """Line number of a position, counted from the nearest known one: counting them all costs half a millisecond."""
        index = bisect_right(self._known, (position, 1 << 62)) - 1
        place, number = self._known[index]
        if place != position:
            number += self._bytes().count(b"\n", place, position)
            self._known.insert(index + 1, (position, number))
        return number

    # -- where the file has none --

    def _from_rooms(self, key: RoomKey, what: str) -> Reading:
        vendor, device, _ = key
        for candidate in (key, (vendor, device, None)):
            known = self._rooms.get(candidate)
            if known is not None:
                return Reading(known.name, known.source, known.name)
        return self._missing(what)

    def _missing(self, what: str) -> Reading:
        if len(self._bytes()) <= 1:
            kind = "not_offered" if self._root.live else "not_captured"
            return absent(PATHS[0], kind, fix=_INSTALL, detail="no file with names of PCI ids")
        return absent(self._source, "empty", fix="sudo update-pciids", detail=f"no name for {what}")


#: (vendor, device, subsystem vendor, subsystem device) as sysfs has them; None where a file is missing.
Wanted = tuple[str | None, str | None, str | None, str | None]


def lookup(
    root: SysRoot, wanted: Iterable[Wanted], rooms: Mapping[RoomKey, RoomName] | None = None
) -> dict[Wanted, tuple[Reading, Reading]]:
    """(name of the vendor, name of the device) of each; those without a vendor or device id are left out."""
    names = PciNames(root, rooms)
    return {key: (names.vendor(key[0]), names.device(key[0], key[1], key[3])) for key in wanted if key[0] and key[1]}


def _digits(number: str) -> str:
    """Four lower-case hexadecimal digits, without 0x."""
    return number.lower().removeprefix("0x").rjust(4, "0")
