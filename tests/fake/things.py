"""What the fake kernel is made of: counted things, lowest-free numbers, ranges, bytes, arguments, knobs."""

from __future__ import annotations

import bisect
import errno
import heapq
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from tests.fake.tables import Layout

PAGE = 4096
SYSTEM_CALLS = ("open", "mmap", "munmap", "close", "memfd")


class FakeError(AssertionError):
    """The product did what no kernel could take in good faith (an unknown call, bytes where none belong, a descriptor
    that is closed). No OSError, so that no error path takes it for a failure of the device; and the machine remembers
    it and raises it again at its end."""


def oops(code: int, why: str = "") -> OSError:
    """What a kernel answers. ``why`` is for the reader of a failed test; no real kernel says it."""
    return OSError(code, os.strerror(code) + (f" [fake: {why}]" if why else ""))


class Thing:
    """Anything that lives until its last holder lets go. Holders are tuples, shown in :meth:`__str__`."""

    def __init__(self, alive: dict[int, Thing], kind: str, label: str = "", size: int = 0) -> None:
        self._alive, self.kind, self.label, self.size = alive, kind, label, size
        self.holders: Counter[Hashable] = Counter()
        self.gone: list[Callable[[], object]] = []
        """What else ends with it, last one first."""

    def hold(self, who: Hashable) -> None:
        """One more reference."""
        self.holders[who] += 1
        self._alive[id(self)] = self

    def drop(self, who: Hashable) -> None:
        """One less; the last ends it."""
        if not self.holders[who]:
            raise FakeError(f"the fake itself is wrong: {who} does not hold {self}")
        self.holders[who] -= 1
        if not self.holders[who]:
            del self.holders[who]
        if not self.holders:
            del self._alive[id(self)]
            while self.gone:
                self.gone.pop()()

    def scrap(self) -> None:
        """End of a thing that nobody got to hold."""
        self.hold("nobody")
        self.drop("nobody")

    @property
    def references(self) -> int:
        """How many."""
        return sum(self.holders.values())

    def __str__(self) -> str:
        size = f" of {self.size} bytes" if self.size else ""
        who = ", ".join(" ".join(map(str, h)) if isinstance(h, tuple) else str(h) for h in self.holders)
        return f"{self.kind}{self.label and ' ' + self.label}{size}, held by {who or 'nobody'}"


class Numbers(dict[int, Any]):
    """Numbers that the kernel gives out, the lowest free one first (idr_alloc, xa_alloc)."""

    def __init__(self, first: int = 1) -> None:
        super().__init__()
        self._next, self._free = first, list[int]()

    def take(self, thing: Any) -> int:
        """A number for ``thing``."""
        if self._free:
            number = heapq.heappop(self._free)
        else:
            number, self._next = self._next, self._next + 1
        self[number] = thing
        return number

    def give_back(self, number: int) -> Any:
        """End of a number. KeyError for one that is not in use."""
        thing = self.pop(number)
        heapq.heappush(self._free, number)
        return thing


class Ranges:
    """Disjoint ranges of addresses, each with what lies there."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._at: dict[int, tuple[int, Any]] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def items(self) -> Iterator[tuple[int, int, Any]]:
        """(start, size, what) in order."""
        return ((start, *self._at[start]) for start in tuple(self._starts))

    def overlapping(self, start: int, size: int) -> list[int]:
        """Starts of what lies (partly) in there."""
        first = bisect.bisect_right(self._starts, start)
        if first and self._starts[first - 1] + self._at[self._starts[first - 1]][0] > start:
            first -= 1
        return self._starts[first : bisect.bisect_left(self._starts, start + size)]

    def add(self, start: int, size: int, what: Any) -> bool:
        """False where something is in the way."""
        if self.overlapping(start, size):
            return False
        bisect.insort(self._starts, start)
        self._at[start] = (size, what)
        return True

    def get(self, start: int) -> tuple[int, Any] | None:
        """(size, what) of the range that starts there."""
        return self._at.get(start)

    def remove(self, start: int) -> Any:
        """End of the range that starts there. KeyError."""
        self._starts.pop(bisect.bisect_left(self._starts, start))
        return self._at.pop(start)[1]

    def lowest(self, size: int, align: int, low: int, high: int) -> int | None:
        """The lowest free address for ``size`` bytes in [low, high)."""
        at = -(-low // align) * align
        for start, length, _ in self.items():
            if start + length <= at:
                continue
            if start >= at + size:
                break
            at = -(-(start + length) // align) * align
        return at if at + size <= high else None


class Arena:
    """The bytes of all objects, in one sparse file: an object per memfd would use up descriptors that no driver uses.

    Room comes back zeroed, as the kernel hands out pages.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("fake-objects", os.MFD_CLOEXEC)
        self._end, self._live = 0, 0
        self._free: dict[int, list[int]] = {}

    def place(self, size: int) -> int:
        """Offset of ``size`` zeroed bytes."""
        self._live += 1
        if self._free.get(size):
            return self._free[size].pop()
        offset, self._end = self._end, self._end + size
        os.ftruncate(self.fd, self._end)
        return offset

    def give_back(self, offset: int, size: int) -> None:
        """Room that is free again."""
        self._live -= 1
        if not self._live:  # nothing mapped either: the cheapest way to zero everything
            os.ftruncate(self.fd, 0)
            self._end = 0
            self._free.clear()
            return
        for start in range(offset, offset + size, 1 << 20):
            os.pwrite(self.fd, bytes(min(1 << 20, offset + size - start)), start)
        self._free.setdefault(size, []).append(offset)

    def close(self) -> None:
        """The end."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class UserMemory:
    """The caller's memory, by address, as copy_from_user and copy_to_user see it: EFAULT where there is none."""

    def __init__(self) -> None:
        self._fd, self._pid = -1, 0
        self._file()

    def _file(self) -> int:
        if self._pid != os.getpid():  # after a fork the old descriptor still reads the parent
            self.close()
            self._fd, self._pid = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC), os.getpid()
        return self._fd

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes at ``address``."""
        try:
            data = os.pread(self._file(), size, address) if size else b""
        except (OSError, OverflowError) as error:
            raise oops(errno.EFAULT, f"nothing to read at {address:#x}") from error
        if len(data) != size:
            raise oops(errno.EFAULT, f"only {len(data)} of {size} bytes at {address:#x}")
        return data

    def write(self, address: int, data: bytes) -> None:
        """Write there."""
        try:
            done = os.pwrite(self._file(), data, address) if data else 0
        except (OSError, OverflowError) as error:
            raise oops(errno.EFAULT, f"nothing to write at {address:#x}") from error
        if done != len(data):
            raise oops(errno.EFAULT, f"only {done} of {len(data)} bytes at {address:#x}")

    def pages(self, address: int, size: int) -> None:
        """EFAULT unless all of these pages are there (get_user_pages)."""
        for place in range(address, address + size, PAGE):
            self.read(place, 1)

    def close(self) -> None:
        """The end."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._pid = -1, 0


