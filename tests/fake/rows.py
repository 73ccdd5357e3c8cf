"""Drivers that their roles describe: which call makes an object, which tells where it is mapped, and in which fields.

What a class here adds is what roles cannot say: which flags exist, what must be 0, and where device addresses come
from.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, ClassVar

from tests.fake.amdgpu import pin
from tests.fake.core import FakeKernel, File, serves
from tests.fake.drm import Bo, DrmDriver, Vm
from tests.fake.tables import table
from tests.fake.things import PAGE, Args, oops

GIB = 1 << 30


class Row(DrmDriver):
    """One driver by its roles. Flags by name; ``zero_*``: fields that are refused unless 0."""

    imports = exports = True
    flags_field = ""
    flags_known: ClassVar[tuple[str, ...]] = ()
    zero_alloc: ClassVar[tuple[str, ...]] = ()
    zero_locate: ClassVar[tuple[str, ...]] = ()
    window: ClassVar[tuple[int, int]] = (0, 0)
    """Device addresses that objects get by themselves."""
    shared_window = False
    """One for the device, instead of one for each file."""

    def __init__(self, machine: FakeKernel) -> None:
        super().__init__(machine)
        self.roles: dict[str, Any] = table(self.table_name).roles
        self.everyone = Vm(machine.alive, f"of {self.name}", *self.window) if self.shared_window else None

    def opened(self, file: File) -> None:
        super().opened(file)
        if self.window[1]:
            file.state.vm = self.everyone or Vm(self.machine.alive, f"of {file}", *self.window)

    def handler(self, name: str) -> Callable[..., Any]:
        """By role first where no method says otherwise."""
        if name not in self.handlers:
            if name == self.roles["alloc"]["ioctl"]:
                return self.alloc
            if name == self.roles.get("cpu_map", {}).get("ioctl"):
                return self.locate
        return super().handler(name)

    def alloc(self, file: File, args: Args) -> None:
        """An object as the role says: size in the first field with that name, handle out, address and offset out."""
        role = self.roles["alloc"]
        size_field = next(name for word in role["in"] if (name := word.split()[0]).endswith("size"))
        outputs = [role[key].split()[0] for key in ("out_handle", "out_gpu_va", "out_mmap_offset") if key in role]
        args.seen(*(name for name in outputs if name not in self.zero_alloc))
        args.zero(*self.zero_alloc)
        flags = self.flags(args)
        bo = self.new(args[size_field])
        bo.flags = flags
        try:
            self.made(file, bo, args)
            self.give_address(file, bo)
        except OSError:
            bo.scrap()
            raise
        args[role["out_handle"]] = self.handle(file, bo)
        if "out_gpu_va" in role and bo.address:
            args[role["out_gpu_va"].split()[0]] = bo.address
        if "out_mmap_offset" in role:
            args[role["out_mmap_offset"]] = self.offset_of(bo)

    def flags(self, args: Args) -> int:
        """Known ones only."""
        if not self.flags_field:
            return 0
        return args.flags(self.flags_field, table(self.table_name).mask(*self.flags_known))

    def made(self, file: File, bo: Bo, args: Args) -> None:
        """What else the driver looks at, before anything is kept. OSError."""

    def give_address(self, file: File, bo: Bo) -> None:
        """A device address, where objects get one by themselves; it goes with the object. OSError (ENOSPC)."""
        vm = file.state.vm
        if not self.window[1] or vm is None:
            return
        address = vm.ranges.lowest(bo.size, PAGE, vm.low, vm.high)
        if address is None:
            raise oops(errno.ENOSPC, f"no device address for {bo.size} bytes")
        vm.bind(address, bo.size, None)
        bo.address = address
        bo.gone.append(lambda: vm.unbind(address, bo.size))

    def imported(self, file: File, bo: Bo) -> None:
        self.give_address(file, bo)

    def locate(self, file: File, args: Args) -> None:
        """Where the CPU maps it, and what else the role says."""
        role = self.roles["cpu_map"]
        args.zero(*self.zero_locate)
        bo = self.find(file, args["handle"])
        if not bo.mappable:
            raise oops(errno.EINVAL, "not for the CPU")
        args[role["out_offset"]] = self.offset_of(bo)
        if "out_gpu_va" in role:
            args[role["out_gpu_va"]] = bo.address


class Panfrost(Row):
    """panfrost: addresses per file below 4 GiB."""

    name = table_name = "panfrost"
    flags_field, flags_known = "flags", ("PANFROST_BO_NOEXEC", "PANFROST_BO_HEAP", "PANFROST_BO_WB_MMAP")
    zero_alloc, zero_locate = ("pad",), ("flags",)
    window = (32 << 20, 4 * GIB)

    def made(self, file: File, bo: Bo, args: Args) -> None:
        heap = bo.flags & self.constants["PANFROST_BO_HEAP"]
        if heap and not bo.flags & self.constants["PANFROST_BO_NOEXEC"]:
            raise oops(errno.EINVAL, "a heap that is executable")
        bo.mappable = not heap

    @serves("DRM_IOCTL_PANFROST_GET_BO_OFFSET")
    def bo_offset(self, file: File, args: Args) -> None:
        """Its device address."""
        args.zero("pad")
        args["offset"] = self.find(file, args["handle"]).address


class Lima(Row):
    """lima: addresses per file, 32 bits; INFO tells them."""

    name = table_name = "lima"
    flags_field, flags_known = "flags", ("LIMA_BO_FLAG_HEAP",)
    zero_alloc = ("pad",)
    window = (PAGE, 4 * GIB - (1 << 20))

    def locate(self, file: File, args: Args) -> None:
        super().locate(file, args)
        args["va"] = self.find(file, args["handle"]).address


class V3d(Row):
    """v3d: one page table of 4 GiB for the whole device."""

    name = table_name = "v3d"
    zero_alloc, zero_locate = ("flags",), ("flags",)
    window, shared_window = (PAGE, 4 * GIB), True


class Rocket(Row):
    """rocket: the IOMMU's addresses, per file."""

    name = table_name = "rocket"
    window = (PAGE, 4 * GIB)


