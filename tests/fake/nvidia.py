"""NVIDIA's resource manager: a tree of objects below each client, statuses in the reply, exact sizes per release.

What a status says is raised as :class:`Status` by handlers and written where the release has it; the ioctl itself
answers 0 then.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from tests.fake import nvtables as nv
from tests.fake.core import Backing, Driver, FakeError, FakeKernel, File, serves
from tests.fake.drm import Bo, Vm, bytes_of
from tests.fake.tables import Call, table
from tests.fake.things import PAGE, Args, Thing, oops

HUGE = 2 << 20
BAR1 = 256 << 20
FIRST_DEVICE = 2
"""deviceId of the first GPU: not 0, so that a wrong field is not right by chance."""
CONTROLS = (
    "NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2",
    "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2",
    "NV2080_CTRL_CMD_GPU_GET_GID_INFO",
    "NV2080_CTRL_CMD_FB_GET_INFO",
)


class Status(Exception):
    """NV_ERR_*, and why for the reader of a failed test."""

    def __init__(self, name: str, why: str = "") -> None:
        super().__init__(f"{name}: {why}")
        self.code = nv.status(name)


class Object(Bo):
    """One object of RM."""

    def __init__(self, manager: Rm, handle: int, kind: str, parent: Object | None, size: int = 0) -> None:
        super().__init__(None, manager.machine.alive, size)
        self.kind, self.label = "RM object", f"{handle:#x} ({kind})"
        self.handle, self.cls, self.parent = handle, kind, parent
        self.client: Object = parent.client if parent else self
        self.children: dict[int, Object] = {}
        self.all: dict[int, Object] = {} if parent is None else parent.all
        """Client: every object below it, itself included."""
        self.linear: dict[int, Thing] = {}
        """CPU mappings by pLinearAddress."""
        self.space: Vm | None = None
        self.page = PAGE


class Node(Driver):
    """A node that takes escapes: all are handed to the manager."""

    name = "nvidia"

    def __init__(self, manager: Rm, number: int) -> None:
        super().__init__(manager.machine)
        self.manager, self.number = manager, number

    def known(self) -> Iterable[Call]:
        return self.manager.known()

    def released(self, file: File) -> None:
        file.state = None

    def ioctl(self, file: File, number: int, argument: bytearray | int) -> int:
        return self.manager.escape(file, number, argument, "/dev/nvidiaN")

    def mmap(self, file: File, size: int, offset: int) -> Backing:
        """The one mapping that RM left in this file: exactly that size on a GPU node, offset 0."""
        context = file.state
        if context is None or offset or (size != context.size if self.number >= 0 else size > context.size):
            raise oops(errno.EINVAL, f"mmap of {size} bytes at {offset:#x}; RM left {context or 'nothing'}")
        fd, start = bytes_of(self.machine, context.memory)
        return Backing(context.memory, fd, start)


class Context(Thing):
    """A CPU mapping in RM."""

    memory: Object


class Rm(Node):
    """The control node, and the manager behind all nodes."""

    def __init__(self, machine: FakeKernel) -> None:
        self.machine = machine
        super().__init__(self, -1)
        self.release = nv.release_of(str(getattr(machine, "release", "595.45.04")))
        self.calls = nv.escapes(self.release)
        self.gpus: list[Node] = []
        self.clients: dict[int, tuple[Object, File]] = {}
        self.used = self.mapped = 0
        self._next = {"client": 0xC1D00000, "object": 0xCAF00000, "linear": 0x7F0000000000}
        self.constants = table("nvidia").constants

    def gpu(self, number: int) -> Node:
        """The node of a GPU."""
        self.gpus.append(Node(self, number))
        return self.gpus[-1]

    def gpu_id(self, number: int) -> int:
        """RM's id of it."""
        return 0x100 * (number + 1)

    def uuid(self, number: int) -> bytes:
        """Its UUID."""
        return bytes([0xA0 + number]) * 16

    def known(self) -> Iterable[Call]:
        return self.calls.values()

    def fresh(self, kind: str, step: int = 1) -> int:
        """A new number that RM chooses."""
        self._next[kind] += step
        return self._next[kind]

    def ioctl(self, file: File, number: int, argument: bytearray | int) -> int:
        return self.escape(file, number, argument, "/dev/nvidiactl")

    def released(self, file: File) -> None:
        """The clients of a control file go with it."""
        super().released(file)
        for client, owner in tuple(self.clients.values()):
            if owner is file:
                self.free(client)

    def escape(self, file: File, number: int, argument: bytearray | int, node: str) -> int:
        """One escape: exact size, right node, status in the reply."""
        cmd, size = number & 0xFF, number >> 16 & 0x3FFF
        if isinstance(argument, int) or len(argument) < size or number >> 30 != 3 or number >> 8 & 0xFF != ord("F"):
            raise FakeError(f"{file}: {number:#x} is no escape of {len(bytes(argument))} bytes")
        call = self.calls.get((cmd, size)) or self.calls.get((cmd, 0))
        if call is None or call.name not in self.handlers:
            sizes = sorted(known for code, known in self.calls if code == cmd)
            if sizes and not getattr(self.machine, "strict", True):
                raise oops(errno.EINVAL, f"escape {cmd:#x} of {size} bytes, not {sizes}")
            raise FakeError(f"{file}: escape {cmd:#x} of {size} bytes; {self.release} has sizes {sizes}")
        device, where = call.permissions
        if device.startswith("/dev") and device != node:
            raise oops(errno.EINVAL, f"{call.name} on {node} instead of {device}")
        args = Args(call.name, call.layout, bytearray(argument[:size]))
        if where:
            args.seen(where)
        return answered(self, file, args, argument, where, self.operation(args))

    def operation(self, args: Args) -> str:
        """The class, or the control, by name."""
        if args.name == "NV_ESC_RM_ALLOC":
            wanted = args["hClass"]
            return next((name for name in CLASSES if nv.klass(name) == wanted), hex(wanted))
        if args.name == "NV_ESC_RM_CONTROL":
            wanted = args["cmd"]
            return next((name for name in CONTROLS if _control(name)[0] == wanted), hex(wanted))
        return ""

    # -- the tree --

    def client(self, handle: int) -> Object:
        """A client by its handle."""
        if handle not in self.clients:
            raise Status("INVALID_CLIENT", f"{handle:#x}")
        return self.clients[handle][0]

    def find(self, client: int, handle: int, *kinds: str) -> Object:
        """An object of a client."""
        found = self.client(client).all.get(handle)
        if found is None or (kinds and found.cls not in kinds):
            raise Status("OBJECT_NOT_FOUND" if found is None else "INVALID_OBJECT", f"{handle:#x}: {found}")
        return found

    def add(self, file: File, parent: Object | None, handle: int, kind: str, size: int = 0) -> Object:
        """A new object below ``parent``, or a client."""
        handle = handle or self.fresh("object" if parent else "client")
        taken = parent.all if parent else self.clients
        if handle in taken:
            raise Status("INSERT_DUPLICATE_NAME", f"{handle:#x}")
        made = Object(self, handle, kind, parent, size)
        made.hold(("tree",))
        made.all[handle] = made
        if parent is None:
            self.clients[handle] = (made, file)
        else:
            parent.children[handle] = made
        return made

    def free(self, thing: Object) -> None:
        """An object and all below it."""
        for child in tuple(thing.children.values()):
            self.free(child)
        for linear in tuple(thing.linear):
            self.unmap(thing, linear)
        if thing.space is not None:
            thing.space.clear()
        for other in thing.all.values():
            if other.space is not None:
                for start in [start for start, what in other.space.at.items() if what is thing]:
                    other.space.unbind(start, other.space.ranges.get(start)[0])  # type: ignore[index]
        thing.all.pop(thing.handle, None)
        if thing.parent is None:
            del self.clients[thing.handle]
        else:
            del thing.parent.children[thing.handle]
        thing.drop(("tree",))

    def unmap(self, memory: Object, linear: int) -> None:
        """A CPU mapping in RM."""
        memory.linear.pop(linear).drop(("RM",))

    # -- escapes --

    @serves("NV_ESC_CARD_INFO")
    def card_info(self, file: File, args: Args) -> None:
        """An array, with room for all cards or EINVAL."""
        args.seen_all()
        one = args.layout.size
        if len(args.buffer) < one * len(self.gpus):
            raise oops(errno.EINVAL, f"room for {len(args.buffer) // one} cards")
        for number in range(len(self.gpus)):
            card = args.layout.junk(valid=1, gpu_id=self.gpu_id(number), minor_number=number)
            args.buffer[number * one : (number + 1) * one] = card

    @serves("NV_ESC_REGISTER_FD")
    def register_fd(self, file: File, args: Args) -> None:
        """The control file that a GPU's file belongs to."""
        other = self.machine.file(args["ctl_fd"])
        if other is None or other.driver is not self:
            raise oops(errno.EINVAL, f"descriptor {args['ctl_fd']} is no control file")

    @serves("NV_ESC_RM_ALLOC")
    def alloc(self, file: File, args: Args) -> None:
        """By class (CLASSES). ``paramsSize``, where a release has it, must be right or 0."""
        for name in {"pRightsRequested", "flags"} & args.layout.fields.keys():
            if args[name]:
                raise Status("INVALID_ARGUMENT", name)
        name = self.operation(args)
        if name not in CLASSES:
            raise FakeError(f"{file}: RM_ALLOC of class {name}, which nothing here plays")
        struct, parents = CLASSES[name]
        if name == "NV01_ROOT_CLIENT":
            for field in ("hRoot", "hObjectParent", "pAllocParms"):
                if args[field]:
                    raise Status("INVALID_ARGUMENT", field)
            args["hObjectNew"] = self.add(file, None, args["hObjectNew"], name).handle
            return
        parent = self.find(args["hRoot"], args["hObjectParent"], *parents)
        shape = nv.layout(struct, self.release)
        told = args["paramsSize"] if "paramsSize" in args.layout.fields else 0
        if told not in (0, shape.size):
            raise Status("INVALID_PARAM_STRUCT", f"{told} bytes, {struct} has {shape.size}")
        if not args["pAllocParms"]:
            raise Status("INVALID_ARGUMENT", "no parameters")
        params = Args(struct, shape, bytearray(self.machine.user.read(args["pAllocParms"], shape.size)))
        made = self._made(file, parent, args["hObjectNew"], name, params)
        params.check()
        self.machine.user.write(args["pAllocParms"], bytes(params.buffer))
        args["hObjectNew"] = made.handle

    def _made(self, file: File, parent: Object, handle: int, name: str, params: Args) -> Object:
        if name in ("NV1_MEMORY_USER", "NV1_MEMORY_SYSTEM"):
            return self._memory(file, parent, handle, name, params)
        if name == "NV01_DEVICE_0":
            params.seen("vaMode")
            if params["deviceId"] - FIRST_DEVICE not in range(len(self.gpus)) or params["hClientShare"] not in (
                0,
                parent.handle,
            ):
                raise Status("INVALID_ARGUMENT", f"device {params['deviceId']}")
        elif name == "NV20_SUBDEVICE_0":
            if params["subDeviceId"]:
                raise Status("INVALID_ARGUMENT", f"subdevice {params['subDeviceId']}")
        else:
            params.seen("flags", "vaSize", "vaBase")
            made = self.add(file, parent, handle, name)
            made.space = Vm(self.machine.alive, made.label, params["vaBase"], params["vaBase"] + params["vaSize"])
            return made
        return self.add(file, parent, handle, name)

    def _memory(self, file: File, parent: Object, handle: int, name: str, params: Args) -> Object:
        params.seen("type", "flags", "attr2", "limit")
        size, align, attr = params["size"], params["alignment"], params["attr"]
        if params["owner"] not in (0, parent.client.handle) or not size or align & (align - 1):
            raise Status("INVALID_ARGUMENT", f"{size} bytes aligned to {align}, owner {params['owner']:#x}")
        video = name == "NV1_MEMORY_USER"
        if (attr >> 25 & 3 == self.constants["NVOS32_ATTR_LOCATION_VIDMEM"]) is not video:
            raise Status("INVALID_ARGUMENT", f"location of {name}: attr {attr:#x}")
        huge = attr >> 23 & 3 == self.constants["NVOS32_ATTR_PAGE_SIZE_HUGE"]
        page = HUGE if huge else PAGE
        size = -(-size // page) * page
        if video and self.used + size > int(getattr(self.machine, "vram", 0)):
            raise Status("NO_MEMORY", f"{self.used} used, {size} more")
        made = self.add(file, parent, handle, name, size)
        made.page = page
        if video:
            self.used += size
            made.gone.append(lambda: self._used(-size))
        params["size"], params["limit"] = size, size - 1
        return made

    def _used(self, more: int) -> None:
        self.used += more

    @serves("NV_ESC_RM_ALLOC_MEMORY")
    def alloc_memory(self, file: File, args: Args) -> None:
        """The caller's pages, with a handle of the caller's choice."""
        args.seen("fd", "params.flags")
        parent = self.find(args["params.hRoot"], args["params.hObjectParent"], "NV01_DEVICE_0")
        if args["params.hClass"] != nv.klass("NV01_MEMORY_SYSTEM_OS_DESCRIPTOR"):
            raise FakeError(f"{file}: RM_ALLOC_MEMORY of class {args['params.hClass']:#x}")
        address, size = args["params.pMemory"], args["params.limit"] + 1
        if not args["params.hObjectNew"] or (address | size) % PAGE:
            raise Status("INVALID_ARGUMENT", f"{size:#x} bytes at {address:#x}")
        try:
            self.machine.user.pages(address, size)
        except OSError as error:
            raise Status("INVALID_ADDRESS", str(error)) from error
        made = self.add(file, parent, args["params.hObjectNew"], "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR", size)
        pages = Thing(self.machine.alive, "user pages", f"at {address:#x}", size)
        pages.hold("RM")
        made.gone.append(lambda: pages.drop("RM"))

    @serves("NV_ESC_RM_FREE")
    def rm_free(self, file: File, args: Args) -> None:
        """The whole subtree."""
        args.seen("hObjectParent")
        self.free(self.find(args["hRoot"], args["hObjectOld"]))

    @serves("NV_ESC_RM_MAP_MEMORY")
    def map_memory(self, file: File, args: Args) -> None:
        """Leaves the mapping in the file ``fd``: a fresh one of the GPU for its memory, a control file for the rest."""
        args.seen("params.flags", "params.pLinearAddress")
        self.find(args["params.hClient"], args["params.hDevice"], "NV01_DEVICE_0", "NV20_SUBDEVICE_0")
        memory = self.find(args["params.hClient"], args["params.hMemory"], "NV1_MEMORY_USER", "NV1_MEMORY_SYSTEM")
        size, target = args["params.length"], self.machine.file(args["fd"])
        video = memory.cls == "NV1_MEMORY_USER"
        if args["params.offset"] or not size or size > memory.size:
            raise Status("INVALID_ARGUMENT", f"{size} bytes of {memory}")
        if target is None or (target.driver not in self.gpus if video else target.driver is not self):
            raise Status("INVALID_ARGUMENT", f"descriptor {args['fd']} for {memory.cls}")
        if target.state is not None:
            raise Status("STATE_IN_USE", f"{target} has a mapping already")
        if video and self.mapped + size > BAR1:
            raise Status("NO_MEMORY", "BAR1 is full")
        linear = self.fresh("linear", HUGE)
        context = target.state = Context(self.machine.alive, "CPU mapping of RM", hex(linear), size)
        context.memory = memory
        context.hold(("RM",))
        memory.linear[linear] = context
        self.mapped += size * video
        context.gone.append(lambda: self._mapped(-size * video))
        args["params.pLinearAddress"] = linear

    def _mapped(self, more: int) -> None:
        self.mapped += more

    @serves("NV_ESC_RM_UNMAP_MEMORY")
    def unmap_memory(self, file: File, args: Args) -> None:
        """By the address that MAP answered."""
        args.seen("flags")
        self.find(args["hClient"], args["hDevice"], "NV01_DEVICE_0", "NV20_SUBDEVICE_0")
        memory = self.find(args["hClient"], args["hMemory"])
        if args["pLinearAddress"] not in memory.linear:
            raise Status("OBJECT_NOT_FOUND", f"{memory} is not mapped at {args['pLinearAddress']:#x}")
        self.unmap(memory, args["pLinearAddress"])

    @serves("NV_ESC_RM_MAP_MEMORY_DMA")
    def map_dma(self, file: File, args: Args) -> None:
        """Into an address space of RM's own, at an address of RM's choice."""
        args.seen("flags", "dmaOffset")
        space = self.find(args["hClient"], args["hDma"], "FERMI_VASPACE_A").space
        memory = self.find(args["hClient"], args["hMemory"])
        self.find(args["hClient"], args["hDevice"], "NV01_DEVICE_0")
        assert space is not None
        start = space.ranges.lowest(args["length"], memory.page, max(space.low, HUGE), space.high)
        if start is None or args["offset"] + args["length"] > memory.size:
            raise Status("INVALID_ARGUMENT" if start else "NO_MEMORY", f"{args['length']} bytes of {memory}")
        space.bind(start, args["length"], memory)
        args["dmaOffset"] = start

    @serves("NV_ESC_RM_UNMAP_MEMORY_DMA")
    def unmap_dma(self, file: File, args: Args) -> None:
        """By address; a size other than 0 must be that of the mapping."""
        args.seen("flags")
        space = self.find(args["hClient"], args["hDma"], "FERMI_VASPACE_A").space
        memory = self.find(args["hClient"], args["hMemory"])
        self.find(args["hClient"], args["hDevice"], "NV01_DEVICE_0")
        assert space is not None
        size = args["size"] if "size" in args.layout.fields else 0
        found = space.ranges.get(args["dmaOffset"])
        if found is None or space.at[args["dmaOffset"]] is not memory or size not in (0, found[0]):
            raise Status("OBJECT_NOT_FOUND", f"{memory} is not at {args['dmaOffset']:#x}")
        space.unbind(args["dmaOffset"], found[0])

    @serves("NV_ESC_RM_CONTROL")
    def control(self, file: File, args: Args) -> None:
        """The few that are asked here; the size must be the release's."""
        if args["flags"]:
            raise Status("INVALID_ARGUMENT", "flags")
        target, name = self.find(args["hClient"], args["hObject"]), self.operation(args)
        if name not in CONTROLS:
            raise FakeError(f"{file}: nothing here plays control {name}")
        _, struct = _control(name)
        wanted = "NV01_ROOT_CLIENT" if name.startswith("NV0000") else "NV20_SUBDEVICE_0"
        if target.cls != wanted:
            raise Status("NOT_SUPPORTED", f"{name} on {target}")
        if args["paramsSize"] != nv.size_of(struct, self.release):
            raise Status("INVALID_PARAM_STRUCT", f"{args['paramsSize']} bytes of {struct}")
        shape = nv.layout(struct, self.release)
        params = Args(struct, shape, bytearray(self.machine.user.read(args["params"], shape.size)))
        getattr(self, f"_{name.partition('_CTRL_CMD_')[2].lower()}")(target, params)
        params.check()
        self.machine.user.write(args["params"], bytes(params.buffer))

    def _system_get_build_version_v2(self, target: Object, params: Args) -> None:
        text = str(getattr(self.machine, "release", "595.45.04")).encode()
        params.buffer[: len(text)] = text

    def _gpu_get_id_info_v2(self, target: Object, params: Args) -> None:
        ids = [self.gpu_id(number) for number in range(len(self.gpus))]
        if params["gpuId"] not in ids:
            raise Status("INVALID_ARGUMENT", f"no GPU {params['gpuId']:#x}")
        number, gpu = ids.index(params["gpuId"]), params["gpuId"]
        instance = FIRST_DEVICE + number
        params.buffer[:] = params.layout.junk(gpuId=gpu, deviceInstance=instance, subDeviceInstance=0)

    def _gpu_get_gid_info(self, target: Object, params: Args) -> None:
        if params["flags"] != self.constants["NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY"]:
            raise Status("INVALID_ARGUMENT", f"flags {params['flags']}")
        params.seen("length", "index")
        params["length"] = 16
        place = params.layout.fields["data"].offset
        params.buffer[place : place + 16] = self.uuid(0)

    def _fb_get_info(self, target: Object, params: Args) -> None:
        total = int(getattr(self.machine, "vram", 0))
        values = {"HEAP_SIZE": total, "HEAP_FREE": total - self.used, "BAR1_AVAIL_SIZE": BAR1 - self.mapped}
        values["LARGEST_FREE_REGION_SIZE_KB"] = values["HEAP_FREE"]
        known = {self.constants[f"NV2080_CTRL_FB_INFO_INDEX_{name}"]: value for name, value in values.items()}
        layout = table("nvidia").layout("NV2080_CTRL_FB_INFO")
        for place in range(params["fbInfoListSize"]):
            pointer = params["fbInfoList"] + place * layout.size
            index = layout.get(self.machine.user.read(pointer, layout.size), "index")
            if index not in known:
                raise Status("INVALID_ARGUMENT", f"index {index}")
            self.machine.user.write(pointer, bytes(layout.pack(index=index, data=known[index] >> 10)))


CLASSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "NV01_ROOT_CLIENT": ("", ()),
    "NV01_DEVICE_0": ("NV0080_ALLOC_PARAMETERS", ("NV01_ROOT_CLIENT",)),
    "NV20_SUBDEVICE_0": ("NV2080_ALLOC_PARAMETERS", ("NV01_DEVICE_0",)),
    "FERMI_VASPACE_A": ("NV_VASPACE_ALLOCATION_PARAMETERS", ("NV01_DEVICE_0",)),
    "NV1_MEMORY_USER": ("NV_MEMORY_ALLOCATION_PARAMS", ("NV01_DEVICE_0",)),
    "NV1_MEMORY_SYSTEM": ("NV_MEMORY_ALLOCATION_PARAMS", ("NV01_DEVICE_0",)),
}
"""Class -> its parameters, and the classes of objects that it may be below."""


def _control(name: str) -> tuple[int, str]:
    entry = table("nvidia").raw["controls"][name]
    return int(entry["cmd"], 16), str(entry["params"])


def answered(driver: Driver, file: File, args: Args, argument: bytearray, where: str, op: str) -> int:
    """Run a handler; a status goes into the reply, at ``where``, and the call answers 0."""

    def say(code: int) -> int:
        if not where:
            if code:
                raise oops(code, f"{args.name}, as ordered")
        else:
            args[where] = code
        argument[: len(args.buffer)] = args.buffer
        return 0

    def do() -> int:
        code = 0
        try:
            driver.handler(args.name)(file, args)
            args.check()
        except Status as error:
            code = error.code
            driver.machine.statuses.append(str(error))
        if where:
            args[where] = code
        return 0

    driver.machine.perform(args.name, op, do, say)
    argument[: len(args.buffer)] = args.buffer
    return 0
