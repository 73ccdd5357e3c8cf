"""amdgpu's objects and its address space per file (amdgpu_gem.c, amdgpu_vm.c)."""

from __future__ import annotations

import errno
from typing import ClassVar

from tests.fake.core import FakeKernel, File, serves
from tests.fake.drm import Bo, DrmDriver, Vm
from tests.fake.tables import table
from tests.fake.things import PAGE, Args, Thing, oops

RESERVED, TOP, GRANULE = 0x10000, 1 << 47, 0x1000
"""The lowest address that may be mapped, and the start of the hole."""


def pin(machine: FakeKernel, bo: Bo, address: int, size: int) -> None:
    """Pages of the caller as the memory of ``bo``. OSError (EFAULT)."""
    machine.user.pages(address, size)
    pages = Thing(machine.alive, "user pages", f"at {address:#x}", size)
    pages.hold("an object")
    bo.gone.append(lambda: pages.drop("an object"))
    bo.mappable = False


class Amdgpu(DrmDriver):
    """One GPU. Numbers come from its table alone."""

    name = table_name = "amdgpu"
    dumb = True
    operations: ClassVar[dict[str, tuple[str, dict[int, str]]]] = {
        "DRM_IOCTL_AMDGPU_GEM_VA": ("operation", {1: "MAP", 2: "UNMAP", 3: "CLEAR", 4: "REPLACE"}),
        "DRM_IOCTL_AMDGPU_INFO": ("query", {16: "VRAM_USAGE", 17: "GTT_USAGE", 22: "DEV_INFO", 23: "VIS_VRAM_USAGE"}),
    }

    def opened(self, file: File) -> None:
        super().opened(file)
        file.state.vm = Vm(self.machine.alive, f"of {file}", RESERVED, TOP)  # it holds what is bound; the file it

    def forget(self, file: File) -> None:
        file.state.vm.clear()

    def handle_closing(self, file: File, bo: Bo, handle: int) -> None:
        """The last handle takes the object's mappings with it (amdgpu_gem_object_close)."""
        if sum(other is bo for other in file.state.handles.values()) > 1:
            return
        for start, size, _ in file.state.vm.ranges.items():
            if file.state.vm.at[start] is bo:
                file.state.vm.unbind(start, size)

    def may_map(self, file: File, bo: Bo) -> bool:
        """KFD's objects are for the render file that KFD has."""
        return any(isinstance(who, tuple) and who[0] == "KFD handle" for who in bo.holders)

    @serves("DRM_IOCTL_AMDGPU_GEM_CREATE")
    def create(self, file: File, args: Args) -> None:
        """VRAM that is full becomes GTT, silently (amdgpu_gem_create_ioctl)."""
        known = {n: v for n, v in self.constants.items() if n.startswith("AMDGPU_GEM_CREATE_")}
        flags = args.flags("in.domain_flags", sum(set(known.values())))
        domains = args.flags("in.domains", self.constants["AMDGPU_GEM_DOMAIN_MASK"])
        vram, gtt = self.constants["AMDGPU_GEM_DOMAIN_VRAM"], self.constants["AMDGPU_GEM_DOMAIN_GTT"]
        align = args["in.alignment"]
        if not domains & (vram | gtt) or align & (align - 1):
            raise oops(errno.EINVAL, f"domains {domains:#x}, alignment {align:#x}")
        try:
            bo = self.new(args["in.bo_size"], "vram" if domains & vram else "gtt")
        except OSError as error:
            if error.errno != errno.ENOMEM or not domains & vram:
                raise
            bo, domains = self.new(args["in.bo_size"], "gtt"), domains | gtt
        bo.domains, bo.flags = domains, flags
        bo.mappable = not flags & known["AMDGPU_GEM_CREATE_NO_CPU_ACCESS"]
        if flags & known["AMDGPU_GEM_CREATE_VM_ALWAYS_VALID"]:
            bo.vm = file.state.vm
        args.blank()
        args["out.handle"] = self.handle(file, bo)

    @serves("DRM_IOCTL_AMDGPU_GEM_USERPTR")
    def userptr(self, file: File, args: Args) -> None:
        """EACCES for pages that are to be written without a notifier (REGISTER)."""
        known = {n: v for n, v in self.constants.items() if n.startswith("AMDGPU_GEM_USERPTR_")}
        flags = args.flags("flags", sum(known.values()))
        args.zero("handle")
        if (args["addr"] | args["size"]) % PAGE or not args["size"]:
            raise oops(errno.EINVAL, "not whole pages")
        writes = not flags & known["AMDGPU_GEM_USERPTR_READONLY"]
        if writes and not flags & known["AMDGPU_GEM_USERPTR_REGISTER"]:
            raise oops(errno.EACCES, "to be written, and no notifier")
        bo = Bo(self, self.machine.alive, args["size"], "user pages")
        pin(self.machine, bo, args["addr"], args["size"])
        args["handle"] = self.handle(file, bo)

    @serves("DRM_IOCTL_AMDGPU_GEM_MMAP")
    def mmap_offset(self, file: File, args: Args) -> None:
        """EPERM for user pages and for what the CPU was not to see."""
        bo = self.find(file, args["in.handle"])
        if not bo.mappable:
            raise oops(errno.EPERM, "not for the CPU")
        args.blank()
        args["out.addr_ptr"] = self.offset_of(bo)

    @serves("DRM_IOCTL_AMDGPU_GEM_VA")
    def va(self, file: File, args: Args) -> None:
        """One interval of the file's address space (amdgpu_gem_va_ioctl)."""
        start, flags = args["va_address"], args["flags"]
        page = [f"AMDGPU_VM_{n}" for n in ("DELAY_UPDATE", "PAGE_READABLE", "PAGE_WRITEABLE", "PAGE_EXECUTABLE")]
        known = table("amdgpu").mask(*page, "AMDGPU_VM_MTYPE_MASK", "AMDGPU_VM_PAGE_NOALLOC")
        if start < RESERVED or start >= TOP or flags & ~known:
            raise oops(errno.EINVAL, f"address {start:#x}, flags {flags:#x}")
        args.zero("vm_timeline_syncobj_out", "num_syncobj_handles", code=errno.ENOENT)
        args.seen("map_size", "offset_in_bo")
        bo, vm = self.find(file, args["handle"]), file.state.vm
        operation = self.operations[args.name][1].get(args["operation"])
        if operation == "MAP":
            if args["offset_in_bo"] % PAGE or args["offset_in_bo"] + args["map_size"] > bo.size:
                raise oops(errno.EINVAL, f"{args['map_size']:#x} bytes of {bo}")
            vm.bind(start, args["map_size"], bo)
        elif operation == "UNMAP":
            found = vm.ranges.get(start)
            if found is None or vm.at.get(start) is not bo:
                raise oops(errno.ENOENT, f"{bo} is not mapped at {start:#x}")
            vm.unbind(start, found[0])
        else:
            raise oops(errno.EINVAL, f"operation {args['operation']}")

    @serves("DRM_IOCTL_AMDGPU_GEM_OP")
    def op(self, file: File, args: Args) -> None:
        """GET_GEM_CREATE_INFO: what became of an object."""
        args.zero("padding", "num_entries")
        bo = self.find(file, args["handle"])
        if args["op"] != self.constants["AMDGPU_GEM_OP_GET_GEM_CREATE_INFO"]:
            raise oops(errno.EINVAL, f"operation {args['op']}")
        made = table("amdgpu").layout("struct drm_amdgpu_gem_create_in")
        info = made.pack(bo_size=bo.size, alignment=PAGE, domains=bo.domains, domain_flags=bo.flags)
        self.machine.user.write(args["value"], bytes(info))

    @serves("DRM_IOCTL_AMDGPU_INFO")
    def info(self, file: File, args: Args) -> None:
        """Copies at most as much as the caller has room for."""
        if not args["return_size"] or not args["return_pointer"]:
            raise oops(errno.EINVAL, "no room for an answer")
        answer = self._info(args["query"])
        self.machine.user.write(args["return_pointer"], answer[: args["return_size"]])

    def _info(self, query: int) -> bytes:
        known = {self.constants[f"AMDGPU_INFO_{name}_USAGE"]: name for name in ("VRAM", "GTT", "VIS_VRAM")}
        if query in known:
            return self.used["gtt" if known[query] == "GTT" else "vram"].to_bytes(8, "little")
        if query == self.constants["AMDGPU_INFO_DEV_INFO"]:
            return bytes(
                table("amdgpu")
                .layout("struct drm_amdgpu_info_device")
                .junk(
                    virtual_address_offset=RESERVED,
                    virtual_address_max=TOP,
                    virtual_address_alignment=GRANULE,
                    gart_page_size=PAGE,
                )
            )
        if query == self.constants["AMDGPU_INFO_MEMORY"]:
            return self._memory()
        raise oops(errno.EINVAL, f"query {query:#x}")

    def _memory(self) -> bytes:
        layout = table("amdgpu").layout("struct drm_amdgpu_memory_info")
        answer = layout.pack()
        for part, pool in {"vram": "vram", "cpu_accessible_vram": "vram", "gtt": "gtt"}.items():
            layout.put(answer, f"{part}.total_heap_size", getattr(self.machine, pool))
            layout.put(answer, f"{part}.heap_usage", self.used[pool])
        return bytes(answer)
