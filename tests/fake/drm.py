"""DRM as all its drivers share it: dispatch, GEM handles, mmap offsets, dma-bufs (drm_ioctl.c, drm_gem.c, drm_prime.c).

A GEM object is held by each handle, each mapping, each address space that it is bound in and each dma-buf made of it.
The dma-buf is held by its descriptors, by each import, and by the handle it was made from or imported as.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import ClassVar

from tests.fake.core import Backing, Driver, FakeError, FakeKernel, File, Lost, serves
from tests.fake.tables import Call, table
from tests.fake.things import PAGE, Args, Numbers, Ranges, Thing, oops

CORE = "drm-core"
_FIRST_OFFSET = 1 << 32


class Bo(Thing):
    """A GEM object. ``domain`` names what it uses up; ``vm`` is the one address space it may be bound in (0: any)."""

    def __init__(self, driver: DrmDriver | None, alive: dict[int, Thing], size: int, domain: str = "") -> None:
        super().__init__(alive, "object", domain, size)
        self.driver, self.domain = driver, domain
        self.dmabuf: DmaBuf | None = None
        self.source: DmaBuf | None = None
        """What it was imported from."""
        self.offset, self.address, self.handles, self.flags, self.domains = 0, 0, 0, 0, 0
        self.place: int | None = None
        self.memory = (-1, 0)
        """Descriptor and offset of its bytes where they are somebody else's (a memfd)."""
        self.vm: Thing | None = None
        self.mappable, self.inside = True, False
        self.vm_heap: Vm
        """amdxdna: what lies in this heap."""


class DmaBuf(Thing):
    """A dma-buf of an object."""

    def __init__(self, alive: dict[int, Thing], bo: Bo) -> None:
        super().__init__(alive, "dma-buf", "", bo.size)
        self.bo = bo
        bo.hold(("dma-buf",))
        self.gone.append(self._end)

    def _end(self) -> None:
        self.bo.dmabuf = None
        self.bo.drop(("dma-buf",))


class Vm(Thing):
    """A device address space: what is bound holds its object."""

    def __init__(self, alive: dict[int, Thing], label: str, low: int, high: int) -> None:
        super().__init__(alive, "address space", label)
        self.ranges, self.low, self.high = Ranges(), low, high
        self.at: dict[int, Thing | None] = {}
        """Start -> what is bound there."""
        self.unusable = False
        self.kernel = (0, 0)
        """nouveau: what the kernel keeps to itself."""
        self.gone.append(self.clear)

    def bind(self, start: int, size: int, what: Thing | None, *, taken: int = errno.EINVAL) -> None:
        """Raises OSError where it is misaligned, outside or taken."""
        if not size or start % PAGE or size % PAGE:
            raise oops(errno.EINVAL, f"bind of {size:#x} bytes at {start:#x}: not whole pages")
        if start < self.low or start + size > self.high:
            raise oops(errno.EINVAL, f"bind of {size:#x} bytes at {start:#x}, which is outside")
        mark = Thing(self._alive, "mapping on the device", f"at {start:#x}", size)
        if not self.ranges.add(start, size, mark):
            raise oops(taken, f"bind at {start:#x}: the addresses are taken")
        mark.hold(("address space", self.label))
        self.at[start] = what
        if what is not None:
            what.hold(("bound at", f"{start:#x}"))
            mark.gone.append(lambda: what.drop(("bound at", f"{start:#x}")))
        mark.gone.append(lambda: (self.ranges.remove(start), self.at.pop(start)))

    def unbind(self, start: int, size: int, missing: int = errno.EINVAL) -> None:
        """Exactly one range; OSError otherwise."""
        found = self.ranges.get(start)
        if found is None or found[0] != size:
            raise oops(missing, f"unbind of {size:#x} bytes at {start:#x}: {found[0] if found else 'nothing'} is there")
        found[1].drop(("address space", self.label))

    def carve(self, start: int, size: int) -> int:
        """Take out whatever lies in there, parts of it too (drm_gpuvm_sm_unmap): how many pieces were hit."""
        hit = self.ranges.overlapping(start, size)
        for begin in hit:
            length, mark = self.ranges.get(begin) or (0, None)
            what, end = self.at[begin], begin + length
            rest = [(begin, start - begin)] * (begin < start) + [(start + size, end - start - size)] * (
                end > start + size
            )
            if what is not None:
                what.hold("split")
            assert isinstance(mark, Thing)
            mark.drop(("address space", self.label))
            for piece, count in rest:
                self.bind(piece, count, what)
            if what is not None:
                what.drop("split")
        return len(hit)

    def clear(self) -> None:
        """All of it."""
        for _, _, mark in self.ranges.items():
            mark.drop(("address space", self.label))


