"""The door sweep over every stage of every back-end that the fake driver serves, with the fake's census as the book.

docs/stress-sweeps.md keeps the table, and a test here compares it. ``ACCELCTL_UPDATE_DOCS=1 python -m pytest
tests/unit/test_sweep_fake.py`` writes it anew; read the difference before committing it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from accelctl.abi import gem, registry
from accelctl.abi.lifecycle import Block, Env, Memory, NotOffered, Session, Stage, Target
from accelctl.backends.amdgpu import kfd
from accelctl.hal.devfile import Mapped, Syscalls
from accelctl.model.stressreport import PointTotals
from accelctl.stress import sweep
from accelctl.stress.spaces import Spaces
from tests.fake import FakeMachine
from tests.fakekit import Processes
from tests.tablekernel import cycle

UPDATE = bool(os.environ.get("ACCELCTL_UPDATE_DOCS"))  # read at import: a fixture clears ACCELCTL_ variables
PAGE = Path(__file__).resolve().parents[2] / "docs" / "stress-sweeps.md"
BEGIN, END = "<!-- door sweep on the fake driver -->\n", "<!-- end -->\n"
BEFORE, AFTER = "door-before", "door-after"
HEAD = ["points", "balanced", "stranded until close", "leaked"]


class Bench(NamedTuple):
    """A chip, the machine it runs on, the driver whose nodes it opens, and drivers that import from it."""

    chip: str
    machine: Callable[[], FakeMachine]
    driver: str
    importers: tuple[str, ...] = ()
    peer: str = ""
    """A second device's node."""


def plain(chip: str, *drivers: str, release: str = "595.45.04", **sizes: int) -> Bench:
    """The first driver's device; whatever else is plugged in imports."""
    return Bench(chip, partial(FakeMachine, *drivers, release=release, **sizes), drivers[0], drivers[1:])  # type: ignore[arg-type]


SECOND = "/dev/dri/renderD129"
BENCHES: dict[str, Bench] = {
    "amdgpu": Bench("amdgpu", partial(FakeMachine, "amdgpu", "amdgpu"), "amdgpu", peer=SECOND),
    "kfd": Bench("amdgpu", partial(FakeMachine, "kfd", gpus=2), "kfd"),
    "kfd, small BAR": Bench("amdgpu", partial(FakeMachine, "kfd", large_bar=False), "kfd"),
    "i915": plain("intel_gpu", "i915"),
    "i915, integrated": plain("intel_gpu", "i915", local_memory=False),
    "xe": plain("intel_gpu", "xe"),
    "xe, integrated": plain("intel_gpu", "xe", local_memory=False),
    "nvidia 525.147.05": plain("nvidia", "nvidia", release="525.147.05"),
    "nvidia 595.45.04": plain("nvidia", "nvidia"),
    "habanalabs": plain("habanalabs", "habanalabs"),
    "nouveau": plain("nvidia", "nouveau"),
    **{driver: plain("mali", driver) for driver in ("panfrost", "panthor", "lima")},
    "msm": plain("adreno", "msm"),
    "etnaviv": plain("vivante", "etnaviv"),
    "rocket": plain("rockchip_npu", "rocket"),
    **{name: plain(name, name) for name in ("v3d", "ivpu", "amdxdna", "qaic")},
    **{name: plain(name, name) for name in ("vgem", "vkms", "bochs", "qxl", "virtio_gpu")},
    **{name: plain(name, name, "vgem") for name in ("dma_heap", "udmabuf")},
    "prime, vgem to vkms": plain("prime", "vgem", "vkms"),
    "prime, virtio_gpu to vkms": plain("prime", "virtio_gpu", "vkms"),
    "vfio": plain("vfio", "vfio"),
    "iommufd": plain("iommufd", "iommufd"),
}
"""What the table calls a driver -> how it is run."""
NOT_OFFERED = {("kfd, small BAR", "vram")}
"""(driver, lifecycle) that the machine has no means for."""


