"""The sweeps on a toy: every call is reached, and toys whose rollback is wrong are told by name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accelctl.abi.lifecycle import Block, Env, Target
from accelctl.abi.testbench import descriptors
from accelctl.errors import AccelError, NoDeviceError, UsageError
from accelctl.hal import devfile
from accelctl.hal.devfile import SYSCALLS, File, Mapped, Syscalls, open_files
from accelctl.hal.failnth import FailNth
from accelctl.model.stressreport import PointTotals
from accelctl.stress import sweep
from accelctl.stress.sweep import lines, own_counts, sweep_door, sweep_kernel
from tests.stresskit import TARGET, Toy, ToyMemory, ToySession

Adjust = Callable[[Toy], None]


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    before, files = descriptors(), open_files()
    yield
    if "leak" not in request.node.name:
        assert descriptors() == before
        assert open_files() == files
    for fd in descriptors() - before:
        devfile._open.pop(fd, None)
        os.close(fd)


class ClosingSession(ToySession):
    """Closing it releases what it holds, as a driver does."""

    def close(self) -> None:
        self.census()
        super().close()


class ClosingMemory(ToyMemory):
    def open(self, target: Target, env: Env) -> ToySession:
        session = super().open(target, env)
        return ClosingSession(session.toy, session.lifecycles)


def on(inner: Syscalls = SYSCALLS) -> Callable[[Callable[[Syscalls], Syscalls]], Env]:
    return lambda wrap: Env(wrap(inner))


def door(adjust: Adjust = lambda toy: None, memory: type[ToyMemory] = ClosingMemory) -> dict[tuple[str, str], Any]:
    return keyed(sweep_door(memory(adjust), TARGET, "plain", on()))


def keyed(rows: list[PointTotals]) -> dict[tuple[str, str], Any]:
    for row in rows:
        assert row.lifecycle == "plain"
        assert row.points == row.balanced + row.stranded + row.leaked
    return {(row.stage, row.kind): (row.points, row.balanced, row.stranded, row.leaked) for row in rows}


# -- at the door --


def test_a_good_toy_at_the_door() -> None:
    """Its calls: memfd; mmap; munmap; close. What a lost answer gave out is stranded, and no fault of the toy; a map
    that it cannot give back (its release keeps no state) goes with the session."""
    assert door() == {
        ("object", "door-before"): (1, 1, 0, 0),
        ("object", "door-after"): (1, 0, 1, 0),
        ("-object", "door-before"): (1, 1, 0, 0),
        ("-object", "door-after"): (1, 1, 0, 0),
        ("cpu_map", "door-before"): (1, 1, 0, 0),
        ("cpu_map", "door-after"): (1, 0, 1, 0),
        ("-cpu_map", "door-before"): (1, 1, 0, 0),
        ("-cpu_map", "door-after"): (1, 1, 0, 0),
    }


def test_reproducers_and_progress() -> None:
    said: list[str] = []
    rows = sweep_door(ClosingMemory(), TARGET, "plain", on(), own_counts, said.append)
    (detail,) = next(row.detail for row in rows if (row.stage, row.kind) == ("object", "door-after"))
    assert detail == (
        "toy plain TOY_MAKE, object:1=EFAULT@after: +1 memfd descriptors, "
        "until what the lost answer gave out was closed too"
    )
    assert said[0].startswith("books: toy-handles, ")
    assert said[1] == "plain object door-before: 1 points, 1 balanced, 0 stranded, 0 leaked"
    assert lines(rows)[-1] == f"  {next(row.detail[0] for row in rows if row.stage == 'cpu_map' and row.detail)}"


def forget_the_entry(toy: Toy) -> None:
    """A second call that fails leaves the first one's handle in the table."""
    good = toy.make

    def make(block: Block) -> int:
        handle = good(block)
        toy.syscalls.close(toy.syscalls.memfd("second", 4096, 0))
        return handle

    toy.make = make  # type: ignore[method-assign]


def test_a_stranded_rollback_is_told() -> None:
    found = door(forget_the_entry)
    assert found["object", "door-before"] == (3, 1, 2, 0), "close answers an error in both kinds, and has closed"
    assert found["cpu_map", "door-before"] == (1, 1, 0, 0)
    rows = sweep_door(ClosingMemory(forget_the_entry), TARGET, "plain", on())
    assert rows[0].detail[0].endswith("object:2=ENOMEM@before: +1 toy-handles, +1 memfd descriptors, until close")


