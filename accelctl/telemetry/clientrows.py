"""What the source "clients" writes into a Draft: rows of processes, engines and devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from accelctl.hal import drmfdinfo, proc
from accelctl.model.snapshot import EngineLevel, Gone, ProcessLevel, Snapshot, key
from accelctl.telemetry.client import Client, Group, Key
from accelctl.telemetry.processes import Process
from accelctl.telemetry.source import Draft

HIDDEN = key("processes", "*", "hidden")
"""Where the absence stands of what processes hold that may not be looked into."""
OUTSIDE = key("processes", "*", "outside")
"""Where it stands that there are processes out of sight altogether."""
FIX = "sudo $(command -v accelctl) top"
OUTSIDE_FIX = "run it on the host: here the kernel refuses it to root as well"

_DMABUF = "dma-buf"
_MIB = 1 << 20
_SOURCES = {
    key("processes", "*", name): f"proc/PID/{file}"
    for name, file in (("memory", "fdinfo"), ("engines", "fdinfo"), ("files", "fd"), ("mapped", "maps"))
}
"""Of all rows: where a number of one process was read follows from its pid."""
_SILENT = Gone("not_offered", "its driver prints no drm- lines in fdinfo")


def row(process: Process, clients: Mapping[Key, Client]) -> ProcessLevel:
    """One process. What several processes hold together is shown with each of them."""
    mine = [clients[one] for one in process.clients]
    return ProcessLevel(
        pid=process.pid,
        started=process.started,
        name=process.name,
        uid=process.uid,
        state=process.state,
        wchan=process.wchan,
        container=process.container,
        devices=tuple(sorted({*process.files, *process.mapped, *(one.key[0] for one in mine)} - {""})),
        memory=_memory(process, mine),
        engines=_engines(mine),
        files=tuple(sorted(process.files.items())),
        mapped=tuple(sorted(process.mapped.items())),
        shared_with=tuple(sorted({pid for one in mine for pid in one.holders} - {process.pid})),
    )


def cut(row: ProcessLevel, devices: Collection[str]) -> ProcessLevel:
    """What a process holds of these devices: their memory is not to be added up with that of others."""
    return replace(
        row,
        devices=tuple(one for one in row.devices if one in devices),
        memory=tuple(one for one in row.memory if one[0] in devices),
        engines=tuple(one for one in row.engines if one[0] in devices),
        files=tuple(one for one in row.files if one[0] in devices),
        mapped=tuple(one for one in row.mapped if one[0] in devices),
    )


def _memory(process: Process, mine: list[Client]) -> tuple[tuple[str, str, int], ...]:
    """By region; dma-bufs where no client's regions hold them already."""
    sums: dict[tuple[str, str], int] = {}
    for one in mine:
        device = one.key[0]
        for region, size in one.sizes:
            sums[device, region] = sums.get((device, region), 0) + size
    told = {one.key[0] for one in mine}
    for device, size in process.buffers.values():
        if device not in told:
            sums[device, _DMABUF] = sums.get((device, _DMABUF), 0) + size
    return tuple((device, region, size) for (device, region), size in sorted(sums.items()))


def _engines(mine: list[Client]) -> tuple[tuple[str, str, float], ...]:
    by_device: dict[str, list[Mapping[str, float]]] = {}
    for one in mine:
        if one.ratios:
            by_device.setdefault(one.key[0], []).append(one.ratios)
    return tuple(
        (device, engine, ratio)
        for device, ratios in sorted(by_device.items())
        for engine, ratio in sorted(drmfdinfo.join(ratios).items())
    )


def write_processes(draft: Draft, held: Iterable[Process], clients: Mapping[Key, Client]) -> None:
    """Rows of processes that hold something; a row is made anew only when something of it changed."""
    draft.sources.update(_SOURCES)
    for process in held:
        if process.row is None:
            process.row = row(process, clients)
        draft.processes.append(process.row)


