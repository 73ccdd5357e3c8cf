"""virtio-gpu: objects of the guest with a resource of the host behind each.

Its own calls are DRM_RENDER_ALLOW and work on both nodes, dumb buffers need the card. What the host refuses (a format,
too much memory) comes after the call has returned, and only in the kernel log: a 0 proves the guest's half.
"""

from __future__ import annotations

import array
from collections.abc import Callable

from accelctl.abi import dumb, gem
from accelctl.abi.dumb import Book, GemSession
from accelctl.abi.lifecycle import NOTHING, Block, Env, Lifecycle, Session, Sizes, Stage, Target
from accelctl.hal.devfile import DevFile, File
from accelctl.hal.uapi import virtgpu

_TEXTURE_2D, _RENDER_TARGET, _B8G8R8X8 = 2, 2, 2
"""PIPE_TEXTURE_2D, VIRGL_BIND_RENDER_TARGET, VIRTIO_GPU_FORMAT_B8G8R8X8_UNORM: without 3D the driver refuses any other
target (virtgpu_ioctl.c), and the host any other layout than 32 bits."""


def parameter(file: File, number: int) -> int:
    """GETPARAM: the driver writes an int where ``value`` points. Raises OSError (EINVAL: it does not know that one)."""
    answer = array.array("i", [0])
    layout = virtgpu.GETPARAM.layout
    file.ioctl(virtgpu.GETPARAM.number, layout.pack(param=number, value=answer.buffer_info()[0]))
    return answer[0]


def why_no_blob(file: File) -> str:
    """Why this device has no blob resources; empty: it has."""
    try:
        has = parameter(file, virtgpu.VIRTGPU_PARAM_RESOURCE_BLOB)
    except OSError as error:
        return f"{file.path}: no blob resources (GETPARAM 3: {error.strerror})"
    return "" if has else f"{file.path}: the device offers no blob resources (GETPARAM 3 is 0)"


def create(file: File, size: int) -> tuple[int, int]:
    """RESOURCE_CREATE: the handle and the size in bytes. Raises OSError."""
    width, height = dumb.geometry(size)
    layout = virtgpu.RESOURCE_CREATE.layout
    argument = layout.pack(
        target=_TEXTURE_2D,
        format=_B8G8R8X8,
        bind=_RENDER_TARGET,
        width=width,
        height=height,
        depth=1,
        array_size=1,
        size=width * height * 4,
    )
    file.ioctl(virtgpu.RESOURCE_CREATE.number, argument)
    return int(layout.field("bo_handle").get(argument)), width * height * 4


def create_blob(file: File, size: int) -> tuple[int, int]:
    """RESOURCE_CREATE_BLOB of guest memory that can be mapped: the handle and the size in bytes. Raises OSError."""
    size = dumb.pages(size)
    layout = virtgpu.RESOURCE_CREATE_BLOB.layout
    argument = layout.pack(
        blob_mem=virtgpu.VIRTGPU_BLOB_MEM_GUEST, blob_flags=virtgpu.VIRTGPU_BLOB_FLAG_USE_MAPPABLE, size=size
    )
    file.ioctl(virtgpu.RESOURCE_CREATE_BLOB.number, argument)
    return int(layout.field("bo_handle").get(argument)), size


def _stages(file: DevFile, book: Book, make: Callable[[File, int], tuple[int, int]], calls: str) -> tuple[Stage, ...]:
    layout = virtgpu.MAP.layout

    def acquire(block: Block) -> int:
        block.handle, block.size = make(file, block.size)
        return book.handles.seen(block.handle)

    def offset(block: Block) -> int:
        argument = layout.pack(handle=block.handle)
        file.ioctl(virtgpu.MAP.number, argument)
        block.offset = layout.field("offset").get(argument)
        return 0

    return (
        gem.handle_stage(file, acquire, calls),
        Stage("offset", NOTHING, offset, None, "VIRTGPU_MAP"),
        gem.map_stage(file),
    )


def _lifecycles(file: DevFile, book: Book) -> tuple[Lifecycle, ...]:
    sizes = Sizes(dumb.PAGE)
    return (
        dumb.lifecycle(file, book.handles, unsupported=dumb.why_not(file)),
        Lifecycle("resource", _stages(file, book, create, "VIRTGPU_RESOURCE_CREATE"), sizes),
        Lifecycle(
            "blob",
            _stages(file, book, create_blob, "VIRTGPU_RESOURCE_CREATE_BLOB"),
            sizes,
            unsupported=why_no_blob(file),
        ),
    )


class _Memory:
    def open(self, target: Target, env: Env) -> Session:
        """Open the node, card or render. AccelError: it cannot be opened, or another driver answers."""
        file = gem.open_node(target.node, env)
        gem.require_driver(file, "virtio_gpu")
        with dumb.closing_on_error(target.node, file):
            book = dumb.book(file, lambda: create(file, dumb.PAGE)[0])
            return GemSession(target, _lifecycles(file, book), (file,), (book,))


MEMORY = _Memory()
