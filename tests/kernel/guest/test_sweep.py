"""Every fault point inside every call of every proven driver, by the kernel's own fault injection: what is left?

The door's sweep runs beside it: what a lost answer strands at the door must be what a failed copy-out strands inside.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from accelctl.abi import registry
from accelctl.abi.lifecycle import Env
from accelctl.hal.devfile import SYSCALLS, Syscalls
from accelctl.hal.failnth import FailNth
from accelctl.hal.root import open_root
from accelctl.model.stressreport import PointTotals
from accelctl.stress import kmemleak
from accelctl.stress.door import Door, Fault
from accelctl.stress.failnth import available, knobs
from accelctl.stress.sweep import (
    AFTER,
    BEFORE,
    MOST_POINTS,
    lines,
    own_counts,
    require_kernel,
    sweep_door,
    sweep_kernel,
)
from accelctl.stress.sweep import _Calls as KernelCalls

from . import sessionkit
from .backendkit import DEBUGFS, knobs_set, nothing_open, prepared, space, target_of, vfio_group
from .helpers import needs

__all__ = ["knobs_set", "nothing_open", "prepared", "vfio_group"]  # fixtures

pytestmark = [needs("debug"), pytest.mark.usefixtures("knobs_set")]

CHIPS = ["vgem", "vkms", "bochs", "qxl", "virtio_gpu", "dma_heap", "udmabuf", "vfio", "iommufd", "prime"]
RESULTS = os.environ.get("ACCELCTL_GUEST_RESULTS", "")
"""Read before the fixtures clean the environment; what is written beside it reaches the host."""
TABLE: list[tuple[str, PointTotals]] = []
"""All rows, for the table that the last test prints (docs/stress-sweeps.md keeps it)."""
SESSIONS: list[str] = []
"""And those of whole sessions."""
LOST: list[kmemleak.Entry] = []


def environment(wrap: Callable[[Syscalls], Syscalls]) -> Env:
    return Env(wrap(SYSCALLS), space=space)


def show(text: str) -> None:
    print(text, flush=True)


def keep(table: sessionkit.Table) -> None:
    show(str(table))
    SESSIONS.extend(table.lines())


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


KNOWN = "PRIME_HANDLE_TO_FD, export call 1"
"""A defect that this sweep found in 6.12: the descriptor is installed before the answer is copied out, so a copy that
fails (EFAULT) leaves an open dma-buf behind that the caller was never told of. It outlives the close of the device, and
ends with the process. dma-heap's ioctl, which gives out a descriptor in the same way, takes it back."""


KNOWN_LOST = "vfio_info_add_capability"
INFO_CALLS = 5
"""Another one: VFIO_IOMMU_GET_INFO collects its capabilities in a buffer that grows, and when the list of usable
addresses cannot be built (its own kzalloc) it returns without freeing what it had collected: 64 bytes, for good. One
fault point in each such call of a session."""


def leaked(rows: list[PointTotals]) -> list[str]:
    """Reproducers of what outlived the close, known defects left out; those are given back here."""
    found = [text for row in rows if row.leaked for text in row.detail if "after close:" in text]
    strays = [name for name in os.listdir("/proc/self/fd") if _link(name).startswith("/dmabuf:")]
    assert len(strays) == sum(KNOWN in text for text in found)
    for name in strays:
        os.close(int(name))
    return [text for text in found if KNOWN not in text]


