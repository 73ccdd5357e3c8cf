"""The suite of the Queue contract, and what every ring has to keep, whoever's work it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import Env, Session, Target
from accelctl.abi.queue import CLOSED, FULL, IDLE, QueueClosed, QueueFull, Ring
from accelctl.abi.testbench import Bench, Check, Suite, Wrong
from accelctl.errors import UsageError

PATIENCE_S = 5.0
"""A ring that does nothing in this time hangs."""
DEPTH = 4


class Opens(Protocol):
    """A contract that gives rings."""

    def open(self, session: Session, depth: int) -> Ring:
        """A ring."""


class RingSuite(Suite):
    """Checks with rings that are closed before the books are compared."""

    def __init__(self, chip: Chip, target: Target, env: Env, opens: Opens) -> None:
        super().__init__(chip, target, env)
        self.opens = opens
        self._rings: list[Ring] = []

    def ring(self, bench: Bench, *, closed: bool = True) -> Ring:
        """A ring of the bench's session; closed when the check is over, unless that is what is checked."""
        ring = self.opens.open(bench.session, DEPTH)
        if closed:
            self._rings.append(ring)
        if ring.depth < 1 or ring.state != IDLE:
            raise Wrong(f"a new ring of depth {ring.depth} is {ring.state}")
        return ring

    def run(self, name: str, body: Callable[[Bench], None], *, strict: bool = True) -> Check:
        """As Suite.run."""

        def whole(bench: Bench) -> None:
            try:
                body(bench)
            finally:
                rings, self._rings = self._rings, []
                for ring in rings:
                    ring.close()

        return super().run(name, whole, strict=strict)


RING_CHECKS: dict[str, Callable[[RingSuite, Bench, bytes], None]] = {
    "points": lambda suite, bench, work: _points(suite.ring(bench), work),
    "unknown point": lambda suite, bench, work: _unknown_point(suite.ring(bench), work),
    "full": lambda suite, bench, work: _full(suite.ring(bench), work),
    "two at once": lambda suite, bench, work: _two_rings(suite.ring(bench), suite.ring(bench), work),
    "closed": lambda suite, bench, work: _closed_ring(suite.ring(bench), work),
    "depth": lambda suite, bench, work: _depths(suite, bench),
}
"""What every ring keeps, with some work that is always right. All that is submitted is waited for."""


def check_queue(chip: Chip, target: Target, env: Env) -> list[Check]:
    """Every check of the Queue contract on one device; as :func:`check_memory`."""
    queue = chip.queue
    assert queue is not None
    suite = RingSuite(chip, target, env, queue)

    def nop() -> bytes:
        work: object = queue.nop()
        if not isinstance(work, bytes):
            raise Wrong(f"nop() returned a {type(work).__name__}, not bytes")
        return work

    checks = [
        suite.run(f"ring: {name}", lambda bench, check=check: check(suite, bench, nop()))  # type: ignore[misc]
        for name, check in RING_CHECKS.items()
    ]
    left = suite.run(
        "ring: left open", lambda bench: _left(suite.ring(bench, closed=False), bench, nop()), strict=False
    )
    return [*checks, left]


def passes(ring: Ring, point: int) -> None:
    """Wait for a point. Wrong where it does not pass."""
    if ring.wait(point, PATIENCE_S) is not True:
        raise Wrong(f"point {point} is not passed after {PATIENCE_S:g} s; the last one passed is {ring.passed()}")
    if ring.passed() < point:
        raise Wrong(f"wait() says that point {point} is passed, passed() says {ring.passed()}")


def _points(ring: Ring, nop: bytes) -> None:
    """Points rise by one from 1, pass in order, and a point that is passed stays so."""
    before = ring.passed()
    for expected in range(1, 3 * ring.depth + 1):
        point = ring.submit(nop)
        if point != expected:
            raise Wrong(f"work {expected} has point {point}: points rise by one from 1")
        if not before <= ring.passed() <= point:
            raise Wrong(f"passed() went from {before} to {ring.passed()}, point {point} is the last one submitted")
        passes(ring, point)
        before = ring.passed()
    if not ring.wait(1, 0.0) or not ring.wait(0, 0.0):
        raise Wrong("a point that was passed is not any more")
    if ring.state != IDLE:
        raise Wrong(f"every point is passed, and the ring is {ring.state}")


def _unknown_point(ring: Ring, nop: bytes) -> None:
    for point in (ring.submit(nop) + 1, -1):
        try:
            ring.wait(point, 0.0)
        except ValueError:
            continue
        raise Wrong(f"wait() takes point {point}, which nobody has")
    passes(ring, 1)


def _full(ring: Ring, nop: bytes) -> None:
    """More than fits, without waiting: taken or refused at once, and nothing of it is lost."""
    last = refused = 0
    for _ in range(4 * ring.depth):
        try:
            last = ring.submit(nop)
        except QueueFull:
            refused += 1
            oldest = last - ring.depth + 1
            passes(ring, oldest)
    passes(ring, last)
    if last != 4 * ring.depth - refused:
        raise Wrong(f"{4 * ring.depth} works, {refused} refused, and the last point is {last}")
    if ring.state == FULL:
        raise Wrong("every point is passed, and the ring is full")


def _two_rings(one: Ring, two: Ring, nop: bytes) -> None:
    passes(one, one.submit(nop))
    if two.passed() != 0:
        raise Wrong(f"work on one ring passes point {two.passed()} of another")
    passes(two, two.submit(nop))


def _closed_ring(ring: Ring, nop: bytes) -> None:
    passes(ring, ring.submit(nop))
    ring.close()
    ring.close()
    if ring.state != CLOSED:
        raise Wrong(f"after close() the ring is {ring.state}")
    try:
        ring.submit(nop)
    except QueueClosed:
        pass
    else:
        raise Wrong("submit() still works after close()")
    if not ring.wait(1, 0.0):
        raise Wrong("a point that was passed before close() is not any more")


def _depths(suite: RingSuite, bench: Bench) -> None:
    for depth in (0, -1):
        try:
            suite.opens.open(bench.session, depth).close()
        except UsageError:
            continue
        raise Wrong(f"a ring of depth {depth} is opened")


def _left(ring: Ring, bench: Bench, nop: bytes) -> None:
    """The session ends its rings, with work in flight."""
    ring.submit(nop)
    bench.session.close()
    if ring.state != CLOSED:
        raise Wrong(f"its session is closed, and the ring is {ring.state}")
