"""Plug-ins side by side: one folder a version, and a pointer that says which one is used.

    $XDG_DATA_HOME/accelctl/backends/zork/1.0/     packages and their .dist-info, as `pip install --target` lays them
                                    zork/1.1/
                                    zork/pointer.json

The pointer is replaced as a whole, so whoever looks sees the old version or the new one. Here it is only read; who
moves it is accept.plugins.store.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from accelctl.abi import dists
from accelctl.abi.manifest import NAME
from accelctl.abi.trust import require_trusted
from accelctl.errors import AccelError, UsageError
from accelctl.hal.lockfile import content, data_home

POINTER = "pointer.json"
SCHEMA = "accelctl.pointer/1"
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}\Z")
"""What can be a version and the name of a folder."""
CHOICE = "ACCELCTL_BACKEND_VERSIONS"
"""``zork=1.1,other=2.0``: for this process, whatever the pointers say."""
OFF = "none"
"""Value of ACCELCTL_PLUGINS that leaves only the chips in the tree."""
_MOST_BYTES = 64 << 10


class Pointer(NamedTuple):
    """Where one chip's pointer is."""

    version: str
    before: tuple[str, ...] = ()
    """Versions that were current earlier, the last one last."""
    since: str = ""
    smoke: str = ""
    """passed or failed: the first `smoke` since then; empty: there was none."""


class Active(NamedTuple):
    """A version that is used."""

    name: str
    version: str
    folder: Path


def root() -> Path:
    """Where the versions are."""
    return Path(data_home()) / "accelctl" / "backends"


def read_pointer(folder: Path) -> Pointer | None:
    """The pointer in the folder of one chip; None where there is none. UsageError for what is none."""
    path = folder / POINTER
    raw = content(str(path), _MOST_BYTES)
    if raw is None:
        return None
    try:
        return _pointer(json.loads(raw.decode("utf-8")))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())[:80]
        hint = f"accelctl backends promote {folder.name} VERSION"
        raise UsageError(f"{path}: no pointer of accelctl: {why}", hint) from None


def _pointer(found: dict[str, Any]) -> Pointer:
    if found["schema"] != SCHEMA:
        raise ValueError(f"schema is {found['schema']!r}, not {SCHEMA!r}")
    before, smoke = found["before"], found["smoke"]
    words = [found["version"], *before]
    if not isinstance(before, list) or not all(isinstance(one, str) and VERSION.match(one) for one in words):
        raise ValueError("its versions are none")
    if smoke not in ("", "passed", "failed") or not isinstance(found["since"], str):
        raise ValueError(f"smoke is {smoke!r:.20}")
    return Pointer(found["version"], tuple(before), found["since"], smoke)


def active() -> tuple[list[Active], list[str]]:
    """The versions in use, and a line for each chip whose pointer leads nowhere."""
    base = root()
    try:
        chips = sorted(path for path in base.iterdir() if NAME.match(path.name) and path.is_dir())
    except OSError:  # most machines have none
        return [], []
    wanted, found, problems = chosen(), list[Active](), list[str]()
    for folder in chips:
        try:
            version = wanted.get(folder.name) or getattr(_trusted(folder), "version", "")
            if version:
                found.append(Active(folder.name, version, _version(folder, version)))
        except AccelError as error:
            problems.append(f"plug-in {folder.name}: {error.message}")
        except OSError as error:
            problems.append(f"plug-in {folder.name}: {folder} cannot be looked at ({(error.strerror or '?').lower()})")
    return found, problems


def in_use() -> dists.Found:
    """Every distribution with chips: those on the search path, then those on the shelf. One that is installed twice is
    the one on the path, as its packages are."""
    if os.environ.get("ACCELCTL_PLUGINS") == OFF:
        return dists.Found((), ())
    found = dists.find(sys.path)
    known = {dists.canonical(dist.name) for dist in found.dists}
    shelved, problems = active()
    more, lines = list[dists.Dist](), [*found.problems, *problems]
    for one in shelved:
        there = dists.find([str(one.folder)], finders=False)
        lines += there.problems
        if not there.dists and not there.problems:
            lines.append(f"plug-in {one.name}: {one.folder} holds no distribution with chips")
        for dist in there.dists:
            if dists.canonical(dist.name) in known:
                lines.append(
                    f"plug-in {one.name}: {dist.name} {dist.version} on the shelf is not used: it is installed"
                )
            else:
                known.add(dists.canonical(dist.name))
                more.append(dist._replace(shelved=True))
    return dists.Found((*found.dists, *more), tuple(lines))


def chosen() -> dict[str, str]:
    """What ACCELCTL_BACKEND_VERSIONS asks for."""
    pairs = (pair.partition("=") for pair in os.environ.get(CHOICE, "").split(","))
    return {name.strip(): version.strip() for name, _, version in pairs if name.strip() and version.strip()}


def _trusted(folder: Path) -> Pointer | None:
    pointer = read_pointer(folder)
    if pointer is not None:
        require_trusted(folder / POINTER)
    return pointer


def _version(folder: Path, version: str) -> Path:
    path = folder / version
    if not VERSION.match(version) or not path.is_dir():
        raise UsageError(f"version {version[:40]} is not in {folder}")
    require_trusted(path)
    return path