class Sums(NamedTuple):
    """Over all processes, by device. Made anew when a look finds a difference, not at each tick."""

    held: list[Process]
    """Those that hold something."""
    files: Counter[str]
    mapped: Counter[str]
    buffers: dict[str, dict[tuple[int, int], int]]
    """Device -> buffer -> bytes: what several processes have open is one buffer."""


def sums(processes: Iterable[Process]) -> Sums:
    """Add up."""
    found = Sums([one for one in processes if one.holds], Counter(), Counter(), {})
    for process in found.held:
        found.files.update(process.files)
        found.mapped.update(process.mapped)
        for inode, (device, size) in process.buffers.items():
            buffer = (0, inode) if inode > 0 else (process.pid, inode)  # without an inode nobody else's
            found.buffers.setdefault(device, {})[buffer] = size
    return found


def write_devices(draft: Draft, devices: Iterable[str], groups: Mapping[str, Group], total: Sums) -> None:
    """Counts of every device that has nodes, zeros too: what was held and is no more is to be seen as zero."""
    for device in sorted(devices):
        group = groups.get(device)
        draft.level(device, "open_files", total.files[device], "proc/*/fd")
        draft.level(device, "mapped_bytes", total.mapped[device], "proc/*/maps")
        draft.level(device, "clients", len(group.clients) if group else 0, "proc/*/fdinfo drm-client-id")
        _memory_of(draft, device, group, total.buffers.get(device), device in total.files)
        if group is not None:
            _engines_of(draft, device, group)


def _memory_of(
    draft: Draft, device: str, group: Group | None, buffers: dict[tuple[int, int], int] | None, held: bool
) -> None:
    if group is not None and group.clients:
        size = group.attributed()
        if size is not None:
            draft.level(device, "memory_attributed_bytes", size, "proc/*/fdinfo drm-resident-*, drm-total-*")
            return
    elif buffers:
        draft.level(device, "memory_attributed_bytes", sum(buffers.values()), "proc/*/fdinfo size")
        return
    elif not held:
        draft.level(device, "memory_attributed_bytes", 0, "proc/*/fd")
        return
    draft.gone(device, "memory_attributed_bytes", _SILENT)


def _engines_of(draft: Draft, device: str, group: Group) -> None:
    ratios: dict[str, float] = {}
    for name, state, ratio in group.ratios():
        draft.engines.append(
            EngineLevel(
                id=f"{device}/{name}",
                device=device,
                busy_ratio=ratio,
                capacity=state.capacity,
                clock_hz=state.clock_hz,
            )
        )
        if ratio is not None:
            ratios[name] = ratio
    busiest = drmfdinfo.busiest(ratios)
    if busiest is not None and draft.devices[device].get("busy_ratio") is None:  # the driver's own figure goes first
        draft.level(device, "busy_ratio", busiest, "proc/*/fdinfo, the busiest engine")


def write_hidden(draft: Draft, count: int, outside: Gone | None) -> None:
    """What is not in the sums: processes that may not be looked into, and those out of sight."""
    draft.hidden_processes += count
    if count:
        draft.absences[HIDDEN] = Gone("no_permission", _not_readable(count), OUTSIDE_FIX if proc.is_root() else FIX)
    if outside is not None:
        draft.absences[OUTSIDE] = outside


def _not_readable(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'} not readable"


def missing(snapshot: Snapshot, device: str) -> str:
    """What to say beside a sum over the clients of a device that does not hold all of them; "" where nothing is
    missing that is known of."""
    parts = [_not_readable(snapshot.hidden_processes)] if snapshot.hidden_processes else []
    level = next((one for one in snapshot.devices if one.id == device), None)
    if level is not None and level.memory_unattributed_bytes:
        left, used = level.memory_unattributed_bytes, level.memory_used_bytes or 0
        parts.append(f"{_mib(left)} of {_mib(used)} not attributed")
    return "; ".join(parts)


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f} MiB" if size % _MIB == 0 else f"{size / _MIB:.1f} MiB"
