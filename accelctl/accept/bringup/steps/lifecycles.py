"""Step "lifecycles": allocate, map and free against the kernel's driver, and compare two books (`accelctl stress`)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from accelctl.accept.bringup.step import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    SKIP,
    Came,
    Job,
    finding,
    left_alone,
    skipped,
    undecided,
)
from accelctl.accept.bringup.subjects import candidate
from accelctl.hal.root import open_root
from accelctl.model.bringupreport import Bar, Chart, Fact
from accelctl.model.finding import Finding
from accelctl.model.stressreport import Outcome, StressReport
from accelctl.model.verdict import LEAK
from accelctl.stress import run
from accelctl.stress.conductor import Tick
from accelctl.stress.plan import DEFAULT_BYTES, Plan
from accelctl.stress.request import SHARE
from accelctl.stress.room import free_bytes
from accelctl.stress.targets import Candidate

IDS = ("LIFECYCLE-LEAK", "LIFECYCLE-FAILED")
RUNNING = 0.25
"""Share of its box that the step runs for at levels 2 and 3."""
CYCLES = 2000
"""Of each lifecycle at level 1: a leak of one in a hundred shows twenty times."""


def work(job: Job) -> Came:
    """Every lifecycle of the device. A leak is told by the kernel's book, never by ours alone."""
    one = candidate(job.device, job.order)
    if one.refusal:
        return undecided(left_alone(one.refusal, one.lift))

    def show(name: str, tick: Tick) -> None:
        job.say(f"{name} {tick.phase} {tick.cycles:,}" + (f" of {tick.wanted:,}" if tick.wanted else ""))

    report = run.run(one, plan(job, one), run.Options(sim=dict(job.order.sim)), show)
    return judged(report, command(job))


def command(job: Job) -> str:
    """The same alone."""
    amount = f"--cycles {CYCLES}" if job.order.level == 1 else f"--duration {job.box_s * RUNNING:.0f}s"
    options = ";".join(f"{key}={value}" for key, value in job.order.sim.items())
    simulated = f" --sim {shlex.quote(options)}" if options else ""
    return f"accelctl stress --device {job.device.memory_device}{simulated} {amount} --seed {job.order.seed}"


def plan(job: Job, one: Candidate) -> Plan:
    """Level 1 counts cycles, which a fast machine does in a moment; the others have a share of their box: the last
    block and the verdict take their own time, on a busy machine as long again."""
    limit = DEFAULT_BYTES
    if not one.target.simulated:
        limit = max(1 << 20, min(DEFAULT_BYTES, int(SHARE * free_bytes(open_root("/"), one.device))))
    return Plan(
        seed=job.order.seed,
        cycles=CYCLES if job.order.level == 1 else 0,
        seconds=job.box_s * RUNNING,
        bytes_limit=limit,
        sizes="small" if job.order.level == 1 else "mixed",
    )


def judged(report: StressReport, said: str) -> Came:
    """A stress report as a step's result. One that somebody ended may have found something; nothing else is decided."""
    came = _whole(report, said)
    if not report.interrupted:
        return came
    if came.result != FAIL:
        came = came._replace(result=INCONCLUSIVE, reason=f"ended by a signal before it was done; {came.reason}")
    return came._replace(cut=True)


def _whole(report: StressReport, said: str) -> Came:
    ran = [one for one in report.outcomes if one.result != SKIP]
    if not ran:
        return skipped("; ".join(f"{one.lifecycle}: {one.reason}" for one in report.outcomes) or "no lifecycle")
    findings = tuple(_findings(report.device, [one for one in ran if one.result == FAIL], said))
    worst = max(ran, key=lambda one: (PASS, INCONCLUSIVE, FAIL).index(one.result))
    cycles = sum(one.cycles for one in ran)
    reason = f"{len(ran)} lifecycles, {cycles:,} cycles, all given back"
    if worst.result != PASS:
        reason = f"{worst.lifecycle}: {worst.reason}"
    hang = next((f"{one.lifecycle}: {one.hang}" for one in ran if one.hang), "")
    facts = tuple(fact for one in report.outcomes for fact in _facts(report, one))
    return Came(worst.result, reason, findings, facts, _charts(ran), said, hang)


