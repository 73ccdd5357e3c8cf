"""What is configured, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from accelctl.model.profile import KEYS, MATCHES, InForce, Profile, Said, table
from accelctl.model.setting import DEFAULT, REFUSED, ConfigFile, Setting, Value
from accelctl.render.term import Term

SCHEMA, PROFILE_SCHEMA = "accelctl.config/1", "accelctl.profile/1"

TYPED = "default, typed only"
WINS, BELOW = "in force", "overridden"


def settings_text(files: Sequence[ConfigFile], settings: Sequence[Setting], out: Term) -> str:
    """Files in their order, then for each command what is not typed and where it is from."""
    lines = _files(files, out)
    for command in dict.fromkeys(one.command for one in settings):
        rows = [(f"--{one.option}", shown(one.value), _origin(one)) for one in settings if one.command == command]
        lines += ["", out.style(f"{command}:", "1"), *_columns(rows)]
    return "\n".join(lines)


def _files(files: Sequence[ConfigFile], out: Term) -> list[str]:
    lines = [out.style("Files, the first one wins:", "1"), *(f"  {_file(file)}" for file in files)]
    return lines if files else [*lines, "  none: --no-config"]


def _columns(rows: Sequence[tuple[str, str, str]], indent: str = "  ") -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)] if rows else [0, 0]
    return [f"{indent}{left:<{widths[0]}}  {value:<{widths[1]}}  {last}".rstrip() for left, value, last in rows]


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


def origins_text(
    files: Sequence[ConfigFile],
    chains: Sequence[Sequence[Setting]],
    profiles: Sequence[Profile],
    chips: Sequence[InForce],
    out: Term,
) -> str:
    """As settings_text, with every layer that has a value below each option; then profiles."""
    lines = _files(files, out)
    for command in dict.fromkeys(chain[0].command for chain in chains):
        lines += ["", out.style(f"{command}:", "1"), *_chains([one for one in chains if one[0].command == command])]
    lines += ["", out.style("Profiles:", "1")]
    for one in profiles:
        lines += [f"  {table(one.name)} in {one.path}, for {_meant(one)}"]
    lines += [] if profiles else ["  none"]
    for force in chips:
        lines += ["", out.style(f"{force.chip}, every device:", "1"), *_said(force)]
    return "\n".join([*lines, *_hint(profiles)])


def _chains(chains: Sequence[Sequence[Setting]]) -> list[str]:
    """A line for an option that has only its default, several for one that has more."""
    alone = [len(chain) == 1 for chain in chains]
    heads = [
        (f"--{chain[0].option}", shown(chain[0].value) if one else "", _origin(chain[0]) if one else "")
        for chain, one in zip(chains, alone, strict=True)
    ]
    lines = []
    for head, chain, one in zip(_columns(heads), chains, alone, strict=True):
        rows = [(_origin(each), shown(each.value), WINS if each is chain[0] else BELOW) for each in chain]
        lines += [head] if one else [head, *_columns(rows, "      ")]
    return lines


def _hint(profiles: Sequence[Profile]) -> list[str]:
    """Which device is meant by a title is only known where devices are looked at."""
    special = [one for one in profiles if one.match.keys() != {"chip"}]
    return ["", "accelctl config profile DEVICE tells what applies to one device."] if special else []


def _meant(one: Profile) -> str:
    return ", ".join(f"{key} {one.match[key]}" for key in MATCHES if key in one.match)


def _said(force: InForce) -> list[str]:
    lines = []
    for key, said in force.said.items():
        rows = [(one.place, _amount(key, one.value), WINS if one is said[0] else BELOW) for one in said]
        lines += [f"  {key}", *_columns(rows, "      ")]
    return lines


def _amount(key: str, value: Value) -> str:
    if KEYS[key].kind == "a size" and isinstance(value, int):
        from accelctl.render.units import size

        return size(value)
    return shown(value)


def profile_text(files: Sequence[ConfigFile], found: Sequence[InForce], out: Term) -> str:
    """For each device, which profiles apply and every key with who says it; defaults too."""
    lines = _files(files, out)
    for force in found:
        lines += ["", out.style(f"{force.device} ({force.title}):", "1")]
        names = [f"{table(one.name)} in {one.path}, for {_meant(one)}" for one in force.profiles]
        lines += [f"  {name}" for name in names] or ["  no profile applies"]
        lines += _said(force)
        rows = [(key, KEYS[key].default, DEFAULT) for key in KEYS if key not in force.said]
        lines += _columns(rows)
    return "\n".join(lines if found else [*lines, "", "no device that computes is here"])


def keys_text() -> str:
    """What a profile may say, a line each."""
    rows = [(key, text, "what it is for; a pattern with * and ?") for key, text in MATCHES.items()]
    rows += [(key, one.text, f"{one.kind}; default: {one.default}") for key, one in KEYS.items()]
    return "\n".join(_columns(rows, ""))


def settings_document(
    files: Sequence[ConfigFile],
    settings: Sequence[Setting],
    chains: Sequence[Sequence[Setting]] | None = None,
    profiles: Sequence[Profile] = (),
    chips: Sequence[InForce] = (),
) -> dict[str, Any]:
    """The same for programs; `variable` is null for options that only the command line sets. With ``chains`` each
    option has its layers, and profiles are there."""
    from accelctl.render.document import headed

    commands: dict[str, dict[str, Any]] = {}
    for one in settings:
        commands.setdefault(one.command, {})[one.option] = {
            "value": one.value,
            "origin": one.origin,
            "place": one.place or None,
            "variable": one.variable or None,
        }
    if chains is None:
        return headed(SCHEMA, files=_entries(files), commands=commands)
    for chain in chains:
        layers = [{"value": one.value, "origin": one.origin, "place": one.place or None} for one in chain]
        commands[chain[0].command][chain[0].option]["layers"] = layers
    return headed(
        SCHEMA,
        files=_entries(files),
        commands=commands,
        profiles=[_profile(one) for one in profiles],
        chips={force.chip: _values(force) for force in chips},
    )


def profile_document(files: Sequence[ConfigFile], found: Sequence[InForce]) -> dict[str, Any]:
    """What applies to each device."""
    from accelctl.render.document import headed

    devices = [
        {
            "device": force.device,
            "chip": force.chip,
            "title": force.title,
            "profiles": [_profile(one) for one in force.profiles],
            "values": _values(force),
        }
        for force in found
    ]
    return headed(PROFILE_SCHEMA, files=_entries(files), devices=devices)


def _profile(one: Profile) -> dict[str, Any]:
    return {"name": one.name, "path": one.path, "for": dict(one.match), "values": dict(one.values)}


def _values(force: InForce) -> dict[str, Any]:
    return {key: _layers(said) for key, said in force.said.items()}


def _layers(said: Sequence[Said]) -> dict[str, Any]:
    layers = [{"value": one.value, "place": one.place} for one in said]
    return {**layers[0], "layers": layers}


def _entries(files: Iterable[ConfigFile]) -> list[dict[str, Any]]:
    return [{"path": file.path, "state": file.state, "reason": file.reason or None} for file in files]
