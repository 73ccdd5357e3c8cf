"""What a report says of one accelerator, field by field: each either has a value, or a word why it has none.

A field knows its long form (for a block) and its short form (for a cell), so that one device is a block of lines and
eight equal ones are a few shared lines and a table of what differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from accelctl.model.device import Device
from accelctl.model.report import Report
from accelctl.probes.upstream import bandwidth_gbs
from accelctl.render import units
from accelctl.render.access import node_access, node_names
from accelctl.render.layout import Line, Span, clean
from accelctl.render.reasons import nowhere, reason
from accelctl.render.term import Glyphs


class Field(NamedTuple):
    """``line`` is the label of the line in a block, ``label`` the heading of a column; without ``items`` it is
    missing."""

    line: str
    label: str
    items: tuple[Line, ...]
    short: Line
    missing: str | None = None


class Subject(NamedTuple):
    """A device, the report it stands in, and the signs that may be drawn."""

    device: Device
    report: Report
    glyphs: Glyphs

    def value(self, key: str) -> Any:
        """A fact's value."""
        return self.device.value(key)

    def missing(self, line: str, label: str, *keys: str) -> Field:
        """A field without a value: the reason of the first fact that has one; a fact nobody asked for is not offered,
        or not in an incomplete capture."""
        word = reason(*(self.device.reading(key) for key in keys), otherwise=nowhere(self.report))
        return Field(line, label, (), (Span(word, "dim"),), word)


def fields(subject: Subject) -> list[Field]:
    """All fields of a device in the order of the report."""
    found: list[Field] = []
    for make in _FIELDS:
        made = make(subject)
        if made is not None:
            found.append(made)
    return found


def _field(line: str, label: str, items: Iterable[str | Line], short: str | Line) -> Field:
    lines = tuple((Span(item),) if isinstance(item, str) else item for item in items)
    return Field(line, label, lines, (Span(short),) if isinstance(short, str) else short)


# -- driver and firmware -----------------------------------------------------------------------------------------------


def _state(subject: Subject) -> Field | None:
    """Only what is not plainly awake."""
    status = subject.value("power/runtime_status")
    if status in (None, "active", "unsupported"):
        return None
    word = "asleep" if status == "suspended" else clean(status)
    depth = subject.value("power/power_state")
    deep = f" in {clean(depth)}" if depth and depth != "unknown" else ""
    items: list[str | Line] = [(Span(word, "info"), Span(deep))]
    if status == "suspended":
        items.append("left asleep (--allow-wake reads what would wake it)")
    return _field("state", "state", items, (Span(word, "info"),))


def _driver(subject: Subject) -> Field:
    reading = subject.device.reading("driver")
    name = subject.value("driver")
    if name is None:
        if reading is not None and reading.absence is not None and reading.absence.kind == "no_driver":
            return _field("driver", "driver", [(Span("none bound", "warn"),)], (Span("none bound", "warn"),))
        return subject.missing("driver", "driver", "driver")
    version = subject.value("driver_version")
    text = f"{clean(name)} {clean(version)}" if version else clean(name)
    items: list[str | Line] = [text]
    gone = subject.device.reading("driver_version")
    if version is None and gone is not None and gone.absence is not None and gone.absence.detail:
        items[0] = f"{text} (part of the kernel)"
    module, minor, forced = (subject.value(key) for key in ("driver_module", "driver_of_minor", "driver_override"))
    if module and module.replace("-", "_") != str(name).replace("-", "_"):
        items.append(f"module {clean(module)}")
    if minor:
        items.append(f"its minor by {clean(minor)}")
    if forced:
        items.append(f"driver_override {clean(forced)}")
    return _field("driver", "driver", items, text)


#: Single firmware facts with a name of their own; amdgpu's two dozen microcode versions are only counted.
_FIRMWARE = {
    "vbios/version": "VBIOS",
    "nvidia/vbios_version": "VBIOS",
    "nvidia/gsp_firmware": "GSP",
    "ve/fw_version": "",
}


def _firmware(subject: Subject) -> Field | None:
    named = [
        f"{word} {clean(subject.value(key))}".strip()
        for key, word in _FIRMWARE.items()
        if subject.value(key) is not None
    ]
    rest = {key.partition("/")[2]: one.value for key, one in subject.device.under("firmware").items() if one.present}
    used = {name: value for name, value in rest.items() if not re.fullmatch(r"(0x)?0+", str(value))}
    if 0 < len(used) <= 3:
        named += [f"{clean(name)} {clean(value)[:40]}" for name, value in used.items()]
    elif used:
        named.append(f"{len(used)} firmware versions")
    if not named:
        return None
    return _field("firmware", "firmware", named, ", ".join(named))