def _link(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


def lives(chip: str) -> list[str]:
    """Lifecycles that this kernel offers."""
    memory = registry.load(chip).memory
    assert memory is not None
    session = memory.open(target_of(chip), Env(space=space))
    try:
        return [life.name for life in session.lifecycles if not life.unsupported]
    finally:
        session.close()


def test_lost_memory_before() -> None:
    """kmemleak's baseline: what is listed now is not ours."""
    LOST.extend(kmemleak.search())


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("chip", CHIPS)
def test_the_door_sweep(chip: str) -> None:
    """No call that is not made leaves anything; a lost answer strands what it told of until close, never longer."""
    memory = registry.load(chip).memory
    assert memory is not None
    for life in lives(chip):
        rows = sweep_door(memory, target_of(chip), life, environment, own_counts, show)
        show("\n".join(lines(rows)))
        TABLE.extend((chip, row) for row in rows)
        assert [row for row in rows if row.leaked] == []
        assert all(row.points == row.balanced + row.stranded for row in rows)
        first = rows[0].stage
        assert of(rows, first, "door-before").balanced == of(rows, first, "door-before").points > 0


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("chip", CHIPS)
def test_the_kernel_sweep(chip: str) -> None:
    """Creating an object passes many points. The one that fails the copy of the answer leaves a handle that nobody was
    told of; it goes with the file. Whatever outlives that would be a defect of the driver."""
    memory = registry.load(chip).memory
    assert memory is not None
    for life in lives(chip):
        rows = sweep_kernel(memory, target_of(chip), life, environment, own_counts, show)
        show("\n".join(lines(rows)))
        TABLE.extend((chip, row) for row in rows)
        assert sum(row.points for row in rows) >= 5
        assert all(row.points == row.balanced + row.stranded + row.leaked for row in rows)
        assert leaked(rows) == []
        assert sum(row.leaked for row in rows) == sum(row.stage == "export" for row in rows)
    if chip in ("vgem", "virtio_gpu"):
        made = next(row for name, row in TABLE if (name, row.stage, row.kind) == (chip, "object", "kernel"))
        assert made.points >= 10
        assert made.stranded >= 1
        assert "EFAULT" in made.detail[-1]


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("chip", sessionkit.CALLS)
def test_every_call_of_a_session_at_the_door(chip: str) -> None:
    """No failed call goes unnoticed, and only the lost answer of an open leaves something: its descriptor."""
    target = target_of(chip)
    made = sessionkit.names(target)
    for kind, after, code in (("not made", False, BEFORE), ("answer lost", True, AFTER)):
        table = sessionkit.Table(chip, kind)
        for nth, name in enumerate(made, 1):
            door = Door(SYSCALLS, [Fault(sessionkit.WHOLE, nth, code, after)])
            said = sessionkit.attempt(target, door)
            assert door.fired, (nth, name)
            assert said != "nothing", (nth, name)
            table.judge(name, said, door.recover())
            assert sessionkit.whole(target, SYSCALLS), (nth, name)
        keep(table)
        assert {name for name, row in table.rows.items() if row["stranded"]} == ({"open"} if after else set())


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("chip", sessionkit.CALLS)
def test_every_fault_point_of_a_session(chip: str) -> None:
    """What a call says may be nothing: the kernel often has a second way."""
    target = target_of(chip)
    made = sessionkit.names(target)
    with closing(FailNth()) as fail:
        table = sessionkit.Table(chip, "in the kernel")
        for nth, name in enumerate(made, 1):
            for point in range(1, MOST_POINTS):
                calls = KernelCalls(SYSCALLS, fail)
                calls.arm(sessionkit.WHOLE, point, nth)
                said = sessionkit.attempt(target, calls)
                if not calls.struck:
                    break
                table.judge(name, said, 0)
                assert sessionkit.whole(target, SYSCALLS), (nth, name, point)
            else:
                pytest.fail(f"{name}: more than {MOST_POINTS} fault points")
    keep(table)
    assert {*table.rows} == sessionkit.CALLS[chip] - sessionkit.NO_POINTS


def test_lost_memory_after_and_the_table() -> None:
    """Nothing that our calls allocated was lost for good, at any fault point."""
    found = kmemleak.sort_out(LOST, kmemleak.search(), {os.getpid(), threading.get_native_id()})
    show("\n".join(str(entry) for entry in (*found.ours, *found.others)))
    text = [
        f"| {chip} | {r.lifecycle} | {r.stage} | {r.kind} | {r.points} | {r.balanced} | {r.stranded} | {r.leaked} |\n"
        for chip, r in TABLE
    ]
    if RESULTS:
        Path(RESULTS).with_name("sweep-table.txt").write_text("".join(text), encoding="utf-8")
        Path(RESULTS).with_name("session-table.txt").write_text("".join(SESSIONS), encoding="utf-8")
    known = [entry for entry in found.ours if any(KNOWN_LOST in frame for frame in entry.backtrace)]
    assert [entry for entry in found.ours if entry not in known] == []
    assert len(known) <= INFO_CALLS
