"""`accelctl smoke --semantics`: the semantics suite on a device, in processes.

One worker runs assertion after assertion; those that leave a device or a process unusable have one each. Where a worker
dies or does not come back, the assertion that it was at fails, and another worker goes on with the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from accelctl.abi import compute
from accelctl.abi.compute import Found
from accelctl.abi.lifecycle import Env, Target
from accelctl.abi.runtime import Runtime
from accelctl.abi.semantics import ASSERTIONS, Assertion, Place, carry_out
from accelctl.abi.semantics.devices import round_trip
from accelctl.errors import AccelError, UsageError
from accelctl.hal.worker import Gone, Wire, Worker
from accelctl.memory.va import space
from accelctl.model.semanticsreport import SemanticsReport, SemanticsRow
from accelctl.model.stressreport import FAIL

DEADLINE_S, START_S = 180.0, 120.0
"""Of one assertion; of a worker's start, which imports a framework and may build kernels."""
LEAVE_S = 120.0
RANKS, RANKS_OF_PROCESSES = 4, 3
"""Of collectives; of those of a chip that has a process for each."""
_MODULE = "accelctl.smoke.semantics"
_LEAVE = "leave"
QUICK = (
    "malloc",
    "malloc_zero",
    "free_null",
    "double_free",
    "memcpy_sync",
    "default_stream",
    "last_error",
    "init_fini",
)
"""Intents that say most in the shortest time."""
Tick = Callable[[str, int, int], None]


def run(
    device: str,
    tick: Tick = lambda name, number, count: None,
    intents: Collection[str] = (),
    deadline_s: float = DEADLINE_S,
) -> SemanticsReport:
    """Every assertion (of these intents) on ``chip:which``. NoDeviceError where the device is not here, UsageError for
    an intent that there is not."""
    chosen = select(intents)
    name = compute.chip_of(device)
    rows: dict[str, SemanticsRow] = {}
    facts: dict[str, Any] = {}
    runner = _Runner(device, facts, deadline_s)
    for number, row in enumerate(runner.everything(chosen, lambda name: tick(name, len(rows), len(chosen)))):
        rows[row.id] = row
        tick(row.id, number + 1, len(chosen))
    return SemanticsReport(
        device=device,
        chip=name,
        simulated=facts.get("simulated", False),
        proven=facts.get("proven", ""),
        capabilities=facts.get("capabilities", {}),
        rows=tuple(rows[one.id] for one in chosen if one.id in rows),
        hang=runner.hang,
    )


def select(intents: Collection[str] = ()) -> list[Assertion]:
    """Assertions of these intents; none named: all. UsageError."""
    known = {one.intent for one in ASSERTIONS.values()}
    for intent in intents:
        if intent not in known:
            raise UsageError(f"no intent {intent!r}; there are: {', '.join(sorted(known))}")
    return [one for one in ASSERTIONS.values() if not intents or one.intent in intents]


class _Runner:
    """Workers, one after the other. Where the first does not start there is nothing to report; a later one that does
    not costs the assertions that it was for."""

    def __init__(self, device: str, facts: dict[str, Any], deadline_s: float) -> None:
        self._device, self._facts, self._deadline_s = device, facts, deadline_s
        self._lost: AccelError | None = None
        """The device was not open in time: nobody else tries."""
        self.hang = ""

    def everything(self, chosen: Sequence[Assertion], tick: Callable[[str], None]) -> Iterator[SemanticsRow]:
        """Those that go together first."""
        yield from self._in_turn([one for one in chosen if not one.own_process], tick)
        for one in chosen:
            if one.own_process:
                yield from self._in_turn([one], tick)

    def _in_turn(self, left: list[Assertion], tick: Callable[[str], None]) -> Iterator[SemanticsRow]:
        while left:
            done = list(self._worker(left, tick))
            yield from done
            left = left[len(done) :]

    def _worker(self, left: Sequence[Assertion], tick: Callable[[str], None]) -> Iterator[SemanticsRow]:
        """What one worker comes to: at least one row."""
        if self._lost is not None:
            yield from self._failed(left, self._lost)
            return
        worker = Worker(_MODULE, [self._device, *(one.id for one in left)])
        try:
            try:
                self._facts.update(opened(worker, self._device))
            except AccelError as error:
                yield from self._failed(left, error)
                return
            for one in left:
                tick(one.id)
                row = self._one(worker, one)
                yield row[0]
                if row[1]:
                    return
        finally:
            worker.end()

    def _failed(self, left: Sequence[Assertion], error: AccelError) -> Iterator[SemanticsRow]:
        """Rows of a worker that does not start."""
        if not self._facts:
            raise error
        if error.kind == "timeout":
            self._lost, self.hang = error, self.hang or left[0].id
        for one in left:
            yield SemanticsRow(
                one.id, one.intent, one.what, FAIL, f"its process could not use the device: {error.message}"
            )

    def _one(self, worker: Worker, one: Assertion) -> tuple[SemanticsRow, bool]:
        """Its row, and whether the worker is of no more use."""
        start = time.monotonic()
        row = SemanticsRow(one.id, one.intent, one.what, FAIL)
        try:
            said = worker.hear(self._deadline_s)
        except Gone as gone:
            return row._replace(detail=f"its process died: {gone}", seconds=time.monotonic() - start), True
        if said is None:
            self.hang = self.hang or one.id
            return row._replace(detail=f"no answer after {self._deadline_s:g} s", seconds=self._deadline_s), True
        result, detail = said
        return row._replace(result=result, detail=detail, seconds=round(time.monotonic() - start, 4)), False


