"""Step "ops": does the device compute the right thing, op by op? (`accelctl smoke`)"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from accelctl.accept.bringup.step import FAIL, PASS, Came, Job, Order, finding, skipped, undecided
from accelctl.accept.plugins import store
from accelctl.model.bringupreport import Bar, Chart, Fact
from accelctl.model.finding import Finding
from accelctl.model.smokereport import NOTHING, UNDECIDED, CaseRow, SmokeReport
from accelctl.smoke import run

IDS = ("OPS-WRONG-RESULT", "OPS-FAILED")
MOST = 6
"""Cases named in one finding."""


def request(order: Order, device: str) -> run.Request:
    """Level 1: one element type, without the small transformer. Level 2 is what smoke does; level 3 adds long cases."""
    dtypes = ("fp32",) if order.level == 1 else ()
    return run.Request(device=(device,), dtypes=dtypes, seed=order.seed, long=order.level == 3, model=order.level > 1)


def work(job: Job) -> Came:
    """Every op against a float64 reference, through a service of our own."""

    def tick(name: str, number: int, count: int) -> None:
        job.say(f"{name} {number:,} of {count:,}" if count else name)

    name = job.device.ops_device
    extra = {1: " --dtype fp32 --no-model", 2: "", 3: " --long"}[job.order.level]
    report = run.carry_out(request(job.order, name), tick)
    came = judged(report, f"accelctl smoke --device {name}{extra} --seed {job.order.seed}")
    return _with_way_back(came, store.after_smoke(name, report.exit_code, whole=job.order.level > 1))


def _with_way_back(came: Came, line: str) -> Came:
    """A version of a plug-in that has just been promoted has a way back; the findings say it."""
    if not line:
        return came
    return came._replace(findings=tuple(one._replace(fix=(*one.fix, line)) for one in came.findings))


def judged(report: SmokeReport, said: str) -> Came:
    """A smoke report as a step's result."""
    facts, charts = tuple(_facts(report)), _charts(report)
    counts = report.counts
    if report.hang or report.gone:
        why = f"it hangs: {report.hang}" if report.hang else f"the service is gone: {report.gone}"
        broken = finding("OPS-FAILED", why, report.device, ((said, why),), (said,))
        return Came(FAIL, why, (broken,), facts, charts, said, report.hang)
    if counts[FAIL]:
        findings = tuple(_findings(report, said))
        return Came(FAIL, findings[0].title, findings, facts, charts, said)
    if report.verdict == NOTHING:
        return skipped("no case ran: the device supports none of them")
    if report.verdict == UNDECIDED:
        return undecided("; ".join(report.notes) or "some cases could not be decided")
    extra = f", {counts['skip']} not supported" if counts["skip"] else ""
    return Came(PASS, f"{counts[PASS]} cases right{extra}", (), facts, charts, said)


def _findings(report: SmokeReport, said: str) -> Iterator[Finding]:
    """One for each op that is wrong: a kernel that is wrong is wrong in many cases."""
    by_op: dict[str, list[CaseRow]] = {}
    for row in report.rows:
        if row.result == FAIL:
            by_op.setdefault(row.op, []).append(row)
    about_ops = {op: rows for op, rows in by_op.items() if op not in _FOLLOWING}
    decoded = [run for run in report.decode if run.result == FAIL]
    for op, rows in (about_ops or by_op).items():
        wrong = any(row.max_abs or "differ" in row.detail or row.first is not None for row in rows)
        kernels = ", ".join(dict.fromkeys(row.kernel for row in rows if row.kernel))
        title = f"{op}: {len(rows)} of {sum(row.op == op for row in report.rows)} cases wrong"
        title += f" (kernel {kernels})" if kernels else ""
        seen = tuple((f"case {row.id}", row.detail) for row in rows[:MOST])
        fix = (f"accelctl smoke --device {report.device} --op {op} --case '{rows[0].id}'",)
        yield finding("OPS-WRONG-RESULT" if wrong else "OPS-FAILED", title, report.device, seen, fix)
    if decoded and not by_op:
        seen = tuple((f"small transformer {run.dtype}", run.detail) for run in decoded)
        yield finding("OPS-WRONG-RESULT", "the small transformer computes other logits", report.device, seen, (said,))


_FOLLOWING = ("order", "dispatch", "evidence", "decode", "service")
"""Rows about a run as a whole, which fail with an op that is wrong."""


def _facts(report: SmokeReport) -> Iterator[Fact]:
    for op, row in report.by_op().items():
        for dtype, rows in row.items():
            right = sum(one.result == PASS for one in rows)
            worst = max((one.max_abs for one in rows if isfinite(one.max_abs)), default=0.0)
            name = f"{op}/{dtype}" if dtype else op
            ran = sum(one.result != "skip" for one in rows)
            yield Fact(
                f"{name}/right",
                right,
                "compared with a float64 reference",
                f"{right} of {ran} cases",
                "cases",
                report.device,
            )
            if worst:
                rule = next((one.tolerance for one in rows if one.max_abs == worst), "")
                yield Fact(f"{name}/max_abs", worst, "largest absolute difference", rule, "", report.device)
    for run_ in report.decode:
        words = f"worst logit {run_.worst:.3g}, allowed {run_.allowed:.3g}"
        rate = round(run_.tokens_per_second, 2)
        yield Fact(f"transformer/{run_.dtype}", rate, "measured by accelctl smoke", words, "tokens/s", report.device)


def _charts(report: SmokeReport) -> tuple[Chart, ...]:
    """How much of its tolerance the worst case of each op uses."""
    bars = []
    for op, row in report.by_op().items():
        rows = [one for found in row.values() for one in found if one.share]
        if rows:
            worst = max(rows, key=lambda one: one.share)
            bad = any(one.result == FAIL for one in rows)
            bars.append(Bar(op, worst.share, f"{worst.share:.2g} ({worst.dtype})", 1.0, bad))
    note = "difference from a float64 reference as a share of what is allowed, of the worst element of each op"
    title = "How much of its tolerance each op uses"
    return (Chart(title, tuple(bars), note, "all of it", logarithmic=True),) if bars else ()
