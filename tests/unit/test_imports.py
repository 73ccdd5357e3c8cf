"""What a command line loads. Modules block; milliseconds only inform (make bench), because a shared runner is noisy."""

import os
from pathlib import Path

import pytest

from accelctl import cli
from tests.helpers import ROOT, loaded_modules, run_cli
from tests.synthetic import make_machine

HEAVY = {"textual", "grpc", "numpy", "ctypes", "_ctypes", "pydantic", "asyncio", "torch", "pyopencl", "scipy", "pyudev"}
"""Not for help, probe or stress (design: only the dashboard and the service may load some of them)."""

ROOT_LINES = [["--help"], [], ["prob"], ["--version"], ["--version", "--json"], ["help"]]


def tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("words", ROOT_LINES, ids=" ".join)
def test_root_imports_no_command_and_no_package(words: list[str]) -> None:
    modules = loaded_modules(*words)
    assert "accelctl.cli" in modules
    assert {m for m in modules if m.startswith("accelctl.commands")} == set()
    assert tops(modules) & (HEAVY | {"typer", "rich", "psutil", "click"}) == set()


def test_version_imports_next_to_nothing() -> None:
    ours = {m for m in loaded_modules("--version") if m.startswith("accelctl")}
    assert ours == {"accelctl", "accelctl.cli"}
    assert tops(loaded_modules("--version")) & {"re", "typing", "json", "enum", "inspect", "dataclasses"} == set()


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_help_of_a_command_loads_nothing_heavy(name: str) -> None:
    modules = loaded_modules(name, "--help")
    others = {f"accelctl.commands.{other}" for other in cli.COMMANDS if other != name}
    assert f"accelctl.commands.{name}" in modules
    assert modules & others == set()
    assert tops(modules) & (HEAVY | {"rich"}) == set()


@pytest.mark.parametrize("words", [["--json"], []], ids=["json", "text"])
def test_probe_loads_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    root = make_machine(tmp_path / "root", 2)
    modules = loaded_modules("probe", "--root", str(root), *words)
    assert "accelctl.commands.probe" in modules
    assert tops(modules) & HEAVY == set()


def test_completion_loads_nothing_heavy() -> None:
    assert tops(loaded_modules("completion", "bash")) & (HEAVY | {"rich", "psutil"}) == set()


def test_a_framework_that_breaks_on_import_has_no_effect(tmp_path: Path) -> None:
    """Whatever is installed beside accelctl is not touched: these packages end the process when they are imported."""
    for name in sorted(HEAVY - {"ctypes", "_ctypes", "asyncio"}):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported ' + __name__)\n", encoding="utf-8")
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    root = make_machine(tmp_path / "root", 1)
    for words in (
        ["--version"],
        ["--help"],
        ["completion", "bash"],
        ["probe", "--help"],
        ["probe", "--root", str(root)],
    ):
        assert "imported" not in run_cli(*words, env=env, code=0).stderr
