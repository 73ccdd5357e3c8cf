"""habanalabs (drivers/accel/habanalabs/common/memory.c): handles of its own, one call for memory, one client."""

from __future__ import annotations

import errno
from typing import ClassVar

from tests.fake.core import Backing, FakeKernel, File, serves
from tests.fake.drm import Bo, DrmDriver, Vm
from tests.fake.rows import user_object
from tests.fake.tables import table
from tests.fake.things import PAGE, Args, Numbers, oops

DRAM_PAGE = 2 << 20
DEVICE, HOST = (1 << 44, 1 << 45), (1 << 46, 1 << 47)
"""Device addresses of device memory and of host memory."""


class Habanalabs(DrmDriver):
    """One Gaudi. Its compute node takes one open file at a time (hl_device_open: EBUSY)."""

    name = table_name = "habanalabs"
    prefers_render = renders = imports = exports = False
    operations: ClassVar[dict[str, tuple[str, dict[int, str]]]] = {
        "DRM_IOCTL_HL_MEMORY": ("in.op", {0: "ALLOC", 1: "FREE", 2: "MAP", 3: "UNMAP"}),
        "DRM_IOCTL_HL_CB": ("in.op", {0: "CREATE", 1: "DESTROY"}),
        "DRM_IOCTL_HL_INFO": ("op", {2: "DRAM_USAGE", 0: "HW_IP_INFO"}),
    }

    def __init__(self, machine: FakeKernel) -> None:
        super().__init__(machine)
        self.user: File | None = None

    def opened(self, file: File) -> None:
        if self.user is not None:
            raise oops(errno.EBUSY, "another client has it")
        super().opened(file)
        self.user = file
        file.state.vm = Vm(self.machine.alive, f"of {file}", DEVICE[0], HOST[1])

    def forget(self, file: File) -> None:
        file.state.vm.clear()
        for kind in ("memory", "command buffer"):
            for number in tuple(file.state.numbers(kind)):
                self.unbound(file, kind, number)
        self.user = None

    @serves("DRM_IOCTL_HL_MEMORY")
    def memory(self, file: File, args: Args) -> None:
        """ALLOC, FREE, MAP, UNMAP; other arms of the union are not in this machine."""
        operation = self.operations[args.name][1].get(args["in.op"])
        args.zero("in.ctx_id", "in.num_of_elements")
        if operation is None:
            raise oops(errno.EINVAL, f"operation {args['in.op']}")
        getattr(self, f"_{operation.lower()}")(file, args)

    def _alloc(self, file: File, args: Args) -> None:
        args.flags("in.flags", table("habanalabs").mask("HL_MEM_CONTIGUOUS", "HL_MEM_SHARED"))
        if args["in.alloc.page_size"] not in (0, DRAM_PAGE) or not args["in.alloc.mem_size"]:
            raise oops(errno.EINVAL, f"{args['in.alloc.mem_size']} bytes in pages of {args['in.alloc.page_size']}")
        size = -(-args["in.alloc.mem_size"] // DRAM_PAGE) * DRAM_PAGE
        bo = self.new(size, "vram")
        args.blank()
        args["out.handle"] = self.bound(file, "memory", bo)

    def _free(self, file: File, args: Args) -> None:
        args.zero("in.flags")
        bo = file.state.numbers("memory").get(args["in.free.handle"])
        if bo is None:
            raise oops(errno.EINVAL, f"no memory {args['in.free.handle']}")
        if bo in file.state.vm.at.values():
            raise oops(errno.EINVAL, "it is mapped")
        self.unbound(file, "memory", args["in.free.handle"])
        args.blank()

    def _map(self, file: File, args: Args) -> None:
        user = self.constants["HL_MEM_USERPTR"]
        flags = args.flags("in.flags", user | self.constants["HL_MEM_SHARED"])
        vm, (low, high) = file.state.vm, HOST if flags & user else DEVICE
        if flags & user:
            args.seen("in.map_host.hint_addr")
            bo = user_object(self, args["in.map_host.host_virt_addr"], args["in.map_host.mem_size"])
            align = PAGE
        else:
            args.seen("in.map_device.hint_addr")
            found = file.state.numbers("memory").get(args["in.map_device.handle"])
            if found is None:
                raise oops(errno.EINVAL, f"no memory {args['in.map_device.handle']}")
            bo, align = found, DRAM_PAGE
        address = vm.ranges.lowest(bo.size, align, low, high)
        if address is None:
            raise oops(errno.ENOMEM, "no device address")
        vm.bind(address, bo.size, bo)
        args.blank()
        args["out.device_virt_addr"] = address

    def _unmap(self, file: File, args: Args) -> None:
        args.zero("in.flags")
        found = file.state.vm.ranges.get(args["in.unmap.device_virt_addr"])
        if found is None:
            raise oops(errno.EINVAL, f"nothing is mapped at {args['in.unmap.device_virt_addr']:#x}")
        file.state.vm.unbind(args["in.unmap.device_virt_addr"], found[0])
        args.blank()

    @serves("DRM_IOCTL_HL_CB")
    def command_buffer(self, file: File, args: Args) -> None:
        """CREATE and DESTROY; the handle is the offset to map at."""
        args.zero("in.ctx_id", "in.flags")
        numbers: Numbers = file.state.numbers("command buffer")
        operation = self.operations[args.name][1].get(args["in.op"])
        if operation == "CREATE":
            args.seen("in.cb_handle")
            if not 0 < args["in.cb_size"] <= self.constants["HL_MAX_CB_SIZE"]:
                raise oops(errno.EINVAL, f"a command buffer of {args['in.cb_size']} bytes")
            bo = self.new(args["in.cb_size"])
            number = self.bound(file, "command buffer", bo)
            args.blank()
            args["out.cb_handle"] = number << 12
        elif operation == "DESTROY":
            number, rest = divmod(args["in.cb_handle"], PAGE)
            if rest or number not in numbers:
                raise oops(errno.EINVAL, f"no command buffer {args['in.cb_handle']:#x}")
            self.unbound(file, "command buffer", number)
            args.blank()
        else:
            raise oops(errno.EINVAL, f"operation {args['in.op']}")

    def mmap(self, file: File, size: int, offset: int) -> Backing:
        bo = file.state.numbers("command buffer").get(offset // PAGE)
        if bo is None or size > bo.size:
            raise oops(errno.EINVAL, f"no command buffer of {size} bytes at {offset:#x}")
        self.offset_of(bo)
        return super().mmap(file, size, bo.offset)

    def may_map(self, file: File, bo: Bo) -> bool:
        return True

    @serves("DRM_IOCTL_HL_INFO")
    def info(self, file: File, args: Args) -> None:
        """Copies at most as much as the caller has room for."""
        args.zero("pad", "dcore_id")
        if not args["return_pointer"] or not args["return_size"]:
            raise oops(errno.EINVAL, "no room for an answer")
        operation, total = args["op"], int(getattr(self.machine, "vram", 0))
        if operation == self.constants["HL_INFO_DRAM_USAGE"]:
            layout = table("habanalabs").layout("struct hl_info_dram_usage")
            answer = layout.pack(dram_free_mem=total - self.used["vram"], ctx_dram_mem=self.used["vram"])
        elif operation == self.constants["HL_INFO_HW_IP_INFO"]:
            layout = table("habanalabs").layout("struct hl_info_hw_ip_info")
            answer = layout.pack(dram_size=total, dram_enabled=1, dram_page_size=DRAM_PAGE)
            layout.put(answer, "device_mem_alloc_default_page_size", DRAM_PAGE)
        else:
            raise oops(errno.EINVAL, f"operation {operation}")
        self.machine.user.write(args["return_pointer"], bytes(answer)[: args["return_size"]])