class Args:
    """A structure on its way through a handler, which reads and writes it by name.

    Every byte is accounted for: what the handler has not read must be 0, or the caller has another layout in mind
    (:meth:`check`). What kernels refuse is refused by :meth:`zero` and :meth:`flags`.
    """

    def __init__(self, name: str, layout: Layout, buffer: bytearray) -> None:
        self.name, self.layout, self.buffer = name, layout, buffer
        self.came = bytes(buffer)
        self._read = bytearray(len(buffer))

    def __getitem__(self, name: str) -> int:
        self.seen(name)
        return self.layout.get(self.came, name)

    def __setitem__(self, name: str, value: int) -> None:
        self.layout.put(self.buffer, name, value)

    def seen(self, *names: str) -> None:
        """These may hold anything."""
        for name in names:
            field = self.layout.fields[name]
            self._read[field.offset : field.offset + field.size] = b"\xff" * field.size

    def seen_all(self) -> None:
        """All of it may hold anything."""
        self._read = bytearray(b"\xff" * len(self._read))

    def bytes(self, name: str) -> bytes:
        """A field that is no number."""
        self.seen(name)
        field = self.layout.fields[name]
        return self.came[field.offset : field.offset + field.size]

    def blank(self) -> None:
        """The kernel's memset before it answers."""
        self.buffer[:] = bytes(len(self.buffer))

    def zero(self, *names: str, code: int = errno.EINVAL) -> None:
        """Reserved: refused unless 0."""
        for name in names:
            if any(self.bytes(name)):
                raise oops(code, f"{self.name}: {name} is not 0")

    def flags(self, name: str, known: int, code: int = errno.EINVAL) -> int:
        """Flags, of which only ``known`` ones are taken."""
        value = self[name]
        if value & ~known:
            raise oops(code, f"{self.name}: {name} {value:#x} has unknown bits, known are {known:#x}")
        return value

    def check(self) -> None:
        """FakeError for a byte that is not 0 and that nobody read."""
        if not int.from_bytes(self.came, "big") & ~int.from_bytes(self._read, "big"):
            return
        for place, value in enumerate(self.came):
            if value and not self._read[place]:
                what = self.layout.at(place)
                raise FakeError(f"{self.name}: byte {place} ({what}) is {value:#x}, which no kernel reads")


class Knob:
    """One order to misbehave: ``kind`` is fail, lose, swallow, partial or interrupt."""

    def __init__(self, kind: str, name: str, nth: int, every: int, value: int) -> None:
        self.kind, self.nth, self.every, self.value = kind, nth, every, value
        self.call, _, self.op = name.partition(":")
        self.met = self.fired = self.error = 0

    def due(self, call: str, op: str) -> bool:
        """Whether it fires at this call."""
        if not matches(self.call, call) or (self.op and self.op != op):
            return False
        if self.kind == "interrupt" and call in SYSTEM_CALLS:
            return False
        self.met += 1
        fires = self.met % self.every == 0 if self.every else self.met == self.nth
        self.fired += fires
        return fires


def matches(short: str, call: str) -> bool:
    """Whether a name, or its end after a "_", is meant: "GEM_VA" is DRM_IOCTL_AMDGPU_GEM_VA."""
    return short in ("*", call) or call.endswith("_" + short)
