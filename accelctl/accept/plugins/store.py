"""The shelf of plug-ins (abi.shelf), as it is changed: versions come in whole or not at all, and a pointer moves.

Whoever changes one chip's part of it holds the lock of its pointer. A version is never changed once it is there; the
pointer is replaced as a whole, with what it was before, so `rollback` needs nothing that could be lost meanwhile.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from accelctl.abi import compute, registry, shelf
from accelctl.abi.manifest import NAME
from accelctl.abi.registry import Chips
from accelctl.abi.shelf import POINTER, SCHEMA, VERSION, Pointer
from accelctl.abi.trial import apart
from accelctl.accept.plugins import intake
from accelctl.errors import AccelError, UsageError
from accelctl.exits import ExitCode
from accelctl.hal import lockfile
from accelctl.model.pluginreport import VersionRow, Versions

MOST_BEFORE = 20
"""Versions that a pointer remembers."""


def versions(name: str) -> Versions:
    """All versions of a chip. UsageError for a chip without any."""
    folder = _folder(name)
    pointer, problem = None, ""
    try:
        pointer = shelf.read_pointer(folder)
    except UsageError as error:
        problem = error.message
    current = pointer.version if pointer else ""
    before = set(pointer.before) if pointer else set()
    rows = [_row(name, path, current, before) for path in _there(folder)]
    if current and current not in {row.version for row in rows}:
        problem = f"the pointer names {current}, which is not here"
    since, smoke = (pointer.since, pointer.smoke) if pointer else ("", "")
    return Versions(name, str(folder), tuple(rows), since, smoke, problem)


def _folder(name: str) -> Path:
    folder = shelf.root() / name
    if not NAME.match(name) or not folder.is_dir():
        there = ", ".join(names()) or "none"
        raise UsageError(
            f"{name[:40]}: no version of it is on the shelf (chips there: {there})", "accelctl backends add PATH"
        )
    return folder


def names() -> list[str]:
    """Chips with versions."""
    try:
        return sorted(path.name for path in shelf.root().iterdir() if NAME.match(path.name) and path.is_dir())
    except OSError:
        return []


def _there(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if VERSION.match(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: [(not part.isdigit(), int(part) if part.isdigit() else 0, part)
                                           for part in re.split(r"[.+_-]", path.name)])  # fmt: skip


def _row(name: str, path: Path, current: str, before: set[str]) -> VersionRow:
    return VersionRow(path.name, str(path), path.name == current, path.name in before, intake.incomplete(name, path))


def add(place: str) -> tuple[str, VersionRow]:
    """Put a copy of a distribution on the shelf: a wheel, a folder that pip installed into, or a project's. The chip's
    name, and the new version. UsageError for what is none of these, and for a version that is there already."""
    with intake.opened(place) as source:
        folder = Path(lockfile.made_folder(str(shelf.root() / source.chip)))
        if not VERSION.match(source.version):
            raise UsageError(f"{place}: its version {source.version[:40]!r} cannot be the name of a folder")
        goal = folder / source.version
        with lockfile.locked(str(folder / POINTER)):
            if goal.exists():
                hint = "give it another version; one that is there is never changed"
                raise UsageError(f"{source.chip} {source.version} is on the shelf already", hint)
            intake.copy(source, folder, goal)
    return source.chip, _row(source.chip, goal, "", set())


def promote(name: str, version: str) -> Versions:
    """From now on this version is used. UsageError where it is not there or not whole; AbiError where it is refused."""
    folder = _folder(name)
    _usable(name, folder, version)
    with lockfile.locked(str(folder / POINTER)) as place:
        try:
            old = shelf.read_pointer(folder)
        except UsageError:  # it says nothing: there is nothing to go back to
            old = None
        if old is None or old.version != version:
            before = (*(old.before if old else ()), *((old.version,) if old else ()))
            _write(place, Pointer(version, before[-MOST_BEFORE:], _now()))
    return versions(name)


def rollback(name: str) -> Versions:
    """Back to the version before. UsageError where there was none, or it is not there any more."""
    folder = _folder(name)
    old = shelf.read_pointer(folder)
    if old is None or not old.before:
        raise UsageError(f"{name}: there is no version before {old.version if old else 'the first one'}")
    version = old.before[-1]
    _usable(name, folder, version)  # it may take long, and nobody has to wait for it
    with lockfile.locked(str(folder / POINTER)) as place:
        now = shelf.read_pointer(folder)
        if now is None or (now.version, now.before) != (old.version, old.before):
            raise AccelError(f"{name}: its pointer was moved meanwhile, and stays there", kind="busy")
        _write(place, Pointer(version, old.before[:-1], _now()))
    return versions(name)


def _usable(name: str, folder: Path, version: str) -> None:
    path = folder / version
    if not VERSION.match(version) or not path.is_dir():
        there = ", ".join(one.name for one in _there(folder)) or "none"
        raise UsageError(f"{name} {version[:40]} is not on the shelf (there: {there})")
    why = intake.incomplete(name, path)
    if why:
        raise UsageError(f"{name} {version}: {why}")
    loaded(name, version)


def loaded(name: str, version: str) -> None:
    """AbiError, in one line, for a version that cannot be loaded; it is tried in a child process."""

    def work() -> bool:
        os.environ[shelf.CHOICE] = f"{name}={version}"
        chips = Chips()
        row = chips.row(name)
        if row.folder != str(shelf.root() / name / version):
            hint = f"pip uninstall {row.origin}"
            raise UsageError(
                f"{name} is installed beside the shelf ({row.origin} {row.version}), and that one is used", hint
            )
        return bool(chips.load_tried(name))

    apart(work, f"plug-in {name} {version}: loading it")


def _write(place: str, pointer: Pointer) -> None:
    document: dict[str, Any] = {"schema": SCHEMA, **pointer._asdict()}
    lockfile.replaced(place, (json.dumps(document, indent=2) + "\n").encode())


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


_ANSWERS = (ExitCode.OK, ExitCode.FINDINGS, ExitCode.ABI, ExitCode.TIMEOUT, ExitCode.UNUSABLE)
"""How a `smoke` ends that says something of the version. The others: it was not there, or asked for wrongly."""


def after_no_smoke(filters: Sequence[str], exit_code: int) -> str:
    """As :func:`after_smoke`, for one that ended without a report."""
    if exit_code not in _ANSWERS:
        return ""
    try:
        device = compute.choose(list(filters)).device.target.id
    except AccelError:  # it is refused before it says what is here
        device = filters[0] if filters else ""
    return after_smoke(device, exit_code, whole=False)


def after_smoke(device: str, exit_code: int, *, whole: bool) -> str:
    """Told after each `smoke` of the version in use: the first failure, or the first ``whole`` one that passed, is
    remembered. A line for people where it failed, empty otherwise. Nothing is looked at for chips in the tree."""
    name, passed = device.partition(":")[0], exit_code == ExitCode.OK
    if name in registry.IN_TREE or not NAME.match(name) or exit_code not in _ANSWERS or (passed and not whole):
        return ""
    folder = shelf.root() / name
    try:
        pointer = shelf.read_pointer(folder)
        if pointer is None or pointer.smoke or registry.row(name).folder != str(folder / pointer.version):
            return ""
        with lockfile.locked(str(folder / POINTER)) as place:
            if shelf.read_pointer(folder) == pointer:
                _write(place, pointer._replace(smoke="passed" if passed else "failed"))
    except AccelError as error:
        return f"the first smoke of {name} cannot be noted: {error.message}"
    if passed:
        return ""
    back = f"; back to {pointer.before[-1]}: accelctl backends rollback {name}" if pointer.before else ""
    return f"{name} {pointer.version}, promoted {pointer.since}, fails its first smoke{back}"
