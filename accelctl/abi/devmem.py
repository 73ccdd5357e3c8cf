"""What back-ends share whose driver leaves device addresses to user space, or whose session holds more than files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from accelctl.abi.dumb import Book, GemSession
from accelctl.abi.lifecycle import NOTHING, VA, AddressSpace, Block, Counter, Lifecycle, Session, Stage, Target
from accelctl.errors import AccelError, DeviceUnusable
from accelctl.hal.devfile import File
from accelctl.hal.uapi._struct import Ioctl

SETTLE_S = 1.0
"""TTM and GSP give memory back on a work queue: how long a device's own counter may lag behind."""


def ask(file: File, call: Ioctl, **values: Any) -> bytearray:
    """One call with these fields, everything else 0; the buffer as the driver left it. Raises OSError, which names the
    call as its file name."""
    argument = call.layout.pack(**values)
    try:
        file.ioctl(call.number, argument)
    except OSError as error:
        error.filename = error.filename or call.name
        raise
    return argument


def number(file: File, call: Ioctl, answer: str, **values: Any) -> int:
    """One call, and the number in the field ``answer`` of its reply. Raises OSError."""
    return int(call.layout.field(answer).get(ask(file, call, **values)))


def whole(size: int, granule: int) -> int:
    """Bytes, rounded up to whole granules."""
    return -(-size // granule) * granule


def inside(base: int, end: int, granule: int) -> tuple[int, int]:
    """Base and size in bytes of the whole granules in [base, end) that are not address 0, which too many take for
    "none". Raises ValueError where there is none."""
    start = whole(max(base, 1), granule)
    size = (end - start) // granule * granule
    if size <= 0:
        raise ValueError(f"the driver leaves no device addresses: {base:#x}..{end:#x}")
    return start, size


def said(error: Exception) -> str:
    """What went wrong, and in which call, in one line."""
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


def opened(target: Target, build: Callable[[ExitStack], Session]) -> Session:
    """The session that ``build`` makes, which puts on the stack what it holds: when it fails all of that is given back,
    and what is no AccelError becomes DeviceUnusable."""
    held = ExitStack()
    try:
        return build(held)
    except BaseException as error:
        with suppress(OSError, AccelError):  # the first failure is the one to tell
            held.close()
        if isinstance(error, (OSError, ValueError)):
            raise DeviceUnusable(f"{target.node}: {said(error)}") from error
        raise


def va_stage(space: AddressSpace, granule: int, owner: str) -> Stage:
    """A device address from our own allocator, for ``block.size`` rounded up to granules; no call to the driver."""

    def acquire(block: Block) -> int:
        block.size = whole(block.size, granule)
        block.address = space.alloc(block.size, granule, owner)
        return block.address

    def release(block: Block) -> None:
        space.free(block.address)
        block.address = 0

    return Stage("va", VA, acquire, release)


def offset_stage(file: File, call: Ioctl, answer: str = "offset", **also: int) -> Stage:
    """Where the CPU maps the object. Holds nothing: the offset goes with the object."""

    def acquire(block: Block) -> int:
        block.offset = number(file, call, answer, handle=block.handle, **also)
        return 0

    return Stage("offset", NOTHING, acquire, None, call.name.removeprefix("DRM_IOCTL_"))


def device_counter(name: str, unit: str, source: str, read: Callable[[], int]) -> Counter:
    """A number of the whole device, which other clients move as well."""
    return Counter(name, unit, "device", source, read, exact=False, settle_s=SETTLE_S)


class HeldSession(GemSession):
    """A session that holds more than files (an address space, a heap, a tree of objects): ``held`` has all of it,
    files too, and closing gives all of it back in reverse, whatever fails on the way. Raises the last failure then.

    ``more``: counters beside those of the books. ``first``: what a census must give back before it counts.
    """

    def __init__(
        self,
        target: Target,
        lifecycles: tuple[Lifecycle, ...],
        files: tuple[File, ...],
        held: ExitStack,
        books: Sequence[Book] = (),
        more: tuple[Counter, ...] = (),
        first: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(target, lifecycles, files, books)
        self._held, self._more, self._first = held.pop_all(), more, first

    def counters(self) -> tuple[Counter, ...]:
        """gem-handles of each file, and what the driver tells."""
        return super().counters() + self._more

    def census(self) -> dict[str, int]:
        """Handles still alive in each file, the session's own apart."""
        if self._first is not None:
            self._first()
        return super().census()

    def close(self) -> None:
        """Give all back; safe to call twice."""
        self._held.close()
