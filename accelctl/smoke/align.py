"""`accelctl smoke --align`: two devices compute known samples, op by op, and the first op that drifts is named.

Both get the same operands for every op: those that the first device computed. So an error is found where it is made,
and not where it has grown large. Either may be off its right result by as much as the op's rule allows, so twice that
lies between two right ones. Where they differ, the float64 reference says which of them is wrong.

A process does it, which has both devices open: one that does not come back, or dies, costs the rest of its sample, and
another process goes on with the next one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from accelctl.abi import compute
from accelctl.abi.opset import OPS, Attr, Value
from accelctl.abi.runtime import Arg, Operand, Runtime
from accelctl.abi.tensors import DTYPES
from accelctl.errors import AccelError, UsageError
from accelctl.hal.worker import Gone, Wire, Worker
from accelctl.model.alignreport import AlignReport, AlignRow
from accelctl.model.stressreport import FAIL, PASS, SKIP
from accelctl.smoke.cases import Trial
from accelctl.smoke.compare import Result, compare
from accelctl.smoke.numbers import NUMPY, Array, name_of, wide
from accelctl.smoke.samples import SAMPLES, Sample, Step
from accelctl.smoke.semantics import environment, opened, prepare
from accelctl.smoke.tolerance import Rule

WAIT_S, DEADLINE_S = 60.0, 180.0
"""For the work of one op on one device; for both of them, and all that one does around it."""
HUNG, DIED = "hung", "died"
_MODULE = "accelctl.smoke.align"
Tick = Callable[[str, int, int], None]
Results = Mapping[str, Array]


def run(first: str, second: str, tick: Tick = lambda name, number, count: None, seed: int = 0) -> AlignReport:
    """Both devices, as ``chip:which``. NoDeviceError where one is not here; UsageError for a device with itself."""
    if first == second:
        raise UsageError(f"--align {first}: a device agrees with itself", "name another one: accelctl smoke --list")
    runner, at = _Runner(first, second, seed, tick), 0
    while at < len(SAMPLES):
        at = runner.samples(at)
    rows, hang = tuple(runner.rows), runner.hang
    return AlignReport(device=first, other=second, simulated=runner.simulated, seed=seed, rows=rows, hang=hang)


class Seen(NamedTuple):
    """One op. ``over``: HUNG or DIED, where the process is of no more use."""

    row: AlignRow
    over: str = ""


class _Runner:
    """Processes, one after the other."""

    def __init__(self, first: str, second: str, seed: int, tick: Tick) -> None:
        self._words, self._tick = [first, second, str(seed)], tick
        self.rows: list[AlignRow] = []
        self.simulated = False
        self.hang = ""
        self._told: dict[str, int] = {}
        """Failure -> the op that had it first."""

    def samples(self, at: int) -> int:
        """What one process comes to, from one sample on; the sample that is next. An AccelError where not even the
        first one could open both devices."""
        worker = Worker(_MODULE, [*self._words, str(at)])
        try:
            try:
                self.simulated = opened(worker, " and ".join(self._words[:2]))["simulated"]
            except AccelError as error:
                if not self.rows:
                    raise
                row = _row(at, 0, f"its process could not use the devices: {error.message}")
                self._note(Seen(row, HUNG if error.kind == "timeout" else DIED))
                return len(SAMPLES)
            for number in range(at, len(SAMPLES)):
                if not self._sample(worker, number):
                    return number + 1
            return len(SAMPLES)
        finally:
            worker.end()

    def _sample(self, worker: Worker, number: int) -> bool:
        """Whether the process can go on."""
        for index, step in enumerate(SAMPLES[number].steps):
            self._tick(f"{SAMPLES[number].name}: {step.op}", len(self.rows), _TOTAL)
            seen = self._one(worker, number, index)
            self._note(seen)
            if seen.over:
                return False
        return True

    def _one(self, worker: Worker, number: int, index: int) -> Seen:
        try:
            said = worker.hear(DEADLINE_S)
        except Gone as gone:
            return Seen(_row(number, index, f"its process died: {gone}"), DIED)
        return Seen(_row(number, index, f"no answer after {DEADLINE_S:g} s"), HUNG) if said is None else _heard(said)

    def _note(self, seen: Seen) -> None:
        """A row. A long reason that several ops have is told in full at the first of them."""
        row = seen.row._replace(detail=" ".join(seen.row.detail.split()))
        if row.result == FAIL and not row.tolerance:
            first = self._told.setdefault(row.detail, row.number)
            row = row if first == row.number else row._replace(detail=f"as op {first}")
        self.rows.append(row)
        if seen.over == HUNG:
            self.hang = self.hang or seen.row.name


_TOTAL = sum(len(sample.steps) for sample in SAMPLES)


def _row(number: int, index: int, detail: str) -> AlignRow:
    """Of an op that nothing is known of."""
    sample = SAMPLES[number]
    return AlignRow(_before(number) + index, sample.name, sample.steps[index].op, "", FAIL, detail)


def _before(number: int) -> int:
    """Ops of the samples before one."""
    return sum(len(sample.steps) for sample in SAMPLES[:number])


def _heard(said: Sequence[Any]) -> Seen:
    values, over = said
    row = AlignRow(*values)
    return Seen(row._replace(first=tuple(row.first) if row.first is not None else None), over)


def main(wire: Wire, arguments: Sequence[str]) -> None:
    """The process: open both, say so, compute. What hangs is not asked to give anything back."""
    first, second, seed, at = arguments
    try:
        pair = Lab(first).open(), Lab(second).open()
    except AccelError as error:
        wire.send({"error": (error.kind, error.message, error.hint)})
        wire.receive()
        return
    wire.send({"simulated": any(one.simulated for one in pair)})
    for seen in beside(*pair, int(seed), int(at)):
        wire.send(seen)
        if seen.over:
            wire.receive()
    for one in pair:
        one.close()


class Lab:
    """One device under the portable runtime, which runs one op at a time."""

    def __init__(self, name: str) -> None:
        found = compute.named(name)
        self.name, self.simulated = name, found.device.target.simulated
        self._found = found
        self._runtime = Runtime(found.chip, (found.device.target,), environment(found.chip.manifest.name))

    def open(self) -> Lab:
        """Before anything is computed. What no kernel can be built for is told here, and not once for each op."""
        prepare(self._found)
        self._runtime.init()
        self._runtime.set_device(0)
        return self

    def close(self) -> None:
        """Give everything back."""
        self._runtime.fini()

    def compute(self, trial: Trial) -> dict[str, Array]:
        """Results by name. not_supported where no kernel takes it; after a timeout nothing is given back, since the
        work may go on."""
        runtime, op = self._runtime, OPS[trial.case.op]
        inputs = [trial.inputs[one.name].value for one in op.inputs if one.name in trial.inputs]
        outputs = {one.name: trial.outputs[one.name] for one in op.outputs if one.name in trial.outputs}
        places, hung = [], False
        stream = runtime.create_stream()
        try:
            for array in inputs:
                places.append(runtime.malloc(max(1, array.nbytes)))
                runtime.memcpy(places[-1], np.ascontiguousarray(array).tobytes(), array.nbytes)
            places += [runtime.malloc(max(1, out.nbytes)) for out in outputs.values()]
            shapes = [Operand(array.shape, DTYPES[name_of(array)]) for array in inputs]
            results = [Operand(out.shape, DTYPES[out.dtype]) for out in outputs.values()]
            kernel = runtime.kernel(op.name, shapes, results)
            args = [Arg("pointer", place) for place in places]
            args += [_arg(attr, value) for attr, value in zip(op.attrs, op.parse(trial.attrs).values(), strict=True)]
            launch = runtime.launch_shape(kernel, args)
            runtime.launch(kernel, launch.grid, launch.block, args, 0, stream)
            runtime.sync(stream, WAIT_S)
            found = {}
            for place, (name, out) in zip(places[len(inputs) :], outputs.items(), strict=True):
                raw = bytearray(out.nbytes)
                runtime.memcpy(raw, place, out.nbytes)
                found[name] = np.frombuffer(bytes(raw), NUMPY[out.dtype]).reshape(out.shape)
            return found
        except AccelError as error:
            hung = error.kind == "timeout"
            raise
        finally:
            if not hung:
                runtime.destroy_stream(stream, WAIT_S)
                for place in places:
                    runtime.free(place)


def _arg(attr: Attr, value: Value) -> Arg:
    """An attribute of an op as a kernel argument."""
    if isinstance(value, tuple):
        return Arg("bytes", struct.pack(f"<{len(value)}q", *value), 8)
    if isinstance(value, str):
        return Arg("i8", attr.words.index(value))
    return Arg({"int": "i64", "float": "f64", "bool": "i8"}[attr.kind], value)


def beside(first: Lab, second: Lab, seed: int, at: int = 0) -> Iterator[Seen]:
    """Each op, from one sample on, until one hangs."""
    index = _before(at)
    for sample in SAMPLES[at:]:
        values = dict(sample.start(np.random.default_rng([seed, len(sample.name)])))
        for step in sample.steps:
            seen, results = _step(first, second, index, sample, step, values, seed)
            yield seen
            if seen.over:
                return
            index += 1
            values |= {step.outputs[name]: array for name, array in results.items() if name in step.outputs}


def _step(
    first: Lab, second: Lab, index: int, sample: Sample, step: Step, values: Mapping[str, Array], seed: int
) -> tuple[Seen, Results]:
    """Its row, and what the first device computed; what the reference computed where it did not."""
    trial = step.trial(f"align/{sample.name}/{index}", values, seed)
    row = AlignRow(index, sample.name, step.op, trial.case.dtype, SKIP, "")
    right = {name: _stored(trial, name) for name in trial.expected}
    both: list[Results] = []
    for lab in (first, second):
        try:
            both.append(lab.compute(trial))
        except AccelError as error:
            result = SKIP if error.kind == "not_supported" else FAIL
            over = HUNG if error.kind == "timeout" else ""
            return Seen(row._replace(result=result, detail=f"{lab.name}: {error.message}"), over), right
    return Seen(_compared(row, trial, both[0], both[1], (first.name, second.name))), both[0]


def _stored(trial: Trial, name: str) -> Array:
    return trial.expected[name].astype(NUMPY[trial.outputs[name].dtype])


def _compared(row: AlignRow, trial: Trial, one: Results, other: Results, names: tuple[str, str]) -> AlignRow:
    results = [_against(trial, name, other[name], wide(one[name]), 2.0) for name in trial.expected]
    bad = [found for found in results if not found.passed]
    worst = (bad or sorted(results, key=lambda found: found.max_abs))[-1 if not bad else 0]
    said = worst.detail.replace("right ", f"{names[0]} has ")
    if bad:
        said += f"; {_guilty(trial, one, other, names)}"
    return row._replace(
        result=FAIL if bad else PASS,
        detail=said,
        max_abs=worst.max_abs,
        max_rel=worst.max_rel,
        ulps=worst.ulps,
        first=worst.first,
        tolerance="twice " + ", ".join(dict.fromkeys(rule.text for rule in trial.rules.values())),
    )


def _guilty(trial: Trial, one: Results, other: Results, names: tuple[str, str]) -> str:
    """Which of them is off the reference."""
    off = [
        name
        for name, results in zip(names, (one, other), strict=True)
        if not all(_against(trial, key, results[key], trial.expected[key], 1.0).passed for key in trial.expected)
    ]
    if not off:
        return "each is near enough to the reference by itself"
    return f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off the float64 reference"


def _against(trial: Trial, name: str, got: Array, want: Array, times: float) -> Result:
    rule: Rule = trial.rules[name]
    wider = rule._replace(rtol=times * rule.rtol, atol=times * rule.atol)
    return compare(name, got, want, trial.outputs[name].dtype, wider, trial.unjudged.get(name))
