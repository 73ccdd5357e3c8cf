"""Plug-ins that are broken in every way known: each is refused in one line that names it, and nobody else notices."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from accelctl.abi import compute, registry, trial
from accelctl.abi.registry import IN_TREE, Chips
from accelctl.errors import AbiError, AccelError
from accelctl.exits import ExitCode
from tests.abikit import HEAD, Plugins, loads, plug
from tests.brokenkit import BROKEN, GOOD, HANGS, PRINTS, Broken, compiler, install, install_all, native, offering
from tests.helpers import ROOT, run_cli

__all__ = ["plug"]  # a fixture


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Plug-ins have a second, until it is called: a good one has the time that it needs."""
    monkeypatch.setenv(trial.VARIABLE, "1")
    return lambda: monkeypatch.delenv(trial.VARIABLE)


def env(plug: Plugins, data: Path, seconds: str | None = None) -> dict[str, str | None]:
    """Of a command with these plug-ins and no others; those that hang have a few seconds only."""
    path = os.pathsep.join((str(plug.folder), str(ROOT)))
    return {"PYTHONPATH": path, "ACCELCTL_PLUGINS": None, trial.VARIABLE: seconds, "XDG_DATA_HOME": str(data)}


def one_line(error: AccelError, name: str) -> str:
    assert "\n" not in error.message
    assert error.message.startswith(f"plug-in {name} ({name}-chip 1.0): ")
    return error.message


@pytest.mark.parametrize("broken", BROKEN, ids=[one.name for one in BROKEN])
def test_each_is_refused_in_one_line_that_names_it(broken: Broken, plug: Plugins, quick: Callable[[], None]) -> None:
    install(plug, broken)
    plug(GOOD, names=("fine",), module="fine_chip", dist="fine-chip")
    chips = Chips()
    before = set(sys.modules)
    asked = (
        (lambda: chips.ask("atuse", compute._devices)) if broken.name == "atuse" else (lambda: chips.load(broken.name))
    )
    with pytest.raises(AbiError) as caught:
        asked()
    if broken.name == "atuse":
        assert caught.value.message.startswith("chip atuse: ")
    else:
        one_line(caught.value, broken.name)
        assert caught.value.message in chips.problems()
    assert broken.line in caught.value.message
    assert caught.value.exit_code == ExitCode.ABI
    assert not {name for name in set(sys.modules) - before if name.startswith(broken.name)}, "it came in here"
    quick()
    assert chips.load("fine").manifest.name == "fine"
    assert chips.load("vgem").origin == "in-tree"


@pytest.mark.parametrize("asks", ["load", "ask", "manifest"])
def test_a_refusal_is_remembered_and_not_waited_for_again(asks: str, plug: Plugins, quick: object) -> None:
    install(plug, next(one for one in BROKEN if one.name == "hangs"))
    chips, forks = Chips(), []
    ways: dict[str, Callable[[str], object]] = {
        "load": chips.load,
        "ask": lambda name: chips.ask(name, lambda chip: chip.manifest.name),
        "manifest": chips.manifest,
    }
    real = os.fork
    try:
        os.fork = lambda: forks.append(1) or real()  # type: ignore[func-returns-value]
        for _ in range(3):
            with pytest.raises(AbiError, match="did not come back within 1 s"):
                ways[asks]("hangs")
    finally:
        os.fork = real
    assert len(forks) == 1


def test_chips_in_the_tree_are_loaded_without_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise AssertionError("a child for a chip in the tree")

    monkeypatch.setattr(os, "fork", refuse)
    chips = Chips()
    assert chips.load("vgem").manifest.name == "vgem"
    assert chips.ask("sim", lambda chip: chip.manifest.name) == "sim"


def test_asking_a_stranger_brings_nothing_in(plug: Plugins) -> None:
    plug(GOOD, names=("fine",), module="fine_chip", dist="fine-chip")
    chips = Chips()
    assert chips.ask("fine", lambda chip: [chip.manifest.name, chip.manifest.abi]) == ["fine", 1]
    assert "fine_chip" not in sys.modules
    assert chips.load("fine").manifest.name == "fine"
    assert "fine_chip" in sys.modules


