"""Reports of many nodes, from files, folders and standard input; what is none is a line, not the end.

What changes by itself, and what only tells equal nodes apart, is taken out: two nodes are equal when the rest is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from accelctl.accept.fleetslow import Figure, figures
from accelctl.errors import UsageError

MAX_BYTES = 256 << 20
DEEPEST = 64
"""Levels of a document; ours have ten, and walking one must not end in a stack that ran over."""
_REMEMBERED = 64
"""Different documents whose bytes are recognised; where every node differs, remembering them would fill the memory."""
STDIN = "-"
FROM_FILE, FROM_FOLDER = "file", "folder"
_SCHEMA = re.compile(r"accelctl\.([a-z-]+)/[0-9]+")
_SPACE = re.compile(r"\s*")
_OF_NODE = re.compile(r"([^\s:{}\"]+): ?(.*)", re.S)
"""A line as clush, pdsh and srun --label write it."""

_APART = frozenset({"volatile", "evidence", "identity", "root", "live"})
"""Parts of a document that differ between equal nodes."""
_MEASURED = frozenset(
    (
        *("seconds", "date", "started", "duration_s", "elapsed_s", "first_token_seconds", "step_seconds"),
        *("token_seconds", "tokens_per_second", "figures", "series", "judgements", "cycles", "stages", "census"),
        *("replay", "samples", "command", "seed", "target", "evidence"),
    )
)
"""What a run measured, or was started with, in reports of the commands that do something."""
_NAMES = ("id", "step", "lifecycle", "kernel", "part", "name", "device")
"""Keys that name an entry of a list, so that a device that is missing does not shift all that follow."""


class Rules(NamedTuple):
    """What counts: ``keys`` are patterns of JSON pointers (none: everything), ``ignore`` those left out; ``volatile``:
    also what changes by itself."""

    keys: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    volatile: bool = False
    name_from: str = FROM_FILE


def rules(keys: Sequence[str], ignore: Sequence[str], *, volatile: bool = False, name_from: str = FROM_FILE) -> Rules:
    """Rules as they are typed. UsageError."""
    for one in (*keys, *ignore, *([] if name_from in (FROM_FILE, FROM_FOLDER) else [name_from])):
        if not one.startswith("/"):
            raise UsageError(f"{one[:60]!r} is no JSON pointer: it begins with /", "--key '/devices/*/link*'")
    return Rules(tuple(keys), tuple(ignore), volatile, name_from)


class Read(NamedTuple):
    """One report; or why it is none (``reason``). ``body`` is what counts of ``whole``."""

    node: str
    where: str
    reason: str = ""
    schema: str = ""
    digest: bytes = b""
    whole: Any = None
    body: Any = None
    figures: tuple[Figure, ...] = ()


class Reader:
    """Reads with one set of rules. Reports of equal bytes are parsed once."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._known: dict[bytes, Read] = {}
        self._prune = _pruner(rules)

    def all(self, places: Sequence[str]) -> Iterator[Read]:
        """Every report of files, of folders (their *.json) and of standard input, as they come."""
        for place in places:
            if place == STDIN:
                yield from self._piped()
                continue
            path = Path(place)
            files = sorted(path.glob("*.json")) if path.is_dir() else [path]
            if not files:
                yield Read(place, place, "a folder without any *.json")
            for file in files:
                yield self._file(file)

    def _file(self, path: Path) -> Read:
        node = path.resolve().parent.name if self.rules.name_from == FROM_FOLDER else path.name.removesuffix(".json")
        try:
            with path.open("rb") as source:
                data = source.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            return Read(node, str(path), f"cannot be read ({getattr(error, 'strerror', None) or error})")
        if len(data) > MAX_BYTES:
            return Read(node, str(path), f"larger than {MAX_BYTES >> 20} MiB")
        return self._parsed(node, str(path), data)

    def _parsed(self, node: str, where: str, data: bytes) -> Read:
        key = blake2b(data, digest_size=16).digest()
        found = self._known.get(key) or self._report(data)
        if len(self._known) < _REMEMBERED:
            self._known[key] = found
        return found._replace(node=self._name(found, node), where=where)

    def _report(self, data: bytes) -> Read:
        try:
            text = data.decode("utf-8")
            return self._judge(json.loads(text, parse_constant=_finite, parse_float=_finite))
        except RecursionError:
            return Read("", "", "nested too deeply")
        except ValueError as error:
            return Read("", "", f"no JSON: {' '.join(str(error).split())[:100]}" if data.strip() else "empty")

    def _judge(self, whole: Any) -> Read:
        schema = whole.get("schema") if isinstance(whole, dict) else None
        match = _SCHEMA.fullmatch(schema) if isinstance(schema, str) else None
        if match is None:
            return Read("", "", "no report of accelctl: it has no schema accelctl.NAME/N")
        if _deeper(whole, DEEPEST):
            raise RecursionError
        body = self._prune(_counted(whole, match[1], self.rules.volatile))
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        digest = blake2b(canonical, digest_size=16).digest()
        return Read("", "", "", match[0], digest, whole, body, figures(whole))

    def _name(self, found: Read, node: str) -> str:
        if self.rules.name_from in (FROM_FILE, FROM_FOLDER) or found.reason:
            return node
        value = resolve(found.whole, self.rules.name_from)
        return value if isinstance(value, str) and value else node

    def _piped(self) -> Iterator[Read]:
        """Documents one after the other, or lines with the node's name in front."""
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(f"standard input: more than {MAX_BYTES >> 20} MiB", "accelctl merge FOLDER")
        text = data.decode("utf-8", "replace")
        if text.lstrip()[:1] in ("{", "["):
            for number, one in enumerate(_documents(text), 1):
                yield self._parsed(str(number), f"standard input, document {number}", one.encode())
            return
        lines: dict[str, list[str]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            match = _OF_NODE.match(line)
            if match is not None:
                lines.setdefault(match[1], []).append(match[2])
            elif line.strip():
                yield Read(STDIN, f"standard input, line {number}", "neither JSON nor NODE: JSON, as clush writes it")
        if not lines:
            yield Read(STDIN, "standard input", "empty")
        for node, own in lines.items():
            yield self._parsed(node, f"standard input, {node}", "\n".join(own).encode())


def _finite(text: str) -> float:
    """A number as JSON knows them; what cannot be written again must not come in. ValueError."""
    found = float(text)
    if not isfinite(found):
        raise ValueError(f"{text[:20]} is no number")
    return found


def _documents(text: str) -> Iterator[str]:
    """The documents of a stream; what follows the last good one is one more, which will not parse. Numbers are not
    looked at yet: one that is none spoils its own document, not those after it."""
    decoder, at = json.JSONDecoder(), _after_space(text, 0)
    while at < len(text):
        start = at
        try:
            _, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            at = len(text)
        yield text[start:at]
        at = _after_space(text, at)


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match is not None else at


def _counted(whole: dict[str, Any], noun: str, volatile: bool) -> dict[str, Any]:
    """What counts of a document of this noun."""
    if volatile:
        return whole
    body = {key: value for key, value in whole.items() if key not in _APART}
    if noun == "probe":
        findings = body.get("findings")
        if isinstance(findings, list):
            body["findings"] = [_without(one, frozenset({"evidence"})) for one in findings]
        return body
    return dict(_unmeasured(body))


def _deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(one, levels - 1) for one in inner if isinstance(one, (dict, list)))


