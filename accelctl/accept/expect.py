"""``--expect``: is this machine what its type must be? Differences become findings and a list to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from accelctl.accept.manifest import Expectation, Wanted, fits
from accelctl.hal.procfile import parameter, parse_cmdline
from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding
from accelctl.model.reading import Reading
from accelctl.model.report import Report

IDS = ("EXPECT-MISSING-DEVICE", "EXPECT-EXTRA-DEVICE", "EXPECT-DIFFERS")
"""Findings that come from here; each has its page in data/explain/."""

#: A fact that could not be read is not a difference: it is a question that stays open.
_OPEN = frozenset(
    {"asleep", "costly", "no_permission", "timed_out", "not_captured", "unreadable", "hidden_by_container"}
)


class Difference(NamedTuple):
    """One fact that is not as expected; ``found`` is the value or the reason of its absence, ``open`` if that decides
    nothing."""

    device: str | None
    fact: str
    expected: str
    found: str
    source: str
    raw: str
    open: bool = False


class Comparison(NamedTuple):
    """What came out, in the manifest's order."""

    file: str
    differences: list[Difference]
    findings: list[Finding]


def compare(expectation: Expectation, report: Report) -> Comparison:
    """Compare a report with a manifest."""
    differences = list(_machine(expectation, report))
    findings = _differing(expectation, None, differences)
    left = [device for device in report.devices if device.kind in ("physical", "vf", "partition")]
    listed = list(report.devices)
    for wanted in expectation.devices:
        own = [device for device in listed if matches(wanted.match, device)]
        listed = [device for device in listed if device not in own]
        left = [device for device in left if device not in own]
        findings += _missing(expectation, wanted, own)
        surplus = own[wanted.most :] if wanted.most is not None else []
        findings += [_extra(expectation, device) for device in surplus]
        for device in own:
            found = list(_device(expectation, wanted, device))
            differences += found
            findings += _differing(expectation, device, found)
    findings += [_extra(expectation, device) for device in left]
    return Comparison(expectation.file, differences, findings)


def matches(match: Mapping[str, str], device: Device) -> bool:
    """Is the device one of those that an entry describes?"""
    own = {"kind": device.kind, "chip": device.chip, "id": device.id}
    return all(
        fnmatchcase(str(own[key] if key in own else device.value(f"pci/{key}")), wanted)
        for key, wanted in match.items()
    )


# -- facts -------------------------------------------------------------------------------------------------------------


def _machine(expectation: Expectation, report: Report) -> Iterator[Difference]:
    for key, wanted in expectation.machine.items():
        yield from _fact(expectation, None, key, wanted, report.machine.get(key))
    for name, wanted in expectation.parameters.items():
        yield from _parameter(report, name, wanted)


def _parameter(report: Report, name: str, wanted: Any) -> Iterator[Difference]:
    """A kernel parameter, from the whole line where that is known."""
    chosen, line = report.machine.get("kernel/parameters"), report.machine.get("kernel/command_line")
    value = None
    if line is not None and isinstance(line.value, str):
        value = parameter(parse_cmdline(line.value), name)
    elif chosen is not None and isinstance(chosen.value, dict):
        value = chosen.value.get(name)
    if fits(wanted, value):
        return
    source = "proc/cmdline" if chosen is None else chosen.source
    gone = chosen is None or chosen.value is None
    found = "not on the command line" if value is None else show(value)
    yield Difference(
        None, f"kernel parameter {name}", show(wanted), _why(chosen) if gone else found, source, found, gone
    )


def _device(expectation: Expectation, wanted: Wanted, device: Device) -> Iterator[Difference]:
    for key, value in wanted.facts.items():
        yield from _fact(expectation, device.id, key, value, device.reading(key))
    paths = {key[6:-5]: one for key, one in device.facts.items() if key.startswith("nodes/") and key.endswith("/path")}
    for pattern in wanted.nodes:
        fitting = [one for name, one in paths.items() if fnmatchcase(name, pattern)]
        if any(one.present for one in fitting):
            continue
        first = fitting[0] if fitting else None
        yield Difference(
            device.id,
            "node",
            f"/dev/{pattern}",
            _why(first) if first else "no such node",
            f"dev/{pattern}" if first is None else first.source,
            "no such node",
            first is not None and first.absence is not None and first.absence.kind in _OPEN,
        )