def test_what_a_stranger_raises_is_words_here(plug: Plugins) -> None:
    """An exception or an answer of its own class would bring its module in with it."""
    own = "class Own(str): pass\nclass Error(Exception): pass\n"
    plug(
        offering("own", head=own + loads("pass").split("def load_backend")[0]),
        names=("own",),
        module="own_chip",
        dist="own-chip",
    )
    chips = Chips()

    def question(chip: object) -> object:
        module = sys.modules["own_chip"]
        return [module.Own("text")]

    assert chips.ask("own", question) == ["text"]

    def raising(chip: object) -> object:
        raise sys.modules["own_chip"].Error("mine")

    with pytest.raises(AbiError, match="Error: mine"):
        Chips().ask("own", raising)
    assert "own_chip" not in sys.modules


LEAVES = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"])
with open(os.environ["TOLD"], "a") as told:
    told.write(f"{child.pid}\\n")
"""


def test_what_an_import_starts_ends_with_the_trial(
    plug: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    plug(LEAVES + GOOD, names=("fine",), module="fine_chip", dist="fine-chip")
    assert Chips().ask("fine", lambda chip: chip.manifest.name) == "fine"
    (pid,) = map(int, (tmp_path / "told").read_text().split())
    for _ in range(500):  # killed, and not ours to wait for: whoever takes it in does so in time
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    pytest.fail(f"process {pid} of a plug-in runs on")


ODD = """
class Odd(Exception):
    def __init__(self, *words): super().__init__(*words)
    def __str__(self): raise Odd
class Ours(AccelError):
    def __init__(self): self.message = self; self.hint = self
    def __str__(self): raise Odd
