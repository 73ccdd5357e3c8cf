"""The suite of the Schedule contract: a list gives what its instructions give one by one, in order, as one work of its
ring; it keeps nothing alive, and ends with its ring.

What a list does whose instruction fails while it runs is not asked here: that needs a kernel that can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import Env, Target
from accelctl.abi.ops import Ops
from accelctl.abi.opscheck import Place, copying, places, right_work, some_dtype, wrong_works
from accelctl.abi.queue import CLOSED, IDLE, QueueClosed, Ring, Timeline
from accelctl.abi.ringcheck import RING_CHECKS, RingSuite, passes
from accelctl.abi.schedule import ListClosed, Recorded, Schedule
from accelctl.abi.tensors import tensor
from accelctl.abi.testbench import Bench, Check, Wrong
from accelctl.errors import UsageError

_MANY = 200
"""Lists, one after the other: a chip that keeps closed ones runs full some day."""


class _Made(NamedTuple):
    """What a check works with. ``works[n]`` copies 16 bytes of ``at[n]`` to ``at[n + 1]``."""

    ring: Ring
    at: list[Place]
    works: list[bytes]

    def fill(self) -> None:
        """Every block other bytes."""
        for number, place in enumerate(self.at):
            place.put(bytes([number + 1]) * 16)

    def holds(self) -> list[int]:
        """The byte that each block begins with."""
        return [place.get(1)[0] for place in self.at]


class _Lists:
    """One chip's contracts, in a bench."""

    def __init__(self, suite: RingSuite, ops: Ops, schedule: Schedule) -> None:
        self._suite, self._ops, self._schedule = suite, ops, schedule

    @contextmanager
    def made(self, bench: Bench, count: int = 3) -> Iterator[_Made]:
        """A ring, and copies in a row."""
        dtype = some_dtype(self._ops)
        elements = 16 // dtype.itemsize
        with places(self._ops, bench, count + 1) as at:
            ends = [tensor((elements,), dtype, place.block.address) for place in at]
            works = [copying(self._ops, x, y) for x, y in pairwise(ends)]
            made = _Made(self._suite.ring(bench), at, works)
            made.fill()
            yield made

    def record(self, ring: Ring, works: Sequence[bytes]) -> Recorded:
        """A list. Wrong where it has not so many works."""
        found = self._schedule.record(ring, works)
        if found.works != len(works):
            raise Wrong(f"a list of {len(works)} instructions says that it has {found.works}")
        return found

    def same(self, bench: Bench) -> None:
        """What its instructions give one by one; again after the operands have changed."""
        with self.made(bench) as made:
            listed = self.record(made.ring, made.works)
            if made.ring.state != IDLE or made.holds() != [1, 2, 3, 4]:
                raise Wrong("something was run when the list was recorded")
            for byte in (1, 9, 200):
                made.at[0].put(bytes([byte]) * 16)
                passes(made.ring, listed.replay())
                if made.holds() != [byte] * 4:
                    raise Wrong(f"copies in a row, beginning with {byte}, left {made.holds()}")
            listed.close()

    def order(self, bench: Bench) -> None:
        """After what was submitted before it, before what comes after it; one point each."""
        with self.made(bench) as made:
            first, second, third = made.works
            listed = self.record(made.ring, [third, second])
            points = [made.ring.submit(first), listed.replay(), made.ring.submit(third)]
            if points != [1, 2, 3]:
                raise Wrong(f"a work, a list and a work have the points {points}")
            passes(made.ring, 3)
            if made.holds() != [1, 1, 1, 1]:
                raise Wrong(f"a work, a list and a work left {made.holds()}, in this order it is [1, 1, 1, 1]")
            made.fill()
            passes(made.ring, listed.replay())
            if made.holds() != [1, 2, 2, 3]:
                raise Wrong(f"the last copy before the one in the middle left {made.holds()}, not [1, 2, 2, 3]")
            listed.close()

    def several(self, bench: Bench) -> None:
        """Two lists on one ring, in turn; then many, each closed before the next."""
        with self.made(bench) as made:
            lists = [self.record(made.ring, works) for works in (made.works[:1], made.works[1:])]
            for listed in (lists[1], lists[0]):
                passes(made.ring, listed.replay())
            if made.holds() != [1, 1, 2, 2]:
                raise Wrong(f"two lists in turn left {made.holds()}, not [1, 1, 2, 2]")
            lists[0].close()
            passes(made.ring, lists[1].replay())
            lists[1].close()
            for _ in range(_MANY):
                self.record(made.ring, made.works).close()

    def bad(self, bench: Bench) -> None:
        """A list with one instruction that is none is refused as a whole, and nothing of it runs."""
        with self.made(bench) as made:
            for what, work in wrong_works(self._ops, made.works[0]):
                try:
                    self._schedule.record(made.ring, [made.works[0], work])
                except UsageError as error:
                    if "blobs[1]" not in error.message:
                        raise Wrong(f"{what}: refused without naming blobs[1]: {error.message}") from None
                    continue
                raise Wrong(f"a list with {what} is taken")
            self.refused("no instructions", made.ring, [])
            self.refused("a ring of somebody else", _Foreign(), made.works)
            if made.ring.state != IDLE or made.holds() != [1, 2, 3, 4]:
                raise Wrong(f"after refusals the ring is {made.ring.state}, and the memory holds {made.holds()}")
            passes(made.ring, made.ring.submit(made.works[0]))

    def refused(self, what: str, ring: Ring, works: Sequence[bytes]) -> None:
        """Wrong unless that is a UsageError."""
        try:
            self._schedule.record(ring, works)
        except UsageError:
            return
        raise Wrong(f"a list with {what} is taken")

    def gone(self, bench: Bench) -> None:
        """Memory that went: the list is refused, without a point, and its ring goes on."""
        with self.made(bench, 1) as made:
            with places(self._ops, bench, 1) as (other,):
                dtype = some_dtype(self._ops)
                ends = [tensor((4,), dtype, place.block.address) for place in (other, made.at[1])]
                listed = self.record(made.ring, [made.works[0], copying(self._ops, *ends)])
                passes(made.ring, listed.replay())
            made.fill()
            try:
                listed.replay()
            except UsageError:
                pass
            else:
                raise Wrong("a list is replayed whose memory was given back")
            point = made.ring.submit(made.works[0])
            if point != 2:
                raise Wrong(f"after a refused replay the next work has point {point}, not 2")
            passes(made.ring, point)
            listed.close()

    def closed(self, bench: Bench) -> None:
        """A closed list; one that is closed while it is in flight; a list whose ring is closed."""
        with self.made(bench) as made:
            listed, other = self.record(made.ring, made.works), self.record(made.ring, made.works)
            point = listed.replay()
            listed.close()
            listed.close()
            passes(made.ring, point)
            if made.holds() != [1, 1, 1, 1]:
                raise Wrong(f"a list that was closed in flight left {made.holds()}")
            _raises(ListClosed, listed.replay, "replay() of a closed list")
            made.ring.close()
            if made.ring.state != CLOSED:
                raise Wrong(f"after close() a ring with a list is {made.ring.state}")
            _raises(QueueClosed, other.replay, "replay() on a closed ring")
            _raises(QueueClosed, lambda: self._schedule.record(made.ring, made.works), "record() on a closed ring")
            other.close()
            other.close()

    def left(self, bench: Bench) -> None:
        """The session ends a ring and a list that nobody closed."""
        ring = self._suite.ring(bench, closed=False)
        with right_work(self._ops, bench) as work:
            listed = self.record(ring, [work, work])
            passes(ring, listed.replay())
        bench.session.close()
        _raises(QueueClosed, listed.replay, "replay() after its session was closed")

    def ring(self, check: Callable[[RingSuite, Bench, bytes], None], bench: Bench) -> None:
        """What every ring keeps, with lists as work."""
        with right_work(self._ops, bench) as work:
            check(_ListSuite(self._suite, self._schedule), bench, work)


