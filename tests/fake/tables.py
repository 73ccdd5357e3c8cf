"""The tables of ../shared/uapi: calls by number, fields by offset. Nothing here knows how the product lays out a thing,
and never may (tests/unit/test_fake.py reads the imports): a layout that is wrong there must meet one that is not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
_SIGNED = {"int", "__s8", "__s16", "__s32", "__s64", "NvS32", "NvS64"}


def uapi_folder() -> Path:
    """The folder of tables, found as every test finds what lies beside the checkout; a loud skip where there is
    none."""
    named = os.environ.get("ACCELCTL_SHARED")
    folder = (Path(named) if named else ROOT.parent / "shared") / "uapi"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} (set ACCELCTL_SHARED to the folder that holds uapi/)")
    return folder


class Field(NamedTuple):
    """Where a field lies. Numbers are little endian."""

    name: str
    offset: int
    size: int
    signed: bool


class Layout:
    """One structure: its size, its fields by the names of the tables (members of members with dots)."""

    def __init__(self, name: str, size: int, fields: list[Field]) -> None:
        self.name, self.size = name, size
        self.fields = {field.name: field for field in fields}

    def get(self, buffer: bytes | bytearray, name: str, base: int = 0) -> int:
        """A number."""
        field = self.fields[name]
        start = base + field.offset
        return int.from_bytes(buffer[start : start + field.size], "little", signed=field.signed)

    def put(self, buffer: bytearray, name: str, value: int, base: int = 0) -> None:
        """Write a number, cut off at the field's width as C does."""
        field = self.fields[name]
        start = base + field.offset
        data = (value & ((1 << 8 * field.size) - 1)).to_bytes(field.size, "little")
        buffer[start : start + field.size] = data

    def pack(self, **values: int) -> bytearray:
        """The structure with these numbers, ``__`` for the dots of a name, all else 0."""
        buffer = bytearray(self.size)
        for name, value in values.items():
            self.put(buffer, name.replace("__", "."), value)
        return buffer

    def junk(self, **values: int) -> bytearray:
        """As :meth:`pack`, with a number of its own in every other field: a caller that reads the wrong one notices."""
        buffer = bytearray((0x40 + place * 7) & 0x7F | 1 for place in range(self.size))
        for name, value in values.items():
            self.put(buffer, name.replace("__", "."), value)
        return buffer

    def at(self, offset: int) -> str:
        """Names of what covers a byte, for messages."""
        names = [f.name for f in self.fields.values() if f.offset <= offset < f.offset + f.size]
        return "/".join(names) or "padding"


class Call(NamedTuple):
    """One ioctl. ``numbers`` are those that kernels have had for it; ``number`` is the newest."""

    name: str
    number: int
    numbers: frozenset[int]
    layout: Layout
    permissions: tuple[str, ...]

    @property
    def cmd(self) -> int:
        """The part that DRM, KFD and dma-heap choose the handler by."""
        return self.number & 0xFF


class Table:
    """One driver's file."""

    def __init__(self, driver: str) -> None:
        file = uapi_folder() / f"{driver}.json"
        if not file.is_file():
            pytest.skip(f"no table {file}")
        self.driver = driver
        self.raw: dict[str, Any] = json.loads(file.read_text())
        self.constants: dict[str, int] = self.raw["constants"]
        self.roles: dict[str, Any] = self.raw["roles"]
        self._layouts: dict[str, Layout] = {}

    def layout(self, name: str) -> Layout:
        """A structure by its C type; a plain number where the argument is one."""
        if name not in self._layouts:
            self._layouts[name] = self._make(name)
        return self._layouts[name]

    def _make(self, name: str) -> Layout:
        found = self.raw["structs"].get(name) or self.raw["structs"].get(f"struct {name}")
        if found is None:
            size = {"__u32": 4, "__u64": 8, "int": 4}.get(name, 0)
            return Layout(name, size, [Field("value", 0, size, name in _SIGNED)] if size else [])
        fields = [Field(f["name"], f["offset"], f["size"], f["type"] in _SIGNED) for f in found["fields"]]
        return Layout(name, found["sizeof"], fields)

    def calls(self) -> Iterator[Call]:
        """All ioctls that carry a number of their own."""
        for name, entry in self.raw["ioctls"].items():
            known = [entry["nr"], *(value for value in entry.get("kernels", {}).values() if value)]
            yield Call(
                name,
                int(entry["nr"], 16),
                frozenset(int(value, 16) for value in known),
                self.layout(entry.get("struct") or ""),
                tuple(entry.get("permissions") or ()),
            )

    def constant(self, name: str) -> int:
        """A macro or enumerator."""
        return int(self.constants[name])

    def mask(self, *names: str) -> int:
        """Several flags at once; what a kernel of the tables does not have is left out."""
        return sum({self.constants[name] for name in names if name in self.constants})


@cache
def table(driver: str) -> Table:
    """The table of a driver (the name of its file), read once. Skips the test where it is missing."""
    return Table(driver)
