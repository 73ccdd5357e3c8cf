"""The text of a configuration file: TOML, and values as options take them. Whatever stands there is at worst one line.

Stricter than the command line: TOML tells a number, a text and a list apart, and it can hold what no command line can
(NUL, line breaks, numbers of a thousand digits).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from accelctl.errors import UsageError
from accelctl.model.toml import loads

FLAG, WHOLE, NUMBER, TEXT = "true or false", "a whole number", "a number", "a text"
"""What an option takes, in the words of the message."""

MAX_NUMBER = (1 << 63) - 1
"""TOML promises 64 bits with sign; Python's parser takes more."""


def document(path: str, data: bytes) -> dict[str, Any]:
    """Parse a file's bytes; UsageError names the file, and the line where the parser knows it."""
    try:
        return loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}: not UTF-8 text (at line {line})") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None


def tables(path: str, data: bytes, commands: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Command -> its table. What names no command is refused; what stands in a table, its command checks."""
    names, found = list(commands), document(path, data)
    for name, table in found.items():
        if name == "profile" and isinstance(table, dict):  # model.profile reads it, for whom it concerns
            continue
        if name in names and isinstance(table, dict):
            continue
        if name in names:
            raise UsageError(f"{path}: {name}: is a command; its options stand below [{name}]")
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {name}: stands outside of a table; options stand below a command, as in [probe]")
        raise UsageError(f"{path}: [{name}]: no such command{near(name, names, '[{}]')}", "accelctl --help")
    return found


def near(word: str, known: Iterable[str], form: str = "{}") -> str:
    """What a misspelt word may have meant, in brackets and with a space before them; or nothing."""
    from difflib import get_close_matches

    found = get_close_matches(word, list(known), n=1)
    return f" (did you mean {form.format(found[0])}?)" if found else ""


def value_for(kind: str, many: int, value: Any, where: str) -> Any:
    """The value as an option of this kind takes it. ``many``: 1 for one value, -1 for any number, else so many.

    ``where`` names file, table and key, for the message.
    """
    if many == 1:
        return _one(kind, value, where)
    if not isinstance(value, list):
        _wrong('a list, ["...", "..."],' if kind == TEXT else "a list, [1, 2],", value, where)
    if many > 0 and len(value) != many:
        raise UsageError(f"{where}: a list of {many} is expected, not of {len(value)}")
    return [_one(kind, one, where) for one in value]


def _one(kind: str, value: Any, where: str) -> Any:
    if isinstance(value, bool) or kind == FLAG:
        if not isinstance(value, bool) or kind != FLAG:
            _wrong(kind, value, where)
        return value
    if isinstance(value, (int, float)):
        if abs(value) > MAX_NUMBER:
            raise UsageError(f"{where}: the number is too large")
        if kind == WHOLE and isinstance(value, float):
            _wrong(kind, value, where)
        return str(value) if kind == TEXT else value
    if not isinstance(value, str) or kind != TEXT:
        _wrong(kind, value, where)
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
        raise UsageError(f"{where}: holds a control character")
    return value


def _wrong(wanted: str, value: Any, where: str) -> NoReturn:
    raise UsageError(f"{where}: {wanted} is expected, not {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value[:40]}"'
    for kind, name in ((int, "a number"), (float, "a number"), (list, "a list"), (dict, "a table")):
        if isinstance(value, kind):
            return name
    return "a date or time"