class _ListSuite(RingSuite):
    """Rings on which every work is a list."""

    def __init__(self, inner: RingSuite, schedule: Schedule) -> None:
        self._inner, self._schedule, self.opens = inner, schedule, inner.opens

    def ring(self, bench: Bench, *, closed: bool = True) -> Ring:
        """See RingSuite."""
        return _ListRing(self._inner.ring(bench, closed=closed), self._schedule)


class _ListRing:
    def __init__(self, ring: Ring, schedule: Schedule) -> None:
        self._ring, self._schedule = ring, schedule
        self._lists: dict[bytes, Recorded] = {}
        self.passed, self.wait, self.close = ring.passed, ring.wait, ring.close

    @property
    def depth(self) -> int:
        return self._ring.depth

    @property
    def state(self) -> str:
        return self._ring.state

    def submit(self, work: bytes) -> int:
        if work not in self._lists:
            self._lists[work] = self._schedule.record(self._ring, [work] * 3)
        return self._lists[work].replay()


class _Foreign(Timeline):
    """A ring of nobody's."""

    def __init__(self) -> None:
        super().__init__(4)

    def submit(self, work: bytes) -> int:
        return self.take()


def _raises(kind: type[Exception], call: Callable[[], object], what: str) -> None:
    try:
        call()
    except kind:
        return
    raise Wrong(f"{what} works")


def check_schedule(chip: Chip, target: Target, env: Env) -> list[Check]:
    """Every check of the Schedule contract on one device; as :func:`check_memory`."""
    ops, schedule = chip.ops, chip.schedule
    assert ops is not None
    assert schedule is not None
    suite = RingSuite(chip, target, env, ops)
    lists = _Lists(suite, ops, schedule)
    bodies: dict[str, Callable[[Bench], None]] = {
        "schedule: same results": lists.same,
        "schedule: order": lists.order,
        "schedule: several": lists.several,
        "schedule: bad instructions": lists.bad,
        "schedule: memory gone": lists.gone,
        "schedule: closed": lists.closed,
    }
    bodies |= {f"schedule ring: {name}": partial(lists.ring, check) for name, check in RING_CHECKS.items()}
    checks = [suite.run(name, body) for name, body in bodies.items()]
    return [*checks, suite.run("schedule: left open", lists.left, strict=False)]
