"""`accelctl stress` from the choice of the device to the report; the command line only parses and prints."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import ModuleType
from typing import NamedTuple

from accelctl.abi import registry
from accelctl.abi.lifecycle import Block, Counter, Env, Memory, Sizes, Stage, Target
from accelctl.errors import AccelError, NoDeviceError, UsageError
from accelctl.hal.child import Watch
from accelctl.hal.devfile import SYSCALLS, Syscalls
from accelctl.hal.reader import run_watched
from accelctl.hal.trace import Trace, TracedSyscalls, calls_of
from accelctl.model.stressreport import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    SKIP,
    Failure,
    Outcome,
    Replay,
    StageCounts,
    StressReport,
)
from accelctl.model.verdict import INCONCLUSIVE as UNSURE
from accelctl.model.verdict import LEAK, Series
from accelctl.stress import limits as limiting
from accelctl.stress import shrink
from accelctl.stress import verdict as judging
from accelctl.stress.books import books_for
from accelctl.stress.conductor import READS, Conductor, Tick
from accelctl.stress.crew import Crew, Hang, Killed
from accelctl.stress.door import Door, Fault
from accelctl.stress.ending import INTERRUPTED, NAMES, Told, interruptible
from accelctl.stress.plan import Plan, Step
from accelctl.stress.spaces import Spaces
from accelctl.stress.targets import Candidate
from accelctl.stress.worker import Final, Spec

OUTSIDE: dict[str, tuple[str, ...]] = {"none": (), "near": ("device",), "all": ("device", "system")}
"""--books -> scopes of counters that the parent reads."""
SIMULATED_READS = 1 << 20
"""As many as the block plan wants: a simulated counter costs next to nothing."""
Show = Callable[[str, Tick], None]


@dataclass(frozen=True)
class Options:
    """What the command line says beside the plan."""

    lifecycles: tuple[str, ...] = ()
    ledger: bool = True
    books: str = "near"
    """none: the chip's own counters; near: also those of the process and the device; all: also the system's."""
    va: str = "recycle"
    va_limit: int = 0
    faults: tuple[Fault, ...] = ()
    limits: tuple[limiting.Limit, ...] = ()
    sim: dict[str, str] = field(default_factory=dict)
    trace: Trace | None = None
    forked: bool = True
    deadline_s: float = 10.0
    command: str = ""
    replay: str = ""
    """Steps to do instead of the plan's (stress.shrink)."""


class Dish(NamedTuple):
    """A lifecycle that a session offers. ``stages`` are without their functions: those live in the worker."""

    name: str
    stages: tuple[Stage, ...]
    unsupported: str
    sizes: tuple[int, int] = (4096, 0)


def menu(candidate: Candidate, options: Options) -> tuple[Dish, ...]:
    """What the device offers: it is opened once in a child, and closed. AccelError where that fails or hangs."""
    memory = memory_of(candidate)

    def look(watch: Watch) -> list[tuple[str, list[tuple[str, str, str, bool]], str, tuple[int, int]]]:
        watch.slot.enter(f"opening {candidate.target.node}")
        session = memory.open(candidate.target, environment(options)(memory, candidate.target))
        try:
            return [
                (
                    one.name,
                    [(s.name, s.kind, s.calls, s.early) for s in one.stages],
                    one.unsupported,
                    (one.sizes.granule, one.sizes.largest),
                )
                for one in session.lifecycles
            ]
        finally:
            session.close()

    found = run_watched(look, deadline_s=options.deadline_s, max_restarts=0).value
    return tuple(
        Dish(
            name, tuple(Stage(n, k, _nothing, None, calls, early) for n, k, calls, early in stages), unsupported, sizes
        )
        for name, stages, unsupported, sizes in found
    )


def _nothing(block: Block) -> int:
    raise AssertionError("a stage of the menu is not for acquiring")


def memory_of(candidate: Candidate) -> Memory:
    """The chip's code. Raises NoDeviceError when it has no memory of its own."""
    memory = registry.load(candidate.target.chip).memory
    if memory is None:
        raise NoDeviceError(f"{candidate.target.chip} offers no memory")
    return memory


