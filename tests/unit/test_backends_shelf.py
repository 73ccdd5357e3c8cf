"""Versions of a plug-in side by side: what comes in whole, what is refused, and a pointer that nothing is lost of."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from accelctl.abi import registry, rooms, shelf
from accelctl.abi.registry import Chips
from accelctl.accept.plugins import intake, scaffold, store
from accelctl.errors import AbiError, AccelError, UsageError
from accelctl.exits import ExitCode
from tests.abikit import HEAD, Plugins, loads, plug
from tests.helpers import environment, run_cli

__all__ = ["plug"]  # a fixture
GOOD = loads("registry.register(manifest(), memory=Memory())")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plug: Plugins) -> Iterator[Path]:
    """The shelf's place; what is loaded from it is forgotten afterwards."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv(shelf.CHOICE, raising=False)
    yield tmp_path / "data"
    sys.modules.pop("zork_chip", None)
    importlib.invalidate_caches()


def project(folder: Path, version: str = "1.0", code: str = GOOD, name: str = "zork") -> Path:
    """A project of that version."""
    place = folder / f"{name}-{version}"
    package = place / f"{name}_chip"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    (package / "version.txt").write_text(version)
    text = f'[project]\nname = "{name}-chip"\nversion = "{version}"\n[project.entry-points."accelctl.backends"]\n'
    (place / "pyproject.toml").write_text(f'{text}{name} = "{name}_chip"\n')
    return place


def two(tmp_path: Path) -> None:
    for version in ("1.0", "1.1"):
        store.add(str(project(tmp_path, version)))


def pointer(data: Path) -> Path:
    return data / "accelctl/backends/zork" / shelf.POINTER


# -- adding --


def test_a_project_is_put_on_the_shelf_and_not_used(data: Path, tmp_path: Path) -> None:
    name, row = store.add(str(project(tmp_path)))
    assert (name, row.version, row.problem) == ("zork", "1.0", "")
    assert "zork" not in Chips().names()
    assert [one.version for one in store.versions("zork").rows] == ["1.0"]
    store.promote("zork", "1.0")
    chips = Chips()
    assert chips.versions()["zork"] == ("zork-chip", "1.0", None)
    assert chips.row("zork").folder == row.folder
    assert row.folder not in sys.path
    assert chips.load("zork").manifest.name == "zork"
    assert sys.path[-1] == row.folder  # the last one: nothing in it shadows anything
    assert chips.load("zork").origin == "zork-chip"


def test_a_folder_that_pip_installed_into_and_a_wheel(data: Path, tmp_path: Path) -> None:
    site = Plugins(tmp_path / "target")
    site.folder.mkdir()
    site(GOOD)
    store.add(str(site.folder))
    wheel = tmp_path / "zork_chip-2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in site.folder.rglob("*"):
            if path.is_file():
                archive.writestr(str(path.relative_to(site.folder)), path.read_text().replace("1.0", "2.0"))
    store.add(str(wheel))
    assert [one.version for one in store.versions("zork").rows] == ["1.0", "2.0"]
    assert not any(one.problem for one in store.versions("zork").rows)


def test_versions_stand_in_their_own_order(data: Path, tmp_path: Path) -> None:
    for version in ("1.10", "1.9", "2.0"):
        store.add(str(project(tmp_path, version)))
    assert [one.version for one in store.versions("zork").rows] == ["1.9", "1.10", "2.0"]


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda place: None, "there is nothing of that name"),
        (lambda place: place.write_text("text"), "neither a folder nor a wheel"),
        (lambda place: place.mkdir(), "no distribution in it has a chip"),
        (
            lambda place: (place.mkdir(), (place / "pyproject.toml").write_text("[project]\nname='x'\n")),
            "no entry point",
        ),
        (lambda place: (place.mkdir(), (place / "pyproject.toml").write_text("= nonsense")), "cannot be read"),
        (lambda place: (place.mkdir(), (place / "pyproject.toml").write_bytes(b"\xff\xfe")), "cannot be read"),
        (lambda place: (place.mkdir(), (place / "pyproject.toml").write_text("project = 3")), "no entry point"),
    ],
)
def test_what_is_no_distribution_is_refused(make: object, line: str, data: Path, tmp_path: Path) -> None:
    place = tmp_path / "thing"
    make(place)  # type: ignore[operator]
    with pytest.raises(UsageError, match=line) as caught:
        store.add(str(place))
    assert "\n" not in caught.value.message
    assert not (data / "accelctl/backends").exists()


