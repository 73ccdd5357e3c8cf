"""Drivers of virtual machines, and vgem: dumb buffers, and what virtio-gpu and qxl have beside them."""

from __future__ import annotations

import errno
from collections.abc import Callable

from tests.fake.core import FakeKernel, File, serves
from tests.fake.drm import DrmDriver
from tests.fake.things import PAGE, Args, oops


class Vgem(DrmDriver):
    """vgem: system memory only."""

    name = table_name = "vgem"
    dumb = True
    prefers_render = False


class Vkms(DrmDriver):
    """vkms: a display, no render node."""

    name = "vkms"
    dumb = True
    renders = prefers_render = False


class Bochs(DrmDriver):
    """bochs: a display whose buffers lie in VRAM."""

    name = "bochs-drm"
    dumb = True
    renders = prefers_render = imports = False
    dumb_pool = "vram"


class Qxl(DrmDriver):
    """qxl: VRAM; 32-bit sizes; no dma-bufs from elsewhere."""

    name = table_name = "qxl"
    dumb = True
    renders = prefers_render = imports = False
    dumb_pool = "vram"

    @serves("DRM_IOCTL_QXL_ALLOC")
    def alloc(self, file: File, args: Args) -> None:
        """EINVAL for nothing (qxl_alloc_ioctl)."""
        args.zero("handle")
        args["handle"] = self.handle(file, self.new(args["size"], "vram"))

    @serves("DRM_IOCTL_QXL_MAP")
    def map(self, file: File, args: Args) -> None:
        """Where it is mapped."""
        args.zero("pad")
        args["offset"] = self.offset_of(self.find(file, args["handle"]))

    @serves("DRM_IOCTL_QXL_GETPARAM")
    def getparam(self, file: File, args: Args) -> None:
        """QXL_PARAM_NUM_SURFACES, and the most of a submission."""
        values = {
            self.constants["QXL_PARAM_NUM_SURFACES"]: 1024,
            self.constants["QXL_PARAM_MAX_RELOCS"]: 96,
        }
        if args["param"] not in values:
            raise oops(errno.EINVAL, f"parameter {args['param']}")
        args["value"] = values[args["param"]]


FORMATS = (1, 2, 3, 4, 67, 68, 121, 134)
"""VIRTIO_GPU_FORMAT_* that 2D resources have (the device's specification)."""


class VirtioGpu(DrmDriver):
    """virtio-gpu without 3D, with blobs of guest memory."""

    name, table_name = "virtio_gpu", "virtgpu"
    dumb = True
    prefers_render = False

    def __init__(self, machine: FakeKernel) -> None:
        super().__init__(machine)
        self._resource = 0

    def _next(self) -> int:
        self._resource += 1
        return self._resource

    @serves("DRM_IOCTL_VIRTGPU_GETPARAM")
    def getparam(self, file: File, args: Args) -> None:
        """The answer goes where ``value`` points, as an int."""
        known = {value: name for name, value in self.constants.items() if name.startswith("VIRTGPU_PARAM_")}
        if args["param"] not in known:
            raise oops(errno.EINVAL, f"parameter {args['param']}")
        answer = int(known[args["param"]] in ("VIRTGPU_PARAM_RESOURCE_BLOB", "VIRTGPU_PARAM_CAPSET_QUERY_FIX"))
        self.machine.user.write(args["value"], answer.to_bytes(4, "little"))

    @serves("DRM_IOCTL_VIRTGPU_RESOURCE_CREATE")
    def create(self, file: File, args: Args) -> None:
        """Without 3D: 2D only, of one layer (virtio_gpu_resource_create_ioctl)."""
        for name, wanted in {"depth": 1, "nr_samples": 0, "last_level": 0, "target": 2}.items():
            if args[name] != wanted:
                raise oops(errno.EINVAL, f"{name} {args[name]}, without 3D it is {wanted}")
        if args["array_size"] > 1 or not args["width"] or not args["height"]:
            raise oops(errno.EINVAL, "no 2D image")
        args.seen("bind")
        if args["format"] not in FORMATS:
            raise oops(errno.EINVAL, f"format {args['format']}")
        args.zero("flags", "stride", "bo_handle", "res_handle")
        bo = self.new(max(args["size"], PAGE))
        args["bo_handle"], args["res_handle"] = self.handle(file, bo), self._next()

    @serves("DRM_IOCTL_VIRTGPU_RESOURCE_CREATE_BLOB")
    def create_blob(self, file: File, args: Args) -> None:
        """Guest memory only (verify_blob: without 3D there is no other), of whole pages."""
        if args["blob_mem"] != self.constants["VIRTGPU_BLOB_MEM_GUEST"]:
            raise oops(errno.EINVAL, f"blob_mem {args['blob_mem']} without 3D")
        flags = args.flags("blob_flags", self.constants["VIRTGPU_BLOB_FLAG_USE_MAPPABLE"])
        args.zero("cmd_size", "blob_id", "cmd", "bo_handle", "res_handle")
        if not flags or args["size"] % PAGE:
            raise oops(errno.EINVAL, f"flags {flags:#x}, size {args['size']:#x}")
        args["bo_handle"], args["res_handle"] = self.handle(file, self.new(args["size"])), self._next()

    @serves("DRM_IOCTL_VIRTGPU_MAP")
    def map(self, file: File, args: Args) -> None:
        """Where it is mapped."""
        args.zero("pad")
        args["offset"] = self.offset_of(self.find(file, args["handle"]))


DRM: dict[str, Callable[[FakeKernel], DrmDriver]] = {
    "vgem": Vgem,
    "vkms": Vkms,
    "bochs": Bochs,
    "qxl": Qxl,
    "virtio_gpu": VirtioGpu,
}
