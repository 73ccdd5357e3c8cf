"""`make test`: system packages, kernels, lint, tests on every interpreter, and one closing line with all counts.

A step that fails does not stop the others, so that one run tells everything; the exit status is 1 if any failed.

Tests measure time, fork beside threads and wait for other processes, on machines of two cores. One that fails among
others gets one more try, alone; it is named at the end in either case, and more than MOST_AGAIN of a step are a failure
as they are.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from tools import interpreters, system

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "test-results"
FAST = ("unit", "golden", "machines")
"""Folders of tests that need nothing but Python."""

NEEDY = ("kernel", "opencl", "torch", "device", "tui", "perf")
"""Folders of tests that need more; one at a time, because they measure or boot machines."""

TESTS_FAILED = 1
"""pytest's exit status when all were run and some failed."""

MOST_AGAIN = 3
"""Tests of one step that may be run again alone."""


class Counts:
    """Totals over all pytest runs, read from their JUnit files."""

    def __init__(self) -> None:
        self.passed = self.failed = self.skipped = 0
        self.alone: list[str] = []
        """Tests that failed among others and passed alone."""

    def add(self, file: Path) -> None:
        """Add one file; errors in fixtures count as failures."""
        for suite in ElementTree.parse(file).getroot().iter("testsuite"):
            total, failed, errors, skipped = (
                int(suite.get(k, "0")) for k in ("tests", "failures", "errors", "skipped")
            )
            self.failed += failed + errors
            self.skipped += skipped
            self.passed += total - failed - errors - skipped

    def forgive(self, file: Path) -> None:
        """A second try in which all passed: its tests had been counted as failed."""
        names = [f"{case.get('classname')}::{case.get('name')}" for case in ElementTree.parse(file).iter("testcase")]
        self.alone += names
        self.failed -= len(names)
        self.passed += len(names)

    def __str__(self) -> str:
        return f"total: {self.passed} passed, {self.failed} failed, {self.skipped} skipped"


class Run:
    """One `make test`: which steps failed so far, and the counts."""

    def __init__(self) -> None:
        self.bad: list[str] = []
        self.counts = Counts()

    def step(self, name: str, work: Callable[[], bool]) -> None:
        """Announce a step, do it, and say what it cost."""
        print(f"== {name}", flush=True)
        start = time.monotonic()
        good = work()
        print(f"== {name}: {'ok' if good else 'FAILED'}, {time.monotonic() - start:.0f} s", flush=True)
        if not good:
            self.bad.append(name)

    def pytest(self, name: str, python: Path | str, folders: Sequence[str], *options: str) -> None:
        """Run the tests of some folders; a folder without any test file is left out."""
        there = [f"tests/{f}" for f in folders if any((ROOT / "tests" / f).rglob("test_*.py"))]
        if there:
            self.step(name, lambda: self._pytest(name, python, there, options))

    def _pytest(self, name: str, python: Path | str, paths: Sequence[str], options: Sequence[str]) -> bool:
        report = RESULTS / f"{name.replace(' ', '-')}.xml"
        again = report.with_suffix(".again.xml")
        for old in (report, again):
            old.unlink(missing_ok=True)
        command = [str(python), "-m", "pytest", "-o", f"cache_dir={report.with_suffix('.cache')}"]
        code = call(*command, f"--junit-xml={report}", *options, *paths)
        failed = self.counts.failed
        if report.is_file():
            self.counts.add(report)
        if code != TESTS_FAILED or self.counts.failed - failed > MOST_AGAIN:
            return code == 0
        print(f"== {name}: the {self.counts.failed - failed} that failed, once more, alone", flush=True)
        code = call(*command, f"--junit-xml={again}", "--last-failed", "--last-failed-no-failures=none", *paths)
        if code == 0 and again.is_file():
            self.counts.forgive(again)
        return code == 0


def call(*command: str) -> int:
    """Run a command in the checkout with its output shown; returns its exit status."""
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode


def lint() -> bool:
    """ruff and mypy --strict; both run even if the first one complains."""
    results = [
        call(sys.executable, "-m", *words) for words in (("ruff", "check", "accelctl", "tools", "tests"), ("mypy",))
    ]
    return not any(results)


def packages() -> bool:
    """Missing packages are told but fail nothing: the tests that need them are skipped with their reason."""
    if complaint := system.ensure():
        print(complaint, flush=True)
    return True


def kernels() -> bool:
    """Fetch and build the two kernels, unless the packages for that could not be had."""
    lack = call(sys.executable, "-m", "tests.kernel.rig", "missing")
    if lack:
        print("the packages above are not here: kernel tests are skipped", flush=True)
        return True
    return call(sys.executable, "-m", "tests.kernel.rig", "prepare", "all") == 0


def on_other_interpreters(run: Run) -> None:
    """The fast tests on every other supported Python that is here."""
    for minor, path in interpreters.others().items():
        if path is None:
            print(f"== python 3.{minor} is not on this machine: nothing was tested on it", flush=True)
            continue
        try:
            python = interpreters.environment(minor, path)
        except subprocess.CalledProcessError as error:
            print(f"== python 3.{minor}: no environment: {error}", flush=True)
            run.bad.append(f"python 3.{minor} environment")
            continue
        run.pytest(f"python 3.{minor}", python, FAST, "-n", "2", "-m", "not slow")


def full(run: Run) -> None:
    """All of it; the fast tests of the main interpreter come last, so that their summary closes the output."""
    run.step("system packages", packages)
    run.step("kernels", kernels)
    run.step("lint", lint)
    on_other_interpreters(run)
    run.pytest("tests with needs", sys.executable, NEEDY)
    run.pytest("tests", sys.executable, FAST, "-n", "2")


def main() -> int:
    """Run everything, or with --lint or --quick a part."""
    run = Run()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if "--lint" in sys.argv[1:]:
        run.step("lint", lint)
    elif "--quick" in sys.argv[1:]:
        run.pytest("tests", sys.executable, FAST, "-n", "2", "-m", "not slow")
    else:
        full(run)
    for name in run.counts.alone:
        print(f"failed among others, passed alone: {name}")
    if run.bad:
        print(f"failed: {', '.join(run.bad)}")
    if "--lint" not in sys.argv[1:]:
        print(run.counts)
    return 1 if run.bad else 0


if __name__ == "__main__":
    sys.exit(main())
