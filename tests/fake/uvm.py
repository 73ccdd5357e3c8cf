"""NVIDIA's unified memory: ranges of addresses in a file, and objects of RM bound in them.

Numbers carry no size: the kernel copies its own structure in and out, so a shorter buffer is a broken heap.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.fake import nvtables as nv
from tests.fake.core import Driver, FakeError, FakeKernel, File, serves
from tests.fake.drm import Vm
from tests.fake.nvidia import Object, Rm, Status, answered
from tests.fake.tables import Call, table
from tests.fake.things import PAGE, Args, Thing


class Space:
    """A file's address space."""

    def __init__(self, driver: Uvm, file: File) -> None:
        alive = driver.machine.alive
        self.ready = False
        self.gpus: dict[bytes, Thing] = {}
        self.vaspaces: dict[bytes, Thing] = {}
        self.ranges = Vm(alive, f"ranges of {file}", 0, 1 << 56)
        self.mapped = Vm(alive, f"of {file}", 0, 1 << 56)


class Uvm(Driver):
    """The UVM node."""

    name = "nvidia-uvm"

    def __init__(self, machine: FakeKernel, manager: Rm) -> None:
        super().__init__(machine)
        self.manager = manager
        self.calls = nv.uvm_calls(manager.release)

    def known(self) -> Iterable[Call]:
        return self.calls.values()

    def opened(self, file: File) -> None:
        file.state = Space(self, file)

    def released(self, file: File) -> None:
        space: Space = file.state
        space.mapped.clear()
        space.ranges.clear()
        for uuid in tuple(space.gpus):
            self._forget(space, uuid)

    def ioctl(self, file: File, number: int, argument: bytearray | int) -> int:
        call = self.calls.get(number)
        if call is None:
            raise FakeError(f"{file}: UVM of {self.manager.release} has no call {number:#x} that is played here")
        if isinstance(argument, int) or len(argument) < call.layout.size:
            raise FakeError(f"{file}: {call.name} copies {call.layout.size} bytes, whatever the caller has room for")
        args = Args(call.name, call.layout, bytearray(argument[: call.layout.size]))
        where = call.permissions[1]
        if where:
            args.seen(where)
        return answered(self, file, args, argument, where, "")

    def _space(self, file: File) -> Space:
        space: Space = file.state
        if not space.ready:
            raise Status("ILLEGAL_ACTION", "no UVM_INITIALIZE")
        return space

    @serves("UVM_DEINITIALIZE")
    def deinitialize(self, file: File, args: Args) -> None:
        """Answers 0 and does nothing."""

    @serves("UVM_INITIALIZE")
    def initialize(self, file: File, args: Args) -> None:
        """Once is enough."""
        if args["flags"] & ~table("nvidia").constants["UVM_INIT_FLAGS_MASK"]:
            raise Status("INVALID_ARGUMENT", f"flags {args['flags']:#x}")
        file.state.ready = True

    @serves("UVM_MM_INITIALIZE")
    def mm_initialize(self, file: File, args: Args) -> None:
        """A second file that ends the first one's space with the process's memory."""
        other = self.machine.file(args["uvmFd"])
        if other is None or other.driver is not self or other is file or not other.state.ready:
            raise Status("INVALID_ARGUMENT", f"descriptor {args['uvmFd']}")

    def _gpu(self, space: Space, uuid: bytes) -> Thing:
        if uuid not in space.gpus:
            raise Status("INVALID_DEVICE", f"GPU {uuid.hex()} is not registered")
        return space.gpus[uuid]

    @serves("UVM_REGISTER_GPU")
    def register_gpu(self, file: File, args: Args) -> None:
        """A GPU that RM knows."""
        space, uuid = self._space(file), args.bytes("gpu_uuid.uuid")
        args.seen("numaEnabled", "numaNodeId", "rmCtrlFd", "hClient", "hSmcPartRef")
        if uuid not in [self.manager.uuid(number) for number in range(len(self.manager.gpus))]:
            raise Status("GPU_UUID_NOT_FOUND", uuid.hex())
        if uuid in space.gpus:
            self.machine.odd(f"GPU {uuid.hex()} registered twice")
            return
        space.gpus[uuid] = Thing(self.machine.alive, "GPU registered with UVM", uuid.hex()[:8])
        space.gpus[uuid].hold(("UVM", file.fd))
        space.gpus[uuid].label += f" by {file}"
        args["numaNodeId"] = -1

    @serves("UVM_UNREGISTER_GPU")
    def unregister_gpu(self, file: File, args: Args) -> None:
        """With its address space, where that is still registered."""
        space, uuid = self._space(file), args.bytes("gpu_uuid.uuid")
        self._gpu(space, uuid)
        self._forget(space, uuid)

    def _forget(self, space: Space, uuid: bytes) -> None:
        if uuid in space.vaspaces:
            self._leave(space, uuid)
        gone = space.gpus.pop(uuid)
        gone.drop(next(iter(gone.holders)))

    @serves("UVM_REGISTER_GPU_VASPACE")
    def register_vaspace(self, file: File, args: Args) -> None:
        """RM's address space for a registered GPU."""
        space, uuid = self._space(file), args.bytes("gpuUuid.uuid")
        self._gpu(space, uuid)
        control = self.machine.file(args["rmCtrlFd"])
        if control is None or control.driver is not self.manager or uuid in space.vaspaces:
            raise Status("INVALID_ARGUMENT", f"descriptor {args['rmCtrlFd']}, or registered already")
        self.manager.find(args["hClient"], args["hVaSpace"], "FERMI_VASPACE_A")
        space.vaspaces[uuid] = Thing(self.machine.alive, "address space registered with UVM", hex(args["hVaSpace"]))
        space.vaspaces[uuid].hold(("UVM", file.fd))

    @serves("UVM_UNREGISTER_GPU_VASPACE")
    def unregister_vaspace(self, file: File, args: Args) -> None:
        """With all that is mapped there."""
        space, uuid = self._space(file), args.bytes("gpuUuid.uuid")
        if uuid not in space.vaspaces:
            raise Status("INVALID_DEVICE", "no address space of that GPU is registered")
        self._leave(space, uuid)

    def _leave(self, space: Space, uuid: bytes) -> None:
        space.mapped.clear()
        gone = space.vaspaces.pop(uuid)
        gone.drop(next(iter(gone.holders)))

    @serves("UVM_CREATE_EXTERNAL_RANGE")
    def create_range(self, file: File, args: Args) -> None:
        """Whole pages that no other range has."""
        space, base, size = self._space(file), args["base"], args["length"]
        if not size or not base or (base | size) % PAGE:
            raise Status("INVALID_ADDRESS", f"{size:#x} bytes at {base:#x}")
        if space.ranges.ranges.overlapping(base, size):
            raise Status("UVM_ADDRESS_IN_USE", f"{base:#x}")
        space.ranges.bind(base, size, None)

    @serves("UVM_FREE")
    def free(self, file: File, args: Args) -> None:
        """A range and what is mapped in it."""
        space, base = self._space(file), args["base"]
        found = space.ranges.ranges.get(base)
        length = args["length"] if "length" in args.layout.fields else 0
        if found is None or length not in (0, found[0]):
            raise Status("INVALID_ADDRESS", f"no range of {length:#x} bytes starts at {base:#x}")
        space.mapped.carve(base, found[0])
        space.ranges.unbind(base, found[0])

    def _range(self, space: Space, base: int, size: int) -> None:
        hit = space.ranges.ranges.overlapping(base, size)
        start = hit[0] if len(hit) == 1 else 0
        length = space.ranges.ranges.get(start)[0] if hit else 0  # type: ignore[index]
        if len(hit) != 1 or base < start or base + size > start + length or not size:
            raise Status("INVALID_ADDRESS", f"{size:#x} bytes at {base:#x} are not inside one range")

    @serves("UVM_MAP_EXTERNAL_ALLOCATION")
    def map(self, file: File, args: Args) -> None:
        """An object of RM, aligned to its pages, for one GPU whose address space is registered."""
        space, base, size = self._space(file), args["base"], args["length"]
        args.seen("offset")
        self._range(space, base, size)
        count, shape = args["gpuAttributesCount"], table("nvidia").layout("UvmGpuMappingAttributes")
        if count != 1:
            raise Status("INVALID_ARGUMENT", f"{count} GPUs; this machine has one")
        attributes = args.bytes("perGpuAttributes")
        if any(attributes[shape.size :]) or shape.get(attributes, "gpuMappingType") > 4:
            raise FakeError(f"{file}: attributes behind the first GPU's, or no such kind of mapping")
        if attributes[:16] not in space.vaspaces:
            raise Status("INVALID_DEVICE", "no address space of that GPU is registered")
        control = self.machine.file(args["rmCtrlFd"])
        if control is None or control.driver is not self.manager:
            raise Status("INVALID_ARGUMENT", f"descriptor {args['rmCtrlFd']}")
        memory: Object = self.manager.find(args["hClient"], args["hMemory"])
        if args["offset"] + size > memory.size or (base | size | args["offset"]) % memory.page:
            raise Status("INVALID_ADDRESS", f"{size:#x} bytes at {base:#x} of {memory}, pages of {memory.page:#x}")
        if space.mapped.carve(base, size):
            self.machine.odd(f"UVM map at {base:#x} over what was mapped there")
        space.mapped.bind(base, size, memory)

    @serves("UVM_UNMAP_EXTERNAL")
    def unmap(self, file: File, args: Args) -> None:
        """What of a GPU lies in there."""
        space, uuid = self._space(file), args.bytes("gpuUuid.uuid")
        self._range(space, args["base"], args["length"])
        self._gpu(space, uuid)
        if not space.mapped.carve(args["base"], args["length"]):
            self.machine.odd(f"UVM unmap at {args['base']:#x}, where nothing is mapped")