def environment(
    options: Options, wrap: Callable[[Syscalls], Syscalls] | None = None
) -> Callable[[Memory, Target], Env]:
    """What makes a session's environment, in the worker: a simulated device, the trace, the door; ``wrap`` on top."""

    def make(memory: Memory, target: Target) -> Env:
        spaces = Spaces(options.va, options.va_limit)
        calls: Syscalls = SYSCALLS
        own = getattr(memory, "syscalls", None)
        if own is not None:
            calls = own(target, Env(calls, spaces, options.sim))
        if options.trace is not None:
            calls = TracedSyscalls(calls, options.trace, calls_of(_tables(memory)))
        if options.faults:
            calls = Door(calls, options.faults)
        if wrap is not None:
            calls = wrap(calls)
        return Env(calls, spaces, options.sim)

    return make


def _tables(memory: Memory) -> Iterator[ModuleType]:
    """The uapi modules that a chip's package uses: ioctl numbers are only unique within a driver."""
    package = type(memory).__module__.rpartition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.startswith((package, "accelctl.abi.gem", "accelctl.abi.dumb")):
            for value in vars(module).values():
                if isinstance(value, ModuleType) and ".uapi" in value.__name__:
                    yield value


def run(
    candidate: Candidate,
    plan: Plan,
    options: Options,
    show: Show = lambda name, tick: None,
    dishes: Sequence[Dish] | None = None,
) -> StressReport:
    """Every lifecycle of the device in turn, each with its share of the time. Raises AccelError (Hang included)."""
    report, supported = started(candidate, plan, options, dishes)
    end = time.perf_counter() + plan.seconds
    with interruptible() as told:
        for number, dish in enumerate(supported):
            if told():
                report.outcomes.append(Outcome(dish.name, SKIP, "not run: interrupted before it"))
                continue
            # What one took too long or left over is the others' too: the time is for all together.
            share = max(0.0, end - time.perf_counter()) / (len(supported) - number)
            report.outcomes.append(_One(candidate, dish, replace(plan, seconds=share), options).run(show, told))
        report.interrupted, report.ended = told(), told.status
    return report


def chosen(candidate: Candidate, options: Options) -> tuple[Dish, ...]:
    """What the device offers of what was asked for. Raises UsageError where that is nothing."""
    dishes = tuple(d for d in menu(candidate, options) if not options.lifecycles or d.name in options.lifecycles)
    if not dishes:
        raise UsageError(f"{candidate.device.id} has none of the lifecycles named", "accelctl stress --list")
    return dishes


def started(
    candidate: Candidate, plan: Plan, options: Options, dishes: Sequence[Dish] | None = None
) -> tuple[StressReport, list[Dish]]:
    """A report that says what is being run and what is not supported, and the lifecycles that are. ``dishes``: the
    menu, where it is known already: looking opens the device."""
    target, manifest = candidate.target, candidate.manifest
    report = StressReport(
        device=candidate.target.id,
        chip=target.chip,
        driver=target.driver,
        node=target.node,
        tier=manifest.tier,
        proven=manifest.proven,
        simulated=target.simulated,
        seed=plan.seed,
        command=options.command,
    )
    dishes = chosen(candidate, options) if dishes is None else dishes
    report.outcomes += [Outcome(d.name, SKIP, f"not supported: {d.unsupported}") for d in dishes if d.unsupported]
    return report, [dish for dish in dishes if not dish.unsupported]


