"""Structures that the kernel reads and fills, without ctypes: named fields at known offsets of a bytearray.

A layout is a format of the struct module (always little endian, no implied padding: ``x`` is padding) and the fields'
names in C. In Python a name has ``_`` for ``.`` (C's ``in.bo_size`` is ``in_bo_size``), so that it can be a keyword.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from accelctl.hal import ioc

_TOKEN = re.compile(r"(\d*)([xsbBhHiIqQ])")


class Field(NamedTuple):
    """One field: where it lies, and how its bytes are read. ``items`` is 0 for a single number or a byte string."""

    name: str
    c_name: str
    offset: int
    items: int
    codec: struct.Struct

    @property
    def size(self) -> int:
        """Bytes."""
        return self.codec.size

    def get(self, buffer: bytes | bytearray) -> Any:
        """The value in ``buffer``: int, bytes (a ``char[]``, with its zeros), or a tuple of int (an array)."""
        values = self.codec.unpack_from(buffer, self.offset)
        return values if self.items else values[0]

    def put(self, buffer: bytearray, value: Any) -> None:
        """Write the value; raises ValueError for one that does not fit: nothing is cut off silently."""
        if isinstance(value, (bytes, bytearray)) and len(value) > self.size:
            raise ValueError(f"{self.name}: {len(value)} bytes, there is room for {self.size}")
        try:
            self.codec.pack_into(buffer, self.offset, *(value if self.items else (value,)))
        except (struct.error, TypeError) as error:
            raise ValueError(f"{self.name}: {value!r} does not fit: {error}") from error


class Struct:
    """The layout of one structure.

    ``views`` are further names for bytes that a field already covers (the other arms of a union): C name ->
    (format of one field, offset). ``sized`` is the field that carries the structure's own size, where there is one
    (iommufd's ``size``, VFIO's ``argsz``): :meth:`pack` fills it in.
    """

    __slots__ = ("_blank", "_numbers", "fields", "name", "size", "sized", "views")

    def __init__(
        self, name: str, layout: str, names: str, *, views: Mapping[str, tuple[str, int]] | None = None, sized: str = ""
    ) -> None:
        self.name = name
        found, self.size = _fields(layout, names.split())
        self.fields: dict[str, Field] = {field.name: field for field in found}
        self.views = {c_name: _field(c_name, code, offset) for c_name, (code, offset) in (views or {}).items()}
        self.views = {field.name: field for field in self.views.values()}
        self.sized = sized
        if len(self.fields) != len(found) or self.fields.keys() & self.views.keys():
            raise ValueError(f"{name}: two fields of one name")
        every = (self.fields | self.views).values()
        self._numbers = {f.name: (f.codec.pack_into, f.offset) for f in every if _is_number(f)}
        self._blank = bytearray(self.size)
        if sized:
            self.fields[sized].put(self._blank, self.size)

    def __repr__(self) -> str:
        return f"<{self.name}, {self.size} bytes>"

    def field(self, name: str) -> Field:
        """A field or view by its Python name; raises KeyError. Loops keep the result: it reads and writes fastest."""
        found = self.fields.get(name) or self.views.get(name)
        if found is None:
            raise KeyError(f"{self.name} has no field {name}")
        return found

    def offset_of(self, name: str) -> int:
        """Bytes from the start."""
        return self.field(name).offset

    def pack(self, **values: Any) -> bytearray:
        """A buffer with these values, everything else 0. Raises KeyError (no such field), ValueError (no room)."""
        buffer = self._blank[:]
        for name, value in values.items():
            number = self._numbers.get(name)
            if number is not None:  # most are: loops call this once per ioctl
                try:
                    number[0](buffer, number[1], value)
                    continue
                except struct.error:
                    pass  # said properly below
            self.field(name).put(buffer, value)
        return buffer

    def packer(self, *names: str) -> Callable[..., bytes]:
        """A faster :meth:`pack` for loops: takes the values of ``names`` by position, everything else is 0. Raises
        struct.error for a value that does not fit."""
        layout, end = self._part(names)
        return struct.Struct(f"<{layout}{self.size - end}x").pack

    def reader(self, *names: str) -> Callable[[bytes | bytearray], tuple[int, ...]]:
        """A faster :meth:`unpack` for loops: the values of these fields."""
        return struct.Struct("<" + self._part(names)[0]).unpack_from

    def _part(self, names: Sequence[str]) -> tuple[str, int]:
        """A format of these fields alone, and its end. ValueError: they are no numbers, or not in the order in which
        they lie."""
        layout, at = "", 0
        for field in map(self.field, names):
            if not _is_number(field) or field.offset < at:
                raise ValueError(f"{self.name}: {field.name} is no number, or out of order")
            layout += f"{field.offset - at}x{field.codec.format[-1]}"
            at = field.offset + field.size
        return layout, at

    def unpack(self, buffer: bytes | bytearray) -> dict[str, Any]:
        """All values by name, views included. Raises ValueError for a buffer that is shorter than the structure."""
        if len(buffer) < self.size:
            raise ValueError(f"{self.name}: {len(buffer)} bytes, its size is {self.size}")
        return {name: field.get(buffer) for name, field in (self.fields | self.views).items()}


class Ioctl(NamedTuple):
    """One call: its name in C, its number, and its argument (None: none, or a plain int)."""

    name: str
    number: int
    struct: Struct | None

    @property
    def layout(self) -> Struct:
        """The argument's layout; raises TypeError where the call has none."""
        if self.struct is None:
            raise TypeError(f"{self.name} takes no structure")
        return self.struct


