"""What is configured, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelctl.model.setting import DEFAULT, REFUSED, ConfigFile, Setting, Value
from accelctl.render.term import Term

SCHEMA = "accelctl.config/1"

TYPED = "default, typed only"


def settings_text(files: Sequence[ConfigFile], settings: Sequence[Setting], out: Term) -> str:
    """Files in their order, then for each command what is not typed and where it is from."""
    lines = [out.style("Files, the first one wins:", "1"), *(f"  {_file(file)}" for file in files)]
    if not files:
        lines.append("  none: --no-config")
    for command in dict.fromkeys(one.command for one in settings):
        rows = [(f"--{one.option}", shown(one.value), _origin(one)) for one in settings if one.command == command]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines += ["", out.style(f"{command}:", "1")]
        lines += [f"  {left:<{widths[0]}}  {value:<{widths[1]}}  {origin}".rstrip() for left, value, origin in rows]
    return "\n".join(lines)


def _file(file: ConfigFile) -> str:
    return f"{file.path}: not taken: {file.reason}" if file.state == REFUSED else f"{file.path}: {file.state}"


def _origin(one: Setting) -> str:
    if one.origin != DEFAULT:
        return one.place
    return DEFAULT if one.variable else TYPED


def shown(value: Value) -> str:
    """A value as it stands in a TOML file; a dash where there is none."""
    import json

    return "-" if value in (None, "", []) else json.dumps(value, ensure_ascii=False)


def settings_document(files: Sequence[ConfigFile], settings: Sequence[Setting]) -> dict[str, Any]:
    """The same for programs; `variable` is null for options that only the command line sets."""
    from accelctl.render.document import headed

    commands: dict[str, dict[str, Any]] = {}
    for one in settings:
        commands.setdefault(one.command, {})[one.option] = {
            "value": one.value,
            "origin": one.origin,
            "place": one.place or None,
            "variable": one.variable or None,
        }
    return headed(SCHEMA, files=[_entry(file) for file in files], commands=commands)


def _entry(file: ConfigFile) -> dict[str, Any]:
    return {"path": file.path, "state": file.state, "reason": file.reason or None}
