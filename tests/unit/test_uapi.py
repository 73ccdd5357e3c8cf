"""hal/uapi: every structure, number and constant against a C compiler and against an independent table."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.errors import AbiError
from accelctl.hal import ioc
from accelctl.hal.uapi import drm, gem_table, nvidia
from accelctl.hal.uapi._struct import Field, Ioctl, Struct, io, iow
from tests.helpers import ROOT

FOLDER = ROOT / "accelctl" / "hal" / "uapi"

HEADERS: dict[str, tuple[str, ...]] = {
    "drm": ("drm/drm.h", "drm/drm_mode.h"),
    "virtgpu": ("drm/virtgpu_drm.h",),
    "qxl": ("drm/qxl_drm.h",),
    "vgem": ("drm/vgem_drm.h",),
    "dma_heap": ("linux/dma-heap.h",),
    "udmabuf": ("linux/udmabuf.h",),
    "dma_buf": ("linux/dma-buf.h",),
    "iommufd": ("linux/iommufd.h",),
    "vfio": ("linux/vfio.h",),
    "amdgpu": ("drm/amdgpu_drm.h",),
    "kfd": ("drm/drm.h", "linux/kfd_ioctl.h"),
    "xe": ("drm/xe_drm.h",),
    "i915": ("drm/i915_drm.h",),
    "panfrost": ("drm/panfrost_drm.h",),
    "panthor": ("drm/panthor_drm.h",),
    "msm": ("drm/msm_drm.h",),
    "v3d": ("drm/v3d_drm.h",),
    "etnaviv": ("drm/etnaviv_drm.h",),
    "lima": ("drm/lima_drm.h",),
    "ivpu": ("drm/ivpu_accel.h",),
    "habanalabs": ("drm/habanalabs_accel.h",),
    "amdxdna": ("drm/amdxdna_accel.h",),
    "qaic": ("drm/qaic_accel.h",),
    "nouveau": ("drm/nouveau_drm.h",),
    "rocket": ("drm/rocket_accel.h",),
}
"""Module -> the kernel headers it follows. nvidia is elsewhere: its headers are not installed anywhere."""

LIBC = ("fcntl.h", "stddef.h", "stdint.h", "stdio.h")
TABLES = {"drm": "drm-core", "dma_heap": "dma-heap", "dma_buf": "dma-buf"}
SIGNED = {"int", "__s16", "__s32", "__s64", "NvS32", "NvS64"}

# Folders of further headers (a kernel's include/uapi); what is installed comes first. libdrm-dev has no folder drm/.
EXTRA = [folder for folder in os.environ.get("ACCELCTL_UAPI_HEADERS", "").split(os.pathsep) if folder]
SEARCHED = ["/usr/include", "/usr/include/libdrm", *sorted(map(str, Path("/usr/src").glob("*/include/uapi"))), *EXTRA]


class Facts(NamedTuple):
    """What a module defines."""

    ioctls: tuple[Ioctl, ...]
    structs: tuple[Struct, ...]
    constants: dict[str, int]


def load(name: str) -> ModuleType:
    return importlib.import_module(f"accelctl.hal.uapi.{name}")


@cache
def facts(name: str) -> Facts:
    values = vars(load(name))
    ioctls = tuple(value for value in values.values() if isinstance(value, Ioctl))
    found = [value for value in values.values() if isinstance(value, Struct)]
    found += [call.struct for call in ioctls if call.struct is not None]
    if name == "nvidia":
        found += [layout for layouts in nvidia.VERSIONED.values() for _, layout in layouts]
    constants = {key: value for key, value in values.items() if type(value) is int}
    return Facts(ioctls, tuple({id(layout): layout for layout in found}.values()), constants)


EVERY_STRUCT = [layout for name in [*HEADERS, "nvidia"] for layout in facts(name).structs]


def table(shared: Path, name: str) -> dict[str, Any]:
    file = shared / "uapi" / f"{TABLES.get(name, name)}.json"
    if not file.is_file():
        pytest.skip(f"no table {file}")
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


# ---- completeness: what is defined is compared


def test_every_module_is_compared() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "_struct", "gem_table"}
    assert modules == {*HEADERS, "nvidia"}


@pytest.mark.parametrize("name", [*HEADERS, "nvidia", "gem_table"])
def test_nothing_is_defined_that_is_not_compared(name: str) -> None:
    """As many structures and calls in the source as the comparisons below walk over; no hidden ones."""
    calls = [
        node.func.id
        for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    expected = facts(name) if name != "gem_table" else Facts((), (), {})
    assert calls.count("Struct") == len(expected.structs)
    made = sum(calls.count(maker) for maker in ("io", "ior", "iow", "iowr", "plain", "Ioctl"))
    dynamic = 6 if name == "nvidia" else 0  # inside calls(): compared release by release
    assert made == len(expected.ioctls) + dynamic


def test_the_call_that_takes_a_device_from_its_owner_is_nowhere() -> None:
    source = "".join(path.read_text() for path in FOLDER.glob("*.py"))
    assert "GET_DEVICE_FD" not in source
    numbers = [call.number for name in HEADERS for call in facts(name).ioctls]
    assert ioc.io(";", 100 + 6) not in numbers
    assert len(numbers) > 80


def test_rows_name_fields_that_exist() -> None:
    for row in gem_table.ROWS:
        create = row.create.layout
        for field in (row.size, row.handle, *row.create_also):
            assert create.field(field).size in (4, 8), row.driver
        located = row.locate.layout if row.locate else create
        assert located.field(row.offset).size in (4, 8), row.driver
        if row.locate:
            assert {located.field(field).size for field in ("handle", *row.locate_also)} == {4}, row.driver
        assert bool(row.address) is bool(row.address_in), row.driver
        if row.address:
            assert {"create": create, "locate": located}[row.address_in].field(row.address)
    narrow = {row.driver for row in gem_table.ROWS if row.size_bits == 32}
    assert narrow == {"panfrost", "v3d", "lima", "rocket"}  # the drivers with 32-bit sizes


# ---- against the table


@pytest.mark.parametrize("name", HEADERS)
def test_calls_equal_the_table(name: str, shared: Path) -> None:
    known = table(shared, name)["ioctls"]
    for call in facts(name).ioctls:
        entry = known[call.name]
        assert call.number == entry["value"] == int(entry["nr"], 16), call.name
        if call.struct is not None:
            assert call.struct.name == entry["struct"], call.name
            assert call.struct.size == entry["sizeof"], call.name
        else:
            assert entry["struct"] in (None, "__s32"), call.name


@pytest.mark.parametrize("name", HEADERS)
def test_constants_equal_the_table(name: str, shared: Path) -> None:
    known = table(shared, name)["constants"]
    constants = facts(name).constants
    assert {key: known.get(key) for key in constants} == constants


@pytest.mark.parametrize("name", HEADERS)
def test_structures_equal_the_table(name: str, shared: Path) -> None:
    known = table(shared, name)["structs"]
    for layout in facts(name).structs:
        compare_layout(layout, known[layout.name])


def compare_layout(layout: Struct, entry: dict[str, Any]) -> None:
    """Size; place, width and sign of each field; and that no field of the table is forgotten (but arms of unions)."""
    assert layout.size == entry["sizeof"], layout.name
    known = {field["name"]: field for field in entry["fields"]}
    ours = {field.c_name: field for field in (*layout.fields.values(), *layout.views.values())}
    for name, field in ours.items():
        assert (field.offset, field.size) == (known[name]["offset"], known[name]["size"]), f"{layout.name} {name}"
        assert is_signed(field) in (None, known[name]["type"] in SIGNED), f"{layout.name} {name}"
    for name, field in known.items():
        if not any(field.get(kind) for kind in ("union", "aggregate", "flexible")) and name not in ours:
            assert covered(layout, field["offset"], field["size"]), f"{layout.name} lacks {name}"


def is_signed(field: Field) -> bool | None:
    code = field.codec.format[-1]
    return None if code == "s" else code.islower()


def covered(layout: Struct, offset: int, size: int) -> bool:
    return any(f.offset <= offset and offset + size <= f.offset + f.size for f in layout.fields.values())


def test_structures_that_carry_their_size_do_so() -> None:
    for name, field in (("iommufd", "size"), ("vfio", "argsz")):
        for layout in facts(name).structs:
            if next(iter(layout.fields)) == field:
                assert layout.field(field).get(layout.pack()) == layout.size, layout.name
        assert any(layout.sized for layout in facts(name).structs)


# ---- against the compiler


def is_flat(folder: str) -> bool:
    """libdrm-dev puts drm/*.h straight into its folder."""
    return (Path(folder) / "drm.h").is_file()


@cache
def installed(header: str) -> bool:
    flat = Path(header).name if header.startswith("drm/") else header
    return any((Path(folder) / (flat if is_flat(folder) else header)).is_file() for folder in SEARCHED)


def include_options(folder: Path) -> list[str]:
    """Where gcc looks behind /usr/include; flat folders through a link named drm."""
    options = []
    for place, path in enumerate(SEARCHED[1:]):
        alias = folder / f"alias{place}"
        if is_flat(path):
            alias.mkdir()
            (alias / "drm").symlink_to(path)
        options += ["-idirafter", str(alias) if is_flat(path) else path]
    return options


def checks(name: str) -> Iterator[tuple[str, str]]:
    """(what, C expression) for everything a module says."""
    for key in facts(name).constants:
        yield f"constant {key}", key
    for call in facts(name).ioctls:
        yield f"number {call.name}", call.name
    for layout in facts(name).structs:
        yield f"sizeof {layout.name}", f"sizeof({layout.name})"
        for field in (*layout.fields.values(), *layout.views.values()):
            yield f"offset {layout.name} {field.c_name}", f"offsetof({layout.name}, {field.c_name})"
            member = f"(({layout.name} *)0)->{field.c_name}"
            yield f"width {layout.name} {field.c_name}", f"sizeof({member})"
            if not field.items and is_signed(field) is not None:
                yield f"signed {layout.name} {field.c_name}", f"((__typeof__({member}))-1 < 0)"


def ours(name: str) -> dict[str, int]:
    """The same, as this package has it."""
    said = {f"constant {key}": value for key, value in facts(name).constants.items()}
    said |= {f"number {call.name}": call.number for call in facts(name).ioctls}
    for layout in facts(name).structs:
        said[f"sizeof {layout.name}"] = layout.size
        for field in (*layout.fields.values(), *layout.views.values()):
            said[f"offset {layout.name} {field.c_name}"] = field.offset
            said[f"width {layout.name} {field.c_name}"] = field.size
            if not field.items and is_signed(field) is not None:
                said[f"signed {layout.name} {field.c_name}"] = int(field.codec.format[-1].islower())
    return said


def compiled(name: str, folder: Path) -> dict[str, int]:
    """What the compiler says; what the headers do not have (each check is a line of its own) is absent."""
    wanted = list(checks(name))
    source, program = folder / "check.c", folder / "check"
    options = include_options(folder)
    for _ in range(3):
        lines = [f"#include <{header}>" for header in (*LIBC, *HEADERS[name])]
        lines += ["int main(void) {"]
        first = len(lines) + 1
        lines += [f'printf("%llu %s\\n", (unsigned long long)({code}), "{what}");' for what, code in wanted]
        source.write_text("\n".join([*lines, "return 0; }", ""]))
        command = ["gcc", "-w", "-fmax-errors=0", "-D__user=", *options, "-o", str(program), str(source)]
        made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if made.returncode == 0:
            answer = subprocess.run([str(program)], capture_output=True, text=True, timeout=20, check=True).stdout
            return {what: int(value) for value, _, what in (line.partition(" ") for line in answer.splitlines())}
        wrong = {int(number) - first for number in re.findall(r"check\.c:(\d+):\d+: error", made.stderr)}
        assert wrong, made.stderr[:2000]
        assert min(wrong) >= 0, made.stderr[:2000]
        wanted = [check for place, check in enumerate(wanted) if place not in wrong]
    raise AssertionError(f"{name}: still wrong after three attempts: {made.stderr[:2000]}")


def same_call(ours_: int, theirs: int) -> bool:
    """Equal but for the size, which may have grown."""
    return ioc.decode(ours_)._replace(size=0) == ioc.decode(theirs)._replace(size=0)


@pytest.mark.parametrize("name", HEADERS)
def test_the_compiler_agrees(name: str, tmp_path: Path) -> None:
    """Against the installed headers. They may be older or newer: then what both have must agree, and the test ends as
    a skip that names the rest."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    missing = [header for header in HEADERS[name] if not installed(header)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (linux-libc-dev, libdrm-dev, or ACCELCTL_UAPI_HEADERS)")
    theirs = compiled(name, tmp_path)
    said = ours(name)
    grown = {layout.name for layout in facts(name).structs if theirs.get(f"sizeof {layout.name}") != layout.size}
    calls = {f"number {call.name}" for call in facts(name).ioctls if call.struct and call.struct.name in grown}
    excused = {f"sizeof {layout}" for layout in grown} | calls
    wrong = {what: (said[what], value) for what, value in theirs.items() if said[what] != value & 0xFFFFFFFF}
    assert {what: pair for what, pair in wrong.items() if what not in excused} == {}
    assert all(same_call(*pair) for what, pair in wrong.items() if what in calls)
    assert theirs, "nothing was compared"
    absent = {what.partition(" ")[2] for what in said if what not in theirs}
    whole = {layout.name for layout in facts(name).structs if layout.name in absent}
    rest = sorted(what for what in absent | grown if not any(what.startswith(f"{layout} ") for layout in whole))
    if rest:
        pytest.skip(f"{len(theirs)} facts agree; the installed header lacks, or has in another size: {', '.join(rest)}")


# ---- the layouts themselves


def values_of(field: Field) -> st.SearchStrategy[Any]:
    code = field.codec.format[-1]
    if code == "s":
        return st.binary(max_size=min(field.size, 40)).map(lambda data: data.ljust(field.size, b"\0"))
    bits = struct.calcsize("<" + code) * 8
    number = st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if code.islower() else st.integers(0, (1 << bits) - 1)
    return st.lists(number, min_size=field.items, max_size=field.items).map(tuple) if field.items else number


@given(st.data())
def test_what_is_packed_comes_back(data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(EVERY_STRUCT))
    chosen = data.draw(st.lists(st.sampled_from(sorted(layout.fields)), unique=True))
    values = {name: data.draw(values_of(layout.field(name)), label=name) for name in chosen}
    buffer = layout.pack(**values)
    assert len(buffer) == layout.size
    back = layout.unpack(bytes(buffer) + b"\xff")
    assert {name: back[name] for name in chosen} == values
    rest = [name for name in layout.fields if name not in chosen and name != layout.sized]
    assert all(not any(back[n]) if isinstance(back[n], (bytes, tuple)) else back[n] == 0 for n in rest)
    touched = {i for f in map(layout.field, chosen) for i in range(f.offset, f.offset + f.size)}
    sized = layout.field(layout.sized) if layout.sized else None
    touched |= set(range(sized.offset, sized.offset + sized.size)) if sized else set()
    assert all(byte == 0 for place, byte in enumerate(buffer) if place not in touched)  # padding stays 0


@pytest.mark.parametrize("layout", EVERY_STRUCT, ids=lambda layout: layout.name.replace(" ", "-"))
def test_fields_do_not_overlap_and_views_stay_inside(layout: Struct) -> None:
    end = 0
    for field in layout.fields.values():
        assert field.offset >= end
        end = field.offset + field.size
    assert end <= layout.size < 1 << 14
    assert all(view.offset + view.size <= layout.size for view in layout.views.values())


TOY = Struct("struct toy", "I4xQ2H4s4x", "in.size big two text", views={"out.handle": ("H", 0)}, sized="big")


def test_a_layout_by_hand() -> None:
    assert (TOY.size, TOY.offset_of("big"), TOY.offset_of("two"), TOY.offset_of("text")) == (28, 8, 16, 20)
    buffer = TOY.pack(in_size=0x01020304, two=(5, 6), text=b"ab")
    assert buffer == bytes.fromhex("04030201 00000000 1c00000000000000 0500 0600 61620000 00000000")
    assert TOY.unpack(buffer) == {"in_size": 0x01020304, "big": 28, "two": (5, 6), "text": b"ab\0\0", "out_handle": 772}
    TOY.field("out_handle").put(buffer, 9)
    assert TOY.field("in_size").get(buffer) == 0x01020009


@pytest.mark.parametrize(
    ("values", "kind", "says"),
    [
        ({"nothing": 1}, KeyError, "struct toy has no field nothing"),
        ({"in_size": 1 << 32}, ValueError, "in_size: 4294967296 does not fit"),
        ({"in_size": -1}, ValueError, "in_size: -1 does not fit"),
        ({"in_size": "x"}, ValueError, "in_size"),
        ({"two": (1,)}, ValueError, "two"),
        ({"two": 1}, ValueError, "two"),
        ({"text": b"abcde"}, ValueError, "text: 5 bytes, there is room for 4"),
    ],
)
def test_values_that_do_not_fit(values: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=re.escape(says)):
        TOY.pack(**values)


def test_layouts_that_are_none() -> None:
    for layout, names in (("II", "one"), ("I", "one two"), ("I?", "one"), ("II", "a.b a_b")):
        with pytest.raises(ValueError, match=r"names|not a layout|of one name"):
            Struct("struct broken", layout, names)
    with pytest.raises(ValueError, match="3 bytes, its size is 28"):
        TOY.unpack(b"abc")


def test_calls() -> None:
    assert iow("X", "d", 9, TOY).number == 0x401C6409
    assert iow("X", "d", 9, TOY).layout is TOY
    with pytest.raises(TypeError, match="Y takes no structure"):
        _ = io("Y", "d", 1).layout


def test_a_release_that_is_none() -> None:
    for text in ("", "550.", "abc", "550.40.07; rm", "1" * 99):
        with pytest.raises(AbiError, match="not a release"):
            nvidia.parse_release(text)


def test_the_fast_forms_are_the_plain_ones() -> None:
    layout = drm.MODE_CREATE_DUMB.layout
    make, read = layout.packer("height", "bpp", "size"), layout.reader("width", "handle", "size")
    buffer = bytearray(make(3, 32, 1 << 40))
    assert buffer == layout.pack(height=3, bpp=32, size=1 << 40)
    layout.field("width").put(buffer, 7)
    assert read(buffer) == (7, 0, 1 << 40)
    for names in (("size", "height"), ("height", "height")):
        with pytest.raises(ValueError, match="out of order"):
            layout.packer(*names)
    with pytest.raises(struct.error):
        make(1 << 32, 0, 0)
