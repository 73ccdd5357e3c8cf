"""The one loop that runs every lifecycle: acquire in order, touch, release, and undo what a failed stage leaves.

It knows nothing of drivers. What it holds stands in two places: in its slots, and (unless that is switched off) in the
ledger, which must say the same as the kernel's own book in the end.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from accelctl.abi.lifecycle import NOTHING, Block, Lifecycle, NotOffered, Session, Stage
from accelctl.errors import AccelError
from accelctl.memory.account import Account
from accelctl.memory.ledger import Ledger
from accelctl.stress.plan import Plan, Step, pattern

REFUSED_IN_A_ROW = 256
"""So many acquisitions that all fail mean a device that is used up or broken; going on would only fill logs."""

Held = tuple[Block, list[int], bytes]
"""A block, the number that each of its stages returned, and what was written to it (nothing: b"")."""


class Divergence(Exception):
    """Memory that does not hold what was written, or a driver that breaks the rules of its lifecycle."""

    def __init__(self, text: str, cycle: int) -> None:
        super().__init__(text)
        self.cycle = cycle


class UsedUp(Exception):
    """Nothing can be acquired any more."""


class Lane:
    """One stage, with all that the loop needs to know of it."""

    __slots__ = ("account", "acquire", "beat", "counts_bytes", "give", "name", "release", "stage", "take", "undo")

    def __init__(self, stage: Stage, index: int, account: Account | None, counts_bytes: bool) -> None:
        self.stage, self.name, self.account, self.counts_bytes = stage, stage.name, account, counts_bytes
        self.acquire, self.release = stage.acquire, stage.release
        self.take = account.take if account else None
        self.give = account.give if account else None
        self.beat = (index << 1) + 1
        self.undo = f"-{stage.name}"


class Engine:
    """One thread's loop over one lifecycle of an open session."""

    def __init__(
        self,
        session: Session,
        lifecycle: Lifecycle,
        plan: Plan,
        *,
        lane: int = 0,
        ledger: Ledger | None = None,
        beat: Callable[[int], None] | None = None,
        at: Callable[[str], None] | None = None,
        steps: Iterable[Step] | None = None,
    ) -> None:
        self.lifecycle, self.plan = lifecycle, plan
        self.failures: Counter[tuple[str, str]] = Counter()
        """(stage, or "-stage" for its release; errno or status name) -> how often."""
        self.cycles = 0
        self.trace_at = at
        self._beat = beat
        self._touch = "" if plan.touch == "none" else plan.touch
        self._sync = lifecycle.sync
        self._steps: Iterator[Step] = iter(steps or plan.steps(lifecycle.sizes, len(lifecycle.stages), lane))
        self._slots: list[Held | None] = [None] * plan.hold
        self._serial = lane << 40
        self._refused = 0
        domain = f"{session.target.node}#{lane}"
        self._lanes: list[Lane] = []
        for index, stage in enumerate(lifecycle.stages):
            keeps = stage.kind != NOTHING
            account = ledger.account(domain, session.target.chip, stage.name, stage.kind) if ledger and keeps else None
            self._lanes.append(Lane(stage, index, account, not any(x.account for x in self._lanes)))
        self._whole = len(self._lanes)
        self._rows = [tuple(self._lanes[:depth]) for depth in range(self._whole + 1)]
        self._orders = [_orders(self._lanes[:depth]) for depth in range(self._whole + 1)]

    def run(self, cycles: int) -> int:
        """So many cycles (fewer when the plan's own steps end); how many were done. Raises Divergence, UsedUp."""
        slots, done = self._slots, 0
        for slot, size, depth, early in islice(self._steps, cycles):
            self.cycles += 1
            done += 1
            held = slots[slot]
            if held is not None:
                slots[slot] = None
                self._release(held, early)
            slots[slot] = self._acquire(size, depth)
        return done

    def drain(self) -> None:
        """Release everything that is held; raises the first Divergence when all is released."""
        wrong: Divergence | None = None
        for index, held in enumerate(self._slots):
            if held is not None:
                self._slots[index] = None
                try:
                    self._release(held, False)
                except Divergence as error:
                    wrong = wrong or error
        if self._beat is not None:
            self._beat(0)
        if wrong is not None:
            raise wrong

    def fill(self) -> None:
        """Acquire a whole block into every slot: the state in which a process can be killed at its worst."""
        most = self.plan.share(self.lifecycle.sizes.granule)
        size = min(most, self.lifecycle.sizes.largest or most)
        for index, held in enumerate(self._slots):
            if held is None:
                self._slots[index] = self._acquire(size, len(self._lanes))

    def trial(self, size: int = 0) -> str:
        """One whole cycle. Why the driver does not offer this lifecycle; empty when it does."""
        try:
            held = self._acquire(size or self.lifecycle.sizes.granule, len(self._lanes), raising=True)
        except NotOffered as error:
            return error.reason
        except (OSError, AccelError) as error:
            self._refused_by(error)
            return ""
        if held is not None:
            self._release(held, False)
        return ""

    @property
    def held_bytes(self) -> int:
        """Bytes in the slots."""
        return sum(held[0].size for held in self._slots if held is not None)

    def _acquire(self, size: int, depth: int, *, raising: bool = False) -> Held | None:
        self._serial += 1
        block = Block(size, self._serial)
        numbers: list[int] = []
        held, beat, at, now = block.held, self._beat, self.trace_at, self.cycles << 8
        for lane in self._rows[depth]:
            if beat is not None:
                beat(now | lane.beat)
            if at is not None:
                at(lane.name)
            try:
                number = lane.acquire(block)
            except (OSError, AccelError) as error:
                self._release((block, numbers, b""), False)
                if raising:
                    raise
                self.failures[lane.name, _name(error)] += 1
                self._refused_by(error)
                return None
            held.append(lane.stage)
            numbers.append(number)
            if lane.take is not None:
                lane.take(number, block.size if lane.counts_bytes else 0)
        if at is not None:
            at("")
        if depth == self._whole:
            self._refused = 0
        return block, numbers, self._write(block) if block.map is not None and self._touch else b""

    def _release(self, entry: Held, early: bool) -> None:
        block, numbers, tag = entry
        wrong = self._changed(block, tag) if tag else ""
        beat, at, now = self._beat, self.trace_at, self.cycles << 8
        for index, lane in self._orders[len(numbers)][early]:
            if lane.release is not None:
                if beat is not None:
                    beat(now | lane.beat + 1)
                if at is not None:
                    at(lane.undo)
                try:
                    lane.release(block)
                except (OSError, AccelError) as error:
                    self.failures[lane.undo, _name(error)] += 1
                    continue  # what was not given back stays in the ledger
            if lane.give is not None:
                lane.give(numbers[index])
        block.held.clear()
        if at is not None:
            at("")
        if wrong:
            raise Divergence(wrong, self.cycles)

    def _refused_by(self, error: Exception) -> None:
        self._refused += 1
        if self._refused >= REFUSED_IN_A_ROW:
            raise UsedUp(f"{REFUSED_IN_A_ROW} acquisitions in a row failed, the last with: {error}")

    def _write(self, block: Block) -> bytes:
        mapping, size = block.map, block.size
        assert mapping is not None
        tag = pattern(self.plan.seed, block.serial)
        if self._sync is not None:
            self._sync(block, True)
        if self._touch == "full":
            mapping[0:size] = tag * (size // 8)
        else:
            mapping[0:8] = tag
            mapping[size - 8 : size] = tag
        if self._sync is not None:
            self._sync(block, False)
        return tag

    def _changed(self, block: Block, tag: bytes) -> str:
        """What was written must still be there, as nobody else may have been given the same pages: "", or what is."""
        mapping, size = block.map, block.size
        if mapping is None:
            return ""
        if self._sync is not None:
            self._sync(block, True)
        if self._touch == "full":
            found, wanted = mapping[0:size], tag * (size // 8)
        else:
            found, wanted = mapping[0:8] + mapping[size - 8 : size], tag + tag
        if self._sync is not None:
            self._sync(block, False)
        if found == wanted:
            return ""
        at = next(i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b) // 8 * 8
        where = at if self._touch == "full" or at < 8 else size - 8
        return (
            f"block {block.serial & 0xFFFFFFFFFF} of {size} bytes, offset {where}: "
            f"wrote {wanted[at : at + 8].hex()}, found {found[at : at + 8].hex()}"
        )


Order = tuple[tuple[int, Lane], ...]


def _orders(lanes: list[Lane]) -> tuple[Order, Order]:
    """Lanes with their places, in the order of releasing: plain reverse, and what may go early first."""
    backward = tuple(reversed(tuple(enumerate(lanes))))
    early = tuple((index, lane) for index, lane in enumerate(lanes) if lane.stage.early)
    return backward, early + tuple(pair for pair in backward if pair not in early)


def _name(error: Exception) -> str:
    status = getattr(error, "name", "")
    if status:
        return str(status)
    if isinstance(error, OSError) and error.errno:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__
