"""Damaged and hostile machines: whatever a tree holds, probe ends with a report that can be shown, in bounded time.

More than 2,000 mutated trees a run; the examples are the same in every run. To search for new ones, with other
examples each time: ``ACCELCTL_FUZZ=20000 pytest tests/unit/test_fuzz_trees.py`` (so many per property and seed).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelctl.abi.rooms import in_tree
from accelctl.hal.root import SysRoot, open_root
from accelctl.hal.tree import DirTree, MemoryTree
from accelctl.probes.scan import probe
from tests import mutate, seeds
from tests.conftest import ROOT, shared_folder
from tests.examine import examine
from tests.helpers import run_cli
from tests.mutate import Link, Machine, Mutation
from tests.synthetic import make_machine

SEARCH = os.environ.get("ACCELCTL_FUZZ", "")
"""Read before the fixtures clean the environment."""

PER_FAMILY, PER_ROOM, PER_SIZE, PER_CAPTURE, ON_DISK, AS_PROGRAM = 170, 6, 80, 8, 100, 16


def examples(count: int) -> settings:
    """Settings of one property: repeatable unless somebody is searching."""
    return settings(
        max_examples=int(SEARCH) if SEARCH else count,
        derandomize=not SEARCH,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


mutations = st.lists(
    st.tuples(st.integers(0, 999), st.integers(0, 65535), st.integers(0, 65535)), min_size=1, max_size=8
)


@lru_cache(maxsize=100)
def machine(name: str) -> Machine:
    """A seed as flat data: of a family, of a room ("room:NAME"), of a synthetic size ("synthetic:N")."""
    kind, _, rest = name.partition(":")
    if kind == "room":
        root = seeds.every_room()[rest]()
    elif kind == "synthetic":
        root = synthetic(int(rest))
    elif kind == "captured":
        root = open_root(str(shared_folder() / "machines" / f"{rest}.tar.xz"))
    else:
        root = seeds.FAMILIES[name]()
    return mutate.record(root, lambda one: probe(one, in_tree()))


def synthetic(devices: int) -> SysRoot:
    """The machine of the speed measurements, taken into memory."""
    import tempfile

    tree = MemoryTree("synthetic")
    with tempfile.TemporaryDirectory() as folder:
        base = make_machine(Path(folder), devices)
        for path in sorted(base.rglob("*")):
            name = path.relative_to(base).as_posix()
            if path.is_symlink():
                tree.add_link(name, os.readlink(path))
            elif path.is_file():
                tree.add_file(name, path.read_bytes())
    return SysRoot(tree)


@contextmanager
def awake(seconds: int) -> Iterator[None]:
    """Ends a read that waits, of a FIFO for instance: such a mistake must fail the test instead of stopping it."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(name: str, damage: list[Mutation]) -> None:
    damaged = mutate.apply(machine(name), damage)
    with awake(120):
        examine(lambda: mutate.root_of(damaged), in_tree(), whole=damage[0][2] % 6 == 0)


def test_enough_trees_without_captured_machines() -> None:
    sizes = PER_FAMILY * len(seeds.FAMILIES) + PER_ROOM * len(seeds.rooms()) + PER_SIZE * 2 + ON_DISK
    assert sizes >= 2000


@pytest.mark.parametrize("name", [*seeds.FAMILIES, *(f"room:{name}" for name in seeds.rooms())])
def test_seeds_are_worth_damaging(name: str) -> None:
    """Each is found to hold what it was made for; a seed without devices would test nothing."""
    report = examine(lambda: mutate.root_of(machine(name)), in_tree())
    assert name == "empty" or len(report.devices) >= 1
    assert len(machine(name).targets) > 150


@pytest.mark.parametrize("name", list(seeds.FAMILIES))
def test_families(name: str) -> None:
    @examples(PER_FAMILY)
    @given(damage=mutations)
    def holds(damage: list[Mutation]) -> None:
        check(name, damage)

    holds()


def test_every_room() -> None:
    @examples(PER_ROOM * len(seeds.rooms()))
    @given(name=st.sampled_from([f"room:{name}" for name in seeds.rooms()]), damage=mutations)
    def holds(name: str, damage: list[Mutation]) -> None:
        check(name, damage)

    holds()


@pytest.mark.parametrize("size", [1, 5])
def test_synthetic_machines(size: int) -> None:
    @examples(PER_SIZE)
    @given(damage=mutations)
    def holds(damage: list[Mutation]) -> None:
        check(f"synthetic:{size}", damage)

    holds()


def captured() -> list[str]:
    return sorted(path.name.removesuffix(".tar.xz") for path in (shared_folder() / "machines").glob("*.tar.xz"))


@pytest.mark.parametrize("name", captured() or ["missing"])
def test_captured_machines(name: str, shared: Path) -> None:
    @examples(PER_CAPTURE)
    @given(damage=mutations)
    def holds(damage: list[Mutation]) -> None:
        check(f"captured:{name}", damage)

    holds()
