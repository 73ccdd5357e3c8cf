"""The table of chips in the tree, held against the rooms that are there: each passes the handshake and agrees with its
chip.toml."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from accelctl.abi.registry import IN_TREE, Chips
from accelctl.abi.rooms import BACKENDS, in_tree
from tests.helpers import environment

ROOMS = {room.name: room for room in in_tree()}
WITHOUT_DATA = {"dma_heap", "udmabuf", "prime", "vfio", "iommufd", "sim", "opencl", "torch"}
"""Kernel interfaces, the simulator, libraries: no device that probe could name by an id."""

SECOND_NAMES = {"bochs": {"bochs-drm"}, "amdgpu": {"kfd"}}
"""Names that a driver answers with, and no module's: bochs.ko registers as bochs-drm, kfd is part of amdgpu.ko."""


def defines_load_backend(module: str) -> bool:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return False
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == "load_backend" for node in tree.body)


THERE = [name for name, row in IN_TREE.items() if defines_load_backend(row.module)]


def test_every_chip_of_the_table_is_there() -> None:
    assert [name for name in IN_TREE if name not in THERE] == []


def test_every_room_with_code_stands_in_the_table() -> None:
    folders = {path.parent.name for path in BACKENDS.glob("*/__init__.py") if "def load_backend" in path.read_text()}
    assert folders == {IN_TREE[name].module.rpartition(".")[2] for name in THERE}


@pytest.mark.parametrize("name", THERE)
def test_a_chip_passes_the_handshake_and_agrees_with_its_room(name: str) -> None:
    chip = Chips().load(name)
    manifest = chip.manifest
    assert (manifest.name, chip.origin, manifest.implied) == (name, "in-tree", True)
    assert chip.memory is not None
    assert manifest.by_name_only == (name == "habanalabs")
    assert (manifest.tier == "simulated") == (name == "sim")
    if name in WITHOUT_DATA:
        return
    room = ROOMS[name]
    known = {str(row["name"]) for row in room.table("module")}
    known |= {str(row["driver"]) for row in room.table("platform") if "driver" in row}
    known |= SECOND_NAMES.get(name, set())
    assert manifest.drivers
    assert set(manifest.drivers) <= known, f"{name}: drivers that chip.toml does not have"
    if manifest.tier == "proven":  # chip.toml may say less: it is about what probe reads
        assert manifest.proven.startswith("kernel guest")


@pytest.mark.parametrize("name", THERE)
def test_a_chip_brings_in_no_other_chip_and_nothing_heavy(name: str) -> None:
    code = f"import sys\nfrom accelctl.abi import registry\nregistry.load({name!r})\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), text=True, capture_output=True, check=True)
    loaded = done.stdout.split()
    room = IN_TREE[name].module
    assert [m for m in loaded if m.startswith("accelctl.backends.") and not f"{m}.".startswith(f"{room}.")] == []
    heavy = {"numpy", "ctypes", "_ctypes", "asyncio", "typer", "rich", "grpc", "textual", "importlib.metadata"}
    assert heavy & set(loaded) == set()
