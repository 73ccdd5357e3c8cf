"""What can be put on the shelf: a wheel, a folder that pip installed into, or a project's own folder.

Nothing is built and nothing is run: of a project its packages are copied, and the metadata that pip would write are
written from pyproject.toml ("Recording installed projects", "Declaring project metadata" of the Python Packaging User
Guide). What needs building is for pip: `pip install --target DIR .`, then DIR.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from accelctl.abi import dists
from accelctl.abi.dists import GROUP
from accelctl.abi.manifest import NAME
from accelctl.errors import UsageError
from accelctl.model.toml import loads

PREFIX = ".adding-"
MOST_BYTES = 4 << 30
_NAME = re.compile(r"([A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._-]{0,98}[A-Za-z0-9])\Z")
"""Of a distribution (Python Packaging User Guide: "Names and normalization"); it becomes part of a folder's name."""
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".git", ".venv", ".tox", ".mypy_cache", ".pytest_cache")


class Source(NamedTuple):
    """One distribution, as files: where it is, what of it, and the metadata that have to be written."""

    chip: str
    version: str
    folder: Path
    parts: tuple[str, ...]
    """Names below the folder; none: all of it."""
    metadata: dict[str, str]
    """File name of the .dist-info -> text; empty: they are there."""
    name: str


@contextmanager
def opened(place: str) -> Iterator[Source]:
    """The distribution at that path, for as long as it is copied. UsageError, in one line, for what is none."""
    path = Path(place)
    try:
        if path.is_dir():
            yield _project(path) if (path / "pyproject.toml").is_file() else _installed(path, place)
        elif path.is_file() and path.suffix == ".whl":
            unpacked = mkdtemp(prefix="accelctl-wheel-")
            try:
                _unpack(path, unpacked)
                yield _installed(Path(unpacked), place)
            finally:
                shutil.rmtree(unpacked, ignore_errors=True)
        else:
            what = "neither a folder nor a wheel (.whl)" if path.exists() else "there is nothing of that name"
            raise UsageError(f"{place}: {what}")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UsageError(f"{place}: cannot be read ({' '.join(str(error).split())[:120]})") from None


def _installed(path: Path, place: str) -> Source:
    found = dists.find([str(path)], finders=False)
    if found.problems:
        raise UsageError(f"{place}: {found.problems[0]}")
    if len(found.dists) != 1:
        there = ", ".join(one.name for one in found.dists)
        raise UsageError(
            f"{place}: {f'several distributions with chips: {there}' if there else 'no distribution in it has a chip'}"
        )
    (dist,) = found.dists
    return Source(_first(dist.entries, place), dist.version, path, (), {}, dist.name)


def _first(entries: Any, place: str) -> str:
    names = sorted(str(name) for name, _ in entries)
    if not names or not NAME.match(names[0]):
        raise UsageError(f"{place}: {names[0] if names else 'nothing'!r} is no name of a chip")
    return names[0]


