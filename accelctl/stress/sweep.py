"""One fault after the other in every stage of a lifecycle, and after each the books: what did it leave behind?

balanced: nothing. stranded: something that nobody knows of, and that is gone when the device is closed. leaked: it is
still there when the device has been closed and opened again. Only exact counters decide, and the process's own
descriptors and mappings; a session is used again for as long as it is balanced.
"""

from __future__ import annotations

import errno
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from accelctl.abi.lifecycle import CPU_MAP, Block, Counter, Env, Memory, Session, Stage, Target
from accelctl.abi.testbench import descriptors
from accelctl.errors import AccelError, NoDeviceError, UsageError
from accelctl.hal import fdinfo
from accelctl.hal.devfile import Mapped, Syscalls
from accelctl.hal.failnth import FailNth
from accelctl.hal.root import open_root
from accelctl.model.stressreport import PointTotals
from accelctl.stress.door import Door, Fault
from accelctl.stress.engine import Engine
from accelctl.stress.failnth import FailNthCalls, available, knobs
from accelctl.stress.plan import Plan, Step
from accelctl.stress.worker import lifecycle_named

MOST_POINTS = 400
"""Fault points inside one call; the calls here have 2 to 60."""
MOST_DETAILS = 12
"""Reproducers for one row of the table."""
BEFORE, AFTER = errno.ENOMEM, errno.EFAULT
"""What the door answers: short of memory before a call, the answer could not be copied after it."""
_MOST_SETTLE_S = 10.0
_PLAN = Plan(hold=1, touch="none", partial=0)

Counts = Mapping[str, int | str]
T = TypeVar("T")
MakeEnv = Callable[[Callable[[Syscalls], Syscalls]], Env]
"""Makes the environment of a session; its argument puts the faults on top of the system calls used there."""
Show = Callable[[str], None]


class _Door(Door):
    """A door that also notes descriptors in lost answers of ioctls (an export, a KFD or VFIO file)."""

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        """ioctl(2)."""
        fired = len(self.fired)
        mine = descriptors() if any(fault.after for fault in self._faults.values()) else set()
        try:
            return super().ioctl(fd, number, argument)
        finally:
            if mine and len(self.fired) > fired:
                self.lost += sorted(descriptors() - mine)


class _Calls(FailNthCalls):
    """Calls that release are armed too: what frees may have to allocate. Neither tells us (mmap.close drops what
    munmap answers, a descriptor is gone whatever close says), but the books do."""

    def open(self, path: str, flags: int) -> int:
        """open(2)."""
        return self._around(lambda: self._inner.open(path, flags))

    def unmap(self, mapping: Mapped) -> None:
        """munmap(2)."""
        self._around(lambda: self._inner.unmap(mapping))

    def close(self, fd: int) -> None:
        """close(2)."""
        self._around(lambda: self._inner.close(fd))

    def _around(self, call: Callable[[], T]) -> T:
        try:
            return super()._around(call)
        except MemoryError as error:  # the interpreter's own memory was what could not be had
            raise OSError(errno.ENOMEM, "no memory for the interpreter") from error


F = TypeVar("F", _Door, _Calls)


def own_counts() -> dict[str, int]:
    """Descriptors and mappings of this process by kind, without those that the interpreter makes for itself."""
    root = open_root("/")
    found = Tally(f"{fdinfo.kind_of(link)} descriptors" for _, link in fdinfo.links(root))
    maps = fdinfo.parse_maps(str(root.read("proc/self/maps", str, limit=8 << 20).value))
    return {**found, **{f"{kind} mappings": n for kind, n in maps.items() if n and kind not in ("anon", "other")}}


@dataclass
class _Row:
    """A row of the table while it grows."""

    lifecycle: str
    stage: str
    kind: str
    outcomes: Tally[str] = field(default_factory=Tally)
    detail: list[str] = field(default_factory=list)

    def add(self, outcome: str, detail: str) -> None:
        self.outcomes[outcome] += 1
        if detail:
            self.detail.append(detail)

    def totals(self) -> PointTotals:
        count, shown = self.outcomes, self.detail[:MOST_DETAILS]
        more = len(self.detail) - len(shown)
        shown += [f"{self.stage}: and {more} more like these"] if more else []
        outcomes = (count["balanced"], count["stranded"], count["leaked"])
        return PointTotals(self.lifecycle, self.stage, self.kind, sum(outcomes), *outcomes, tuple(shown))


