"""Runs a pytest selection in one boot and brings every test's result back through the share."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import cache, kernels, qemu
from .errors import RigError
from .say import say

REPO = Path(__file__).resolve().parents[3]

GUEST_TESTS = "tests/kernel/guest"

GUEST_SHARE = "/run/accelctl/share"

PLUGIN = "tests.kernel.rig.guest_plugin"

PYTEST_OPTIONS = ("-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib")
"""For each pytest that the rig starts: the project's own options may leave out the very tests it is to run."""

_PASSED_ON = {name: value for name, value in os.environ.items() if name in ("CI", "TZ") or name.startswith("ACCELCTL_")}
"""What the guest gets of the environment; read here, since other fixtures clean the environment of a test."""


@dataclass
class Outcome:
    """What became of one test in the guest."""

    outcome: str = "unfinished"
    seconds: float = 0.0
    text: str = ""


@dataclass
class Guest:
    """One boot and what it brought back."""

    kind: str
    boot: qemu.Boot
    tests: dict[str, Outcome] = field(default_factory=dict)
    output: str = ""
    dmesg: str = ""

    @property
    def last_started(self) -> str:
        """Return the test that was running when the results end; useful when the guest died in it."""
        return next(reversed(self.tests), "none")


def job(kind: str, pytest_arguments: Sequence[str], repo: Path = REPO, python: str = sys.executable) -> str:
    """Return the shell script the guest runs: the same interpreter, on the same checkout, at the same path."""
    udev = cache.find_udev()
    environment = {
        "PATH": f"{Path(python).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/run/accelctl/tmp",
        "XDG_CACHE_HOME": "/run/accelctl/cache",
        "PYTHONPATH": str(repo),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # each costs seconds to import under emulation
        **_PASSED_ON,
        "ACCELCTL_GUEST": kind,
        "ACCELCTL_GUEST_RESULTS": f"{GUEST_SHARE}/results.jsonl",
        "ACCELCTL_GUEST_UDEV": str(udev or ""),
    }
    words = [python, "-m", "pytest", "-p", PLUGIN, *PYTEST_OPTIONS, "-rfEsxX"]
    words += ["--color=no", f"--junitxml={GUEST_SHARE}/junit.xml", *(pytest_arguments or [GUEST_TESTS])]
    lines = ["#!/bin/sh", *(f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items()))]
    return "\n".join([*lines, f"cd {shlex.quote(str(repo))} || exit 3", f"exec {shlex.join(words)}", ""])


def parse_results(lines: Sequence[str]) -> dict[str, Outcome]:
    """Fold the plugin's lines into one outcome per test; a half-written last line is what a crash leaves."""
    tests: dict[str, Outcome] = {}
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        test = tests.setdefault(entry["id"], Outcome())
        if entry["event"] == "report":
            _fold(test, entry)
    return tests


_WORSE = {"unfinished": 0, "passed": 1, "xpassed": 2, "xfailed": 2, "skipped": 2, "failed": 3}


def _fold(test: Outcome, entry: dict[str, object]) -> None:
    outcome = str(entry["outcome"])
    test.seconds += float(str(entry["seconds"]))
    # a test is done when its teardown is: until then a pass may still be followed by a crash
    if entry["when"] != "teardown" and outcome == "passed":
        test.text = test.text or str(entry["text"])
        return
    if _WORSE[outcome] > _WORSE[test.outcome]:
        test.outcome, test.text = outcome, str(entry["text"])


@contextmanager
def _share(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for name in ("exit-code", "results.jsonl", "junit.xml", "output", "dmesg", "console"):
            (keep / name).unlink(missing_ok=True)
        yield keep.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="accelctl-guest-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_guest(
    kind: str,
    pytest_arguments: Sequence[str],
    limit_s: int = 900,
    keep: Path | None = None,
    show: Callable[[str], None] | None = None,
) -> Guest:
    """Boot `kind` once, run pytest in it and return what it brought back; RigError when there is no kernel."""
    folder = cache.find(kind)
    if folder is None:
        raise RigError(f"the {kind} kernel is not in the cache; type: python -m tests.kernel.rig prepare {kind}")
    image = kernels.initrd(folder)
    with _share(keep) as share:
        if "," in str(share):
            raise RigError(f"QEMU takes no comma in a folder's name: {share}")
        (share / "job.sh").write_text(job(kind, pytest_arguments), encoding="utf-8")
        words = qemu.command(folder / "vmlinuz", image, kind, share, limit_s)
        booted = qemu.boot(words, share, limit_s, _follower(share / "output", show))
        return Guest(
            kind,
            booted,
            parse_results(_lines(share / "results.jsonl")),
            "\n".join(_lines(share / "output")),
            "\n".join(_lines(share / "dmesg")),
        )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _follower(path: Path, show: Callable[[str], None] | None) -> Callable[[], None]:
    place = 0

    def follow() -> None:
        nonlocal place
        if show is None or not path.exists():
            return
        with path.open("rb") as file:
            file.seek(place)
            data = file.read()
        place += len(data)
        if data:
            show(data.decode(errors="replace"))

    return follow


def to_terminal(kind: str, pytest_arguments: Sequence[str], limit_s: int, keep: Path | None) -> int:
    """Run as a command: the guest's output as it comes, then pytest's exit code, or 3 when there is none."""

    def show(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    say(f"booting the {kind} kernel")
    guest = in_guest(kind, pytest_arguments, limit_s, keep, show)
    say(f"{kind}: boot, tests and power off took {guest.boot.seconds:.1f} s")
    if guest.boot.trouble:
        say(guest.boot.trouble)
    return 3 if guest.boot.code is None else guest.boot.code
