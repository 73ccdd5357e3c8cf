"""Commands below a command, as in `accelctl caps diff`: made from a mapping in the command's module.

The mapping is ``name -> (function, summary)``. Beside it may stand ``EXAMPLES``, by name, and ``DEFAULT``: the one that
runs where none is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from typer.core import TyperGroup


class Group(TyperGroup):
    """A command with commands below it. ``default`` runs where none of them is named."""

    examples: tuple[tuple[str, str], ...] = ()
    default: str = ""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As a command's, with the list of those below it."""
        from accelctl.commands import helppage

        self.format_usage(ctx, formatter)
        helppage.write(self, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Put the default where it was left out; a word that is no command may be its argument."""
        first = args[0] if args else ""
        takes = (
            any(p.param_type_name == "argument" for p in self.commands[self.default].params) if self.default else False
        )
        if self.default and first not in {*self.commands, "-h", "--help"} and (takes or first[:1] in ("", "-")):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def build(name: str, summary: str, module: ModuleType, below: Mapping[str, Any]) -> Group:
    """The group of a module; what the docstring says after its first colon is the text of its help page."""
    text = (module.__doc__ or "").partition(":")[2].strip()
    group = Group(name=name, short_help=summary, help=text[:1].upper() + text[1:], subcommand_metavar="COMMAND")
    group.default = getattr(module, "DEFAULT", "")
    group.examples = tuple(lines[0] for lines in getattr(module, "EXAMPLES", {}).values())
    for command in below.values():
        command.group = group
        group.add_command(command)
    return group
