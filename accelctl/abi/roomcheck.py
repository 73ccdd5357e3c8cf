"""Is a stranger's chip.toml what probe relies on? In-tree rooms are held to more than this by their own test.

A room that passes can name wrong files, but it cannot make probe raise, read outside /proc and /sys or a driver's own
version file, or open a device node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from accelctl.hal.allowlist import EFFECTS
from accelctl.model.convert import CONVERTERS
from accelctl.model.reading import SCOPES

Check = Callable[[Any], bool]

KINDS = ("gpu", "npu", "dcu", "xpu", "tpu", "fpga", "vector", "virtual", "display")
FIELD_CONVERTERS = ("int", "hex_int", "text", "bool")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,+-]{0,63}")
_PATH = re.compile(r"[A-Za-z0-9_.{*][\w.,:!+*?\[\]{}-]{0,120}(/[\w.,:!+*?\[\]{}-]{1,120}){0,12}", re.ASCII)
_KEY = re.compile(r"[a-z0-9_*]{1,60}(/[a-z0-9_*]{1,60}){0,5}")
_WORD = re.compile(r"[a-z][a-z0-9_]{0,31}")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_ID, _CLASS = re.compile(r"0x[0-9a-fA-F]{4}"), re.compile(r"0x[0-9a-fA-F]{1,6}")
_GROUP = re.compile(r"\((?:\?(?:P<\w+>|[a-z]+:?|[:=!]|<[=!]))?([^()]*)\)([*+]|\{\d*,?\d*\})?")
_MANY = re.compile(r"[*+{]")
_LONGEST = 200


def _fits(pattern: re.Pattern[str]) -> Check:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _text(value: Any) -> bool:
    """One line that can be shown."""
    return isinstance(value, str) and len(value) <= 2 * _LONGEST and value.isprintable()


def _path(*below: str) -> Check:
    """A path below one of some folders, which does not climb."""
    fits = _fits(_PATH)
    return lambda value: fits(value) and ".." not in value.split("/") and (not below or value.startswith(below))


def _pattern(value: Any) -> bool:
    """A short pattern with one group that cannot match for ever."""
    if not isinstance(value, str) or len(value) > _LONGEST or explodes(value):
        return False
    try:
        return re.compile(value).groups == 1
    except (re.error, OverflowError):
        return False


def explodes(pattern: str) -> bool:
    """May matching take exponential time? True for a repeated group that holds a choice or a repetition.

    A group that begins with a separator is let through, because that is how versions are written: ``\\d+(?:\\.\\d+)+``.
    """
    text = re.sub(r"\\[.\-_/: ]", "-", pattern)
    text = re.sub(r"\\.|\[\^?\]?[^\]]*\]", "x", text)
    while group := _GROUP.search(text):
        body, repeated = group[1], group[2] is not None
        if repeated and ("|" in body or (_MANY.search(body) and not body.startswith("-"))):
            return True
        text = text[: group.start()] + ("x+" if repeated else body) + text[group.end() :]
    return False


def _fields(value: Any) -> bool:
    known: dict[str, Check] = {"name": _text, "key": _fits(_KEY), "conv": FIELD_CONVERTERS.__contains__, **_HOW}
    rows = value if isinstance(value, list) else [None]
    return all(
        isinstance(row, dict) and "name" in row and all(key in known and known[key](row[key]) for key in row)
        for row in rows
    )


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _one_of(*words: str) -> Check:
    return lambda value: isinstance(value, str) and value in words


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 32


_HOW: dict[str, Check] = {"unit": _fits(_WORD), "scope": _one_of(*SCOPES)}
_READ: dict[str, Check] = {
    "key": _fits(_KEY),
    "conv": _one_of(*CONVERTERS, "gpu_metrics"),
    "effect": _one_of(*EFFECTS),
    "fields": _fields,
    **_HOW,
}
#: table -> checks by key. ``source`` is for people and may be anything.
TABLES: dict[str, dict[str, Check]] = {
    "pci": {
        "vendor": _fits(_ID),
        "device": _fits(_ID),
        "subsystem_device": _fits(_ID),
        "class": _fits(_CLASS),
        "name": _text,
    },
    "module": {"name": _fits(_NAME), "role": _text, "version_file": _path("sys/module/")},
    "node": {"glob": _path("dev/"), "role": _text, "major": _number, "per_device": _boolean},
    "library": {"name": _path(), "role": _text, "dirs": _list_of(_path())},
    "version": {"file": _path("proc/", "sys/", "opt/", "usr/", "etc/"), "pattern": _pattern, "what": _text},
    "platform": {"driver": _fits(_NAME), "compatible": _list_of(_text)},
    "sysclass": {
        "dir": _path("sys/"),
        "entry": _path(),
        "link": lambda value: value == "" or _path()(value),
        "bdf_file": _fits(_NAME),
    },
    "attr": {"path": _path(), "driver": _fits(_NAME), **_READ},
    "proc": {"path": _path("proc/", "sys/"), **_READ},
}
#: Keys that the scan takes for granted.
REQUIRED = {
    "pci": ("vendor",),
    "module": ("name",),
    "node": ("glob",),
    "library": ("name",),
    "version": ("file", "pattern", "what"),
    "platform": (),
    "sysclass": ("dir",),
    "attr": ("path", "key"),
    "proc": ("path", "key"),
}
_HEAD: dict[str, Check] = {
    "name": _fits(_WORD),
    "title": _text,
    "vendor": _text,
    "kind": _one_of(*KINDS),
    "proven": _text,
}


def check(document: Mapping[str, Any]) -> None:
    """Raise ValueError with one line for the first thing that is wrong."""
    for key, good in _HEAD.items():
        _require(good(document[key]), key, document[key])
    variables, install = document.get("visible_env", []), document.get("install", {})
    _require(_list_of(_fits(_VARIABLE))(variables), "visible_env", variables)
    _require(isinstance(install, dict) and all(map(_text, install.values())), "install", install)
    for table, checks in TABLES.items():
        for row in document.get(table, []):
            _row(table, row, checks)


def _row(table: str, row: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    for key in REQUIRED[table]:
        if key not in row:
            raise ValueError(f"a row of {table} without {key}")
    for key, value in row.items():
        _require(key == "source" or (key in checks and checks[key](value)), f"{table}: {key}", value)


def _require(good: bool, where: str, value: Any) -> None:
    if not good:
        raise ValueError(f"{where} = {value!r:.60} is not understood")
