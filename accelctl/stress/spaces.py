"""Device address space during a run: which allocator hands it out, and how far it has climbed.

``recycle`` gives addresses back (memory.va.GoodFit); ``bump`` never does (memory.bump.Bump), which is what some
runtimes do: the run then shows what that costs, in cycles until an almost empty device says "out of memory".
"""

from __future__ import annotations

import threading

from accelctl.abi.lifecycle import VA, AddressSpace, Counter
from accelctl.errors import UsageError
from accelctl.memory.bump import Bump
from accelctl.memory.va import GoodFit

KINDS = ("recycle", "bump")


class Climbing:
    """An allocator that remembers how much of its space was ever used."""

    def __init__(self, inner: AddressSpace, base: int, size: int) -> None:
        self._inner, self._base, self.size = inner, base, size
        self._lock = threading.Lock()
        """Threads share the session, and no allocator of ours locks."""
        self.mark = 0
        """Bytes from the base to the highest end that was ever given out."""

    def alloc(self, size: int, align: int | None = None, owner: str = "") -> int:
        """An address; raises AccelError when there is none."""
        with self._lock:
            va = self._inner.alloc(size, align, owner)
            self.mark = max(self.mark, va + size - self._base)
        return va

    def free(self, va: int) -> int:
        """Give back; the bytes."""
        with self._lock:
            return self._inner.free(va)


class Spaces:
    """Makes the address spaces of a session, and counts them."""

    def __init__(self, kind: str = "recycle", limit: int = 0) -> None:
        if kind not in KINDS:
            raise UsageError(f"--va {kind}: not one of {', '.join(KINDS)}")
        self._kind, self._limit = kind, limit
        self._made: list[Climbing] = []

    def __call__(self, base: int, size: int, granule: int) -> AddressSpace:
        """An allocator over [base, base + size)."""
        size = min(size, self._limit) if self._limit else size
        inner: AddressSpace = (Bump if self._kind == "bump" else GoodFit)(base, size, granule=granule)
        space = Climbing(inner, base, size)
        self._made.append(space)
        return space

    def counters(self) -> tuple[Counter, ...]:
        """How far addresses have climbed where none is reused; nothing where they are, and before a space was made.

        What a recycling allocator holds is no book of the kernel's: the ledger has it.
        """
        if not self._made or self._kind != "bump":
            return ()
        size = sum(space.size for space in self._made)
        return (
            Counter("address space", "bytes", "file", "highest address given out", self._climbed, False, 0.0, size, VA),
        )

    def _climbed(self) -> int:
        return sum(space.mark for space in self._made)