def test_a_leaked_rollback_is_told() -> None:
    def adjust(toy: Toy) -> None:
        good = toy.map

        def map_(block: Block) -> int:
            toy.extra = File(toy.syscalls.memfd("extra", 4096, 0), "extra", toy.syscalls)  # type: ignore[attr-defined]
            number = good(block)
            toy.extra.close()  # type: ignore[attr-defined]
            return number

        toy.map = map_  # type: ignore[method-assign]

    rows = sweep_door(ClosingMemory(adjust), TARGET, "plain", on())
    found = keyed(rows)
    assert found["cpu_map", "door-before"][3] == 1
    assert found["object", "door-before"] == (1, 1, 0, 0), "a leak is booked once"
    assert found["-cpu_map", "door-after"] == (1, 1, 0, 0), "and not again afterwards"
    (detail,) = next(row.detail for row in rows if row.leaked and row.kind == "door-before")
    assert detail.endswith("mmap, cpu_map:2=ENOMEM@before: +1 memfd descriptors; after close: +1 memfd descriptors")


def test_a_release_that_is_not_repeated_is_stranded() -> None:
    """It takes its own state away first, so the second try finds nothing."""

    def adjust(toy: Toy) -> None:
        def unmap(block: Block) -> None:
            mapping, block.map = block.map, None
            assert mapping is not None
            toy.objects[block.handle].unmap(mapping)

        toy.unmap = unmap  # type: ignore[method-assign]

    assert door(adjust)["-cpu_map", "door-before"] == (1, 1, 0, 0), "closing the object unmaps it"
    kept: list[Any] = []

    def worse(toy: Toy) -> None:
        def destroy(block: Block) -> None:
            kept.append(toy.objects.pop(block.handle))
            toy.syscalls.unmap(toy.syscalls.map(kept[-1].fd, 4096, 0))
            kept.pop().close()

        toy.destroy = destroy  # type: ignore[method-assign]

    rows = sweep_door(ClosingMemory(worse), TARGET, "plain", on())
    assert keyed(rows)["-object", "door-before"][3] == 2, "map and unmap: neither the object nor the session has it"
    for file in kept:
        file.close()


def test_descriptors_in_lost_answers_of_ioctls_are_given_back() -> None:
    class Exports(Syscalls):
        def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
            return os.dup(0)

    def adjust(toy: Toy) -> None:
        def offset(block: Block) -> int:
            toy.syscalls.close(toy.syscalls.ioctl(0, 1, 0))
            return 0

        toy.offset = offset  # type: ignore[method-assign]

    rows = sweep_door(ClosingMemory(adjust), TARGET, "plain", on(Exports()))
    assert keyed(rows)["offset", "door-before"] == (2, 2, 0, 0)
    assert keyed(rows)["offset", "door-after"] == (2, 1, 1, 0)


def test_a_toy_that_leaks_by_itself_is_not_swept() -> None:
    def adjust(toy: Toy) -> None:
        toy.keep_every = 1

    with pytest.raises(AccelError, match=r"without any fault: \+1 toy-handles") as caught:
        door(adjust)
    assert caught.value.kind == "invalid_state"


def test_what_is_not_offered_is_not_swept() -> None:
    with pytest.raises(NoDeviceError, match="the toy is small"):
        sweep_door(ClosingMemory(), TARGET, "never", on())
    with pytest.raises(NoDeviceError, match="no lifecycle odd"):
        sweep_door(ClosingMemory(), TARGET, "odd", on())


def test_a_stage_that_always_fails_is_not_swept() -> None:
    def adjust(toy: Toy) -> None:
        toy.refuse = {"cpu_map": errno.ENOSPC}

    with pytest.raises(AccelError, match="cpu_map fails with ENOSPC"):
        door(adjust)


# -- inside a kernel that is none --


