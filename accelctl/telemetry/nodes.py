"""Which device an open file or a mapping belongs to: device numbers to ids, as probe names them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from accelctl.hal.root import SysRoot
from accelctl.probes import drm

DRM_MAJORS = (226, 261)
"""DRM_MAJOR of include/drm/drm_device.h and ACCEL_MAJOR of include/drm/drm_accel.h: their files have fdinfo of DRM."""

_NUMBER = re.compile(r"([0-9]{1,9}):([0-9]{1,9})\s*\Z", re.ASCII)
_FOLDERS = ("sys/class/drm", "sys/class/accel")
_MINOR = re.compile(r"(card|renderD|controlD|accel)[0-9]{1,9}\Z")
_NAMED = ("kfd", "nvidia", "vfio/", "iommu", "dma_heap/", "udmabuf")
"""Nodes without a device of their own in sysfs, which hand out memory or devices all the same."""
_GONE = " (deleted)"
_DEV = "dev/"


class Nodes:
    """Device number -> device id. ``known`` is what a scan found; nodes that came later are looked up in sysfs."""

    def __init__(self, root: SysRoot, known: Mapping[tuple[int, int], str] | None = None) -> None:
        self._root = root
        self._ids = dict(known or {})
        self._paths: dict[tuple[int, int], str] = {}
        self._numbers: dict[str, tuple[int, int]] = {}
        self.look()

    def look(self) -> None:
        """Read the list of minors: at the start, now and then, and when a number comes that is not on it."""
        for folder in _FOLDERS:
            for name in self._root.listdir(folder):
                if _MINOR.match(name):
                    self._minor(f"{folder}/{name}", name)

    def _minor(self, link: str, name: str) -> None:
        path = self._root.resolve(link)
        match = _NUMBER.match(self._root.text(f"{path}/dev") or "")
        if match is None:
            return
        number = int(match[1]), int(match[2])
        before = self._paths.get(number)
        if before == path:
            return
        if before is not None or number not in self._ids:  # a number that came back may be another device's
            self._ids[number] = drm.identity(self._root, path)
        self._paths[number] = path
        self._numbers["/" + drm.node_path(self._root, path, name)] = number

    def ids(self) -> set[str]:
        """Devices that have DRM or accel nodes, or that the scan told of."""
        return set(self._ids.values())

    def number(self, text: str) -> tuple[int, int] | None:
        """The number of a node by its name: where nothing can be asked for it, as in a captured machine."""
        return self._numbers.get(text.removesuffix(_GONE))

    def device(self, number: tuple[int, int] | None, text: str) -> str | None:
        """The device of a character device's number, whose link reads ``text``; None: no accelerator's."""
        if number is not None:
            found = self._ids.get(number)
            if found is None and number[0] in DRM_MAJORS:
                self.look()
                found = self._ids.setdefault(number, f"node:{_name(text)}")
            if found is not None:
                return found
        name = _name(text)
        return f"node:{name}" if name.startswith(_NAMED) else None

    def maker(self, exporter: str) -> str | None:
        """The device of a dma-buf by its exporter's name, where that says it: a heap's buffers carry the heap's name,
        most DRM drivers' just "drm" (drm_gem_prime_export in drivers/gpu/drm/drm_prime.c)."""
        if exporter == "udmabuf":
            return "node:udmabuf"
        heap = f"{_DEV}dma_heap/{exporter}"
        return f"node:dma_heap/{exporter}" if exporter and "/" not in exporter and self._root.exists(heap) else None


def _name(text: str) -> str:
    return text.removesuffix(_GONE).partition(f"/{_DEV}")[2]
