"""Random histories of the simulated driver against a model that is too simple to be wrong."""

from __future__ import annotations

import errno
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from accelctl.abi.devmem import ask, number
from accelctl.backends.sim import uapi
from accelctl.backends.sim.options import parse
from accelctl.backends.sim.tables import Vram
from accelctl.hal.devfile import PAGE, File
from tests.simkit import open_sim

PAGES, BASE = 48, 0x100000
SLOTS = 6


class Thing:
    """An object of the model: its pages, who holds it, and what it must contain."""

    def __init__(self, pages: int, offset: int) -> None:
        self.pages, self.offset, self.holders, self.tag = pages, offset, 1, b""


class Sim(RuleBasedStateMachine):
    """Every call is made on both; what is refused must be refused by both, and all counters agree after each."""

    def __init__(self) -> None:
        super().__init__()
        self.sim = open_sim(vram_bytes=str(PAGES * PAGE), slots=str(SLOTS), latency="3")
        self.file, self.vm = self.sim.session.file, self.sim.session.vm
        self.handles: dict[int, Thing] = {}
        self.gpu: dict[int, tuple[int, Thing]] = {}
        self.cpu: list[tuple[Any, Thing]] = []
        self.fds: list[tuple[File, Thing]] = []
        self.queues: dict[int, list[Thing]] = {}
        self.serial = 0

    def drop(self, thing: Thing) -> None:
        thing.holders -= 1

    def things(self) -> set[Thing]:
        held = {thing for _, thing in [*self.gpu.values(), *self.cpu, *self.fds]}
        return held | set(self.handles.values()) | {thing for flying in self.queues.values() for thing in flying}

    def try_call(self, call: Any, expected: int, **values: int) -> bytearray | None:
        """``expected``: the errno of the model, 0 where it must work."""
        reply, answer = None, 0
        try:
            reply = ask(self.file, call, **values)
        except OSError as error:
            answer = error.errno or -1
        assert answer == expected, (call.name, values)
        return reply

    @rule(pages=st.integers(1, 3) | st.integers(1, 20))
    def create(self, pages: int) -> None:
        free = set(range(PAGES))
        for thing in self.things():
            start = thing.offset // PAGE
            assert set(range(start, start + thing.pages)) <= free, "pages given out twice"
            free -= set(range(start, start + thing.pages))
        runs = [start for start in free if set(range(start, start + pages)) <= free]
        reply = self.try_call(uapi.CREATE, 0 if runs else errno.ENOSPC, size=pages * PAGE - 5)
        if reply is not None:
            made = uapi.CREATE.layout.unpack(reply)
            assert made["handle"] == min(set(range(1, len(self.handles) + 2)) - set(self.handles)), "not lowest-free"
            assert made["size"] == pages * PAGE
            self.handles[made["handle"]] = Thing(pages, made["offset"])

    @rule(handle=st.integers(0, 8))
    def destroy(self, handle: int) -> None:
        self.try_call(uapi.DESTROY, 0 if handle in self.handles else errno.EINVAL, handle=handle)
        if handle in self.handles:
            self.drop(self.handles.pop(handle))

    @rule(handle=st.integers(1, 6), at=st.integers(0, 24), pages=st.integers(0, 21))
    def map(self, handle: int, at: int, pages: int) -> None:
        va, size, thing = BASE + at * PAGE, pages * PAGE, self.handles.get(handle)
        taken = any(va < start + length and start < va + size for start, (length, _) in self.gpu.items())
        if thing is None:
            expected = errno.ENOENT
        elif not pages or pages > thing.pages:
            expected = errno.EINVAL
        else:
            expected = errno.EEXIST if taken else errno.ENOSPC if len(self.gpu) >= SLOTS else 0
        self.try_call(uapi.MAP, expected, va=va, size=size, handle=handle, vm=self.vm)
        if thing is not None and not expected:
            self.gpu[va] = (size, thing)
            thing.holders += 1

    @rule(at=st.integers(0, 24), data=st.data())
    def unmap(self, at: int, data: st.DataObject) -> None:
        va = data.draw(st.sampled_from([*self.gpu, BASE + at * PAGE]))
        size = data.draw(st.sampled_from([self.gpu[va][0] if va in self.gpu else PAGE, 2 * PAGE]))
        fits = va in self.gpu and self.gpu[va][0] == size
        self.try_call(uapi.UNMAP, 0 if fits else errno.ENOENT, va=va, size=size, vm=self.vm)
        if fits:
            self.drop(self.gpu.pop(va)[1])

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def cpu_map(self, data: st.DataObject) -> None:
        thing = data.draw(st.sampled_from(list(self.handles.values())))
        mapping = self.file.map(thing.pages * PAGE, thing.offset)
        self.serial += 1
        thing.tag = thing.tag or self.serial.to_bytes(8, "little")
        mapping[0:8] = mapping[len(mapping) - 8 :] = thing.tag
        thing.holders += 1
        self.cpu.append((mapping, thing))

    @precondition(lambda self: self.cpu)
    @rule(data=st.data())
    def cpu_unmap(self, data: st.DataObject) -> None:
        mapping, thing = self.cpu.pop(data.draw(st.integers(0, len(self.cpu) - 1)))
        self.file.unmap(mapping)
        self.drop(thing)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def export(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(list(self.handles)))
        fd = number(self.file, uapi.EXPORT, "fd", handle=handle)
        self.fds.append((File(fd, "dma-buf", self.sim.syscalls), self.handles[handle]))
        self.handles[handle].holders += 1

    @precondition(lambda self: self.fds)
    @rule(data=st.data())
    def close_fd(self, data: st.DataObject) -> None:
        file, thing = self.fds.pop(data.draw(st.integers(0, len(self.fds) - 1)))
        file.close()
        self.drop(thing)

    @precondition(lambda self: len(self.queues) < 3)
    @rule()
    def queue(self) -> None:
        self.queues[number(self.file, uapi.QUEUE_CREATE, "queue", depth=2)] = []

    @precondition(lambda self: self.queues and self.gpu)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        """A copy of an object's first bytes onto themselves: it holds the object and changes nothing."""
        queue = data.draw(st.sampled_from(list(self.queues)))
        va = data.draw(st.sampled_from(list(self.gpu)))
        self.settle(queue)  # whether it is full must not depend on the clock
        self.try_call(uapi.SUBMIT, 0, queue=queue, vm=self.vm, op=uapi.COPY, dst=va, src=va, size=8)
        self.queues[queue].append(self.gpu[va][1])
        self.gpu[va][1].holders += 1
        self.settle(queue)

    def settle(self, queue: int) -> None:
        point = self.sim.device.files[self.file.fd].queues.things[queue].submitted
        ask(self.file, uapi.WAIT, queue=queue, point=point, ticks=1 << 40)
        for thing in self.queues[queue]:
            self.drop(thing)
        self.queues[queue].clear()

    @precondition(lambda self: self.queues)
    @rule(data=st.data())
    def queue_destroy(self, data: st.DataObject) -> None:
        queue = data.draw(st.sampled_from(list(self.queues)))
        ask(self.file, uapi.QUEUE_DESTROY, queue=queue)
        del self.queues[queue]

    @invariant()
    def agrees(self) -> None:
        self.sim.device.check()
        things = self.things()
        assert all(thing.holders > 0 for thing in things)
        pages = sum(size for size, _ in self.gpu.values()) // PAGE
        held = (len(self.handles), pages, len(self.cpu), len(self.fds), len(self.queues))
        used = sum(thing.pages for thing in things) * PAGE
        assert self.sim.counts() == dict(zip(uapi.COUNTERS, (*held, used), strict=True))
        for mapping, thing in self.cpu:
            assert mapping[0:8] == mapping[len(mapping) - 8 :] == thing.tag, "memory changed"

    def teardown(self) -> None:
        for file, _ in self.fds:
            file.close()
        self.sim.session.close()
        assert (self.sim.device.vram.used, self.sim.device.memory) == (0, -1)
        self.sim.device.check()


