"""Books of one process: exact, free of other users, and readable without root."""

from __future__ import annotations

import errno
from collections.abc import Callable

from accelctl.abi.lifecycle import CPU_MAP, FD, GPU_MAP, HANDLE, Counter
from accelctl.hal import bookfile, fdinfo
from accelctl.stress.books.book import Book, NotApplicable, Place

_FDS = {
    "dmabuf": "exports and imports whose descriptor stays open",
    "sync_file": "fences handed out and not closed",
    "syncobj": "sync objects handed out as files",
    "drm": "a device opened again and not closed, or kept by a mapping's duplicate",
    "nvidia": "control, device and mapping files of nvidia",
    "memfd": "host memory for udmabuf and tests",
    "device": "KFD, VFIO, iommufd, dma-heap and udmabuf nodes",
    "other": "whatever else stays open",
}
_MAPS = {
    "drm": "CPU mappings of objects",
    "dmabuf": "CPU mappings of dma-bufs",
    "nvidia": "CPU mappings through nvidia's files",
    "memfd": "CPU mappings of memfds",
    "device": "mappings of KFD, VFIO and dma-heap files",
    "anon": "reservations of address space; also the interpreter's own arenas",
    "other": "mappings of plain files",
}

_OWN = ("anon", "other")
"""The interpreter maps these too, when it feels like it."""


def _links(place: Place) -> dict[str, str]:
    """Number -> link of every open file. OSError where they cannot be listed."""
    return place.once("fds", lambda: dict(fdinfo.links(place.root, place.pid)))


def _fds(kind: str) -> Callable[[Place], int]:
    return lambda place: place.once("kinds of fds", lambda: fdinfo.counts(_links(place).values()))[kind]


def _maps(kind: str) -> Callable[[Place], int]:
    return lambda place: place.shared(f"{fdinfo.of(place.pid)}/maps", fdinfo.parse_maps)[kind]


def _status(field: str) -> Callable[[Place], int]:
    def read(place: Place) -> int:
        return bookfile.field(place.shared(f"{fdinfo.of(place.pid)}/status", bookfile.kib_fields), field)

    return read


def _drm_files(place: Place) -> list[fdinfo.DrmFile]:
    """What the open files of this device say. OSError where none is open or the driver prints nothing."""
    nodes = {node for node in (place.target.node, *place.target.others) if fdinfo.kind_of(node) == "drm"}
    if not nodes:
        raise NotApplicable(errno.ENODEV, f"{place.target.node} is no DRM device")
    numbers = [number for number, link in _links(place).items() if link in nodes]
    if not numbers:
        raise OSError(errno.ENODEV, "the process has no file of this device open")
    found = [fdinfo.parse_drm(place.text(f"{fdinfo.of(place.pid)}/fdinfo/{number}")) for number in numbers]
    files = [file for file in found if file is not None]
    if not files:
        raise OSError(errno.EOPNOTSUPP, f"{place.target.driver or place.target.node} prints no drm lines in fdinfo")
    return files


def _drm_counters(book: Book, place: Place) -> tuple[Counter, ...]:
    def reader(name: str) -> Callable[[], int]:
        return lambda: fdinfo.sum_clients(_drm_files(place)).get(name, 0)

    names = sorted(fdinfo.sum_clients(_drm_files(place)))
    return tuple(
        Counter(f"fdinfo-{n}", "bytes", book.scope, book.source, reader(n), True, book.settle_s, 0, book.kind)
        for n in names
    )


def _dmabufs(place: Place) -> list[fdinfo.DmaBuf]:
    numbers = [number for number, link in _links(place).items() if fdinfo.kind_of(link) == "dmabuf"]
    return [fdinfo.parse_dmabuf(place.text(f"{fdinfo.of(place.pid)}/fdinfo/{number}")) for number in numbers]


def _each(found: list[fdinfo.DmaBuf]) -> list[fdinfo.DmaBuf]:
    """Every buffer once, however many descriptors it has; without inode numbers each descriptor counts."""
    return list({buf.inode or ("fd", index): buf for index, buf in enumerate(found)}.values())


BOOKS: tuple[Book, ...] = (
    *(
        Book(f"fds-{kind}", "descriptors", "process", "proc/PID/fd", why, _fds(kind), kind=FD)
        for kind, why in _FDS.items()
    ),
    *(
        Book(f"maps-{kind}", "mappings", "process", "proc/PID/maps", why, _maps(kind), kind not in _OWN, kind=CPU_MAP)
        for kind, why in _MAPS.items()
    ),
    Book("rss", "bytes", "process", "proc/PID/status VmRSS", "memory of the process", _status("VmRSS"), exact=False),
    Book("vmlck", "bytes", "process", "proc/PID/status VmLck", "locked and VFIO pages", _status("VmLck"), kind=GPU_MAP),
    Book("vmpin", "bytes", "process", "proc/PID/status VmPin", "pinned pages", _status("VmPin"), kind=GPU_MAP),
    Book(
        "fdinfo", "bytes", "process", "proc/PID/fdinfo drm-total-*, drm-resident-*",
        "objects behind handles, by memory region", settle_s=1.0, kind=HANDLE, find=_drm_counters,
    ),
    Book(
        "dmabuf-bytes", "bytes", "process", "proc/PID/fdinfo size", "buffers that the process has open",
        lambda place: sum(buf.size for buf in _each(_dmabufs(place))), kind=FD,
    ),
    Book(
        "dmabuf-references", "references", "process", "proc/PID/fdinfo count",
        "importers and mappings of the buffers that the process has open",
        lambda place: sum(buf.references for buf in _each(_dmabufs(place))), kind=FD,
    ),
)  # fmt: skip