class DrmFile:
    """What DRM keeps for an open file."""

    def __init__(self, *, card: bool, render: bool) -> None:
        self.card, self.render = card, render
        self.handles = Numbers()
        self.prime: dict[DmaBuf, int] = {}
        self.tables: dict[str, Numbers] = {}
        self.vm: Vm | None = None

    def numbers(self, kind: str) -> Numbers:
        """The numbers of another kind of thing: address spaces, contexts, queues."""
        return self.tables.setdefault(kind, Numbers())


class DmaBufDriver(Driver):
    """dma-buf descriptors (dma-buf.c)."""

    name = "dma-buf"
    orderly = True

    def known(self) -> Iterable[Call]:
        return (call for call in table("dma-buf").calls() if call.name.startswith("DMA_BUF"))

    def ioctl(self, file: File, number: int, argument: bytearray | int) -> int:
        constants = table("dma-buf").constants
        call = next(one for one in self.known() if one.name == "DMA_BUF_IOCTL_SYNC")
        if number != call.number or isinstance(argument, int) or len(argument) < call.layout.size:
            raise FakeError(f"{file}: nothing here plays ioctl {number:#x}")
        args = Args(call.name, call.layout, bytearray(argument[: call.layout.size]))

        def sync() -> int:
            args.flags("flags", constants["DMA_BUF_SYNC_VALID_FLAGS_MASK"])
            if not args["flags"] & constants["DMA_BUF_SYNC_RW"]:
                raise oops(errno.EINVAL, "DMA_BUF_IOCTL_SYNC for neither reading nor writing")
            return 0

        op = "END" if args["flags"] & constants["DMA_BUF_SYNC_END"] else "START"
        return self.machine.perform(call.name, op, sync)

    def mmap(self, file: File, size: int, offset: int) -> Backing:
        buffer: DmaBuf = file.state
        if offset + size > buffer.size:
            raise oops(errno.EINVAL, f"mmap of {size} bytes of a dma-buf of {buffer.size}")
        if not buffer.bo.mappable:
            raise oops(errno.ENODEV, "its exporter maps nothing")
        backing = bytes_of(self.machine, buffer.bo)
        return Backing(buffer, backing[0], backing[1] + offset)

    def released(self, file: File) -> None:
        file.state.drop(("descriptor", file.fd))


def bytes_of(machine: FakeKernel, bo: Bo) -> tuple[int, int]:
    """Descriptor and offset of the bytes of an object, which get a place when they are first wanted."""
    if bo.source is not None:
        return bytes_of(machine, bo.source.bo)
    if bo.memory[0] >= 0:
        return bo.memory
    if bo.place is None:
        place = bo.place = machine.arena.place(bo.size)
        bo.gone.append(lambda: machine.arena.give_back(place, bo.size))
    return machine.arena.fd, bo.place


def dma_buf_file(machine: FakeKernel, buffer: DmaBuf) -> int:
    """A new descriptor of a dma-buf. Raises OSError (EMFILE); one that was made for this is gone then."""
    try:
        file = machine.new_file("dma-buf", DmaBufDriver(machine), buffer)
    except OSError:
        if not buffer.holders:
            buffer.scrap()
        raise
    buffer.hold(("descriptor", file.fd))
    return file.fd


def _tables(names: tuple[str, ...]) -> dict[int, Call]:
    found: dict[int, Call] = {}
    for name in names:
        for call in table(name).calls():
            if call.number >> 8 & 0xFF == ord("d"):
                known = found.setdefault(call.cmd, call)
                if known is not call:  # one command, two names (i915's MMAP_GTT grew into MMAP_OFFSET)
                    best = max(known, call, key=lambda one: one.layout.size)
                    permissions = known.permissions or call.permissions
                    found[call.cmd] = best._replace(numbers=known.numbers | call.numbers, permissions=permissions)
    return found


