"""The same instruction by itself and through the service, and where the time between the two goes.

Through the service an op is a call that translates and submits it and a call that waits for its fence. Of that, the
pipeline tells its stages itself; a wait for a fence that is passed already tells what a call costs without any of
them; the kernel's own time is that of the same instruction on a ring in this process. What is left is the queue.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from accelctl.abi import blob
from accelctl.accept.bench.calls import ECHO, LOOP, Group, copy_request, loop
from accelctl.accept.bench.rounds import Task, clock
from accelctl.accept.bench.subject import Subject
from accelctl.errors import AccelError
from accelctl.model.benchreport import SECONDS, STAGES, Figure, OpRow

CASES = (
    "add/fp32/3d",
    "relu/fp32/n1023",
    "softmax/fp32/n1024",
    "rmsnorm/fp32/7x5120",
    "rope/fp32/neox-64",
    "silu_and_mul/fp32/7x1024",
    "matmul/fp32/m64",
    "conv2d/fp32/k576",
    "attention_decode/fp32/full-blocks",
)
"""Of smoke's catalogue: ops of a language model and one of a network of convolutions, of middling size."""
SEED = 0
_OWN = len(STAGES) - 2
"""Stages that the pipeline tells itself: all but rpc and queue."""


class Call(NamedTuple):
    """One call through the service, in seconds."""

    stages: tuple[float, ...]
    rpc: float
    whole: float


class Ops:
    """Tasks of all ops, and what their calls told."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Call]] = {}
        self.kernels: dict[str, tuple[str, str]] = {}
        """Op -> kernel, and the lengths of its first operand."""

    def tasks(self, subject: Subject) -> Iterator[Group]:
        """An op each."""
        from accelctl.smoke.cases import select

        wanted = {case.id: case for case in select([name.partition("/")[0] for name in CASES])}
        for name in CASES:
            yield partial(self._op, subject, wanted[fnmatch.filter(wanted, name)[0]])

    def _op(self, subject: Subject, case: Any) -> list[Task]:
        from accelctl.smoke import through

        trial = case.load(SEED)
        bench = subject.held.enter_context(through.Bench(subject.session))
        request = through.request_of(bench, trial)
        answer = subject.session.translate(request)
        ours = {one.tensor_id for one in bench.held}
        bench.held += [one for one in answer.outputs if one.tensor_id and one.tensor_id not in ours]
        if not subject.session.wait(answer.fence, 60.0):
            raise AccelError(f"{case.id} did not end", kind="timeout")
        if len(answer.instructions) != 1:
            raise AccelError(f"{case.op} takes {len(answer.instructions)} instructions here", kind="not_supported")
        found = blob.decode(answer.instructions[0].instruction_blob)
        names = {one.kernel_id: one.name for one in subject.chip.ops.templates()}  # type: ignore[union-attr]
        shape = next(iter(trial.inputs.values())).shape
        self.kernels[case.op] = names.get(found.kernel_id, ""), "x".join(map(str, shape))
        work = _placed(subject, trial, found)
        # its results have places now, and the service makes no others
        fixed = subject.session.request(case.op, request.inputs, answer.outputs, submit=True)
        fixed.attrs.update(request.attrs)
        return self._tasks(subject, case.op, work, fixed)

    def _tasks(self, subject: Subject, op: str, work: bytes, request: Any) -> list[Task]:
        session, small = subject.session, copy_request(subject, 1)
        echo = subject.echo.like(small, session.translate(small))

        def through() -> float:
            start = clock()
            answer = session.translate(request)
            translated = clock()
            session.wait(answer.fence)
            waited = clock()
            session.wait(answer.fence)
            rpc = clock() - waited
            stages = tuple(ns / 1e9 for ns in answer.stage_ns)
            made = Call(
                stages, max(0.0, translated - start - sum(stages)) + min(rpc, waited - translated), waited - start
            )
            self.calls.setdefault(op, []).append(made)
            return made.whole

        def twice() -> None:
            echo()
            echo()

        pace: dict[str, Any] = {} if subject.accelerator else {"floor": loop, "floor_name": LOOP}
        more: dict[str, Any] = {"own_clock": True, "floor": twice, "floor_name": f"two of an {ECHO}"}
        return [
            Task("ops", f"{op} native", SECONDS, partial(subject.native.run, work), **pace),
            Task("ops", f"{op} service", SECONDS, through, **more),
        ]

    def rows(self, figures: Sequence[Figure]) -> tuple[OpRow, ...]:
        """Both ways of each op that has both, and the stage that holds most of the difference."""
        found = {figure.name: figure for figure in figures if figure.part == "ops"}
        rows = []
        for op, (kernel, shape) in self.kernels.items():
            native, service = found.get(f"{op} native"), found.get(f"{op} service")
            if native is not None and service is not None and self.calls.get(op):
                rows.append(row(op, shape, kernel, native, service, self.calls[op]))
        return tuple(rows)


def row(op: str, shape: str, kernel: str, native: Figure, service: Figure, calls: Sequence[Call]) -> OpRow:
    """The difference, stage by stage."""
    stages = {name: median(call.stages[at] for call in calls) for at, name in enumerate(STAGES[:_OWN])}
    stages["rpc"] = median(call.rpc for call in calls)
    stages["queue"] = service.spread.median - native.spread.median - sum(stages.values())
    difference = service.spread.median - native.spread.median
    blame, most = max(stages.items(), key=lambda one: one[1])
    told = service.spread.low > native.spread.high and difference > 0
    share = most / sum(one for one in stages.values() if one > 0) if told else 0.0
    return OpRow(op, shape, kernel, native.spread, service.spread, stages, blame if told else "", share)


def _placed(subject: Subject, trial: Any, found: Any) -> bytes:
    """The instruction with operands of the trial in blocks of our own."""
    held = subject.held.enter_context(ExitStack())

    def put(data: bytes) -> int:
        place = subject.native.place(max(1, len(data)), held)
        place.write(memoryview(data))
        return place.block.address

    inputs = [put(arg.storage.tobytes()) + arg.offset * arg.storage.itemsize for arg in trial.inputs.values()]
    outputs = [put(bytes(out.nbytes)) for out in trial.outputs.values()]
    return blob.encode(found.kernel_id, found.launch.encode(), [*inputs, *outputs], found.body)
