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
from accelctl.memory.account import STAYS, Account, Event
from accelctl.memory.ledger import Ledger
from accelctl.memory.records import Number
from accelctl.stress.plan import Batch, Plan, Step, batched, pattern, patterns

T = TypeVar("T")
REFUSED_IN_A_ROW = 256
"""So many acquisitions that all fail mean a device that is used up or broken; going on would only fill logs."""
_AHEAD = 64
"""Cycles that are made ready, and booked, at one time."""
_FIRST, _LAST = slice(0, 8), slice(-8, None)
"""The ends of a mapping."""
_NOTHING = Block(0)


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


Held = tuple[Block, list[Number], bytes, tuple[Order, Order]]
"""A block, the number that each of its stages returned, what its mapping holds (b"": nothing that is known), and how it
is released."""
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
        self._slots: list[Held | None] = [None] * (plan.hold + 1)
        """The last one is for trials."""
        self._serials = count((lane << 40) + 1)
        self._refused, self._trying = 0, False
        domain = f"{session.target.node}#{lane}"
        self._accounts: list[tuple[int, Account]] = []
        for place, stage in enumerate(lifecycle.stages):
            if ledger is not None and stage.kind != NOTHING:
                stores = not self._accounts  # the first one's bytes are those of the block
                account = ledger.account(domain, session.target.chip, stage.name, stage.kind, stores)
                self._accounts.append((place, account))
        self._journal: list[Event] = []
        """What was acquired and released since the last :meth:`_book`."""
        self._note = self._journal.append
        stages = [self._watched(place, stage) for place, stage in enumerate(lifecycle.stages)]
        self._rows = [Row.of(stages[:depth]) for depth in range(len(stages) + 1)]
        batches = batched(steps) if steps else plan.batches(lifecycle.sizes, len(stages), lane)
        self._ahead = chain.from_iterable(self._rendered(batches))

    def _watched(self, place: int, stage: Stage) -> Stage:
        """The stage; where somebody wants to know what is being done, one that tells."""
        acquire, release = stage.acquire, stage.release
        if self._beat is not None:
            acquire = self._beating(acquire, self._beat, (place << 1) + 1)
            release = release and self._beating(release, self._beat, (place << 1) + 2)
        if self._at is not None:
            acquire = _saying(acquire, self._at, stage.name)
            release = release and _saying(release, self._at, f"-{stage.name}")
        return stage._replace(acquire=acquire, release=release)

    def _beating(self, call: Callable[[Block], T], beat: Callable[[int], None], code: int) -> Callable[[Block], T]:
        def beating(block: Block) -> T:
            beat(self.cycles << 8 | code)
            return call(block)

        return beating

    def _rendered(self, batches: Iterable[Batch]) -> Iterator[list[Cycle]]:
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
                yield list(zip(count(self.cycles + 1), slots, rows, early, map(Block, sizes, serials), tags))

    def run(self, cycles: int) -> int:
        """So many cycles (fewer when the plan's own steps end); how many were done. Raises Divergence, UsedUp."""
        before = self.cycles
        self._turn(islice(self._ahead, cycles))
        return self.cycles - before

    def drain(self) -> None:
        """Release everything that is held; raises the first Divergence when all is released."""
        wrong: list[Divergence] = []
        rows = self._emptying([slot for slot, held in enumerate(self._slots) if held is not None])
        while True:
            try:
                self._turn(rows)
                break
            except Divergence as error:
                wrong.append(error)  # the other slots are still to be emptied
        if self._beat is not None:
            self._beat(0)
        if wrong:
            raise wrong[0]

    def fill(self) -> None:
        """Acquire a whole block into every slot: the state in which a process can be killed at its worst."""
        most = self.plan.share(self.lifecycle.sizes.granule)
        size = min(most, self.lifecycle.sizes.largest or most)
        self._turn(self._whole(slot, size) for slot, held in enumerate(self._slots[:-1]) if held is None)

    def trial(self, size: int = 0) -> str:
        """One whole cycle. Why the driver does not offer this lifecycle; empty when it does."""
        slot, self._trying = len(self._slots) - 1, True
        try:
            self._turn([self._whole(slot, size or self.lifecycle.sizes.granule), *self._emptying([slot])])
        except NotOffered as error:
            return error.reason
        except (OSError, AccelError) as error:
            self._refused_by(error)
        finally:
            self._trying = False
        return ""

    @property
    def held_bytes(self) -> int:
        """Bytes in the slots."""
        return sum(held[0].size for held in self._slots if held is not None)

    def _whole(self, slot: int, size: int) -> Cycle:
        """A whole block that is in no plan."""
        serial = next(self._serials)
        tag = pattern(self.plan.seed, serial) if self.plan.touch != "none" else b""
        return self.cycles, slot, self._rows[-1], False, Block(size, serial), tag

    def _emptying(self, slots: Iterable[int]) -> Iterator[Cycle]:
        """What leaves these slots empty."""
        return ((self.cycles, slot, self._rows[0], False, _NOTHING, b"") for slot in slots)

    def _turn(self, cycles: Iterable[Cycle]) -> None:
        """The loop. What is in a slot is verified and released, and the new block acquired into it and written to.

        All in one function, with nothing looked up twice: this is what a run costs beside its system calls.
        """
        slots, note, ends, whole, first, last = self._slots, self._note, self._ends, self._rows[-1], _FIRST, _LAST
        try:
            for number, slot, row, early, block, tag in cycles:
                self.cycles = number
                held = slots[slot]
                if held is not None:
                    slots[slot] = None
                    old, numbers, written, orders = held
                    wrong = ""
                    if written:
                        mapping = old.map
                        if not ends or mapping is None or not mapping[first] == written == mapping[last]:
                            wrong = self._changed(old, written)
                    for place, release in orders[early]:
                        try:
                            release(old)
                        except (OSError, AccelError) as error:
                            self._stuck(place, numbers, error)
                    note((numbers, None))
                    if wrong:
                        raise Divergence(wrong, self.cycles)
                acquires, orders = row
                if not acquires:
                    continue
                numbers = []
                try:
                    for acquire in acquires:
                        numbers.append(acquire(block))
                except (OSError, AccelError) as error:
                    self._failed(slot, block, numbers, error)
                    continue
                if self._refused and row is whole:
                    self._refused = 0
                note((numbers, block.size))
                mapping = block.map
                if mapping is not None and tag:
                    if ends:
                        mapping[first] = mapping[last] = tag
                    else:
                        self._write(block, mapping, tag)
                slots[slot] = block, numbers, tag, orders
        finally:
            self._book()

    def _failed(self, slot: int, block: Block, numbers: list[Number], error: OSError | AccelError) -> None:
        """A stage could not be acquired: those before it are released."""
        self._slots[slot] = block, numbers, b"", self._rows[len(numbers)].orders
        self._note((numbers, block.size))
        self._turn(self._emptying([slot]))
        if self._trying:
            raise error
        self.failures[self.lifecycle.stages[len(numbers)].name, _name(error)] += 1
        self._refused_by(error)

    def _stuck(self, place: int, numbers: list[Number], error: OSError | AccelError) -> None:
        """A stage could not be released: it stays in the ledger."""
        self.failures[f"-{self.lifecycle.stages[place].name}", _name(error)] += 1
        self._book()  # as it was acquired
        numbers[place] = STAYS

    def _book(self) -> None:
        """Write into the ledger what happened since the last time, in order. A number that is given out while it is
        held, or given back while it is not, is found here as well as in the cycle; and here it costs little."""
        for place, account in self._accounts:
            account.follow(self._journal, place)
        self._journal.clear()

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


def _saying(call: Callable[[Block], T], at: Callable[[str], None], name: str) -> Callable[[Block], T]:
    def saying(block: Block) -> T:
        at(name)
        try:
            return call(block)
        finally:
            at("")

    return saying


def _name(error: Exception) -> str:
    status = getattr(error, "name", "")
    if status:
        return str(status)
    if isinstance(error, OSError) and error.errno:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__
