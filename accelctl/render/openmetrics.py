"""A Snapshot as OpenMetrics text (openmetrics.io, 1.0): what `accelctl export` gives to a collector.

Written by hand, because the base installation has no library for it: a few families, one line each. Units are base
units as the format wants them, so milliwatts become watts and nanoseconds seconds. Series are keyed by device id, which
no reboot changes; a number that is missing has no line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any, NamedTuple

from accelctl.model.snapshot import Snapshot
from accelctl.render import term

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_GAUGE, _COUNTER, _INFO = "gauge", "counter", "info"
Labels = tuple[tuple[str, str], ...]


class Family(NamedTuple):
    """One family that comes from a field of a table."""

    name: str
    kind: str
    unit: str
    help: str
    field: str
    scale: float = 1


_TABLES: dict[str, tuple[Family, ...]] = {
    "devices": (
        Family("device_busy_ratio", _GAUGE, "ratio", "Load of the busiest engine", "busy_ratio"),
        Family("device_temperature_celsius", _GAUGE, "celsius", "Temperature", "temperature_celsius"),
        Family("device_power_watts", _GAUGE, "watts", "Power drawn", "power_mw", 1e-3),
        Family("device_fan_rpm", _GAUGE, "rpm", "Speed of the fan", "fan_rpm"),
        Family("device_clock_hertz", _GAUGE, "hertz", "Clock of the cores", "clock_hz"),
        Family("device_memory_total_bytes", _GAUGE, "bytes", "Memory that there is", "memory_total_bytes"),
        Family("device_memory_used_bytes", _GAUGE, "bytes", "Memory in use, by the device", "memory_used_bytes"),
        Family(
            "device_memory_attributed_bytes", _GAUGE, "bytes", "Memory in use, sum over clients",
            "memory_attributed_bytes",
        ),
        Family(
            "device_memory_unattributed_bytes", _GAUGE, "bytes", "Memory in use that no visible client has",
            "memory_unattributed_bytes",
        ),
        Family("device_open_files", _GAUGE, "", "Descriptors of its nodes", "open_files"),
        Family("device_mapped_bytes", _GAUGE, "bytes", "Mappings of its nodes and buffers", "mapped_bytes"),
        Family("device_handles", _GAUGE, "", "Buffer handles, by the kernel", "handles"),
        Family("device_clients", _GAUGE, "", "Clients", "clients"),
        Family("device_asleep", _GAUGE, "", "1: suspended, and left alone", "asleep"),
    ),
    "pools": (
        Family("pool_capacity_bytes", _GAUGE, "bytes", "What it may hold", "capacity_bytes"),
        Family("pool_in_use_bytes", _GAUGE, "bytes", "Given out", "in_use_bytes"),
        Family("pool_cached_bytes", _GAUGE, "bytes", "Kept for the next request", "cached_bytes"),
        Family("pool_reserved_bytes", _GAUGE, "bytes", "Taken from the driver", "reserved_bytes"),
        Family("pool_asked_bytes", _GAUGE, "bytes", "Asked for, of what is given out", "asked_bytes"),
        Family("pool_high_water_bytes", _GAUGE, "bytes", "Most that was held at one time", "high_water_bytes"),
        Family("pool_unattributed_bytes", _GAUGE, "bytes", "In use by nobody visible", "unattributed_bytes"),
        Family("pool_fragmentation_ratio", _GAUGE, "ratio", "1 - asked / in use", "fragmentation_ratio"),
        Family("pool_hits", _COUNTER, "", "Allocations answered from the cache", "hits"),
        Family("pool_misses", _COUNTER, "", "Allocations that went to the driver", "misses"),
    ),
    "queues": (
        Family("queue_depth", _GAUGE, "", "Works that may be in flight", "depth"),
        Family("queue_running", _GAUGE, "", "Works in flight", "running"),
        Family("queue_submitted", _COUNTER, "", "Works handed over", "submitted"),
        Family("queue_finished", _COUNTER, "", "Works done", "finished"),
        Family("queue_wait_seconds", _GAUGE, "seconds", "How long works waited lately", "wait_ns", 1e-9),
        Family("queue_busy_ratio", _GAUGE, "ratio", "Share of time with work in flight", "busy_ratio"),
        Family("queue_stalled_seconds", _GAUGE, "seconds", "In flight without any being done", "stalled_ns", 1e-9),
    ),
    "spaces": (
        Family("space_size_bytes", _GAUGE, "bytes", "Size of an address space", "size_bytes"),
        Family("space_mapped_bytes", _GAUGE, "bytes", "Addresses handed out", "mapped_bytes"),
        Family("space_reserved_bytes", _GAUGE, "bytes", "Addresses at fixed places", "reserved_bytes"),
        Family("space_free_bytes", _GAUGE, "bytes", "Addresses that are free", "free_bytes"),
        Family("space_largest_hole_bytes", _GAUGE, "bytes", "Largest free range", "largest_hole_bytes"),
    ),
    "engines": (
        Family("engine_busy_ratio", _GAUGE, "ratio", "Load of an engine over all clients", "busy_ratio"),
        Family("engine_clock_hertz", _GAUGE, "hertz", "Clock of an engine", "clock_hz"),
    ),
}  # fmt: skip
_LABEL = {"pools": "pool", "queues": "queue", "spaces": "space", "engines": "engine"}


def show(snapshot: Snapshot) -> None:
    """Print one exposition, at once: whoever reads may wait for it."""
    term.emit(metrics_text(snapshot))
    sys.stdout.flush()


def announce(place: str, title: str) -> None:
    """Say where it can be had, at once: scripts wait for this line."""
    term.emit(f"{title}: metrics at {place}")
    sys.stdout.flush()


def metrics_text(snapshot: Snapshot) -> str:
    """The whole exposition, with its end mark."""
    lines: list[str] = []
    lines += _devices_info(snapshot)
    for table, families in _TABLES.items():
        rows = [(_labels(table, row), row) for row in getattr(snapshot, table)]
        for family in families:
            samples = ((labels, getattr(row, family.field)) for labels, row in rows)
            lines += _family(family, ((labels, value) for labels, value in samples if value is not None))
    lines += _pool_counts(snapshot)
    lines += _processes(snapshot)
    lines += _ourselves(snapshot)
    return "\n".join([*lines, "# EOF\n"])


def _labels(table: str, row: Any) -> Labels:
    if table == "devices":
        return (("device", row.id),)
    named: Labels = (("device", row.device), (_LABEL[table], row.id))
    return (*named, ("owner", row.owner)) if getattr(row, "owner", "") else named


def _family(family: Family, samples: Iterable[tuple[Labels, Any]]) -> Iterator[str]:
    """Its head and its lines; nothing where there is no sample. One line for each set of labels: the last one."""
    found = {labels: value for labels, value in samples if isfinite(value)}
    if not found:
        return
    name = f"accelctl_{family.name}"
    yield f"# TYPE {name} {family.kind}"
    if family.unit:
        yield f"# UNIT {name} {family.unit}"
    yield f"# HELP {name} {family.help}."
    suffix = {_COUNTER: "_total", _INFO: "_info"}.get(family.kind, "")
    for labels, value in found.items():
        written = ",".join(f'{label}="{escaped(text)}"' for label, text in labels)
        number = float(value) * family.scale if family.scale != 1 else value
        yield f"{name}{suffix}{{{written}}} {_number(number)}" if written else f"{name}{suffix} {_number(number)}"


def escaped(text: str) -> str:
    """A label's value: backslash, quote and line break have an escape; what UTF-8 cannot say is a question mark.
    So is any other control character: a terminal would obey it, and the text may be a process's name."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    text = "".join(letter if letter == "\n" or letter.isprintable() else "?" for letter in text)
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else repr(value)