class _One:
    """One lifecycle, from its first cycle to its verdict."""

    def __init__(self, candidate: Candidate, dish: Dish, plan: Plan, options: Options) -> None:
        self._candidate, self._dish, self._plan, self._options = candidate, dish, plan, options
        self._simulated = candidate.target.simulated
        self._outcome = Outcome(dish.name)

    def run(self, show: Show, told: Told) -> Outcome:
        """See :func:`run`. A hang and a crash are results; what cannot be opened raises."""
        begin = time.perf_counter()
        outcome, options = self._outcome, self._options
        names = tuple(stage.name for stage in self._dish.stages)
        steps = shrink.parsed(options.replay, len(names), self._plan.hold) if options.replay else None
        spec = spec_for(self._candidate, self._dish, self._plan, options, steps)
        crew = Crew(spec, names, forked=options.forked, deadline_s=options.deadline_s)
        try:
            why = crew.ask("trial")[0]
            if why:
                outcome.result, outcome.reason = SKIP, f"not supported: {why}"
                return outcome
            if options.replay:
                self._replay(crew)
            else:
                self._conduct(crew, show, told)
        except Hang as error:
            outcome.result, outcome.reason, outcome.hang = FAIL, error.message, error.call
        except Killed as error:
            outcome.result, outcome.reason = FAIL, error.message
            if error.by in NAMES:
                told.by_proxy(error.by)
                outcome.result, outcome.reason = INCONCLUSIVE, f"{INTERRUPTED}: {error.message}"
        finally:
            crew.close()
        outcome.seconds = time.perf_counter() - begin
        return outcome

    def _conduct(self, crew: Crew, show: Show, told: Told) -> None:
        outcome, options = self._outcome, self._options
        outside: tuple[Counter, ...] = ()
        unreadable: list[tuple[str, str]] = []
        scopes = OUTSIDE[options.books]
        if scopes and not self._simulated:
            outside, missing = books_for(self._candidate.target, crew.pid, scopes=scopes)
            unreadable += [(name, why) for name, why in missing]
        reads = SIMULATED_READS if self._simulated else READS

        def seen(tick: Tick) -> None:
            outcome.cycles = tick.cycles
            show(outcome.lifecycle, tick)

        conductor = Conductor(crew, self._plan, outside, seen, told, reads)
        conductor.go()
        finals: list[Final] = crew.ask("finish")
        outcome.cycles = conductor.cycles
        outcome.series = tuple(map(_with_limit, conductor.series()))
        self._settle_up(finals)
        judgements = [judging.judge(one, self._dish.stages) for one in outcome.series]
        unreadable += conductor.unreadable.items()
        outcome.verdict = judging.conclude(judgements, tuple(unreadable), simulated=self._simulated)
        self._decide(conductor)
        if conductor.out_of_time and not conductor.stop:
            outcome.notes += (f"the time ended before the {self._plan.cycles:,} cycles of --cycles",)
        if conductor.diverged:
            outcome.replay = self._shortest(conductor.diverged)

    def _replay(self, crew: Crew) -> None:
        """Only the steps that were given: did memory change again?"""
        progress = crew.ask("run", shrink.REPLAYS * len(self._options.replay))[0]
        crew.ask("drain")
        progress = crew.ask("run", 0)[0] if not progress.stop else progress
        self._settle_up(crew.ask("finish"))
        self._outcome.cycles = self._options.replay.count(",") + 1
        if progress.stop:
            self._outcome.result, self._outcome.reason = FAIL, f"memory changed behind our back: {progress.stop}"
        else:
            self._outcome.reason = "the steps were replayed and nothing changed"

    def _shortest(self, cycle: int) -> Replay | None:
        """The shortest sequence that shows a divergence; None where several threads make that impossible to tell."""
        plan, dish = self._plan, self._dish
        seed = f"the divergence comes back with --seed {plan.seed}"
        if plan.workers * plan.threads > 1:
            self._outcome.notes += (f"{seed}; with several threads there is no shortest sequence",)
            return None
        candidate, options = self._candidate, self._options
        names = tuple(stage.name for stage in dish.stages)

        def wrong(steps: tuple[Step, ...]) -> bool:
            spec = spec_for(candidate, dish, plan, replace(options, books="none"), steps)
            crew = Crew(spec, names, deadline_s=options.deadline_s)
            try:
                crew.ask("run", len(steps))
                crew.ask("drain")
                return bool(crew.ask("run", 0)[0].diverged)
            except AccelError:
                return False
            finally:
                crew.close()

        steps = tuple(islice(plan.steps(self._sizes(), len(names)), cycle))
        if not wrong(steps):
            self._outcome.notes += (f"{seed}, but not in a fresh process: time or another client takes part in it",)
            return None
        kept = shrink.shortest(steps, wrong)
        text = f"accelctl stress --device {candidate.device.id} --lifecycle {dish.name} --hold {plan.hold}"
        return Replay(
            f"{text} --seed {plan.seed} --touch {plan.touch} --replay {shrink.written(kept)}", shrink.words(kept, names)
        )

    def _sizes(self) -> Sizes:
        return Sizes(*self._dish.sizes)

    def _settle_up(self, finals: Sequence[Final]) -> None:
        """What the workers' own books say at the end."""
        outcome = self._outcome
        stages: dict[str, list[int]] = {}
        failures: dict[tuple[str, str], int] = {}
        for final in finals:
            for name, counts in final.stages.items():
                stages[name] = [a + b for a, b in zip(stages.get(name, [0] * 4), counts, strict=True)]
            for key, times in final.failures.items():
                failures[key] = failures.get(key, 0) + times
            for name, left in final.census.items():
                outcome.census[name] = outcome.census.get(name, 0) + left
            outcome.outstanding += final.outstanding
            outcome.mistakes += final.mistakes
        outcome.stages = tuple(StageCounts(name, *counts) for name, counts in stages.items())
        outcome.failures = tuple(Failure(stage, error, times) for (stage, error), times in failures.items())

    def _decide(self, conductor: Conductor) -> None:
        """The worst thing that was seen names the result."""
        outcome = self._outcome
        assert outcome.verdict is not None
        left = {name: count for name, count in outcome.census.items() if count}
        leaks = [j for j in outcome.verdict.judgements if j.verdict == LEAK]
        unsure = [j for j in outcome.verdict.judgements if j.verdict == outcome.verdict.overall == UNSURE]
        if conductor.diverged:
            outcome.result, outcome.reason = FAIL, f"memory changed behind our back: {conductor.stop}"
        elif leaks:
            outcome.result, outcome.reason = FAIL, f"{leaks[0].counter}: {leaks[0].why}"
        elif left:
            shown = ", ".join(f"{name} {count}" for name, count in left.items())
            outcome.result, outcome.reason = FAIL, f"alive at the end although all was released: {shown}"
        elif outcome.outstanding or outcome.mistakes:
            outcome.result, outcome.reason = FAIL, (*outcome.outstanding, *outcome.mistakes)[0]
        elif conductor.stop and conductor.stop != INTERRUPTED:
            outcome.result, outcome.reason = FAIL, conductor.stop
        elif any(failure.stage.startswith("-") for failure in outcome.failures) and not self._options.faults:
            outcome.result, outcome.reason = FAIL, f"the driver refused to release: {_first(outcome.failures, '-')}"
        elif outcome.failures and not self._options.faults and not self._options.limits:
            outcome.result, outcome.reason = INCONCLUSIVE, f"refused: {_first(outcome.failures)}"
        elif unsure or not outcome.verdict.books:
            outcome.result = INCONCLUSIVE
            outcome.reason = unsure[0].why if unsure else "no book of the kernel could be read"
        else:
            outcome.result = PASS
            exact = [s.name for s in outcome.series if s.exact and s.name in outcome.verdict.books]
            outcome.reason = f"balanced in {counted_names(exact or outcome.verdict.books)}"
        if conductor.stop == INTERRUPTED and outcome.result != FAIL:
            outcome.result, outcome.reason = INCONCLUSIVE, f"{INTERRUPTED}; until then {outcome.reason}"


