"""Files in which the kernel counts what it gave out, as pure functions from text. ValueError: not understood.

Texts may hold names that any user chose (a command, a buffer's name), line breaks included: totals are taken where the
kernel prints them, never from a line that only looks like one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_KIB = re.compile(r"(\d{1,16}) kB", re.ASCII)
_CLIENT = re.compile(r".* +\d+ +\d+ +[yn] +[yn] +\d+ +\d+(?: .*)?", re.ASCII)
_TOTAL = re.compile(r"Total:? +(\d{1,12}) objects, +(\d{1,20}) bytes", re.ASCII)
_USAGE = re.compile(r" *usage: (\d{1,20})", re.ASCII)
_RANGES = re.compile(r"total: (\d{1,20}), used (\d{1,20}) free (\d{1,20})", re.ASCII)
_SHRINKABLE = re.compile(r"(\d{1,12}) shrinkable \[\d+ free\] objects, (\d{1,20}) bytes", re.ASCII)
_POOL = re.compile(r"total\t: +(\d{1,16}) of +(\d{1,16})", re.ASCII)
_AMDGPU_BO = re.compile(r"\s*0x[0-9a-f]{8}: +\d+ byte .*", re.ASCII)
_QXL_BO = re.compile(r"size \d+, pc \d+, num releases \d+", re.ASCII)
_BO_STATS = re.compile(r"allocated bos: +(\d{1,12})\nallocated bo size \(kb\): (\d{1,16})", re.ASCII)
_SLAB = re.compile(r"(\S+) +(\d{1,16}) +(\d{1,16}) +\d+ ", re.ASCII)


def number(text: str) -> int:
    """A file that is one number."""
    if not re.fullmatch(r"\d{1,20}", text.strip(), re.ASCII):
        raise ValueError(f"not a number: {text[:40]!r}")
    return int(text)


def kib_fields(text: str) -> dict[str, int]:
    """Name -> bytes, of the lines with "kB" in /proc/meminfo and /proc/PID/status."""
    fields: dict[str, int] = {}
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        match = _KIB.fullmatch(value.strip()) if colon and "kB" in value else None
        if match is not None:
            fields.setdefault(name, int(match[1]) << 10)
    return fields


def field(fields: Mapping[str, int], name: str) -> int:
    """One of them; ValueError where it is missing."""
    if name not in fields:
        raise ValueError(f"no line {name}")
    return fields[name]


def slabs(text: str) -> dict[str, int]:
    """Cache -> active objects, of /proc/slabinfo 2.x."""
    lines = text.split("\n")
    if not lines[0].startswith("slabinfo - version: 2."):
        raise ValueError("not a slabinfo of version 2")
    found: dict[str, int] = {}
    for line in lines[1:]:
        if not line or line.startswith("#"):
            continue
        match = _SLAB.match(line)
        if match is None:
            raise ValueError(f"not a line of slabinfo: {line[:60]!r}")
        found[match[1]] = int(match[2])
    return found


def closing_total(text: str) -> tuple[int, int]:
    """(objects, bytes) of the last line: dma_buf/bufinfo, and GEM lists of the same form."""
    match = _TOTAL.fullmatch(text.rstrip("\n").rpartition("\n")[2])
    if match is None:
        raise ValueError("no closing line with objects and bytes: cut off, or another format")
    return int(match[1]), int(match[2])


def clients(text: str) -> int:
    """Open DRM files, of debugfs dri/N/clients. A command's line break makes a line that is no client's."""
    head, _, rest = text.partition("\n")
    if "command" not in head or "magic" not in head:
        raise ValueError("not a table of DRM clients")
    return sum(_CLIENT.fullmatch(line) is not None for line in rest.split("\n"))


def ttm_usage(text: str) -> int:
    """Bytes in use, of a TTM resource manager's file (ttm_resource_manager_debug)."""
    for line in text.split("\n"):
        match = _USAGE.fullmatch(line)
        if match is not None:
            return int(match[1])
    raise ValueError("no usage line")


def mm_used(text: str) -> int:
    """Bytes or pages in use, of a drm_mm range manager's closing line (drm_mm_print)."""
    last = text.rstrip("\n").rpartition("\n")[2]
    match = _RANGES.fullmatch(last)
    if match is None:
        raise ValueError(f"no closing line of a range manager but {last[:60]!r}")
    return int(match[2])


def pooled_pages(text: str) -> int:
    """Pages that TTM keeps for later, of debugfs ttm/page_pool: its closing line."""
    match = _POOL.fullmatch(text.rstrip("\n").rpartition("\n")[2])
    if match is None:
        raise ValueError("no closing line of the page pools")
    return int(match[1])


def i915_objects(text: str) -> tuple[int, int]:
    """(objects, bytes) that can be shrunk, of i915_gem_objects' first line."""
    match = _SHRINKABLE.fullmatch(text.partition("\n")[0])
    if match is None:
        raise ValueError("no line of shrinkable objects")
    return int(match[1]), int(match[2])


def v3d_stats(text: str) -> tuple[int, int]:
    """(objects, bytes) of v3d's bo_stats."""
    match = _BO_STATS.fullmatch(text.strip())
    if match is None:
        raise ValueError("not v3d's object statistics")
    return int(match[1]), int(match[2]) << 10


def amdgpu_handles(text: str) -> int:
    """Handles of all clients, of amdgpu_gem_info (a line "0xID: SIZE byte DOMAIN ..." each)."""
    return sum(_AMDGPU_BO.fullmatch(line) is not None for line in text.split("\n"))


def qxl_objects(text: str) -> int:
    """Objects of the device, of qxl_buffers, which has one line for each and nothing else."""
    lines = [line for line in text.split("\n") if line]
    if not all(_QXL_BO.fullmatch(line) for line in lines):
        raise ValueError("not qxl's list of objects")
    return len(lines)