@pytest.mark.parametrize("name", ["../out.py", "/abs.py", "a/../../b.py", "a\\..\\b.py"])
def test_a_wheel_that_leads_out_of_itself_is_refused(name: str, data: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "z-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(UsageError, match="leads out of it"):
        store.add(str(wheel))
    (tmp_path / "bad.whl").write_bytes(b"PK no zip")
    with pytest.raises(UsageError, match="cannot be read"):
        store.add(str(tmp_path / "bad.whl"))


def test_a_version_is_never_changed(data: Path, tmp_path: Path) -> None:
    place = project(tmp_path)
    store.add(str(place))
    (place / "zork_chip/version.txt").write_text("changed")
    with pytest.raises(UsageError, match=r"zork 1\.0 is on the shelf already"):
        store.add(str(place))
    assert (data / "accelctl/backends/zork/1.0/zork_chip/version.txt").read_text() == "1.0"


def test_links_are_not_taken(data: Path, tmp_path: Path) -> None:
    place = project(tmp_path)
    (place / "zork_chip/link.py").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match=r"zork_chip/link.py is a symbolic link"):
        store.add(str(place))
    assert store.versions("zork").rows == ()


def test_one_that_was_interrupted_leaves_nothing_that_counts(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    place = project(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(intake, "_write_metadata", fails)
        with pytest.raises(UsageError, match="cannot be written"):
            store.add(str(place))
    assert store.versions("zork").rows == ()
    assert not list((data / "accelctl/backends/zork").glob(f"{intake.PREFIX}*"))
    (data / f"accelctl/backends/zork/{intake.PREFIX}killed/zork_chip").mkdir(parents=True)  # of one that was killed
    assert store.versions("zork").rows == ()
    store.add(str(place))
    assert [one.version for one in store.versions("zork").rows] == ["1.0"]
    assert not list((data / "accelctl/backends/zork").glob(f"{intake.PREFIX}*"))


@pytest.mark.parametrize("name", ["../../escaped", "/abs", "a/b", "", "-", "x" * 101])
def test_the_name_of_a_project_leads_nowhere(name: str, data: Path, tmp_path: Path) -> None:
    place = project(tmp_path)
    text = (place / "pyproject.toml").read_text()
    (place / "pyproject.toml").write_text(text.replace('name = "zork-chip"', f'name = "{name}"'))
    with pytest.raises(UsageError, match="is no name of a distribution"):
        store.add(str(place))
    assert not (data / "accelctl/backends").exists()


def test_what_would_not_be_whole_is_not_added(data: Path, tmp_path: Path) -> None:
    site = Plugins(tmp_path / "target")
    site.folder.mkdir()
    site(None)
    with pytest.raises(UsageError, match=r"zork-chip 1\.0: it is not whole: zork_chip is missing"):
        store.add(str(site.folder))
    assert store.versions("zork").rows == ()


def test_others_cannot_write_what_was_added(data: Path, tmp_path: Path) -> None:
    place = project(tmp_path)
    for path in (place / "zork_chip", place / "zork_chip/__init__.py", place / "zork_chip/version.txt"):
        path.chmod(path.stat().st_mode | 0o022)
    _, row = store.add(str(place))
    assert [path for path in Path(row.folder).rglob("*") if path.stat().st_mode & 0o022] == []


def test_a_file_on_the_shelf_is_no_chip(data: Path, tmp_path: Path) -> None:
    store.add(str(project(tmp_path)))
    (data / "accelctl/backends/notes").write_text("")
    assert store.names() == ["zork"]
    assert Chips().problems() == ()


# -- the pointer --


def test_promote_and_rollback_move_the_pointer(data: Path, tmp_path: Path) -> None:
    two(tmp_path)
    with pytest.raises(UsageError, match="there is no version before"):
        store.rollback("zork")
    store.promote("zork", "1.0")
    with pytest.raises(UsageError, match=r"there is no version before 1\.0"):
        store.rollback("zork")
    found = store.promote("zork", "1.1")
    assert [(row.version, row.current, row.before) for row in found.rows] == [
        ("1.0", False, True),
        ("1.1", True, False),
    ]
    store.promote("zork", "1.1")  # no change
    assert Chips().versions()["zork"].release == "1.1"
    assert [row.current for row in store.rollback("zork").rows] == [True, False]
    assert Chips().versions()["zork"].release == "1.0"


def test_rollback_keeps_nobody_waiting_and_takes_nothing_back_that_was_moved_meanwhile(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two(tmp_path)
    store.promote("zork", "1.0")
    store.promote("zork", "1.1")
    real = store.loaded

    def loaded(name: str, version: str) -> None:
        monkeypatch.setattr(store, "loaded", real)
        store.promote("zork", "1.0")  # the lock is free

    monkeypatch.setattr(store, "loaded", loaded)
    with pytest.raises(AccelError, match="moved meanwhile"):
        store.rollback("zork")
    found = shelf.read_pointer(pointer(data).parent)
    assert found is not None
    assert (found.version, found.before) == ("1.0", ("1.0", "1.1"))


def test_a_module_of_another_place_is_not_taken_for_that_of_the_shelf(
    data: Path, tmp_path: Path, plug: Plugins
) -> None:
    two(tmp_path)
    store.promote("zork", "1.0")
    package = plug.folder / "zork_chip"
    package.mkdir()
    (package / "__init__.py").write_text(GOOD)
    with pytest.raises(
        AbiError, match=r"module zork_chip is not that of .*/zork/1\.0: .*/site/zork_chip/\S+ is found first"
    ):
        Chips().load("zork")
    assert "zork_chip" not in sys.modules


def test_a_version_that_cannot_be_loaded_is_not_promoted(data: Path, tmp_path: Path) -> None:
    store.add(str(project(tmp_path)))
    store.promote("zork", "1.0")
    store.add(str(project(tmp_path, "1.1", "import os\nos._exit(1)\n")))
    with pytest.raises(AbiError, match=r"plug-in zork 1\.1: loading it ended the process"):
        store.promote("zork", "1.1")
    assert Chips().versions()["zork"].release == "1.0"


def test_a_half_copied_version_is_not_promoted(data: Path, tmp_path: Path) -> None:
    two(tmp_path)
    folder = data / "accelctl/backends/zork"
    (folder / "1.1/zork_chip/__init__.py").unlink()
    (folder / "1.1/zork_chip/version.txt").unlink()
    (folder / "1.1/zork_chip").rmdir()
    (folder / "1.2/zork_chip").mkdir(parents=True)
    rows = {row.version: row.problem for row in store.versions("zork").rows}
    assert rows == {
        "1.0": "",
        "1.1": "it is not whole: zork_chip is missing",
        "1.2": "it is not whole: no distribution in it has the chip zork",
    }
    for version, line in (
        ("1.1", "zork_chip is missing"),
        ("1.2", "no distribution"),
        ("9", "not on the shelf"),
        ("../x", "not on"),
    ):
        with pytest.raises(UsageError, match=line):
            store.promote("zork", version)


GARBAGE = [
    b"",
    b"{}",
    b"[]",
    b"3",
    b"null",
    b"\xff\xfe",
    b"{" * 100_000,
    b'{"schema": "accelctl.pointer/1", "version": "../../evil", "before": [], "since": "", "smoke": ""}',
    b'{"schema": "accelctl.pointer/1", "version": "1.0", "before": "x", "since": "", "smoke": ""}',
    b'{"schema": "accelctl.pointer/1", "version": "1.0", "before": [3], "since": "", "smoke": ""}',
    b'{"schema": "accelctl.pointer/1", "version": "1.0", "before": [], "since": "", "smoke": "maybe"}',
    b'{"schema": "accelctl.pointer/2", "version": "1.0", "before": [], "since": "", "smoke": ""}',
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_a_pointer_that_says_nothing_is_one_line(garbage: bytes, data: Path, tmp_path: Path) -> None:
    two(tmp_path)
    store.promote("zork", "1.0")
    pointer(data).write_bytes(garbage)
    chips = Chips()
    assert "zork" not in chips.names()
    (line,) = chips.problems()
    assert line.startswith("plug-in zork: ")
    assert "no pointer of accelctl" in line
    assert store.versions("zork").problem
    with pytest.raises(UsageError, match="no pointer of accelctl"):
        store.rollback("zork")
    store.promote("zork", "1.1")  # and a new one can be made
    assert Chips().versions()["zork"].release == "1.1"


def test_a_pointer_to_nowhere_is_one_line(data: Path, tmp_path: Path) -> None:
    two(tmp_path)
    store.promote("zork", "1.0")
    (data / "accelctl/backends/zork/1.0").rename(data / "elsewhere")
    assert Chips().problems() == (f"plug-in zork: version 1.0 is not in {data}/accelctl/backends/zork",)
    assert rooms.third_party() == ((), ())
    assert store.versions("zork").problem == "the pointer names 1.0, which is not here"


def test_two_writers_at_once_lose_nothing(data: Path, tmp_path: Path) -> None:
    """Eight processes move the pointer: in the end it names one of the versions, and what was before is a chain of all
    moves that were made."""
    two(tmp_path)
    script = (
        "import sys\nfrom accelctl.accept.plugins import store\nstore.loaded = lambda *_: None\n"
        "for _ in range(5):\n    store.promote('zork', sys.argv[1])\n"
    )
    env = environment({"XDG_DATA_HOME": str(data)})
    children = [subprocess.Popen([sys.executable, "-c", script, f"1.{n % 2}"], env=env) for n in range(4)]
    assert [child.wait(120) for child in children] == [0, 0, 0, 0]
    found = shelf.read_pointer(pointer(data).parent)
    assert found is not None
    chain = [*found.before, found.version]
    assert all(one != other for one, other in pairwise(chain)), chain
    assert not list(pointer(data).parent.glob(".accelctl-*"))


def test_what_is_installed_wins_over_the_shelf_and_that_is_said(data: Path, tmp_path: Path, plug: Plugins) -> None:
    two(tmp_path)
    store.promote("zork", "1.1")
    plug(GOOD)
    chips = Chips()
    assert chips.row("zork").folder == ""
    assert chips.problems() == ("plug-in zork: zork-chip 1.1 on the shelf is not used: it is installed",)
    with pytest.raises(UsageError, match="is installed beside the shelf"):
        store.promote("zork", "1.0")


def test_a_version_can_be_chosen_for_one_process(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two(tmp_path)
    store.promote("zork", "1.0")
    monkeypatch.setenv(shelf.CHOICE, "other=3, zork=1.1")
    assert Chips().versions()["zork"].release == "1.1"
    monkeypatch.setenv(shelf.CHOICE, "zork=../../x")
    assert "zork" not in Chips().names()
    monkeypatch.setenv("ACCELCTL_PLUGINS", "none")
    assert Chips().names() == tuple(registry.IN_TREE)
    assert Chips().problems() == ()


def test_its_room_is_known_to_probe(data: Path, tmp_path: Path) -> None:
    folder, _ = scaffold.new("zork", str(tmp_path))
    store.add(folder)
    assert rooms.third_party() == ((), ())
    store.promote("zork", "0.1.0")
    (room,), problems = rooms.third_party()
    assert (room.name, room.origin, problems) == ("zork", "accelctl-zork", ())


@pytest.mark.parametrize(
    "what", ["pointer.json", "1.0", "1.0/zork_chip/__init__.py", "1.0/helper.py", "1.0/deep/part.py"]
)
def test_root_takes_only_what_nobody_else_can_write(
    what: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two(tmp_path)
    store.promote("zork", "1.0")
    place = data / "accelctl/backends/zork" / what
    place.parent.mkdir(exist_ok=True)
    place.touch()
    place.chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    chips = Chips()
    if "/" in what:
        with pytest.raises(AbiError, match="not used as root"):
            chips.load("zork")
    else:
        assert "zork" not in chips.names()
        assert "not used as root" in chips.problems()[0]
    assert "zork_chip" not in sys.modules


# -- the first smoke --


def test_the_first_smoke_of_a_promoted_version_is_remembered(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two(tmp_path)
    store.promote("zork", "1.0")
    registry.chips.cache_clear()
    assert store.after_smoke("zork:0", ExitCode.OK, whole=False) == ""
    assert store.versions("zork").smoke == ""  # a part of it proves nothing
    assert store.after_smoke("zork:0", ExitCode.OK, whole=True) == ""
    assert store.versions("zork").smoke == "passed"
    store.promote("zork", "1.1")
    registry.chips.cache_clear()
    assert store.after_smoke("zork:0", ExitCode.SKIPPED, whole=True) == ""  # no answer
    assert store.versions("zork").smoke == ""
    line = store.after_smoke("zork:0", ExitCode.FINDINGS, whole=False)
    assert line.startswith("zork 1.1, promoted 20")
    assert line.endswith("fails its first smoke; back to 1.0: accelctl backends rollback zork")
    assert store.versions("zork").smoke == "failed"
    assert store.after_smoke("zork:0", ExitCode.OK, whole=True) == ""
    assert store.versions("zork").smoke == "failed"  # the first one
    registry.chips.cache_clear()


def test_nothing_is_looked_at_for_chips_in_the_tree(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "read_pointer", lambda folder: pytest.fail("looked"))
    for device in ("sim:0", "../x:0", ""):
        assert store.after_smoke(device, 1, whole=True) == ""


@pytest.mark.parametrize(("code", "told"), [(ExitCode.ABI, True), (ExitCode.UNUSABLE, True), (ExitCode.USAGE, False)])
def test_a_smoke_without_a_report_counts_as_well(code: int, told: bool, data: Path, tmp_path: Path) -> None:
    two(tmp_path)
    store.promote("zork", "1.0")
    store.promote("zork", "1.1")
    registry.chips.cache_clear()
    line = store.after_no_smoke(("zork:0",), code)
    registry.chips.cache_clear()
    assert ("back to 1.0: accelctl backends rollback zork" in line) == told
    assert store.versions("zork").smoke == ("failed" if told else "")


# -- commands --


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_shelf_that_cannot_be_written_is_one_line(data: Path, tmp_path: Path) -> None:
    data.mkdir(mode=0o500)
    with pytest.raises(UsageError, match="cannot be made"):
        store.add(str(project(tmp_path)))


def test_a_shelf_that_is_a_file_is_one_line(data: Path, tmp_path: Path) -> None:
    (data / "accelctl").mkdir(parents=True)
    (data / "accelctl/backends").write_text("")
    with pytest.raises(UsageError, match="cannot be made") as caught:
        store.add(str(project(tmp_path)))
    assert "\n" not in caught.value.message
    assert Chips().names() == tuple(registry.IN_TREE)
    assert store.names() == []


def test_commands_end_as_they_should(data: Path, tmp_path: Path) -> None:
    env = {"XDG_DATA_HOME": str(data), "ACCELCTL_PLUGINS": None}
    place = str(project(tmp_path))
    assert "on the shelf" in run_cli("backends", "versions", env=env, code=0).stdout
    run_cli("backends", "versions", "zork", env=env, code=2)
    assert json.loads(run_cli("backends", "add", place, "--json", env=env, code=0).stdout)["version"] == "1.0"
    assert "none is used" in run_cli("backends", "versions", env=env, code=0).stdout
    run_cli("backends", "promote", "zork", "1.5", env=env, code=2)
    done = json.loads(run_cli("backends", "promote", "zork", "1.0", "--json", env=env, code=0).stdout)
    assert done["chips"][0]["versions"][0]["current"] is True
    run_cli("backends", "rollback", "zork", env=env, code=2)
    run_cli("backends", "canary", "zork", "1.0", env=env, code=2)
    listed = json.loads(run_cli("backends", "--json", env=env, code=0).stdout)
    assert next(row for row in listed["chips"] if row["name"] == "zork")["features"] is None
    off = json.loads(run_cli("backends", "--json", env={**env, "ACCELCTL_PLUGINS": "none"}, code=0).stdout)
    assert not any(row["name"] == "zork" for row in off["chips"])
    assert HEAD
