"""Chips as a list, and one of them in detail. Nothing of a third party is imported unless that is asked for, and then
in a child process."""

from __future__ import annotations

from typing import Any

from accelctl.abi import registry, rooms, shelf
from accelctl.abi.manifest import Manifest
from accelctl.abi.registry import Row
from accelctl.abi.rooms import Room
from accelctl.abi.version import CONTRACTS
from accelctl.accept.plugins import store
from accelctl.errors import AccelError
from accelctl.model.pluginreport import ChipDetail, ChipRow, Listing

_COSTS = {
    "memory": "no `stress`, no `smoke`: nothing can be allocated",
    "queue": "no rings of its own: checks submit no empty work",
    "ops": "no `smoke`, `serve`, `bench`: it computes nothing",
    "schedule": "lists of ops are submitted one by one, never replayed as a whole",
    "telemetry": "`top` shows the kernel's generic numbers only",
}


def listing(*, load: bool = False) -> Listing:
    """Every chip with code. ``load``: third parties' are asked as well, each in a child process."""
    known = {room.name: room for room in rooms.in_tree()}
    strangers, problems = rooms.third_party()
    titles = {room.name: room.title for room in (*known.values(), *strangers)}
    rows = tuple(_row(name, registry.row(name), titles.get(name, ""), load) for name in registry.names())
    refused = [row.problem for row in rows if row.problem]
    lines = dict.fromkeys([*registry.problems(), *refused, *problems])
    data_only = tuple(sorted(known.keys() - {row.name for row in rows}))
    return Listing(rows, tuple(lines), data_only, load)


def _row(name: str, row: Row, title: str, load: bool) -> ChipRow:
    plain = ChipRow(name=name, title=title, origin=row.origin, version=row.version, abi=row.abi)
    if row.foreign and not load:
        return plain
    try:
        return _filled(plain, manifest(name))
    except AccelError as error:
        return ChipRow(name=name, title=title, origin=row.origin, version=row.version, problem=error.message)


def _filled(row: ChipRow, said: dict[str, Any]) -> ChipRow:
    return ChipRow(
        name=row.name,
        title=row.title or said["title"],
        origin=row.origin,
        version=row.version,
        abi=said["abi"],
        features=tuple(said["features"]),
        tier=said["tier"],
        proven=said["proven"],
    )


def manifest(name: str) -> dict[str, Any]:
    """What a chip says of itself; a third party's in a child process. AbiError where it is refused."""
    return _plain(registry.manifest(name))


def _plain(said: Manifest) -> dict[str, Any]:
    return {
        "title": said.title,
        "abi": said.abi,
        "features": [*(name for name in CONTRACTS if name in said.features), *sorted(said.features - CONTRACTS.keys())],
        "tier": said.tier,
        "proven": said.proven,
        "drivers": list(said.drivers),
        "control_plane": said.control_plane,
        "address_space": said.address_space,
        "p2p": said.p2p,
        "rollback": said.rollback,
        "toolchains": list(said.toolchains),
        "by_name_only": said.by_name_only,
    }


def detail(name: str) -> ChipDetail:
    """One chip. UsageError for a name that neither code nor a room has; AbiError where its code is refused."""
    room = next((one for one in rooms.all_rooms() if one.name == name), None)
    known = name in registry.names()
    if not known and (room is None or any(f"plug-in {name} " in line for line in registry.problems())):
        registry.row(name)  # raises: it says why the name is not used, and knows the nearest one
    shelved = tuple(row.version for row in store.versions(name).rows) if (shelf.root() / name).is_dir() else ()
    if not known:
        assert room is not None
        row = ChipRow(name=name, title=room.title, origin=room.origin, version="", proven=room.proven)
        return _with_room(ChipDetail(row=row, manifest=None, lacks=tuple(_lacks(())), versions=shelved), room)
    said, where = manifest(name), registry.row(name)
    title = room.title if room is not None else ""
    plain = ChipRow(name=name, title=title, origin=where.origin, version=where.version, abi=where.abi)
    lacks = tuple(_lacks(said["features"]))
    found = ChipDetail(row=_filled(plain, said), manifest=said, module=where.module, lacks=lacks, versions=shelved)
    return _with_room(found, room) if room is not None else found


def _lacks(features: Any) -> list[str]:
    return [f"{name}: {cost}" for name, cost in _COSTS.items() if name not in features]


def _with_room(found: ChipDetail, room: Room) -> ChipDetail:
    return ChipDetail(
        row=found.row,
        manifest=found.manifest,
        module=found.module,
        lacks=found.lacks,
        versions=found.versions,
        where=str(room.folder),
        ids=len(room.table("pci")),
        nodes=tuple(str(row.get("glob", "")) for row in room.table("node")),
        modules=tuple(str(row.get("name", "")) for row in room.table("module")),
        install={key: str(value) for key, value in room.install.items() if key != "source"},
    )
