"""Names of PCI ids: the same as a full parse gives, with their line, and from chip rooms where the file is silent."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from accelctl.hal.pciids import PATHS, PciNames, RoomKey, RoomName, lookup
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import LiveTree, MemoryTree

TEXT = """\
# comment
# 10de  not this
001c  PEAK-System
\t0001  PCAN
10de  NVIDIA Corporation
\t2684  AD102 [GeForce RTX 4090]
\t\t1043 889a  ROG Strix
\t\t10de 16f4  Founders
# 2704  not this
\t2704  AD103 [GeForce RTX 4080]
\t\t1043 2684  Card that looks like a device
1d94  Chengdu Haiguang IC Design Co., Ltd.
\t6211  K100_AI [\u00e9]
ffff  Illegal Vendor ID


# classes
C 03  Display controller
\t00  VGA compatible controller
\t\t00  VGA controller"""


def with_file(text: str = TEXT, path: str = PATHS[0]) -> SysRoot:
    tree = MemoryTree("captured")
    tree.add_file(path, text.encode())
    return SysRoot(tree)


def test_names_and_the_lines_they_stand_on() -> None:
    names = PciNames(with_file())
    vendor = names.vendor("0x10DE")
    assert (vendor.value, vendor.source, vendor.raw) == (
        "NVIDIA Corporation",
        "usr/share/misc/pci.ids line 5",
        "10de  NVIDIA Corporation",
    )
    assert names.device("10de", "2704").source.endswith("line 10")
    assert names.device("0x1d94", "0x6211").value == "K100_AI [\u00e9]"
    card = names.subsystem("10de", "2684", "0x1043", "0x889a")
    assert (card.value, card.source) == ("ROG Strix", "usr/share/misc/pci.ids line 7")
    assert names.vendor("001c").value == "PEAK-System"
    assert names.vendor("ffff").value == "Illegal Vendor ID"


@pytest.mark.parametrize(
    ("vendor", "device"), [("001c", "2684"), ("10de", "6211"), ("10de", "1043"), ("10de", "0001"), ("c 03", "0000")]
)
def test_names_do_not_leak_from_another_block(vendor: str, device: str) -> None:
    reading = PciNames(with_file()).device(vendor, device)
    assert reading.value is None
    assert reading.absence is not None
    assert reading.absence.kind == "empty"
    assert f"{vendor}:{device}" in str(reading.absence.detail)


def test_card_of_another_device_is_not_taken() -> None:
    assert PciNames(with_file()).subsystem("10de", "2704", "1043", "889a").value is None
    assert PciNames(with_file()).subsystem("10de", "9999", "1043", "889a").value is None


def test_rooms_fill_what_the_file_lacks() -> None:
    rooms: dict[RoomKey, RoomName] = {
        ("1ae0", "0027", "004e"): RoomName("TPU v2", "google/chip.toml"),
        ("1ae0", "0027", None): RoomName("TPU", "google/chip.toml"),
        ("1ae0", None, None): RoomName("Google", "google/chip.toml"),
        ("10de", "2704", None): RoomName("must not win", "x"),
    }
    names = PciNames(with_file(), rooms)
    assert (names.device("1ae0", "27", "0x004e").value, names.device("1ae0", "0027").value) == ("TPU v2", "TPU")
    assert names.device("1ae0", "0027", "9999").value == "TPU"
    assert names.vendor("1ae0").source == "google/chip.toml"
    assert names.device("10de", "2704").value == "AD103 [GeForce RTX 4080]"


def test_lookup_of_many() -> None:
    found = lookup(
        with_file(), {("0x10de", "0x2704", None, None), (None, "0x1", None, None), ("0x1", None, None, None)}
    )
    ((key, (vendor, device)),) = found.items()
    assert (key[1], vendor.value, device.value) == ("0x2704", "NVIDIA Corporation", "AD103 [GeForce RTX 4080]")


def test_captured_machine_without_a_file_uses_the_running_machines() -> None:
    vendor = PciNames(SysRoot(MemoryTree("captured"))).vendor("10de")
    if any(os.path.exists("/" + path) for path in PATHS):
        assert vendor.value == "NVIDIA Corporation"
        assert "of the running machine line" in vendor.source
    else:
        assert vendor.absence is not None
        assert vendor.absence.kind == "not_captured"
        assert "apt install pci.ids" in str(vendor.absence.fix)


@pytest.mark.parametrize("text", ["", "\n\n", "10de", "10de  ", "10de  X\n\t", "\t2704  no vendor above"])
def test_damaged_files_give_no_names_and_no_errors(text: str) -> None:
    names = PciNames(with_file(text))
    assert names.vendor("10de").value in (None, "", "X", "NVIDIA Corporation")  # the last: the running machine's file
    assert names.device("10de", "2704").value in (None, "AD103 [GeForce RTX 4080]")


def test_all_names_equal_a_full_parse() -> None:
    """Oracle: a line-by-line parse of the machine's own file."""
    path = next((path for path in PATHS if os.path.exists("/" + path)), None)
    if path is None:
        pytest.skip("no pci.ids on this machine (apt install pci.ids)")
    expected: dict[tuple[str, ...], tuple[str, int]] = {}
    vendor = device = ""
    for number, line in enumerate(Path("/" + path).read_text(encoding="utf-8").split("\n"), 1):
        if line.startswith("C "):
            break
        if line.startswith("\t\t"):
            expected[vendor, device, line[2:6], line[7:11]] = line[11:].strip(), number
        elif line.startswith("\t"):
            device = line[1:5]
            expected[vendor, device] = line[5:].strip(), number
        elif line and not line.startswith("#"):
            vendor = line[:4]
            expected[(vendor,)] = line[4:].strip(), number
    names = PciNames(SysRoot(LiveTree()))
    for key in random.Random(7).sample(sorted(expected), 3000):
        if len(key) == 4:
            reading = names.subsystem(*key)
        else:
            reading = names.device(*key) if len(key) == 2 else names.vendor(*key)
        assert (reading.value, reading.source) == (expected[key][0], f"{path} line {expected[key][1]}")
