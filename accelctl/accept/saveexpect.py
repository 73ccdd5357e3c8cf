"""``--save-expect``: a manifest of this machine's type, written so that a person goes on editing it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import accelctl
from accelctl.accept.manifest import SCHEMA
from accelctl.model.device import Device
from accelctl.model.report import Report

#: Facts that belong to a machine type: not what a run changes, and not what tells one machine from the next.
_FACTS = re.compile(
    r"^(driver|driver_version|link/max_speed_gts|link/max_width|link/narrowest_gbs|memory/(\w+_)?total_bytes|ve/memory_gib|"
    r"vbios/version|nvidia/vbios_version|nvidia/gsp_firmware|ve/fw_version|firmware/[\w/]+|numa/node|iommu/type|"
    r"partition/(compute|memory)|sriov/total_vfs)$"
)
_MACHINE = ("iommu/active", "numa/online")
_TOLERANCES = {"memory/*total_bytes": "1%", "link/narrowest_gbs": "1%"}


def manifest_of(report: Report) -> str:
    """TOML text of everything this report can promise about its type; absent facts promise nothing."""
    lines = [
        f"# What machines of this type must have, as accelctl {accelctl.__version__} found it. Edit it:",
        '# wildcards in text ("6.*"), a list means one of these, { min = 1, max = 4 } is a range.',
        "# Compared by: accelctl probe --expect FILE",
        f"schema = {_value(SCHEMA)}",
        "",
        "[machine]",
    ]
    lines += [f"{_key(key)} = {_value(report.value(key))}" for key in _MACHINE if report.value(key) is not None]
    lines += ["", "[kernel_parameters]"]
    lines += [f"{_key(name)} = {_pattern(value)}" for name, value in (report.value("kernel/parameters") or {}).items()]
    lines += ["", "[tolerance]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in _TOLERANCES.items()]
    groups: dict[tuple[str, ...], list[Device]] = {}
    for device in report.devices:
        if device.kind in ("physical", "vf", "partition"):
            groups.setdefault(tuple(_match(device).items()), []).append(device)  # type: ignore[arg-type]
    for group in sorted(groups.values(), key=lambda one: "vendor_id" not in _match(one[0])):  # exact ones claim first
        lines += ["", *_group(group)]
    return "\n".join(lines) + "\n"


def _match(device: Device) -> dict[str, str]:
    ids = {key: device.value(f"pci/{key}") for key in ("vendor_id", "device_id")}
    if all(isinstance(value, str) for value in ids.values()):
        return {"kind": device.kind, **ids}
    return {"kind": device.kind, **({"chip": device.chip} if device.chip else {"id": device.id})}


def _group(group: Sequence[Device]) -> list[str]:
    first = group[0]
    match = ", ".join(f"{key} = {_pattern(value)}" for key, value in _match(first).items())
    lines = ["[[device]]"]
    if first.value("name"):
        lines.append(f"name = {_value(first.value('name'))}")
    lines += [f"match = {{ {match} }}", f"count = {len(group)}", f"addresses = {_value([one.id for one in group])}"]
    nodes = _nodes(group)
    if nodes:
        lines.append(f"nodes = {_value(nodes)}")
    lines += ["", "[device.facts]"]
    for key in (key for key in first.facts if _FACTS.match(key)):
        values = [one.value(key) for one in group]
        if all(value is not None for value in values):
            different = list(dict.fromkeys(map(_pattern, values)))
            lines.append(f"{_key(key)} = {different[0] if len(different) == 1 else '[' + ', '.join(different) + ']'}")
    return lines


def _nodes(group: Sequence[Device]) -> list[str]:
    """Names of nodes that every device of the group has, with their numbers as wildcards."""
    shapes = [
        {re.sub(r"\d+", "*", key[6:-5]) for key, one in device.facts.items() if _is_node(key) and one.present}
        for device in group
    ]
    return sorted(set.intersection(*shapes))


def _is_node(key: str) -> bool:
    return key.startswith("nodes/") and key.endswith("/path")


# -- TOML --------------------------------------------------------------------------------------------------------------


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _value(text)


def _pattern(value: Any) -> str:
    """A value that is compared: in texts the wildcards are taken literally."""
    if isinstance(value, str):
        return _value(re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", value))
    return _value(value)


def _value(value: Any) -> str:
    """A TOML value (toml.io, version 1.0)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(str(key))} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    return '"' + "".join(_letter(letter) for letter in str(value)) + '"'


def _letter(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    if letter < " " or letter == "\x7f" or "\ud800" <= letter <= "\udfff":
        return f"\\u{ord(letter) if letter < chr(0xD800) else 0xFFFD:04x}"
    return letter
