"""`accelctl smoke --align`: two devices compute known samples, op by op, and the first op that drifts is named.

Both get the same operands for every op: those that the first device computed. So an error is found where it is made,
and not where it has grown large. Either may be off its right result by as much as the op's rule allows, so twice that
lies between two right ones. Where they differ, the float64 reference says which of them is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import numpy as np

from accelctl.abi import compute
from accelctl.abi.opset import OPS, Attr, Value
from accelctl.abi.runtime import Arg, Operand, Runtime
from accelctl.abi.tensors import DTYPES
from accelctl.errors import AccelError, UsageError
from accelctl.model.alignreport import AlignReport, AlignRow
from accelctl.model.stressreport import FAIL, PASS, SKIP
from accelctl.smoke.cases import Trial
from accelctl.smoke.compare import Result, compare
from accelctl.smoke.numbers import NUMPY, Array, name_of, wide
from accelctl.smoke.samples import SAMPLES, Sample, Step
from accelctl.smoke.semantics import environment
from accelctl.smoke.tolerance import Rule

WAIT_S = 60.0
Tick = Callable[[str, int, int], None]
Results = Mapping[str, Array]


def run(first: str, second: str, tick: Tick = lambda name, number, count: None, seed: int = 0) -> AlignReport:
    """Both devices, as ``chip:which``. NoDeviceError where one is not here; UsageError for a device with itself."""
    if first == second:
        raise UsageError(f"--align {first}: a device agrees with itself", "name another one: accelctl smoke --list")
    with ExitStack() as held:
        pair = [held.enter_context(Lab(name)) for name in (first, second)]
        rows = tuple(_rows(pair[0], pair[1], seed, tick))
        simulated = any(one.simulated for one in pair)
    return AlignReport(device=first, other=second, simulated=simulated, seed=seed, rows=rows)


class Lab:
    """One device under the portable runtime, which runs one op at a time."""

    def __init__(self, name: str) -> None:
        found = compute.named(name)
        self.name, self.simulated = name, found.device.target.simulated
        self._runtime = Runtime(found.chip, (found.device.target,), environment(found.chip.manifest.name))

    def __enter__(self) -> Lab:
        self._runtime.init()
        self._runtime.set_device(0)
        return self

    def __exit__(self, *rest: object) -> None:
        self._runtime.fini()

    def compute(self, trial: Trial) -> dict[str, Array]:
        """Results by name. not_supported where no kernel takes it."""
        runtime, op = self._runtime, OPS[trial.case.op]
        inputs = [trial.inputs[one.name].value for one in op.inputs if one.name in trial.inputs]
        outputs = {one.name: trial.outputs[one.name] for one in op.outputs if one.name in trial.outputs}
        places = []
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
        finally:
            runtime.destroy_stream(stream)
            for place in places:
                runtime.free(place)


def _arg(attr: Attr, value: Value) -> Arg:
    """An attribute of an op as a kernel argument."""
    if isinstance(value, tuple):
        return Arg("bytes", struct.pack(f"<{len(value)}q", *value), 8)
    if isinstance(value, str):
        return Arg("i8", attr.words.index(value))
    return Arg({"int": "i64", "float": "f64", "bool": "i8"}[attr.kind], value)


def _rows(first: Lab, second: Lab, seed: int, tick: Tick) -> Iterator[AlignRow]:
    """One for each op. A sample ends where its next operands do not exist."""
    total, index = sum(len(sample.steps) for sample in SAMPLES), 0
    for sample in SAMPLES:
        values = dict(sample.start(np.random.default_rng([seed, len(sample.name)])))
        for step in sample.steps:
            tick(f"{sample.name}: {step.op}", index, total)
            row, results = _step(first, second, index, sample, step, values, seed)
            yield row
            index += 1
            values |= {step.outputs[name]: array for name, array in results.items() if name in step.outputs}


def _step(
    first: Lab, second: Lab, index: int, sample: Sample, step: Step, values: Mapping[str, Array], seed: int
) -> tuple[AlignRow, Results]:
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
            return row._replace(result=result, detail=f"{lab.name}: {error.message}"), right
    return _compared(row, trial, both[0], both[1], (first.name, second.name)), both[0]


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
