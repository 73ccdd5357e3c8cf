"""The command tree as plain records: what completions and man pages are generated from.

Every command of the table is loaded as when it runs and its parameters are read; duck-typed, because the class names of
typer's vendored Click are private.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from accelctl import cli
from accelctl.commands import frame

FILE_WORDS = {"FILE", "DIR", "TAR", "PATH", "FILES"}
"""Words in a metavar after which completion offers files."""

DEVICE_WORD = "FILTER"
"""The metavar after which completion offers device nodes."""

FILE_TYPES = {"path", "file", "filename", "directory"}
"""typer's names of the types behind pathlib.Path and open-file annotations."""


class Option(NamedTuple):
    """One option. `metavar` is empty for a flag."""

    names: tuple[str, ...]
    metavar: str
    help: str
    panel: str
    choices: tuple[str, ...]
    files: bool
    repeatable: bool
    note: str
    """What typer adds in brackets: default, range, required; empty when there is nothing to say."""
    devices: bool = False
    """Whether completion offers device nodes."""


class Argument(NamedTuple):
    """One positional argument. `usage` is its piece of the usage line."""

    metavar: str
    usage: str
    help: str
    choices: tuple[str, ...]
    files: bool
    many: bool


class Command(NamedTuple):
    """One command or group; `path` is its words after `accelctl`."""

    path: tuple[str, ...]
    summary: str
    help: str
    options: tuple[Option, ...]
    arguments: tuple[Argument, ...]
    examples: tuple[tuple[str, str], ...]
    children: tuple["Command", ...]

    def walk(self) -> Iterator["Command"]:
        """This command and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


GLOBAL_OPTIONS = (
    Option(("--ascii",), "", "plain ASCII signs and frames", "", (), False, False, ""),
    Option(("--color",), "WHEN", "colours in the output", "", cli.COLOR_WORDS, False, False, "default: auto"),
    Option(("--debug",), "", "show tracebacks", "", (), False, False, ""),
    Option(("--no-config",), "", "read no configuration file", "", (), False, False, ""),
)
"""The switches that cli.py takes out of every command line."""


def load() -> tuple[Command, ...]:
    """All commands in the table's order."""
    return tuple(
        _command(frame.load(name, row.module, row.function, row.summary), (name,), row.summary)
        for name, row in cli.COMMANDS.items()
    )


def _command(command: Any, path: tuple[str, ...], summary: str) -> Command:
    ctx = command.context_class(command, info_name=" ".join(("accelctl", *path)), **frame.presentation())
    params = [p for p in command.get_params(ctx) if not getattr(p, "hidden", False)]
    children = [(name, child) for name, child in getattr(command, "commands", {}).items() if not child.hidden]
    return Command(
        path,
        summary,
        command.help or summary,
        tuple(_option(p, ctx) for p in params if p.param_type_name == "option"),
        tuple(_argument(p) for p in params if p.param_type_name == "argument"),
        tuple(getattr(command, "examples", ())),
        tuple(_command(child, (*path, name), child.get_short_help_str(70)) for name, child in children),
    )


def _option(param: Any, ctx: Any) -> Option:
    flag = bool(getattr(param, "is_flag", False) or getattr(param, "count", False))
    record = param.get_help_record(ctx)
    text = param.help or ""
    note = record[1][len(text) :].strip(" []") if record else ""
    return Option(
        (*sorted(param.opts, key=len), *param.secondary_opts),
        "" if flag else param.make_metavar(ctx),
        " ".join(text.split()),
        getattr(param, "rich_help_panel", None) or "Options",
        _choices(param),
        not flag and _files(param),
        bool(param.multiple or getattr(param, "count", False)),
        note,
        param.metavar == DEVICE_WORD,
    )


def _argument(param: Any) -> Argument:
    metavar = frame.metavar_of(param)
    text = " ".join((param.help or "").split())
    return Argument(metavar, frame.usage_piece(param), text, _choices(param), _files(param), param.nargs != 1)


def _choices(param: Any) -> tuple[str, ...]:
    """Enum members or Literal values, as they are typed."""
    return tuple(str(getattr(c, "value", c)) for c in getattr(param.type, "choices", ()))


def _files(param: Any) -> bool:
    words = set((param.metavar or "").strip("[]").replace("|", " ").replace(",", " ").split())
    return bool(words & FILE_WORDS) or getattr(param.type, "name", "") in FILE_TYPES
