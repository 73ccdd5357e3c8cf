"""One worker: an open session, a thread or more of engines, and the books that only this process can read.

The conductor (run.py) tells it what to do next, one command at a time; :class:`LocalWorker` obeys in this process,
:mod:`accelctl.stress.crew` puts one into a watched child of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from accelctl.abi.lifecycle import Counter, Lifecycle, Memory, Session, Target
from accelctl.abi.lifecycle import Env as Environment
from accelctl.errors import AccelError, NoDeviceError
from accelctl.memory.ledger import Ledger
from accelctl.stress.books.book import one_pass
from accelctl.stress.engine import Divergence, Engine, UsedUp
from accelctl.stress.plan import Plan, Step

Beats = Callable[[int], Callable[[int], None]]
"""Thread number -> where its calls are written for the parent to see."""


@dataclass(frozen=True)
class Spec:
    """What a worker works on. ``environment`` is made in the worker, because a simulated device lives there."""

    memory: Memory
    target: Target
    lifecycle: str
    plan: Plan
    environment: Callable[[Memory, Target], Environment]
    ledger: bool = True
    prepare: Callable[[], None] | None = None
    """Run first in the worker (limits, the OOM killer's preference)."""
    counters: Callable[[Target], Iterable[Counter]] | None = None
    """Books of the process itself."""
    steps: tuple[Step, ...] | None = None
    keep: tuple[int, ...] = ()
    """Descriptors that a worker's process inherits (a trace)."""


class Progress(NamedTuple):
    """What a run of cycles came to. ``stop`` says why there will be no more: empty, or the reason."""

    cycles: int
    seconds: float
    stop: str = ""
    diverged: int = 0
    """The cycle at which memory was found changed; 0: none."""


class CounterInfo(NamedTuple):
    """A counter without its function, as it crosses processes."""

    name: str
    unit: str
    scope: str
    source: str
    exact: bool
    settle_s: float
    capacity: int = 0
    kind: str = ""

    @classmethod
    def of(cls, counter: Counter) -> CounterInfo:
        """What a counter says of itself."""
        return cls(*counter[:4], counter.exact, counter.settle_s, counter.capacity, counter.kind)


class Final(NamedTuple):
    """A worker's last words."""

    cycles: int
    failures: dict[tuple[str, str], int]
    outstanding: tuple[str, ...]
    """The ledger's holdings as text."""
    mistakes: tuple[str, ...]
    mistake_count: int
    stages: dict[str, tuple[int, int, int, int]]
    """Stage -> held, acquired, released, peak."""
    census: dict[str, int]
    """What the kernel still had of ours, counted by giving it back."""


def lifecycle_named(session: Session, name: str) -> Lifecycle:
    """Raises NoDeviceError when the session has none of that name, or the driver does not offer it."""
    for lifecycle in session.lifecycles:
        if lifecycle.name == name:
            if lifecycle.unsupported:
                raise NoDeviceError(f"{session.target.id}: {name}: not supported: {lifecycle.unsupported}")
            return lifecycle
    known = ", ".join(lifecycle.name for lifecycle in session.lifecycles)
    raise NoDeviceError(f"{session.target.id} has no lifecycle {name}; it has: {known}")


class LocalWorker:
    """Does the work in this process."""

    def __init__(self, spec: Spec, lane: int = 0, beats: Beats | None = None) -> None:
        if spec.prepare is not None:
            spec.prepare()
        environment = spec.environment(spec.memory, spec.target)
        self.session = spec.memory.open(spec.target, environment)
        try:
            lifecycle = lifecycle_named(self.session, spec.lifecycle)
        except AccelError:
            self.session.close()
            raise
        self._clock: Callable[[], float] = getattr(self.session, "clock", time.perf_counter)
        """A simulated device has a time of its own."""
        self._wrong: tuple[str, int] = ("", 0)
        self._ledgers = [Ledger() for _ in range(spec.plan.threads)] if spec.ledger else []
        own = spec.counters(spec.target) if spec.counters else ()
        self._counters = [*self.session.counters(), *getattr(environment.space, "counters", tuple)(), *own]
        self._engines = [
            Engine(
                self.session,
                lifecycle,
                spec.plan,
                lane=lane * spec.plan.threads + index,
                ledger=self._ledgers[index] if spec.ledger else None,
                beat=beats(index) if beats is not None else None,
                at=getattr(environment.syscalls, "at", None),
                steps=spec.steps,
            )
            for index in range(spec.plan.threads)
        ]

    def infos(self) -> list[CounterInfo]:
        """The counters that this worker can be asked for."""
        return [CounterInfo.of(counter) for counter in self._counters]

    def trial(self) -> str:
        """One whole cycle; why this lifecycle is not supported here, or ""."""
        return self._engines[0].trial()

    def run(self, cycles: int) -> Progress:
        """So many cycles, shared among the threads."""
        begin = self._clock()
        before = self._done()
        outcomes: list[tuple[str, int] | BaseException] = []
        if len(self._engines) == 1:
            _turn(self._engines[0], cycles, outcomes)
        else:
            share = -(-cycles // len(self._engines))
            threads = [threading.Thread(target=_turn, args=(e, share, outcomes)) for e in self._engines]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            self._wrong = self._wrong if self._wrong[0] else outcome
        stop, diverged = self._wrong
        return Progress(self._done() - before, self._clock() - begin, stop, diverged)

    def drain(self) -> None:
        """Release all that is held."""
        for engine in self._engines:
            try:
                engine.drain()
            except Divergence as error:
                self._wrong = self._wrong if self._wrong[0] else (str(error), error.cycle)

    def fill(self) -> int:
        """Take as much as the plan holds; bytes held."""
        for engine in self._engines:
            engine.fill()
        return sum(engine.held_bytes for engine in self._engines)

    def turn(self, cycles: int) -> tuple[Progress, dict[str, int | str]]:
        """Cycles, everything released, and what the noisy counters say then: one command, because it is given often."""
        begin = self._clock()
        progress = self.run(cycles)
        self.drain()
        return progress._replace(seconds=self._clock() - begin), self.read(exact=False)

    def rest(self, seconds: float) -> tuple[Progress, dict[str, int | str]]:
        """The same without cycles."""
        begin = self._clock()
        self.idle(seconds)
        return Progress(0, self._clock() - begin), self.read(exact=False)

    def read(self, *, exact: bool = True) -> dict[str, int | str]:
        """Every counter's value, or the reason why it could not be read. Without ``exact``: only the noisy ones."""
        found: dict[str, int | str] = {}
        with one_pass():
            for counter in self._counters:
                if counter.exact and not exact:
                    continue
                try:
                    found[counter.name] = counter.read()
                except (OSError, ValueError, AccelError) as error:
                    found[counter.name] = str(error) or type(error).__name__
        return found

    def idle(self, seconds: float) -> None:
        """Do nothing for so long; a simulated device has a clock of its own."""
        own = getattr(self.session, "idle", None)
        if own is not None:
            own(seconds)
        else:
            time.sleep(seconds)

    def finish(self) -> Final:
        """Release everything, count what is left, close."""
        self.drain()
        balances = [ledger.balance() for ledger in self._ledgers]
        stages: dict[str, tuple[int, int, int, int]] = {}
        for ledger in self._ledgers:
            for name, counts in ledger.stages().items():
                old = stages.get(name, (0, 0, 0, 0))
                stages[name] = (old[0] + counts[0], old[1] + counts[1], old[2] + counts[2], old[3] + counts[3])
        failures: dict[tuple[str, str], int] = {}
        for engine in self._engines:
            for key, count in engine.failures.items():
                failures[key] = failures.get(key, 0) + count
        try:
            census = self.session.census()
        finally:
            self.session.close()
        return Final(
            self._done(),
            failures,
            tuple(holding.why for balance in balances for holding in balance.outstanding),
            tuple(mistake.text for balance in balances for mistake in balance.mistakes),
            sum(balance.mistake_count for balance in balances),
            stages,
            census,
        )

    def obey(self, command: str, argument: Any) -> Any:
        """One command by name, as it comes over a pipe."""
        method = getattr(self, command)
        return method() if argument is None else method(argument)

    def _done(self) -> int:
        return sum(engine.cycles for engine in self._engines)


def _turn(engine: Engine, cycles: int, outcomes: list[tuple[str, int] | BaseException]) -> None:
    try:
        engine.run(cycles)
    except Divergence as error:
        outcomes.append((str(error), error.cycle))
    except UsedUp as error:
        outcomes.append((str(error), 0))
    except BaseException as error:  # a thread's exception would only be printed
        outcomes.append(error)
