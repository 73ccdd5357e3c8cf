"""A Report as one JSON document (schema accelctl.probe/1, data/schema/probe-1.json).

Where a value stands says what it is: stable facts lie in ``machine`` and ``devices``, what changes by itself in
``volatile``, what tells equal machines apart in ``identity``. ``evidence`` maps the JSON pointer of each of them to its
source. Without evidence the last three, and everything that says where the machine was read, are left out: equal nodes
then give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii as _quoted
from math import isfinite
from typing import Any

import accelctl
from accelctl.model.finding import Finding
from accelctl.model.reading import IDENTITY, STABLE, VOLATILE, Absence, Reading
from accelctl.model.report import SCHEMA, Report
from accelctl.render.tally import Tally, tally

RESERVED = ("id", "kind", "chip", "parent", "path")
"""Names a device object has already; a fact whose key begins with one of them gets an underscore behind it."""

_Path = tuple[str, ...]
_MACHINE: dict[str, _Path] = {
    STABLE: ("machine",),
    VOLATILE: ("volatile", "machine"),
    IDENTITY: ("identity", "machine"),
}


def document(report: Report, *, evidence: bool = True, expected: dict[str, Any] | None = None) -> dict[str, Any]:
    """The whole report as JSON values; ``expected`` is what ``--expect`` compared (render.delta)."""
    return _document(report, _Builder(evidence), expected)


def document_text(report: Report, *, evidence: bool = True, expected: dict[str, Any] | None = None) -> str:
    """The same as text, byte for byte what :func:`dumps` makes of the document, in half the time: of a big machine
    most is evidence, which is written at once instead of becoming thousands of objects first."""
    return dumps(_document(report, _TextBuilder(evidence), expected))


def _document(report: Report, build: _Builder, expected: dict[str, Any] | None) -> dict[str, Any]:
    evidence = build.with_evidence
    machine = build.owner(report.machine, _MACHINE)
    volatile: dict[str, Any] = {"machine": machine[VOLATILE], "devices": {}}
    identity: dict[str, Any] = {"machine": machine[IDENTITY], "devices": {}}
    devices = []
    for index, device in enumerate(report.devices):
        facts = build.owner(device.facts, _places(index, device.id), RESERVED)
        head = {"id": device.id, "kind": device.kind, "chip": device.chip, "parent": device.parent, "path": device.path}
        devices.append({**head, **facts[STABLE]})
        volatile["devices"][device.id], identity["devices"][device.id] = facts[VOLATILE], facts[IDENTITY]
    whole = {
        **headed(SCHEMA),
        **({"root": report.root, "live": report.live} if evidence else {}),
        "simulated": False,
        "summary": _summary(tally(report)),
        "machine": machine[STABLE],
        "devices": devices,
        "findings": [_finding(finding, evidence) for finding in report.findings],
        "rules": {"run": report.rules_run, "not_run": list(report.rules_not_run)},
        "looked_for": list(report.looked_for),
        "stuck": list(report.stuck),
        **({"expect": expected} if expected is not None else {}),
    }
    return (
        {**whole, "identity": identity, "volatile": volatile, "evidence": build.evidence or {}} if evidence else whole
    )


def _places(index: int, device: str) -> dict[str, _Path]:
    """Where one device's facts stand, by scope: the list of devices has numbers, the other objects have ids."""
    return {
        STABLE: ("devices", str(index)),
        VOLATILE: ("volatile", "devices", device),
        IDENTITY: ("identity", "devices", device),
    }


def dumps(value: Any) -> str:
    """JSON text of any document: ASCII, one line break at the end, no NaN (JSON lacks it).

    The outer levels stand on lines of their own, what is inside them on one: easy to read, to grep and to compare by
    line, and ten times as fast as indenting everything, which json does without its C encoder.
    """
    out: list[str] = []
    _lines(value, 2, "", out.append)
    return "".join([*out, "\n"])


