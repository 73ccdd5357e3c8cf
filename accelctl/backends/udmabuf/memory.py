"""udmabuf: the pages of a sealed memfd as dma-buf. Two things are held: the memfd, and the dma-buf that pins it."""

from __future__ import annotations

from accelctl.abi import dumb, gem
from accelctl.abi.dumb import GemSession
from accelctl.abi.lifecycle import FD, Block, Env, Lifecycle, Session, Sizes, Stage, Target
from accelctl.hal.devfile import DevFile, File, Syscalls
from accelctl.hal.uapi import udmabuf

_F_SEAL_SHRINK = 2
"""linux/fcntl.h; the driver demands it, and refuses F_SEAL_WRITE."""
LARGEST = 16 << 20
"""Bytes; the module's own limit (size_limit_mb) is 64 MiB for one buffer."""


def _memfd(syscalls: Syscalls, files: dict[int, File]) -> Stage:
    def acquire(block: Block) -> int:
        block.size = dumb.pages(block.size)
        block.fd = syscalls.memfd("accelctl-stress", block.size, _F_SEAL_SHRINK)
        files[block.fd] = File(block.fd, "memfd", syscalls)
        return block.fd

    def release(block: Block) -> None:
        fd, block.fd = block.fd, -1
        files.pop(fd).close()

    return Stage("memfd", FD, acquire, release, "memfd_create / close", early=True)


def _buffer(device: DevFile, syscalls: Syscalls) -> Stage:
    layout = udmabuf.CREATE.layout

    def acquire(block: Block) -> int:
        argument = layout.pack(memfd=block.fd, flags=udmabuf.UDMABUF_FLAGS_CLOEXEC, size=block.size)
        fd = device.ioctl(udmabuf.CREATE.number, argument)
        block.file = File(fd, "dma-buf", syscalls)
        return fd

    # not early: mapping and import go through this descriptor's File
    return Stage("buffer_fd", FD, acquire, gem.close_own_file, "UDMABUF_CREATE / close")


class _Memory:
    def open(self, target: Target, env: Env) -> Session:
        """Open the node and the importers (``target.others``). AccelError where one cannot be opened."""
        device = DevFile(target.node, syscalls=env.syscalls)
        with dumb.closing_on_error(target.node, device):
            importers = dumb.open_importers(target.others, env)
        stages = (_memfd(env.syscalls, {}), _buffer(device, env.syscalls))
        sizes = Sizes(dumb.PAGE, LARGEST)
        found = [Lifecycle("buffer", (*stages, dumb.shared_map_stage()), sizes, sync=dumb.sync)]
        found += dumb.import_lifecycles(stages, importers, sizes, dumb.import_names(importers))
        files = (device, *(importer.file for importer in importers))
        return GemSession(target, tuple(found), files, [importer.book for importer in importers])


MEMORY = _Memory()
