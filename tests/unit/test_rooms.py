"""Chip rooms: found by their folder, chosen by the most exact row, refused with one line."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from accelctl.abi.rooms import Directory, Room, in_tree, parse_room, third_party
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


# -- plug-ins --

POINTS = "[console_scripts]\nx = x:x\n\n[accelctl.backends]\nzork = zork_chip\n"


def install(
    folder: Path, info: str = "zork_chip-1.0.dist-info", points: str = POINTS, readme: str = "METADATA"
) -> None:
    """A distribution with a room, as pip (dist-info) or an old setuptools (egg-info) lays it out."""
    (folder / info).mkdir(parents=True)
    (folder / info / readme).write_text("Metadata-Version: 2.1\nName: zork-chip\nVersion: 1.0\n")
    (folder / info / "entry_points.txt").write_text(points)
    record = "RECORD" if readme == "METADATA" else "SOURCES.txt"
    (folder / info / record).write_text("zork_chip/chip.toml,,\n" if record == "RECORD" else "zork_chip/chip.toml\n")
    (folder / "zork_chip").mkdir()
    (folder / "zork_chip" / "chip.toml").write_text(MADE_UP)


def found(monkeypatch: pytest.MonkeyPatch, *bases: str) -> list[str]:
    """Names of rooms, and problems, of the distributions on such a search path."""
    monkeypatch.delenv("ACCELCTL_PLUGINS", raising=False)
    monkeypatch.setattr("accelctl.abi.rooms.require_trusted", lambda path: None)  # root's tests run in /tmp
    monkeypatch.setattr(sys, "path", list(bases))
    rooms, problems = third_party()
    return [*(room.name for room in rooms), *problems]


@pytest.mark.parametrize(
    ("info", "readme"),
    [
        ("zork_chip-1.0.dist-info", "METADATA"),
        ("zork_chip-1.0.DIST-INFO", "METADATA"),
        ("zork_chip.egg-info", "PKG-INFO"),
    ],
)
def test_plug_ins_are_found_beside_others(
    info: str, readme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, info, readme=readme)
    (tmp_path / "other-1.dist-info").mkdir()
    (tmp_path / "old.egg-info").write_text("Name: old\n")
    assert found(monkeypatch, "/does/not/exist", str(tmp_path)) == ["zork"]


def test_the_working_directory_counts_where_the_search_path_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert found(monkeypatch, "") == ["zork"]


def test_an_egg_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    egg = tmp_path / "zork_chip-1.0-py3.egg"
    install(egg, "EGG-INFO", readme="PKG-INFO")
    assert found(monkeypatch, str(egg)) == ["zork"]


def test_a_zip_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site")
    with zipfile.ZipFile(tmp_path / "site.zip", "w") as archive:
        for file in (tmp_path / "site").rglob("*"):
            archive.write(file, file.relative_to(tmp_path / "site"))
    (line,) = found(monkeypatch, str(tmp_path / "site.zip"))
    assert line.startswith("plug-in zork: ")  # it is seen; its chip.toml is no file of its own


def test_another_finder_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Finder:
        @staticmethod
        def find_distributions(context: object) -> list[object]:
            asked.append(context)
            return []

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert found(monkeypatch) == []
    assert len(asked) == 1


def test_without_a_plug_in_the_metadata_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, points="[console_scripts]\nx = x:x\n")

    def refuse(**_: object) -> None:
        raise AssertionError("asked for nothing")

    monkeypatch.setattr("importlib.metadata.entry_points", refuse)
    assert found(monkeypatch, str(tmp_path), "/does/not/exist", "\0") == []