class Qaic(Row):
    """qaic: no addresses before slices are attached, which needs a network that runs."""

    name = table_name = "qaic"
    zero_alloc, zero_locate = ("pad",), ("pad",)


class Ivpu(Row):
    """ivpu: an address per object, in one of several ranges."""

    name, table_name = "intel_vpu", "ivpu"
    flags_field, flags_known = "flags", ("DRM_IVPU_BO_FLAGS",)
    window = (1 << 28, 1 << 37)

    def made(self, file: File, bo: Bo, args: Args) -> None:
        if bo.flags & self.constants["DRM_IVPU_BO_CACHE_MASK"] == self.constants["DRM_IVPU_BO_CACHE_MASK"]:
            raise oops(errno.EINVAL, "no such caching")

    def locate(self, file: File, args: Args) -> None:
        super().locate(file, args)
        bo = self.find(file, args["handle"])
        args["flags"], args["vpu_addr"], args["size"] = bo.flags, bo.address, bo.size

    @serves("DRM_IOCTL_IVPU_BO_CREATE_FROM_USERPTR")
    def userptr(self, file: File, args: Args) -> None:
        """Whole pages of the caller."""
        flags = args.flags("flags", table("ivpu").mask("DRM_IVPU_BO_HIGH_MEM", "DRM_IVPU_BO_READ_ONLY"))
        args.seen("handle", "vpu_addr")
        bo = user_object(self, args["user_ptr"], args["size"])
        bo.flags = flags
        try:
            self.give_address(file, bo)
        except OSError:
            bo.scrap()
            raise
        args["handle"], args["vpu_addr"] = self.handle(file, bo), bo.address


class Etnaviv(Row):
    """etnaviv: addresses only while work runs."""

    name = table_name = "etnaviv"
    flags_field = "flags"
    flags_known = ("ETNA_BO_CACHE_MASK", "ETNA_BO_FORCE_MMU")
    zero_alloc, zero_locate = ("handle",), ("pad",)

    def made(self, file: File, bo: Bo, args: Args) -> None:
        kinds = [self.constants[f"ETNA_BO_{name}"] for name in ("CACHED", "WC", "UNCACHED")]
        if bo.flags & self.constants["ETNA_BO_CACHE_MASK"] not in kinds:
            raise oops(errno.EINVAL, f"caching {bo.flags:#x}")

    @serves("DRM_IOCTL_ETNAVIV_GEM_USERPTR")
    def userptr(self, file: File, args: Args) -> None:
        """Whole pages of the caller; flags say what for."""
        flags = args.flags("flags", table("etnaviv").mask("ETNA_USERPTR_READ", "ETNA_USERPTR_WRITE"))
        if not flags:
            raise oops(errno.EINVAL, "for neither reading nor writing")
        args.zero("handle")
        args["handle"] = self.handle(file, user_object(self, args["user_ptr"], args["user_size"]))


def user_object(driver: DrmDriver, address: int, size: int) -> Bo:
    """Pages of the caller as an object. OSError."""
    if not size or (address | size) % PAGE:
        raise oops(errno.EINVAL, f"{size:#x} bytes at {address:#x}: not whole pages")
    bo = Bo(driver, driver.machine.alive, size, "user pages")
    pin(driver.machine, bo, address, size)
    return bo