# -- bus ---------------------------------------------------------------------------------------------------------------


def _rate(link: str, gbs: float | None) -> str:
    return link if gbs is None else f"{link} ({gbs:.3g} GB/s)"


def _gbs(speed: Any, width: Any) -> float | None:
    return bandwidth_gbs(speed, width)


def _link(subject: Subject) -> Field | None:
    if "link/max_speed_gts" not in subject.device.facts or subject.device.kind == "vf":
        return None
    speed, width = subject.value("link/max_speed_gts"), subject.value("link/max_width")
    now = units.link(subject.value("link/current_speed_gts"), subject.value("link/current_width"))
    most = units.link(speed, width)
    if now is None and most is None:
        if subject.value("link/current_width") == 0:
            return _field("link", "link", ["no PCIe link (width 0)"], "none")
        return subject.missing("link", "link", *(f"link/{key}" for key in _LINK_KEYS))
    if _inside_card(subject):
        return _inner_link(subject)
    held = _narrower(subject, top := _gbs(speed, width))
    mark = " *" if held else ""
    if now == most:
        return _field("link", "link", [f"PCIe {_rate(now or '', top)}", *held], f"{now}{mark}")
    if most is None:
        why = reason(*(subject.device.reading(f"link/max_{key}") for key in ("speed_gts", "width")))
        return _field("link", "link", [f"PCIe {now} now", f"at most: {why}"], f"{now}")
    if now is None:
        why = reason(subject.device.reading("link/current_speed_gts"))
        return _field("link", "link", [f"PCIe {_rate(most, top)} at most", f"now: {why}", *held], f"{most}{mark}")
    short = now.replace(" ", f"/{most.partition(' ')[0]} ", 1) if now.endswith(f"x{width}") else f"{now} of {most}"
    return _field("link", "link", [f"PCIe {now} now", f"{_rate(most, top)} at most", *held], f"{short}{mark}")


_LINK_KEYS = ("max_speed_gts", "max_width", "current_speed_gts", "current_width")


def _narrower(subject: Subject, own: float | None) -> list[Line]:
    """The bridge on the way that is slower than the device itself."""
    where, rate = subject.value("link/narrowest"), subject.value("link/narrowest_gbs")
    if where in (None, subject.device.id) or rate is None or own is None or rate >= round(own, 2):
        return []
    bridge = units.link(*(subject.value(f"upstream/{where}/max_{key}") for key in ("speed_gts", "width")))
    return [(Span(f"held to {_rate(bridge or '', rate)} by the bridge {clean(where)}", "warn"),)]


def _inside_card(subject: Subject) -> bool:
    """Intel's discrete GPUs tell 2.5 GT/s x1 whatever the slot does."""
    shown = [subject.value(f"link/max_{key}") or subject.value(f"link/current_{key}") for key in ("speed_gts", "width")]
    return subject.value("pci/vendor_id") == "0x8086" and shown == [2.5, 1]


def _inner_link(subject: Subject) -> Field:
    """Intel's cards put the GPU behind a switch of their own: its function tells an inner link, the switch the real
    one."""
    bridges = list(dict.fromkeys(key.split("/")[1] for key in subject.device.under("upstream")))
    card = bridges[1] if len(bridges) > 1 else None
    if card is not None:
        keys = ("max_speed_gts", "max_width", "current_speed_gts", "current_width")
        speed, width, speed_now, width_now = (subject.value(f"upstream/{card}/{key}") for key in keys)
        most, now = units.link(speed, width), units.link(speed_now, width_now)
        if most and now:
            items = [
                f"PCIe {now} now",
                f"{_rate(most, _gbs(speed, width))} at most",
                f"at the card's own bridge {card}",
            ]
            return _field("link", "link", items[1:] if now == most else items, now)
    return _field("link", "link", ["PCIe 1.0 x1 inside the card", "the slot's link stands at its bridge"], "inner x1")


def _numa(subject: Subject) -> Field:
    node, cpus = subject.value("numa/node"), subject.value("numa/local_cpulist")
    near = f" (CPUs {clean(cpus)})" if cpus else ""
    if isinstance(node, int) and node >= 0:
        return _field("place", "NUMA", [f"NUMA node {node}{near}"], f"{node}")
    if node == -1 and subject.report.value("numa/online") == "0":
        return _field("place", "NUMA", [f"NUMA node 0, the only one{near}"], "0")
    if node == -1:
        return _field("place", "NUMA", [f"NUMA node not told by the firmware{near}"], (Span("not told", "dim"),))
    return subject.missing("place", "NUMA", "numa/node")