class _Bench(Generic[F]):
    """The device, opened as often as needed, with faults in between, and its books as they were at rest."""

    faults: F
    session: Session

    def __init__(
        self,
        memory: Memory,
        target: Target,
        name: str,
        make_env: MakeEnv,
        process_counts: Callable[[], Mapping[str, int]],
        make: Callable[[Syscalls], F],
        show: Show,
    ) -> None:
        self.name, self.target, self.show = name, target, show
        self._memory, self._make_env, self._process = memory, make_env, process_counts
        self._make: Callable[[Syscalls], F] = make
        self.retry = ""
        """The stage ("-name") whose release is being failed: it is tried once more without."""
        self.open()
        try:
            self._settle_in()
        except BaseException:
            self.close()
            raise

    def _settle_in(self) -> None:
        """First cycles fill caches; then the books must balance while nothing is failed."""
        why = self._engine().trial()
        if why:
            raise NoDeviceError(f"{self.target.id}: {self.name}: not supported: {why}")
        self.cycle()
        self.rest = self.books()
        failures = self.cycle()
        moved = self.moved()
        if failures or moved:
            what = moved or ", ".join(f"{stage} fails with {error}" for stage, error in failures)
            raise AccelError(
                f"{self.target.id}: {self.name}: no sweep, without any fault: {what}", kind="invalid_state"
            )
        names = ", ".join(name for name, value in self.rest.items() if isinstance(value, int))
        unread = [f"{name} ({value})" for name, value in self.rest.items() if isinstance(value, str)]
        self.show(f"books: {names}" + (f"; not read: {', '.join(unread)}" if unread else ""))

    def open(self) -> None:
        """A session of its own."""

        def wrap(inner: Syscalls) -> Syscalls:
            self.faults = self._make(inner)
            return self.faults

        self.session = self._memory.open(self.target, self._make_env(wrap))
        found = lifecycle_named(self.session, self.name)
        self.lifecycle = found._replace(stages=tuple(self._retried(stage) for stage in found.stages))
        self._counters = [counter for counter in self.session.counters() if counter.exact]

    def _retried(self, stage: Stage) -> Stage:
        release, name = stage.release, f"-{stage.name}"
        if release is None:
            return stage

        def twice(block: Block) -> None:
            try:
                release(block)
            except (OSError, AccelError):
                if self.retry == name:
                    try:
                        release(block)
                    except Exception:  # it may keep no state for a second try; the books say what came of it
                        pass
                raise

        return stage._replace(release=twice)

    def close(self) -> str:
        """Close; what that says when it fails."""
        self.faults.at("")
        try:
            self.session.close()
        except (OSError, AccelError) as error:
            return f"; close says {error}"
        return ""

    def _engine(self) -> Engine:
        stages = self.lifecycle.stages
        step = Step(0, self.lifecycle.sizes.granule, len(stages), False)
        return Engine(self.session, self.lifecycle, _PLAN, at=self.faults.at, steps=[step])

    def cycle(self) -> Mapping[tuple[str, str], int]:
        """One whole life; what failed in it."""
        engine = self._engine()
        engine.run(1)
        engine.drain()
        self.faults.at("")
        return engine.failures

    def books(self) -> Counts:
        """Every exact counter and the process's own counts; the reason for one that cannot be read."""
        found: dict[str, int | str] = {counter.name: _read(counter) for counter in self._counters}
        return found | dict(self._process())

    def moved(self) -> str:
        """What differs from the books at rest, in words, once the kernel had the time that it may take."""
        end = time.monotonic() + min(_MOST_SETTLE_S, max((c.settle_s for c in self._counters), default=0.0))
        while True:
            text = _difference(self.rest, self.books())
            if not text or time.monotonic() >= end:
                return text
            time.sleep(0.01)

    def judge(self, stage: Stage, fault: str, give_back: Callable[[], int]) -> tuple[str, str]:
        """(outcome, reproducer) of a fault that just struck. ``give_back`` releases what its lost answer gave out."""
        moved = self.moved()
        if not moved:
            return "balanced", ""
        where = f"{self.target.driver or self.target.chip} {self.name} {fault}: {moved}"
        said = self.close()
        lost = give_back()
        self.open()
        left = self.moved()
        if not left:
            until = "until close" if not lost else "until what the lost answer gave out was closed too"
            return "stranded", f"{where}, {until}{said}"
        self.rest = self.books()
        if stage.kind == CPU_MAP and all(word.endswith("mappings") for word in left.split(", ")):
            return "stranded", f"{where}, until the process ends (its munmap failed, which Python does not tell){said}"
        return "leaked", f"{where}; after close: {left}{said}"

    def places(self) -> Iterator[tuple[str, Stage, str]]:
        """(name, stage, calls in words) of every acquire and release."""
        for stage in self.lifecycle.stages:
            words = stage.calls.split(" / ")
            yield stage.name, stage, words[0]
            if stage.release is not None:
                yield f"-{stage.name}", stage, words[-1]

    def calls(self) -> dict[str, int]:
        """Stage -> system calls of an undisturbed cycle."""
        self.faults.disarm()
        self.faults.counts.clear()
        self.cycle()
        return dict(self.faults.counts)


def _read(counter: Counter) -> int | str:
    try:
        return counter.read()
    except (OSError, ValueError, AccelError) as error:
        return str(error) or type(error).__name__


def _difference(before: Counts, now: Counts) -> str:
    found = []
    for name in [*before, *(name for name in now if name not in before)]:
        old, new = before.get(name, 0), now.get(name, 0)
        if isinstance(old, int) and isinstance(new, int):
            found += [f"{new - old:+} {name}"] if new != old else []
        elif isinstance(old, int):
            found.append(f"{name} cannot be read any more ({new})")
    return ", ".join(found)


