"""dma-heap, udmabuf, VFIO type 1, iommufd (drivers/dma-buf, drivers/vfio, drivers/iommu/iommufd)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable

from tests.fake.core import Driver, FakeError, FakeKernel, File, Lost, seals, serves
from tests.fake.drm import Bo, DmaBuf, Vm, dma_buf_file
from tests.fake.tables import Call, Table, table
from tests.fake.things import PAGE, Args, Numbers, Thing, oops

F_SEAL_SHRINK, F_SEAL_WRITE = 2, 8
EVERYTHING = (1 << 64) - 1


class Exact(Driver):
    """Calls chosen by their exact number."""

    table_name = ""

    def __init__(self, machine: FakeKernel) -> None:
        super().__init__(machine)
        self.table: Table = table(self.table_name)
        self.constants = self.table.constants

    def known(self) -> Iterable[Call]:
        return self.table.calls()

    def call(self, file: File, number: int) -> Call:
        """The call of this number that is served here; FakeError."""
        found = [call for call in self.known() if call.number == number and call.name in self.handlers]
        if not found:
            raise FakeError(f"{file}: {self.name} has no ioctl {number:#x}")
        return found[0]

    def taken(self, file: File, call: Call, argument: bytearray | int, size: int) -> bytes:
        """So many bytes of the argument; FakeError where it is shorter."""
        if isinstance(argument, int) or len(argument) < size:
            raise FakeError(f"{file}: {call.name} needs {size} bytes; the kernel would reach behind the argument")
        return bytes(argument[:size])

    def run(self, call: Call, args: Args, do: Callable[[], int | None]) -> int:
        """With all bytes accounted for."""

        def done() -> int:
            result = do() or 0
            args.check()
            return result

        return self.machine.perform(call.name, "", done)


class DmaHeap(Exact):
    """/dev/dma_heap/system."""

    name, table_name = "dma_heap", "dma-heap"

    def ioctl(self, file: File, number: int, argument: bytearray | int) -> int:
        call = self.call(file, number)
        data = self.taken(file, call, argument, call.layout.size)
        assert isinstance(argument, bytearray)
        args = Args(call.name, call.layout, bytearray(data))
        try:
            result = self.run(call, args, lambda: self.alloc(args))
        except Lost:
            self.machine.shut(args.layout.get(args.buffer, "fd"))  # a failed copy-out takes the descriptor back
            raise
        argument[: len(data)] = args.buffer
        return result

    @serves("DMA_HEAP_IOCTL_ALLOC")
    def alloc(self, args: Args) -> None:
        """Whole pages, as a dma-buf."""
        args.zero("fd")
        flags = args.flags("fd_flags", self.constants["DMA_HEAP_VALID_FD_FLAGS"])
        args.flags("heap_flags", self.constants["DMA_HEAP_VALID_HEAP_FLAGS"])
        if not flags & os.O_CLOEXEC:
            raise FakeError("a dma-buf that children inherit")
        size = -(-args["len"] // PAGE) * PAGE
        if not size:
            raise oops(errno.EINVAL, "0 bytes")
        if size > int(getattr(self.machine, "gtt", size)):
            raise oops(errno.ENOMEM, f"{size} bytes")
        bo = Bo(None, self.machine.alive, size, "heap")
        args["fd"] = dma_buf_file(self.machine, DmaBuf(self.machine.alive, bo))


class Udmabuf(Exact):
    """/dev/udmabuf: a memfd's pages, which stay pinned."""

    name = table_name = "udmabuf"

    def ioctl(self, file: File, number: int, argument: bytearray | int) -> int:
        call = self.call(file, number)
        args = Args(call.name, call.layout, bytearray(self.taken(file, call, argument, call.layout.size)))
        return self.run(call, args, lambda: self.create(args))

    @serves("UDMABUF_CREATE")
    def create(self, args: Args) -> int:
        """The descriptor is what the call returns."""
        args.flags("flags", self.constants["UDMABUF_FLAGS_CLOEXEC"])
        if not args["flags"]:
            raise FakeError("a dma-buf that children inherit")
        memfd, offset, size = args["memfd"], args["offset"], args["size"]
        if memfd not in self.machine.memfds:
            raise oops(errno.EBADF, f"descriptor {memfd} is no memfd")
        sealed = seals(memfd)
        if sealed < 0 or not sealed & F_SEAL_SHRINK or sealed & F_SEAL_WRITE:
            raise oops(errno.EINVAL, f"seals {sealed:#x}")
        if (offset | size) % PAGE or not size or offset + size > os.fstat(memfd).st_size:
            raise oops(errno.EINVAL, f"{size:#x} bytes at {offset:#x}")
        bo = Bo(None, self.machine.alive, size, "memfd pages")
        pinned = os.dup(memfd)
        bo.memory = (pinned, offset)
        bo.gone.append(lambda: os.close(pinned))
        return dma_buf_file(self.machine, DmaBuf(self.machine.alive, bo))