def _fact(
    expectation: Expectation, device: str | None, key: str, wanted: Any, reading: Reading | None
) -> Iterator[Difference]:
    value = None if reading is None else reading.value
    if fits(wanted, value, expectation.tolerance(key)):
        return
    gone = value is None
    undecided = reading is not None and reading.absence is not None and reading.absence.kind in _OPEN
    yield Difference(
        device,
        key,
        show(wanted),
        _why(reading) if gone else show(value),
        "not asked for" if reading is None else reading.source,
        "" if reading is None else reading.raw or _why(reading),
        gone and undecided,
    )


def _why(reading: Reading | None) -> str:
    if reading is None:
        return "no such fact"
    return reading.absence.kind.replace("_", " ") if reading.absence else show(reading.value)


def show(value: Any) -> str:
    """An expected or found value as short text."""
    if isinstance(value, dict):
        return " ".join(f"{key} {show(one)}" for key, one in value.items())
    if isinstance(value, list):
        return " or ".join(show(one) for one in value)
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


# -- findings ----------------------------------------------------------------------------------------------------------


def _differing(expectation: Expectation, device: Device | None, found: list[Difference]) -> list[Finding]:
    """One finding for all facts of a device: what really differs is an error, what could not be read a warning."""
    findings = []
    for undecided in (False, True):
        part = [one for one in found if one.open is undecided]
        if not part:
            continue
        verb = "could not be compared" if undecided else "not as expected"
        title = f"{verb}: {', '.join(one.fact for one in part)}"
        if len(part) == 1:
            one = part[0]
            title = f"{one.fact}: {one.found}, expected {one.expected}"
        seen = tuple(Evidence(one.source, f"{one.fact}: {one.found}, expected {one.expected}") for one in part)
        where = None if device is None else device.id
        why = tuple(f"accelctl probe --why {where or 'machine'}.{one.fact}" for one in part if " " not in one.fact)[:1]
        accept = f"accelctl probe --save-expect - > {expectation.file}   (if this is how such machines are from now on)"
        level, certainty = ("warn", "possible") if undecided else ("error", "certain")
        findings.append(Finding("EXPECT-DIFFERS", level, title, where, seen, (*why, accept), certainty))
    return findings


def _describe(wanted: Wanted) -> str:
    ids = ":".join(wanted.match[key][2:] for key in ("vendor_id", "device_id") if key in wanted.match)
    rest = ", ".join(f"{key} {value}" for key, value in wanted.match.items() if key not in ("vendor_id", "device_id"))
    return f"{wanted.name} ({ids or rest})" if wanted.name else f"{ids} ({rest})" if ids and rest else ids or rest


def _missing(expectation: Expectation, wanted: Wanted, own: list[Device]) -> list[Finding]:
    if len(own) >= wanted.least:
        return []
    here = {device.id for device in own}
    gone = [address for address in wanted.addresses if address not in here]
    title = f"{len(own)} of {wanted.least} found: {_describe(wanted)}"
    seen = [Evidence(expectation.file, f"count {wanted.least}, found {', '.join(sorted(here)) or 'none'}")]
    if gone:
        seen.append(Evidence(expectation.file, f"addresses without such a device: {', '.join(gone)}"))
    ids = [wanted.match.get(key, "")[2:] for key in ("vendor_id", "device_id")]
    fix = [f"lspci -nn -d {':'.join(ids)}"] if any(ids) else []
    fix += [f"sudo dmesg | grep {gone[0]}"] if gone else []
    fix.append("check that the card is seated and powered; then reboot and compare again")
    return [Finding("EXPECT-MISSING-DEVICE", "error", title, None, tuple(seen), tuple(fix))]


def _extra(expectation: Expectation, device: Device) -> Finding:
    ids = ":".join(str(device.value(f"pci/{key}") or "")[2:] for key in ("vendor_id", "device_id")).strip(":")
    name = device.value("name") or device.chip or "unknown device"
    title = f"not expected here: {name}{f' ({ids})' if ids else ''}, {device.kind}"
    fix = (f"accelctl probe --save-expect - > {expectation.file}   (if it belongs here)",)
    return Finding("EXPECT-EXTRA-DEVICE", "warn", title, device.id, (Evidence(device.path, "present"),), fix)


def ids(findings: Iterable[Finding]) -> list[str]:
    """The ids of findings, each once."""
    return list(dict.fromkeys(finding.id for finding in findings))
