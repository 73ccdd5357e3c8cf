"""Open files and mappings of a process by what stands behind them: /proc/PID/{fd,fdinfo,maps}.

Formats: proc(5), kernel Documentation/filesystems/proc.rst, Documentation/gpu/drm-usage-stats.rst, drivers/dma-buf.
The parsers raise ValueError where a text is not what the format allows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from accelctl.hal.root import SysRoot

KINDS = ("dmabuf", "sync_file", "syncobj", "drm", "nvidia", "memfd", "device", "other")
"""Kinds of open files. ``drm``: card, render and accel nodes; ``device``: other nodes that hand out memory."""
MAP_KINDS = ("drm", "dmabuf", "nvidia", "memfd", "device", "anon", "other")
"""Kinds of mappings. ``drm`` also holds a driver's own shmem file; ``anon``: no file behind it."""

_LINKS = (
    ("dmabuf", ("/dmabuf:", "anon_inode:dmabuf")),  # the second before Linux 5.3
    ("sync_file", ("anon_inode:sync_file",)),
    ("syncobj", ("anon_inode:syncobj_file",)),
    ("drm", ("/dev/dri/", "/dev/accel/", "/drm mm object")),
    ("nvidia", ("/dev/nvidia",)),
    ("memfd", ("/memfd:",)),
    ("device", ("/dev/kfd", "/dev/vfio/", "/dev/iommu", "/dev/dma_heap/", "/dev/udmabuf", "anon_inode:[vfio-device]")),
)
_MAP = re.compile(r"^[0-9a-f]+-[0-9a-f]+ [r-][w-][x-][ps] [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ \d+(?: +(.*))?$", re.A | re.M)
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_LARGEST = 1 << 64


@lru_cache(maxsize=1024)
def kind_of(link: str) -> str:
    """What an open file is, by its link in /proc/PID/fd: one of KINDS."""
    return next((kind for kind, starts in _LINKS if link.startswith(starts)), "other")


def kind_of_map(name: str) -> str:
    """What a mapping is, by its name in /proc/PID/maps: one of MAP_KINDS. Names in brackets are the process's own."""
    if not name or name.startswith("[anon"):
        return "anon"
    kind = kind_of(name)
    return kind if kind in MAP_KINDS else "other"


def parse_maps(text: str) -> dict[str, int]:
    """Kind -> number of mappings, of /proc/PID/maps; every kind is there. Lines are many, names are few."""
    names = _MAP.findall(text)
    if len(names) != len(list(filter(None, text.split("\n")))):
        wrong = next(line for line in text.split("\n") if line and not _MAP.fullmatch(line))
        raise ValueError(f"not a line of maps: {wrong[:60]!r}")
    counts = dict.fromkeys(MAP_KINDS, 0)
    for name, count in Counter(names).items():
        counts[kind_of_map(name)] += count
    return counts


def of(pid: int | None) -> str:
    """The folder of a process below the root; None: of whoever reads."""
    return f"proc/{pid or 'self'}"


def links(root: SysRoot, pid: int | None = None) -> Iterator[tuple[str, str]]:
    """(number, link) of every open file; the one that the listing itself needs is closed by then and not among them.

    Raises OSError where they cannot be listed.
    """
    folder = f"{of(pid)}/fd"
    for number in root.tree.listdir(folder):
        try:
            yield number, root.tree.readlink(f"{folder}/{number}")
        except FileNotFoundError:
            continue


def counts(links: Iterable[str]) -> Counter[str]:
    """Open files by kind, of their links."""
    return Counter(map(kind_of, links))


def parse_fields(text: str) -> dict[str, str]:
    """fdinfo in general: ``name:<blanks>value`` lines; of names that come twice the first counts."""
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name, value.strip())
    return fields


class DrmFile(NamedTuple):
    """The memory part of one DRM file's fdinfo, in bytes. ``client``: (device, client id), the same for duplicates."""

    client: tuple[str, str]
    sizes: Mapping[str, int]
    """"total-vram", "resident-gtt", ... -> bytes"""


_SIZE = re.compile(r"(\d{1,20})(?: (KiB|MiB))?", re.ASCII)
_MEMORY = re.compile(r"drm-((?:total|resident)-[!-~]+)")


def parse_drm(text: str) -> DrmFile | None:
    """The fdinfo of a DRM file; None where the driver prints no drm- lines."""
    fields = parse_fields(text)
    if "drm-driver" not in fields:
        return None
    client = fields.get("drm-client-id", "")
    if not client.isascii() or not client.isdigit():
        raise ValueError("drm fdinfo without a client id")
    sizes: dict[str, int] = {}
    for name, value in fields.items():
        match = _MEMORY.fullmatch(name)
        if match is None:
            continue
        number = _SIZE.fullmatch(value)
        if number is None:
            raise ValueError(f"{name}: not a size: {value[:40]!r}")
        sizes[match[1]] = int(number[1]) * _UNITS[number[2] or ""]
    return DrmFile((fields.get("drm-pdev") or fields["drm-driver"], client), sizes)


def sum_clients(files: list[DrmFile]) -> dict[str, int]:
    """Name -> bytes over all clients, each of them once: descriptors of one open file print the same numbers."""
    clients = {file.client: file.sizes for file in files}
    totals: dict[str, int] = {}
    for sizes in clients.values():
        for name, size in sizes.items():
            totals[name] = totals.get(name, 0) + size
    return totals


class DmaBuf(NamedTuple):
    """The fdinfo of a dma-buf. ``size`` in bytes; ``references`` to its file: descriptors, mappings, importers;
    ``inode`` names the buffer (0: not said, before Linux 5.14)."""

    size: int
    references: int
    inode: int


def parse_dmabuf(text: str) -> DmaBuf:
    """size, count and ino lines (dma_buf_show_fdinfo; ``ino`` is fs/proc/fd.c's). A buffer's name is user's text."""
    fields = parse_fields(text)
    found = []
    for name in ("size", "count", "ino"):
        value = fields.get(name, "0" if name == "ino" else "")
        if not re.fullmatch(r"\d{1,20}", value, re.ASCII) or int(value) >= _LARGEST:
            raise ValueError(f"dma-buf fdinfo with the {name} {value[:40]!r}")
        found.append(int(value))
    return DmaBuf(*found)
