"""Reading below a root: every way a path can go wrong is an absence with its reason, and nothing leaves the root."""

from __future__ import annotations

import errno
import json
import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelctl.errors import UsageError
from accelctl.hal.child import Watch
from accelctl.hal.manifest import SCHEMA, Manifest, Node
from accelctl.hal.reader import run_watched
from accelctl.hal.root import READ_LIMIT, SysRoot, open_root
from accelctl.hal.tree import PAGE, DirTree, LiveTree, MemoryTree, NodeStat, Tree, read_fd

CARD = "sys/devices/pci0000:00/0000:03:00.0"
SECRET = b"outside the root\n"


def build(folder: Path) -> None:
    """A small machine in a folder, with everything in it that a capture may hold."""
    card = folder / CARD
    card.mkdir(parents=True)
    (card / "vendor").write_bytes(b"0x10de\n")
    (card / "device").write_bytes(b"0x2684\0\0\0 \n" + b"\0" * 4085)
    (card / "numa_node").write_bytes(b"")
    (card / "class").write_bytes(b"what\n")
    (card / "revision").write_bytes(b"\xff\xfe")
    (card / "current_link_speed").write_bytes(b"16.0 GT/s PCIe\n")
    (card / "irq").mkdir()
    (folder / "sys/bus/pci/devices").mkdir(parents=True)
    os.symlink("../../../devices/pci0000:00/0000:03:00.0", folder / "sys/bus/pci/devices/0000:03:00.0")
    os.symlink(f"/{CARD}", folder / "sys/absolute")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "machine"
    inside.mkdir()
    (tmp_path / "vendor").write_bytes(SECRET)
    build(inside)
    return inside


def kind(root: SysRoot, path: str, conv: str = "text") -> str | None:
    reading = root.read(path, conv)
    assert (reading.value is None) == (reading.absence is not None)
    return reading.absence.kind if reading.absence is not None else None


# -- facts --


def test_value_with_its_evidence(folder: Path) -> None:
    root = open_root(str(folder))
    assert not root.live
    reading = root.read("sys/bus/pci/devices/0000:03:00.0/vendor", "hex")
    assert (reading.value, reading.raw, reading.source) == (
        "0x10de",
        "0x10de",
        "sys/bus/pci/devices/0000:03:00.0/vendor",
    )
    padded = root.read(f"{CARD}/device", "hex")
    assert (padded.value, padded.raw) == ("0x2684", "0x2684")
    assert root.read("sys/absolute/vendor").value == "0x10de"
    assert root.resolve("sys/bus/pci/devices/0000:03:00.0") == CARD
    assert root.link("sys/bus/pci/devices/0000:03:00.0").value == "0000:03:00.0"
    assert root.listdir("sys") == ["absolute", "bus", "devices"]


@pytest.mark.parametrize(
    ("name", "conv", "expected"),
    [
        ("numa_node", "int", "empty"),
        ("class", "hex", "malformed"),
        ("revision", "int", "malformed"),
        ("irq", "int", "malformed"),
        ("boot_vga", "bool", "not_captured"),
        ("rom", "text", "not_allowed"),
        ("vendor/device", "text", "not_captured"),
        ("x" * 300 + "/vendor", "text", "malformed"),
    ],
)
def test_every_absence_has_its_reason(folder: Path, name: str, conv: str, expected: str) -> None:
    assert kind(open_root(str(folder)), f"{CARD}/{name}", conv) == expected


def test_missing_file_of_a_complete_capture_was_not_offered(folder: Path) -> None:
    (folder / "accelctl-capture.json").write_text('{"schema": "accelctl.capture/1", "complete": true}')
    assert kind(open_root(str(folder)), f"{CARD}/boot_vga") == "not_offered"


def test_recorded_errors_come_back(folder: Path) -> None:
    errors = {f"{CARD}/vendor": "EPERM", f"{CARD}/class": "ENODATA"}
    (folder / "accelctl-capture.json").write_text(json.dumps({"schema": SCHEMA, "errors": errors}))
    root = open_root(str(folder))
    absence = root.read(f"{CARD}/vendor").absence
    assert absence is not None
    assert (absence.kind, absence.errno) == ("no_permission", "EPERM")
    assert "sudo" in str(absence.fix)
    assert kind(root, f"{CARD}/class") == "not_offered"


def test_huge_file_is_read_to_the_limit(folder: Path) -> None:
    (folder / CARD / "modalias").write_bytes(b"x" * (3 * READ_LIMIT))
    assert len(str(open_root(str(folder)).read(f"{CARD}/modalias").value)) == READ_LIMIT


