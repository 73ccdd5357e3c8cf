"""Step "disruptive": every call fails once, and a worker is killed with everything in its hands (level 3)."""

from __future__ import annotations

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
from accelctl.accept.bringup.steps import lifecycles
from accelctl.accept.bringup.subjects import candidate
from accelctl.model.bringupreport import Fact
from accelctl.model.stressreport import StressReport
from accelctl.stress import run
from accelctl.stress.kill import kill_run
from accelctl.stress.sweeping import sweep_run


def work(job: Job) -> Came:
    """The sweep over fault points; and SIGKILL, of a device that does not live in the worker."""
    subject = job.device
    one = candidate(subject, job.order)
    if one.refusal:
        return undecided(left_alone(one.refusal, one.lift))
    plan, options = lifecycles.plan(job, one), run.Options(sim=dict(job.order.sim))
    dishes = run.chosen(one, options)
    report = sweep_run(one, plan, options, door=True, kernel=False, say=job.say, dishes=dishes)
    if not one.target.simulated:
        job.say("SIGKILL of a worker")
        killed = kill_run(one, plan, options, dishes)
        report.outcomes += killed.outcomes
    command = f"accelctl stress --device {subject.memory_device} --sweep --disruptive --seed {job.order.seed}"
    return judged(report, command)


def judged(report: StressReport, command: str) -> Came:
    """What a sweep and a kill left behind."""
    points, leaked = sum(row.points for row in report.sweep), [row for row in report.sweep if row.leaked]
    facts = tuple(
        Fact(
            f"{row.lifecycle}/{row.stage}/{row.kind}",
            row.leaked,
            "fault points of accelctl stress --sweep",
            f"{row.points} points, {row.balanced} balanced, {row.stranded} stranded, {row.leaked} leaked",
            "leaked",
            report.device,
        )
        for row in report.sweep
    )
    bad = [one for one in report.outcomes if one.result == FAIL]
    hang = next((one.hang for one in bad if one.hang), "")
    if not leaked and not bad:
        unsure = [one for one in report.outcomes if one.result == INCONCLUSIVE]
        if not points and all(one.result == SKIP for one in report.outcomes):
            return skipped("no lifecycle is supported here")
        if unsure:
            return Came(INCONCLUSIVE, f"{unsure[0].lifecycle}: {unsure[0].reason}", (), facts, (), command)
        return Came(PASS, f"{points} fault points, none leaked", (), facts, (), command)
    seen = tuple((f"sweep {row.lifecycle}", text) for row in leaked for text in row.detail[:3])
    seen += tuple((one.lifecycle, one.reason) for one in bad)
    title = f"{sum(row.leaked for row in leaked)} of {points} fault points leaked" if leaked else bad[0].reason
    found = finding("LIFECYCLE-LEAK" if leaked else "LIFECYCLE-FAILED", title, report.device, seen, (command,))
    return Came(FAIL, title, (found,), facts, (), command, hang)