class Kernel(Syscalls):
    """Calls with places that can fail in them: three in memfd (the last one after it was made), two in mmap, one in
    munmap, one in close. ``loses``: what the last place of memfd leaves behind."""

    def __init__(self, loses: bool = False) -> None:
        self.left = 0
        self.loses = loses
        self.lost = 0

    def _point(self, code: int = errno.ENOMEM) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                raise OSError(code, os.strerror(code))

    def memfd(self, name: str, size: int, seals: int) -> int:
        self._point()
        self._point()
        fd = super().memfd(name, size, seals)
        try:
            self._point(errno.EFAULT)
        except OSError:
            if not self.loses:
                self.close(fd)
            raise
        return fd

    def map(self, fd: int, size: int, offset: int) -> Mapped:
        self._point()
        self._point(errno.EAGAIN)
        return super().map(fd, size, offset)

    def unmap(self, mapping: Mapped) -> None:
        super().unmap(mapping)
        try:
            self._point()
        except OSError:
            self.lost += 1  # still mapped in fact, and mmap.close tells nobody

    def counts(self) -> dict[str, int]:
        """What /proc would say of the process."""
        found = own_counts()
        return found | ({"memfd mappings": found.get("memfd mappings", 0) + self.lost} if self.lost else {})

    def close(self, fd: int) -> None:
        super().close(fd)
        try:
            self._point()
        except OSError:
            pass  # the kernel frees all the same, and says nothing


class Fail(FailNth):
    """fail-nth of that kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def arm(self, n: int) -> None:
        self._kernel.left = n

    def stop(self) -> bool:
        left, self._kernel.left = self._kernel.left, 0
        return left == 0


def inside(kernel: Kernel, adjust: Adjust = lambda toy: None) -> list[PointTotals]:
    return sweep_kernel(
        ClosingMemory(adjust), TARGET, "plain", on(kernel), kernel.counts, lambda text: None, Fail(kernel)
    )


def test_every_point_of_every_call_is_walked() -> None:
    rows = inside(Kernel())
    assert keyed(rows) == {
        ("object", "kernel"): (3, 3, 0, 0),
        ("-object", "kernel"): (1, 1, 0, 0),
        ("cpu_map", "kernel"): (2, 2, 0, 0),
        ("-cpu_map", "kernel"): (1, 0, 1, 0),
    }
    assert (
        rows[-1]
        .detail[0]
        .endswith(
            "-cpu_map call 1, fault point 1 (no error): +1 memfd mappings, "
            "until the process ends (its munmap failed, which Python does not tell)"
        )
    )


def test_a_kernel_that_leaks_names_the_point() -> None:
    rows = inside(Kernel(loses=True))
    assert keyed(rows)["object", "kernel"] == (3, 2, 0, 1)
    assert rows[0].detail == (
        "toy plain TOY_MAKE, object call 1, fault point 3 (EFAULT): +1 memfd descriptors; "
        "after close: +1 memfd descriptors",
    )


def test_a_call_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "MOST_POINTS", 2)
    rows = inside(Kernel())
    assert rows[0].points == 2
    assert rows[0].detail == ("object call 1: more than 2 fault points; the sweep stopped there",)


def test_details_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "MOST_DETAILS", 1)
    rows = sweep_door(ClosingMemory(forget_the_entry), TARGET, "plain", on())
    assert (rows[0].stranded, len(rows[0].detail)) == (2, 2)
    assert rows[0].detail[1] == "object: and 1 more like these"


def test_without_fault_injection_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "available", lambda root: "no such kernel")
    with pytest.raises(NoDeviceError, match="no kernel sweep: no such kernel"):
        sweep_kernel(ClosingMemory(), TARGET, "plain", on())
    monkeypatch.setattr(sweep, "available", lambda root: None)
    monkeypatch.setattr(sweep, "knobs", lambda root: "echo N > somewhere")
    with pytest.raises(UsageError, match="not set up") as caught:
        sweep_kernel(ClosingMemory(), TARGET, "plain", on())
    assert caught.value.hint == "echo N > somewhere"


def test_own_counts_see_descriptors_and_mappings() -> None:
    before = own_counts()
    fd = SYSCALLS.memfd("x", 4096, 0)
    mapping = SYSCALLS.map(fd, 4096, 0)
    after = own_counts()
    assert after["memfd descriptors"] >= before.get("memfd descriptors", 0) + 1
    assert after["memfd mappings"] == before.get("memfd mappings", 0) + 1
    SYSCALLS.unmap(mapping)
    SYSCALLS.close(fd)
    assert own_counts() == before
