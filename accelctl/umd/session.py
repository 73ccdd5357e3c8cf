"""A client's session: its device session, memory, queue and translations. All go together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from threading import RLock
from typing import NamedTuple, TypeVar

from accelctl.abi.lifecycle import Block
from accelctl.errors import AccelError
from accelctl.memory.va import GoodFit
from accelctl.umd import wire
from accelctl.umd.blocks import Budget, Source
from accelctl.umd.chip import Chip
from accelctl.umd.lists import Lists
from accelctl.umd.memory import Allocation, SessionMemory
from accelctl.umd.pipeline.instantiate import Plan
from accelctl.umd.pipeline.submit import Line
from accelctl.umd.refusal import Refusal, refusal_of

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
KEPT = 4096
"""Plans, answers and instructions that a session keeps, each."""
SCRATCH = "scratch"
_SCRATCH_STEP = 1 << 20


class Kept(NamedTuple):
    """A translation with its addresses: valid as long as all of ``allocations`` live. ``static`` is its answer, but for
    what differs from call to call."""

    op: str
    static: bytes
    blobs: tuple[bytes, ...]
    allocations: tuple[Allocation, ...]
    launches: tuple[tuple[str, int], ...]
    submit: bool = False
    """Whoever asks for it wants it run, too."""

    def alive(self) -> bool:
        """All memory that it names is still what it was."""
        for one in self.allocations:  # noqa: SIM110 - this is the shortest way there is
            if not one.alive:
                return False
        return True


class Known(NamedTuple):
    """An instruction's op, and what must live for it to be run."""

    op: str
    allocations: tuple[Allocation, ...]


class Counts(NamedTuple):
    """How often, by op."""

    translated: Counter[str]
    hits: Counter[str]
    launches: Counter[str]
    errors: Counter[str]


def no_counts() -> Counts:
    """Nothing yet."""
    return Counts(Counter(), Counter(), Counter(), Counter())


