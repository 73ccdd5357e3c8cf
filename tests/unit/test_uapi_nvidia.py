"""hal/uapi/nvidia: sizes and layouts by release, against an independent table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accelctl.errors import AbiError
from accelctl.hal.uapi import nvidia
from accelctl.hal.uapi._struct import Ioctl, Struct
from tests.unit.test_uapi import compare_layout, facts

COMPARED = [
    "525.147.05",
    "530.41.03",
    "535.288.01",
    "545.29.06",
    "550.163.01",
    "555.58.02",
    "560.35.03",
    "565.77",
    "570.211.01",
    "575.64.05",
    "580.142",
    "590.48.01",
    "595.45.04",
]
"""The releases that the table's sizes come from."""


@pytest.fixture(scope="module")
def known(shared: Path) -> dict[str, Any]:
    file = shared / "uapi" / "nvidia.json"
    if not file.is_file():
        pytest.skip(f"no table {file}")
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def at(by_release: dict[str, int | None], release: str) -> int | None:
    """A key is the first release that has the value, valid until the next key."""
    found = None
    for since, value in by_release.items():
        if nvidia.parse_release(since) <= nvidia.parse_release(release):
            found = value
    return found


def calls_of(release: str) -> list[Ioctl]:
    return [value for value in nvidia.calls(nvidia.parse_release(release)) if isinstance(value, Ioctl)]


def test_the_newest_layouts_equal_the_table(known: dict[str, Any]) -> None:
    versioned = {id(layout) for layouts in nvidia.VERSIONED.values() for _, layout in layouts[:-1]}
    for layout in facts("nvidia").structs:
        if id(layout) not in versioned:
            compare_layout(layout, known["structs"][layout.name])


def test_constants_equal_the_table(known: dict[str, Any]) -> None:
    sources = {key: int(value, 16) for part in ("classes", "status_codes") for key, value in known[part].items()}
    sources |= {key: int(value["cmd"], 16) for key, value in known["controls"].items()}
    sources |= known["constants"]
    ours = {key: value for key, value in facts("nvidia").constants.items() if key.startswith("NV")}
    assert {key: sources.get(key) for key in ours} == ours
    assert len(ours) > 20


@pytest.mark.parametrize("release", COMPARED)
def test_calls_of_a_release_equal_the_table(release: str, known: dict[str, Any]) -> None:
    seen = set()
    for call in calls_of(release):
        seen.add(call.name)
        size = call.struct.size if call.struct else 0
        if call.name in known["uvm"]:
            entry = known["uvm"][call.name]
            assert call.number == entry["value"], call.name
        else:
            entry = known["ioctls"][call.name]
            assert call.number == (3 << 30) | size << 16 | ord("F") << 8 | int(entry["cmd"], 16), call.name
        if call.struct and call.struct.name == "NVOS21_PARAMETERS":
            entry = entry["alternative"]
        assert (call.struct.name if call.struct else None) == entry["struct"], call.name
        by_release = entry.get("sizeof_by_release")
        assert size == (at(by_release, release) if by_release else entry["sizeof"]), call.name
    gone = {name for name in ("UVM_MM_INITIALIZE",) if at(known["uvm"][name]["sizeof_by_release"], release) is None}
    assert seen & gone == set()
    assert len(seen) + len(gone) == 23


def test_numbers_of_the_newest_release(known: dict[str, Any]) -> None:
    for call in calls_of("595.45.04"):
        if call.name in known["ioctls"] and call.struct and call.struct.name != "NVOS21_PARAMETERS":
            assert call.number == int(known["ioctls"][call.name]["nr"], 16), call.name


@pytest.mark.parametrize("name", nvidia.VERSIONED)
def test_what_changed_is_what_the_table_says(name: str, known: dict[str, Any]) -> None:
    """Fields added and removed, sizes by release, and natural alignment of the older layouts."""
    (_, old), (_, new) = nvidia.VERSIONED[name]
    history = known["version_differences"]
    changes = history["same_size_layout_changes"].get(name) or history["structs"][name]["changes"]
    assert new.fields.keys() - old.fields.keys() == {field for step in changes for field in step.get("added", [])}
    assert old.fields.keys() - new.fields.keys() == {field for step in changes for field in step.get("removed", [])}
    by_release = history["structs"].get(name, {}).get("sizeof_by_release")
    for release in COMPARED:
        layout = nvidia.layout(name, nvidia.parse_release(release))
        assert layout.size == (at(by_release, release) if by_release else known["structs"][name]["sizeof"]), release
    common = [field for field in old.fields if field in new.fields]
    assert common == [field for field in new.fields if field in old.fields]  # the order stayed
    naturally_aligned(old)


def naturally_aligned(layout: Struct) -> None:
    end, widest = 0, 1
    for field in layout.fields.values():
        align = 4 if field.codec.format[-1] == "s" else field.size  # perGpuAttributes begins behind a u64
        assert field.offset == (end + align - 1) // align * align, f"{layout.name} {field.name}"
        end, widest = field.offset + field.size, max(widest, align)
    assert layout.size == (end + widest - 1) // widest * widest


def test_where_the_status_lies() -> None:
    """Known places: NVOS21 at 24 to 530 and 28 from 535; external allocations at 1196 to 550.40.07, then 9260."""

    def place(name: str, field: str, text: str) -> int:
        return nvidia.layout(name, nvidia.parse_release(text)).offset_of(field)

    assert place("NVOS21_PARAMETERS", "status", "530.41.03") == 24
    assert place("NVOS21_PARAMETERS", "status", "535.43.02") == 28
    assert place("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "rmStatus", "550.40.07") == 1196
    assert place("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "rmStatus", "550.40.53") == 9260


def test_every_call_has_a_status_or_is_known_to_have_none() -> None:
    silent = {"NV_ESC_REGISTER_FD", "NV_ESC_CHECK_VERSION_STR", "NV_ESC_CARD_INFO", "UVM_DEINITIALIZE"}
    for call in calls_of("595.45.04"):
        names = set(call.struct.fields) if call.struct else set()
        assert bool(names & {"status", "params_status", "rmStatus"}) is (call.name not in silent), call.name


@pytest.mark.parametrize("text", ["470.256.02", "524.99", "610.43.03", "0"])
def test_releases_without_a_known_layout_are_refused(text: str) -> None:
    with pytest.raises(AbiError, match="known for 525 to 595"):
        nvidia.calls(nvidia.parse_release(text))


def test_buffers_for_unified_memory() -> None:
    packed = nvidia.UVM_MM_INITIALIZE.layout.pack(uvmFd=7)
    buffer = nvidia.uvm_buffer(packed, 0xA5)
    assert (len(buffer), buffer[:8], set(buffer[8:])) == (nvidia.UVM_BUFFER_BYTES, packed, {0xA5})
    assert max(layout.size for layout in facts("nvidia").structs) <= nvidia.UVM_BUFFER_BYTES
    with pytest.raises(ValueError, match="16385 bytes"):
        nvidia.uvm_buffer(bytearray(16385))