def _iommu(subject: Subject) -> Field | None:
    reading = subject.device.reading("iommu/group")
    if reading is None:
        return None
    if not reading.present:
        if reading.absence is not None and reading.absence.kind == "not_offered":
            return _field("place", "IOMMU", ["no IOMMU group"], "none")
        return subject.missing("place", "IOMMU", "iommu/group")
    kind, others = subject.value("iommu/type"), subject.value("iommu/shared_with") or []
    mode = f" ({clean(kind)})" if kind else ""
    if not others:
        return _field("place", "IOMMU", [f"IOMMU group of its own{mode}"], f"own{mode}")
    shared = f"shares IOMMU group {reading.value} with {units.listed([clean(one) for one in others], 3)}{mode}"
    return _field("place", "IOMMU", [shared], f"group {reading.value}, shared")


def _window(subject: Subject) -> Field | None:
    """A BAR that could be larger: only then it is worth a line."""
    for key, one in subject.device.under("bars").items():
        most = subject.value(key.rpartition("/")[0] + "/max_size_bytes")
        if key.endswith("/size_bytes") and one.value is not None and most is not None and most > one.value:
            bar = key.split("/")[1]
            text = f"BAR {bar}: {units.size(one.value)} of {units.size(most)} possible"
            return _field("window", "window", [text], units.size(one.value))
    return None


def _sriov(subject: Subject) -> Field | None:
    total, active = subject.value("sriov/total_vfs"), subject.value("sriov/active_vfs")
    if not total or active is None:
        return None
    return _field("sr-iov", "VFs", [f"{active} of {total} virtual functions active"], f"{active} of {total}")


def _errors(subject: Subject) -> Field | None:
    """AER counters, when one is not zero."""
    totals = {}
    for key, one in subject.device.under("aer").items():
        if isinstance(one.value, dict):
            totals[key.partition("/")[2]] = sum(n for name, n in one.value.items() if not name.startswith("TOTAL"))
    if not any(totals.values()):
        return None
    items = [f"{count} {kind}" for kind, count in totals.items()]
    return _field("errors", "PCIe errors", [f"{', '.join(items)} (AER)"], f"{sum(totals.values())}")


# -- memory and sensors ------------------------------------------------------------------------------------------------

_POOL = re.compile(r"^memory/(?:(\w+)_)?total_bytes$")
_NAMES = {"vram": "VRAM", "gtt": "GTT", "local": "local memory", None: ""}


def _memory(subject: Subject) -> Field:
    pools: list[tuple[str, int, int | None]] = []
    asked: list[str] = []
    for key, one in subject.device.under("memory").items():
        match = _POOL.match(key)
        if match is None or match.group(1) == "visible_vram":
            continue
        asked.append(key)
        if isinstance(one.value, int):
            used = subject.value(key.replace("total_bytes", "used_bytes"))
            pools.append((_NAMES.get(match.group(1), match.group(1) or ""), one.value, used))
    pools = pools or _other_memory(subject)
    if not pools:
        used = subject.value("memory/used_bytes")
        if used is not None:
            return _field("memory", "memory", [f"{units.size(used)} used"], units.size(used))
        return subject.missing("memory", "memory", *asked)
    items = [
        f"{_pool(total, used)} {name}".strip() + (" used" if used is not None else "") for name, total, used in pools
    ]
    return _field("memory", "memory", items, _pool(pools[0][1], pools[0][2]).replace(" of ", "/"))


def _pool(total: int, used: int | None) -> str:
    return units.size(total) if used is None else units.share(used, total)


def _other_memory(subject: Subject) -> list[tuple[str, int, int | None]]:
    """Sizes that a few drivers tell in places of their own."""
    gib = subject.value("ve/memory_gib")
    if isinstance(gib, int):
        return [("", gib << 30, None)]
    banks = f"kfd/nodes/{subject.value('kfd/node')}/mem_banks"
    machine, total, number = subject.report.machine, 0, 0
    while (size := machine.get(f"{banks}/{number}/size_in_bytes")) is not None:
        heap = machine.get(f"{banks}/{number}/heap_type")
        if heap is not None and heap.value in (1, 2) and isinstance(size.value, int):
            total += size.value
        number += 1
    return [("by KFD", total, None)] if total else []


MOST_TEMPERATURES = 4


def _channels(subject: Subject, kind: str) -> list[tuple[str, str]]:
    """(label, key prefix) of all sensor channels of a kind (temp, power, fan)."""
    seen: dict[str, str] = {}
    for key in subject.device.under("sensors"):
        parts = key.split("/")
        if len(parts) == 4 and re.fullmatch(kind + r"\d+", parts[2]):
            base = "/".join(parts[:3])
            seen.setdefault(base, clean(subject.value(f"{base}/label") or ""))
    return [(label, base) for base, label in seen.items()]


