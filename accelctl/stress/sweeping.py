"""`accelctl stress --sweep` and `--sweep-kernel`: the sweeps of every lifecycle, each in a watched child."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from accelctl.abi.lifecycle import Env
from accelctl.errors import AccelError, NoDeviceError, UsageError
from accelctl.hal.child import SlotLike, Watch
from accelctl.hal.devfile import Mapped, Syscalls
from accelctl.hal.reader import Failed, Finished, Message, Stuck, WatchedChild
from accelctl.model.stressreport import FAIL, SKIP, Outcome, PointTotals, StressReport
from accelctl.stress import ending, limits
from accelctl.stress.plan import Plan
from accelctl.stress.run import Dish, Options, environment, kept, memory_of, started
from accelctl.stress.sweep import sweep_door, sweep_kernel
from accelctl.stress.targets import Candidate

T = TypeVar("T")
_WAIT_S = 3600.0
"""For one lifecycle in an emulated machine; a single call that hangs is named after the deadline."""


class _Named(Syscalls):
    """System calls that stand in the shared slot while they are made, so that one that hangs has a name."""

    def __init__(self, inner: Syscalls, slot: SlotLike) -> None:
        self._inner, self._slot = inner, slot
        self.stat, self.fstat, self.memfd = inner.stat, inner.fstat, inner.memfd  # type: ignore[method-assign]

    def open(self, path: str, flags: int) -> int:
        """open(2)."""
        return self._in(f"open {path}", lambda: self._inner.open(path, flags))

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        """ioctl(2)."""
        return self._in(f"ioctl {number:#x}", lambda: self._inner.ioctl(fd, number, argument))

    def map(self, fd: int, size: int, offset: int) -> Mapped:
        """mmap(2)."""
        return self._in("mmap", lambda: self._inner.map(fd, size, offset))

    def unmap(self, mapping: Mapped) -> None:
        """munmap(2)."""
        self._in("munmap", lambda: self._inner.unmap(mapping))

    def close(self, fd: int) -> None:
        """close(2)."""
        self._in("close", lambda: self._inner.close(fd))

    def _in(self, name: str, call: Callable[[], T]) -> T:
        self._slot.enter(name)
        try:
            return call()
        finally:
            self._slot.leave()


def sweep_run(
    candidate: Candidate,
    plan: Plan,
    options: Options,
    *,
    door: bool,
    kernel: bool,
    say: Callable[[str], None],
    dishes: Sequence[Dish] | None = None,
) -> StressReport:
    """One table over all lifecycles that the device supports."""
    report, supported = started(candidate, plan, options, dishes)
    for dish in supported:
        for wanted, sweep in ((door, "door"), (kernel, "kernel")):
            if wanted:
                _sweep_one(report, candidate, dish, options, sweep, say)
    return report


def _sweep_one(
    report: StressReport, candidate: Candidate, dish: Dish, options: Options, kind: str, say: Callable[[str], None]
) -> None:
    """Rows into the report; a hang or a crash as an outcome."""
    memory, target = memory_of(candidate), candidate.target

    def work(watch: Watch) -> list[PointTotals]:
        ending.left_to_parent()
        limits.worker(options.limits)

        def make_env(wrap: Callable[[Syscalls], Syscalls]) -> Env:
            return environment(options, lambda calls: wrap(_Named(calls, watch.slot)))(memory, target)

        sweep = sweep_door if kind == "door" else sweep_kernel
        return sweep(memory, target, dish.name, make_env, progress=watch.send)

    with WatchedChild(work, deadline_s=options.deadline_s, keep=kept(options)) as child:
        child.start()
        while True:
            event = child.poll(_WAIT_S)
            if isinstance(event, Message):
                say(str(event.value))
                continue
            break
    if isinstance(event, Finished):
        report.sweep += event.value
    elif isinstance(event, Failed) and isinstance(event.error, NoDeviceError):
        report.outcomes.append(Outcome(dish.name, SKIP, event.error.message))
    elif isinstance(event, Failed) and isinstance(event.error, AccelError) and not isinstance(event.error, UsageError):
        report.outcomes.append(Outcome(dish.name, FAIL, event.error.message))
    elif isinstance(event, Failed):
        raise event.error
    elif isinstance(event, Stuck):
        place = f" in {event.wchan}" if event.wchan else ""
        who = event.path or "the worker"
        words = f"{kind} sweep: {who} did not return within {event.age_s:.1f} s ({event.state}{place})"
        report.outcomes.append(Outcome(dish.name, FAIL, words, hang=event.path if event.age_s else ""))
    else:
        report.outcomes.append(Outcome(dish.name, FAIL, f"{kind} sweep: no end within {_WAIT_S:g} s", hang=kind))
