"""The wheel, the installation and the Makefile, as a stranger meets them."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import accelctl
from tests.helpers import ROOT, environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCRIPTS = {"accelctl.bash", "_accelctl", "accelctl.fish"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT)], check=True
    )
    return next(folder.glob("accelctl-*.whl"))


@pytest.mark.slow
def test_wheel_holds_all_sources_and_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = [p for p in (ROOT / "accelctl").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert {p.relative_to(ROOT).as_posix() for p in sources} - names == set()
    assert {f"accelctl/data/completions/{name}" for name in SCRIPTS} <= names
    assert {n for n in names if n.split("/")[0] not in ("accelctl", f"accelctl-{accelctl.__version__}.dist-info")} == {
        n for n in names if n.startswith(f"accelctl-{accelctl.__version__}.data/data/share/")
    }


@pytest.mark.slow
def test_installed_command_man_pages_and_completions(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    subprocess.run([str(home / "bin/python"), "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    env = environment({"PYTHONPATH": None})
    for words in (["completion", "zsh"], ["--version"], ["probe", "--help"]):
        done = subprocess.run(
            [str(home / "bin/accelctl"), *words], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout
        assert done.stderr == ""
    assert (home / "share/man/man1/accelctl-probe.1").is_file()
    assert (home / "share/bash-completion/completions/accelctl").is_file()


def test_extras_and_pins() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "typer>=0.26,<0.29" in project["dependencies"]
    assert set(project["optional-dependencies"]) == {"umd", "opencl", "dev"}
    names = {line.split(">")[0].split(";")[0].strip() for line in project["dependencies"]}
    assert names == {"typer", "rich", "psutil", "textual", "tomli"}, "the core stays this small"


def test_version_is_in_one_place() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in text
    assert accelctl.__version__ not in text


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what a clone holds, without environments and caches."""
    copy = tmp_path / "checkout"
    ignore = shutil.ignore_patterns(".venv*", ".git", "__pycache__", "build", "dist", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, copy, ignore=ignore)
    return copy


def make(checkout: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    if shutil.which("make") is None:
        pytest.skip("make is not installed (apt install make)")
    clean = environment({"PYTHONPATH": None, "MAKEFLAGS": None, "MAKELEVEL": None, **env})
    return subprocess.run(
        ["make", *words], cwd=checkout, env=clean, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.slow
def test_make_run_from_a_fresh_checkout(checkout: Path) -> None:
    done = make(checkout, "run", f"PYTHON={sys.executable}")
    assert done.returncode == 0, done.stderr
    assert "installing accelctl into .venv" in done.stdout
    assert (checkout / ".venv/bin/accelctl").is_file()
    again = make(checkout, "run", f"PYTHON={sys.executable}")
    assert "installing" not in again.stdout, "a second run installs nothing"
    assert len(again.stdout) > 100, "no report"


@pytest.mark.parametrize(
    ("imports", "says"),
    [
        ("ensurepip", "Python's venv module is incomplete here. Type: apt install python3-venv"),
        ("sys.version_info", "accelctl needs Python 3.10 or newer; {python} is not. Type: make run PYTHON=python3.11"),
    ],
)
def test_make_run_with_an_unfit_python_is_one_line(imports: str, says: str, checkout: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *{imports}*) exit 1;; esac\nexec {sys.executable} "$@"\n', encoding="ascii"
    )
    python.chmod(0o755)
    done = make(checkout, "run", f"PYTHON={python}")
    assert done.returncode != 0
    assert done.stdout.splitlines() == [says.format(python=python)]
    assert not (checkout / ".venv").exists()


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").rstrip().endswith("exec make test")


def test_nothing_generated_is_committed() -> None:
    """A source archive made by git holds no environments, caches or results."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    archive = subprocess.run(["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip("no commit yet")
    import io

    names = tarfile.open(fileobj=io.BytesIO(archive.stdout)).getnames()
    assert [n for n in names if "__pycache__" in n or n.startswith((".venv", "build/", "dist/"))] == []