class DrmDriver(Driver):
    """A DRM or accel driver. Subclasses add their table and their handlers."""

    table_name = CORE
    renders = True
    prefers_render = True
    dumb = False
    imports = exports = True
    operations: ClassVar[dict[str, tuple[str, dict[int, str]]]] = {}
    """Ioctl that does many things -> the field that says which, and their names."""

    def __init__(self, machine: FakeKernel) -> None:
        super().__init__(machine)
        self.calls = _tables((CORE, self.table_name) if self.table_name != CORE else (CORE,))
        self.used = {"vram": 0, "gtt": 0}
        self.offsets: dict[int, Bo] = {}
        self._next_offset = _FIRST_OFFSET
        self.constants = table(self.table_name).constants
        self.master: File | None = None

    def known(self) -> Iterable[Call]:
        return self.calls.values()

    # -- files --

    def opened(self, file: File) -> None:
        card = "/card" in file.path
        file.state = DrmFile(card=card, render="/renderD" in file.path)
        if card and self.master is None:
            self.master = file

    def released(self, file: File) -> None:
        self.forget(file)
        state: DrmFile = file.state
        for handle in tuple(state.handles):
            self.close_handle(file, handle)
        for kind, numbers in state.tables.items():
            for number in tuple(numbers):
                numbers.give_back(number).drop((kind, file.fd, number))
        if self.master is file:
            self.master = None

    def forget(self, file: File) -> None:
        """The driver's own part of a file's end (postclose), before the handles go."""

    # -- dispatch --

    def ioctl(self, file: File, number: int, argument: bytearray | int) -> int:
        call = self._call(file, number)
        size, way = number >> 16 & 0x3FFF, number >> 30
        if size and (isinstance(argument, int) or len(argument) < size):
            raise FakeError(f"{file}: {call.name} needs {size} bytes; the kernel would write behind the argument")
        self._permit(file, call)
        data = bytes(argument[:size]) if way & 1 and not isinstance(argument, int) else b""
        wanted = max(call.layout.size, size)
        args = Args(call.name, call.layout, bytearray(data.ljust(wanted, b"\0")))
        method, op = self.handler(call.name), self.operation(call, args)

        def done() -> int:
            result = method(file, args) or 0
            args.check()
            return int(result)

        copied = isinstance(argument, bytearray) and way & 2
        try:
            return self.machine.perform(call.name, op, done)
        except Lost:
            copied = False
            raise
        finally:
            if copied and isinstance(argument, bytearray):
                argument[:size] = args.buffer[:size]

    def _call(self, file: File, number: int) -> Call:
        call = self.calls.get(number & 0xFF)
        if number >> 8 & 0xFF != ord("d") or call is None:
            raise FakeError(f"{file}: {self.name} has no ioctl {number:#x}")
        if getattr(self.machine, "strict", True) and number not in call.numbers:
            numbers = ", ".join(map(hex, sorted(call.numbers)))
            raise FakeError(f"{file}: {call.name} as {number:#x}; kernels have {numbers}")
        return call

    def _permit(self, file: File, call: Call) -> None:
        if file.state.render and "DRM_RENDER_ALLOW" not in call.permissions:
            self.machine.counts[call.name] += 1
            raise oops(errno.EACCES, f"{call.name} on a render node")

    def operation(self, call: Call, args: Args) -> str:
        """What a call that does many things does, for orders and traces."""
        field, names = self.operations.get(call.name, ("", {}))
        return names.get(call.layout.get(args.came, field), "") if field else ""

    # -- objects --

    def charge(self, bo: Bo, pool: str, code: int = errno.ENOMEM) -> None:
        """Use up memory of the device until the object ends. OSError where there is not enough."""
        limit = int(getattr(self.machine, pool))
        if self.used[pool] + bo.size > limit:
            raise oops(code, f"{self.used[pool]} of {limit} bytes of {pool} are used, {bo.size} more asked for")
        self.used[pool] += bo.size

        def back() -> None:
            self.used[pool] -= bo.size

        bo.gone.append(back)

    def new(self, size: int, pool: str = "gtt", code: int = errno.ENOMEM) -> Bo:
        """An object of whole pages that nothing holds yet."""
        if not size:
            raise oops(errno.EINVAL, "an object of 0 bytes")
        bo = Bo(self, self.machine.alive, -(-size // PAGE) * PAGE, pool)
        self.charge(bo, pool, code)
        return bo

    def handle(self, file: File, bo: Bo) -> int:
        """A new handle for an object."""
        number = file.state.handles.take(bo)
        bo.hold(("handle", number, "of", file.fd))
        bo.handles += 1
        return int(number)

    def find(self, file: File, handle: int, code: int = errno.ENOENT) -> Bo:
        """The object behind a handle. OSError."""
        bo = file.state.handles.get(handle)
        if bo is None:
            raise oops(code, f"{file} has no handle {handle}")
        assert isinstance(bo, Bo)
        return bo

    def close_handle(self, file: File, handle: int, code: int = errno.EINVAL) -> None:
        """End of a handle (drm_gem_handle_delete)."""
        bo, state = self.find(file, handle, code), file.state
        self.handle_closing(file, bo, handle)
        for buffer, number in tuple(state.prime.items()):
            if number == handle:
                del state.prime[buffer]
                buffer.drop(("prime cache of", file.fd))
        state.handles.give_back(handle)
        bo.handles -= 1
        bo.drop(("handle", handle, "of", file.fd))

    def handle_closing(self, file: File, bo: Bo, handle: int) -> None:
        """The driver's part (gem_close), while the object is still there."""

    def offset_of(self, bo: Bo) -> int:
        """Where the CPU maps an object: never the same number twice, so that a stale one is noticed."""
        if not bo.offset:
            bo.offset = self._next_offset
            self._next_offset += bo.size + PAGE
            self.offsets[bo.offset] = bo
            bo.gone.append(lambda: self.offsets.pop(bo.offset))
        return bo.offset

    def mmap(self, file: File, size: int, offset: int) -> Backing:
        bo = self.offsets.get(offset)
        if bo is None or size > bo.size:
            raise oops(errno.EINVAL, f"mmap of {size} bytes at {offset:#x}: {bo or 'no object there'}")
        if bo not in file.state.handles.values() and not self.may_map(file, bo):
            raise oops(errno.EACCES, f"{file} has no handle of {bo}")
        fd, start = bytes_of(self.machine, bo)
        return Backing(bo, fd, start)

    def may_map(self, file: File, bo: Bo) -> bool:
        """Whether a file without a handle may map it."""
        return False

    def bound(self, file: File, kind: str, vm: Thing) -> int:
        """A number of another kind for ``vm`` (an address space, context, queue)."""
        number = file.state.numbers(kind).take(vm)
        vm.hold((kind, file.fd, number))
        return int(number)

    def unbound(self, file: File, kind: str, number: int, code: int = errno.ENOENT) -> None:
        """End of such a number."""
        numbers = file.state.numbers(kind)
        if number not in numbers:
            raise oops(code, f"{file} has no {kind} {number}")
        numbers.give_back(number).drop((kind, file.fd, number))

    # -- what all of them answer --

    @serves("DRM_IOCTL_VERSION")
    def version(self, file: File, args: Args) -> None:
        """Name, date and description, each cut off at the room there is."""
        texts = {"name": self.name, "date": "0", "desc": f"fake {self.name}"}
        for field, text in texts.items():
            room, pointer = args[f"{field}_len"], args[field]
            if room and pointer:
                self.machine.user.write(pointer, text.encode()[:room])
            args[f"{field}_len"] = len(text)
        args["version_major"] = 1

    @serves("DRM_IOCTL_GET_CAP")
    def get_cap(self, file: File, args: Args) -> None:
        """EINVAL for a capability that no kernel knows; 0 for one that this driver has not."""
        core = table(CORE).constants
        caps = {value for name, value in core.items() if name.startswith("DRM_CAP_")}
        if args["capability"] not in caps:
            raise oops(errno.EINVAL, f"capability {args['capability']}")
        prime = core["DRM_PRIME_CAP_IMPORT"] * self.imports | core["DRM_PRIME_CAP_EXPORT"] * self.exports
        values = {core["DRM_CAP_DUMB_BUFFER"]: int(self.dumb), core["DRM_CAP_PRIME"]: prime}
        args["value"] = values.get(args["capability"], 0)

    @serves("DRM_IOCTL_DROP_MASTER")
    def drop_master(self, file: File, args: Args) -> None:
        """EINVAL for who is not master."""
        if self.master is not file:
            raise oops(errno.EINVAL, "not master")
        self.master = None

    @serves("DRM_IOCTL_GEM_CLOSE")
    def gem_close(self, file: File, args: Args) -> None:
        """End of a handle."""
        self.close_handle(file, args["handle"])

    @serves("DRM_IOCTL_MODE_CREATE_DUMB")
    def create_dumb(self, file: File, args: Args) -> None:
        """drm_mode_create_dumb; outputs that came in are ignored there."""
        if not self.dumb:
            raise oops(errno.ENOSYS, "no dumb buffers")
        args.zero("flags")
        width, height, bpp = args["width"], args["height"], args["bpp"]
        if not width or not height or bpp not in (8, 16, 24, 32):
            raise oops(errno.EINVAL, f"{width} x {height} x {bpp}")
        pitch = -(-width * (bpp // 8) // 8) * 8
        if pitch * height > (1 << 32) - 1:
            raise oops(errno.EINVAL, f"{pitch} x {height} bytes")
        bo = self.new(pitch * height, self.dumb_pool)
        args["handle"], args["pitch"], args["size"] = self.handle(file, bo), pitch, bo.size

    dumb_pool = "gtt"

    @serves("DRM_IOCTL_MODE_MAP_DUMB")
    def map_dumb(self, file: File, args: Args) -> None:
        """Not for imports (drm_gem_dumb_map_offset)."""
        bo = self.find(file, args["handle"])
        if bo.source is not None:
            raise oops(errno.EINVAL, "an import")
        args["offset"] = self.offset_of(bo)

    @serves("DRM_IOCTL_MODE_DESTROY_DUMB")
    def destroy_dumb(self, file: File, args: Args) -> None:
        """GEM_CLOSE by another name."""
        self.close_handle(file, args["handle"])

    @serves("DRM_IOCTL_PRIME_HANDLE_TO_FD")
    def export(self, file: File, args: Args) -> None:
        """One dma-buf per object, as long as that lives; each call a new descriptor."""
        core = table(CORE).constants
        flags = args.flags("flags", core["DRM_CLOEXEC"] | core["DRM_RDWR"])
        if not flags & core["DRM_CLOEXEC"]:
            raise FakeError(f"{file}: a dma-buf that children inherit")
        bo, state = self.find(file, args["handle"]), file.state
        args.seen("fd")
        if not self.exports or bo.vm is not None or not bo.mappable:
            raise oops(errno.EPERM if bo.vm is not None else errno.ENOSYS, "cannot be exported")
        buffer = bo.source or bo.dmabuf
        if buffer is None:
            buffer = bo.dmabuf = DmaBuf(self.machine.alive, bo)
        args["fd"] = dma_buf_file(self.machine, buffer)
        if buffer not in state.prime:
            state.prime[buffer] = args["handle"]
            buffer.hold(("prime cache of", file.fd))

    @serves("DRM_IOCTL_PRIME_FD_TO_HANDLE")
    def import_(self, file: File, args: Args) -> None:
        """Twice the same dma-buf: the same handle, without another reference."""
        args.seen("handle")
        args.zero("flags")
        other, state = self.machine.file(args["fd"]), file.state
        if other is None or not isinstance(other.state, DmaBuf):
            raise oops(errno.EINVAL if other else errno.EBADF, f"descriptor {args['fd']} is no dma-buf")
        buffer = other.state
        if buffer in state.prime:
            args["handle"] = state.prime[buffer]
            return
        if buffer.bo.driver is self:
            bo = buffer.bo
        else:
            if not self.imports:
                raise oops(errno.EINVAL, f"{self.name} does not import")
            bo = Bo(self, self.machine.alive, buffer.size, "imported")
            bo.source = buffer
            buffer.hold(("import of", self.name))
            bo.gone.append(lambda: buffer.drop(("import of", self.name)))
        args["handle"] = state.prime[buffer] = self.handle(file, bo)
        buffer.hold(("prime cache of", file.fd))
        try:
            self.imported(file, bo)
        except OSError:
            self.close_handle(file, state.prime[buffer])
            raise

    def imported(self, file: File, bo: Bo) -> None:
        """The driver's part of an import."""
