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

from accelctl.hal import drmfdinfo
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


_BEHIND = ("/dev/", "dmabuf", "/drm mm object", "anon_inode:i915.gem")


def mappings(text: str) -> dict[tuple[str, int], int]:
    """(name, inode) -> bytes, of the mappings in /proc/PID/maps behind which a device or a buffer may stand. A program
    has hundreds of others, so lines are looked for rather than looked at."""
    found: dict[tuple[str, int], int] = {}
    for start in sorted(_lines_with(text, _BEHIND)):
        end = text.find("\n", start)
        words = text[start : end if end >= 0 else len(text)].split(None, 5)
        first, dash, last = words[0].partition("-")
        if len(words) == 6 and dash and words[4].isascii() and words[4].isdigit():
            at = words[5], int(words[4])
            found[at] = found.get(at, 0) + int(last, 16) - int(first, 16)
    return found


def _lines_with(text: str, marks: Iterable[str]) -> set[int]:
    starts = set()
    for mark in marks:
        at = text.find(mark)
        while at >= 0:
            starts.add(text.rfind("\n", 0, at) + 1)
            end = text.find("\n", at)
            at = text.find(mark, end) if end >= 0 else -1
    return starts


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


BORING = (
    "/dev/null", "/dev/pts/", "/dev/ptmx", "/dev/tty", "/dev/console", "/dev/shm/", "/dev/urandom", "/dev/random",
)  # fmt: skip
"""Devices that nearly every process has open and that are no accelerator's."""


def may_be_device(link: str) -> bool:
    """Whether a link or a mapping's name is worth a closer look. The text alone decides nothing: in another mount
    namespace the same text may be another device and the same device another text."""
    return "/dev/" in link and not link.startswith(BORING)


def device_links(root: SysRoot, folder: str) -> dict[str, str]:
    """Number -> link, of open files that may be a device or a dma-buf; the others are not even stat'ed.

    Raises OSError where ``folder`` cannot be listed.
    """
    readlink = root.tree.readlink
    found = {}
    for number in root.tree.listdir(folder):
        try:
            text = readlink(f"{folder}/{number}")
        except FileNotFoundError:
            continue
        if "/dev/" in text:
            if not text.startswith(BORING):
                found[number] = text
        elif "dmabuf" in text:
            found[number] = text
    return found


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


def parse_drm(text: str) -> DrmFile | None:
    """The fdinfo of a DRM file; None where the driver prints no drm- lines. :mod:`drmfdinfo` says more, and forgives
    more: a book must not be added up from what was not understood."""
    fields = parse_fields(text)
    found = drmfdinfo.parse(text) if "drm-driver" in fields else None
    if found is None:
        return None
    if not found.client_id:
        raise ValueError("drm fdinfo without a client id")
    sizes: dict[str, int] = {}
    for name in fields:
        kind, _, region = name.removeprefix("drm-").partition("-")
        if not name.startswith("drm-") or kind not in ("total", "resident") or region.startswith("cycles-"):
            continue
        if name in found.unknown:
            raise ValueError(f"{name}: not a size: {fields[name][:40]!r}")
        size = getattr(found.regions.get(region), kind, None)
        if size is not None:
            sizes[f"{kind}-{region}"] = size
    return DrmFile((found.pdev or found.driver, found.client_id), sizes)


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


def exporter(text: str) -> str:
    """Who made a dma-buf, of its fdinfo: a heap's name, "udmabuf", a driver, or "drm" for most DRM drivers."""
    return parse_fields(text).get("exp_name", "")


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
