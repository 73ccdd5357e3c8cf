"""Chip rooms: found by their folder, chosen by the most exact row, refused with one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelctl.abi.rooms import Directory, Room, in_tree, parse_room
from accelctl.errors import UsageError
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import MemoryTree
from accelctl.probes.scan import look

MADE_UP = """
schema = "accelctl.chip/1"
name = "zork"
title = "Zork Z1 accelerator"
vendor = "Zork"
kind = "npu"
proven = "unproven"
visible_env = ["ZORK_VISIBLE_DEVICES"]
[[pci]]
vendor = "0xabcd"
device = "0x0001"
name = "Zork Z1"
source = "made up for this test"
[[module]]
name = "zork"
role = "kernel"
source = "made up for this test"
[[node]]
glob = "dev/zork[0-9]*"
role = "device"
per_device = true
source = "made up for this test"
[[attr]]
path = "zork_temp"
key = "zork/temperature_celsius"
conv = "milli"
unit = "celsius"
scope = "volatile"
effect = "free"
source = "made up for this test"
"""


def room(text: str, name: str = "x") -> Room:
    return parse_room(text, Path("/nowhere") / name, "in-tree")


HEAD = 'schema = "accelctl.chip/1"\ntitle = "t"\nvendor = "v"\nkind = "gpu"\nproven = "unproven"\n'


def minimal(name: str, rows: str) -> Room:
    return room(f'{HEAD}name = "{name}"\n{rows}', name)


def test_a_chip_is_added_by_adding_one_folder(tmp_path: Path) -> None:
    (tmp_path / "zork").mkdir()
    (tmp_path / "zork" / "chip.toml").write_text(MADE_UP)
    tree = MemoryTree("made up")
    base = "sys/devices/pci0000:00/0000:05:00.0"
    for name, text in {
        "vendor": "0xabcd\n",
        "device": "0x0001\n",
        "class": "0x00ff00\n",
        "zork_temp": "41500\n",
    }.items():
        tree.add_file(f"{base}/{name}", text.encode())
    tree.add_link(f"{base}/driver", "../../../bus/pci/drivers/zork")
    tree.add_link("sys/bus/pci/devices/0000:05:00.0", "../../../devices/pci0000:00/0000:05:00.0")
    scan = look(SysRoot(tree), in_tree(tmp_path))
    device = scan.devices["0000:05:00.0"]
    assert device.chip == "zork"
    assert device.value("name") == "Zork Z1"
    reading = device.facts["zork/temperature_celsius"]
    assert (reading.value, reading.raw, reading.source, reading.unit) == (41.5, "41500", f"{base}/zork_temp", "celsius")
    assert scan.machine["ordinals/zork/order"].value == ["0000:05:00.0"]


def test_without_the_folder_the_same_function_is_not_an_accelerator() -> None:
    tree = MemoryTree("made up")
    for name, text in {"vendor": "0xabcd\n", "device": "0x0001\n", "class": "0x00ff00\n"}.items():
        tree.add_file(f"sys/bus/pci/devices/0000:05:00.0/{name}", text.encode())
    assert look(SysRoot(tree), ()).devices == {}


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (("0x1ae0", "0x0027", "0x120000", "0x004e"), "with_subsystem"),
        (("0x1ae0", "0x0027", "0x120000", "0x9999"), "device_only"),
        (("0x1ae0", "0x7777", "0x030000", None), "class_only"),
        (("0x1ae0", "0x7777", "0x020000", None), "vendor_only"),
        (("0x9999", "0x0027", "0x120000", None), None),
        ((None, None, None, None), None),
    ],
)
def test_the_most_exact_row_wins(ids: tuple[str | None, ...], expected: str | None) -> None:
    rooms = [
        minimal("vendor_only", '[[pci]]\nvendor = "0x1ae0"'),
        minimal("class_only", '[[pci]]\nvendor = "0x1ae0"\nclass = "0x03"'),
        minimal("device_only", '[[pci]]\nvendor = "0x1AE0"\ndevice = "0x0027"'),
        minimal("with_subsystem", '[[pci]]\nvendor = "0x1ae0"\ndevice = "0x0027"\nsubsystem_device = "0x004e"'),
    ]
    found = Directory(rooms).pci(*ids)
    assert (found[0].name if found else None) == expected


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "schema"),
        ("schema = 3", "schema"),
        ('schema = "accelctl.chip/2"', "accelctl.chip/2"),
        ('schema = "accelctl.chip/1"', "name"),
        ("[[[", "TOML"),
        ('schema = "accelctl.chip/1"\npci = [1]', "array of tables"),
    ],
)
def test_a_bad_room_is_one_line(text: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        room(text)
    assert word.lower() in str(caught.value.message).lower()
    assert "\n" not in caught.value.message


def test_every_in_tree_room_parses() -> None:
    rooms = in_tree()
    assert len(rooms) >= 30
    assert all(one.name == one.folder.name for one in rooms)
