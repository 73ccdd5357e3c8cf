"""Chip rooms: what is known of a chip family without importing a line of its code.

``probe`` must stay fast and must not be hurt by a broken plug-in, so a chip's identity is data: ``chip.toml``, in
``backends/<chip>/`` for those in the tree, and among the files of a third party's distribution that has an entry point
in the group ``accelctl.backends``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from accelctl.abi import shelf
from accelctl.abi.dists import Dist
from accelctl.abi.trust import require_trusted
from accelctl.errors import AccelError, UsageError
from accelctl.model.toml import loads

SCHEMA = "accelctl.chip/1"
BACKENDS = Path(__file__).resolve().parent.parent / "backends"
_TABLES = ("pci", "module", "node", "library", "version", "platform", "attr", "sysclass", "proc")

Row = dict[str, Any]


@dataclass(frozen=True)
class Room:
    """One chip family. Rows are the tables of chip.toml as read (schema: backends/README.md); ``origin`` is "in-tree"
    or a distribution.
    """

    name: str
    title: str
    vendor: str
    kind: str
    proven: str
    folder: Path
    origin: str
    rows: dict[str, list[Row]]
    visible_env: tuple[str, ...]
    install: Row

    def table(self, name: str) -> list[Row]:
        """The rows of one table."""
        return self.rows.get(name, [])


READ_AHEAD = BACKENDS.parent / "data" / "rooms.json"


@lru_cache(maxsize=1)
def _read_ahead() -> dict[str, Any]:
    """The in-tree rooms as JSON (`make generate`), because TOML takes 70 ms for them and JSON two.

    An entry counts only while the checksum of its chip.toml is the same: a stale or missing file costs time, not truth.
    """
    try:
        rooms: dict[str, Any] = json.loads(READ_AHEAD.read_bytes())
    except (OSError, ValueError):
        return {}
    return rooms


def checksum(text: str) -> int:
    """What ties an entry to the text it was made from."""
    return zlib.crc32(text.encode())


def parse_room(text: str, folder: Path, origin: str) -> Room:
    """Parse one chip.toml; UsageError with one line when it is not one."""
    try:
        known = _read_ahead().get(folder.name) if folder.parent == BACKENDS else None
        document = known["document"] if known and known["checksum"] == checksum(text) else loads(text)
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema is {document['schema']!r}, not {SCHEMA!r}")
        rows = {table: document.get(table, []) for table in _TABLES}
        if not all(isinstance(row, dict) for table in rows.values() for row in table):
            raise ValueError("every table must be an array of tables")
        if origin != "in-tree":
            from accelctl.abi.roomcheck import check

            check(document)
        words = {key: str(document[key]) for key in ("name", "title", "vendor", "kind", "proven")}
        return Room(
            **words,
            folder=folder,
            origin=origin,
            rows=rows,
            visible_env=tuple(document.get("visible_env", ())),
            install=dict(document.get("install", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UsageError(f"{folder.name}/chip.toml ({origin}): {type(error).__name__}: {reason}") from None


@lru_cache(maxsize=4)
def in_tree(base: Path = BACKENDS) -> tuple[Room, ...]:
    """Every folder of ``backends/`` that holds a chip.toml is a room; adding a chip is adding a folder."""
    found = []
    for folder in sorted(base.iterdir()):
        try:
            text = (folder / "chip.toml").read_text(encoding="utf-8")
        except OSError:
            continue  # a folder without chip.toml is not a room (__pycache__, README.md)
        found.append(parse_room(text, folder, "in-tree"))
    return tuple(found)


def third_party() -> tuple[tuple[Room, ...], tuple[str, ...]]:
    """Rooms of installed distributions, found by metadata alone, and one line for each that could not be used."""
    rooms: list[Room] = []
    problems: list[str] = []
    for dist in shelf.in_use().dists:
        for name, value in dist.entries:
            try:
                path = _chip_file(dist, value)
                rooms.append(parse_room(path.read_text(encoding="utf-8"), path.parent, dist.name))
            except AccelError as error:
                problems.append(f"plug-in {name}: {error.message}")
            except (OSError, UnicodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
                problems.append(f"plug-in {name}: its chip.toml cannot be read ({reason})")
    return tuple(rooms), tuple(problems)


def _chip_file(dist: Dist, value: str) -> Path:
    package = value.partition(":")[0].strip().split(".")[0]
    path = Path(dist.base or ".") / package / "chip.toml"
    if not path.is_file():
        raise UsageError(f"its distribution ships no {package}/chip.toml")
    require_trusted(path.resolve())
    return path


def all_rooms() -> tuple[Room, ...]:
    """In-tree rooms first; a third party's name never shadows one of them."""
    own = in_tree()
    names = {room.name for room in own}
    return own + tuple(room for room in third_party()[0] if room.name not in names)


def _fits(row: Row, ids: dict[str, str | None]) -> int:
    """How exactly a [[pci]] row names a function: 0 not at all, more is more exact."""
    score = 0
    for key, weight in (("vendor", 1), ("device", 8), ("subsystem_device", 4)):
        wanted = row.get(key)
        if wanted is not None:
            if ids.get(key) != wanted.lower():
                return 0
            score += weight
    prefix = row.get("class")
    if prefix is not None:
        if not (ids.get("class") or "").startswith(prefix.lower()):
            return 0
        score += 2
    return score


class Directory:
    """Rooms indexed for lookup by PCI ids and by driver."""

    def __init__(self, rooms: Iterable[Room]) -> None:
        self.rooms = tuple(rooms)
        self._by_vendor: dict[str, list[tuple[Room, Row]]] = {}
        self._by_driver: dict[str, Room] = {}
        self.by_name = {room.name: room for room in self.rooms}
        for room in self.rooms:
            for row in room.table("pci"):
                self._by_vendor.setdefault(str(row.get("vendor", "")).lower(), []).append((room, row))
            for key, table in (("name", "module"), ("driver", "platform")):
                for row in room.table(table):
                    if row.get("role") != "helper" and key in row:
                        self._by_driver.setdefault(row[key], room)

    def pci(
        self, vendor: str | None, device: str | None, class_: str | None, subsystem: str | None = None
    ) -> tuple[Room, Row] | None:
        """The room and row that name a PCI function most exactly."""
        ids = {"vendor": vendor, "device": device, "class": class_, "subsystem_device": subsystem}
        best: tuple[int, tuple[Room, Row]] | None = None
        for room, row in self._by_vendor.get(vendor or "", ()):
            score = _fits(row, ids)
            if score and (best is None or score > best[0]):
                best = (score, (room, row))
        return best[1] if best else None

    @property
    def vendors(self) -> Iterable[str]:
        """PCI vendor ids that any room names."""
        return self._by_vendor.keys()

    def driver(self, name: str | None) -> Room | None:
        """The room whose kernel driver has this name."""
        return self._by_driver.get(name or "")

    def nodes(self) -> Iterator[tuple[Room, Row]]:
        """Every [[node]] row of every room."""
        for room in self.rooms:
            for row in room.table("node"):
                yield room, row
