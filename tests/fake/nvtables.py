"""NVIDIA's structures as a release has them: the table's newest layout, taken back change by change.

Sizes of every result are compared with the table's sizes per release, so that a wrong step back is an error here and
not a wrong judgement on the product.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.fake.tables import Call, Field, Layout, table
from tests.fake.things import FakeError

Release = tuple[int, ...]
_REMOVED = {"UVM_FREE_PARAMS": [("length", 8, "base")]}
"""Fields that newer releases have not: name, size, what it comes after. The table names them without a size."""
_RESIZED = {"UVM_MAP_EXTERNAL_ALLOCATION_PARAMS": ("perGpuAttributes", 32 * 36)}
"""Arrays that were shorter before a change: 32 GPUs, now 256."""
_INSIDE = {"UVM_MAP_EXTERNAL_ALLOCATION_PARAMS": (550, 40, 53)}
"""Changes inside one major version."""
_ALIGN = {"perGpuAttributes": 4}


def release_of(text: str) -> Release:
    """(550, 90, 7)."""
    return tuple(int(part) for part in text.split("."))


def _since(struct: str, key: str) -> Release:
    """From which release on a change holds: tables compare one release per major version."""
    return _INSIDE.get(struct, (int(key.partition(".")[0]),))


def size_of(name: str, release: Release) -> int | None:
    """sizeof in a release; None where it has no such structure."""
    entry = table("nvidia").raw["structs"][name]
    sizes: Any = entry.get("sizeof_by_release")
    if not isinstance(sizes, dict):
        return int(entry["sizeof"])
    held: list[int | None] = [
        value for key, value in sizes.items() if key == "525.147.05" or release >= _since(name, key)
    ]
    return held[-1]


@cache
def layout(name: str, release: Release) -> Layout:
    """The structure in a release. FakeError where the steps back do not lead to its size."""
    entry, newest = table("nvidia").raw["structs"][name], table("nvidia").layout(name)
    undone = [change for change in entry.get("changes") or () if release < _since(name, change["to"])]
    if not undone:
        return newest
    aggregates = {field["name"] for field in entry["fields"] if field.get("aggregate")}
    fields = [field for field in newest.fields.values() if field.name not in aggregates]
    for change in reversed(undone):
        fields = [field for field in fields if field.name not in change.get("added", ())]
        for added, size, after in _REMOVED.get(name, ()) if "removed" in change else ():
            place = next(n for n, field in enumerate(fields) if field.name == after)
            fields.insert(place + 1, Field(added, 0, size, False))
        if name in _RESIZED:
            array, size = _RESIZED[name]
            fields = [field._replace(size=size) if field.name == array else field for field in fields]
    laid = _lay(name, fields)
    if laid.size != size_of(name, release):
        raise FakeError(f"{name} in {release}: {laid.size} bytes, the table says {size_of(name, release)}")
    return laid


def _lay(name: str, fields: list[Field]) -> Layout:
    at, most, laid = 0, 1, []
    for field in fields:
        align = _ALIGN.get(field.name, field.size if field.size <= 8 else 1)
        at, most = -(-at // align) * align, max(most, align)
        laid.append(field._replace(offset=at))
        at += field.size
    return Layout(name, -(-at // most) * most, laid)


def escapes(release: Release) -> dict[tuple[int, int], Call]:
    """(command, size) -> escape. CARD_INFO has size 0 here: an array of any length."""
    found = {}
    for name, entry in table("nvidia").raw["ioctls"].items():
        for struct in (entry["struct"], entry.get("alternative", {}).get("struct")):
            if struct not in table("nvidia").raw["structs"] or size_of(struct, release) is None:
                continue
            shape = layout(struct, release) if name in SERVED else table("nvidia").layout(struct)
            number = 3 << 30 | shape.size << 16 | ord("F") << 8 | int(entry["cmd"], 16)
            key = (int(entry["cmd"], 16), 0 if entry.get("array") else shape.size)
            found[key] = Call(name, number, frozenset({number}), shape, (entry.get("device", ""), _status(entry)))
    return found


def _status(entry: dict[str, Any]) -> str:
    return entry.get("status_field") or ""


def uvm_calls(release: Release) -> dict[int, Call]:
    """Number -> UVM call."""
    found = {}
    for name, entry in table("nvidia").raw["uvm"].items():
        struct = entry.get("struct")
        if name not in SERVED_UVM or (struct and size_of(struct, release) is None):
            continue
        shape = layout(struct, release) if struct else Layout("nothing", 0, [])
        found[entry["value"]] = Call(name, entry["value"], frozenset({entry["value"]}), shape, ("uvm", _status(entry)))
    return found


SERVED = {
    "NV_ESC_CARD_INFO",
    "NV_ESC_REGISTER_FD",
    "NV_ESC_RM_ALLOC",
    "NV_ESC_RM_FREE",
    "NV_ESC_RM_CONTROL",
    "NV_ESC_RM_ALLOC_MEMORY",
    "NV_ESC_RM_MAP_MEMORY",
    "NV_ESC_RM_UNMAP_MEMORY",
    "NV_ESC_RM_MAP_MEMORY_DMA",
    "NV_ESC_RM_UNMAP_MEMORY_DMA",
}
SERVED_UVM = {
    "UVM_INITIALIZE",
    "UVM_MM_INITIALIZE",
    "UVM_REGISTER_GPU",
    "UVM_UNREGISTER_GPU",
    "UVM_REGISTER_GPU_VASPACE",
    "UVM_UNREGISTER_GPU_VASPACE",
    "UVM_CREATE_EXTERNAL_RANGE",
    "UVM_MAP_EXTERNAL_ALLOCATION",
    "UVM_UNMAP_EXTERNAL",
    "UVM_FREE",
    "UVM_DEINITIALIZE",
}


def status(name: str) -> int:
    """A status by its name without NV_ERR_."""
    return int(table("nvidia").raw["status_codes"][name if name == "NV_OK" else f"NV_ERR_{name}"], 16)


def klass(name: str) -> int:
    """A class by name."""
    return int(table("nvidia").raw["classes"][name], 16)