def test_sleeping_device_is_left_asleep() -> None:
    tree = MemoryTree("m")
    tree.add_file(f"{CARD}/current_link_speed", b"16.0 GT/s PCIe\n")
    tree.add_file(f"{CARD}/vendor", b"0x10de\n")
    tree.live = True
    root = SysRoot(tree)
    assert kind(root, f"{CARD}/current_link_speed") is None
    root.asleep.append(f"/{CARD.rpartition('/')[2]}/")
    assert kind(root, f"{CARD}/current_link_speed") == "asleep"
    assert kind(root, f"{CARD}/vendor") is None
    root.allow_wake = True
    assert kind(root, f"{CARD}/current_link_speed") is None


def test_quarantined_paths_are_not_touched(folder: Path) -> None:
    root = open_root(str(folder))
    root.quarantine = frozenset({f"{CARD}/vendor", "sys/bus"})
    assert kind(root, f"{CARD}/vendor") == "timed_out"
    assert root.listdir("sys/bus") == []
    assert root.stat("sys/bus") is None
    assert f"{CARD}/vendor" not in root.opened


def test_slot_hears_of_every_path_before_it_is_touched(folder: Path) -> None:
    heard: list[str] = []

    class Slot:
        def enter(self, path: str) -> None:
            heard.append(path)

    root = open_root(str(folder))
    root.slot = Slot()
    root.read(f"{CARD}/vendor")
    root.listdir("sys")
    root.link("sys/absolute")
    root.resolve("sys/absolute/x")
    root.stat("sys/bus")
    root.read(f"{CARD}/rom")  # not on the list: not touched
    assert heard == [f"{CARD}/vendor", "sys", "sys/absolute", "sys/absolute/x", "sys/bus"]


# -- nothing leaves the root --


@pytest.mark.parametrize(
    "target",
    [
        "../../../../../../../vendor",
        "/../vendor",
        "/etc/passwd",
        "/proc/self/environ",
        "../" * 100 + "etc/passwd",
        "/sys/../../../vendor",
    ],
)
def test_links_do_not_lead_outside(folder: Path, target: str) -> None:
    (folder / "sys/devices/name").symlink_to(target)
    (folder / "sys/devices/x").symlink_to(os.path.dirname(target) or "/")
    root = open_root(str(folder))
    for path in ("sys/devices/name", f"sys/devices/x/{os.path.basename(target)}", f"sys/devices/x/{'../' * 9}vendor"):
        assert root.read(path).value is None
    memory = MemoryTree("m")
    memory.add_link("sys/devices/name", target)
    assert SysRoot(memory).read("sys/devices/name").value is None


def test_parent_folders_of_the_root_are_the_root() -> None:
    tree = MemoryTree("m")
    tree.add_file("sys/a/vendor", b"x")
    assert tree.resolve("../../sys/../../sys/a/./vendor") == "sys/a/vendor"
    assert tree.resolve("sys//a///vendor") == "sys/a/vendor"


def test_loops_of_links(folder: Path) -> None:
    (folder / "sys/one").symlink_to("two")
    (folder / "sys/two").symlink_to("one")
    (folder / "sys/self").symlink_to("self/self")
    root = open_root(str(folder))
    for path in ("sys/one/vendor", "sys/two/vendor", "sys/self/vendor"):
        assert kind(root, path) == "malformed"
        assert root.listdir(path) == []
        assert root.resolve(path) == path
        assert not root.exists(path)


def test_things_that_would_wait_or_act_are_not_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / CARD / "subsystem_vendor")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(folder / CARD)  # the whole path would be too long for a socket
        server.bind("subsystem_device")
    (folder / CARD / "enable").symlink_to("subsystem_vendor")
    root = open_root(str(folder))
    for name in ("subsystem_vendor", "subsystem_device", "enable"):
        assert kind(root, f"{CARD}/{name}") == "malformed"
    stat = root.stat(f"{CARD}/subsystem_vendor")
    assert stat is not None
    assert stat.kind == "p"
    (folder / "accelctl-capture.json").unlink(missing_ok=True)
    os.mkfifo(folder / "accelctl-capture.json")
    with pytest.raises(UsageError, match="cannot be read"):
        open_root(str(folder))


def test_what_may_not_be_read(folder: Path) -> None:
    """As another user when run by root, who may read everything."""
    (folder / CARD / "vendor").chmod(0)
    (folder / "sys/closed").mkdir()
    (folder / "sys/closed/vendor").touch()
    (folder / "sys/closed").chmod(0)
    for parent in (folder, *folder.parents):
        if "pytest" in str(parent):
            parent.chmod(0o755)

    def look(_: Watch) -> tuple[list[str | None], list[str]]:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(12345, 12345, 12345)
            os.setresuid(12345, 12345, 12345)
        root = open_root(str(folder))
        return [kind(root, path) for path in (f"{CARD}/vendor", "sys/closed/vendor")], root.listdir("sys/closed")

    assert run_watched(look).value == (["no_permission", "no_permission"], [])


# -- roots on the command line --


