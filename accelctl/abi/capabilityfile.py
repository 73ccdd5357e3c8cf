"""Capability records (abi.capability) in a file: TOML for people to read, compare and review, or JSON for programs.

Whoever changes it reads, changes and replaces it under one lock, so that of two writers none loses what the other one
wrote. Records stand in one order, whoever wrote them last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import accelctl
from accelctl.abi.capability import Capability, Platform, Semantics
from accelctl.abi.condition import ALWAYS, MOST, Conditions
from accelctl.errors import AbiError, UsageError
from accelctl.hal import lockfile
from accelctl.model import toml, tomltext
from accelctl.model.smokereport import Evidence

SCHEMA = "accelctl.capabilities/2"
OLDER = "accelctl.capabilities/1"
"""Conditions in words only, no versions: still read, never written."""
MOST_BYTES = 16 << 20
"""Of such a file; a thousand kernels need one tenth."""
T = TypeVar("T")
Records = list[Capability]


def default_path() -> str:
    """Where records are kept without a path: accelctl/capabilities.toml in $XDG_DATA_HOME (or ~/.local/share)."""
    return f"{lockfile.data_home()}/accelctl/capabilities.toml"


def read(path: str) -> Records:
    """The records of a file; none where there is no file. UsageError, in one line, for what is no such file."""
    raw = lockfile.content(path, MOST_BYTES)
    if raw is None:
        return []
    try:
        if len(raw) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        text = raw.decode("utf-8")
        return _records(_json(text) if text.lstrip()[:1] in ("{", "[", "") else toml.loads(text))
    except (ValueError, KeyError, OverflowError, RecursionError, AbiError) as error:
        why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise UsageError(f"{path}: no capabilities of accelctl: {' '.join(why.split())[:200]}") from None


def present(path: str) -> Records:
    """The same of a file that must be there. UsageError, in one line."""
    if lockfile.content(path, 0) is None:
        raise UsageError(f"{path}: there is no such file")
    return read(path)


def update(path: str, change: Callable[[Records], Iterable[Capability]]) -> Records:
    """Read, change and replace it, and let nobody else do so in between; what is in it now. UsageError, in one line;
    what was there stays then. The folder of the default path is made."""
    if path == default_path():
        lockfile.made_folder(path.rpartition("/")[0])
    with lockfile.locked(path) as place:
        records = sorted(change(read(path)), key=lambda one: (one.platform.device, one.op, one.kernel, one.recorded))
        lockfile.replaced(place, _text(records, place.endswith(".toml")).encode())
    return records


def save(path: str, records: Iterable[Capability]) -> None:
    """Write these and nothing else."""
    update(path, lambda known: records)


def merged(known: Iterable[Capability], more: Iterable[Capability]) -> Records:
    """Both. Of one kernel on one platform, each rung has its newest evidence, and the rest is as ``more`` says it."""
    found = {one.key: one for one in known}
    for one in more:
        before = found.get(one.key)
        found[one.key] = one if before is None else _both(before, one)
    return list(found.values())


def _both(before: Capability, after: Capability) -> Capability:
    dates = {one.rung: one.date for one in after.evidence}
    for one in before.evidence:
        if one.date > dates.get(one.rung, ""):
            after = after.climbed(one)
    return after


def _text(records: Records, as_toml: bool) -> str:
    head = {"schema": SCHEMA, "accelctl": accelctl.__version__}
    if as_toml:
        return tomltext.dumps({**head, "capabilities": [one.document() for one in records]})
    return json.dumps({**head, "capabilities": [one.document() for one in records]}, indent=2) + "\n"


def _json(text: str) -> Any:
    document = json.loads(text)
    json.dumps(document, ensure_ascii=False).encode()  # half of a surrogate pair: JSON can say it, no file can hold it
    return document


def _records(document: Any) -> Records:
    found = _a(dict, document, "the file")
    schema = found.get("schema")
    if schema not in (SCHEMA, OLDER):
        raise ValueError(f"schema is {schema!r}, not {SCHEMA!r}")
    record = _record if schema == SCHEMA else _older
    records = [record(_a(dict, one, "a capability")) for one in _a(list, found["capabilities"], "capabilities")]
    seen: set[tuple[str, str, str, str]] = set()
    for one in records:
        key = one.key
        if key in seen:
            raise ValueError(f"{one.kernel} ({one.op}) on {one.platform.device} is there twice")
        seen.add(key)
    return records


def _record(one: dict[str, Any]) -> Capability:
    on = _a(dict, one["platform"], "platform")
    versions = _a(dict, on["versions"], "versions")
    semantics = _a(dict, one["semantics"], "semantics")
    return Capability(
        **_common(one),
        platform=_platform(on)._replace(versions=tuple(sorted((k, _a(str, v, k)) for k, v in versions.items()))),
        preconditions=_conditions(_a(dict, one["preconditions"], "preconditions")),
        semantics={name: _semantics(_a(dict, said, "semantics")) for name, said in semantics.items()},
        recorded=_a(str, on["fingerprint"], "fingerprint"),
    )


def _older(one: dict[str, Any]) -> Capability:
    semantics = _a(dict, one["semantics"], "semantics")
    words = _texts(one["preconditions"], "preconditions")
    return Capability(
        **_common(one),
        platform=_platform(_a(dict, one["platform"], "platform")),
        preconditions=Conditions(words=words) if words else ALWAYS,
        semantics={name: Semantics(_a(str, text, "semantics")) for name, text in semantics.items()},
    )


def _common(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "kernel": _a(str, one["kernel"], "kernel"),
        "op": _a(str, one["op"], "op"),
        "evidence": tuple(_evidence(_a(dict, rung, "evidence")) for rung in _a(list, one["evidence"], "evidence")),
        "fallback": _a(str, one["fallback"], "fallback"),
        "simulated": _a(bool, one["simulated"], "simulated"),
    }


def _platform(on: dict[str, Any]) -> Platform:
    where = [_a(str, on[name], name) for name in ("device", "architecture", "driver")]
    return Platform(where[0], where[1], where[2], _texts(on["toolchain"], "toolchain"))


def _semantics(one: dict[str, Any]) -> Semantics:
    function, schema, meta = (_a(str, one[name], name) for name in ("function", "schema", "meta"))
    return Semantics(
        function, schema, meta, _texts(one["in_place"], "in_place"), _a(bool, one["graph_capture"], "graph_capture")
    )


_WORDS = ("dtypes", "results", "absent", "present")
_KNOWN = {*_WORDS, "instructions", "words", "dense", "dims", "attrs", "needs", "text"}


def _conditions(one: dict[str, Any]) -> Conditions:
    """ValueError for one that is unknown: to leave it out would make the kernel fit where it does not."""
    unknown = sorted(set(one) - _KNOWN)
    if unknown:
        raise ValueError(f"preconditions: {unknown[0]!r} is none that this accelctl can evaluate")
    dims = {name: _bounds(name, pair) for name, pair in _a(dict, one.get("dims", {}), "dims").items()}
    return Conditions(
        **{name: frozenset(_texts(one.get(name, []), name)) for name in _WORDS},
        instructions=_texts(one.get("instructions", []), "instructions"),
        words=_texts(one.get("words", []), "words"),
        dense=_a(bool, one.get("dense", False), "dense"),
        dims=dims,
        attrs={name: _a(str, text, name) for name, text in _a(dict, one.get("attrs", {}), "attrs").items()},
        needs={name: _a(int, amount, name) for name, amount in _a(dict, one.get("needs", {}), "needs").items()},
    )


def _bounds(name: str, pair: Any) -> tuple[int, int]:
    numbers = [_a(int, number, name) for number in _a(list, pair, name)]
    if len(numbers) not in (1, 2):
        raise ValueError(f"{name} needs its least, and its most where there is one")
    return numbers[0], numbers[-1] if len(numbers) == 2 else MOST


def _evidence(one: dict[str, Any]) -> Evidence:
    given = _a(dict, one["figures"], "figures")
    figures = {name: float(_a((int, float), value, name)) for name, value in given.items()}
    return Evidence(
        _a(str, one["rung"], "rung"), _a(str, one["date"], "date"), figures, _a(str, one["detail"], "detail")
    )


def _a(kind: type[T] | tuple[type[T], ...], value: Any, name: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} cannot be {str(value)[:40]!r}")
    return value


def _texts(value: Any, name: str) -> tuple[str, ...]:
    return tuple(_a(str, one, name) for one in _a(list, value, name))
