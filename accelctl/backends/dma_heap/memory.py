"""dma-heap: one call gives a dma-buf; every importer named with the target takes it in as well."""

from __future__ import annotations

import os

from accelctl.abi import dumb, gem
from accelctl.abi.dumb import GemSession
from accelctl.abi.lifecycle import FD, Block, Env, Lifecycle, Session, Sizes, Stage, Target
from accelctl.hal.devfile import DevFile, File, Syscalls
from accelctl.hal.uapi import dma_heap


def _buffer(heap: DevFile, syscalls: Syscalls) -> Stage:
    layout = dma_heap.ALLOC.layout

    def acquire(block: Block) -> int:
        block.size = dumb.pages(block.size)
        argument = layout.pack(len=block.size, fd_flags=os.O_RDWR | os.O_CLOEXEC)
        heap.ioctl(dma_heap.ALLOC.number, argument)
        fd = int(layout.field("fd").get(argument))
        block.file = File(fd, "dma-buf", syscalls)
        return fd

    # not early: mapping and import go through this descriptor's File
    return Stage("buffer_fd", FD, acquire, gem.close_own_file, "DMA_HEAP_IOCTL_ALLOC / close")


class _Memory:
    def open(self, target: Target, env: Env) -> Session:
        """Open the heap and the importers (``target.others``). AccelError where one cannot be opened."""
        heap = DevFile(target.node, syscalls=env.syscalls)
        with dumb.closing_on_error(target.node, heap):
            importers = dumb.open_importers(target.others, env)
        buffer = _buffer(heap, env.syscalls)
        found = [Lifecycle("buffer", (buffer, dumb.shared_map_stage()), Sizes(dumb.PAGE), sync=dumb.sync)]
        found += dumb.import_lifecycles((buffer,), importers, Sizes(dumb.PAGE), dumb.import_names(importers))
        files = (heap, *(importer.file for importer in importers))
        return GemSession(target, tuple(found), files, [importer.book for importer in importers])


MEMORY = _Memory()
