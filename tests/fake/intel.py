"""i915 and xe (drivers/gpu/drm/i915/gem, drivers/gpu/drm/xe): objects in regions; xe's address spaces and binds."""

from __future__ import annotations

import errno
import struct
from typing import ClassVar

from tests.fake.bound import replace, take_out
from tests.fake.core import File, serves
from tests.fake.drm import Bo, DrmDriver, Vm
from tests.fake.rows import user_object
from tests.fake.tables import table
from tests.fake.things import PAGE, Args, Thing, oops

BIG_PAGE = 1 << 16
"""Granule of VRAM."""


class Intel(DrmDriver):
    """What both have: regions."""

    dumb = True

    @property
    def local(self) -> bool:
        """A card with memory of its own."""
        return bool(getattr(self.machine, "local_memory", True))

    def pools(self) -> list[str]:
        """Its regions, system memory first."""
        return ["gtt", "vram"] if self.local else ["gtt"]


class I915(Intel):
    """i915: no binds; mappings of one kind."""

    name = table_name = "i915"

    @serves("DRM_IOCTL_I915_GEM_CREATE")
    def create(self, file: File, args: Args) -> None:
        """In system memory; the size comes back rounded up."""
        args.seen("handle")
        bo = self.new(args["size"])
        args["handle"], args["size"] = self.handle(file, bo), bo.size

    @serves("DRM_IOCTL_I915_GEM_CREATE_EXT")
    def create_ext(self, file: File, args: Args) -> None:
        """Where its extension says."""
        args.flags("flags", self.constants["I915_GEM_CREATE_EXT_FLAG_NEEDS_CPU_ACCESS"])
        args.seen("handle")
        pool = self._placement(args["extensions"])
        bo = self.new(args["size"], pool, errno.ENXIO if pool == "vram" else errno.ENOMEM)
        args["handle"], args["size"] = self.handle(file, bo), bo.size

    def _placement(self, pointer: int) -> str:
        pool, layout = "gtt", table("i915").layout("struct drm_i915_gem_create_ext_memory_regions")
        while pointer:
            data = self.machine.user.read(pointer, layout.size)
            one = Args("struct drm_i915_gem_create_ext_memory_regions", layout, bytearray(data))
            one.zero("base.flags", "base.rsvd", "pad")
            if one["base.name"] != self.constants["I915_GEM_CREATE_EXT_MEMORY_REGIONS"] or not one["num_regions"]:
                raise oops(errno.EINVAL, f"extension {one['base.name']} of {one['num_regions']} regions")
            kind, instance = struct.unpack("<HH", self.machine.user.read(one["regions"], 4))
            if instance or kind >= len(self.pools()):
                raise oops(errno.EINVAL, f"no region {kind}.{instance}")
            pool, pointer = self.pools()[kind], one["base.next_extension"]
            one.check()
        return pool

    @serves("DRM_IOCTL_I915_GEM_MMAP_OFFSET")
    def mmap_offset(self, file: File, args: Args) -> None:
        """FIXED on cards with memory of their own and nowhere else (i915_gem_mman.c)."""
        args.zero("extensions")
        args.seen("offset")
        kind, bo = args["flags"], self.find(file, args["handle"])
        if kind > self.constants["I915_MMAP_OFFSET_FIXED"]:
            raise oops(errno.EINVAL, f"type {kind}")
        if (kind == self.constants["I915_MMAP_OFFSET_FIXED"]) is not self.local or not bo.mappable:
            raise oops(errno.ENODEV, f"mapping of type {kind}")
        args["offset"] = self.offset_of(bo)

    @serves("DRM_IOCTL_I915_GEM_USERPTR")
    def userptr(self, file: File, args: Args) -> None:
        """Whole pages of the caller."""
        known = ("I915_USERPTR_READ_ONLY", "I915_USERPTR_PROBE", "I915_USERPTR_UNSYNCHRONIZED")
        args.flags("flags", table("i915").mask(*known) & 0xFFFFFFFF)
        args.seen("handle")
        args["handle"] = self.handle(file, user_object(self, args["user_ptr"], args["user_size"]))

    @serves("DRM_IOCTL_I915_QUERY")
    def query(self, file: File, args: Args) -> None:
        """An item's error is in its length; length 0 asks how much room it wants."""
        args.zero("flags")
        layout = table("i915").layout("struct drm_i915_query_item")
        for place in range(args["num_items"]):
            pointer = args["items_ptr"] + place * layout.size
            item = bytearray(self.machine.user.read(pointer, layout.size))
            one = Args("struct drm_i915_query_item", layout, item)
            one["length"] = self._item(one)
            one.check()
            self.machine.user.write(pointer, bytes(one.buffer))

    def _item(self, one: Args) -> int:
        if one["query_id"] != self.constants["DRM_I915_QUERY_MEMORY_REGIONS"] or one["flags"]:
            return -errno.EINVAL
        answer, length = self._regions(), one["length"]
        if length and length < len(answer):
            return -errno.EINVAL
        if length:
            if any(self.machine.user.read(one["data_ptr"], 16)):
                return -errno.EINVAL  # num_regions and rsvd must be 0
            self.machine.user.write(one["data_ptr"], answer)
        one.seen("data_ptr")
        return len(answer)

    def _regions(self) -> bytes:
        head = table("i915").layout("struct drm_i915_query_memory_regions")
        entry = table("i915").layout("struct drm_i915_memory_region_info")
        answer = bytes(head.pack(num_regions=len(self.pools())))
        for kind, pool in enumerate(self.pools()):
            size = int(getattr(self.machine, pool))
            made = entry.junk(probed_size=size, unallocated_size=size - self.used[pool], region__memory_instance=0)
            entry.put(made, "region.memory_class", kind)
            answer += bytes(made)
        return answer


