"""`accelctl backends new`: a distribution of one chip that passes the conformance suite as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

from accelctl.abi import registry
from accelctl.abi.manifest import NAME
from accelctl.abi.version import ABI
from accelctl.errors import UsageError, unwritable
from accelctl.probes.filters import KEYS, SCHEMES

DATA = Path(__file__).resolve().parents[2] / "data" / "scaffold"
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "chip.toml": "accelctl_@name@/chip.toml",
    "init.py": "accelctl_@name@/__init__.py",
    "memory.py": "accelctl_@name@/memory.py",
    "compute.py": "accelctl_@name@/compute.py",
    "telemetry.py": "accelctl_@name@/telemetry.py",
    "test_chip.py": "tests/test_chip.py",
}
"""Template -> where it goes."""
MOST = 32
"""Letters of a name that is new: it stands in file names, columns and identifiers."""


def new(name: str, at: str, title: str = "") -> tuple[str, list[str]]:
    """Write it below the folder ``at``. The folder of the distribution, and its files. UsageError for a name that is
    none or taken, and where something is there already: nothing is ever overwritten."""
    if not NAME.match(name) or name[0].isdigit() or len(name) > MOST:
        raise UsageError(
            f"{name[:40]!r} cannot be a chip's name: at most {MOST} lower-case letters, digits and underscores"
        )
    if name in registry.IN_TREE:
        raise UsageError(f"{name} is a chip of accelctl itself; its name cannot be used again")
    if name in KEYS or name in SCHEMES:
        raise UsageError(f"{name} means something else in --device; a chip cannot be called so")
    goal = Path(at) / f"accelctl-{name}"
    title = " ".join(title.split()) or name.replace("_", " ").capitalize()
    if not title.isprintable() or any(sign in title for sign in '"\\{}'):
        raise UsageError(f"{title[:40]!r} cannot be a title: plain text without quotes, braces and backslashes")
    words = {"@name@": name, "@title@": title, "@abi@": str(ABI)}
    if not Path(at).is_dir():
        raise UsageError(f"{goal}: cannot be written (there is no folder {at})")
    made = False
    try:
        goal.mkdir()
        made = True
        for template, place in FILES.items():
            _write(goal / _filled(place, words), _filled(_template(template), words))
    except FileExistsError:
        raise UsageError(
            f"{goal} is there already: nothing is overwritten", "--at another folder, or another name"
        ) from None
    except OSError as error:
        if made:
            shutil.rmtree(goal, ignore_errors=True)
        raise unwritable(goal, error) from None
    return str(goal), [_filled(place, words) for place in FILES.values()]


def _template(name: str) -> str:
    return (DATA / f"{name}.txt").read_text(encoding="utf-8")


def _filled(text: str, words: dict[str, str]) -> str:
    for mark, word in words.items():
        text = text.replace(mark, word)
    return text


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
