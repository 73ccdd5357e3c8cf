"""KFD (amdkfd/kfd_chardev.c, amdgpu_amdkfd_gpuvm.c): one object per process, whatever is opened and closed.

It keeps a render file for each GPU, for good. FREE is EBUSY while anything is mapped; MAP and UNMAP go GPU by GPU.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence

from tests.fake.amdgpu import Amdgpu, pin
from tests.fake.core import Driver, FakeError, FakeKernel, File, Lost, serves
from tests.fake.drm import Bo, Vm
from tests.fake.tables import Call, table
from tests.fake.things import PAGE, Args, Numbers, oops

BASE, LIMIT = 1 << 32, (1 << 47) - 1


class Gpu:
    """One GPU as this process sees it."""

    def __init__(self, machine: FakeKernel, number: int, device: Amdgpu) -> None:
        self.id, self.device = 0x1000 + number * 0x111, device
        self.render: File | None = None
        self.objects = Numbers(first=0)
        self.vm = Vm(machine.alive, f"of GPU {self.id:#x}", 0, LIMIT + 1)


class Kfd(Driver):
    """The KFD node."""

    name = "kfd"

    def __init__(self, machine: FakeKernel, devices: Sequence[Amdgpu]) -> None:
        super().__init__(machine)
        self.table = table("kfd")
        self.by_cmd = {call.cmd: call for call in self.table.calls()}
        self.gpus = {gpu.id: gpu for gpu in (Gpu(machine, n, device) for n, device in enumerate(devices))}

    def known(self) -> Iterable[Call]:
        return self.by_cmd.values()

    def end_process(self) -> None:
        """Everything that the process had."""
        for gpu in self.gpus.values():
            for handle in tuple(gpu.objects):
                bo = gpu.objects[handle]
                for other in self.gpus.values():
                    for start in [start for start, what in other.vm.at.items() if what is bo]:
                        other.vm.unbind(start, bo.size)
                gpu.objects.give_back(handle).drop(("KFD handle", gpu.id, handle))
            if gpu.render is not None:
                self.machine.put(gpu.render)
                gpu.render = None

    def ioctl(self, file: File, number: int, argument: bytearray | int) -> int:
        call = self.by_cmd.get(number & 0xFF)
        if number >> 8 & 0xFF != ord("K") or call is None:
            raise FakeError(f"{file}: KFD has no ioctl {number:#x}")
        if number not in call.numbers:
            raise FakeError(f"{file}: {call.name} as {number:#x}; kernels have {sorted(map(hex, call.numbers))}")
        size, way = number >> 16 & 0x3FFF, number >> 30
        if isinstance(argument, int) or len(argument) < size:
            raise FakeError(f"{file}: {call.name} needs {size} bytes; the kernel would write behind the argument")
        data = bytes(argument[:size]) if way & 1 else b""
        args = Args(call.name, call.layout, bytearray(data.ljust(max(call.layout.size, size), b"\0")))
        method, copied = self.handler(call.name), way & 2

        def done() -> int:
            method(file, args)
            args.check()
            return 0

        try:
            return self.machine.perform(call.name, "", done)
        except Lost:
            copied = 0
            raise
        finally:
            if copied:
                argument[:size] = args.buffer[:size]

    def _gpu(self, number: int) -> Gpu:
        if number not in self.gpus:
            raise oops(errno.EINVAL, f"no GPU {number:#x}")
        return self.gpus[number]

    @serves("AMDKFD_IOC_GET_VERSION")
    def version(self, file: File, args: Args) -> None:
        """The interface of the table."""
        args["major_version"] = self.table.constant("KFD_IOCTL_MAJOR_VERSION")
        args["minor_version"] = self.table.constant("KFD_IOCTL_MINOR_VERSION")

    @serves("AMDKFD_IOC_GET_PROCESS_APERTURES_NEW")
    def apertures(self, file: File, args: Args) -> None:
        """No room: how many there are. Else as many as there is room for."""
        room, layout = args["num_of_nodes"], self.table.layout("struct kfd_process_device_apertures")
        if not room:
            args.seen("kfd_process_device_apertures_ptr")
            args["num_of_nodes"] = len(self.gpus)
            return
        told = list(self.gpus.values())[:room]
        data = b"".join(bytes(layout.junk(gpu_id=gpu.id, gpuvm_base=BASE, gpuvm_limit=LIMIT)) for gpu in told)
        self.machine.user.write(args["kfd_process_device_apertures_ptr"], data)
        args["num_of_nodes"] = len(told)

    @serves("AMDKFD_IOC_ACQUIRE_VM")
    def acquire(self, file: File, args: Args) -> None:
        """The first render file of a GPU, for good; another is EBUSY."""
        gpu, render = self._gpu(args["gpu_id"]), self.machine.file(args["drm_fd"])
        if render is None or render.driver is not gpu.device:
            raise oops(errno.EINVAL, f"descriptor {args['drm_fd']} is no file of that GPU")
        if gpu.render is None:
            gpu.render = render
            render.uses += 1
        elif gpu.render is not render:
            raise oops(errno.EBUSY, "acquired by another file")

    @serves("AMDKFD_IOC_AVAILABLE_MEMORY")
    def available(self, file: File, args: Args) -> None:
        """VRAM that is free."""
        args.seen("available")
        gpu = self._gpu(args["gpu_id"])
        args["available"] = int(getattr(self.machine, "vram", 0)) - gpu.device.used["vram"]

    @serves("AMDKFD_IOC_ALLOC_MEMORY_OF_GPU")
    def alloc(self, file: File, args: Args) -> None:
        """kfd_ioctl_alloc_memory_of_gpu. In ``mmap_offset``: where the caller's pages are."""
        prefix = "KFD_IOC_ALLOC_MEM_FLAGS_"
        known = {name[len(prefix) :]: value for name, value in self.table.constants.items() if name.startswith(prefix)}
        flags = args.flags("flags", sum(known.values()))
        args.seen("handle")
        gpu, size = self._gpu(args["gpu_id"]), args["size"]
        kinds = [name for name in ("VRAM", "GTT", "USERPTR") if flags & known[name]]
        if not size or len(kinds) != 1:
            raise oops(errno.EINVAL, f"{size} bytes, flags {flags:#x}")
        if kinds == ["VRAM"] and flags & known["PUBLIC"] and not getattr(self.machine, "large_bar", True):
            raise oops(errno.EINVAL, "public VRAM, and the BAR is small")
        if gpu.render is None:
            raise oops(errno.ENODEV, "no address space was acquired")
        if args["va_addr"] % PAGE or not BASE <= args["va_addr"] <= LIMIT - size:
            raise oops(errno.EINVAL, f"address {args['va_addr']:#x}")
        bo = self._object(gpu, kinds[0], size, args)
        bo.address = args["va_addr"]
        handle = gpu.objects.take(bo)
        bo.hold(("KFD handle", gpu.id, handle))
        args["handle"] = gpu.id << 32 | handle
        if bo.mappable:
            args["mmap_offset"] = gpu.device.offset_of(bo)

    def _object(self, gpu: Gpu, kind: str, size: int, args: Args) -> Bo:
        if kind == "USERPTR":
            if (args["mmap_offset"] | size) % PAGE:
                raise oops(errno.EINVAL, "not whole pages")
            bo = Bo(gpu.device, self.machine.alive, size, "user pages")
            pin(self.machine, bo, args["mmap_offset"], size)
            return bo
        args.zero("mmap_offset")
        return gpu.device.new(size, "vram" if kind == "VRAM" else "gtt")

    def _find(self, args: Args, code: int) -> tuple[Gpu, int, Bo]:
        gpu, number = self.gpus.get(args["handle"] >> 32), args["handle"] & 0xFFFFFFFF
        if gpu is None or number not in gpu.objects:
            raise oops(code, f"no object {args['handle']:#x}")
        return gpu, number, gpu.objects[number]

    def _where(self, bo: Bo) -> list[int]:
        return [gpu.id for gpu in self.gpus.values() if gpu.vm.at.get(bo.address) is bo]

    @serves("AMDKFD_IOC_FREE_MEMORY_OF_GPU")
    def free(self, file: File, args: Args) -> None:
        """EBUSY while it is mapped on a GPU."""
        gpu, number, bo = self._find(args, errno.EINVAL)
        if self._where(bo):
            raise oops(errno.EBUSY, f"mapped on {self._where(bo)}")
        gpu.objects.give_back(number).drop(("KFD handle", gpu.id, number))

    def _each(self, args: Args, what: str) -> None:
        """GPU by GPU, from ``n_success`` on; what was done is told also where the next fails."""
        _, _, bo = self._find(args, errno.ENOMEM)
        count, first = args["n_devices"], args["n_success"]
        if not count or first > count:
            raise oops(errno.EINVAL, f"{count} GPUs, from {first} on")
        part, error = self.machine.part or (count, 0)
        ids = struct.unpack(f"<{count}I", self.machine.user.read(args["device_ids_array_ptr"], 4 * count))
        for place in range(first, min(count, part)):
            gpu = self._gpu(ids[place])
            if gpu.render is None:
                raise oops(errno.EINVAL, f"GPU {gpu.id:#x} was not acquired")
            mapped = gpu.vm.at.get(bo.address) is bo
            if mapped is (what == "map"):
                self.machine.odd(f"{what} of {bo} on {gpu.id:#x}, where that has been done")
            elif what == "map":
                gpu.vm.bind(bo.address, bo.size, bo)
            else:
                gpu.vm.unbind(bo.address, bo.size)
            args["n_success"] = place + 1
        if error:
            raise oops(error, f"after {part} GPUs, as ordered")

    @serves("AMDKFD_IOC_MAP_MEMORY_TO_GPU")
    def map(self, file: File, args: Args) -> None:
        """At the address that the object was made with."""
        self._each(args, "map")

    @serves("AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU")
    def unmap(self, file: File, args: Args) -> None:
        """Its end there."""
        self._each(args, "unmap")
