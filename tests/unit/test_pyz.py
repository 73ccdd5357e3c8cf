"""The single file for machines without a network: built for real, run with the network off and an empty home."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest

import accelctl
from tests.helpers import ROOT
from tools import interpreters, pyz

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("shiv", reason="shiv is not installed (extra dev)")
    return pyz.build(tmp_path_factory.mktemp("dist") / "accelctl.pyz")


def run(
    archive: Path, home: Path, *words: str, python: str = sys.executable, **env: str
) -> "subprocess.CompletedProcess[str]":
    """Run the archive with nothing in the environment, and without a network where we may make a namespace."""
    isolate = ["unshare", "-n"] if can_unshare() else []
    return subprocess.run(
        [*isolate, python, str(archive), *words],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", **env},
        cwd=home if home.is_dir() else "/",
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@cache
def can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode == 0


def test_the_network_is_really_off() -> None:
    if not can_unshare():
        pytest.skip("no right to make a network namespace (root has it): the other tests here ran with the network on")
    command = ["unshare", "-n", "sh", "-c", "readlink /proc/self/ns/net; tail -n +3 /proc/self/net/dev"]
    namespace, *devices = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert namespace != os.readlink("/proc/self/ns/net")
    assert {line.split(":")[0].strip() for line in devices} <= {"lo"}


def test_version_and_probe(archive: Path, tmp_path: Path) -> None:
    done = run(archive, tmp_path, "--version")
    assert (done.stdout, done.stderr, done.returncode) == (f"accelctl {accelctl.__version__}\n", "", 0)
    done = run(archive, tmp_path, "probe", "--json")
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["schema"].startswith("accelctl.probe/")


def test_probe_of_another_machine_knows_the_chips(archive: Path, tmp_path: Path) -> None:
    """The chip rooms' data files are in the archive: a made-up amdgpu machine is recognised as one."""
    from tests.synthetic import make_machine

    root = make_machine(tmp_path / "root", 1)
    done = run(archive, tmp_path, "probe", "--json", "--root", str(root))
    assert '"amdgpu"' in done.stdout, done.stderr


def test_everything_that_is_data_is_inside(archive: Path) -> None:
    names = set(zipfile.ZipFile(archive).namelist())
    data = [p for p in (ROOT / "accelctl").rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc", ".pyo")]
    assert {f"site-packages/{p.relative_to(ROOT)}" for p in data} - names == set()
    assert {
        f"site-packages/accelctl/data/completions/{n}" for n in ("accelctl.bash", "_accelctl", "accelctl.fish")
    } <= names
    assert any(name.startswith("site-packages/psutil/") and name.endswith(".so") for name in names)


def test_other_interpreters_can_run_it(archive: Path, tmp_path: Path) -> None:
    """The compiled part is for the stable ABI, and tomli for 3.10 is inside: one file fits all supported releases."""
    found = [python for python in interpreters.others().values() if python]
    if not found:
        pytest.skip("no other Python of a supported release is on this machine")
    for python in found:
        done = run(archive, tmp_path, "probe", "--json", python=python)
        assert done.returncode in (0, 1), f"{python}: {done.stderr}"
        assert json.loads(done.stdout)["schema"].startswith("accelctl.probe/")


def test_home_that_cannot_be_written(archive: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir(mode=0o700)
    done = run(archive, Path("/proc/nowhere"), "--version", TMPDIR=str(temporary))
    assert (done.stdout, done.stderr, done.returncode) == (f"accelctl {accelctl.__version__}\n", "", 0)
    assert (temporary / f"accelctl-{os.getuid()}").is_dir()


def test_folder_that_others_may_write_is_not_used(archive: Path, tmp_path: Path) -> None:
    """Code is unpacked there and run: a folder laid out by someone else in /tmp would be a trap."""
    temporary = tmp_path / "tmp"
    trap = temporary / f"accelctl-{os.getuid()}"
    trap.mkdir(parents=True)
    trap.chmod(0o777)
    done = run(archive, Path("/proc/nowhere"), "--version", TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    assert list(trap.iterdir()) == []


def test_old_python_gets_one_line(archive: Path, tmp_path: Path) -> None:
    old = [p for minor in (9, 8, 7, 6) if (p := shutil.which(f"python3.{minor}"))]
    old += sorted(str(p) for p in (Path.home() / ".pyenv/versions").glob("3.[6-9].*/bin/python3"))
    if not old:
        pytest.skip("no Python older than 3.10 on this machine")
    done = run(archive, tmp_path, "--version", python=old[-1])
    assert done.returncode == 1
    assert done.stderr.startswith("accelctl needs Python 3.10 or newer")
    assert done.stderr.count("\n") == 1
