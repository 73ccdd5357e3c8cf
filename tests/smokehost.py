"""The reference as an executor: what a device that computes everything right, rounding once, would answer."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from accelctl.abi.opset import OPS
from accelctl.smoke import reference
from accelctl.smoke.cases import Trial
from accelctl.smoke.numbers import NUMPY, Array, name_of


def execute(trial: Trial) -> dict[str, Array]:
    """Results of a trial in the element types that it asks for."""
    return reference.stored(dict(trial.expected), {name: out.dtype for name, out in trial.outputs.items()})


class Held(NamedTuple):
    """A tensor of the host machine: its memory, and the tensor in it."""

    memory: Array
    array: Array


class Host:
    """A machine (smoke.decode) on numpy arrays."""

    def put(self, array: Array) -> Held:
        memory = np.ascontiguousarray(array).copy()
        return Held(memory.reshape(-1), memory)

    def empty(self, shape: Sequence[int], dtype: str) -> Held:
        return self.put(np.full(tuple(shape), np.nan).astype(NUMPY[dtype]))

    def view(self, tensor: Held, shape: Sequence[int], strides: Sequence[int], offset: int) -> Held:
        steps = [stride * tensor.memory.itemsize for stride in strides]
        return Held(
            tensor.memory,
            np.ndarray(tuple(shape), tensor.memory.dtype, tensor.memory, offset * tensor.memory.itemsize, steps),
        )

    def run(
        self, op: str, inputs: Mapping[str, Held], attrs: Mapping[str, str], outputs: Mapping[str, Held]
    ) -> Mapping[str, Held]:
        values: dict[str, Array | None] = {name: held.array for name, held in inputs.items()}
        targets = {name: reference.Target(held.array.shape, name_of(held.array)) for name, held in outputs.items()}
        results = reference.compute(op, values, OPS[op].parse(attrs), targets)
        found = dict(outputs)
        for operand in OPS[op].outputs:
            if operand.name in outputs:
                array = outputs[operand.name].array
                array[...] = reference.stored({"": results[operand.name]}, {"": name_of(array)})[""]
            elif not operand.optional:
                dtype = reference.result_type(op, values, operand.name)
                found[operand.name] = self.put(reference.stored({"": results[operand.name]}, {"": dtype})[""])
        return found

    def get(self, tensor: Held) -> Array:
        return np.array(tensor.array)