_encode = json.JSONEncoder(allow_nan=False).encode
"""What json.dumps does, which makes such an object for every call."""


class _Rows(list[str]):
    """The entries of an object, JSON text already."""


def _lines(value: Any, depth: int, pad: str, put: Callable[[str], None]) -> None:
    """``depth`` levels of objects on lines; a list keeps the depth for its elements. The pieces are joined at the end:
    the text of a big machine is megabytes, and each copy of it costs."""
    if depth == 0 or not value or not isinstance(value, (dict, list)):
        put(_encode(value))
        return
    inner = pad + "  "
    between = f"\n{inner}"
    if isinstance(value, _Rows):
        put("{" + between + f",{between}".join(value))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            put(f",{between}" if number else f"[{between}")
            _lines(one, depth, inner, put)
    else:
        for number, (key, one) in enumerate(value.items()):
            put(f"{',' if number else '{'}{between}{_quoted(key)}: ")
            _lines(one, depth - 1, inner, put)
    put(f"\n{pad}]" if type(value) is list else f"\n{pad}}}")


def headed(schema: str, **rest: Any) -> dict[str, Any]:
    """A document of another kind, with the head that all of them share."""
    return {"schema": schema, "tool": {"name": "accelctl", "version": accelctl.__version__}, **rest}


def pointer(parts: Sequence[str]) -> str:
    """A JSON pointer (RFC 6901) from its parts."""
    text = "/".join(("", *parts))
    if "~" not in text and text.count("/") == len(parts):
        return text  # nothing to escape
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def resolve(whole: Any, text: str) -> Any:
    """What a JSON pointer names; raises LookupError where it names nothing."""
    if text and not text.startswith("/"):
        raise KeyError(text)
    for escaped in text.split("/")[1:]:
        part = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(whole, list):
            if not (part.isascii() and part.isdigit()):
                raise KeyError(part)
            whole = whole[int(part)]
        elif isinstance(whole, dict):
            whole = whole[part]
        else:
            raise KeyError(part)
    return whole


