"""What a run does when: warm-up, blocks of cycling and idling, readings between them, the end.

Exact books are read with everything released, at the edges of blocks. Noisy ones are read within blocks too, in both
kinds: what grows while nothing is done is not ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from accelctl.abi.lifecycle import Counter
from accelctl.errors import AccelError
from accelctl.model.verdict import CYCLE, IDLE, WARMUP, Samples, Series
from accelctl.stress.books.book import one_pass
from accelctl.stress.contrast import BlockPlan, block_plan
from accelctl.stress.ending import INTERRUPTED
from accelctl.stress.pace import KEPT, Pace, cut, fitting, longest_of, share_of
from accelctl.stress.plan import Plan
from accelctl.stress.worker import CounterInfo, Progress

CHUNK_S = 0.5
"""Longest that workers are left alone: then progress is shown, and Ctrl-C is obeyed."""
WARM = 64
"""Cycles before the first reading: caches, pools and lazily made tables are there afterwards."""
WARM_SHARE = 0.05
"""Of a time that was ordered, for measuring how fast cycles are: the first ones are not like the later ones."""
TRIES, REST_S = 8, 0.005
"""Readings and rests that are made to see what they cost, and how long such a rest is."""
READS = 40
"""Readings per block: enough for counters of a real machine, cheap enough for an emulated one."""


class Tick(NamedTuple):
    """Progress, for who watches."""

    cycles: int
    wanted: int
    phase: str


class Stopped(Exception):
    """The run ends early: why."""


class Crew(Protocol):
    """All workers of a run, and one command to all of them."""

    size: int

    def ask(self, command: str, argument: object = None) -> list[object]:
        """Their answers."""

    def infos(self) -> list[CounterInfo]:
        """The counters that each of them can read."""


class Conductor:
    """Runs one lifecycle on a crew and collects what the counters showed."""

    def __init__(
        self,
        crew: Crew,
        plan: Plan,
        outside: Sequence[Counter] = (),
        show: Callable[[Tick], None] = lambda tick: None,
        interrupted: Callable[[], bool] = lambda: False,
        reads: int = READS,
    ) -> None:
        self._reads = reads
        self._crew, self.plan, self._outside = crew, plan, outside
        self._show, self._interrupted = show, interrupted
        self._infos = {info.name: info for info in crew.infos()}
        for counter in outside:
            self._infos[counter.name] = CounterInfo.of(counter)
        self._samples = {name: Samples() for name in self._infos}
        self.unreadable: dict[str, str] = {}
        self.cycles = 0
        self.stop = ""
        self.diverged = 0
        self.wanted = 0
        self._clock = 0.0
        """Seconds of cycling and idling; a simulated device's idle seconds count though nobody waits for them."""
        self._busy = 0.0
        self._wall = 0.0
        """What cycling took of the time on the wall."""
        self._begin = time.perf_counter()
        self._pace = Pace(0.0)
        self.timed = plan.timed

    def go(self) -> None:
        """The whole run, up to the last reading. ``stop`` says why it ended early, where it did."""
        try:
            self._warm_up()
            self._read(WARMUP)
            self._work(self._blocks())
        except Stopped as error:
            self.stop = str(error)
        self._settle()

    def series(self) -> tuple[Series, ...]:
        """What every readable counter showed."""
        return tuple(
            Series(*info[:3], info.exact, info.source, self._samples[name], info.kind, info.capacity or None)
            for name, info in self._infos.items()
            if len(self._samples[name])
        )

    @property
    def out_of_time(self) -> bool:
        """The time ended before the cycles did, where both were ordered."""
        return self.timed and 0 < self.cycles < self.plan.cycles

    def _warm_up(self) -> None:
        """A fixed number of cycles, and where a time was ordered, enough more to know their pace."""
        self._turn(WARM)
        most = self.plan.most // 4
        while self.timed and self._wall < self.plan.seconds * WARM_SHARE and self.cycles < most:
            self._turn(min(self.cycles, most - self.cycles))

    def _work(self, blocks: Sequence[BlockPlan]) -> None:
        """The blocks in order; those still to come get shorter where a time was ordered and the first took longer."""
        longest, share = longest_of(blocks), 1.0
        costs = [self._pace.of(block, longest) for block in blocks]
        begin = time.perf_counter()
        for number, block in enumerate(blocks):
            if self.timed and number:
                now = time.perf_counter()
                left = self.plan.seconds * (1 - KEPT / 2) - (now - self._begin)
                least = min(1.0, 4 * WARM / self.wanted)
                share = max(least, share_of(now - begin, costs[:number], costs[number:], left))
                costs[number] *= share
            self._block(cut(block, share), max(1, int(longest * share)))
            if number + 1 < len(blocks):
                self._read(block.block)

    def _measured(self, noisy: bool) -> Pace:
        """What a cycle and a reading cost. What is read for that counts nowhere."""
        cycle = max(1e-9, self._wall / max(1, self.cycles))
        if not noisy:
            return Pace(cycle)
        begin = time.perf_counter()
        for _ in range(TRIES):
            for progress, _values in self._pairs(self._crew.ask("turn", 1)):
                self._count(progress)
            self._read_outside({}, exact=False)
        turned = time.perf_counter()
        for _ in range(TRIES):
            self._crew.ask("rest", REST_S)
            self._read_outside({}, exact=False)
        rested = (time.perf_counter() - turned) / TRIES
        idle = float(rested >= REST_S)
        look = max(0.0, (turned - begin) / TRIES - cycle * self._crew.size)
        return Pace(cycle, look, max(0.0, rested - REST_S * idle), idle)

    def _blocks(self) -> Sequence[BlockPlan]:
        """Cycling and idling in turn where a counter is noisy; else N cycles, and then 2N."""
        noisy = any(not info.exact for info in self._infos.values())
        self.wanted = self.plan.cycles
        if self.timed:
            self._pace = self._measured(noisy)
            left = self.plan.seconds * (1 - KEPT) - (time.perf_counter() - self._begin)
            cycles, reads = fitting(self._pace, left, self._reads, noisy)
            self._reads = reads if noisy else self._reads
            self.wanted = max(1, min(max(4 * WARM, cycles), self.plan.most))
        if noisy and self.wanted >= 80:
            return block_plan(self.wanted)
        third = max(1, self.wanted // 3)
        return [BlockPlan(CYCLE, third, 0), BlockPlan(CYCLE, max(1, self.wanted - third), 0)]

    def _block(self, block: BlockPlan, longest: int) -> None:
        """``longest``: cycles of a cycling block; an idle one lasts as long."""
        reads = min(block.reads, self._reads)
        if block.block == IDLE:
            seconds = self._busy / max(1, self.cycles) * longest / max(1, reads)
            for _ in range(reads):
                self._note(IDLE, self._crew.ask("rest", seconds))
                self._look_up("idle")
            return
        done = 0
        steps = max(1, reads)
        for number in range(1, steps + 1):
            self._turn(block.cycles * number // steps - done, block.block if reads else "")
            done = block.cycles * number // steps

    def _turn(self, cycles: int, block: str = "") -> None:
        """So many cycles by all workers together, in chunks; with ``block`` the noisy counters are noted after it."""
        each = -(-cycles // self._crew.size)
        chunk = each
        while each > 0:
            step = min(each, max(1, chunk))
            each -= step
            begin = time.perf_counter()
            answers = self._crew.ask("turn" if block and not each else "run", step)
            took = time.perf_counter() - begin
            self._wall += took
            if took > CHUNK_S:
                chunk = int(step * CHUNK_S / took)
            if block and not each:
                self._busy += self._note(block, answers)
            else:
                longest = max(answer.seconds for answer in answers if isinstance(answer, Progress))
                self._busy += longest
                self._clock += longest
                for progress in answers:
                    self._count(progress)
            self._look_up("cycling")

    def _note(self, block: str, answers: list[object]) -> float:
        """Progress and noisy values of every worker, and the noisy counters that are read here. How long it took."""
        sums: dict[str, int] = {}
        longest = 0.0
        for progress, values in self._pairs(answers):
            longest = max(longest, progress.seconds)
            self._count(progress)
            for name, value in values.items():
                self._take(sums, name, value)
        self._clock += longest
        self._read_outside(sums, exact=False)
        self._add(sums, block)
        return longest

    @staticmethod
    def _pairs(answers: list[object]) -> Iterator[tuple[Progress, dict[str, int | str]]]:
        """Progress and values, as "turn" and "rest" answer."""
        for answer in answers:
            assert isinstance(answer, tuple)
            yield answer

    def _count(self, progress: object) -> None:
        assert isinstance(progress, Progress)
        self.cycles += progress.cycles
        if progress.stop:
            self.diverged = self.diverged or progress.diverged
            raise Stopped(progress.stop)

    def _look_up(self, phase: str) -> None:
        self._show(Tick(self.cycles, self.wanted, phase))
        if self._interrupted():
            raise Stopped(INTERRUPTED)

    def _read(self, block: str) -> None:
        """Everything released, then every counter."""
        self._add(self._look(), block)

    def _look(self) -> dict[str, int]:
        self._crew.ask("drain")
        sums: dict[str, int] = {}
        for values in self._crew.ask("read"):
            assert isinstance(values, dict)
            for name, value in values.items():
                self._take(sums, name, value)
        self._read_outside(sums, exact=True)
        return sums

    def _settle(self) -> None:
        """The last reading, once nothing is missing that the kernel gives back late."""
        late = {n: i.settle_s for n, i in self._infos.items() if i.settle_s and i.exact and len(self._samples[n])}
        start = {name: self._samples[name][0].value for name in late}
        end = time.monotonic() + max(late.values(), default=0.0)
        while True:
            now = self._look()
            if time.monotonic() > end or all(now.get(name, 0) <= value for name, value in start.items()):
                break
            time.sleep(0.05)
        self._add(now, CYCLE)

    def _read_outside(self, sums: dict[str, int], *, exact: bool) -> None:
        with one_pass():
            for counter in self._outside:
                if exact or not counter.exact:
                    try:
                        self._take(sums, counter.name, counter.read())
                    except (OSError, ValueError, AccelError) as error:
                        self._take(sums, counter.name, str(error) or type(error).__name__)

    def _take(self, sums: dict[str, int], name: str, value: int | str) -> None:
        if isinstance(value, str):
            self.unreadable[name] = value
        else:
            sums[name] = sums.get(name, 0) + value

    def _add(self, sums: dict[str, int], block: str) -> None:
        for name, value in sums.items():
            self._samples[name].add(self.cycles, self._clock, value, block)
