"""A small stand-in for the kernel beneath the back-ends that guests prove: DRM, dma-buf, VFIO, iommufd.

It decodes ioctl numbers and bytes written out by hand from ../shared/uapi, never through accelctl.hal.uapi; whether
real kernels agree is for tests/kernel/guest/test_backends.py.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from typing import Any

from accelctl.hal.devfile import Syscalls

PAGE = 4096
READ_WRITE = 3


class Node:
    """An open descriptor of the stand-in: which driver answers, and what it holds."""

    def __init__(self, path: str, driver: str) -> None:
        self.path, self.driver = path, driver
        self.things: dict[int, Any] = {}
        self.ranges: dict[tuple[int, int], int] = {}
        self.joined = 0

    def take(self, thing: Any) -> int:
        """The lowest free number, as the kernel gives them out."""
        number = next(n for n in range(1, len(self.things) + 2) if n not in self.things)
        self.things[number] = thing
        return number


class Kernel(Syscalls):
    """As much of a kernel as these back-ends ask for. ``fail``: name -> errno of a call that is not made;
    ``lose``: names whose call is made and then reported as failed."""

    def __init__(self, **nodes: str) -> None:
        self.nodes = {f"/dev/{name.replace('__', '/')}": driver for name, driver in nodes.items()}
        self.files: dict[int, Node] = {}
        self.calls: list[str] = []
        self.fail: dict[str, int] = {}
        self.lose: set[str] = set()
        self.maps = 0
        self.refuse = False
        self.slots = 65535

    # -- what is no ioctl --

    def stat(self, path: str) -> os.stat_result:
        if path not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return os.stat("/dev/null")

    def _new(self, path: str, driver: str) -> int:
        fd = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.files[fd] = Node(path, driver)
        return fd

    def open(self, path: str, flags: int) -> int:
        return self._new(path, self.nodes[path])

    def fstat(self, fd: int) -> os.stat_result:
        return os.stat("/dev/null")

    def memfd(self, name: str, size: int, seals: int) -> int:
        self._door("memfd")
        assert size % PAGE == 0
        assert seals == 2  # F_SEAL_SHRINK, and not F_SEAL_WRITE (8)
        return self._new("memfd", "memfd")

    def map(self, fd: int, size: int, offset: int) -> mmap.mmap:
        self._door("mmap")
        node = self.files[fd]
        if node.driver == "dmabuf" and self.refuse:
            raise OSError(errno.ENOSYS, "Function not implemented")
        assert size % PAGE == 0
        assert node.driver == "dmabuf" or offset // (1 << 32) in node.things
        self.maps += 1
        return mmap.mmap(-1, size)

    def unmap(self, mapping: mmap.mmap) -> None:
        self.calls.append("munmap")
        mapping.close()
        self.maps -= 1

    def close(self, fd: int) -> None:
        self.calls.append(f"close {self.files.pop(fd).driver}")
        os.close(fd)

    def left(self) -> int:
        """Everything alive: objects, ranges, mappings."""
        return self.maps + sum(len(node.things) + len(node.ranges) for node in self.files.values())

    def _door(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fail:
            raise OSError(self.fail[name], os.strerror(self.fail[name]))

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        node = self.files[fd]
        name = NAMES.get((node.driver, number)) or NAMES.get(("drm" if "dri" in node.path else "", number))
        assert name is not None, f"{node.driver} is not expected to get {number:#x}"
        self._door(name)
        result: int | None = getattr(self, f"do_{name}")(node, argument)
        if name in self.lose:
            raise OSError(errno.EFAULT, "Bad address")
        return result or 0

    # -- DRM --

    def do_version(self, node: Node, argument: bytearray) -> None:
        length, pointer = struct.unpack_from("<QQ", argument, 16)
        _poke(pointer, node.driver.encode()[:length])
        struct.pack_into("<Q", argument, 16, len(node.driver))

    def do_drop_master(self, node: Node, argument: int) -> None:
        raise OSError(errno.EINVAL, "not master")

    def do_gem_close(self, node: Node, argument: bytearray) -> None:
        if node.things.pop(struct.unpack("<II", argument)[0], None) is None:
            raise OSError(errno.EINVAL, "no such handle")

    def do_create_dumb(self, node: Node, argument: bytearray) -> None:
        if "renderD" in node.path:
            raise OSError(errno.EACCES, "Permission denied")
        height, width, bpp, flags = struct.unpack_from("<4I", argument)
        assert (bpp, flags) == (32, 0)
        size = -(-width * height * 4 // PAGE) * PAGE
        struct.pack_into("<IIQ", argument, 16, node.take(size), width * 4, size)

    def do_map_dumb(self, node: Node, argument: bytearray) -> None:
        handle, pad = struct.unpack_from("<II", argument)
        assert handle in node.things
        assert pad == 0
        struct.pack_into("<Q", argument, 8, handle << 32)

    def do_export(self, node: Node, argument: bytearray) -> None:
        handle, flags = struct.unpack_from("<II", argument)
        assert handle in node.things
        assert flags == 0x80002  # DRM_CLOEXEC | DRM_RDWR
        struct.pack_into("<i", argument, 8, self._new("anon", "dmabuf"))

    def do_import(self, node: Node, argument: bytearray) -> None:
        assert self.files[struct.unpack_from("<i", argument, 8)[0]].driver == "dmabuf"
        struct.pack_into("<I", argument, 0, node.take("import"))

    def do_sync(self, node: Node, argument: bytearray) -> None:
        assert struct.unpack("<Q", argument)[0] in (3, 7)

    # -- qxl, virtio-gpu --

    def do_qxl_alloc(self, node: Node, argument: bytearray) -> None:
        size = struct.unpack_from("<I", argument)[0]
        assert size % PAGE == 0
        struct.pack_into("<I", argument, 4, node.take(size))

    def do_obj_map(self, node: Node, argument: bytearray) -> None:
        handle = struct.unpack_from("<QII", argument)[1]
        assert handle in node.things
        struct.pack_into("<Q", argument, 0, handle << 32)

    def do_qxl_getparam(self, node: Node, argument: bytearray) -> None:
        struct.pack_into("<Q", argument, 8, 1024)

    def do_virt_getparam(self, node: Node, argument: bytearray) -> None:
        number, pointer = struct.unpack("<QQ", argument)
        assert number == 3
        _poke(pointer, struct.pack("<i", not self.refuse))

    def do_resource_create(self, node: Node, argument: bytearray) -> None:
        target, form, _, width, height, depth, layers, level, samples, flags, *_, size, _ = struct.unpack(
            "<14I", argument
        )
        assert (target, form, depth, layers, level, samples, flags) == (2, 2, 1, 1, 0, 0, 0)
        assert size == width * height * 4
        struct.pack_into("<II", argument, 40, node.take(size), 77)

    def do_create_blob(self, node: Node, argument: bytearray) -> None:
        memory, flags = struct.unpack_from("<II", argument)
        size = struct.unpack_from("<Q", argument, 16)[0]
        assert (memory, flags) == (1, 1)
        assert size % PAGE == 0
        assert not any(argument[24:])
        struct.pack_into("<II", argument, 8, node.take(size), 78)

    # -- dma-heap, udmabuf --

    def do_heap_alloc(self, node: Node, argument: bytearray) -> None:
        size, fd, fd_flags, heap_flags = struct.unpack("<QIIQ", argument)
        assert size % PAGE == 0
        assert (fd, fd_flags, heap_flags) == (0, os.O_RDWR | os.O_CLOEXEC, 0)
        struct.pack_into("<I", argument, 8, self._new("anon", "dmabuf"))

    def do_udmabuf(self, node: Node, argument: bytearray) -> int:
        memfd, flags, offset, size = struct.unpack("<IIQQ", argument)
        assert self.files[memfd].driver == "memfd"
        assert (flags, offset, size % PAGE) == (1, 0, 0)
        return self._new("anon", "dmabuf")

    # -- VFIO: the group's node joins the container's --

    def do_group_status(self, node: Node, argument: bytearray) -> None:
        struct.pack_into("<I", argument, 4, 0 if self.refuse else 1)

    def do_set_container(self, node: Node, argument: bytearray) -> None:
        node.joined = struct.unpack("<i", argument)[0]

    def do_unset_container(self, node: Node, argument: int) -> None:
        node.joined = 0

    def do_set_iommu(self, node: Node, argument: int) -> None:
        assert argument == 3
        assert any(other.joined for other in self.files.values())

    def do_get_info(self, node: Node, argument: bytearray) -> None:
        ranges = [(0, 0xFEDFFFFF), (0xFEF00000, (1 << 39) - 1)]
        struct.pack_into("<IIQI", argument, 0, 24 + 48 + 12, 3, 0xFFFFF000, 24)
        struct.pack_into("<HHIII", argument, 24, 1, 1, 72, len(ranges), 0)
        for place, pair in enumerate(ranges):
            struct.pack_into("<QQ", argument, 40 + 16 * place, *pair)
        struct.pack_into("<HHII", argument, 72, 3, 1, 0, self.slots - len(node.ranges))

    def do_map_dma(self, node: Node, argument: bytearray) -> None:
        argsz, flags, va, iova, size = struct.unpack("<IIQQQ", argument)
        assert (argsz, flags) == (32, READ_WRITE)
        assert va % PAGE == iova % PAGE == size % PAGE == 0
        if any(start < iova + size and iova < start + length for (_, start), length in node.ranges.items()):
            raise OSError(errno.EEXIST, "File exists")
        node.ranges[0, iova] = size

    def do_unmap_dma(self, node: Node, argument: bytearray) -> None:
        argsz, flags, iova, size = struct.unpack("<IIQQ", argument)
        assert argsz == 24
        if flags == 2:
            assert (iova, size) == (0, 0)
            struct.pack_into("<Q", argument, 16, sum(node.ranges.values()))
            node.ranges.clear()
        else:
            struct.pack_into("<Q", argument, 16, node.ranges.pop((0, iova), 0))

    # -- iommufd --

    def do_ioas_alloc(self, node: Node, argument: bytearray) -> None:
        assert struct.unpack_from("<II", argument) == (12, 0)
        struct.pack_into("<I", argument, 8, node.take("ioas"))

    def do_destroy(self, node: Node, argument: bytearray) -> None:
        size, number = struct.unpack("<II", argument)
        assert size == 8
        if node.things.pop(number, None) is None:
            raise OSError(errno.ENOENT, "No such object")
        node.ranges = {key: length for key, length in node.ranges.items() if key[0] != number}

    def do_ioas_map(self, node: Node, argument: bytearray) -> None:
        size, flags, ioas, reserved, va, length, iova = struct.unpack("<IIIIQQQ", argument)
        assert (size, flags & 6, reserved, va % PAGE, length % PAGE) == (40, 6, 0, 0, 0)
        assert ioas in node.things
        used = sorted((start, start + n) for (space, start), n in node.ranges.items() if space == ioas)
        if flags & 1:
            if any(start < iova + length and iova < end for start, end in used):
                raise OSError(errno.EEXIST, "File exists")
        else:
            iova = PAGE
            for start, end in used:
                if iova + length <= start:
                    break
                iova = max(iova, end)
        node.ranges[ioas, iova] = length
        struct.pack_into("<Q", argument, 32, iova)

    def do_ioas_unmap(self, node: Node, argument: bytearray) -> None:
        size, ioas, iova, length = struct.unpack("<IIQQ", argument)
        assert size == 24
        if (iova, length) == (0, (1 << 64) - 1):
            found = [key for key in node.ranges if key[0] == ioas]
        else:
            found = [key for key in node.ranges if key == (ioas, iova)]
            if not found:
                raise OSError(errno.ENOENT, "nothing there")
        struct.pack_into("<Q", argument, 16, sum(node.ranges.pop(key) for key in found))


def _poke(address: int, data: bytes) -> None:
    """Write where a driver would: at an address that was passed in a structure."""
    fd = os.open("/proc/self/mem", os.O_RDWR)
    try:
        assert os.pwrite(fd, data, address) == len(data)
    finally:
        os.close(fd)


NAMES = {
    ("drm", 0xC0406400): "version",
    ("drm", 0x0000641F): "drop_master",
    ("drm", 0x40086409): "gem_close",
    ("drm", 0xC02064B2): "create_dumb",
    ("drm", 0xC01064B3): "map_dumb",
    ("drm", 0xC00C642D): "export",
    ("drm", 0xC00C642E): "import",
    ("dmabuf", 0x40086200): "sync",
    ("qxl", 0xC0086440): "qxl_alloc",
    ("qxl", 0xC0106441): "obj_map",
    ("qxl", 0xC0106444): "qxl_getparam",
    ("virtio_gpu", 0xC0106441): "obj_map",
    ("virtio_gpu", 0xC0106443): "virt_getparam",
    ("virtio_gpu", 0xC0386444): "resource_create",
    ("virtio_gpu", 0xC038644A): "create_blob",
    ("heap", 0xC0184800): "heap_alloc",
    ("udmabuf", 0x40187542): "udmabuf",
    ("group", 0x3B67): "group_status",
    ("group", 0x3B68): "set_container",
    ("group", 0x3B69): "unset_container",
    ("vfio", 0x3B66): "set_iommu",
    ("vfio", 0x3B70): "get_info",
    ("vfio", 0x3B71): "map_dma",
    ("vfio", 0x3B72): "unmap_dma",
    ("iommu", 0x3B80): "destroy",
    ("iommu", 0x3B81): "ioas_alloc",
    ("iommu", 0x3B85): "ioas_map",
    ("iommu", 0x3B86): "ioas_unmap",
}