class Container(Exact):
    """/dev/vfio/vfio: a container, which maps once a group is in it."""

    name, table_name = "vfio", "vfio"
    ranges = ((0, 0xFEDFFFFF), (0xFEF00000, (1 << 39) - 1))
    """Addresses that the IOMMU leaves, ends included."""

    def opened(self, file: File) -> None:
        file.state = None
        self.groups: dict[File, int] = getattr(self, "groups", {})

    def released(self, file: File) -> None:
        self.drop(file)

    def drop(self, file: File) -> None:
        """No group is left, and with it no mapping."""
        if file.state is not None:
            file.state.clear()
        file.state = None

    def ioctl(self, file: File, number: int, argument: bytearray | int) -> int:
        call = self.call(file, number)
        if call.name == "VFIO_GET_API_VERSION":
            return self.machine.perform(call.name, "", lambda: self.constants["VFIO_API_VERSION"])
        if call.name in ("VFIO_SET_IOMMU", "VFIO_CHECK_EXTENSION"):
            return self.machine.perform(call.name, "", lambda: self.plain(file, call.name, argument))
        argsz = int.from_bytes(self.taken(file, call, argument, 4), "little")
        self.taken(file, call, argument, max(argsz, call.layout.size))
        assert isinstance(argument, bytearray)
        room = min(argsz, len(argument))
        args = Args(call.name, call.layout, bytearray(argument[: call.layout.size]))
        args.seen("argsz")
        extra = bytearray()

        def do() -> int:
            if argsz < call.layout.size:
                raise oops(errno.EINVAL, f"argsz {argsz} of {call.layout.size}")
            if file.state is None:
                raise oops(errno.EINVAL, "no IOMMU was set")
            extra[:] = self.handler(call.name)(file, args) or b""
            return 0

        result = self.run(call, args, do)
        answer = bytes(args.buffer) + bytes(extra)
        argument[: len(answer)] = answer if len(answer) <= room else args.buffer
        return result

    @serves("VFIO_SET_IOMMU", "VFIO_CHECK_EXTENSION", "VFIO_GET_API_VERSION")
    def plain(self, file: File, name: str, value: bytearray | int) -> int:
        """Calls with a plain number."""
        if not isinstance(value, int):
            raise FakeError(f"{file}: {name} takes a plain number")
        if name == "VFIO_CHECK_EXTENSION":
            return int(value in (self.constants["VFIO_TYPE1v2_IOMMU"], self.constants["VFIO_UNMAP_ALL"]))
        if value != self.constants["VFIO_TYPE1v2_IOMMU"] or file.state is not None or file not in self.joined():
            raise oops(errno.EINVAL, f"IOMMU {value}, or no group, or done already")
        file.state = Vm(self.machine.alive, f"of {file}", 0, 1 << 39)
        return 0

    def joined(self) -> list[File]:
        """Containers with a group."""
        return [
            one.state for one in self.machine.files.values() if isinstance(one.driver, Group) and one.state is not None
        ]

    def _free(self, file: File) -> int:
        return int(getattr(self.machine, "slots", 65535)) - len(file.state.ranges)

    @serves("VFIO_IOMMU_GET_INFO")
    def info(self, file: File, args: Args) -> bytes:
        """With two capabilities: usable addresses, and how many mappings are free."""
        args.seen("flags", "iova_pgsizes", "cap_offset", "pad")
        head = args.layout.size
        first = 16 + 16 * len(self.ranges)
        names = ("VFIO_IOMMU_INFO_PGSIZES", "VFIO_IOMMU_INFO_CAPS")
        args["argsz"], args["flags"] = head + first + 12, self.table.mask(*names)
        args["iova_pgsizes"], args["cap_offset"] = 0xFFFFF000, head
        usable = self.table.layout("struct vfio_iommu_type1_info_cap_iova_range")
        made = usable.pack(header__id=self.constants["VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE"], header__version=1)
        usable.put(made, "header.next", head + first)
        usable.put(made, "nr_iovas", len(self.ranges))
        for pair in self.ranges:
            made += b"".join(end.to_bytes(8, "little") for end in pair)
        slots = self.table.layout("struct vfio_iommu_type1_info_dma_avail")
        number = self.constants["VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL"]
        return bytes(made + slots.pack(header__id=number, header__version=1, avail=self._free(file)))

    @serves("VFIO_IOMMU_MAP_DMA")
    def map_dma(self, file: File, args: Args) -> None:
        """EEXIST over another one, ENOSPC without a slot (vfio_dma_do_map)."""
        both = self.table.mask("VFIO_DMA_MAP_FLAG_READ", "VFIO_DMA_MAP_FLAG_WRITE")
        flags, start, size = args.flags("flags", both), args["iova"], args["size"]
        if not flags or not size or (args["vaddr"] | start | size) % PAGE:
            raise oops(errno.EINVAL, f"{size:#x} bytes at {start:#x}, flags {flags:#x}")
        if not any(low <= start and start + size - 1 <= high for low, high in self.ranges):
            raise oops(errno.EINVAL, f"{start:#x} is not usable")
        if file.state.ranges.overlapping(start, size):
            raise oops(errno.EEXIST, f"mapped at {start:#x}")
        if not self._free(file):
            raise oops(errno.ENOSPC, "no slots")
        self.machine.user.pages(args["vaddr"], size)
        pages = Thing(self.machine.alive, "user pages", f"at {args['vaddr']:#x}", size)
        file.state.bind(start, size, pages)

    @serves("VFIO_IOMMU_UNMAP_DMA")
    def unmap_dma(self, file: File, args: Args) -> None:
        """Whole mappings only; ``size`` becomes what was unmapped, 0 included."""
        flags = args.flags("flags", self.constants["VFIO_DMA_UNMAP_FLAG_ALL"])
        start, size, vm = args["iova"], args["size"], file.state
        if flags:
            args.zero("iova", "size")
            start, size = 0, 1 << 40
        elif not size or (start | size) % PAGE:
            raise oops(errno.EINVAL, f"{size:#x} bytes at {start:#x}")
        hit = [] if self.machine.part else vm.ranges.overlapping(start, size)
        pieces = {begin: vm.ranges.get(begin)[0] for begin in hit}
        if any(begin < start or begin + length > start + size for begin, length in pieces.items()):
            raise oops(errno.EINVAL, "that would cut a mapping")
        for begin, length in pieces.items():
            vm.unbind(begin, length)
        args["size"] = sum(pieces.values())


