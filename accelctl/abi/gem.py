"""What DRM chips share: opening a node, and stages for GEM handles, CPU mappings, dma-bufs and imports.

Handles are numbers of one open file, and the kernel gives out the lowest free one (idr_alloc from 1, drm_gem.c). That
makes an exact book of them that needs neither root nor debugfs: see :class:`Handles`.
"""

from __future__ import annotations

import array
import errno
from collections.abc import Callable

from accelctl.abi.lifecycle import CPU_MAP, FD, HANDLE, Block, Counter, Env, NotOffered, Stage
from accelctl.errors import DeviceUnusable
from accelctl.hal.devfile import DevFile, File, Syscalls
from accelctl.hal.uapi import drm

_CLOSE = drm.GEM_CLOSE.layout.packer("handle")
_NAME_BYTES = 64
_NOT_OFFERED = (errno.ENOSYS, errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)


def open_node(node: str, env: Env) -> DevFile:
    """Open a DRM or accel node. The first to open a card node becomes DRM master and would lock out a display server:
    master is dropped at once."""
    file = DevFile(node, syscalls=env.syscalls)
    if "/card" in node:
        try:
            file.ioctl(drm.DROP_MASTER.number)
        except OSError:
            pass  # EINVAL: we are not master, which is what we want
    return file


def driver_name(file: File) -> str:
    """The driver's name as DRM_IOCTL_VERSION tells it. Raises OSError."""
    name = array.array("B", bytes(_NAME_BYTES))
    argument = drm.VERSION.layout.pack(name=name.buffer_info()[0], name_len=_NAME_BYTES)
    file.ioctl(drm.VERSION.number, argument)
    length = int(drm.VERSION.layout.field("name_len").get(argument))
    return name.tobytes()[: min(length, _NAME_BYTES)].decode("ascii", "replace")


def require_driver(file: File, *names: str) -> None:
    """DeviceUnusable (and the file is closed) when another driver answers than the one that was expected: numbers mean
    something else there."""
    try:
        name = driver_name(file)
    except OSError as error:
        name = f"no answer ({error.strerror})"
    if name not in names:
        file.close()
        raise DeviceUnusable(f"{file.path}: its driver is {name}, not {' or '.join(names)}")


def capability(file: File, number: int) -> int:
    """DRM_IOCTL_GET_CAP; 0 where the driver does not know it."""
    argument = drm.GET_CAP.layout.pack(capability=number)
    try:
        file.ioctl(drm.GET_CAP.number, argument)
    except OSError:
        return 0
    return int(drm.GET_CAP.layout.field("value").get(argument))


def close_handle(file: File, handle: int) -> None:
    """GEM_CLOSE. Raises OSError (EINVAL: no such handle in this file)."""
    file.ioctl(drm.GEM_CLOSE.number, bytearray(_CLOSE(handle)))


class Handles:
    """The numbers of one open file that the kernel gives out lowest-free from 1: GEM handles, ids of iommufd.

    While every number below the highest one that was ever seen is either alive or free, allocating until a higher one
    comes back fills all gaps: what was alive is the highest number less what was just allocated. :meth:`sweep` counts
    by closing every number: exact too, and the end of them.

    ``make`` allocates a probe (None: nothing can be allocated), ``close`` gives one number back; both raise OSError.
    ``ours`` is one that belongs to the session itself and is neither counted nor closed.
    """

    def __init__(self, make: Callable[[], int] | None, close: Callable[[int], None], ours: int = 0) -> None:
        self._make, self._close, self._ours = make, close, ours
        self.highest = ours

    def seen(self, handle: int) -> int:
        """Note a number that the driver gave out."""
        self.highest = max(self.highest, handle)
        return handle

    def _fill(self, probes: list[int]) -> int:
        """Allocate until a number above the highest comes back: that number."""
        if self._make is None:
            raise OSError(errno.EOPNOTSUPP, "nothing can be allocated here")
        while not probes or probes[-1] <= self.highest:
            probes.append(self._make())
        return probes[-1]

    def live(self) -> int:
        """How many are alive now. Raises OSError."""
        probes: list[int] = []
        try:
            return self._fill(probes) - len(probes) - bool(self._ours)
        finally:
            for handle in reversed(probes):
                self._close(handle)

    def sweep(self) -> int:
        """Close all that is alive, and count it: also numbers above the highest one that the driver told us of, which
        belong to calls whose answer was lost (where probes can be made: they rise above those)."""
        probes: list[int] = []
        if self._make is not None:
            self.seen(self._fill(probes))
        count = 0
        for handle in range(1, self.highest + 1):
            try:
                if handle != self._ours:
                    self._close(handle)
                    count += 1
            except OSError:
                continue
        return count - len(probes)

    def counter(self) -> Counter:
        """As one of the kernel's book."""
        return Counter("gem-handles", "handles", "file", "numbers of probe allocations", self.live, kind=HANDLE)