def _findings(device: str, failed: list[Outcome], said: str) -> Iterator[Finding]:
    """Leaks as one, other failures as one: lifecycles share stages, and what one stage does wrong shows in each."""
    for identity, outcomes in (
        ("LIFECYCLE-LEAK", [one for one in failed if _leaked(one)]),
        ("LIFECYCLE-FAILED", [one for one in failed if not _leaked(one)]),
    ):
        if outcomes:
            yield _finding(identity, device, outcomes, said)


def _leaked(one: Outcome) -> bool:
    leaks = one.verdict is not None and any(j.verdict == LEAK for j in one.verdict.judgements)
    return leaks or any(one.census.values()) or bool(one.outstanding)


def _finding(identity: str, device: str, outcomes: list[Outcome], said: str) -> Finding:
    first = outcomes[0]
    title = f"lifecycle {first.lifecycle}: {first.reason}"
    if len(outcomes) > 1:
        title += f" (so too {', '.join(one.lifecycle for one in outcomes[1:])})"
    seen = tuple(each for one in outcomes for each in _seen(one))
    start = said.partition(" --cycles")[0].partition(" --duration")[0]
    fix = (
        f"{start} --lifecycle {first.lifecycle}",
        "accelctl capture   (then give archive and report to the driver's developers)",
    )
    return finding(identity, title, device, seen, fix)


def _seen(one: Outcome) -> list[tuple[str, str]]:
    """The counters that grew, each at its place; where none did, what the run says."""
    sources = {series.name: series.source for series in one.series}
    leaks = [j for j in one.verdict.judgements if j.verdict == LEAK] if one.verdict is not None else []
    found = [(sources.get(j.counter, j.counter), f"{one.lifecycle}: {j.counter}: {j.why}") for j in leaks]
    return found or [(f"accelctl stress, lifecycle {one.lifecycle}", one.reason)]


def _facts(report: StressReport, one: Outcome) -> Iterator[Fact]:
    if one.result == SKIP:
        yield Fact(f"{one.lifecycle}/result", one.result, report.node, one.reason, owner=report.device)
        return
    where = f"{report.node}, driver {report.driver}"
    yield Fact(f"{one.lifecycle}/result", one.result, where, one.reason, owner=report.device)
    yield Fact(
        f"{one.lifecycle}/cycles", one.cycles, "counted by accelctl", f"in {one.seconds:.2f} s", owner=report.device
    )
    for stage in one.stages:
        balance = f"acquired {stage.acquired}, released {stage.released}"
        yield Fact(
            f"{one.lifecycle}/held/{stage.name}", stage.held, "ledger of accelctl", balance, "blocks", report.device
        )
    whys = {j.counter: f"{j.verdict}: {j.why}" for j in one.verdict.judgements} if one.verdict is not None else {}
    for series in one.series:
        last = series.samples[-1].value if len(series.samples) else None
        yield Fact(
            f"{one.lifecycle}/{series.name}", last, series.source, whys.get(series.name, ""), series.unit, report.device
        )
    for name, why in one.verdict.unreadable if one.verdict is not None else ():
        yield Fact(f"{one.lifecycle}/{name}", None, name, why, owner=report.device)


def _charts(ran: list[Outcome]) -> tuple[Chart, ...]:
    bars = tuple(
        Bar(
            one.lifecycle,
            1e6 * one.seconds / one.cycles,
            f"{1e6 * one.seconds / one.cycles:,.0f} µs",
            bad=one.result == FAIL,
        )
        for one in ran
        if one.cycles
    )
    return (
        (Chart("One lifecycle, from alloc to free", bars, "time of the whole run divided by its cycles"),)
        if bars
        else ()
    )
