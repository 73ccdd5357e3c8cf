"""``--why DEVICE.FIELD``: which facts are asked for.

A device is named by id, by node, by its number in the report (``0``, ``gpu0``) or as ``machine``. Addresses hold dots
too, so the longest name that fits is taken. A field is a key with dots or slashes, a part of one (everything below), or
loose words of one (``memory.used``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from accelctl.errors import NoDeviceError, UsageError
from accelctl.model.device import Device
from accelctl.model.reading import Reading
from accelctl.model.report import Report

MACHINE = "machine"
_NUMBERED = re.compile(r"^(?:#|gpu|npu|tpu|dcu|xpu|fpga|device)?(\d+)$", re.I)


def ask(report: Report, question: str) -> tuple[str, dict[str, Reading]]:
    """(name of the owner, facts that answer); UsageError with near matches where nothing does."""
    owner, facts, field = _owner(report, question.strip())
    if not facts:
        raise UsageError(f"--why {question}: nothing is known of {owner}")
    wanted = _normal(field)
    if not wanted:
        return owner, dict(facts)
    keys = {_normal(key): key for key in facts}
    if wanted in keys:
        return owner, {keys[wanted]: facts[keys[wanted]]}
    below = {key: one for key, one in facts.items() if _normal(key).startswith(wanted + "/")}
    if below:
        return owner, below
    loose = _loose(facts, wanted)
    if loose:
        return owner, loose
    near = get_close_matches(wanted, keys, 3, 0.5)
    hint = f"accelctl probe --why {owner}.{keys[near[0]]}" if near else f"accelctl probe --why {owner}"
    words = f"; near: {', '.join(keys[one] for one in near)}" if near else ""
    raise UsageError(f"--why {question}: {owner} has no such field{words}", hint)


def _normal(text: str) -> str:
    """Dots are slashes, case does not count."""
    return text.strip("./").replace(".", "/").lower()


def _loose(facts: Mapping[str, Reading], wanted: str) -> dict[str, Reading]:
    """Facts whose key holds all wanted words, as whole words in that order; the shortest keys only."""
    words = re.split(r"[/_ ]+", wanted)
    found = {key: one for key, one in facts.items() if _in_order(words, re.split(r"[/_.]+", key.lower()))}
    fewest = min((key.count("/") for key in found), default=0)
    return {key: one for key, one in found.items() if key.count("/") == fewest}


def _in_order(words: list[str], parts: list[str]) -> bool:
    rest = iter(parts)
    return all(word in rest for word in words)


def _owner(report: Report, question: str) -> tuple[str, Mapping[str, Reading], str]:
    """(owner's name, its facts, the rest of the question)."""
    aliases: dict[str, Device | None] = {MACHINE: None}
    for number, device in enumerate(report.devices):
        aliases.update({name.lower(): device for name in _names(device, number)})
    text = question.lower()
    best = max((name for name in aliases if _begins(text, name)), key=len, default=None)
    if best is None:
        return _numbered(report, question)
    chosen = aliases[best]
    rest = question[len(best) :].lstrip("./")
    return (MACHINE, report.machine, rest) if chosen is None else (chosen.id, chosen.facts, rest)


def _begins(text: str, name: str) -> bool:
    return text == name or text.startswith((name + ".", name + "/"))


def _names(device: Device, number: int) -> list[str]:
    """What may stand for a device: its id, without domain 0, and its nodes with and without /dev."""
    names = [device.id, str(number)]
    if device.id.startswith("0000:"):
        names.append(device.id[5:])
    for key in device.facts:
        if key.startswith("nodes/") and key.endswith("/path"):
            path = key[6:-5]
            names += [path, f"/dev/{path}", path.rpartition("/")[2]]
        elif key.startswith("drm/") and key.endswith("/node"):
            names.append(key.split("/")[1])
    return names


def _numbered(report: Report, question: str) -> tuple[str, Mapping[str, Reading], str]:
    head, _, field = question.replace("/", ".").partition(".")
    match = _NUMBERED.match(head)
    if match and int(match.group(1)) < len(report.devices):
        device = report.devices[int(match.group(1))]
        return device.id, device.facts, field
    known = [device.id for device in report.devices[:6]]
    here = f"; here: {', '.join([MACHINE, *known])}{' ...' if len(report.devices) > 6 else ''}"
    error = NoDeviceError if match else UsageError
    raise error(f"--why {question}: no such device{here}", "accelctl probe --brief")