def _devices_info(snapshot: Snapshot) -> Iterator[str]:
    family = Family("device", _INFO, "", "What a device is", "")
    return _family(
        family,
        (
            (
                (
                    ("device", one.id),
                    ("name", one.name),
                    ("driver", one.driver),
                    ("chip", one.chip),
                    ("simulated", "true" if one.simulated else "false"),
                ),
                1,
            )
            for one in snapshot.devices
        ),
    )


def _pool_counts(snapshot: Snapshot) -> Iterator[str]:
    """Allocations and frees, by size class and by op."""
    for number, what in ((1, "allocations"), (2, "frees")):
        for field, label in (("size_classes", "size"), ("ops", "op")):
            family = Family(f"pool_{label}_{what}", _COUNTER, "", f"{what.capitalize()} by {label}", "")
            yield from _family(
                family,
                (
                    ((*_labels("pools", pool), (label, str(row[0]))), row[number])
                    for pool in snapshot.pools
                    for row in getattr(pool, field)
                ),
            )


def _processes(snapshot: Snapshot) -> Iterator[str]:
    memory: dict[Labels, int] = {}
    files: dict[Labels, int] = {}
    for one in snapshot.processes:
        who: Labels = (("pid", str(one.pid)), ("name", one.name))
        for device, region, size in one.memory:
            labels = (("device", device), *who, ("region", region))
            memory[labels] = memory.get(labels, 0) + size
        for device, count in one.files:
            holder = (("device", device), *who)
            files[holder] = count
    held = Family("process_memory_bytes", _GAUGE, "bytes", "Memory of a device that a process holds", "")
    yield from _family(held, memory.items())
    yield from _family(Family("process_open_files", _GAUGE, "", "Descriptors of a device's nodes", ""), files.items())
    hidden = Family("hidden_processes", _GAUGE, "", "Processes that may not be looked into", "")
    yield from _family(hidden, [((), snapshot.hidden_processes)])


def _ourselves(snapshot: Snapshot) -> Iterator[str]:
    up = Family("source_up", _GAUGE, "", "1: the source of numbers answers", "")
    yield from _family(up, (((("source", one.id),), int(one.state == "ok")) for one in snapshot.health))
    cost = snapshot.cost
    yield from _family(Family("self_cpu_ratio", _GAUGE, "ratio", "What watching costs", ""), [((), cost.cpu_ratio)])
    tick = Family("self_tick_seconds", _GAUGE, "seconds", "How long the last look took", "", 1e-9)
    yield from _family(tick, [((), cost.tick_ns)])
    taken = Family("snapshot_timestamp_seconds", _GAUGE, "seconds", "When the numbers were read", "", 1e-9)
    yield from _family(taken, [((), snapshot.taken_ns)])
