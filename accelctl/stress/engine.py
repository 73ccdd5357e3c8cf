"""The one loop that runs every lifecycle: acquire in order, touch, release, and undo what a failed stage leaves.

It knows nothing of drivers. What it holds stands in two places: in its slots, and (unless that is switched off) in the
ledger, which must say the same as the kernel's own book in the end.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, islice, repeat
from typing import NamedTuple, TypeVar

from accelctl.abi.lifecycle import NOTHING, Block, Lifecycle, NotOffered, Session, Stage
from accelctl.errors import AccelError
from accelctl.hal.devfile import Mapped
from accelctl.memory.account import Account, Event
from accelctl.memory.ledger import Ledger
from accelctl.stress.plan import Batch, Plan, Step, batched, pattern, patterns

T = TypeVar("T")
REFUSED_IN_A_ROW = 256
"""So many acquisitions that all fail mean a device that is used up or broken; going on would only fill logs."""
_AHEAD = 64
"""Cycles that are made ready, and booked, at one time."""
_FIRST, _LAST = slice(0, 8), slice(-8, None)
"""The ends of a mapping."""


class Divergence(Exception):
    """Memory that does not hold what was written, or a driver that breaks the rules of its lifecycle."""

    def __init__(self, text: str, cycle: int) -> None:
        super().__init__(text)
        self.cycle = cycle


class UsedUp(Exception):
    """Nothing can be acquired any more."""


Acquire = Callable[[Block], int]
Release = Callable[[Block], None]
Order = tuple[tuple[int, Release], ...]
"""Places of stages, and their releases."""


class Row(NamedTuple):
    """The first so many stages, as the loop wants them: how they are acquired, and the two orders of releasing them:
    plain reverse, and with those first that may go early. Stages without a release are in none."""

    acquires: tuple[Acquire, ...]
    orders: tuple[Order, Order]

    @classmethod
    def of(cls, stages: Sequence[Stage]) -> Row:
        """Of these stages."""
        gives = [(place, stage.release) for place, stage in enumerate(stages) if stage.release is not None]
        early = [give for give in gives if stages[give[0]].early]
        late = [give for give in gives if not stages[give[0]].early]
        return cls(tuple(stage.acquire for stage in stages), (tuple(gives[::-1]), (*early, *late[::-1])))


Held = tuple[Block, "list[int | None]", bytes, "tuple[Order, Order]"]
"""A block, the number that each of its stages returned (None: it could not be released), what was written to it
(nothing: b""), and how it is released."""
Cycle = tuple[int, int, Row, bool, Block, bytes]
"""One cycle, ready to be done: number, slot, stages, the order in which the old block goes, new block, its pattern."""


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
        self._beat, self._at = beat, at
        self._sync = lifecycle.sync
        self._ends = plan.touch == "ends" and lifecycle.sync is None
        """Only the ends are touched, and nobody wants to know: the loop does it itself."""
        self._slots: list[Held | None] = [None] * plan.hold
        self._serials = count((lane << 40) + 1)
        self._refused = 0
        domain = f"{session.target.node}#{lane}"
        self._accounts: list[tuple[int, Account]] = []
        for place, stage in enumerate(lifecycle.stages):
            if ledger is not None and stage.kind != NOTHING:
                stores = not self._accounts  # the first one's bytes are those of the block
                account = ledger.account(domain, session.target.chip, stage.name, stage.kind, stores)
                self._accounts.append((place, account))
        self._journal: list[Held | list[int | None]] = []
        """What was acquired (a Held) and released (its numbers) since the last :meth:`_book`."""
        self._note = self._journal.append
        stages = [self._heard(place, stage) for place, stage in enumerate(lifecycle.stages)]
        self._rows = [Row.of(stages[:depth]) for depth in range(len(stages) + 1)]
        batches = batched(steps) if steps else plan.batches(lifecycle.sizes, len(stages), lane)
        self._ahead = chain.from_iterable(self._rendered(batches))

    def _heard(self, place: int, stage: Stage) -> Stage:
        """The stage; where somebody wants to know what is being done, one that tells."""
        if self._beat is None and self._at is None:
            return stage
        acquire = self._watched(stage.acquire, (place << 1) + 1, stage.name)
        release = stage.release and self._watched(stage.release, (place << 1) + 2, f"-{stage.name}")
        return stage._replace(acquire=acquire, release=release)

    def _watched(self, call: Callable[[Block], T], code: int, name: str) -> Callable[[Block], T]:
        beat, at = self._beat, self._at

        def watched(block: Block) -> T:
            if beat is not None:
                beat(self.cycles << 8 | code)
            if at is None:
                return call(block)
            at(name)
            try:
                return call(block)
            finally:
                at("")

        return watched

    def _rendered(self, batches: Iterable[Batch]) -> Iterator[Iterator[Cycle]]:
        """Cycles with all that can be made before they begin, a few at a time.

        Between two system calls an instruction costs many times what it costs in a loop without any, on an emulated
        machine even more. Few, because what they need then stays in the caches.
        """
        for batch in batches:
            for start in range(0, len(batch.slots), _AHEAD):
                self._book()
                slots, sizes, depths, early = (column[start : start + _AHEAD] for column in batch)
                serials = list(islice(self._serials, len(slots)))
                tags = patterns(self.plan.seed, serials) if self.plan.touch != "none" else repeat(b"")
                rows = [self._rows[depth] for depth in depths]
                yield zip(count(self.cycles + 1), slots, rows, early, list(map(Block, sizes, serials)), tags)

    def _tag(self, serial: int) -> bytes:
        """What is written to a block; nothing where nothing is touched."""
        return pattern(self.plan.seed, serial) if self.plan.touch != "none" else b""

    def run(self, cycles: int) -> int:
        """So many cycles (fewer when the plan's own steps end); how many were done. Raises Divergence, UsedUp."""
        slots, before, acquire, release = self._slots, self.cycles, self._acquire, self._release
        try:
            for cycle, slot, row, early, block, tag in islice(self._ahead, cycles):
                self.cycles = cycle
                held = slots[slot]
                if held is not None:
                    slots[slot] = None
                    release(held, early)
                slots[slot] = acquire(block, row, tag)
        finally:
            self._book()
        return self.cycles - before

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
        self._book()
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
                self._slots[index] = self._one(size)
        self._book()

    def trial(self, size: int = 0) -> str:
        """One whole cycle. Why the driver does not offer this lifecycle; empty when it does."""
        try:
            held = self._one(size or self.lifecycle.sizes.granule, raising=True)
            if held is not None:
                self._release(held, False)
        except NotOffered as error:
            return error.reason
        except (OSError, AccelError) as error:
            self._refused_by(error)
        finally:
            self._book()
        return ""

    @property
    def held_bytes(self) -> int:
        """Bytes in the slots."""
        return sum(held[0].size for held in self._slots if held is not None)

    def _one(self, size: int, *, raising: bool = False) -> Held | None:
        """A whole block that is in no plan."""
        block = Block(size, next(self._serials))
        return self._acquire(block, self._rows[-1], self._tag(block.serial), raising=raising)

    def _acquire(self, block: Block, row: Row, tag: bytes, *, raising: bool = False) -> Held | None:
        numbers: list[int | None] = []
        acquires, orders = row
        try:
            for acquire in acquires:
                numbers.append(acquire(block))
        except (OSError, AccelError) as error:
            self._undo(block, numbers)
            if raising:
                raise
            self.failures[self.lifecycle.stages[len(numbers)].name, _name(error)] += 1
            self._refused_by(error)
            return None
        if self._refused and row is self._rows[-1]:
            self._refused = 0
        mapping = block.map
        if mapping is None or not tag:
            tag = b""
        elif self._ends:
            mapping[_FIRST] = mapping[_LAST] = tag
        else:
            self._write(block, mapping, tag)
        held = block, numbers, tag, orders
        self._note(held)
        return held

    def _undo(self, block: Block, numbers: list[int | None]) -> None:
        """The stages that were acquired before one failed."""
        held = block, numbers, b"", self._rows[len(numbers)].orders
        self._note(held)
        self._release(held, False)

    def _release(self, held: Held, early: bool) -> None:
        block, numbers, tag, orders = held
        wrong = ""
        if tag:
            mapping = block.map
            if not self._ends or mapping is None or mapping[_FIRST] != tag or mapping[_LAST] != tag:
                wrong = self._changed(block, tag)
        for place, release in orders[early]:
            try:
                release(block)
            except (OSError, AccelError) as error:
                self.failures[f"-{self.lifecycle.stages[place].name}", _name(error)] += 1
                self._book()  # as acquired
                numbers[place] = None
        self._note(numbers)
        if wrong:
            raise Divergence(wrong, self.cycles)

    def _book(self) -> None:
        """Write into the ledger what happened since the last time, in order. A number that is given out while it is
        held, or given back while it is not, is found here as well as in the cycle; and here it costs little."""
        events: list[Event] = []
        for item in self._journal:
            events.append((item[1], item[0].size) if isinstance(item, tuple) else (item, None))
        self._journal.clear()
        for place, account in self._accounts:
            account.follow(events, place)

    def _refused_by(self, error: Exception) -> None:
        self._refused += 1
        if self._refused >= REFUSED_IN_A_ROW:
            raise UsedUp(f"{REFUSED_IN_A_ROW} acquisitions in a row failed, the last with: {error}")

    def _write(self, block: Block, mapping: Mapped, tag: bytes) -> None:
        if self._sync is not None:
            self._sync(block, True)
        if self.plan.touch == "full":
            mapping[:] = tag * (len(mapping) // 8)
        else:
            mapping[_FIRST] = mapping[_LAST] = tag
        if self._sync is not None:
            self._sync(block, False)

    def _changed(self, block: Block, tag: bytes) -> str:
        """What was written must still be there, as nobody else may have been given the same pages: "", or what is."""
        mapping = block.map
        if mapping is None:
            return ""
        full, size = self.plan.touch == "full", len(mapping)
        if self._sync is not None:
            self._sync(block, True)
        found = mapping[:] if full else mapping[_FIRST] + mapping[_LAST]
        if self._sync is not None:
            self._sync(block, False)
        wanted = tag * (len(found) // 8)
        if found == wanted:
            return ""
        at = next(i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b) // 8 * 8
        where = at if full or at < 8 else size - 8
        return (
            f"block {block.serial & 0xFFFFFFFFFF} of {size} bytes, offset {where}: "
            f"wrote {wanted[at : at + 8].hex()}, found {found[at : at + 8].hex()}"
        )


def _name(error: Exception) -> str:
    status = getattr(error, "name", "")
    if status:
        return str(status)
    if isinstance(error, OSError) and error.errno:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__
