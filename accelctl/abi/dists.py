"""Which distributions have an entry point of ours, and what it says; nothing is imported.

importlib.metadata takes 50 ms to come in, and its entry_points() fails as a whole where one file of any package is
malformed. So the usual case is read here: folders ``NAME-VERSION.dist-info`` (or ``.egg-info``) beside the packages,
with METADATA and entry_points.txt (Python Packaging User Guide: "Recording installed projects", "Entry points
specification"). Zip files, eggs and finders of other kinds are left to importlib.metadata.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from accelctl.hal import plainfile

GROUP = "accelctl.backends"
_MOST_BYTES = 4 << 20
"""A long README is part of METADATA."""
_INFO = (".dist-info", ".egg-info")
_LINE = re.compile(r"\s*([^=\s][^=]*?)\s*=\s*(.*?)\s*")


class Dist(NamedTuple):
    """One distribution with chips."""

    name: str
    version: str
    base: str
    """The folder (or archive) that its packages lie in."""
    entries: tuple[tuple[str, str], ...]
    """Of the group: name and value of each."""
    shelved: bool = False
    """It lies on the shelf (abi.shelf), which is on no search path."""


class Found(NamedTuple):
    """The first of each name along the search path, and a line for each that cannot be read."""

    dists: tuple[Dist, ...]
    problems: tuple[str, ...]


def find(bases: Iterable[Any], *, finders: bool = True) -> Found:
    """Look through these folders of sys.path, and ask the ``finders`` of other kinds."""
    found: dict[str, Dist] = {}
    problems: list[str] = []
    for base in bases:
        for dist in _others(base) if _is_odd(base) else _in_folder(base or "."):
            if isinstance(dist, str):
                problems.append(dist)
            else:
                found.setdefault(canonical(dist.name), dist)  # the first one on the path is the one that is imported
    for dist in _of_finders() if finders else ():
        if isinstance(dist, Dist):
            found.setdefault(canonical(dist.name), dist)
    return Found(tuple(found.values()), tuple(problems))


def canonical(name: str) -> str:
    """As names of distributions are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_odd(base: Any) -> bool:
    """No plain folder."""
    if not isinstance(base, str) or base.lower().endswith(".egg"):
        return True
    try:
        return Path(base or ".").is_file()
    except (OSError, ValueError):  # ValueError: a NUL in it
        return False


def _in_folder(base: str) -> Iterator[Dist | str]:
    """Plain strings, not paths: on a machine with hundreds of packages this is most of what probe does besides."""
    try:
        infos = sorted(name for name in plainfile.names(base) if name.lower().endswith(_INFO))
    except (OSError, ValueError):
        return
    for info in infos:
        raw = name = None
        try:
            raw = plainfile.read(f"{base}/{info}/entry_points.txt", _MOST_BYTES)  # most have none
            if raw is None or GROUP.encode() not in raw:
                continue
            name, version = _identity(f"{base}/{info}", info)
            dist = Dist(name, version, base, tuple(entries(raw.decode("utf-8"))))
        except (OSError, ValueError) as error:
            yield _problem(name or info.partition("-")[0], error)
            continue
        if dist.entries:
            yield dist


def _problem(name: str, error: Exception) -> str:
    return f"plug-in of {name}: its metadata cannot be read ({type(error).__name__})"


def entries(text: str) -> Iterator[tuple[str, str]]:
    """The group's entries. ValueError where a line of it is no ``name = value``."""
    here = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            here = line == f"[{GROUP}]"
        elif here and line and line[0] not in "#;":
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError(line)
            yield match[1], match[2]


def _identity(folder: str, info: str) -> tuple[str, str]:
    """Name and version; where the file of a distribution lacks them, what the folder is called."""
    for file in ("METADATA", "PKG-INFO"):
        raw = plainfile.read(f"{folder}/{file}", _MOST_BYTES)
        if raw is not None:
            head = dict(_LINE_OF_HEAD.findall(raw.decode("utf-8").partition("\n\n")[0]))
            if "Name" in head:
                return head["Name"].strip(), head.get("Version", "?").strip()
    name, _, rest = info.rpartition(".")[0].partition("-")
    return name, rest or "?"


_LINE_OF_HEAD = re.compile(r"^(Name|Version):(.*)$", re.MULTILINE)


def _others(base: Any) -> Iterator[Dist | str]:
    from importlib.metadata import distributions

    yield from _read(distributions(path=[base]), str(base))


def _of_finders() -> Iterator[Dist | str]:
    """Distributions that another finder than the path's knows."""
    for finder in sys.meta_path:
        if hasattr(finder, "find_distributions") and finder is not PathFinder:
            from importlib.metadata import DistributionFinder

            yield from _read(finder.find_distributions(DistributionFinder.Context()), "")


def _read(dists: Iterable[Any], base: str) -> Iterator[Dist | str]:
    for dist in dists:
        name = "?"
        try:
            text = dist.read_text("entry_points.txt") or ""
            if GROUP not in text:
                continue
            name = str(dist.name if hasattr(dist, "name") else dist.metadata["Name"])
            where = str(dist.locate_file("")).rstrip("/") or base
            found = Dist(name, str(dist.version), where, tuple(entries(text)))
        except Exception as error:
            yield _problem(name, error)
            continue
        if found.entries:
            yield found
