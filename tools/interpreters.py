"""Other Python interpreters on this machine, and an environment for each."""

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MINORS = (10, 11, 12, 13)
"""The supported releases 3.x."""

NEEDED = ("pytest", "pytest-xdist", "hypothesis", "pyudev", "jsonschema")
"""What the fast tests use of the extra `dev`; the checkers and scipy are not installed again."""


def others() -> dict[int, str | None]:
    """Minor version -> a runnable interpreter of it, or None; without the one that runs this."""
    return {minor: _find(minor) for minor in MINORS if (3, minor) != sys.version_info[:2]}


def _find(minor: int) -> str | None:
    return next((path for path in _candidates(minor) if _runs(path, minor)), None)


def _candidates(minor: int) -> Iterator[str]:
    """PATH first, then pyenv's own folder: its shims only run for versions that are switched on."""
    name = f"python3.{minor}"
    if found := shutil.which(name):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for folder in sorted(pyenv.glob(f"versions/3.{minor}*")):
        yield str(folder / "bin" / name)


def _runs(path: str, minor: int) -> bool:
    code = "import ensurepip, venv, sys; print(sys.version_info[1])"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == str(minor)


def environment(minor: int, interpreter: str) -> Path:
    """Make or refresh .venv-3.X and return its python. Raises CalledProcessError when pip or venv fails."""
    home = ROOT / f".venv-3.{minor}"
    python, stamp = home / "bin" / "python", home / ".installed"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="ascii") == wanted:
        return python
    subprocess.run([interpreter, "-m", "venv", "--clear", str(home)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-e", f"{ROOT}[umd]", *_requirements()], check=True)
    stamp.write_text(wanted, encoding="ascii")
    return python


def _requirements() -> list[str]:
    """The version ranges of pyproject.toml for NEEDED, as the installed metadata tells them."""
    listed = importlib.metadata.requires("accelctl") or []
    plain = [line.split(";")[0].strip() for line in listed]
    return sorted({line for line in plain if re.split(r"[<>=!~ \[]", line)[0] in NEEDED})
