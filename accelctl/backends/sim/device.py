"""The simulated device and its driver's rules: what each ioctl does to objects, page tables, queues and counters.

Time is the device's own: every call takes one tick, waiting and idling as many as they last. There is no wall clock
and nothing sleeps, so a run is a function of its seed.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from accelctl.backends.sim import uapi
from accelctl.backends.sim.jobs import Jobs, Placed
from accelctl.backends.sim.noise import Others
from accelctl.backends.sim.options import SimOptions
from accelctl.backends.sim.tables import Numbers, Object, PageTable, Vram, fault
from accelctl.hal.devfile import PAGE, Mapped, Syscalls

if TYPE_CHECKING:
    from accelctl.backends.sim.ops.engine import Engine

Fields = tuple[int, ...]
MOST_IDLE = 1 << 48


class OpenFile:
    """What one open(2) of the node has."""

    def __init__(self) -> None:
        self.handles: Numbers[Object] = Numbers()
        self.vms: Numbers[PageTable] = Numbers()
        self.queues: Numbers[Jobs] = Numbers()
        self.cpu_maps = 0
        self.dmabufs = 0


class Shared(NamedTuple):
    """A dma-buf or a CPU mapping: the file that made it, and its object."""

    file: OpenFile
    thing: Object


class Device:
    """One chip. Not thread-safe: the driver locks.

    An ordered leak is a release that is acknowledged and not done; it stays until the file is closed, as a forgotten
    reference in a real driver does (a dma-buf's descriptor until the last file is).
    """

    def __init__(self, options: SimOptions, base: Syscalls) -> None:
        self.options, self._base = options, base
        self.now = 0
        self.vram = Vram(options.vram_bytes // PAGE)
        self.others = Others(options)
        self.files: dict[int, OpenFile] = {}
        self.dmabufs: dict[int, Shared] = {}
        self.maps: dict[int, tuple[Mapped, Shared]] = {}
        self.kept_fds: list[int] = []
        self.kept_maps: list[tuple[Mapped, Shared]] = []
        """CPU mappings whose munmap was acknowledged and not done."""
        self.memory = -1
        """The VRAM's bytes: a memfd, which takes no more than what was written to."""
        self._engine: Engine | None = None
        """What runs instructions; made for the first one, because it loads numpy."""
        self._leaks = bool(options.leak)
        self._troubles = bool(options.fail or options.lost)
        self._releases: Counter[str] = Counter()
        self._acquires: Counter[str] = Counter()

    # -- files --

    def open(self) -> int:
        """A new file of the node: its descriptor."""
        if self.options.lost and self.now >= self.options.lost:
            raise fault(errno.ENODEV, "the device is lost")
        if self.memory < 0:
            self.memory = self._base.memfd("sim-vram", self.options.vram_bytes, 0)
        try:
            fd = self._base.memfd("sim", 0, 0)
        except OSError:
            self._power_off()
            raise
        self.files[fd] = OpenFile()
        return fd

    def close(self, fd: int) -> bool:
        """Whether the descriptor itself may be closed: it is the node's, or a dma-buf's whose leak is not ordered."""
        file = self.files.pop(fd, None)
        if file is not None:
            self._release(file)
            self._power_off()
            return True
        if fd in self.kept_fds:
            raise fault(errno.EBADF, "closed already")
        if self._skips("export"):
            self.kept_fds.append(fd)
            return False
        self._drop_dmabuf(fd)
        self._power_off()
        return True

    def _release(self, file: OpenFile) -> None:
        for queue in file.queues.drain():
            queue.stop()
        for vm in file.vms.drain():
            vm.clear()
        for thing in file.handles.drain():
            self.vram.drop(thing)

    def _drop_dmabuf(self, fd: int) -> None:
        shared = self.dmabufs.pop(fd)
        shared.file.dmabufs -= 1
        self.vram.drop(shared.thing)

    def _forget_kept(self, file: OpenFile | None = None) -> None:
        """Undo the leaks of descriptors and CPU mappings: all, or one file's."""
        for fd in [fd for fd in self.kept_fds if file in (None, self.dmabufs[fd].file)]:
            self.kept_fds.remove(fd)
            self._drop_dmabuf(fd)
            self._base.close(fd)
        for kept in [kept for kept in self.kept_maps if file in (None, kept[1].file)]:
            self.kept_maps.remove(kept)
            self._drop_map(kept[1])
            self._base.unmap(kept[0])

    def _power_off(self) -> None:
        """When nobody has the node open, what was leaked in it goes; with the last user of its memory the VRAM too."""
        if self.files:
            return
        self._forget_kept()
        if not self.dmabufs and not self.maps and self.memory >= 0:
            self._drop_engine()
            self._base.close(self.memory)
            self.memory = -1

    # -- CPU mappings --

    def map(self, fd: int, size: int, offset: int) -> Mapped:
        """mmap(2) of the node at an object's offset, or of a dma-buf. EINVAL, EACCES (another file's object)."""
        self._may("cpu_map")
        if fd in self.dmabufs:
            file, thing = self.dmabufs[fd]
            at = offset
        else:
            file = self.files[fd]
            found = self.vram.objects.get(offset // PAGE)
            if found is None or offset % PAGE:
                raise fault(errno.EINVAL, f"no object at offset {offset:#x}")
            if found.owner is not file:
                raise fault(errno.EACCES, "the object is another file's")
            thing, at = found, 0
        if at % PAGE or size <= 0 or at + size > thing.pages * PAGE:
            raise fault(errno.EINVAL, f"{size} bytes at {at:#x} of an object of {thing.pages} pages")
        mapping = self._base.map(self.memory, size, thing.start * PAGE + at)
        self.maps[id(mapping)] = (mapping, Shared(file, self.vram.hold(thing)))
        file.cpu_maps += 1
        return mapping

    def unmap(self, mapping: Mapped) -> None:
        """munmap(2). BufferError while a view is alive."""
        kept = self.maps[id(mapping)]
        if self._leaks and self._skips("cpu_map"):
            self.kept_maps.append(kept)
        else:
            self._base.unmap(mapping)
            self._drop_map(kept[1])
        del self.maps[id(mapping)]
        if not self.files:
            self._power_off()

    def _drop_map(self, shared: Shared) -> None:
        shared.file.cpu_maps -= 1
        self.vram.drop(shared.thing)

    # -- objects --

    def create(self, file: OpenFile, size: int, offset: int, handle: int, pad: int) -> Fields:
        """CREATE. EINVAL, ENOSPC."""
        self._may("object")
        pages = -(-size // PAGE)
        if not pages or offset or handle or pad:
            raise fault(errno.EINVAL, f"an object of {size} bytes")
        if (self.vram.used + pages) * PAGE > self.options.vram_bytes - self.others.taken(self.now):
            raise fault(errno.ENOSPC, f"no {pages} pages of VRAM are free")
        thing = self.vram.hold(self.vram.take(pages, file))
        return pages * PAGE, thing.start * PAGE, file.handles.add(thing), 0

    def destroy(self, file: OpenFile, handle: int, pad: int) -> None:
        """DESTROY. EINVAL."""
        if not self._skipped(file.handles, handle, "object"):
            self.vram.drop(file.handles.pop(handle, "handle"))

    def export(self, file: OpenFile, handle: int, fd: int) -> Fields:
        """EXPORT. ENOENT, EMFILE."""
        self._may("export")
        thing = file.handles.get(handle, "handle")
        fd = self._base.memfd("sim-dmabuf", 0, 0)
        self.dmabufs[fd] = Shared(file, self.vram.hold(thing))
        file.dmabufs += 1
        return handle, fd

    # -- page tables --

    def vm_create(self, file: OpenFile, vm: int, pad: int) -> Fields:
        """VM_CREATE."""
        self._alive()
        return file.vms.add(PageTable(self.vram, self.options.slots)), 0

    def vm_destroy(self, file: OpenFile, vm: int, pad: int) -> None:
        """VM_DESTROY. EINVAL."""
        file.vms.pop(vm, "VM").clear()

    def gpu_map(self, file: OpenFile, va: int, size: int, handle: int, vm: int) -> None:
        """MAP. ENOENT, EINVAL, EEXIST, ENOSPC."""
        self._may("gpu_map")
        file.vms.get(vm, "VM").map(va, size, file.handles.get(handle, "handle"))

    def gpu_unmap(self, file: OpenFile, va: int, size: int, vm: int, pad: int) -> None:
        """UNMAP. ENOENT."""
        table = file.vms.get(vm, "VM")
        table.unmap(va, size, forget=self._leaks and va in table.mappings and self._skips("gpu_map"))

    # -- queues --

    def queue_create(self, file: OpenFile, depth: int, queue: int) -> Fields:
        """QUEUE_CREATE. EINVAL."""
        self._may("queue")
        return depth, file.queues.add(Jobs(self.vram, depth, self.options.latency))

    def queue_destroy(self, file: OpenFile, queue: int, pad: int) -> None:
        """QUEUE_DESTROY. EINVAL."""
        if not self._skipped(file.queues, queue, "queue"):
            file.queues.pop(queue, "queue").stop()

    def submit(
        self, file: OpenFile, queue: int, vm: int, op: int, value: int, dst: int, src: int, size: int, point: int
    ) -> Fields:
        """SUBMIT. ENOENT, EINVAL, EFAULT (nothing is mapped there), EBUSY (full), EIO (the queue is dead)."""
        self._alive()
        jobs = file.queues.get(queue, "queue")
        if op == uapi.EXEC and not value and not dst:
            things, effect = self._instruction(file.vms.get(vm, "VM"), src, size)
            return queue, vm, op, value, dst, src, size, jobs.submit(self.now, things, effect)
        if op == uapi.LIST and not dst and not src and not size:
            found = jobs.lists.get(value, "list")
            things, effect = found.placed(file.vms.get(vm, "VM"))
            point = jobs.submit(self.now, things, effect, instructions=len(found.instructions))
            return queue, vm, op, value, dst, src, size, point
        if op not in (uapi.NOP, uapi.FILL, uapi.COPY) or (op == uapi.NOP) != (size == 0) or size % 4:
            raise fault(errno.EINVAL, f"job {op} of {size} bytes")
        places = [] if op == uapi.NOP else [dst] if op == uapi.FILL else [dst, src]
        spots = [file.vms.get(vm, "VM").find(va, size) for va in places]
        filled = self._effect(spots, value, size) if spots else None
        point = jobs.submit(self.now, tuple(thing for thing, _ in spots), filled)
        return queue, vm, op, value, dst, src, size, point

    def record(self, file: OpenFile, queue: int, vm: int, number: int, count: int, src: int, size: int) -> Fields:
        """RECORD. ENOENT, EINVAL, EFAULT, ENOSPC, EIO (the queue is dead)."""
        self._alive()
        jobs, table = file.queues.get(queue, "queue"), file.vms.get(vm, "VM")
        jobs.check_alive()
        if count:
            raise fault(errno.EINVAL, f"a count of {count}")
        place = self._read(table, src, size)
        kept, found = jobs.list_of(number)
        try:
            found.add(place)
        except OSError:
            if not number:
                jobs.lists.pop(kept, "list")
            raise
        return queue, vm, kept, len(found.instructions), src, size

    def forget(self, file: OpenFile, queue: int, number: int) -> None:
        """FORGET. ENOENT, EINVAL."""
        file.queues.get(queue, "queue").lists.pop(number, "list")

    def _instruction(self, table: PageTable, va: int, size: int) -> Placed:
        """The objects that an instruction at ``va`` uses, and what it does. EINVAL, EFAULT; ENOSYS without numpy."""
        return self._read(table, va, size)()

    def _read(self, table: PageTable, va: int, size: int) -> Callable[[], Placed]:
        """An instruction at ``va``, taken in: what finds its operands."""
        thing, at = table.find(va, size)
        try:
            engine = self._engine = self._engine or self._new_engine()
        except ImportError as error:
            raise fault(errno.ENOSYS, f"nothing computes here: {error}") from error
        return engine.prepare(thing, at, size, table.find)

    def _new_engine(self) -> Engine:
        from accelctl.backends.sim.ops.engine import Engine

        return Engine(self._base.map(self.memory, self.options.vram_bytes, 0))

    def _drop_engine(self) -> None:
        if self._engine is not None:
            vram = self._engine.close()
            self._engine = None
            self._base.unmap(vram)

    def _effect(self, places: list[tuple[Object, int]], value: int, size: int) -> Callable[[], None]:
        def run() -> None:
            where, *rest = places
            data = self._access(rest[0], size, None) if rest else value.to_bytes(4, "little") * (size // 4)
            self._access(where, size, data)

        return run

    def _access(self, place: tuple[Object, int], size: int, data: bytes | None) -> bytes:
        """Read, or write ``data``, as the device does: in VRAM, past any CPU mapping."""
        thing, at = place
        window = self._base.map(self.memory, thing.pages * PAGE, thing.start * PAGE)
        try:
            if data is not None:
                window[at : at + size] = data
            return b"" if data is not None else window[at : at + size]
        finally:
            self._base.unmap(window)

    def wait(self, file: OpenFile, queue: int, dead: int, point: int, ticks: int, passed: int) -> Fields:
        """WAIT. ENOENT, EINVAL, EIO (that point is never passed)."""
        self._alive()
        jobs = file.queues.get(queue, "queue")
        self.now = max(self.now, min(jobs.done_at(point), self.now + ticks))
        jobs.advance(self.now)
        if point > jobs.passed:
            jobs.check_alive()
        return queue, bool(jobs.dead), point, ticks, jobs.passed

    # -- time and counters --

    def info(self, file: OpenFile, vram_bytes: int, ticks: int) -> Fields:
        """INFO."""
        return self.options.vram_bytes, self.now

    def idle(self, file: OpenFile, ticks: int) -> None:
        """IDLE. EINVAL."""
        if ticks > MOST_IDLE:
            raise fault(errno.EINVAL, f"{ticks} ticks")
        self.now += ticks

    def count(self, file: OpenFile, counter: int, pad: int, value: int) -> Fields:
        """COUNT. EINVAL."""
        if counter >= len(uapi.COUNTERS):
            raise fault(errno.EINVAL, f"counter {counter}")
        return counter, 0, self.used() if uapi.COUNTERS[counter] == "vram_used" else self.exact(file)[counter]

    def exact(self, file: OpenFile) -> Fields:
        """The file's own counters, in the order of COUNTERS."""
        pages = sum(vm.pages for vm in file.vms.things.values())
        return len(file.handles.things), pages, file.cpu_maps, file.dmabufs, len(file.queues.things)

    def used(self) -> int:
        """Bytes of VRAM that the device-wide counter shows: whole pages, others' and noise included."""
        for jobs in chain.from_iterable(file.queues.things.values() for file in self.files.values()):
            jobs.advance(self.now)
        mine, total = self.vram.used * PAGE, self.options.vram_bytes
        shown = mine + min(self.others.shown(self.now), total - mine)
        return max(0, shown) // PAGE * PAGE

    def sweep(self, file: OpenFile, *asked: int) -> Fields:
        """SWEEP. What the user still has in his own hands (descriptors, CPU mappings) is counted, and stays his. VMs
        stay, empty."""
        found = self.exact(file)
        for queue in file.queues.drain():
            queue.stop()
        for vm in file.vms.things.values():
            vm.clear()
        for thing in file.handles.drain():
            self.vram.drop(thing)
        self._forget_kept(file)
        return found

    # -- what was ordered --

    def _alive(self) -> None:
        if self.options.lost and self.now >= self.options.lost:
            raise fault(errno.ENODEV, "the device is lost")

    def _may(self, stage: str) -> None:
        """Before something is acquired: the device is there, and this is not the refusal that was ordered."""
        if not self._troubles:
            return
        self._alive()
        refusal = self.options.fail.get(stage)
        if refusal is not None:
            self._acquires[stage] += 1
            if self._acquires[stage] % refusal.nth == 0:
                raise fault(refusal.errno, f"{stage} is refused, as ordered")

    def _skips(self, stage: str) -> bool:
        """Whether this release is one that is acknowledged only."""
        every = self.options.leak.get(stage)
        if every is None:
            return False
        self._releases[stage] += 1
        return self._releases[stage] % every == 0

    def _skipped(self, numbers: Numbers[Any], number: int, stage: str) -> bool:
        return number in numbers.things and self._skips(stage)

    # -- invariants --

    def check(self) -> None:
        """Assert that pages, numbers, page tables and references agree."""
        self.vram.check()
        held: Counter[int] = Counter()
        files = {id(file): file for file in self.files.values()}
        shares = [shared for _, shared in chain(self.maps.values(), self.kept_maps)]
        for file in files.values():
            held.update(thing.start for thing in file.handles.things.values())
            for table in file.vms.things.values():
                table.check()
                held.update(thing.start for _, thing in table.mappings.values())
                held.update(thing.start for thing in table.forgotten)
            for jobs in file.queues.things.values():
                held.update(thing.start for job in jobs.flying for thing in job.things)
            for numbers in (file.handles, file.vms, file.queues):
                numbers.check()
            assert file.cpu_maps == sum(shared.file is file for shared in shares), "CPU mappings"
            assert file.dmabufs == sum(shared.file is file for shared in self.dmabufs.values()), "dma-bufs"
        held.update(shared.thing.start for shared in chain(shares, self.dmabufs.values()))
        assert held == {start: thing.refs for start, thing in self.vram.objects.items()}, "references"


CALLS: dict[int, tuple[str, int]] = {
    uapi.INFO.number: ("info", 0),
    uapi.CREATE.number: ("create", 1),
    uapi.DESTROY.number: ("destroy", 1),
    uapi.EXPORT.number: ("export", 1),
    uapi.VM_CREATE.number: ("vm_create", 1),
    uapi.VM_DESTROY.number: ("vm_destroy", 1),
    uapi.MAP.number: ("gpu_map", 1),
    uapi.UNMAP.number: ("gpu_unmap", 1),
    uapi.QUEUE_CREATE.number: ("queue_create", 1),
    uapi.QUEUE_DESTROY.number: ("queue_destroy", 1),
    uapi.SUBMIT.number: ("submit", 1),
    uapi.WAIT.number: ("wait", 1),
    uapi.IDLE.number: ("idle", 0),
    uapi.COUNT.number: ("count", 0),
    uapi.SWEEP.number: ("sweep", 0),
    uapi.RECORD.number: ("record", 1),
    uapi.FORGET.number: ("forget", 1),
}
"""Number -> method of Device, and the ticks that it takes."""
