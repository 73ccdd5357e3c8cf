"""Every fault point inside every call of two drivers, by the kernel's own fault injection, and what each leaves behind.

The door's sweep runs beside it: what a lost answer strands at the door must be what a failed copy-out strands inside.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accelctl.abi import registry
from accelctl.abi.lifecycle import Env
from accelctl.hal.devfile import SYSCALLS, Syscalls
from accelctl.hal.root import open_root
from accelctl.model.stressreport import PointTotals
from accelctl.stress import kmemleak
from accelctl.stress.failnth import available, knobs
from accelctl.stress.sweep import lines, own_counts, require_kernel, sweep_door, sweep_kernel

from .backendkit import nothing_open, space, target_of
from .helpers import needs

__all__ = ["nothing_open"]  # used by every test here

pytestmark = needs("debug")

DEBUGFS = Path("/sys/kernel/debug")
LIVES = [("vgem", "dumb"), ("virtio_gpu", "dumb")]


@pytest.fixture(autouse=True)
def knobs_set() -> Iterator[None]:
    """As knobs() says to type it; they are put back, because other tests here look at them too."""
    before = {}
    for line in filter(None, knobs(open_root("/")).split("; ")):
        word, value, arrow, path = line.split()
        assert (word, arrow) == ("echo", ">")
        before[path] = Path(path).read_text(encoding="ascii")
        Path(path).write_text(value, encoding="ascii")
    yield
    for path, value in before.items():
        Path(path).write_text(value, encoding="ascii")


def environment(wrap: Callable[[Syscalls], Syscalls]) -> Env:
    return Env(wrap(SYSCALLS), space=space)


def show(text: str) -> None:
    print(text, flush=True)


def of(rows: list[PointTotals], stage: str, kind: str) -> PointTotals:
    return next(row for row in rows if (row.stage, row.kind) == (stage, kind))


def test_the_knobs_are_understood() -> None:
    assert not available(open_root("/"))
    assert not knobs(open_root("/"))
    require_kernel()
    name = DEBUGFS / "failslab/ignore-gfp-wait"
    name.write_text("Y", encoding="ascii")
    assert knobs(open_root("/")) == f"echo N > {name}"
    name.write_text("N", encoding="ascii")


@pytest.mark.parametrize(("chip", "life"), LIVES)
def test_the_door_sweep(chip: str, life: str) -> None:
    """No call that is not made leaves anything; a lost answer strands what it told of until close, never longer."""
    memory = registry.load(chip).memory
    assert memory is not None
    rows = sweep_door(memory, target_of(chip), life, environment, own_counts, show)
    show("\n".join(lines(rows)))
    assert [row for row in rows if row.leaked] == []
    assert of(rows, "object", "door-before")[3:6] == (1, 1, 0)
    assert of(rows, "object", "door-after")[3:6] == (1, 0, 1)
    assert of(rows, "-object", "door-after")[3:6] == (1, 1, 0)


@pytest.mark.parametrize(("chip", "life"), LIVES)
def test_the_kernel_sweep(chip: str, life: str) -> None:
    """Creating an object passes many points. The one that fails the copy of the answer leaves a handle that nobody was
    told of; it goes with the file. Whatever outlives that would be a defect of the driver."""
    memory = registry.load(chip).memory
    assert memory is not None
    lost = kmemleak.search()
    rows = sweep_kernel(memory, target_of(chip), life, environment, own_counts, show)
    show("\n".join(lines(rows)))
    made = of(rows, "object", "kernel")
    assert made.points >= 10
    assert made.balanced >= made.points - 2
    assert made.stranded >= 1
    assert "EFAULT" in made.detail[-1]
    assert of(rows, "cpu_map", "kernel").points >= 3
    assert [row for row in rows if row.leaked] == []
    found = kmemleak.sort_out(lost, kmemleak.search(), {os.getpid(), threading.get_native_id()})
    show("\n".join(str(entry) for entry in (*found.ours, *found.others)))
    assert found.ours == ()