def placed(keys: Iterable[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """Where each fact key stands below its owner: its name, in which "/" leads into an object.

    A key that is also the folder of others moves into that folder, to ``value`` (``a`` beside ``a/b`` becomes
    ``a/value``); where a name is taken, underscores are added until it is free. Only the set of keys decides, not their
    order.
    """
    taken = frozenset(reserved)
    names = {key: key for key in keys}
    folders = _folders(names)
    if any(top.rstrip("_") in taken for top in (*names, *folders) if "/" not in top):
        for key in names:
            first, slash, rest = key.partition("/")
            if first.rstrip("_") in taken:  # one underscore more, so that no two names meet
                names[key] = f"{first}_{slash}{rest}"
        folders = _folders(names.values())
    if folders.isdisjoint(names.values()):
        return names
    used = set(names.values()) - folders
    for key in sorted(key for key, name in names.items() if name in folders):
        name = f"{names[key]}/value"
        while name in used or name in folders:
            name += "_"
        used.add(name)
        names[key] = name
    return names


def _folders(names: Iterable[str]) -> set[str]:
    """Every folder that a name lies in, at any depth."""
    found: set[str] = set()
    new = set(names)
    while new := {name.rpartition("/")[0] for name in new if "/" in name} - found:
        found |= new
    return found


class _Builder:
    """Places the facts of one owner after the other and collects their evidence."""

    def __init__(self, with_evidence: bool) -> None:
        self.with_evidence = with_evidence
        self.evidence: Any = {}

    def prove(self, place: str, source: str, raw: str | None, unit: str | None, gone: Absence | None) -> None:
        """Enter the evidence of the value at ``place``."""
        self.evidence[place] = _proof(source, raw, unit, gone)

    def owner(
        self, facts: Mapping[str, Reading], places: Mapping[str, _Path], reserved: Iterable[str] = ()
    ) -> dict[str, dict[str, Any]]:
        """Nested facts by scope; ``places`` says where each scope's object stands in the document."""
        names = placed(facts, reserved)
        bases = {scope: pointer(place) for scope, place in places.items()}
        trees = {scope: _Tree() for scope in (STABLE, VOLATILE, IDENTITY)}
        prove = self.prove
        for key, (value, source, raw, unit, gone, scope) in facts.items():
            if not self.with_evidence and scope != STABLE:
                continue
            name = names[key]
            head, slash, last = name.rpartition("/")
            tree = trees[scope]
            folder = (tree.folders.get(head) or tree.folder(head)) if slash else tree.root
            folder[last] = value if type(value) in _PLAIN else plain(value)
            if self.with_evidence:
                escaped = name.replace("~", "~0") if "~" in name else name
                prove(f"{bases[scope]}/{escaped}", source, raw, unit, gone)
        return {scope: tree.root for scope, tree in trees.items()}


class _TextBuilder(_Builder):
    """Collects evidence as rows of JSON text: to make objects of it and to start the encoder for each takes longer than
    all the rest."""

    def __init__(self, with_evidence: bool) -> None:
        super().__init__(with_evidence)
        self.evidence = _Rows()

    def prove(self, place: str, source: str, raw: str | None, unit: str | None, gone: Absence | None) -> None:
        """The row that :func:`_lines` makes of what :func:`_proof` gives."""
        where, words = _quoted(source), "null" if raw is None else _quoted(raw)
        if gone is None:
            what = "null" if unit is None else _quoted(unit)
            row = f'{_quoted(place)}: {{"unit": {what}, "source": {where}, "raw": {words}}}'
        else:
            reason, errno, fix, detail = map(_word, gone)
            row = (
                f'{_quoted(place)}: {{"reason": {reason}, "errno": {errno}, "source": {where}, "fix": {fix}, '
                f'"detail": {detail}, "raw": {words}}}'
            )
        self.evidence.append(row)


def _word(text: str | None) -> str:
    return "null" if text is None else _quoted(text)


class _Tree:
    """Nested objects, each also by its path."""

    def __init__(self) -> None:
        self.root: dict[str, Any] = {}
        self.folders: dict[str, dict[str, Any]] = {}

    def folder(self, path: str) -> dict[str, Any]:
        """The object at ``path``, made where there is none."""
        head, slash, last = path.rpartition("/")
        above = (self.folders.get(head) or self.folder(head)) if slash else self.root
        made: dict[str, Any] = above.setdefault(last, {})
        self.folders[path] = made
        return made


_PLAIN = frozenset({str, int, bool, type(None)})


def plain(value: Any) -> Any:
    """The value in JSON's own types; what JSON cannot say (NaN, infinity) is null."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [entry if type(entry) in _PLAIN else plain(entry) for entry in value]
    if isinstance(value, (dict, Mapping)):
        return {str(key): plain(entry) for key, entry in value.items()}
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _proof(source: str, raw: str | None, unit: str | None, gone: Absence | None) -> dict[str, str | None]:
    if gone is None:
        return {"unit": unit, "source": source, "raw": raw}
    return {
        "reason": gone.kind,
        "errno": gone.errno,
        "source": source,
        "fix": gone.fix,
        "detail": gone.detail,
        "raw": raw,
    }


def _summary(counts: Tally) -> dict[str, Any]:
    return {
        "accelerators": counts.kinds["physical"],
        "health": counts.health,
        "devices": counts.kinds,
        "findings": counts.levels,
        "worst": counts.worst,
    }


def _finding(finding: Finding, evidence: bool) -> dict[str, Any]:
    shown = [{"source": one.source, "raw": one.raw} for one in finding.evidence]
    return {
        "id": finding.id,
        "level": finding.level,
        "device": finding.device,
        "title": finding.title,
        "certainty": finding.certainty,
        **({"evidence": shown} if evidence else {}),
        "fix": list(finding.fix),
        "consequences": list(finding.consequences),
    }
