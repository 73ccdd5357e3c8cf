"""``--diff A B``: what changed between two looks at a machine, grouped by device.

Either side is a captured machine (folder or tar) or the JSON that ``accelctl probe --json`` printed. What changes by
itself (volatile) and what only tells equal machines apart (identity) is left out: captures hide identities with a key
of their own, so they differ between any two captures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from accelctl.errors import UsageError
from accelctl.model.report import SCHEMA

MAX_BYTES = 256 << 20
_HEAD = ("id", "kind", "chip", "parent", "path")


class Change(NamedTuple):
    """A fact before and after; None with ``reason`` words where there is no value, both None where the fact is not
    known."""

    fact: str
    before: Any
    after: Any
    reason_before: str | None = None
    reason_after: str | None = None


class Subject(NamedTuple):
    """The machine (id None) or a device: ``state`` is "changed", "gone" or "new"."""

    id: str | None
    name: str
    state: str
    changes: tuple[Change, ...] = ()


class FindingChange(NamedTuple):
    """A finding that is there on one side only: ``state`` is "gone" or "new"."""

    state: str
    id: str
    level: str
    device: str | None
    title: str


class Delta(NamedTuple):
    """Everything that differs."""

    a: str
    b: str
    subjects: tuple[Subject, ...]
    findings: tuple[FindingChange, ...]

    @property
    def same(self) -> bool:
        """True when nothing differs."""
        return not self.subjects and not self.findings


def is_document(path: str) -> bool:
    """Does the file begin like JSON? Archives and folders do not."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as source:
            return source.read(256).lstrip()[:1] == b"{"
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from None


def load(path: str) -> dict[str, Any]:
    """A document that ``probe --json`` printed; UsageError with one line when it is not one."""
    try:
        with open(path, "rb") as source:
            data = source.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
        whole = json.loads(data.decode("utf-8"))
        _check(whole)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from None
    except RecursionError:
        raise UsageError(f"{path}: not a probe document (nested too deeply)", _HINT) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not a probe document ({str(error)[:120] or type(error).__name__})", _HINT) from None
    return dict(whole)


_HINT = "accelctl probe --json > FILE"


def _check(whole: Any) -> None:
    """Everything that compare() takes for granted."""
    if not isinstance(whole, dict) or whole.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    if not isinstance(whole.get("machine"), dict):
        raise ValueError("machine is not an object")
    for name, keys in (("devices", ("id",)), ("findings", ("id", "level", "title"))):
        entries = whole.get(name)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f"{name} is not a list of objects")
        if not all(isinstance(entry.get(key), str) for entry in entries for key in keys):
            raise ValueError(f"an entry of {name} lacks {' or '.join(keys)}")
    if not isinstance(whole.get("evidence", {}), dict):
        raise ValueError("evidence is not an object")


def compare(a: dict[str, Any], b: dict[str, Any], names: tuple[str, str]) -> Delta:
    """Compare two documents; ``names`` are what the user called them."""
    subjects = []
    changes = tuple(_changes(a, b, ("/machine", "/machine"), a["machine"], b["machine"]))
    if changes:
        subjects.append(Subject(None, "machine", "changed", changes))
    before = {entry["id"]: (index, entry) for index, entry in enumerate(a["devices"])}
    after = {entry["id"]: (index, entry) for index, entry in enumerate(b["devices"])}
    for identity in sorted({*before, *after}):
        subject = _device(a, b, before.get(identity), after.get(identity))
        if subject is not None:
            subjects.append(subject)
    return Delta(*names, tuple(subjects), tuple(_findings(a, b)))


def _device(
    a: dict[str, Any], b: dict[str, Any], before: tuple[int, Any] | None, after: tuple[int, Any] | None
) -> Subject | None:
    if before is None or after is None:
        _, entry = before or after or (0, {})
        return Subject(entry["id"], _name(entry), "new" if before is None else "gone")
    bases = (f"/devices/{before[0]}", f"/devices/{after[0]}")
    changes = tuple(_changes(a, b, bases, before[1], after[1]))
    return Subject(after[1]["id"], _name(after[1]), "changed", changes) if changes else None


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry.get("name") or entry.get("chip") or entry.get("kind") or "device")


def _changes(
    a: dict[str, Any], b: dict[str, Any], bases: tuple[str, str], before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Change]:
    left, right = dict(_flat(before)), dict(_flat(after))
    for fact in dict.fromkeys((*left, *right)):
        old, new = left.get(fact), right.get(fact)
        if old != new or type(old) is not type(new):
            yield Change(fact, old, new, _reason(a, bases[0], fact, left), _reason(b, bases[1], fact, right))


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(key, value) of all leaves; lists are leaves."""
    for key, one in value.items():
        if isinstance(one, Mapping) and one:
            yield from _flat(one, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", one


def _reason(whole: Mapping[str, Any], base: str, fact: str, known: Mapping[str, Any]) -> str | None:
    """Why a side has no value, from its evidence where it carries some."""
    if fact not in known:
        return "no such fact"
    if known[fact] is not None:
        return None
    entry = whole.get("evidence", {}).get(f"{base}/{fact}")
    why = entry.get("reason") if isinstance(entry, dict) else None
    return str(why).replace("_", " ") if why else "no value"


def _findings(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[FindingChange]:
    def known(whole: Mapping[str, Any]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
        return {(one["id"], one.get("device"), one["title"], one["level"]): one for one in whole["findings"]}

    before, after = known(a), known(b)
    for state, here, there in (("gone", before, after), ("new", after, before)):
        for key, one in here.items():
            if key not in there:
                yield FindingChange(state, one["id"], one["level"], one.get("device"), one["title"])
