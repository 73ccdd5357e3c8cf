"""Device address space during a run: which allocator hands it out, and how far it has climbed.

``recycle`` gives addresses back (memory.va.GoodFit); ``bump`` never does (memory.bump.Bump), which is what some
runtimes do: the run then shows what that costs, in cycles until an almost empty device says "out of memory".
"""

from __future__ import annotations

from accelctl.abi.lifecycle import AddressSpace, Counter
from accelctl.errors import UsageError
from accelctl.memory.bump import Bump
from accelctl.memory.va import GoodFit

KINDS = ("recycle", "bump")


class Climbing:
    """An allocator that remembers how much of its space was ever used."""

    def __init__(self, inner: AddressSpace, base: int, size: int) -> None:
        self._inner, self._base, self.size = inner, base, size
        self.mark = self.held = 0
        """Bytes from the base to the highest end that was ever given out; bytes that are given out now."""

    def alloc(self, size: int, align: int | None = None, owner: str = "") -> int:
        """An address; raises AccelError when there is none."""
        va = self._inner.alloc(size, align, owner)
        self.mark = max(self.mark, va + size - self._base)
        self.held += size
        return va

    def free(self, va: int) -> int:
        """Give back; the bytes."""
        size = self._inner.free(va)
        self.held -= size
        return size


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
        """What is given out now; where nothing is ever reused, how far it has climbed. Nothing before a space was
        made."""
        if not self._made:
            return ()
        size = sum(space.size for space in self._made)
        if self._kind == "bump":
            return (
                Counter("address space", "bytes", "file", "highest address given out", self._climbed, False, 0.0, size),
            )
        return (Counter("addresses held", "bytes", "file", "our allocator", self._held, capacity=size),)

    def _climbed(self) -> int:
        return sum(space.mark for space in self._made)

    def _held(self) -> int:
        return sum(space.held for space in self._made)