def spec_for(
    candidate: Candidate, dish: Dish, plan: Plan, options: Options, steps: tuple[Step, ...] | None = None
) -> Spec:
    """What a worker needs to know."""
    return Spec(
        memory_of(candidate),
        candidate.target,
        dish.name,
        plan,
        environment(options),
        options.ledger,
        _prepare(options) if options.forked else None,
        _INSIDE[options.books] if not candidate.target.simulated else None,
        steps,
        kept(options),
    )


def kept(options: Options) -> tuple[int, ...]:
    """What children inherit of us."""
    return (options.trace.fileno(),) if options.trace is not None else ()


def _inside(target: Target) -> tuple[Counter, ...]:
    """The books of the process that works."""
    return books_for(target, scopes=("process",))[0]


def _inside_exact(target: Target) -> tuple[Counter, ...]:
    """Those of them that are exact: a noisy one (RSS) would double the run with idle blocks."""
    return tuple(counter for counter in _inside(target) if counter.exact)


_INSIDE: dict[str, Callable[[Target], tuple[Counter, ...]] | None] = {
    "none": None,
    "near": _inside_exact,
    "all": _inside,
}


def _prepare(options: Options) -> Callable[[], None]:
    """A worker's first act: it is the one to be killed when memory runs out, and has the limits that were ordered."""
    return lambda: limiting.worker(options.limits)


def _first(failures: Sequence[Failure], start: str = "") -> str:
    """The most frequent failure of that kind."""
    worst = max((f for f in failures if f.stage.startswith(start)), key=lambda failure: failure.times)
    return f"{worst.stage.lstrip('-')} {worst.times:,} times with {worst.error}"


def _with_limit(series: Series) -> Series:
    """Descriptors run out at RLIMIT_NOFILE, long before the device is full."""
    if series.unit != "descriptors" or series.capacity:
        return series
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return series if soft == resource.RLIM_INFINITY else series._replace(capacity=float(soft))


def counted_names(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more books" if more > 1 else "" if more < 1 else f", {names[3]}")
