"""What a tar of files cannot say about a machine: node ownership, refused reads, and who was asking.

Written by ``accelctl capture`` as ``accelctl-capture.json`` at the top of the archive. Everything in it is optional, so
a plain copy of /sys is a capture too; then a missing file is "not captured" instead of "not offered by the driver".
"""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from accelctl.errors import UsageError
from accelctl.hal.tree import NodeStat

MANIFEST = "accelctl-capture.json"
KMSG = "accelctl-kmsg.txt"
SCHEMA = "accelctl.capture/1"
_MAX_ID = (1 << 32) - 1
_MAX_TEXT = 1 << 16


class Node(NamedTuple):
    """A node's metadata, and what the kernel answered to access(2): None for yes, an errno name for no, "" for not
    asked.
    """

    stat: NodeStat
    access: str | None
    acl_text: str | None = None


class Process(NamedTuple):
    """Credentials of the process that looked: they decide which nodes it may open."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: int = 0


@dataclass
class Manifest:
    """The parsed manifest. ``complete``: a file that is missing from the capture was missing on the machine.

    ``unread``: files that were there and not read (the archive holds empty ones); ``space``: size and free bytes of
    file systems.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    process: Process | None = None
    environ: dict[str, str] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    space: dict[str, tuple[int, int]] = field(default_factory=dict)
    complete: bool = False
    redacted: bool = False

    @classmethod
    def parse(cls, data: bytes, where: str) -> Manifest:
        """Parse and check; one clear line (UsageError) when anything is not as it should be."""
        try:
            document = json.loads(data.decode("utf-8"))
            return cls._build(document)
        except RecursionError:
            reason = "nested too deeply"
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            reason = f"{type(error).__name__}: {error}"[:120]
        raise UsageError(f"{where}: {MANIFEST} is not a capture manifest ({reason})")

    @classmethod
    def _build(cls, document: Any) -> Manifest:
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {str(document['schema'])[:40]!r}, this version reads {SCHEMA!r}")
        process = document.get("process")
        return cls(
            nodes={_text(path): _node(entry) for path, entry in document.get("nodes", {}).items()},
            errors={_text(path): _errno(name) for path, name in document.get("errors", {}).items()},
            process=None if process is None else _process(process),
            environ={_text(name): _text(value) for name, value in document.get("environ", {}).items()},
            unread=frozenset(_text(path) for path in _list(document.get("unread", []))),
            space={_text(path): _pair(sizes) for path, sizes in document.get("space", {}).items()},
            complete=bool(document.get("complete", False)),
            redacted=bool(document.get("redacted", False)),
        )


def _text(value: Any) -> str:
    """A text that can be a path and be printed: JSON also allows NUL and halves of surrogate pairs."""
    if not isinstance(value, str) or "\0" in value or len(value) > _MAX_TEXT:
        raise ValueError(f"not a text: {str(value)[:40]!r}")
    value.encode("utf-8")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"not a list: {str(value)[:40]!r}")
    return value


def _pair(value: Any) -> tuple[int, int]:
    size, free = _list(value)
    return _number(size, (1 << 64) - 1), _number(free, (1 << 64) - 1)


def _number(value: Any, limit: int = _MAX_ID) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise ValueError(f"not a number from 0 to {limit}: {str(value)[:40]!r}")
    return value


def _based(value: Any, base: int, limit: int) -> int:
    return _number(int(value, base) if isinstance(value, str) and value.isalnum() else value, limit)


def _node(entry: dict[str, Any]) -> Node:
    kind = entry.get("kind", "c")
    if kind not in ("c", "b", "d", "f"):
        raise ValueError(f"node kind {str(kind)[:40]!r}")
    mode, uid, gid = _based(entry["mode"], 8, 0o7777), _number(entry["uid"]), _number(entry["gid"])
    stat = NodeStat(kind, mode, uid, gid, _number(entry.get("major", 0)), _number(entry.get("minor", 0)))
    access = entry.get("access", "")
    if access not in (None, "", "denied"):
        _errno(access)
    return Node(stat, access, None if entry.get("acl") is None else _acl(entry["acl"]))


def _acl(value: Any) -> str:
    from accelctl.hal.access import parse_acl_text

    parse_acl_text(_text(value))
    return str(value)


def _process(entry: dict[str, Any]) -> Process:
    groups = _list(entry.get("groups", []))
    bits = _based(entry.get("capabilities", 0), 16, (1 << 64) - 1)
    return Process(_number(entry["uid"]), _number(entry["gid"]), tuple(map(_number, groups)), bits)


def _errno(name: Any) -> int:
    code = getattr(errno, name, None) if isinstance(name, str) and name.startswith("E") and name.isascii() else None
    if not isinstance(code, int):
        raise ValueError(f"unknown errno {str(name)[:40]!r}")
    return code
