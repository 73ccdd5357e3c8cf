"""The registry: names without imports, one door for every chip, and one clear line for each way to be refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accelctl.abi import handshake, registry, version
from accelctl.abi.handshake import Chip
from accelctl.abi.registry import IN_TREE, Chips, Row
from accelctl.errors import AbiError
from accelctl.exits import ExitCode
from tests.abikit import HEAD, Plugins, guide, loads, plug
from tests.helpers import ROOT, environment

__all__ = ["plug"]  # a fixture
GOOD = loads("registry.register(manifest(), memory=Memory())")
WHO = "plug-in zork (zork-chip 1.0)"


def refusal(name: str = "zork", chips: Chips | None = None) -> AbiError:
    with pytest.raises(AbiError) as caught:
        (chips or Chips()).load(name)
    assert caught.value.exit_code == ExitCode.ABI
    assert "\n" not in caught.value.message
    return caught.value


# -- what is found without importing --


def test_a_third_party_is_found_and_loaded_once(plug: Plugins) -> None:
    plug("import builtins\nbuiltins.zork_loads = getattr(builtins, 'zork_loads', 0) + 1\n" + GOOD)
    chips = Chips()
    assert chips.names() == (*IN_TREE, "zork")
    assert chips.versions()["zork"] == ("zork-chip", "1.0", None)
    assert chips.row("zork") == Row("zork_chip", None, (), "zork-chip", "1.0")
    assert "zork_chip" not in sys.modules
    import builtins

    chip = chips.load("zork")
    assert chips.load("zork") is chip
    assert builtins.__dict__.pop("zork_loads") == 1
    assert (chip.manifest.title, chip.queue, chip.origin) == ("Zork", None, "zork-chip")
    assert chips.problems() == ()


def test_the_table_in_the_tree() -> None:
    chips = Chips()
    assert chips.versions()["vgem"].abi == version.ABI
    assert chips.versions()["vgem"].origin == "in-tree"
    assert chips.row("dma_heap").nodes == ("dev/dma_heap/*",)
    assert (chips.row("vfio").nodes, chips.row("iommufd").nodes) == (("dev/vfio/vfio",), ("dev/iommu",))
    assert chips.row("mali").module == chips.row("qaic").module == "accelctl.backends.gem_rows"
    assert "nouveau" not in chips.names()  # a driver of the room nvidia


LISTING = """
import sys
from accelctl.abi import registry
assert "importlib.metadata" not in sys.modules
registry.row("vgem")
assert "importlib.metadata" not in sys.modules
print(len(registry.names()), len(registry.versions()), registry.problems())
print([name for name in sys.modules if name.startswith("accelctl.backends.") or name == "zork_chip"])
print(sorted({"numpy", "ctypes", "asyncio", "textual", "grpc"} & set(sys.modules)))
"""


def test_names_and_versions_import_no_chip(plug: Plugins) -> None:
    plug("raise SystemExit('imported')")
    path = os.pathsep.join((str(plug.folder), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", LISTING],
        env=environment({"PYTHONPATH": path}),
        text=True,
        capture_output=True,
        check=True,
    )
    count = len(IN_TREE) + 1
    assert done.stdout.splitlines() == [f"{count} {count} ()", "[]", "[]"]


COUNTING = """
import collections, sys
opened = collections.Counter()
def seen(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and "/site/" in arguments[0]:
        opened[arguments[0].rpartition("/")[2]] += 1
from accelctl.abi import registry, rooms
sys.addaudithook(seen)
print(len(registry.names()), registry.problems())
print(sorted(opened.items()))
print([name for name in sys.modules if name.startswith("zork_")], "importlib.metadata" in sys.modules)
"""


def test_fifty_plug_ins_are_listed_without_importing_one(plug: Plugins) -> None:
    """Two files of each are opened, once; how long that takes is measured by tests/perf/plugins.py."""
    for number in range(50):
        plug("raise SystemExit", names=(f"zork{number}",), module=f"zork_{number}", dist=f"zork-{number}")
    env = environment({"PYTHONPATH": f"{plug.folder}:{ROOT}", "XDG_DATA_HOME": str(plug.folder)})
    done = subprocess.run([sys.executable, "-c", COUNTING], env=env, text=True, capture_output=True, check=True)
    assert done.stdout.splitlines() == [
        f"{len(IN_TREE) + 50} ()",
        "[('METADATA', 50), ('entry_points.txt', 50)]",
        "[] False",
    ]


def test_plug_ins_can_be_switched_off(plug: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    plug(GOOD)
    monkeypatch.setenv("ACCELCTL_PLUGINS", "none")
    assert Chips().names() == tuple(IN_TREE)
    assert refusal().message == "no chip named 'zork'; plug-ins are off: ACCELCTL_PLUGINS=none"


def test_the_functions_of_the_module_are_one_registry() -> None:
    registry.chips.cache_clear()
    assert registry.names() == registry.chips().names()
    assert registry.versions().keys() == set(registry.names())
    assert registry.row("vgem").module == "accelctl.backends.vgem"
    assert registry.load("vgem") is registry.load("vgem")
    assert registry.problems() == ()
    registry.chips.cache_clear()


# -- the same door for chips in the tree --


def test_a_chip_in_the_tree_goes_through_the_same_handshake(plug: Plugins) -> None:
    plug(loads("registry.register(manifest('a'), memory=Memory())", "registry.register(manifest('b'))"), names=())
    tree = {name: Row("zork_chip", 1) for name in ("a", "b", "c")} | {
        "d": Row("zork_chip", 7),
        "e": Row("not_there_yet"),
    }
    chips = Chips(tree)
    assert chips.load("a").origin == "in-tree"
    assert refusal("b", chips).message == "chip b: claims memory and registers no object for it"
    assert refusal("c", chips).message == "chip c: load_backend registers a, b, not c"
    assert refusal("e", chips).message == "chip e: module not_there_yet is missing"
    assert chips.load("a").manifest.name == "a"
    assert len(chips.problems()) == 3


def test_the_table_and_the_manifest_say_the_same_abi(plug: Plugins) -> None:
    plug(GOOD, names=())
    chips = Chips({"zork": Row("zork_chip", 0)})
    assert refusal(chips=chips).message == "chip zork: its manifest says ABI 1, the table of chips says 0"


def test_one_module_may_offer_several_chips(plug: Plugins) -> None:
    plug(loads("for name in ('a', 'b'):", "    registry.register(manifest(name), memory=Memory())"), names=("a", "b"))
    chips = Chips()
    assert [chips.load(name).manifest.name for name in "ab"] == ["a", "b"]


# -- refusals --

REFUSALS: list[tuple[str, str | None, str]] = [
    ("missing", None, "module zork_chip is missing"),
    (
        "needs another",
        "import not_installed_here",
        "module zork_chip cannot be imported: ModuleNotFoundError: No module named 'not_installed_here'",
    ),
    ("breaks", "1 / 0", "module zork_chip cannot be imported: ZeroDivisionError: division by zero"),
    ("syntax", "def", "module zork_chip cannot be imported: SyntaxError: invalid syntax (__init__.py, line 1)"),
    ("exits", "raise SystemExit(3)", "module zork_chip cannot be imported: SystemExit: 3"),
    ("no entry", HEAD, "module zork_chip has no function load_backend"),
    ("no function", "load_backend = 3", "module zork_chip has no function load_backend"),
    ("raises", loads("raise RuntimeError('two\\nlines')"), "load_backend failed: RuntimeError: two lines"),
    ("raises nothing said", loads("raise RuntimeError"), "load_backend failed: RuntimeError"),
    ("nothing", loads("pass"), "load_backend registers nothing"),
    ("other name", loads("registry.register(manifest('zonk'))"), "load_backend registers zonk, not zork"),
    (
        "one more",
        loads("registry.register(manifest(), memory=Memory())", "registry.register(manifest('zonk'))"),
        "load_backend also registers zonk, which no entry point names",
    ),
    (
        "one of ours",
        loads("registry.register(manifest(), memory=Memory())", "registry.register(manifest('vgem'))"),
        "load_backend also registers vgem, which belongs to in-tree",
    ),
    (
        "twice",
        loads("registry.register(manifest(), memory=Memory())") + "    load_backend.__globals__['again'](registry)\n"
        "def again(registry):\n    registry.register(manifest(), memory=Memory())\n",
        "load_backend registers zork twice",
    ),
    (
        "no manifest",
        loads("registry.register({'name': 'zork'})"),
        "load_backend failed: register() was given a dict, not an accelctl.abi.manifest.Manifest",
    ),
    (
        "bad manifest",
        loads("registry.register(manifest(features=frozenset({'flying'})))"),
        "load_backend failed: manifest of 'zork': unknown feature 'flying'",
    ),
    (
        "newer",
        loads("registry.register(manifest(abi=99))"),
        f"written for ABI 99, this accelctl speaks ABI {version.ABI}",
    ),
    (
        "no abi",
        loads("registry.register(manifest(abi=0))"),
        f"its manifest names no abi; this accelctl speaks {version.ABI}",
    ),
    ("no object", loads("registry.register(manifest())"), "claims memory and registers no object for it"),
    (
        "no claim",
        loads("registry.register(manifest(), memory=Memory(), queue=Queue())"),
        "registers queue, which is not among the features of its manifest",
    ),
    (
        "later",
        loads("registry.register(manifest(features=frozenset({'schedule'})))"),
        "written for ABI 1, and claims schedule, a contract of ABI 2",
    ),
    (
        "no method",
        loads("registry.register(manifest(), memory=object())"),
        "its memory has no method open(target, env)",
    ),
    (
        "class for object",
        loads("registry.register(manifest(), memory=Memory)"),
        "its memory.open(self, target, env) cannot be called as open(target, env)",
    ),
    (
        "other arguments",
        loads("class Old:", "    def open(self, node): ...", "registry.register(manifest(), memory=Old())"),
        "its memory.open(node) cannot be called as open(target, env)",
    ),
    (
        "queue without nop",
        loads(
            "class Q:",
            "    def open(self, session, depth): ...",
            "registry.register(manifest(features=frozenset({'queue'})), queue=Q())",
        ),
        "its queue has no method nop()",
    ),
]


@pytest.mark.parametrize(("code", "line"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_refusals_are_one_clear_line(code: str | None, line: str, plug: Plugins) -> None:
    plug(code)
    plug(loads("registry.register(manifest('fine'), memory=Memory())"), names=("fine",), module="fine", dist="fine")
    chips = Chips()
    assert refusal(chips=chips).message == f"{WHO}: {line}"
    assert refusal(chips=chips).message == f"{WHO}: {line}"  # remembered
    assert chips.problems() == (f"{WHO}: {line}",)
    assert chips.load("fine").manifest.name == "fine"
    assert chips.load("vgem").manifest.name == "vgem"


def test_what_to_install(plug: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    plug(loads("registry.register(manifest(abi=99))"))
    assert refusal().hint == "pip install --upgrade accelctl"
    for module, name in ((version, "OLDEST"), (version, "ABI"), (handshake, "ABI")):
        monkeypatch.setattr(module, name, 3)
    monkeypatch.setitem(version.HISTORY, 3, version.Change("0.9.0", "made up"))
    plug(loads("registry.register(manifest('old'))"), names=("old",), module="old_chip", dist="old-chip")
    found = refusal("old")
    assert found.message == "plug-in old (old-chip 1.0): written for ABI 1, this accelctl speaks ABI 3"
    assert found.hint == "pip install --upgrade old-chip (one for ABI 3 or later: accelctl 0.9.0)"


def test_an_unknown_name_has_a_nearest_one() -> None:
    found = refusal("vgme")
    assert found.message == "no chip named 'vgme' (did you mean vgem?)"
    assert found.hint is not None
    assert found.hint.startswith("one of vgem, vkms, ")
    assert refusal("qqqqqqqq").message == "no chip named 'qqqqqqqq'"


@pytest.mark.parametrize(
    ("name", "function", "line"),
    [
        ("vgem", "", "plug-in vgem (zork-chip 1.0): not used: the name is that of a chip in the tree"),
        (
            "Zork-1",
            "",
            "plug-in Zork-1 (zork-chip 1.0): its name is not lower-case letters, digits and underscores",
        ),
        ("zork", ":start", f"{WHO}: its entry point names 'start', not load_backend"),
    ],
)
def test_entry_points_that_are_not_used(name: str, function: str, line: str, plug: Plugins) -> None:
    plug("raise SystemExit", names=(name,), function=function)
    chips = Chips()
    assert chips.names() == tuple(IN_TREE)
    assert chips.problems() == (line,)
    if name == "vgem":
        assert chips.load(name).origin == "in-tree"
    else:
        assert refusal(name, chips).message == line


def test_the_function_may_be_named(plug: Plugins) -> None:
    plug(GOOD, function=":load_backend")
    assert Chips().load("zork").manifest.name == "zork"


def test_of_two_distributions_with_one_name_none_is_used(plug: Plugins) -> None:
    plug(GOOD)
    plug(GOOD, dist="other")
    chips = Chips()
    line = f"{WHO}: other offers the same name: uninstall one of them"
    assert "zork" not in chips.names()
    assert chips.problems() == (line,)
    assert refusal(chips=chips).message == line


def test_an_entry_point_that_is_invalid_takes_no_name_from_another(plug: Plugins) -> None:
    plug(GOOD)
    plug("raise SystemExit", dist="bad", module="bad_chip", function=":start")
    chips = Chips()
    assert chips.load("zork").origin == "zork-chip"
    assert chips.problems() == ("plug-in zork (bad 1.0): its entry point names 'start', not load_backend",)


@pytest.mark.parametrize("file", ["entry_points.txt", "METADATA"])
def test_a_pipe_among_the_metadata_is_not_waited_for(file: str, plug: Plugins) -> None:
    plug(GOOD)
    plug(GOOD, names=("other",), dist="other", module="other_chip")
    place = plug.folder / "other-1.0.dist-info" / file
    place.unlink()
    os.mkfifo(place)
    chips = Chips()
    assert chips.load("zork").origin == "zork-chip"
    assert chips.problems() == ("plug-in of other: its metadata cannot be read (ValueError)",)


def test_the_manifest_of_a_stranger_is_asked_once_and_brings_nothing_in(
    plug: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = "frozenset({'memory', 'export'})"
    plug(loads(f"registry.register(manifest(features={features}, drivers=('zork',)), memory=Memory())"))
    chips, forks = Chips(), []
    real = os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(1) or real())  # type: ignore[func-returns-value]
    found = [chips.manifest("zork"), chips.manifest("zork")][-1]
    assert (found.features, found.drivers, found.abi) == (frozenset({"memory", "export"}), ("zork",), 1)
    assert (len(forks), "zork_chip" in sys.modules) == (1, False)
    assert chips.load("zork").manifest == found


def test_metadata_that_cannot_be_read_does_not_hide_the_others(plug: Plugins) -> None:
    plug(GOOD)
    for name, text in (("bad", "[accelctl.backends]\nno equals sign\n"), ("binary", "\xff[accelctl.backends]\n")):
        info = plug.folder / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_bytes(text.encode("latin-1"))
    chips = Chips()
    assert chips.load("zork").manifest.name == "zork"
    assert len(chips.problems()) == 2
    assert all("its metadata cannot be read" in line for line in chips.problems())


def test_registering_later_is_refused(plug: Plugins) -> None:
    plug(loads("registry.register(manifest(), memory=Memory())", "global kept", "kept = registry"))
    chip = Chips().load("zork")
    kept = sys.modules["zork_chip"].kept
    with pytest.raises(AbiError, match="after load_backend had returned"):
        kept.register(chip.manifest)


# -- code as root --


@pytest.mark.parametrize("where", ["", "__init__.py", "part.py"])
def test_root_does_not_load_what_others_can_change(where: str, plug: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    package = plug("import builtins\nbuiltins.zork_ran = True\n" + GOOD)
    (package / "part.py").write_text("")
    (package / where).chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    line = refusal().message
    assert line.startswith(f"{WHO}: not used as root: ")
    assert line.endswith("can be changed by other users")
    import builtins

    assert not hasattr(builtins, "zork_ran")
    assert "zork_chip" not in sys.modules
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert isinstance(Chips().load("zork"), Chip)
    del builtins.__dict__["zork_ran"]


@pytest.mark.skipif(os.geteuid() != 0, reason="files that belong to root can only be made by root")
def test_root_loads_what_only_root_can_change(plug: Plugins, tmp_path: Path) -> None:
    package = plug(GOOD)
    assert Chips().load("zork").manifest.name == "zork"
    (package / "link.py").symlink_to(tmp_path / "elsewhere.py")
    assert refusal().message == f"{WHO}: not used as root: {package}/link.py is a symbolic link"


# -- the guide --


def test_the_chip_in_the_guide_passes_the_suite_in_the_guide(plug: Plugins) -> None:
    plug(guide(0))
    registry.chips.cache_clear()
    try:
        done: dict[str, object] = {}
        exec(compile(guide(1), "add-a-chip.md", "exec"), done)
        assert done["failed"] == []
        results = done["results"]
        assert isinstance(results, list)
        assert sum(check.result == "pass" for check in results) >= 7
    finally:
        registry.chips.cache_clear()