def _temperature(subject: Subject) -> Field:
    values: list[tuple[str, float]] = []
    asked: list[str] = []
    for label, base in _channels(subject, "temp"):
        asked.append(f"{base}/input_celsius")
        value = subject.value(f"{base}/input_celsius")
        if isinstance(value, (int, float)):
            values.append((label, value))
    chip = subject.value("temperature/chip_celsius")
    if isinstance(chip, (int, float)):
        values.append(("chip", chip))
    if not values:
        return subject.missing("sensors", "temperature", *asked, "temperature/chip_celsius")
    sign = subject.glyphs.degree
    hottest = max(values, key=lambda one: one[1])
    if len(values) > MOST_TEMPERATURES:  # one for each memory channel: named ones without a number say most
        few = [one for one in values if not re.search(r"\d", one[0])][: MOST_TEMPERATURES - 1]
        items = [f"{label} {units.celsius(value, sign)}" for label, value in few]
        items.append(f"hottest of {len(values)} is {hottest[0]} {units.celsius(hottest[1], sign)}")
    else:
        items = [f"{label} {units.celsius(value, sign)}".strip() for label, value in values]
    return _field("sensors", "temperature", items, units.celsius(hottest[1], sign))


def _power(subject: Subject) -> Field:
    asked: list[str] = []
    for _, base in _channels(subject, "power"):
        keys = [f"{base}/{name}_mw" for name in ("average", "input")]
        asked += keys
        value = next((subject.value(key) for key in keys if subject.value(key) is not None), None)
        cap = subject.value(f"{base}/cap_mw")
        if isinstance(value, (int, float)):
            text = units.watts(value)
            if isinstance(cap, (int, float)) and cap > 0:
                text = f"{text.removesuffix(' W')} of {units.watts(cap)}"
            return _field("sensors", "power", [text], text.replace(" of ", "/"))
        if isinstance(cap, (int, float)) and cap > 0:
            return _field("sensors", "power", [f"at most {units.watts(cap)}"], f"?/{units.watts(cap)}")
    return subject.missing("sensors", "power", *asked)


def _fans(subject: Subject) -> Field | None:
    keys = [f"{base}/input_rpm" for _, base in _channels(subject, "fan")]
    known = [str(subject.value(key)) for key in keys if isinstance(subject.value(key), int)]
    if not known:
        return subject.missing("sensors", "fan", *keys) if keys else None
    word = "fan" if len(known) == 1 else "fans"
    return _field("sensors", "fan", [f"{word} {' / '.join(known)} rpm"], f"{'/'.join(known)} rpm")


def _busy(subject: Subject) -> Field | None:
    value = subject.value("busy/gpu_percent")
    if not isinstance(value, int):
        return None
    return _field("sensors", "busy", [f"busy {value} %"], f"{value} %")


# -- nodes and users ---------------------------------------------------------------------------------------------------


def _nodes(subject: Subject) -> Field | None:
    facts = subject.device.facts
    names = node_names(facts)
    if not names:
        return None
    order = sorted(names, key=lambda name: ("card" in name or "control" in name, name))
    access = {name: node_access(facts, name) for name in order}
    first = order[0].rpartition("/")[2]
    if all(one.words == "not captured" for one in access.values()):
        return _field("nodes", "node", [", ".join(order)], first)
    items = [(Span(f"/dev/{name} "), Span(one.words, one.style)) for name, one in access.items()]
    short = (Span(first + " "), Span(access[order[0]].word, access[order[0]].style))
    return _field("nodes", "node", items, short)


def _holders(subject: Subject) -> Field | None:
    reading = subject.device.reading("holders")
    if reading is None or not isinstance(reading.value, list):
        return None
    if not reading.value:
        return _field("in use", "in use", ["by nobody seen"], "0")
    people: dict[int, str] = {}
    for one in reading.value:
        stuck = " stuck in the kernel" if one.get("state") == "D" else ""
        people.setdefault(one["pid"], f"{clean(one.get('command'))} ({one['pid']}, {clean(one.get('user'))}){stuck}")
    return _field("in use", "in use", ["by " + units.listed(list(people.values()), 5)], f"{len(people)}")


def _partition(subject: Subject) -> Field | None:
    modes = [
        clean(subject.value(f"partition/{key}")) for key in ("compute", "memory") if subject.value(f"partition/{key}")
    ]
    if not modes:
        return None
    return _field("split", "split", [f"partition mode {' / '.join(modes)}"], "/".join(modes))


_FIELDS: tuple[Callable[[Subject], Field | None], ...] = (
    _state, _driver, _firmware, _link, _errors, _memory, _window, _temperature, _power, _fans, _busy, _numa, _iommu,
    _sriov, _partition, _nodes, _holders,
)  # fmt: skip
