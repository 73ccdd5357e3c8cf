"""Step "semantics": does the device mean by streams, events, copies and memory what everybody means by them?"""

from __future__ import annotations

from accelctl.accept.bringup.step import FAIL, PASS, Came, Job, finding, skipped
from accelctl.model.bringupreport import Bar, Chart, Fact
from accelctl.model.semanticsreport import SemanticsReport
from accelctl.smoke import semantics

IDS = ("SEMANTICS-DIFFERS",)
MOST = 8
"""Assertions named in the finding; all stand among the facts."""


def work(job: Job) -> Came:
    """Level 1: the intents that say most in the least time. Else all of them."""

    def tick(name: str, number: int, count: int) -> None:
        job.say(f"{name} {number:,} of {count:,}" if count else name)

    device = job.device.ops_device
    quick = job.order.level == 1
    report = semantics.run(device, tick, intents=semantics.QUICK if quick else ())
    return judged(report, f"accelctl smoke --semantics --device {device}")


def judged(report: SemanticsReport, command: str) -> Came:
    """A semantics report as a step's result."""
    facts = tuple(
        Fact(row.id, row.result, f"assertion: {row.what}", row.detail, owner=report.device) for row in report.rows
    )
    facts += tuple(
        Fact(f"capability/{flag}", word, "said by the device's runtime", "", owner=report.device)
        for flag, word in report.capabilities.items()
    )
    counts, wrong = report.counts, [row for row in report.rows if row.result == FAIL]
    if wrong:
        title = f"{len(wrong)} of {len(report.rows)} assertions do not hold: {wrong[0].what}"
        seen = tuple((row.id, f"{row.what}: {row.detail}") for row in wrong[:MOST])
        found = finding("SEMANTICS-DIFFERS", title, report.device, seen, (command,))
        return Came(FAIL, title, (found,), facts, _charts(report), command, report.hang)
    if not counts[PASS]:
        return skipped("no assertion applies to this device")
    absent = f", {counts['skip']} about what the device declares absent" if counts["skip"] else ""
    return Came(PASS, f"{counts[PASS]} assertions hold{absent}", (), facts, _charts(report), command)


def _charts(report: SemanticsReport) -> tuple[Chart, ...]:
    took: dict[str, float] = {}
    bad = {row.intent for row in report.rows if row.result == FAIL}
    for row in report.rows:
        took[row.intent] = took.get(row.intent, 0.0) + row.seconds
    bars = tuple(Bar(name, spent, f"{spent:.2f} s", bad=name in bad) for name, spent in took.items() if spent)
    return (
        (Chart("Time of each intent", bars, "its assertions together, some in processes of their own"),) if bars else ()
    )
