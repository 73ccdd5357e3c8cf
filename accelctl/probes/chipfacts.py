"""Facts that only one driver offers, read as its room's ``[[attr]]`` and ``[[proc]]`` rows say.

A folder is listed once; what a row names and the driver does not have costs no system call and becomes "not offered".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from accelctl.abi.rooms import Room, Row
from accelctl.model.convert import CONVERTERS, whole
from accelctl.model.device import Device
from accelctl.model.reading import STABLE, Absence, Reading, absent
from accelctl.probes.context import Scan

_MAX_MATCHES = 4096
_VERSION_FILE = 4096  # bytes: a stranger's pattern is matched against it


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> re.Pattern[str]:
    """``*`` is the only wild card and is captured, so that keys can repeat what it stood for."""
    return re.compile("(.*)".join(map(re.escape, pattern.split("*"))) + r"\Z", re.DOTALL)


def allow(scan: Scan, rooms: list[Room]) -> None:
    """Put a room's files on the list of what may be opened; NEVER still wins."""
    for room in rooms:
        for row in room.table("attr"):
            scan.root.allow.add(row["path"], row.get("effect", "free"))
        for row in room.table("proc"):
            scan.root.allow.add(row["path"].replace("{bdf}", "*").replace("{index}", "*"), row.get("effect", "free"))
        for row in room.table("version"):
            scan.root.allow.add(row["file"], "free")


def describe_rooms(scan: Scan, rooms: list[Room]) -> None:
    """Machine facts: what the rooms' rows name outside any device's folder."""
    for room in rooms:
        for row in room.table("proc"):
            if "{" not in row["path"] and scan.root.exists(row["path"]):
                _read(scan, scan.machine, row, row["path"], row["key"])
        for row in room.table("version"):
            _version(scan, room, row)


def _version(scan: Scan, room: Room, row: Row) -> None:
    text = scan.root.text(row["file"], limit=_VERSION_FILE)
    match = re.search(row["pattern"], text or "", re.MULTILINE)
    if match is not None and match.groups():
        slug = re.sub(r"[^a-z0-9]+", "_", row["what"].lower()).strip("_")
        scan.machine[f"driver/{room.name}/{slug}_version"] = Reading(match.group(1), row["file"], match.group(0))


def describe(scan: Scan, device: Device) -> None:
    """Add what the device's room knows how to read."""
    room = scan.rooms.by_name.get(device.chip or "")
    if room is None:
        return
    names: dict[str, list[str]] = {}
    driver = device.value("driver")
    here = set(names.setdefault(device.path, scan.root.listdir(device.path)))
    missing = Absence(scan.root.why_missing, "ENOENT")
    for row in room.table("attr"):
        if "driver" in row and driver is not None and row["driver"] != driver:
            continue
        path, key = row["path"], row["key"]
        wild = "*" in path
        if path in here and not wild:  # most: a file of the folder itself
            _read(scan, device.facts, row, f"{device.path}/{path}", key)
            continue
        matches = _expand(scan, device.path, path, names) if wild or "/" in path else []
        for found, stars in matches:
            _read(scan, device.facts, row, found, _key(key, stars))
        if not matches and key not in device.facts and not wild:
            device.facts[key] = Reading(
                None, f"{device.path}/{path}", None, row.get("unit"), missing, row.get("scope", STABLE)
            )
    for row in room.table("proc"):
        if "{" not in row["path"]:
            continue
        path = row["path"].replace("{bdf}", device.id).replace("{index}", _index(device))
        if scan.root.exists(path):
            _read(scan, device.facts, row, path, row["key"])


def _index(device: Device) -> str:
    """The number of the device's entry in its class folder (class/tenstorrent/tenstorrent!3 -> 3)."""
    entries = [key.split("/")[2] for key in device.under("class")]
    return re.sub(r"^.*?(\d*)$", r"\1", entries[0]) if entries else ""


def _expand(scan: Scan, base: str, pattern: str, names: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """Files below ``base`` that fit the glob, with what each ``*`` stood for."""
    found: list[tuple[str, list[str]]] = [(base, [])]
    for part in pattern.split("/"):
        following: list[tuple[str, list[str]]] = []
        for folder, stars in found:
            if folder not in names:
                names[folder] = scan.root.listdir(folder)
            if "*" not in part:
                if part in names[folder]:
                    following.append((f"{folder}/{part}", stars))
                continue
            for name in names[folder]:
                if match := _matcher(part).match(name):
                    following.append((f"{folder}/{name}", [*stars, *match.groups()]))
        found = following[:_MAX_MATCHES]
    return found


def _key(template: str, stars: list[str]) -> str:
    """The key's stars take the last stars of the path: a card's number is no part of a key."""
    wanted = template.count("*")
    for star in stars[len(stars) - wanted :] if wanted else ():
        template = template.replace("*", star, 1)
    return template


def _read(scan: Scan, facts: dict[str, Reading], row: Row, path: str, key: str) -> None:
    conv, scope, unit = row.get("conv", "text"), row.get("scope", STABLE), row.get("unit")
    if conv == "gpu_metrics":
        facts.update({f"{key}/{name}": reading for name, reading in _gpu_metrics(scan, path, scope).items()})
        return
    reading = scan.root.read(path, conv, unit=unit, scope=scope)
    if conv == "kv" and isinstance(reading.value, dict):
        facts.update(_lines(reading, row, key))
    else:
        facts[key] = reading


#: How a field of a "kv" file is converted; hex_int is a number in hexadecimal without 0x.
_FIELD_CONV = {
    "int": CONVERTERS["int"],
    "hex_int": lambda text: whole(text, 16),
    "text": CONVERTERS["text"],
    "bool": CONVERTERS["bool"],
}


def _lines(reading: Reading, row: Row, key: str) -> dict[str, Reading]:
    """Facts of a file of "name: value" lines: the fields a row names get their key, unit and conversion, the others a
    key of their name.
    """
    fields = {field["name"]: field for field in row.get("fields", ())}
    facts = {}
    for name, text in reading.value.items():
        field = fields.get(name, {})
        slug = field.get("key") or re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        one = reading._replace(raw=f"{name}: {text}", unit=field.get("unit"), scope=field.get("scope", reading.scope))
        facts[f"{key}/{slug}"] = _field(one, _FIELD_CONV[field.get("conv", "text")], text)
    return facts


def _field(reading: Reading, convert: Callable[[str], Any], text: str) -> Reading:
    try:
        value = convert(text)
    except ValueError as error:
        return reading._replace(value=None, absence=Absence("malformed", None, None, str(error)[:120]))
    return reading._replace(value=value, absence=Absence("empty") if value is None else None)


def _gpu_metrics(scan: Scan, path: str, scope: str) -> dict[str, Reading]:
    """Header of amdgpu's gpu_metrics: u16 structure_size, u8 format_revision, u8 content_revision
    (kgd_pp_interface.h).
    """
    data = scan.root.data(path, 4096)
    if data is None:
        return {"structure_size": scan.root.read(path, scope=scope)}
    if len(data) < 4:
        return {"structure_size": absent(path, "malformed", raw=data.hex(), scope=scope)}
    values = {
        "structure_size": int.from_bytes(data[:2], "little"),
        "format_revision": data[2],
        "content_revision": data[3],
    }
    return {name: Reading(value, path, data[:4].hex(), None, None, scope) for name, value in values.items()}