def handle_stage(file: File, create: Callable[[Block], int], calls: str, name: str = "object") -> Stage:
    """A GEM object: ``create`` sets ``block.handle`` and returns it. May be closed while it is mapped: the mapping
    keeps the pages (drm_gem_vm_open takes a reference)."""
    call, number = file.call, drm.GEM_CLOSE.number

    def release(block: Block) -> None:
        argument = bytearray(_CLOSE(block.handle))
        try:
            call(file.fd, number, argument)
        except OSError as error:
            file.again(error, number, argument)

    return Stage(name, HANDLE, create, release, f"{calls} / GEM_CLOSE", early=True)


def map_stage(file: File, name: str = "cpu_map") -> Stage:
    """mmap(2) of the object at ``block.offset`` of the node."""
    return Stage(name, CPU_MAP, file.map_thing, file.unmap_thing, "mmap / munmap")


def own_map_stage(name: str = "cpu_map") -> Stage:
    """mmap(2) of ``block.file`` itself (a dma-buf or memfd)."""

    def acquire(block: Block) -> int:
        assert block.file is not None
        block.map = block.file.map(block.size, 0)
        return block.serial

    def release(block: Block) -> None:
        assert block.map is not None
        assert block.file is not None
        block.file.unmap(block.map)
        block.map = None

    return Stage(name, CPU_MAP, acquire, release, "mmap / munmap")


def export_stage(file: File, syscalls: Syscalls, name: str = "export", *, early: bool = False) -> Stage:
    """The object as a dma-buf: a descriptor, owned by ``block.file``. The handle may be closed while it is open.

    ``early``: later stages need no ``block.file`` (an import does not, a mapping of the dma-buf itself does).
    """

    def acquire(block: Block) -> int:
        argument = drm.PRIME_HANDLE_TO_FD.layout.pack(handle=block.handle, flags=drm.DRM_CLOEXEC | drm.DRM_RDWR)
        try:
            file.ioctl(drm.PRIME_HANDLE_TO_FD.number, argument)
        except OSError as error:
            if error.errno in _NOT_OFFERED:
                raise NotOffered(f"{file.path} exports no dma-buf ({error.strerror})", error.errno) from error
            raise
        fd = int(drm.PRIME_HANDLE_TO_FD.layout.field("fd").get(argument))
        block.file = File(fd, "dma-buf", syscalls)
        return fd

    return Stage(name, FD, acquire, close_own_file, "PRIME_HANDLE_TO_FD / close", early=early)


def close_own_file(block: Block) -> None:
    """Release of a stage that made ``block.file``."""
    file, block.file = block.file, None
    assert file is not None
    file.close()


def import_stage(file: File, handles: Handles | None = None, name: str = "import") -> Stage:
    """``block.file`` (a dma-buf) as a handle of another device, kept in ``block.extra``.

    Importing one buffer twice into one file gives the same handle with ONE reference (drm_gem_prime_fd_to_handle), so
    a block imports once and closes once.
    """

    def acquire(block: Block) -> int:
        assert block.file is not None
        argument = drm.PRIME_FD_TO_HANDLE.layout.pack(fd=block.file.fd)
        try:
            file.ioctl(drm.PRIME_FD_TO_HANDLE.number, argument)
        except OSError as error:
            if error.errno in _NOT_OFFERED:
                raise NotOffered(f"{file.path} does not import it ({error.strerror})", error.errno) from error
            raise
        handle = block.extra = int(drm.PRIME_FD_TO_HANDLE.layout.field("handle").get(argument))
        return handles.seen(handle) if handles else handle

    def release(block: Block) -> None:
        close_handle(file, block.extra)
        block.extra = None

    return Stage(name, HANDLE, acquire, release, "PRIME_FD_TO_HANDLE / GEM_CLOSE", early=True)
