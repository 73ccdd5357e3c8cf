"""vgem: shmem pages behind dumb buffers, and their dma-bufs. No device at all, so a leak here is the kernel's core."""

from __future__ import annotations

from accelctl.abi import dumb, gem
from accelctl.abi.dumb import Book, DumbMemory
from accelctl.abi.lifecycle import Env, Lifecycle, Sizes
from accelctl.hal.devfile import DevFile


def _exports(file: DevFile, book: Book, env: Env) -> tuple[Lifecycle, ...]:
    """object -> export -> cpu_map of the dma-buf itself, through the exporter's own mmap."""
    stages = (
        dumb.object_stage(file, book.handles),
        gem.export_stage(file, env.syscalls)._replace(early=False),  # the mapping goes through the descriptor
        dumb.shared_map_stage(),
    )
    return (Lifecycle("export", stages, Sizes(dumb.PAGE), sync=dumb.sync, unsupported=book.why),)


MEMORY = DumbMemory("vgem", more=_exports)
