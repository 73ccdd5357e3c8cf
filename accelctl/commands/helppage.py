"""The help page of a command, in plain text: examples first, then options under the headings they were given."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from accelctl.commands import settings
from accelctl.render import term

ANYWHERE = (
    "--debug, --ascii, --color WHEN and --no-config may stand anywhere; accelctl --help tells what they do. "
    "Options can also be set in the environment ({prefix}OPTION) and in files: accelctl config --help"
)


def write(command: Any, ctx: Any, formatter: Any) -> None:
    """Everything below the usage line."""
    if command.help:
        formatter.write_paragraph()
        formatter.write_text(inspect.cleandoc(command.help).partition("\f")[0])
    if command.examples:
        _write_examples(formatter, command.examples)
    for title, rows in _panels(command, ctx).items():
        _write_section(formatter, title, rows)
    below = getattr(command, "commands", {})
    if below:
        _write_section(formatter, "Commands", [(name, one.get_short_help_str(70)) for name, one in below.items()])
    formatter.write_paragraph()
    formatter.write_text(ANYWHERE.format(prefix=f"ACCELCTL_{settings.scope(command)}_".upper().replace("-", "_")))


def _panels(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Heading -> help rows; arguments first, options without a heading of their own last, under "Options"."""
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    plain: list[tuple[str, str]] = []
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is None:
            continue
        argument = param.param_type_name == "argument"
        title = getattr(param, "rich_help_panel", None) or ("Arguments" if argument else "")
        (panels.setdefault(title, []) if title else plain).append(record)
    panels["Options"] = panels.pop("Options", []) + plain
    return {title: rows for title, rows in panels.items() if rows}


def _write_heading(formatter: Any, title: str) -> None:
    formatter.write_paragraph()
    formatter.write(term.current().style(f"{title}:", "1") + "\n")


def _write_section(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    _write_heading(formatter, title)
    formatter.indent()
    formatter.write_dl(rows)
    formatter.dedent()


def _write_examples(formatter: Any, examples: Sequence[tuple[str, str]]) -> None:
    """Command lines are for copying, so they are never wrapped; too long ones get their explanation on a line above."""
    _write_heading(formatter, "Examples")
    left = max(len(line) for line, _ in examples)
    beside = left + max(len(text) for _, text in examples) + 4 <= formatter.width
    for line, text in examples:
        formatter.write(f"  {line:<{left}}  {text}\n" if beside else f"  # {text}\n  {line}\n")
