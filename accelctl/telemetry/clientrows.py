"""What the source "clients" writes into a Draft: rows of processes, engines and devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from accelctl.hal import drmfdinfo, proc
from accelctl.model.snapshot import EngineLevel, Gone, ProcessLevel, Snapshot, key
from accelctl.telemetry.client import LOCAL, Client, Group, Key
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
_NO_MEMORY = Gone("not_offered", "its driver prints no memory in fdinfo")
_ASLEEP = Gone("asleep", "to read what its clients hold could wake it")
_COUNTED = ("node:udmabuf", "node:dma_heap/")
"""Nodes that have no memory but the buffers made with them, and these are counted themselves."""


def row(process: Process, clients: Mapping[Key, Client]) -> ProcessLevel:
    """One process. What several processes hold together is shown with each of them."""
    mine = [clients[one] for one in process.clients]
    process.gap = tuple(_gaps(process, mine))
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


def _gaps(process: Process, mine: list[Client]) -> Iterator[tuple[str, Gone]]:
    """Devices of which it holds something that nobody says the size of. No made-up 0 for them."""
    told = {one.key[0] for one in mine} | {device for device, _ in process.buffers.values()}
    told |= {one.device for one in process.held.descriptors if process.drm.get(one.number, ("", None))[1] is not None}
    silent = {*process.files, *process.mapped} - told - {""}
    if told or any(not one.startswith("node:") for one in silent):  # a control node beside the device has no memory
        silent = {one for one in silent if not one.startswith("node:")}
    for device in sorted(silent):
        if not device.startswith(_COUNTED):
            fix = OUTSIDE_FIX if proc.is_root() else FIX
            yield device, Gone("no_permission", "its fdinfo", fix) if process.hidden else _SILENT
    for one in mine:
        if one.unknown:
            yield one.key[0], Gone("malformed", f"the size in {one.unknown} of its fdinfo is not understood")
        elif one.total is None:
            yield one.key[0], _NO_MEMORY


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


class Looked(NamedTuple):
    """All that a tick found of processes and clients."""

    processes: Mapping[int, Process]
    clients: Mapping[Key, Client]
    groups: Mapping[str, Group]
    total: Sums
    asleep: frozenset[str]

    def local(self, pid: int, device: str) -> int:
        """What fdinfo says that a process holds of the device's own memory."""
        process = self.processes.get(pid)
        keys = process.clients if process is not None else ()
        return sum(self.clients[one].local or 0 for one in keys if one[0] == device)

    def gaps(self, process: Process, draft: Draft) -> Iterator[tuple[str, Gone]]:
        """What of a process is not known now."""
        for device, why in process.gap:
            if (device, process.pid) not in draft.held:
                sleeps = device in self.asleep and any(
                    one.drm for one in process.held.descriptors if one.device == device
                )
                yield device, _ASLEEP if sleeps and why is _SILENT else why


def write_processes(draft: Draft, looked: Looked) -> None:
    """Rows of processes that hold something; a row is made anew only when something of it changed."""
    draft.sources.update(_SOURCES)
    here = {process.pid for process in looked.total.held}
    found = [*looked.total.held]
    for pid in dict.fromkeys(pid for _, pid in draft.held):
        process = looked.processes.get(pid)
        if process is not None and pid not in here and process.started >= 0:  # its files may not be listed
            found.append(process)
    by_driver = {pid for _, pid in draft.held}
    for process in found:
        if process.row is None:
            process.row = row(process, looked.clients)
        if process.gap:
            _write_gap(draft, process, list(looked.gaps(process, draft)))
        draft.processes.append(_driver_says(draft, process, looked) if process.pid in by_driver else process.row)


def _write_gap(draft: Draft, process: Process, gaps: list[tuple[str, Gone]]) -> None:
    if gaps:
        device, why = gaps[0]
        name = key("processes", f"{process.pid}@{process.started}", "memory")
        assert process.row is not None
        several = len(process.row.devices) > 1
        draft.absences[name] = why._replace(detail=f"{device}: {why.detail}") if several else why


def _driver_says(draft: Draft, process: Process, looked: Looked) -> ProcessLevel:
    """Its row with what the driver itself says that it holds. Both counts may have the same buffers (see amdgpu's
    telemetry), so the larger one counts."""
    row = process.row
    assert row is not None
    memory = {(device, region): size for device, region, size in row.memory}
    devices = set(row.devices)
    for (device, pid), (size, source) in draft.held.items():
        more = size - looked.local(pid, device) if pid == process.pid else 0
        if more > 0:
            memory[device, LOCAL[0]] = memory.get((device, LOCAL[0]), 0) + more
            devices.add(device)
            draft.sources[key("processes", f"{pid}@{process.started}", "memory")] = f"{source}, proc/{pid}/fdinfo"
    sizes = tuple((device, region, size) for (device, region), size in sorted(memory.items()))
    return replace(row, devices=tuple(sorted(devices)), memory=sizes)


def write_devices(draft: Draft, devices: Iterable[str], looked: Looked) -> None:
    """Counts of every device that has nodes, zeros too: what was held and is no more is to be seen as zero."""
    gaps: dict[str, list[Gone]] = {}
    for process in looked.total.held:
        for device, why in looked.gaps(process, draft) if process.gap else ():
            gaps.setdefault(device, []).append(why)
    total = looked.total
    for device in sorted({*devices, *(device for device, _ in draft.held)}):
        group = looked.groups.get(device)
        draft.level(device, "open_files", total.files[device], "proc/*/fd")
        draft.level(device, "mapped_bytes", total.mapped[device], "proc/*/maps")
        draft.level(device, "clients", len(group.clients) if group else 0, "proc/*/fdinfo drm-client-id")
        _memory_of(draft, device, looked, gaps.get(device, []))
        if group is not None:
            _engines_of(draft, device, group)


def _memory_of(draft: Draft, device: str, looked: Looked, gaps: list[Gone]) -> None:
    """What clients hold, and what the driver says beyond that. A sum that lacks somebody says so."""
    found = _by_clients(device, looked)
    more, source = _by_driver(draft, device, looked)
    if more or (source and found is None):
        size, texts = (0, []) if found is None else (found[0], [found[1]])
        used = draft.devices[device].get("memory_used_bytes")
        size += more if used is None else max(0, min(more, used - size))  # read at two moments
        found = size, ", ".join([*texts, source])
    if found is None:
        why = gaps[0] if gaps else _ASLEEP if device in looked.asleep else _SILENT
        draft.gone(device, "memory_attributed_bytes", why)
        return
    lacks = f"; without {len(gaps)} process{'' if len(gaps) == 1 else 'es'}, {gaps[0].detail}" if gaps else ""
    draft.level(device, "memory_attributed_bytes", found[0], found[1] + lacks)


def _by_clients(device: str, looked: Looked) -> tuple[int, str] | None:
    """(bytes, where that stands)."""
    group, buffers = looked.groups.get(device), looked.total.buffers.get(device)
    if group is not None and group.clients:
        size = group.attributed()
        return None if size is None else (size, "proc/*/fdinfo drm-resident-*, drm-total-*")
    if buffers:
        return sum(buffers.values()), "proc/*/fdinfo size"
    return None if device in looked.total.files else (0, "proc/*/fd")


def _by_driver(draft: Draft, device: str, looked: Looked) -> tuple[int, str]:
    """(bytes that fdinfo does not tell, the file of all processes)."""
    more, text = 0, ""
    for (at, pid), (size, source) in draft.held.items():
        if at == device:
            more += max(0, size - looked.local(pid, device))
            text = source.replace(f"/{pid}/", "/*/")
    return more, text


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