def _project(path: Path) -> Source:
    place = str(path / "pyproject.toml")
    project = loads((path / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    project = project if isinstance(project, dict) else {}
    points = project.get("entry-points", {})
    entries = points.get(GROUP, {}) if isinstance(points, dict) else {}
    name, version = (project.get(key) for key in ("name", "version"))
    if not isinstance(entries, dict) or not entries or not all(isinstance(one, str) for one in entries.values()):
        raise UsageError(f"{place}: no entry point in the group {GROUP}")
    if isinstance(name, str) and not _NAME.match(name):
        raise UsageError(f"{place}: {name[:40]!r} is no name of a distribution")
    if not isinstance(name, str) or not isinstance(version, str):
        raise UsageError(
            f"{place}: [project] needs a name and a version here; for anything else: pip install --target DIR {path}"
        )
    base = path / "src" if (path / "src").is_dir() else path
    tops = tuple(sorted({value.partition(":")[0].strip().partition(".")[0] for value in entries.values()}))
    parts = tuple(top if (base / top).is_dir() else f"{top}.py" for top in tops)
    for part in parts:
        if not (base / part).exists():
            raise UsageError(f"{place}: its entry point names {part.removesuffix('.py')}, which is not in {base}")
    lines = "\n".join([f"[{GROUP}]", *(f"{key} = {value}" for key, value in entries.items()), ""])
    metadata = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "entry_points.txt": lines,
        "INSTALLER": "accelctl\n",
    }
    return Source(_first(entries.items(), place), version, base, parts, metadata, name)


def _unpack(wheel: Path, goal: str) -> None:
    """Only plain names below the goal; a wheel is a zip file (binary distribution format)."""
    with zipfile.ZipFile(wheel) as archive:
        infos = archive.infolist()
        if sum(info.file_size for info in infos) > MOST_BYTES:
            raise UsageError(f"{wheel}: more than {MOST_BYTES >> 30} GiB when unpacked")
        for info in infos:
            parts = info.filename.split("/")
            if (
                info.filename.startswith("/")
                or ".." in parts
                or "\\" in info.filename
                or stat.S_ISLNK(info.external_attr >> 16)
            ):
                raise UsageError(f"{wheel}: it holds {info.filename[:60]!r}, which leads out of it")
        archive.extractall(goal)


def copy(source: Source, folder: Path, goal: Path) -> None:
    """Copy it beside the goal, then give it its name: whoever looks sees all of it or nothing."""
    for left in folder.glob(f"{PREFIX}*"):  # of one that was killed; who adds holds the lock
        shutil.rmtree(left, ignore_errors=True)
    half = Path(mkdtemp(prefix=PREFIX, dir=folder)) if os.access(folder, os.W_OK) else None
    if half is None:
        raise UsageError(f"{folder}: cannot be written")
    try:
        if source.parts:
            for part in source.parts:
                _copy_one(source.folder / part, half / part)
        else:
            shutil.copytree(source.folder, half, symlinks=True, ignore=_LEFT_OUT, dirs_exist_ok=True)
        _no_links(half)
        _write_metadata(source, half)
        half.chmod(0o755)
        _only_ours_to_write(half)
        why = incomplete(source.chip, half)
        if why:
            raise UsageError(f"{source.name} {source.version}: {why}")
        half.rename(goal)
    except (OSError, shutil.Error) as error:
        raise UsageError(f"{goal}: cannot be written ({' '.join(str(error).split())[:160]})") from None
    finally:
        with suppress(OSError):
            if half.exists():
                shutil.rmtree(half, ignore_errors=True)


def _copy_one(place: Path, goal: Path) -> None:
    if place.is_dir():
        shutil.copytree(place, goal, symlinks=True, ignore=_LEFT_OUT)
    else:
        shutil.copy2(place, goal)


def _no_links(folder: Path) -> None:
    """A link would make the version change with what it leads to."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise UsageError(f"{path.relative_to(folder)} is a symbolic link: a version holds its own files")


def _only_ours_to_write(folder: Path) -> None:
    """Neither its group nor others: root would not take it (abi.trust)."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o022)


def incomplete(name: str, path: Path) -> str:
    """Why this folder is no version of that chip; empty: it is one."""
    found = dists.find([str(path)], finders=False)
    for value in (value for dist in found.dists for entry, value in dist.entries if entry == name):
        top = value.partition(":")[0].strip().partition(".")[0]
        if (path / top).is_dir() or (path / f"{top}.py").is_file():
            return ""
        return f"it is not whole: {top} is missing"
    return "; ".join(found.problems) or f"it is not whole: no distribution in it has the chip {name}"


def _write_metadata(source: Source, folder: Path) -> None:
    if source.metadata:
        info = folder / f"{dists.canonical(source.name).replace('-', '_')}-{source.version}.dist-info"
        info.mkdir()
        for file, text in source.metadata.items():
            (info / file).write_text(text, encoding="utf-8")
