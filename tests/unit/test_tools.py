"""The scripts behind `make test`: what they tell and install, and how they count."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import interpreters, system, test


def test_missing_packages_are_told_apart() -> None:
    if not Path("/var/lib/dpkg/status").is_file():
        pytest.skip("not a Debian: there is no dpkg to ask")
    assert system.missing(["dpkg", "no-such-package-of-ours"]) == ["no-such-package-of-ours"]


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A Debian that lacks one package; whatever would be installed is collected."""
    installed: list[list[str]] = []
    monkeypatch.setattr(system, "wanted", lambda: ["dpkg", "qemu-of-ours"])
    monkeypatch.setattr(system, "missing", lambda _: ["qemu-of-ours"])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(system, "_install", installed.append)
    return installed


@pytest.mark.parametrize(("root", "no_apt", "installs"), [(True, "", True), (True, "1", False), (False, "", False)])
def test_packages_are_installed_only_by_root_and_said_before(
    root: bool,
    no_apt: str,
    installs: bool,
    lacking: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setenv("NO_APT", no_apt)
    complaint = system.ensure()
    command = "apt-get install --no-install-recommends qemu-of-ours"
    assert lacking == ([["qemu-of-ours"]] if installs else [])
    if installs:
        assert complaint is None
        assert command in capsys.readouterr().out
    else:
        assert complaint == f"some tests will be skipped; for all of them type: sudo {command}"


def test_a_failing_apt_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apt's lists and downloads go to our cache folder, never to its own."""
    calls: list[list[str]] = []

    def fake(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        calls.append(command)
        return subprocess.CompletedProcess(command, 100, "", "W: noise\nE: no space\n")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", fake)
    assert system._install(["x"]) == "apt-get update failed, some tests will be skipped: E: no space"
    assert f"Dir::State::Lists={tmp_path}/accelctl/apt/lists" in calls[0]


def test_interpreters_that_do_not_run_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version manager's shim is on PATH for every version, but runs only for those that are switched on."""
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'python3.12: command not found' >&2; exit 127\n", encoding="ascii")
    shim.chmod(0o755)
    good = tmp_path / "pyenv/versions/3.12.9/bin/python3.12"
    good.parent.mkdir(parents=True)
    good.write_text("#!/bin/sh\necho 12\n", encoding="ascii")
    good.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "nothing"))
    assert interpreters._find(12) in (None, "/usr/bin/python3.12")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert interpreters._find(12) == str(good)
    assert not interpreters._runs(str(good), 13)
    assert not interpreters._runs(str(tmp_path / "absent"), 12)


def test_requirements_come_from_the_project_file() -> None:
    listed = interpreters._requirements()
    assert {re.split("[<>=]", line)[0] for line in listed} == set(interpreters.NEEDED)
    assert all("<" in line or ">" in line for line in listed)


def test_counts_are_summed_over_runs(tmp_path: Path) -> None:
    counts = test.Counts()
    for tests, failures, errors, skipped in ((10, 1, 2, 3), (5, 0, 0, 0)):
        file = tmp_path / "junit.xml"
        suite = f'<testsuite tests="{tests}" failures="{failures}" errors="{errors}" skipped="{skipped}"/>'
        file.write_text(f"<testsuites>{suite}</testsuites>", encoding="ascii")
        counts.add(file)
    assert str(counts) == "total: 9 passed, 3 failed, 3 skipped"


def test_a_failed_step_fails_the_run_but_not_the_next_step() -> None:
    run = test.Run()
    run.step("one", lambda: False)
    run.step("two", lambda: True)
    assert run.bad == ["one"]


# -- a test that fails among others --

ONCE = """
from pathlib import Path

def test_second_time():
    here = Path(__file__).with_suffix(".ran")
    ran = here.exists()
    here.touch()
    assert ran

def test_good():
    pass
"""
NEVER = "def test_never():\n    assert False\n"
MANY = "import pytest\n\n@pytest.mark.parametrize('n', range(4))\ndef test_never(n):\n    assert False\n"


@pytest.mark.parametrize(
    ("text", "bad", "counts", "alone"),
    [
        (ONCE, [], (2, 0), ["test_it::test_second_time"]),
        (NEVER, ["part"], (0, 1), []),
        (MANY, ["part"], (0, 4), []),
    ],
    ids=("once", "never", "many"),
)
def test_who_fails_among_others_is_tried_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    bad: list[str],
    counts: tuple[int, int],
    alone: list[str],
) -> None:
    monkeypatch.setattr(test, "ROOT", tmp_path)
    monkeypatch.setattr(test, "RESULTS", tmp_path / "results")
    (tmp_path / "tests" / "here").mkdir(parents=True)
    (tmp_path / "tests" / "here" / "test_it.py").write_text(text, encoding="utf-8")
    run = test.Run()
    run.pytest("part", sys.executable, ("here",))
    assert run.bad == bad
    assert (run.counts.passed, run.counts.failed) == counts
    assert [name.removeprefix("tests.here.") for name in run.counts.alone] == alone
