"""Options from the environment and from files, for every command alike. What is typed stands above all of it.

ACCELCTL_* > ./accelctl.toml > $XDG_CONFIG_HOME/accelctl/config.toml. No option is known here by what it does: names,
types and messages are those of the command, and the layers go where Click has a place for them (``envvar`` of an
option, ``default_map`` of a context).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from accelctl.commands import values
from accelctl.errors import AccelError, UsageError
from accelctl.hal import configfile
from accelctl.model.setting import DEFAULT, ENVIRONMENT, FILE, REFUSED, TAKEN, Layers, Setting, Setup
from accelctl.render import notes

DANGEROUS = frozenset(("allow-wake", "disruptive", "fault", "force", "kill", "kmemleak", "limit", "shared", "sweep"))
DANGEROUS |= {"sweep-kernel", "unproven", "stress device", "stress peer"}
"""Options (of one command, where it is named) that can cost something: whoever wants one of them says so each time."""

ASKING = frozenset(("diff", "keys", "list", "replay", "save-expect", "why"))
"""Options that ask for something else than the command's usual work, once."""

_KEY = "accelctl.settings"


def apply(command: Any, ctx: Any) -> None:
    """Give a context, before its arguments are parsed, what stands in for options that are not typed."""
    layers = read(ctx.find_root().obj or Setup({}, False))
    for file in layers.files:
        if file.state == REFUSED:
            notes.warn(f"{file.path}: not taken: {file.reason}")
    settings = in_force(command, ctx, layers) if layers.tables or _variables(scope(command)) else {}
    ctx.default_map = {name: one.value for name, one in settings.items() if one.origin == FILE}
    ctx.meta[_KEY] = layers, settings, ctx


def scope(command: Any) -> str:
    """The name that options stand below: a command's own, or that of the group it belongs to."""
    return str(command.name if getattr(command, "group", None) is None else command.group.name)


def layers_of(ctx: Any) -> Layers:
    """What was read for this run."""
    layers: Layers = ctx.meta[_KEY][0]
    return layers


def read(setup: Setup) -> Layers:
    """Look at the files; UsageError, one line, for one that cannot be understood."""
    found = configfile.find() if setup.files else ()
    taken = [(file.path, data) for file, data in found if file.state == TAKEN]
    if not taken:
        return Layers(tuple(file for file, _ in found), ())
    from accelctl.model.configtext import tables

    return Layers(tuple(file for file, _ in found), tuple((p, tables(p, data, setup.commands)) for p, data in taken))


def options_of(command: Any, ctx: Any) -> dict[str, Any]:
    """Key -> option, of every option that help shows."""
    shown = [p for p in command.get_params(ctx) if p.param_type_name == "option" and p.expose_value and not p.hidden]
    return {max(option.opts, key=len).lstrip("-"): option for option in shown}


def variable_of(command: str, key: str) -> str:
    """ACCELCTL_PROBE_FAIL_ON for --fail-on of probe; empty where only the command line counts."""
    return "" if {key, f"{command} {key}"} & (DANGEROUS | ASKING) else _variable(command, key)


def _variable(*words: str) -> str:
    return "_".join(("ACCELCTL", *words)).upper().replace("-", "_")


def _variables(command: str) -> list[str]:
    """Those of the environment that speak of this command and are not empty."""
    return sorted(one for one, text in os.environ.items() if text and one.startswith(_variable(command, "")))


def in_force(command: Any, ctx: Any, layers: Layers) -> dict[str, Setting]:
    """Parameter name -> what stands in for it. Raises UsageError for anything that is not understood."""
    return {name: chain[0] for name, chain in chains(command, ctx, layers).items()}


def chains(command: Any, ctx: Any, layers: Layers) -> dict[str, list[Setting]]:
    """Parameter name -> every layer that has a value for it, the one that counts first. UsageError."""
    name, options = scope(command), options_of(command, ctx)
    every = {**options, **_of_siblings(command, ctx)}
    known = {_variable(name, key): key for key in every}
    for variable in _variables(name):
        _check(name, known.get(variable, ""), variable, known, variable)
    for path, tables in layers.tables:
        for key in tables.get(name, {}):
            _check(name, key if key in every else "", key, every, f"{path}: [{name}] {key}")
    return {option.name: _chain(name, key, option, ctx, layers) for key, option in options.items()}


def _of_siblings(command: Any, ctx: Any) -> dict[str, Any]:
    """Options of the other commands of a group: they stand in the same table."""
    group = getattr(command, "group", None)
    others = group.commands.values() if group is not None else ()
    return {key: option for one in others for key, option in options_of(one, ctx).items()}


def _check(command: str, key: str, word: str, known: Iterable[str], where: str) -> None:
    if not key:
        from accelctl.model.configtext import near

        raise UsageError(f"{where}: no such option{near(word, known)}", f"accelctl {command} --help")
    if not variable_of(command, key):
        raise UsageError(f"{where}: only taken from the command line", f"accelctl {command} --{key}")


def _chain(command: str, key: str, option: Any, ctx: Any, layers: Layers) -> list[Setting]:
    """All layers that have a value, the highest first."""
    variable = variable_of(command, key)
    option.envvar, option.show_envvar = variable or None, False  # one line of the help page tells it for all
    base = Setting(command, key, values.plain(option.default), DEFAULT, "", variable)
    found = []
    typed = option.value_from_envvar(ctx)
    if typed is not None:
        found.append(base._replace(value=values.cast(option, ctx, typed, variable), origin=ENVIRONMENT, place=variable))
    for path, tables in layers.tables:
        if key in tables.get(command, {}):
            value = values.from_file(option, ctx, tables[command][key], f"{path}: [{command}] {key}")
            found.append(base._replace(value=value, origin=FILE, place=path))
    return [*found, base]


def explain(error: AccelError, ctx: Any) -> None:
    """Add where a value is from that the user did not type, to an error that names the option or its value."""
    _, settings, inner = ctx.meta.get(_KEY, ((), {}, ctx))
    for name, one in settings.items():
        source = inner.get_parameter_source(name)
        texts = one.value if isinstance(one.value, list) else [str(one.value)]
        said = re.search(rf"--{one.option}(?![\w-])", error.message) or any(
            len(text) > 3 and text in error.message for text in texts if not isinstance(one.value, bool)
        )
        if said and one.place and source is not None and source.name in ("ENVIRONMENT", "DEFAULT_MAP"):
            error.message += f" (--{one.option} is set by {one.place})"