def _without(entry: Any, keys: frozenset[str]) -> Any:
    return {key: one for key, one in entry.items() if key not in keys} if isinstance(entry, dict) else entry


def _unmeasured(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unmeasured(one) for key, one in value.items() if key not in _MEASURED}
    return [_unmeasured(one) for one in value] if isinstance(value, list) else value


# -- JSON pointers -----------------------------------------------------------------------------------------------------


def below(pointer: str, key: object) -> str:
    """The pointer of a member (RFC 6901)."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


def resolve(whole: Any, pointer: str) -> Any:
    """What a pointer names; None where it names nothing."""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(whole, dict):
            whole = whole.get(key)
        elif isinstance(whole, list):
            whole = members(whole).get(key)
        else:
            return None
    return whole


def members(entries: list[Any]) -> dict[str, Any]:
    """The entries of a list by their names where each has one of its own, else by their numbers."""
    for keys in (_NAMES[:1], _NAMES):
        names = [_name(one, keys) for one in entries]
        if all(names) and len(set(names)) == len(names):
            return dict(zip(names, entries, strict=True))
    return {str(number): one for number, one in enumerate(entries)}


def _name(entry: Any, keys: Sequence[str]) -> str:
    if not isinstance(entry, dict):
        return ""
    return " ".join(str(entry[key]) for key in keys if isinstance(entry.get(key), (str, int)))


_GONE = object()


def _pruner(rules: Rules) -> Callable[[Any], Any]:
    """A function that leaves of a document what the rules want; the document itself where they want all of it."""
    if not rules.keys and not rules.ignore:
        return lambda whole: whole

    def prune(value: Any, pointer: str, wanted: bool) -> Any:
        if any(fnmatchcase(pointer, one) for one in rules.ignore):
            return _GONE
        wanted = wanted or any(fnmatchcase(pointer, one) for one in rules.keys)
        if not isinstance(value, (dict, list)):
            return value if wanted else _GONE
        named = value if isinstance(value, dict) else members(value)
        kept = {key: prune(one, below(pointer, key), wanted) for key, one in named.items()}
        kept = {key: one for key, one in kept.items() if one is not _GONE}
        return kept if kept or wanted else _GONE

    def pruned(whole: Any) -> Any:
        found = prune(whole, "", not rules.keys)
        return {} if found is _GONE else found

    return pruned
