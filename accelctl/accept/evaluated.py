"""Which rules looked at which device, for outputs that list passes as well as findings."""

from __future__ import annotations

from collections.abc import Iterable

from accelctl.abi.rooms import Room, all_rooms
from accelctl.abi.rules import rules_of
from accelctl.model.report import Report
from accelctl.probes import engine


def evaluated(report: Report, rooms: Iterable[Room] | None = None) -> dict[str | None, list[str]]:
    """Device id (None: the machine) -> ids of the rules that were asked about it, in the order they run.

    Generic rules look at everything, a chip's rules at its own devices. Ids that a report names beyond these (of
    ``--expect``, of a read that hung) stand behind them where they were found.
    """
    generic = _ids(engine.generic_modules())
    by_name = {room.name: room for room in (all_rooms() if rooms is None else rooms)}
    table: dict[str | None, list[str]] = {None: list(generic)}
    for device in report.devices:
        room = by_name.get(device.chip or "")
        module = None if room is None else engine.chip_module(room)
        table[device.id] = [*generic, *(_ids([module]) if module is not None else [])]
    for finding in report.findings:
        row = table.setdefault(finding.device, [])
        if finding.id not in row:
            row.append(finding.id)
    return table


def _ids(modules: Iterable[object]) -> list[str]:
    """Ids of all rules of some modules, each once."""
    found = [identity for module in modules for entry in rules_of(module) for identity in entry.ids]  # type: ignore[arg-type]
    return list(dict.fromkeys(found))