def opened(worker: Worker, device: str) -> Mapping[str, Any]:
    """What a worker says once it has opened what it was told to. What kept it from that is raised here."""
    try:
        said: Mapping[str, Any] | None = worker.hear(START_S)
    except Gone as gone:
        raise AccelError(f"{device}: a process for it does not start: {gone}", kind="internal") from gone
    if said is None:
        raise AccelError(f"{device}: it was not open after {START_S:g} s", kind="timeout")
    if "error" in said:
        kind, message, hint = said["error"]
        raise AccelError(message, hint, kind=kind)
    return said


# -- the worker's side --


def environment(chip: str) -> Env:
    """An environment. Kernels of the simulated chip take 10 ms, so that those that last are few."""
    options = {"latency": "2000"} if chip == "sim" else {}
    return Env(space=space, options=options)


def together(found: Found) -> tuple[Target, ...]:
    """Devices that may be used with one another: each session of sim is a chip of its own, and where there are other
    accelerators of the chip, the next one."""
    mine = found.device
    if mine.target.chip == "sim":
        return mine.target, mine.target
    assert found.chip.ops is not None
    others = [one for one in found.chip.ops.devices() if one.target.id != mine.target.id]
    return mine.target, *[one.target for one in others if one.accelerator and mine.accelerator][:1]


def prepare(found: Found) -> None:
    """Build a chip's kernels, where it has to: what cannot be built is told once, not by whatever needs it first."""
    build = getattr(found.chip.ops, "prepare", None)
    if build is not None:
        build(found.device.target)


def place(device: str, leave: Callable[[], str] | None = None) -> Place:
    """Where assertions run on a device, its kernels built. NoDeviceError, DeviceUnusable."""
    found = compute.named(device)
    prepare(found)
    own = getattr(found.chip.ops, "group", None) is not None
    ranks = RANKS_OF_PROCESSES if own else RANKS
    return Place(found.chip, together(found), environment(found.chip.manifest.name), leave, ranks=ranks, kept=[])


def main(wire: Wire, arguments: Sequence[str]) -> None:
    """Open the device, say so, and run assertions by their ids."""
    device, *ids = arguments
    if ids == [_LEAVE]:  # an error is its exit status: nobody hears this one
        _work(place(device))
        return
    try:
        here = place(device, lambda: _left(device))
        wire.send(_facts(here))
    except AccelError as error:
        wire.send({"error": (error.kind, error.message, error.hint)})
        wire.receive()
        return
    for one in ids:
        check = carry_out(ASSERTIONS[one], here)
        wire.send((check.result, check.detail))
    for group in here.kept or ():
        group.close()
    wire.receive()


def _facts(here: Place) -> Mapping[str, Any]:
    runtime = _begun(here)
    flags, manifest = dict(runtime.capabilities()), here.chip.manifest
    runtime.fini()
    return {"capabilities": flags, "simulated": manifest.tier == "simulated", "proven": manifest.proven}


def _begun(here: Place) -> Runtime:
    runtime = Runtime(here.chip, here.targets, here.env)
    runtime.init()
    runtime.set_device(0)
    return runtime


def _work(here: Place) -> None:
    """Use the device, and end without a word."""
    runtime = _begun(here)
    round_trip(runtime)
    stream, memory = runtime.create_stream(), runtime.malloc(1 << 20)
    runtime.memset_async(memory, 1, 1 << 20, stream)


def _left(device: str) -> str:
    """How a process ends that does so, if not well."""
    worker = Worker(_MODULE, [device, _LEAVE])
    status: int | None = None
    try:
        status = worker.wait(LEAVE_S)
    finally:
        words = worker.end()
    if status is None:
        return f"it did not end within {LEAVE_S:g} s"
    return words if status else ""
