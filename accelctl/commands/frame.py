"""What all commands share: loading one, its help page, running it, and typer's own ways to end.

Help is always typer's plain text, not rich's: 68 ms against 155 ms measured for one page, and pipes get the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from accelctl.commands import settings
from accelctl.errors import AccelError, NoDeviceError
from accelctl.model.setting import Setup
from accelctl.render import term

MINIMUM_TYPER = (0, 26)
"""The first release that carries its own Click; older ones have another class tree."""

HELP_WIDTH = 80
"""Columns of a help page in a pipe; a wider terminal gets at most 100."""


class Command(TyperCommand):
    """A command whose help shows examples first, then options under the headings they were given."""

    examples: tuple[tuple[str, str], ...] = ()
    group: Any = None
    """Of a command below another one: who holds its siblings, with whom it shares a table of configuration files."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] SHELL [ID]...`: brackets mean optional, as in man pages (typer puts required ones in braces)."""
        shown = [p for p in self.params if p.param_type_name == "argument" and not getattr(p, "hidden", False)]
        return ["[OPTIONS]", *map(usage_piece, shown)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Usage, text, examples, arguments, options by panel, and where the switches of accelctl itself are told."""
        from accelctl.commands import helppage

        self.format_usage(ctx, formatter)
        helppage.write(self, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Bring in what is configured, unless only help is asked for."""
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        if not given.get("help"):
            settings.apply(self, ctx)
        return super().parse_args(ctx, args)


def metavar_of(argument: Any) -> str:
    """The word that stands for an argument, without brackets: whether it is optional is said by the usage line."""
    return (argument.metavar or str(argument.name).upper()).strip("[]")


def usage_piece(argument: Any) -> str:
    """One positional argument as it stands in a usage line."""
    name = metavar_of(argument)
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs != 1 else "")


def load(name: str, module: str, function: str, summary: str) -> Any:
    """Import a command's module and build the typer command (or group) from what the table names in it."""
    _check_typer()
    loaded = import_module(module)
    target = getattr(loaded, function)
    examples: Any = getattr(loaded, "EXAMPLES", ())
    if not isinstance(target, Mapping):
        return _command(name, target, summary, examples)
    from accelctl.commands.group import build

    below = {word: _command(word, body, text, examples.get(word, ())) for word, (body, text) in target.items()}
    return build(name, summary, loaded, below)


def _command(name: str, body: Any, summary: str, examples: Sequence[tuple[str, str]]) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name=name, cls=Command, short_help=summary)(body)
    command = get_command(app)
    command.name = name
    if isinstance(command, Command):
        command.examples = tuple(examples)
    return command


def _check_typer() -> None:
    """A distribution's older typer would fail in obscure ways; say so instead."""
    if tuple(int(part) for part in typer.__version__.split(".")[:2] if part.isdigit()) < MINIMUM_TYPER:
        message = f"typer {typer.__version__} is too old, accelctl needs 0.26 to 0.28"
        raise NoDeviceError(message, "pip install 'typer>=0.26,<0.29'")


def presentation() -> dict[str, Any]:
    """Context settings of every command: both help options, and a help page that fits the terminal."""
    out = term.current()
    width = max(min(out.width or HELP_WIDTH, 100), 50)
    return {"help_option_names": ["-h", "--help"], "terminal_width": width, "color": out.colors is not None}


def run(command: Any, who: str, args: Sequence[str], setup: Setup) -> int:
    """Parse and run. `who` is the command's full name, for the usage line. Returns the exit status."""
    with command.make_context(who, list(args), obj=setup, **presentation()) as ctx:
        try:
            result = command.invoke(ctx)
        except AccelError as error:
            settings.explain(error, ctx)
            raise
    return int(result) if isinstance(result, int) else 0


def typer_ending(exc: BaseException) -> tuple[str, str | None, int] | None:
    """typer's own exceptions as (message, hint, exit status); None if `exc` is something else.

    Usage errors are recognised by their methods: the class has moved between the supported releases.
    """
    if isinstance(exc, typer.Exit):
        return "", None, exc.exit_code
    if isinstance(exc, typer.Abort):  # Ctrl-C or end of input at a prompt
        return "", None, 130
    describe, code = getattr(exc, "format_message", None), getattr(exc, "exit_code", None)
    if describe is None or not isinstance(code, int):
        return None
    ctx = getattr(exc, "ctx", None)
    return describe(), f"{ctx.command_path} --help" if ctx is not None else None, code