@pytest.mark.parametrize("spec", ["/nonexistent", "/dev/null", "x" * 5000, "a\0b"])
def test_what_is_no_root(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_root(spec)
    assert "\n" not in caught.value.message


def test_root_that_is_this_machine() -> None:
    for spec in ("/", ""):
        root = open_root(spec)
        assert root.live
        assert root.read("proc/self/status").present
        assert root.read("proc/sys/kernel/osrelease").value == os.uname().release


# -- the three kinds of tree agree --


def as_memory(folder: Path) -> MemoryTree:
    tree = MemoryTree("m")
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(base) / name
            below = str(path.relative_to(folder))
            if path.is_symlink():
                tree.add_link(below, os.readlink(path))
            elif path.is_dir():
                tree.add_folder(below)
            else:
                tree.add_file(below, path.read_bytes())
    return tree


def answers(tree: Tree, path: str) -> list[Any]:
    """What a tree says about a path, errors by name; a missing name and a missing folder above it are the same."""
    got: list[Any] = []
    asks = (lambda: tree.read(path, 99), lambda: tree.listdir(path), lambda: tree.stat(path).kind)
    for ask in (*asks, lambda: tree.readlink(path)):
        try:
            got.append(ask())
        except OSError as error:
            got.append("missing" if error.errno in (errno.ENOENT, errno.ENOTDIR) else errno.errorcode[error.errno or 0])
    return got


def test_folder_and_archive_answer_as_chroot_would(tmp_path: Path) -> None:
    """Oracle for good links: the kernel itself, in a tree whose links stay inside and are relative."""
    source = random.Random(20260106)
    names = list("abcd")
    folder = tmp_path / "t"
    folder.mkdir()
    for _ in range(60):
        parent = folder.joinpath(*source.choices(names, k=source.randrange(3)))
        path = parent / source.choice(names)
        try:
            parent.mkdir(parents=True, exist_ok=True)
            if source.random() < 0.4:
                depth = len(parent.relative_to(folder).parts)
                path.symlink_to("/".join([".."] * source.randrange(depth + 1) + source.choices(names, k=2)))
            else:
                path.write_bytes(str(path).encode()[-20:])
        except OSError:
            continue
    directory, memory = DirTree(str(folder)), as_memory(folder)
    compared = 0
    for _ in range(3000):
        asked = "/".join(source.choices(names, k=source.randrange(1, 5)))
        mine, theirs = answers(memory, asked), answers(directory, asked)
        assert theirs[1:] == mine[1:], asked
        try:
            kernel = (folder / asked).read_bytes()
        except OSError:
            assert not isinstance(mine[0], bytes), asked
        else:
            assert mine[0] == theirs[0] == kernel, asked
            compared += 1
    assert compared > 100


paths = st.text(st.sampled_from("ab./\u00e9\udcff \n\0"), max_size=24)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(links=st.lists(st.tuples(paths, paths), max_size=6), asked=paths)
def test_any_path_and_any_links_have_an_answer(links: list[tuple[str, str]], asked: str, folder: Path) -> None:
    memory = MemoryTree("m")
    memory.add_file("sys/a/b", b"1")
    for name, target in links:
        memory.add_link(f"sys/{name}", target)
    for root in (SysRoot(memory), open_root(str(folder))):
        path = f"sys/{asked}"
        assert root.read(f"{path}/vendor").source == f"{path}/vendor"
        assert isinstance(root.listdir(path), list)
        assert isinstance(root.resolve(path), str)
        assert root.link(path).source == path
        root.stat(path)


# -- nodes --


def test_nodes_come_from_the_manifest_where_there_is_one() -> None:
    stat = NodeStat("c", 0o660, 0, 109, 226, 128)
    manifest = Manifest(nodes={"dev/dri/renderD128": Node(stat, "EACCES")})
    root = SysRoot(MemoryTree("m"), manifest=manifest)
    assert root.stat("dev/dri/renderD128") == stat
    assert root.exists("dev/dri/renderD128")
    assert root.access_rw("dev/dri/renderD128") == "EACCES"
    assert root.access_rw("dev/other") == ""


def test_nodes_of_this_machine() -> None:
    root = SysRoot(LiveTree())
    stat = root.stat("dev/null")
    assert stat is not None
    assert (stat.kind, stat.mode & 0o666, stat.major, stat.minor) == ("c", 0o666, 1, 3)
    assert root.access_rw("dev/null") is None
    assert root.access_rw("dev/nonexistent") == "denied"
    assert root.stat("dev/nonexistent") is None


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE])
@pytest.mark.parametrize("short_is_end", [True, False])
def test_files_of_any_size_are_read_whole_up_to_the_limit(size: int, short_is_end: bool, tmp_path: Path) -> None:
    text = bytes(number % 251 for number in range(size))
    (tmp_path / "x").write_bytes(text)
    for limit in (1, 100, PAGE, PAGE + 1, 4 * PAGE):
        with open(tmp_path / "x", "rb") as file:
            assert read_fd(file.fileno(), limit, short_is_end=short_is_end) == text[:limit]
