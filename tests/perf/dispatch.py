"""What choosing a kernel adds to a translation that is not in the cache: at most 2 us an op.

`python -m tests.perf.dispatch` prints the figures. Decisions are kept with translations, so one that is in the cache
costs nothing; tests/unit/test_dispatch.py counts that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import thread_time_ns as now

from accelctl.abi import compute
from accelctl.abi.call import Call
from accelctl.abi.capability import LADDER, Capability
from accelctl.abi.opset import OPS
from accelctl.abi.platforms import platform_of, templates_of
from accelctl.abi.tensors import FP32, tensor
from accelctl.model.smokereport import Evidence
from accelctl.umd.dispatch import Dispatch, Rule, dispatch_of, refused_by
from tests.perf.bench import Result

ROUNDS, CALLS = 40, 500
LIMIT_US = 2.0


def _dispatch() -> Dispatch:
    found = compute.named("sim:0")
    kernel = templates_of(found)["matvec"]
    rungs = tuple(Evidence(rung, "2026-03-01", {}) for rung in LADDER)
    assert kernel.conditions is not None
    record = Capability(
        kernel="matvec",
        op="matmul",
        platform=platform_of(found, kernel),
        preconditions=kernel.conditions,
        evidence=rungs,
    )
    return dispatch_of(found, [record])


def _matmul(columns: int) -> Call:
    shapes = (64, 256), (256, columns), (64, columns)
    a, b, y = (tensor(shape, FP32) for shape in shapes)
    return Call(OPS["matmul"], (a, b), (y,), {"tf32": False})


def _microseconds(body: Callable[[], object]) -> float:
    """Of one call: the fastest of some rounds, as other programs only make it slower."""
    fastest = float("inf")
    for _ in range(ROUNDS):
        start = now()
        for _ in range(CALLS):
            body()
        fastest = min(fastest, (now() - start) / CALLS / 1000)
    return fastest


def results() -> Iterable[Result]:
    """An op without special kernels, a call that one does not take, and one that it takes: of that, what is more than
    asking the general kernel, which is not asked then. What a kernel itself checks is left out of both."""
    (rule,) = _dispatch().rules
    dispatch, x = Dispatch([Rule(rule.template._replace(refuses=None), rule.said)]), tensor((64, 256), FP32)
    general = templates_of(compute.named("sim:0"))[rule.template.fallback]._replace(refuses=None)
    calls = {"no special kernel": Call(OPS["relu"], (x,), (x,), {}), "fallback": _matmul(16), "hit": _matmul(1)}
    for what, call in calls.items():

        def judge(call: Call = call) -> None:
            verdicts = dispatch.judge(call)
            if verdicts:
                dispatch.count(verdicts)

        detail = f"fastest of {ROUNDS} rounds of {CALLS} calls"
        value = _microseconds(judge)
        if what == "hit":
            value -= _microseconds(lambda call=call: refused_by(general, call))  # type: ignore[misc]
        yield Result(f"dispatch, {what}", value, "us", LIMIT_US, detail)


def report() -> list[Result]:
    """All of it."""
    return list(results())


if __name__ == "__main__":
    for result in report():
        print(result)