class Xe(Intel):
    """xe: address spaces by number, which keep alive what is bound in them."""

    name = table_name = "xe"
    bits, patterns, coherent_from = 48, 8, 3
    operations: ClassVar[dict[str, tuple[str, dict[int, str]]]] = {
        "DRM_IOCTL_XE_VM_BIND": ("bind.op", {0: "MAP", 1: "UNMAP", 2: "MAP_USERPTR"}),
        "DRM_IOCTL_XE_DEVICE_QUERY": ("query", {1: "MEM_REGIONS", 2: "CONFIG"}),
    }

    def _vm(self, file: File, number: int) -> Vm:
        vm = file.state.numbers("vm").get(number)
        if not isinstance(vm, Vm):
            raise oops(errno.ENOENT, f"{file} has no address space {number}")
        return vm

    @serves("DRM_IOCTL_XE_VM_CREATE")
    def vm_create(self, file: File, args: Args) -> None:
        """Nothing special is asked for in this machine."""
        args.zero("extensions", "reserved")
        args.flags("flags", self.constants["DRM_XE_VM_CREATE_FLAG_SCRATCH_PAGE"])
        args.seen("vm_id")
        args["vm_id"] = self.bound(file, "vm", Vm(self.machine.alive, f"of {file}", 0, 1 << self.bits))

    @serves("DRM_IOCTL_XE_VM_DESTROY")
    def vm_destroy(self, file: File, args: Args) -> None:
        """With all that is bound in it."""
        args.zero("pad", "reserved")
        self.unbound(file, "vm", args["vm_id"])

    @serves("DRM_IOCTL_XE_GEM_CREATE")
    def create(self, file: File, args: Args) -> None:
        """xe_gem_create_ioctl."""
        args.zero("extensions", "reserved", "pad", "handle")
        names = ("DEFER_BACKING", "SCANOUT", "NEEDS_VISIBLE_VRAM")
        flags = args.flags("flags", table("xe").mask(*(f"DRM_XE_GEM_CREATE_FLAG_{name}" for name in names)))
        place, size, caching = args["placement"], args["size"], args["cpu_caching"]
        if not place or place >> len(self.pools()) or size % PAGE:
            raise oops(errno.EINVAL, f"{size:#x} bytes in {place:#x}")
        wc, vram = self.constants["DRM_XE_GEM_CPU_CACHING_WC"], bool(place & 2)
        if not 1 <= caching <= wc or (vram and caching != wc):
            raise oops(errno.EINVAL, f"caching {caching} in {place:#x}")
        if flags & self.constants["DRM_XE_GEM_CREATE_FLAG_NEEDS_VISIBLE_VRAM"] and not vram:
            raise oops(errno.EINVAL, "visible VRAM, but not in VRAM")
        vm = self._vm(file, args["vm_id"]) if args["vm_id"] else None
        size = -(-size // BIG_PAGE) * BIG_PAGE if vram else size
        bo = self.new(size, "vram" if vram else "gtt")
        bo.vm, bo.flags = vm, caching
        args["handle"] = self.handle(file, bo)

    @serves("DRM_IOCTL_XE_GEM_MMAP_OFFSET")
    def mmap_offset(self, file: File, args: Args) -> None:
        """No flags: the only one is for a page that is no object's."""
        args.zero("extensions", "reserved", "flags")
        args.seen("offset")
        args["offset"] = self.offset_of(self.find(file, args["handle"]))

    @serves("DRM_IOCTL_XE_VM_BIND")
    def vm_bind(self, file: File, args: Args) -> None:
        """One synchronous bind (xe_vm_bind_ioctl); no queues, no sync objects in this machine."""
        args.zero("extensions", "reserved", "pad", "pad2", "num_syncs", "syncs")
        args.zero("bind.extensions", "bind.pad", "bind.pad2", "bind.reserved", "bind.prefetch_mem_region_instance")
        args.zero("exec_queue_id", code=errno.ENOENT)
        if args["num_binds"] != 1:
            raise oops(errno.EINVAL, f"{args['num_binds']} binds in the structure of one")
        args.zero("bind.flags")
        vm, start, size = self._vm(file, args["vm_id"]), args["bind.addr"], args["bind.range"]
        if (start | size | args["bind.obj_offset"]) % PAGE or not size or start + size > vm.high:
            raise oops(errno.EINVAL, f"{size:#x} bytes at {start:#x}")
        if args["bind.pat_index"] >= self.patterns:
            raise oops(errno.EINVAL, f"page attributes {args['bind.pat_index']}, there are {self.patterns}")
        coherent = args["bind.pat_index"] >= self.coherent_from
        operation = self.operations[args.name][1].get(args["bind.op"])
        if operation == "MAP":
            bo = self._to_bind(file, vm, args, coherent)
            replace(self.machine, vm, start, size, bo)
        elif operation == "MAP_USERPTR":
            args.zero("bind.obj")
            if not coherent:
                raise oops(errno.EINVAL, "pages of the caller, not coherent")
            self._bind_user(vm, start, size, args["bind.userptr"])
        elif operation == "UNMAP":
            args.zero("bind.obj", "bind.obj_offset")
            take_out(self.machine, vm, start, size)
        else:
            raise oops(errno.EINVAL, f"operation {args['bind.op']}")

    def _to_bind(self, file: File, vm: Vm, args: Args, coherent: bool) -> Bo:
        if not args["bind.obj"]:
            raise oops(errno.EINVAL, "bind of no object")
        bo, size = self.find(file, args["bind.obj"]), args["bind.range"]
        if args["bind.obj_offset"] + size > bo.size or bo.vm not in (None, vm):
            raise oops(errno.EINVAL, f"{size:#x} bytes of {bo} in this address space")
        if bo.domain == "vram" and (args["bind.addr"] | size) % BIG_PAGE:
            raise oops(errno.EINVAL, "VRAM has pages of 64 KiB")
        if bo.flags == self.constants["DRM_XE_GEM_CPU_CACHING_WB"] and not coherent:
            raise oops(errno.EINVAL, "cached memory, not coherent")
        return bo

    def _bind_user(self, vm: Vm, start: int, size: int, address: int) -> None:
        self.machine.user.pages(address, size)
        replace(self.machine, vm, start, size, Thing(self.machine.alive, "user pages", f"at {address:#x}", size))

    @serves("DRM_IOCTL_XE_DEVICE_QUERY")
    def query(self, file: File, args: Args) -> None:
        """Size 0 asks for the size; any other must be right."""
        args.zero("extensions", "reserved")
        kinds = {"MEM_REGIONS": self._regions, "CONFIG": self._config}
        make = kinds.get(self.operations[args.name][1].get(args["query"], ""))
        if make is None:
            raise oops(errno.EINVAL, f"query {args['query']}")
        answer = make()
        if not args["size"]:
            args["size"] = len(answer)
        elif args["size"] != len(answer):
            raise oops(errno.EINVAL, f"room for {args['size']} bytes, the answer has {len(answer)}")
        else:
            self.machine.user.write(args["data"], answer)

    def _regions(self) -> bytes:
        head, entry = table("xe").layout("drm_xe_query_mem_regions"), table("xe").layout("drm_xe_mem_region")
        answer = bytes(head.pack(num_mem_regions=len(self.pools())))
        for kind, pool in enumerate(self.pools()):
            answer += bytes(
                entry.junk(
                    mem_class=kind,
                    instance=kind,
                    min_page_size=BIG_PAGE if kind else PAGE,
                    total_size=int(getattr(self.machine, pool)),
                    used=self.used[pool],
                )
            )
        return answer

    def _config(self) -> bytes:
        values = [0] * 5
        values[self.constants["DRM_XE_QUERY_CONFIG_MIN_ALIGNMENT"]] = BIG_PAGE if self.local else PAGE
        values[self.constants["DRM_XE_QUERY_CONFIG_VA_BITS"]] = self.bits
        return struct.pack("<II5Q", 5, 0, *values)