"""


@pytest.mark.parametrize("error", ["Odd", "Ours"])
def test_no_exception_of_a_stranger_is_made_again_here(error: str, plug: Plugins) -> None:
    head = "from accelctl.errors import AccelError" + ODD + HEAD
    plug(offering("odd", head=head), names=("odd",), module="odd_chip", dist="odd-chip")

    def question(chip: object) -> object:
        raise getattr(sys.modules["odd_chip"], error)

    with pytest.raises(AbiError, match="an exception that cannot be shown"):
        Chips().ask("odd", question)
    assert "odd_chip" not in sys.modules


# -- all of them at once --


@pytest.fixture
def crowd(plug: Plugins, tmp_path: Path) -> dict[str, str | None]:
    """All at once, with a good one that prints; what a command with them sees."""
    install_all(plug)
    plug(PRINTS + loads("print('banner at load')", "registry.register(manifest('prints'), memory=Memory())"),
         names=("prints",), module="prints_chip", dist="prints-chip")  # fmt: skip
    return env(plug, tmp_path / "data", "1")


def test_the_list_names_every_one_that_is_refused(crowd: dict[str, str | None]) -> None:
    plain = json.loads(run_cli("backends", "list", "--json", env=crowd, code=0).stdout)
    assert {row["name"] for row in plain["chips"]} >= {*IN_TREE, *(one.name for one in BROKEN), "prints"}
    assert len(plain["problems"]) >= 2  # the names that are taken; nothing was loaded
    assert any(
        "vgem (shadow 1.0): not used: the name is that of a chip in the tree" in line for line in plain["problems"]
    )
    assert any("offers the same name: uninstall one of them" in line for line in plain["problems"])
    loaded = json.loads(run_cli("backends", "list", "--load", "--json", env=crowd, code=0).stdout)
    rows = {row["name"]: row for row in loaded["chips"]}
    for broken in BROKEN:
        if broken.name != "atuse":  # its devices are not asked for here
            assert broken.line in rows[broken.name]["problem"], broken.name
            assert any(broken.line in line for line in loaded["problems"])
    assert rows["sim"]["tier"] == "simulated"


def test_others_go_on_with_all_of_them_installed(crowd: dict[str, str | None]) -> None:
    assert json.loads(run_cli("probe", "--json", env=crowd).stdout)["schema"] == "accelctl.probe/1"
    assert json.loads(run_cli("top", "--once", "--json", env=crowd, code=0).stdout)["schema"]
    listed = run_cli("smoke", "--list", "--json", env=crowd, code=0)
    document = json.loads(listed.stdout)
    assert "sim:0" in listed.stdout
    for broken in BROKEN:
        assert any(broken.name in line and broken.line in line for line in document["problems"]), broken.name


def test_smoke_runs_with_all_of_them_installed(crowd: dict[str, str | None]) -> None:
    done = run_cli("smoke", "--device", "sim:0", "--op", "relu", "--dtype", "fp32", "--json", env=crowd, code=0)
    assert json.loads(done.stdout)["result"] == "passed (simulated)"


@pytest.mark.parametrize("name", ["osexit", "crashes", "hangs", "raises", "twice", "oldabi"])
def test_a_command_about_one_ends_with_one_line(name: str, crowd: dict[str, str | None]) -> None:
    done = run_cli("backends", "check", name, env=crowd, code=ExitCode.ABI)
    assert done.stdout == ""
    assert done.stderr.count("\n") - done.stderr.count("  try:") == 1
    assert f"plug-in {name} (" in done.stderr


def test_what_a_plug_in_prints_is_not_in_our_documents(plug: Plugins, tmp_path: Path) -> None:
    late = "import atexit\natexit.register(lambda: os.write(1, b'banner at exit'))\n"
    more = "class Gone(Ops):\n    def devices(self): return ()\n"
    code = PRINTS + late + offering("prints", "print('banner at load')", "os.write(1, b'native banner at load')")
    plug(code + more, names=("prints",), module="prints_chip", dist="prints-chip")
    script = (
        "import sys\nfrom accelctl.abi import registry\nregistry.load('prints')\nprint('{\"ours\": 1}')\n"
        "import subprocess\nsubprocess.run(['echo', 'of a child'])\n"
    )
    import subprocess

    from tests.helpers import environment

    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(env(plug, tmp_path)), capture_output=True, text=True, check=True
    )
    assert done.stdout == '{"ours": 1}\n'
    for banner in ("banner at import", "banner of native code", "banner at load", "native banner", "banner at exit"):
        assert banner in done.stderr, banner
    listed = json.loads(run_cli("backends", "list", "--load", "--json", env=env(plug, tmp_path), code=0).stdout)
    (row,) = (one for one in listed["chips"] if one["name"] == "prints")
    assert row["features"] == ["memory", "ops"]


# -- symbols --


def test_libraries_with_clashing_symbols_do_not_meet(plug: Plugins, tmp_path: Path) -> None:
    """Each library answers with its own number: the two are never in one process, though both show their symbols to
    everybody (a process that loads both gets one of the two numbers twice, as the last lines show)."""
    cc = compiler()
    native(plug, "alpha", 1, cc)
    native(plug, "beta", 2, cc)
    listed = json.loads(run_cli("smoke", "--list", "--json", env=env(plug, tmp_path), code=0).stdout)
    assert {one["device"]: one["title"] for one in listed["devices"] if one["device"].endswith("a:0")} == {
        "alpha:0": "answers 1",
        "beta:0": "answers 2",
    }
    both = run_cli("backends", "list", "--load", "--json", env=env(plug, tmp_path), code=0)
    assert "symbols" not in both.stdout
    script = (
        "import sys\nfrom accelctl.abi import registry\nfrom accelctl.errors import AbiError\n"
        "flags = sys.getdlopenflags()\n"
        "print(registry.load('alpha').ops.devices()[0].title)\nassert sys.getdlopenflags() == flags\n"
        "try:\n    registry.load('beta')\nexcept AbiError as error:\n    print(error.message)\n"
        "print(registry.load('alpha').ops.devices()[0].title)\n"
    )
    import subprocess

    from tests.helpers import environment

    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(env(plug, tmp_path)), capture_output=True, text=True, check=True
    )
    first, refusal, again = done.stdout.splitlines()
    assert (first, again) == ("answers 1", "answers 1")
    assert refusal == "plug-in beta (beta-chip 1.0): load_backend failed: RuntimeError: symbols of another library"
    assert registry.IN_TREE  # the module under test


def test_the_deadline_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, wanted in (("2.5", 2.5), ("", trial.DEADLINE_S), ("soon", trial.DEADLINE_S), ("-1", trial.DEADLINE_S),
                         ("nan", trial.DEADLINE_S), ("inf", trial.DEADLINE_S)):  # fmt: skip
        monkeypatch.setenv(trial.VARIABLE, text)
        assert trial.deadline_s() == wanted
    assert {one.name for one in BROKEN} >= HANGS