class Session:
    """``lock`` is held by whoever touches memory, plans or counts. AccelError where the device cannot be opened."""

    def __init__(
        self,
        number: int,
        chip: Chip,
        budget: Budget,
        pressure: Callable[[Session], int],
        *,
        client: str,
        keepalive_s: float,
        depth: int,
        lists: Lists,
        pool_bytes: int = 0,
    ) -> None:
        self.number, self.chip, self.client = number, chip, client
        self.wire = wire.number(1, number)
        """The number as a request's session_id."""
        self.keepalive_s = keepalive_s
        self.created = self.touched = time.monotonic()
        self.lock = RLock()
        self.spaces: list[GoodFit] = []
        """Address spaces that are handed out here; empty where the driver does that."""
        self.device, lifecycle = chip.open(self.spaces.append)
        self._sync = lifecycle.sync
        try:
            self.line = Line(chip.ops.open(self.device, depth), self.lock, self.touch, min(_SLICE_S, keepalive_s / 3))
        except BaseException:
            self.device.close()
            raise
        self.source = Source(lifecycle, budget, lambda: pressure(self), Budget(pool_bytes, "this session"))
        self.memory = SessionMemory(chip.target.id, self.source, number)
        self.plans: dict[Hashable, Plan] = {}
        self.answers: dict[bytes, Kept] = {}
        """The bytes of a request, behind its two numbers -> what was made of them."""
        self.known: dict[bytes, Known] = {}
        """An instruction that this session made or has checked."""
        self.lists = lists
        self.counts = no_counts()
        self._scratch: list[Allocation] = []
        self.closed = ""
        self._given_back = False

    # -- life

    def touch(self) -> None:
        """Something was asked of it. Refusal once it is closed."""
        if self.closed:
            raise Refusal("session_id", self.closed, "invalid_state", "open a new session")
        self.touched = time.monotonic()

    def remaining_s(self) -> float:
        """Until it expires; below 0 where it has."""
        return self.touched + self.keepalive_s - time.monotonic()

    def end(self, why: str) -> None:
        """Nothing more can be asked of it, and whoever waits for its queue is told so. :meth:`close` is still due."""
        with self.lock:
            self.closed = self.closed or why

    def renew(self, reason: str, why: str) -> None:
        """The chip is not what it was: nothing that was translated before counts any more."""
        with self.lock:
            self.plans.clear()
            self.answers.clear()
            self.known.clear()
            self.lists.end_all(reason, why)

    def close(self, why: str) -> tuple[int, int]:
        """Give everything back: queue, memory, the device. Bytes and tensors that were still held; 0 when it is closed
        already. Raises the first failure when all is tried."""
        self.end(why)
        with self.lock:
            if self._given_back:
                return 0, 0
            self._given_back = True
        wrong: list[Exception] = []
        self._end_queue(wrong)
        with self.lock:
            self.lists.end_all("session", "its session is closed")
            self.answers.clear()
            self.known.clear()
            self.plans.clear()
            tensors = self.tensors
            scratch = sum(one.size for one in self._scratch)
            held = 0
            for part in (self._close_memory, self.device.close):
                try:
                    held += part() or 0
                except Exception as error:  # whatever a driver raises, the other parts still go back
                    wrong.append(error)
        if wrong:
            raise wrong[0]
        return held - scratch, tensors

    def _close_memory(self) -> int:
        return self.memory.close()[0]

    def _end_queue(self, wrong: list[Exception]) -> None:
        """What is in flight may end by itself, for a moment; then the ring is closed under it."""
        try:
            self.line.ring.wait(self.line.submitted, _LAST_WAIT_S)
        except Exception:
            pass  # lost, or closed by its own device: it is closed below all the same
        try:
            self.line.close()
        except Exception as error:
            wrong.append(error)

    # -- memory

    def free(self, number: int) -> int:
        """Give a tensor back; its bytes. Refusal."""
        found = self.memory.get(number)
        if found in self._scratch:
            raise Refusal("tensor_id", "the service's own scratch memory", "invalid_handle")
        if not found.pins:
            self.lists.freed(found)
        return self.memory.free(number, idle=self.line.idle_at(found.fence))

    def allocate(self, size: int, op: str) -> Allocation:
        """Memory; what waited for the queue is taken first. Refusal."""
        self.settle()
        return self.memory.allocate(size, op)

    def settle(self) -> None:
        """What was freed while the queue used it goes back to the pool, where the queue is done with it."""
        if self.memory.waiting:
            self.memory.settle(self.line.passed())

    @property
    def tensors(self) -> int:
        """How many are allocated."""
        return len(self.memory) - len(self._scratch)

    def scratch(self, size: int) -> Allocation:
        """The scratch memory, at least so large. A smaller one from before is kept: instructions that a client holds
        may name it."""
        if not self._scratch or self._scratch[-1].size < size:
            self.settle()
            grown = max(size, 2 * self._scratch[-1].size if self._scratch else _SCRATCH_STEP)
            try:
                self._scratch.append(self.memory.allocate(grown, SCRATCH))
            except Refusal:
                self._scratch.append(self.memory.allocate(size, SCRATCH))  # what is needed may still fit
        return self._scratch[-1]

    def mapped(self, found: Allocation) -> Block:
        """Its block, with the CPU's view of it in ``map``. Refusal where the device gives none."""
        block = found.block.handle
        if block.map is None:
            raise Refusal("tensor_id", "the CPU cannot reach this device's memory", "not_supported")
        return block

    def wait(self, fence: int, timeout_s: float, active: Callable[[], bool] = lambda: True) -> bool:
        """Whether that point was passed in time. Whoever waits is there, so the session does not expire; the wait ends
        as well when it is closed, or nobody is ``active`` any more. Refusal."""
        end = time.monotonic() + timeout_s
        while True:
            left = end - time.monotonic()
            passed = self.line.wait(fence, max(0.0, min(left, self.line.slice_s)))
            self.touch()
            if passed and self.memory.waiting:
                with self.lock:
                    self.settle()
            if passed or left <= 0 or not active():
                return passed

    def settled(self, found: Allocation, patience_s: float) -> None:
        """Wait until the queue does not use it any more. Refusal."""
        if not self.wait(found.fence, patience_s):
            raise Refusal("tensor_id", "the queue still uses this tensor at the deadline", "timeout")

    def sync(self, block: Block, begin: bool) -> None:
        """Around accesses of the CPU, where the driver wants that."""
        if self._sync is not None:
            try:
                self._sync(block, begin)
            except OSError as error:
                raise refusal_of(error) from error

    # -- the data channel

    def lend(self, number: int) -> tuple[memoryview, int]:
        """The CPU's view of a tensor, and how many of its bytes belong to it; it cannot be freed until
        :meth:`take_back`. AccelError."""
        try:
            with self.lock:
                self.touch()
                found = self.memory.get(number)
                block = self.mapped(found)
                found.pins += 1
            try:
                self.settled(found, _LAST_WAIT_S)
                self.sync(block, True)
                return memoryview(block.map), found.size  # type: ignore[arg-type]
            except BaseException:
                with self.lock:
                    found.pins -= 1
                raise
        except Refusal as refusal:
            raise AccelError(str(refusal), refusal.hint or None, kind=refusal.kind) from None
        except TypeError:
            raise AccelError("the CPU cannot reach this device's memory in place", kind="not_supported") from None

    def take_back(self, number: int) -> None:
        """The transfer is done with it."""
        with self.lock:
            found = self.memory.get(number)
            found.pins -= 1
            self.sync(found.block.handle, False)


_LAST_WAIT_S = 2.0
_SLICE_S = 0.5
"""How long one wait for the device lasts before somebody looks whether it is still wanted."""


def keep(kept: dict[K, V], key: K, value: V) -> None:
    """Put it in; the oldest one goes when there are too many."""
    if len(kept) >= KEPT:
        kept.pop(next(iter(kept)), None)
    kept[key] = value
