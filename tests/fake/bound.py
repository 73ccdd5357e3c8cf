"""Rows whose objects are bound where user space says: msm, panthor, nouveau; amdxdna's heap; and the table of all rows.

panthor, nouveau (and xe) keep addresses in drm_gpuvm: a bind over a bind replaces it, an unbind of nothing is fine.
Neither is ever meant, so the machine notes both in ``oddities``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import ClassVar

from tests.fake.core import FakeKernel, File, serves
from tests.fake.drm import Bo, DrmDriver, Vm
from tests.fake.rows import Etnaviv, Ivpu, Lima, Panfrost, Qaic, Rocket, Row, V3d
from tests.fake.tables import table
from tests.fake.things import PAGE, Args, Thing, oops


class Msm(Row):
    """msm: GEM_INFO asks and sets; SET_IOVA binds at an address of ours."""

    name = table_name = "msm"
    flags_field, flags_known = "flags", ("MSM_BO_FLAGS",)
    operations: ClassVar[dict[str, tuple[str, dict[int, str]]]] = {
        "DRM_IOCTL_MSM_GEM_INFO": ("info", {0: "GET_OFFSET", 1: "GET_IOVA", 4: "SET_IOVA"})
    }
    space = (1 << 32, 1 << 40)

    def opened(self, file: File) -> None:
        super().opened(file)
        file.state.vm = Vm(self.machine.alive, f"of {file}", *self.space)

    def forget(self, file: File) -> None:
        file.state.vm.clear()

    def made(self, file: File, bo: Bo, args: Args) -> None:
        kinds = [self.constants[f"MSM_BO_{name}"] for name in ("CACHED", "WC", "UNCACHED", "CACHED_COHERENT")]
        if bo.flags & self.constants["MSM_BO_CACHE_MASK"] not in kinds:
            raise oops(errno.EINVAL, f"caching {bo.flags:#x}")

    @serves("DRM_IOCTL_MSM_GET_PARAM")
    def param(self, file: File, args: Args) -> None:
        """The addresses that are ours; only the 3D pipe is asked."""
        args.zero("pad", "len")
        args.seen("value")
        if args["pipe"] != self.constants["MSM_PIPE_3D0"]:
            raise oops(errno.EINVAL, f"pipe {args['pipe']}")
        base, end = self.space
        values = {self.constants["MSM_PARAM_VA_START"]: base, self.constants["MSM_PARAM_VA_SIZE"]: end - base}
        if args["param"] not in values:
            raise oops(errno.EINVAL, f"parameter {args['param']}")
        args["value"] = values[args["param"]]

    @serves("DRM_IOCTL_MSM_GEM_INFO")
    def info(self, file: File, args: Args) -> None:
        """GET_OFFSET, GET_IOVA (pins at an address of the kernel's), SET_IOVA (0 takes it away)."""
        args.zero("pad")
        operation = self.operations[args.name][1].get(args["info"])
        bo, vm = self.find(file, args["handle"]), file.state.vm
        here = next((start for start, what in vm.at.items() if what is bo), None)
        if operation == "GET_OFFSET":
            args.zero("value", "len")
            args["value"] = self.offset_of(bo)
        elif operation == "GET_IOVA":
            args.zero("value", "len")
            if here is None:
                here = vm.ranges.lowest(bo.size, PAGE, vm.low, vm.high)
                if here is None:
                    raise oops(errno.ENOSPC, "no device address")
                vm.bind(here, bo.size, bo)
            args["value"] = here
        elif operation == "SET_IOVA":
            args.zero("len")
            self._set_iova(vm, bo, here, args["value"])
        else:
            raise oops(errno.EINVAL, f"info {args['info']}")

    def _set_iova(self, vm: Vm, bo: Bo, here: int | None, address: int) -> None:
        if not address:
            if here is None:
                self.machine.odd(f"SET_IOVA 0 of {bo}, which has no address")
            else:
                vm.unbind(here, bo.size)
        elif here is None:
            vm.bind(address, bo.size, bo, taken=errno.ENOSPC)
        elif here != address:
            raise oops(errno.EBUSY, f"{bo} is at {here:#x} already")

    def handle_closing(self, file: File, bo: Bo, handle: int) -> None:
        """Closing takes the address away (msm_gem_close)."""
        for start in [start for start, what in file.state.vm.at.items() if what is bo]:
            file.state.vm.unbind(start, bo.size)


class Panthor(Row):
    """panthor: address spaces by number; a bind over a bind replaces it."""

    name = table_name = "panthor"
    flags_field, flags_known = "flags", ("DRM_PANTHOR_BO_NO_MMAP", "DRM_PANTHOR_BO_WB_MMAP")
    zero_alloc, zero_locate = ("pad",), ("pad",)

    def made(self, file: File, bo: Bo, args: Args) -> None:
        if args["exclusive_vm_id"]:
            bo.vm = self._vm(file, args["exclusive_vm_id"])
        bo.mappable = not bo.flags & self.constants["DRM_PANTHOR_BO_NO_MMAP"]

    def _vm(self, file: File, number: int) -> Vm:
        vm = file.state.numbers("vm").get(number)
        if not isinstance(vm, Vm):
            raise oops(errno.EINVAL, f"{file} has no address space {number}")
        return vm

    @serves("DRM_IOCTL_PANTHOR_VM_CREATE")
    def vm_create(self, file: File, args: Args) -> None:
        """Of up to 47 bits."""
        args.zero("flags", "id")
        size = args["user_va_range"] or 1 << 40
        if size > 1 << 47:
            raise oops(errno.EINVAL, f"{size:#x} bytes of addresses")
        args["id"] = self.bound(file, "vm", Vm(self.machine.alive, f"of {file}", 0, size))

    @serves("DRM_IOCTL_PANTHOR_VM_DESTROY")
    def vm_destroy(self, file: File, args: Args) -> None:
        """EINVAL where there is none."""
        args.zero("pad")
        self.unbound(file, "vm", args["id"], errno.EINVAL)

    @serves("DRM_IOCTL_PANTHOR_VM_GET_STATE")
    def vm_state(self, file: File, args: Args) -> None:
        """Whether a bind has broken it."""
        args["state"] = int(self._vm(file, args["vm_id"]).unusable)

    @serves("DRM_IOCTL_PANTHOR_VM_BIND")
    def vm_bind(self, file: File, args: Args) -> None:
        """Synchronous operations, in order."""
        args.zero("flags")
        vm, layout = self._vm(file, args["vm_id"]), table("panthor").layout("struct drm_panthor_vm_bind_op")
        if vm.unusable:
            raise oops(errno.EINVAL, "this address space is unusable")
        if args["ops.stride"] < layout.size or not args["ops.count"]:
            raise oops(errno.EINVAL, f"{args['ops.count']} operations of {args['ops.stride']} bytes")
        for place in range(args["ops.count"]):
            data = self.machine.user.read(args["ops.array"] + place * args["ops.stride"], layout.size)
            one = Args("struct drm_panthor_vm_bind_op", layout, bytearray(data))
            self._operation(file, vm, one)
            one.check()

    def _operation(self, file: File, vm: Vm, one: Args) -> None:
        one.zero("syncs.count")
        kind = one["flags"] & self.constants["DRM_PANTHOR_VM_BIND_OP_TYPE_MASK"]
        extra = one["flags"] & ~self.constants["DRM_PANTHOR_VM_BIND_OP_TYPE_MASK"]
        start, size = one["va"], one["size"]
        if (start | size) % PAGE or not size or start + size > vm.high:
            raise oops(errno.EINVAL, f"{size:#x} bytes at {start:#x}")
        if kind == self.constants["DRM_PANTHOR_VM_BIND_OP_TYPE_MAP"]:
            bo = self.find(file, one["bo_handle"], errno.EINVAL)
            if extra & ~7 or one["bo_offset"] % PAGE or one["bo_offset"] + size > bo.size or bo.vm not in (None, vm):
                raise oops(errno.EINVAL, f"bind of {bo}, flags {extra:#x}")
            replace(self.machine, vm, start, size, bo)
        elif kind == self.constants["DRM_PANTHOR_VM_BIND_OP_TYPE_UNMAP"]:
            one.zero("bo_handle", "bo_offset")
            if extra:
                raise oops(errno.EINVAL, f"flags {extra:#x}")
            take_out(self.machine, vm, start, size)
        else:
            raise oops(errno.EINVAL, f"operation {kind:#x}")


def replace(machine: FakeKernel, vm: Vm, start: int, size: int, what: Thing | None) -> None:
    """Bind, over whatever was there (drm_gpuvm_sm_map)."""
    if vm.carve(start, size):
        machine.odd(f"bind at {start:#x} over what was bound there")
    vm.bind(start, size, what)


def take_out(machine: FakeKernel, vm: Vm, start: int, size: int) -> None:
    """Unbind whatever is there; nothing is fine too (drm_gpuvm_sm_unmap)."""
    if not vm.carve(start, size):
        machine.odd(f"unbind of {size:#x} bytes at {start:#x}, where nothing is bound")


class Nouveau(Row):
    """nouveau: VM_INIT before anything, or the old interface for good."""

    name = table_name = "nouveau"
    prefers_render = True

    @serves("DRM_IOCTL_NOUVEAU_VM_INIT")
    def vm_init(self, file: File, args: Args) -> None:
        """Once, and before the first object (nouveau_uvmm_ioctl_vm_init)."""
        state = file.state
        if state.numbers("old"):
            raise oops(errno.ENOSYS, "this file has the old interface")
        if state.vm is not None:
            raise oops(errno.EBUSY, "done already")
        low, size = args["kernel_managed_addr"], args["kernel_managed_size"]
        if not size or low + size > 1 << 47:
            raise oops(errno.EINVAL, f"{size:#x} bytes at {low:#x} for the kernel")
        state.vm = Vm(self.machine.alive, f"of {file}", 0, 1 << 47)
        state.vm.kernel = (low, low + size)

    def forget(self, file: File) -> None:
        file.state.tables.pop("old", None)
        if file.state.vm is not None:
            file.state.vm.clear()

    @serves("DRM_IOCTL_NOUVEAU_GEM_NEW")
    def gem_new(self, file: File, args: Args) -> None:
        """A domain must be named; the old interface gives an address as well."""
        if file.state.vm is None:
            file.state.numbers("old")[1] = None
        domain = args["info.domain"]
        names = ("CPU", "VRAM", "GART", "MAPPABLE", "COHERENT", "NO_SHARE")
        if domain & ~table("nouveau").mask(*(f"NOUVEAU_GEM_DOMAIN_{name}" for name in names)):
            raise oops(errno.EINVAL, f"domain {domain:#x}")
        if not domain & table("nouveau").mask("NOUVEAU_GEM_DOMAIN_VRAM", "NOUVEAU_GEM_DOMAIN_GART"):
            raise oops(errno.EINVAL, f"domain {domain:#x}: nowhere")
        args.seen("align")
        args.zero("info.handle", "info.offset", "info.map_handle", "channel_hint")
        pool = "vram" if domain & self.constants["NOUVEAU_GEM_DOMAIN_VRAM"] else "gtt"
        bo = self.new(args["info.size"], pool)
        args["info.handle"], args["info.size"] = self.handle(file, bo), bo.size
        args["info.map_handle"] = self.offset_of(bo)

    @serves("DRM_IOCTL_NOUVEAU_GETPARAM")
    def getparam(self, file: File, args: Args) -> None:
        """VRAM_USED."""
        args.zero("value")
        if args["param"] != self.constants["NOUVEAU_GETPARAM_VRAM_USED"]:
            raise oops(errno.EINVAL, f"parameter {args['param']}")
        args["value"] = self.used["vram"]

    @serves("DRM_IOCTL_NOUVEAU_VM_BIND")
    def vm_bind(self, file: File, args: Args) -> None:
        """Synchronous operations, in order."""
        args.zero("flags", "wait_count", "sig_count", "wait_ptr", "sig_ptr")
        if file.state.vm is None:
            raise oops(errno.ENOSYS, "no VM_INIT")
        layout = table("nouveau").layout("struct drm_nouveau_vm_bind_op")
        for place in range(args["op_count"]):
            data = self.machine.user.read(args["op_ptr"] + place * layout.size, layout.size)
            one = Args("struct drm_nouveau_vm_bind_op", layout, bytearray(data))
            self._operation(file, one)
            one.check()

    def _operation(self, file: File, one: Args) -> None:
        one.zero("flags", "pad")
        vm, start, size = file.state.vm, one["addr"], one["range"]
        low, high = vm.kernel
        if (start | size) % PAGE or not size or start + size > vm.high or (start < high and start + size > low):
            raise oops(errno.EINVAL, f"{size:#x} bytes at {start:#x}")
        if one["op"] == self.constants["DRM_NOUVEAU_VM_BIND_OP_MAP"]:
            bo = self.find(file, one["handle"])
            if one["bo_offset"] % PAGE or one["bo_offset"] + size > bo.size:
                raise oops(errno.EINVAL, f"{size:#x} bytes of {bo}")
            replace(self.machine, vm, start, size, bo)
        elif one["op"] == self.constants["DRM_NOUVEAU_VM_BIND_OP_UNMAP"]:
            one.zero("handle", "bo_offset")
            take_out(self.machine, vm, start, size)
        else:
            raise oops(errno.EINVAL, f"operation {one['op']}")


class Amdxdna(Row):
    """amdxdna: a heap per file, in which device objects lie; the CPU reaches those through the heap."""

    name, table_name = "amdxdna_accel_driver", "amdxdna"
    zero_alloc, zero_locate = ("flags",), ("ext", "ext_flags", "pad")
    heap_at, heap_bytes = 0x4000000, 64 << 20

    def made(self, file: File, bo: Bo, args: Args) -> None:
        args.zero("vaddr")
        kinds = {self.constants[f"AMDXDNA_BO_{name}"]: name for name in ("SHMEM", "DEV_HEAP", "DEV", "CMD")}
        kind, state = kinds.get(args["type"]), file.state
        if kind == "DEV_HEAP":
            if state.numbers("heap") or bo.size != self.heap_bytes:
                raise oops(errno.EBUSY if state.numbers("heap") else errno.EINVAL, "a heap of its one size, once")
            state.numbers("heap")[1] = bo
            bo.vm_heap = Vm(self.machine.alive, f"heap of {file}", self.heap_at, self.heap_at + bo.size)
            bo.gone.append(lambda: state.numbers("heap").pop(1, None))
            bo.address = self.heap_at
        elif kind == "DEV":
            self._in_heap(bo, state.numbers("heap").get(1))
        elif kind is None:
            raise oops(errno.EINVAL, f"type {args['type']}")

    def _in_heap(self, bo: Bo, heap: Bo | None) -> None:
        if heap is None:
            raise oops(errno.EINVAL, "no heap")
        if not any(known.thing is heap for known in self.machine.maps.values()):
            raise oops(errno.EINVAL, "the heap is not mapped")
        vm = heap.vm_heap
        address = vm.ranges.lowest(bo.size, PAGE, vm.low, vm.high)
        if address is None:
            raise oops(errno.ENOSPC, "the heap is full")
        vm.bind(address, bo.size, None)
        heap.hold(("objects in it",))
        bo.address, bo.mappable, bo.inside = address, False, True
        bo.gone.append(lambda: heap.drop(("objects in it",)))
        bo.gone.append(lambda: vm.unbind(address, bo.size))

    def forget(self, file: File) -> None:
        file.state.tables.pop("heap", None)

    def locate(self, file: File, args: Args) -> None:
        args.zero(*self.zero_locate)
        bo = self.find(file, args["handle"])
        nowhere = (1 << 64) - 1
        args["map_offset"] = nowhere if bo.inside else self.offset_of(bo)
        args["xdna_addr"] = bo.address or nowhere
        args["vaddr"] = nowhere


DRM: dict[str, Callable[[FakeKernel], DrmDriver]] = {
    "nouveau": Nouveau,
    "panfrost": Panfrost,
    "panthor": Panthor,
    "msm": Msm,
    "v3d": V3d,
    "etnaviv": Etnaviv,
    "lima": Lima,
}
ACCEL: dict[str, Callable[[FakeKernel], DrmDriver]] = {
    "ivpu": Ivpu,
    "amdxdna": Amdxdna,
    "qaic": Qaic,
    "rocket": Rocket,
}
