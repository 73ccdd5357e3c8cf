"""One trial through the service: operands up, the op translated and submitted, results back.

Memory is the session's own and is given back after each trial, whatever came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from accelctl.abi.opset import OPS
from accelctl.abi.tensors import DTYPES
from accelctl.smoke.cases import Arg, Out, Trial
from accelctl.smoke.cases.record import FILL
from accelctl.smoke.numbers import NUMPY, Array
from accelctl.umd.client import ClientSession, ServiceError, desc

REFUSALS = ("INVALID_ARGUMENT", "UNIMPLEMENTED", "OUT_OF_RANGE")
"""gRPC codes that say that the request is at fault."""
WAIT_S = 60.0
"""For one op; the longest of the catalogue takes some seconds on a slow CPU."""


class Ran(NamedTuple):
    """What came of it. ``refused`` is the reason where it did not run; ``response`` is the translation, None then."""

    results: Mapping[str, Array]
    refused: str | None
    response: Any
    gaps: str = ""
    """What was written where nothing may be written; empty: nothing was."""
    unsupported: bool = False
    """It was refused because the chip has no kernel for it, which is no failure."""
    lost: bool = False
    """It was refused by the device while it ran, which ends the session."""


class Bench:
    """A session, and what a trial holds in it."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.held: list[Any] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *ended: object) -> None:
        while self.held:
            try:
                self.session.free(self.held.pop())
            except ServiceError:
                if ended[0] is None:
                    raise

    def memory(self, size: int) -> Any:
        """So many bytes of the session's memory, until the end of the trial."""
        tensor = self.session.alloc_bytes(max(1, size))
        self.held.append(tensor)
        return tensor

    def put(self, arg: Arg) -> Any:
        """An operand in device memory, lying there as it lies here."""
        block = self.memory(arg.storage.nbytes)
        if arg.storage.nbytes:
            self.session.write(block, np.ascontiguousarray(arg.storage).view(np.uint8).data)
        return described(block, arg.shape, arg.dtype, arg.strides, arg.offset)

    def place(self, out: Out) -> Any:
        """Memory for a result, filled so that what is written beside it shows."""
        block = self.memory(out.nbytes)
        self.session.write(block, bytes([FILL]) * max(1, out.nbytes))
        return described(block, out.shape, out.dtype, out.strides)


def described(block: Any, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...], offset: int = 0) -> Any:
    """A TensorDesc inside a block of memory; ``offset`` in elements."""
    kind = DTYPES[dtype]
    address = block.device_addr + offset * kind.itemsize
    return desc(shape, kind, tensor_id=block.tensor_id, device_addr=address, strides=strides)


def request_of(bench: Bench, trial: Trial, *, submit: bool = True) -> Any:
    """The trial as a request, its operands in place."""
    op = OPS[trial.case.op]
    places = {name: bench.put(arg) for name, arg in trial.inputs.items()}
    inputs = [places.get(operand.name) for operand in op.inputs]
    outputs = [_output(bench, trial, operand.name, places) for operand in op.outputs]
    return bench.session.request(op.name, _trimmed(inputs), _trimmed(outputs), trial.attrs, submit=submit)


def _output(bench: Bench, trial: Trial, name: str, places: Mapping[str, Any]) -> Any:
    """None: not wanted. Only an element type: the service finds a place and says the rest."""
    out = trial.outputs.get(name)
    if out is None:
        return None
    if out.alias:
        return described(places[out.alias], out.shape, out.dtype, out.strides)
    if out.described:
        return bench.place(out)
    return desc((), DTYPES[out.dtype])


def _trimmed(found: list[Any]) -> list[Any]:
    while found and found[-1] is None:
        found.pop()
    return found


def run(session: ClientSession, trial: Trial) -> Ran:
    """The trial, once. ServiceError only for what is wrong with the service itself, not for a refusal."""
    with Bench(session) as bench:
        try:
            response = session.translate(request_of(bench, trial))
        except ServiceError as error:
            if error.code not in REFUSALS:
                raise
            return Ran({}, error.message, None, unsupported=error.kind == "not_supported")
        ours = {one.tensor_id for one in bench.held}
        bench.held += [one for one in response.outputs if one.tensor_id and one.tensor_id not in ours]
        ran = _finish(session, trial, response)
        if ran.lost:
            bench.held.clear()  # the session is over, and its memory goes with it
        return ran


def _finish(session: ClientSession, trial: Trial, response: Any) -> Ran:
    if response.fence:
        try:
            if not session.wait(response.fence, WAIT_S):
                raise ServiceError(f"{trial.case.id}: not done after {WAIT_S:g} s", kind="timeout")
        except ServiceError as error:
            if trial.refusal is None or not trial.refusal.data:
                raise
            return Ran({}, error.message, response, lost=True)
    names = [operand.name for operand in OPS[trial.case.op].outputs]
    results, gaps = {}, []
    for name, one in zip(names, response.outputs, strict=False):
        if name in trial.outputs:
            results[name], gap = _fetch(session, one, trial.outputs[name])
            gaps += [f"{name}: {gap}"] if gap else []
    return Ran(results, None, response, "; ".join(gaps))


def _fetch(session: ClientSession, one: Any, out: Out) -> tuple[Array, str]:
    """A result as an array, and what was written into its gaps."""
    dtype = NUMPY[out.dtype]
    if not out.nbytes:
        return np.empty(out.shape, dtype), ""
    raw = np.frombuffer(session.read(one, size=out.nbytes), np.uint8)
    steps = tuple(stride * dtype.itemsize for stride in out.strides)
    array = np.lib.stride_tricks.as_strided(raw[: raw.size].view(dtype), out.shape, steps).copy()
    if not out.described or out.alias:
        return array, ""
    used = np.zeros(raw.size // dtype.itemsize, bool)
    np.lib.stride_tricks.as_strided(used, out.shape, out.strides)[...] = True
    spoiled = (raw.reshape(-1, dtype.itemsize) != FILL).any(axis=1) & ~used
    return array, f"{int(spoiled.sum())} elements beside it were written" if spoiled.any() else ""
