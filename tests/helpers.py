"""Running the real program from tests, as a user does: in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_cli(
    *args: str, env: Mapping[str, str | None] | None = None, cwd: Path = ROOT, code: int | None = None, stdin: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run `python -m accelctl ARGS` to its end, its output captured.

    env: variables to set, or to remove (None). code: the exit status it must have, with its stderr shown otherwise.
    """
    done = subprocess.run(
        [sys.executable, "-m", "accelctl", *args],
        env=environment(env),
        cwd=cwd,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
    )
    assert code is None or done.returncode == code, f"exit {done.returncode}, not {code}: {done.stderr}"
    return done


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The current environment with the checkout importable and some variables set or (None) removed."""
    merged: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT), **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


LISTING = """
import sys
from accelctl.cli import main
main(sys.argv[1:])
sys.stderr.write("\\nMODULES " + " ".join(sorted(sys.modules)))
"""


def loaded_modules(*args: str, env: Mapping[str, str | None] | None = None, cwd: Path = ROOT) -> set[str]:
    """Names of all modules in the process after one command line has run.

    Not from -X importtime: it does not tell what importlib.import_module brings in.
    """
    done = subprocess.run(
        [sys.executable, "-c", LISTING, *args],
        env=environment(env),
        cwd=cwd,
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=120,
    )
    said, marker, names = done.stderr.rpartition("\nMODULES ")
    assert marker, f"no list of modules: {done.stderr[-500:]}"
    assert "internal error" not in said, said
    return set(names.split())