def iowr(name: str, type_: str, command: int, struct_: Struct) -> Ioctl:
    """A call whose argument the kernel reads and fills."""
    return Ioctl(name, ioc.iowr(type_, command, struct_.size), struct_)


def iow(name: str, type_: str, command: int, struct_: Struct) -> Ioctl:
    """A call whose argument the kernel reads."""
    return Ioctl(name, ioc.iow(type_, command, struct_.size), struct_)


def ior(name: str, type_: str, command: int, struct_: Struct) -> Ioctl:
    """A call whose argument the kernel fills."""
    return Ioctl(name, ioc.ior(type_, command, struct_.size), struct_)


def io(name: str, type_: str, command: int, struct_: Struct | None = None) -> Ioctl:
    """A call whose number says no size: without an argument, or with one that carries its size inside."""
    return Ioctl(name, ioc.io(type_, command), struct_)


def plain(name: str, number: int, struct_: Struct | None = None) -> Ioctl:
    """A call whose number is no _IOC() at all (NVIDIA's UVM): the kernel copies the size that it has in mind."""
    return Ioctl(name, number, struct_)


def _field(c_name: str, token: str, offset: int) -> Field:
    count, code = _split(token)
    return Field(c_name.replace(".", "_"), c_name, offset, 0 if code == "s" else count, struct.Struct("<" + token))


def _fields(layout: str, names: list[str]) -> tuple[list[Field], int]:
    """One name per token that is not padding; a repeat count makes an array (of ``s``: a byte string)."""
    tokens, offset, found = [match.group() for match in _TOKEN.finditer(layout)], 0, []
    if "".join(tokens) != layout:
        raise ValueError(f"not a layout: {layout!r}")
    waiting = iter(names)
    for token in tokens:
        if token[-1] != "x":
            name = next(waiting, None)
            if name is None:
                raise ValueError(f"fewer names than fields in {layout!r}: {names}")
            found.append(_field(name, token, offset))
        offset += struct.calcsize("<" + token)
    if next(waiting, None) is not None:
        raise ValueError(f"more names than fields in {layout!r}: {names}")
    return found, offset


def _is_number(field: Field) -> bool:
    return not field.items and field.codec.format[-1] != "s"


def _split(token: str) -> tuple[int, str]:
    return int(token[:-1] or 0), token[-1]