class Group(Exact):
    """/dev/vfio/GROUP: in a container or not; one file at a time."""

    name, table_name = "vfio group", "vfio"

    def __init__(self, machine: FakeKernel, container: Container) -> None:
        super().__init__(machine)
        self.container = container
        self.viable = True

    def opened(self, file: File) -> None:
        if any(other.driver is self for other in self.machine.files.values()):
            raise oops(errno.EBUSY, "open already")

    def released(self, file: File) -> None:
        self._leave(file)

    def _leave(self, file: File) -> None:
        joined, file.state = file.state, None
        if joined is not None:
            self.container.drop(joined)

    def ioctl(self, file: File, number: int, argument: bytearray | int) -> int:
        if number == next(call.number for call in self.known() if call.name == "VFIO_GROUP_GET_DEVICE_FD"):
            raise FakeError(f"{file}: GET_DEVICE_FD resets the device, and is never to be called")
        call = self.call(file, number)
        return self.machine.perform(call.name, "", lambda: self.handler(call.name)(file, call, argument) or 0)

    @serves("VFIO_GROUP_GET_STATUS")
    def status(self, file: File, call: Call, argument: bytearray | int) -> None:
        """Viable, and whether it is in a container."""
        args = Args(call.name, call.layout, bytearray(self.taken(file, call, argument, call.layout.size)))
        assert isinstance(argument, bytearray)
        if args["argsz"] < call.layout.size:
            raise oops(errno.EINVAL, f"argsz {args['argsz']}")
        args.seen("flags")
        inside = self.constants["VFIO_GROUP_FLAGS_CONTAINER_SET"] if file.state is not None else 0
        args["flags"] = inside | self.constants["VFIO_GROUP_FLAGS_VIABLE"] * self.viable
        argument[: call.layout.size] = args.buffer

    @serves("VFIO_GROUP_SET_CONTAINER")
    def join(self, file: File, call: Call, argument: bytearray | int) -> None:
        """The container's descriptor, by pointer."""
        other = self.machine.file(int.from_bytes(self.taken(file, call, argument, 4), "little", signed=True))
        if file.state is not None or other is None or other.driver is not self.container:
            raise oops(errno.EINVAL if other else errno.EBADF, "no container, or in one already")
        if not self.viable:
            raise oops(errno.EPERM, "not viable")
        file.state = other

    @serves("VFIO_GROUP_UNSET_CONTAINER")
    def leave(self, file: File, call: Call, argument: bytearray | int) -> None:
        """The last group to leave takes the IOMMU, and all mappings, with it."""
        if file.state is None:
            raise oops(errno.EINVAL, "in no container")
        self._leave(file)


