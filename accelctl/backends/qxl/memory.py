"""qxl: TTM with VRAM. Dumb buffers are surfaces in system memory, BOs of QXL_ALLOC are placed in VRAM.

Its ioctls are DRM_AUTH without DRM_RENDER_ALLOW (qxl_ioctl.c), and there is no render node: they answer to root and to
whoever opened the card as its first master, EACCES to everyone else.
"""

from __future__ import annotations

from accelctl.abi import dumb, gem
from accelctl.abi.dumb import Book, DumbMemory
from accelctl.abi.lifecycle import NOTHING, Block, Env, Lifecycle, Sizes, Stage
from accelctl.hal.devfile import DevFile
from accelctl.hal.uapi import qxl

LARGEST = 8 << 20
"""Bytes; several of them fit the VRAM at once that QEMU gives by default."""


def why_not(file: DevFile) -> str:
    """Why the driver's own calls are refused on this open file; empty: they are not."""
    try:
        file.ioctl(qxl.GETPARAM.number, qxl.GETPARAM.layout.pack(param=qxl.QXL_PARAM_NUM_SURFACES))
    except OSError as error:
        return f"{file.path}: qxl's own calls need root or the display's master ({error.strerror})"
    return ""


def _object(file: DevFile, book: Book) -> Stage:
    layout = qxl.ALLOC.layout

    def acquire(block: Block) -> int:
        block.size = dumb.pages(block.size)
        argument = layout.pack(size=block.size)
        file.ioctl(qxl.ALLOC.number, argument)
        block.handle = layout.field("handle").get(argument)
        return book.handles.seen(block.handle)

    return gem.handle_stage(file, acquire, "QXL_ALLOC")


def _offset(file: DevFile) -> Stage:
    layout = qxl.MAP.layout

    def acquire(block: Block) -> int:
        argument = layout.pack(handle=block.handle)
        file.ioctl(qxl.MAP.number, argument)
        block.offset = layout.field("offset").get(argument)
        return 0

    return Stage("offset", NOTHING, acquire, None, "QXL_MAP")


def _own(file: DevFile, book: Book, env: Env) -> tuple[Lifecycle, ...]:
    stages = (_object(file, book), _offset(file), gem.map_stage(file))
    return (Lifecycle("bo", stages, Sizes(dumb.PAGE, LARGEST), unsupported=why_not(file)),)


MEMORY = DumbMemory("qxl", LARGEST, _own)