class Twice(Syscalls):
    """A mapping may be closed twice, as Python's can. The fake calls that a mistake, which it is in a back-end; but a
    release that has only lost its answer is tried again here."""

    def __init__(self, machine: FakeMachine) -> None:
        self._machine = machine
        self.stat, self.fstat, self.open = machine.stat, machine.fstat, machine.open  # type: ignore[method-assign]
        self.memfd, self.map = machine.memfd, machine.map  # type: ignore[method-assign]
        self.ioctl, self.close = machine.ioctl, machine.close  # type: ignore[method-assign]

    def unmap(self, mapping: Mapped) -> None:
        if not mapping.closed:
            self._machine.unmap(mapping)


class Place:
    """A machine that is running, and what a sweep of it needs."""

    def __init__(self, bench: Bench, machine: FakeMachine, change: Callable[[Memory], Memory]) -> None:
        self.machine, self.spaces = machine, Spaces()
        self.target = machine.target(bench.chip, bench.driver, *bench.importers)
        if bench.peer:
            self.target = self.target._replace(others=(*self.target.others, bench.peer))
        loaded = registry.load(bench.chip).memory
        assert loaded is not None
        self.memory = Processes(change(loaded), machine)

    def env(self, wrap: Callable[[Syscalls], Syscalls] = lambda inner: inner) -> Env:
        """A session's environment; its address space begins anew."""
        self.spaces = Spaces()
        return Env(wrap(Twice(self.machine)), self.spaces)

    def counts(self) -> Mapping[str, int]:
        """The fake's own book of what is alive, and of ours what device addresses are given out."""
        return {**self.machine.census(), **{counter.name: counter.read() for counter in self.spaces.counters()}}

    def calls(self, only: str) -> tuple[dict[str, int], set[str]]:
        """Lifecycle -> system calls of a cycle, as the fake counts them; lifecycles that are not offered."""
        found, refused = {}, set()
        with closing(self.memory.open(self.target, self.env())) as session:
            for one in (one for one in session.lifecycles if only in ("", one.name)):
                try:
                    cycle(one, one.sizes.granule)
                except NotOffered:
                    refused.add(one.name)
                    continue
                before = sum(self.machine.counts.values())
                cycle(one, one.sizes.granule)
                found[one.name] = sum(self.machine.counts.values()) - before
        return found, refused


class Swept(NamedTuple):
    """Per lifecycle: the rows of its sweep, the calls of one cycle. And the lifecycles that are not offered."""

    rows: dict[str, list[PointTotals]]
    calls: dict[str, int]
    refused: set[str]


def run(bench: Bench, change: Callable[[Memory], Memory] = lambda memory: memory, only: str = "") -> Swept:
    """Every lifecycle, or only one. The machine's end fails where something is left, or was called wrongly."""
    with bench.machine() as machine, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "descriptors", lambda: {*machine.files, *machine.memfds})  # the fake has some of its own
        patch.setattr(kfd, "_topology", lambda: {128: 0x1000, 129: 0x1111})
        place = Place(bench, machine, change)
        calls, refused = place.calls(only)
        rows = {name: sweep.sweep_door(place.memory, place.target, name, place.env, place.counts) for name in calls}
        machine.new_process()
    return Swept(rows, calls, refused)


@cache
def swept(name: str) -> Swept:
    return run(BENCHES[name])


def test_every_driver_of_the_fake_is_swept() -> None:
    from tests.fake.machine import NAMES

    assert {bench.driver for bench in BENCHES.values()} == set(NAMES)


@pytest.mark.parametrize("name", BENCHES)
def test_every_call_has_an_outcome_and_nothing_leaks(name: str) -> None:
    found = swept(name)
    for lifecycle, rows in found.rows.items():
        points: Counter[str] = Counter()
        for row in rows:
            points[row.kind] += row.points
            assert row.points == row.balanced + row.stranded + row.leaked
            assert not row.leaked, row.detail
        calls = found.calls[lifecycle]
        assert points == {BEFORE: calls, AFTER: calls}, f"{lifecycle}: each call fails once before, once after"
    assert found.rows