def sweep_door(
    memory: Memory,
    target: Target,
    lifecycle_name: str,
    make_env: MakeEnv,
    process_counts: Callable[[], Mapping[str, int]] = own_counts,
    progress: Show = lambda text: None,
) -> list[PointTotals]:
    """Each system call of each stage once not made (ENOMEM) and once with its answer lost (EFAULT).

    A row for each stage ("-name": its release) and kind of fault. Runs in this process: call it in a worker. Raises
    NoDeviceError (not supported), AccelError (the books do not even balance without faults).
    """
    bench = _Bench(memory, target, lifecycle_name, make_env, process_counts, _Door, progress)
    rows = []
    try:
        calls = bench.calls()
        for name, stage, words in bench.places():
            for kind, code, after in (("door-before", BEFORE, False), ("door-after", AFTER, True)):
                row = _Row(bench.name, name, kind)
                for nth in range(1, calls.get(name, 0) + 1):
                    fault = Fault(name, nth, code, after)
                    if _at_the_door(bench, fault):
                        row.add(*bench.judge(stage, f"{words}, {fault}", bench.faults.recover))
                    bench.faults.recover()
                if row.outcomes:
                    rows.append(row.totals())
                    progress(_said(rows[-1]))
    finally:
        bench.close()
        bench.faults.recover()
    return rows


def _at_the_door(bench: _Bench[_Door], fault: Fault) -> bool:
    """One cycle with this fault; whether it struck."""
    door = bench.faults
    door.arm(fault)
    bench.retry = fault.stage
    bench.cycle()
    struck = bool(door.fired)
    bench.retry = ""
    door.disarm()
    door.reset()
    return struck


def sweep_kernel(
    memory: Memory,
    target: Target,
    lifecycle_name: str,
    make_env: MakeEnv,
    process_counts: Callable[[], Mapping[str, int]] = own_counts,
    progress: Show = lambda text: None,
    fail: FailNth | None = None,
) -> list[PointTotals]:
    """Each possible failure inside each system call of each stage, through fail-nth of the calling thread.

    Rows and errors as :func:`sweep_door`'s, and NoDeviceError where the kernel has no fault injection, UsageError
    where its knobs leave faults out (the hint is what to type). ``fail``: a stand-in, for tests.
    """
    if fail is not None:
        return _sweep_kernel(memory, target, lifecycle_name, make_env, process_counts, progress, fail)
    require_kernel()
    with closing(FailNth()) as mine:
        return _sweep_kernel(memory, target, lifecycle_name, make_env, process_counts, progress, mine)


def require_kernel() -> None:
    """NoDeviceError, UsageError: as :func:`sweep_kernel`."""
    root = open_root("/")
    why = available(root)
    if why:
        raise NoDeviceError(f"no kernel sweep: {why}")
    wrong = knobs(root)
    if wrong:
        raise UsageError("no kernel sweep: the kernel's fault injection is not set up", wrong)


def _sweep_kernel(
    memory: Memory,
    target: Target,
    lifecycle_name: str,
    make_env: MakeEnv,
    process_counts: Callable[[], Mapping[str, int]],
    progress: Show,
    fail: FailNth,
) -> list[PointTotals]:
    bench = _Bench(
        memory, target, lifecycle_name, make_env, process_counts, lambda inner: _Calls(inner, fail), progress
    )
    rows = []
    try:
        calls = bench.calls()
        for name, stage, words in bench.places():
            row = _Row(bench.name, name, "kernel")
            for call in range(1, calls.get(name, 0) + 1):
                _walk(bench, row, stage, words, call)
            if row.outcomes:
                rows.append(row.totals())
                progress(_said(rows[-1]))
    finally:
        bench.close()
    return rows


def _walk(bench: _Bench[_Calls], row: _Row, stage: Stage, words: str, call: int) -> None:
    """One call's fault points, until the fault is not reached any more."""
    for n in range(1, MOST_POINTS + 1):
        faults = bench.faults
        faults.arm(row.stage, n, call)
        bench.retry = row.stage
        bench.cycle()
        struck, code = faults.struck, faults.errno
        bench.retry = ""
        faults.disarm()
        if not struck:
            return
        name = errno.errorcode.get(code, str(code)) if code else "no error"
        row.add(*bench.judge(stage, f"{words}, {row.stage} call {call}, fault point {n} ({name})", lambda: 0))
    row.detail.insert(0, f"{row.stage} call {call}: more than {MOST_POINTS} fault points; the sweep stopped there")


def _said(row: PointTotals) -> str:
    return (
        f"{row.lifecycle} {row.stage} {row.kind}: {row.points} points, {row.balanced} balanced, "
        f"{row.stranded} stranded, {row.leaked} leaked"
    )


def lines(rows: Sequence[PointTotals]) -> list[str]:
    """The table as plain text, for logs."""
    return [_said(row) for row in rows] + [f"  {detail}" for row in rows for detail in row.detail]
