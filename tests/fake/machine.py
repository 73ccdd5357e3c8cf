"""ONE fake driver beneath accelctl.hal.devfile, for tests of every back-end. How to use it:

    with FakeMachine("amdgpu", vram=64 << 20) as m:                  # nodes: m.node, m.nodes
        session = MEMORY.open(m.target("amdgpu"), Env(syscalls=m))   # m is the Syscalls
        m.fail("GEM_VA:MAP", nth=2, error=errno.ENOSPC)              # also lose_reply, interrupt, swallow, partial
        before = m.census(); ...one cycle...; assert m.census() == before, m.leftovers()
        session.close(); assert not m.dropped                        # what only close() had cleaned up
    # the end asserts: nothing alive (m.leftovers() names it), and no FakeError was swallowed

Drivers: amdgpu, kfd (with the amdgpu node it needs), i915, xe, nvidia (release="550.90.07"), habanalabs, nouveau,
panfrost, panthor, msm, v3d, etnaviv, lima, ivpu, amdxdna, qaic, rocket, vgem, vkms, bochs, qxl, virtio_gpu, dma_heap,
udmabuf, vfio, iommufd. Several at once share dma-bufs: FakeMachine("vgem", "amdgpu"); the n-th DRM driver is card(n-1)
and renderD(128+n-1), the n-th accel driver accel(n-1). FakeMachine("kfd", gpus=2) has two GPUs.
It is driven by ../shared/uapi and never by accelctl.hal.uapi; a test skips loudly where the tables are missing.

Capacity: vram, gtt (bytes), slots (VFIO mappings), large_bar=False (KFD: no public VRAM), local_memory=False (i915, xe:
no VRAM). Whatever is left at close of a file goes as in a kernel and is told in m.dropped. KFD belongs to the process:
its objects stay after close, and m.new_process() is what ends them (the census and leftovers show them until then).
strict=False: a size that no known kernel has is no FakeError, but what a kernel makes of it: zero-filled and cut off
(DRM), EINVAL (NVIDIA's escapes).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import TracebackType

from accelctl.abi.lifecycle import Target
from tests.fake import amdgpu, bound, drm, habanalabs, intel, kfd, misc, nvidia, uvm, virtual
from tests.fake.core import Driver, FakeError, FakeKernel

__all__ = ["FakeError", "FakeMachine"]

DRM_MAJOR, ACCEL_MAJOR, KFD_MAJOR, NVIDIA_MAJOR, UVM_MAJOR, MISC_MAJOR = 226, 261, 510, 195, 511, 10
DRM: dict[str, Callable[[FakeKernel], drm.DrmDriver]] = {
    "amdgpu": amdgpu.Amdgpu,
    "i915": intel.I915,
    "xe": intel.Xe,
    **virtual.DRM,
    **bound.DRM,
}
ACCEL: dict[str, Callable[[FakeKernel], drm.DrmDriver]] = {"habanalabs": habanalabs.Habanalabs, **bound.ACCEL}
OTHERS = ("kfd", "nvidia", "dma_heap", "udmabuf", "vfio", "iommufd")
NAMES = (*DRM, *ACCEL, *OTHERS)


class FakeMachine(FakeKernel):
    """A machine with these drivers; see the module."""

    def __init__(
        self,
        *drivers: str,
        vram: int = 1 << 30,
        gtt: int = 1 << 32,
        slots: int = 65535,
        release: str = "595.45.04",
        gpus: int = 1,
        large_bar: bool = True,
        local_memory: bool = True,
        strict: bool = True,
    ) -> None:
        super().__init__()
        self.vram, self.gtt, self.slots, self.release = vram, gtt, slots, release
        self.gpus, self.large_bar, self.local_memory, self.strict = gpus, large_bar, local_memory, strict
        self.of: dict[str, list[str]] = {}
        """Driver -> its nodes, the device's own first."""
        self._minors = {"dri": 0, "accel": 0}
        unknown = [name for name in drivers if name not in NAMES]
        if unknown or not drivers:
            raise FakeError(f"no such drivers: {unknown}; there are {', '.join(sorted(NAMES))}")
        for name in drivers:
            self._plug(name)

    def _plug(self, name: str) -> None:
        if name in DRM:
            self._drm(name, DRM[name](self))
        elif name in ACCEL:
            number = self._minors["accel"]
            self._minors["accel"] += 1
            self._node(name, f"/dev/accel/accel{number}", ACCEL[name](self), os.makedev(ACCEL_MAJOR, number))
        else:
            getattr(self, f"_plug_{name}")()

    def _drm(self, name: str, driver: drm.DrmDriver) -> None:
        number = self._minors["dri"]
        self._minors["dri"] += 1
        render = (f"/dev/dri/renderD{128 + number}", os.makedev(DRM_MAJOR, 128 + number))
        card = (f"/dev/dri/card{number}", os.makedev(DRM_MAJOR, number))
        nodes = [render] if driver.renders else []
        for path, device in (*nodes, card) if driver.prefers_render else (card, *nodes):
            self._node(name, path, driver, device)

    def _node(self, name: str, path: str, driver: Driver, device: int) -> None:
        self.nodes[path] = (driver, device)
        self.of.setdefault(name, []).append(path)

    def _plug_kfd(self) -> None:
        mine = [amdgpu.Amdgpu(self) for _ in range(self.gpus)]
        self._node("kfd", "/dev/kfd", kfd.Kfd(self, mine), os.makedev(KFD_MAJOR, 0))
        for device in mine:
            self._drm("kfd", device)
        self.of["kfd"] = [path for path in self.of["kfd"] if "card" not in path]

    def _plug_nvidia(self) -> None:
        manager = nvidia.Rm(self)
        for number in range(self.gpus):
            self._node("nvidia", f"/dev/nvidia{number}", manager.gpu(number), os.makedev(NVIDIA_MAJOR, number))
        self._node("nvidia", "/dev/nvidiactl", manager, os.makedev(NVIDIA_MAJOR, 255))
        self._node("nvidia", "/dev/nvidia-uvm", uvm.Uvm(self, manager), os.makedev(UVM_MAJOR, 0))

    def _plug_dma_heap(self) -> None:
        self._node("dma_heap", "/dev/dma_heap/system", misc.DmaHeap(self), os.makedev(252, 0))

    def _plug_udmabuf(self) -> None:
        self._node("udmabuf", "/dev/udmabuf", misc.Udmabuf(self), os.makedev(MISC_MAJOR, 125))

    def _plug_vfio(self) -> None:
        container = misc.Container(self)
        self._node("vfio", "/dev/vfio/vfio", container, os.makedev(MISC_MAJOR, 196))
        self._node("vfio", "/dev/vfio/7", misc.Group(self, container), os.makedev(243, 0))

    def _plug_iommufd(self) -> None:
        self._node("iommufd", "/dev/iommu", misc.Iommufd(self), os.makedev(MISC_MAJOR, 127))

    @property
    def node(self) -> str:
        """The first driver's own node."""
        return next(iter(self.of.values()))[0]

    def target(self, chip: str, driver: str = "", *more: str) -> Target:
        """The device of ``driver`` (first plugged if not named) as a back-end gets it; ``more``: other drivers, whose
        own nodes come with it (importers, peers)."""
        name = driver or next(iter(self.of))
        own, *others = self.of[name]
        if name in DRM:
            others = []
        others += [self.of[other][0] for other in more]
        return Target(f"fake:{name}", chip, name, own, tuple(others))

    def new_process(self) -> None:
        """End of the process, as far as KFD is concerned."""
        for driver in {id(driver): driver for driver, _ in self.nodes.values()}.values():
            if isinstance(driver, kfd.Kfd):
                driver.end_process()

    def __enter__(self) -> FakeMachine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left, wrong = self.leftovers(), list(self.errors)
        self.new_process()
        self.finish()
        if error is not None:
            return
        if wrong:
            raise wrong[0]
        assert not left, "left over:\n  " + "\n  ".join(left)


def every(names: Iterable[str] = NAMES) -> list[str]:
    """Names of all drivers, for parametrised tests."""
    return sorted(names)