class Iommufd(Exact):
    """/dev/iommu, without devices: address spaces that pin nothing."""

    name, table_name = "iommufd", "iommufd"

    def opened(self, file: File) -> None:
        file.state = Numbers()

    def released(self, file: File) -> None:
        for number in tuple(file.state):
            file.state.give_back(number).drop(("id", number, "of", file.fd))

    def ioctl(self, file: File, number: int, argument: bytearray | int) -> int:
        call = self.call(file, number)
        size = int.from_bytes(self.taken(file, call, argument, 4), "little")
        data = self.taken(file, call, argument, size)
        assert isinstance(argument, bytearray)
        args = Args(call.name, call.layout, bytearray(data[: call.layout.size].ljust(call.layout.size, b"\0")))
        args.seen("size")

        def do() -> int:
            if size < call.layout.size:
                raise oops(errno.EINVAL, f"size {size} of {call.layout.size}")
            if any(data[call.layout.size :]):
                raise oops(errno.E2BIG, "behind the structure")
            return int(self.handler(call.name)(file, args) or 0)

        result = self.run(call, args, do)
        argument[: call.layout.size] = args.buffer
        return result

    def _ioas(self, file: File, number: int) -> Vm:
        vm = file.state.get(number)
        if not isinstance(vm, Vm):
            raise oops(errno.ENOENT, f"no address space {number}")
        return vm

    @serves("IOMMU_IOAS_ALLOC")
    def alloc(self, file: File, args: Args) -> None:
        """A new address space."""
        args.zero("flags", code=errno.EOPNOTSUPP)
        args.seen("out_ioas_id")
        vm = Vm(self.machine.alive, f"of {file}", PAGE, EVERYTHING)
        args["out_ioas_id"] = file.state.take(vm)
        vm.hold(("id", args.layout.get(args.buffer, "out_ioas_id"), "of", file.fd))

    @serves("IOMMU_DESTROY")
    def destroy(self, file: File, args: Args) -> None:
        """With all that is mapped in it."""
        self._ioas(file, args["id"])
        file.state.give_back(args["id"]).drop(("id", args["id"], "of", file.fd))

    @serves("IOMMU_IOAS_MAP")
    def map(self, file: File, args: Args) -> None:
        """At a fixed address, or at the lowest that is free."""
        names = ("FIXED_IOVA", "WRITEABLE", "READABLE")
        fixed, write, read = (self.constants[f"IOMMU_IOAS_MAP_{name}"] for name in names)
        flags = args.flags("flags", fixed | write | read, errno.EOPNOTSUPP)
        args.zero("__reserved", code=errno.EOPNOTSUPP)
        vm, size, start = self._ioas(file, args["ioas_id"]), args["length"], args["iova"]
        if not flags & (read | write) or not size or (args["user_va"] | size) % PAGE:
            raise oops(errno.EINVAL, f"{size:#x} bytes, flags {flags:#x}")
        if not flags & fixed:
            found = vm.ranges.lowest(size, PAGE, vm.low, vm.high)
            if found is None:
                raise oops(errno.ENOSPC, f"no room for {size:#x} bytes")
            start = found
        vm.bind(start, size, None, taken=errno.EEXIST)
        args["iova"] = start

    @serves("IOMMU_IOAS_UNMAP")
    def unmap(self, file: File, args: Args) -> None:
        """Whole mappings; all of them where the range is everything."""
        vm, start, size = self._ioas(file, args["ioas_id"]), args["iova"], args["length"]
        whole = (start, size) == (0, EVERYTHING)
        if not size or start + size - 1 > EVERYTHING:
            raise oops(errno.EOVERFLOW if size else errno.EINVAL, f"{size:#x} bytes at {start:#x}")
        pieces = {begin: vm.ranges.get(begin)[0] for begin in vm.ranges.overlapping(start, size)}  # type: ignore[index]
        cut = any(begin < start or begin + length > start + size for begin, length in pieces.items())
        if not whole and (cut or not pieces):
            raise oops(errno.ENOENT, f"{len(pieces)} mappings in {size:#x} bytes at {start:#x}, cut: {cut}")
        for begin, length in pieces.items():
            vm.unbind(begin, length)
        args["length"] = sum(pieces.values())

    @serves("IOMMU_IOAS_IOVA_RANGES")
    def iova_ranges(self, file: File, args: Args) -> None:
        """One, of everything."""
        args.zero("__reserved", code=errno.EOPNOTSUPP)
        self._ioas(file, args["ioas_id"])
        args["out_iova_alignment"] = 1
        if args["num_iovas"]:
            self.machine.user.write(args["allowed_iovas"], bytes(8) + EVERYTHING.to_bytes(8, "little"))
        args["num_iovas"] = 1
