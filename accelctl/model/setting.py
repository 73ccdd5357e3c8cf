"""What is configured: files that were looked for, and options with where their values come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

TAKEN, ABSENT, REFUSED = "taken", "absent", "refused"
"""States of a file. Refused: it is there, but somebody else could have written it."""

DEFAULT, FILE, ENVIRONMENT = "default", "file", "environment"
"""Origins of a value, lowest precedence first. The command line stands above all of them."""

Value: TypeAlias = "str | int | float | bool | list[str] | None"


class ConfigFile(NamedTuple):
    """A place where configuration may lie."""

    path: str
    state: str
    reason: str
    """Why it is refused; empty otherwise."""


class Setting(NamedTuple):
    """One option of one command, and what is in force when it is not typed."""

    command: str
    option: str
    """The long name without dashes, which is also the key in a file."""
    value: Value
    origin: str
    place: str
    """The file or the variable that the value is from; empty for a default."""
    variable: str
    """Its name in the environment; empty: only the command line sets it."""


class Setup:
    """What the entry point knows and the layers need.

    ``commands``: the table, whose names are the tables that a file may hold. ``files``: False with --no-config.
    """

    __slots__ = ("commands", "files")

    def __init__(self, commands: Mapping[str, Any], files: bool) -> None:
        self.commands, self.files = commands, files


class Layers(NamedTuple):
    """Where files were looked for, and the tables of those that were taken, highest precedence first."""

    files: tuple[ConfigFile, ...]
    tables: tuple[tuple[str, dict[str, dict[str, Any]]], ...]