@pytest.mark.parametrize("name", BENCHES)
def test_only_lost_answers_leave_something_until_close(name: str) -> None:
    """Of a call that acquires: nobody was told what it made. A call that is not made leaves nothing, and a release
    whose call failed or lost its answer can be tried again."""
    for row in (row for rows in swept(name).rows.values() for row in rows if row.stranded):
        assert row.kind == AFTER, row.detail
        assert not row.stage.startswith("-"), row.detail
        assert len(row.detail) == row.stranded
        assert all("=EFAULT@after: +" in one and ", until " in one for one in row.detail), row.detail


def test_lifecycles_without_a_sweep_are_known() -> None:
    assert {(name, one) for name in BENCHES for one in swept(name).refused} == NOT_OFFERED


# -- that the books of the fake would tell --


class Changed(Memory):
    """The first stage of every lifecycle made worse."""

    def __init__(self, inner: Memory, worse: Callable[[Stage, Session, Env], Stage]) -> None:
        self._inner, self._worse = inner, worse

    def open(self, target: Target, env: Env) -> Session:
        session = self._inner.open(target, env)
        session.lifecycles = tuple(
            one._replace(stages=(self._worse(one.stages[0], session, env), *one.stages[1:]))
            for one in session.lifecycles
        )
        return session


def test_a_second_step_that_does_not_undo_the_first_is_told() -> None:
    def worse(stage: Stage, session: Session, env: Env) -> Stage:
        def acquire(block: Block) -> int:
            first = Block(block.size)
            stage.acquire(first)
            number = stage.acquire(block)  # raises: the first object is forgotten
            assert stage.release is not None
            stage.release(first)
            return number

        return stage._replace(acquire=acquire)

    (row,) = (
        row
        for row in run(BENCHES["vgem"], lambda memory: Changed(memory, worse), "dumb").rows["dumb"]
        if (row.stage, row.kind) == ("object", BEFORE)
    )
    assert (row.points, row.balanced, row.stranded, row.leaked) == (3, 1, 2, 0)
    assert row.detail[0].endswith("object:2=ENOMEM@before: +1 gem-handles, +1 object, until close")


def test_a_descriptor_that_outlives_the_session_is_told() -> None:
    kept: list[Block] = []

    def worse(stage: Stage, session: Session, env: Env) -> Stage:
        export = gem.export_stage(session.files[0], env.syscalls)

        def acquire(block: Block) -> int:
            stage.acquire(block)
            export.acquire(block)
            kept.append(block)
            stage.acquire(other := Block(block.size))  # raises: the dma-buf of the first is forgotten
            assert stage.release is not None
            stage.release(other)
            kept.remove(block)
            gem.close_own_file(block)
            return block.handle

        return stage._replace(acquire=acquire)

    with pytest.raises(AssertionError, match=r"left over:\n  fd \d+ \(dma-buf\)"):
        run(BENCHES["vgem"], lambda memory: Changed(memory, worse), "dumb")
    assert kept


# -- the table --


def table() -> str:
    """Driver and stage (of all its lifecycles, both faults), in Markdown."""
    sums: dict[tuple[str, str], list[Any]] = {}
    for name in BENCHES:
        for row in (row for rows in swept(name).rows.values() for row in rows):
            for key in ((name, row.stage), ("all", "")):
                numbers = sums.setdefault(key, [0, 0, 0, 0])
                numbers[:] = [a + b for a, b in zip(numbers, row[3:7], strict=True)]
    sums["all", ""] = sums.pop(("all", ""))  # last
    sums = {("driver", "stage"): HEAD, ("---", "---"): ["---:"] * len(HEAD), **sums}
    return "".join(f"| {' | '.join(map(str, (*key, *row)))} |\n" for key, row in sums.items())


def test_the_table_in_the_documents_is_what_the_sweep_finds() -> None:
    text = PAGE.read_text(encoding="utf-8")
    match = re.search(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", text, re.DOTALL)
    assert match is not None
    found = f"\n{table()}\n"
    if UPDATE:
        PAGE.write_text(text[: match.start()] + found + text[match.end() :], encoding="utf-8")
        pytest.skip(f"{PAGE.name} written, not compared (ACCELCTL_UPDATE_DOCS is set)")
    assert match[0] == found, "ACCELCTL_UPDATE_DOCS=1 writes it anew"
