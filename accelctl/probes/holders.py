"""Which processes have an accelerator open: the first thing to know before anything disruptive."""

from __future__ import annotations

from accelctl.hal.proc import holders
from accelctl.model.reading import VOLATILE, Reading
from accelctl.probes.context import Scan


def describe(scan: Scan) -> None:
    """Volatile fact ``holders`` of each device with nodes, and how many processes could not be looked into."""
    owners: dict[tuple[int, int], tuple[str, str]] = {}
    for device in scan.devices.values():
        for key, reading in device.under("nodes").items():
            if key.endswith("/number") and isinstance(reading.value, str):
                major, _, minor = reading.value.partition(":")
                owners[int(major), int(minor)] = (device.id, f"/{reading.source}")
    found = holders(scan.root, {number: node for number, (_, node) in owners.items()}) if owners else None
    if found is None:
        return
    by_node = {node: identity for identity, node in owners.values()}
    by_device: dict[str, list[dict[str, object]]] = {identity: [] for identity, _ in owners.values()}
    for one in found.found:
        entry = {
            "pid": one.pid,
            "command": one.comm,
            "user": one.user,
            "node": one.node,
            "descriptors": one.files,
            "state": one.state,
        }
        by_device[by_node[one.node]].append(entry)
    for identity, entries in by_device.items():
        scan.devices[identity].facts["holders"] = Reading(
            entries, "proc/*/fd", f"{len(entries)} holders", None, None, VOLATILE
        )
    count = found.not_visible
    scan.machine["processes_not_visible"] = Reading(count, "proc/*/fd", f"{count} refused", None, None, VOLATILE)
