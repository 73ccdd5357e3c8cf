"""SIGKILL of a worker that holds everything: does the kernel take it all back, and how soon?

The process's own books die with it, so only those of the device and the system can tell; where none of them saw what
the worker held, that is said instead of a verdict.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from accelctl.abi.lifecycle import Counter
from accelctl.errors import AccelError
from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP, Outcome, StressReport
from accelctl.stress.books import books_for
from accelctl.stress.books.book import one_pass
from accelctl.stress.crew import Crew, Hang, Killed
from accelctl.stress.plan import Plan
from accelctl.stress.run import Dish, Options, spec_for, started
from accelctl.stress.targets import Candidate

DEADLINE_S = 5.0
"""For deferred work of the kernel: TTM's delayed destruction, a queue's teardown, RCU."""


def kill_run(candidate: Candidate, plan: Plan, options: Options, dishes: Sequence[Dish] | None = None) -> StressReport:
    """One outcome per lifecycle."""
    report, supported = started(candidate, plan, options, dishes)
    alone = replace(plan, workers=1)
    report.outcomes += [_kill_one(candidate, dish, alone, options) for dish in supported]
    return report


def _kill_one(candidate: Candidate, dish: Dish, plan: Plan, options: Options) -> Outcome:
    outcome, begin = Outcome(dish.name), time.perf_counter()
    counters, missing = books_for(candidate.target, scopes=("device", "system"))
    exact = [counter for counter in counters if counter.exact]
    before = _read(exact)
    names = tuple(stage.name for stage in dish.stages)
    crew = Crew(spec_for(candidate, dish, plan, options), names, deadline_s=options.deadline_s)
    try:
        why = crew.ask("trial")[0]
        if why:
            outcome.result, outcome.reason = SKIP, f"not supported: {why}"
            return outcome
        held = crew.ask("fill")[0]
        during = _read(exact)
        crew.workers[0].kill()
        took, after = _until_back(exact, before)
        again = Crew(spec_for(candidate, dish, plan, options), names, deadline_s=options.deadline_s)
        try:
            again.ask("trial")
            refilled = again.ask("fill")[0]
            again.ask("finish")
        finally:
            again.close()
    except (Hang, Killed) as error:
        outcome.result, outcome.reason = FAIL, error.message
        outcome.hang = error.call if isinstance(error, Hang) else ""
        return outcome
    finally:
        crew.close()
        outcome.seconds = time.perf_counter() - begin
    seen = [name for name, value in during.items() if value > before.get(name, value)]
    left = {name: value - before[name] for name, value in after.items() if value > before.get(name, value)}
    outcome.notes = (f"held {held:,} bytes when it was killed; the next process could take {refilled:,}",)
    if missing:
        outcome.notes += ("not read: " + ", ".join(f"{name} ({why})" for name, why in missing[:4]),)
    if left:
        stayed = ", ".join(f"{name} +{count}" for name, count in left.items())
        outcome.result, outcome.reason = FAIL, f"{DEADLINE_S:g} s after the kill still there: {stayed}"
    elif refilled < held:
        outcome.result, outcome.reason = FAIL, f"the next process could take only {refilled:,} of {held:,} bytes"
    elif not seen:
        outcome.result, outcome.reason = INCONCLUSIVE, "no readable book of the device or system saw what was held"
    else:
        outcome.result, outcome.reason = PASS, f"back after {took:.2f} s: {', '.join(seen)}"
    return outcome


def _until_back(counters: Sequence[Counter], before: dict[str, int]) -> tuple[float, dict[str, int]]:
    begin = time.monotonic()
    while True:
        now = _read(counters)
        took = time.monotonic() - begin
        if all(value <= before.get(name, value) for name, value in now.items()) or took > DEADLINE_S:
            return took, now
        time.sleep(0.02)


def _read(counters: Sequence[Counter]) -> dict[str, int]:
    values = {}
    with one_pass():
        for counter in counters:
            try:
                values[counter.name] = counter.read()
            except (OSError, ValueError, AccelError):
                continue  # it was readable a moment ago; what it shows at another time decides
    return values