Sim.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestSim = Sim.TestCase


@pytest.mark.parametrize("breakage", ["pages", "references", "numbers"])
def test_the_invariants_see_what_is_broken(breakage: str) -> None:
    sim = open_sim()
    number(sim.session.file, uapi.CREATE, "handle", size=PAGE)
    sim.device.check()
    (thing,) = sim.device.vram.objects.values()
    (file,) = sim.device.files.values()
    if breakage == "pages":
        sim.device.vram.used += 1
    elif breakage == "references":
        thing.refs += 1
    else:
        file.handles.things[7] = file.handles.things.pop(1)
    with pytest.raises(AssertionError):
        sim.device.check()


def test_small_runs_that_wait_are_found_when_nothing_else_is_left() -> None:
    vram = Vram(64)
    things = [vram.hold(vram.take(8, None)) for _ in range(8)]
    with pytest.raises(OSError, match="no 1 pages"):
        vram.take(1, None)
    for thing in things[2:6]:
        vram.drop(thing)
    assert vram.take(32, None).start == things[2].start
    assert parse({}).vram_bytes == 1 << 30


def test_threads_may_call_at_once() -> None:
    """`export`, because the address space of the others has no lock of its own; of more pages than may wait on a list,
    because the map of holes is where threads would meet."""
    sim = open_sim()
    before, size = sys.getswitchinterval(), (Vram.SMALL + 1) * PAGE
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(sim.cycles, "export", 400, size) for _ in range(4)]:
                done.result()
    finally:
        sys.setswitchinterval(before)
    sim.device.check()
    assert sim.counts() == dict.fromkeys(uapi.COUNTERS, 0)
    sim.session.close()


@pytest.mark.slow
def test_many_cycles_leave_nothing_and_need_no_more_memory() -> None:
    """Resident memory, which must not grow by history: 5 MiB in a million cycles is 1 MiB in 200,000."""
    sim = open_sim()
    sim.cycles("vram", 5000, 5 * PAGE)
    before = resident()
    sim.cycles("vram", 100_000, 5 * PAGE)
    sim.cycles("vram", 100_000, PAGE)
    assert resident() - before < 1 << 20
    assert sim.counts() == dict.fromkeys(uapi.COUNTERS, 0)
    sim.device.check()
    sim.session.close()


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
