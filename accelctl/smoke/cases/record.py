"""One case: which op on which data, and what must come of it. Data are made from a seed when the case is run."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from accelctl.abi.opset import OPS
from accelctl.abi.tensors import DTYPES, Shape, dense_strides, span
from accelctl.errors import UsageError
from accelctl.smoke import reference
from accelctl.smoke.numbers import NUMPY, Array, name_of
from accelctl.smoke.tolerance import EXACT, Rule, rules

FILL = 0xA5
"""Byte that lies in the gaps of strided outputs before an op runs, and must lie there afterwards."""


class Arg(NamedTuple):
    """An input as it lies in memory: ``storage`` is uploaded as it is; the tensor starts ``offset`` elements into it
    and has these strides (elements)."""

    storage: Array
    shape: Shape
    strides: Shape
    offset: int = 0

    @property
    def value(self) -> Array:
        """What the op sees."""
        size = self.storage.itemsize
        steps = tuple(stride * size for stride in self.strides)
        return np.lib.stride_tricks.as_strided(self.storage[self.offset :], self.shape, steps, writeable=False)

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return name_of(self.storage)


class Out(NamedTuple):
    """An output. ``strides`` and ``alias`` say where it lies; a caller who does not ask for such things may leave the
    description to the service."""

    shape: Shape
    dtype: str
    strides: Shape
    alias: str = ""
    """Name of the input whose memory it takes, for an op that works in place; the input must be dense."""
    described: bool = False
    """The caller must describe it: its type, place or gaps are not what the service would choose."""

    @property
    def nbytes(self) -> int:
        """From the first element to the end of the last one."""
        return span(self.shape, self.strides, DTYPES[self.dtype])


class Wish(NamedTuple):
    """What a case asks of an output, where that is not the usual. No strides: dense."""

    dtype: str = ""
    strides: Shape = ()
    alias: str = ""
    shape: Shape | None = None
    """Only copy needs it."""


class Refusal(NamedTuple):
    """The op must be refused. ``says``: words that the message must have; ``data``: what is wrong lies in device
    memory, so that only an executor can see it."""

    why: str
    says: tuple[str, ...] = ()
    data: bool = False


class Made(NamedTuple):
    """What a case's function makes. ``want`` are right values from elsewhere, which the reference must give too.
    ``exact``: the numbers are chosen so that every order of summing gives the same, and nothing is allowed beyond one
    rounding."""

    inputs: Mapping[str, Arg | Array | None]
    attrs: Mapping[str, str] = {}
    outputs: Mapping[str, Wish] = {}
    refusal: Refusal | None = None
    want: Mapping[str, Array] = {}
    exact: bool = False


class Maker:
    """Seeded data for one case, in its element type."""

    def __init__(self, rng: np.random.Generator, dtype: str) -> None:
        self.rng, self.dtype = rng, dtype

    def normal(self, *shape: int, mean: float = 0.0, scale: float = 1.0, dtype: str = "") -> Array:
        """Normally distributed; whole numbers from the full range for an integer type."""
        name = dtype or self.dtype
        if not DTYPES[name].floating:
            limits = np.iinfo(NUMPY[name])
            return self.rng.integers(limits.min, limits.max, shape, endpoint=True, dtype=NUMPY[name])
        return np.asarray(self.rng.normal(mean, scale, shape)).astype(NUMPY[name])

    def ints(self, low: int, high: int, *shape: int, dtype: str = "") -> Array:
        """Whole numbers from low to high, both included."""
        return self.rng.integers(low, high, shape, endpoint=True).astype(NUMPY[dtype or self.dtype])

    def values(self, values: object, dtype: str = "") -> Array:
        """These very numbers."""
        return np.asarray(values).astype(NUMPY[dtype or self.dtype])

    def full(self, value: float, *shape: int, dtype: str = "") -> Array:
        """One number everywhere."""
        return np.full(shape, value).astype(NUMPY[dtype or self.dtype])


Make = Callable[[Maker], Made]


class Case(NamedTuple):
    """One case of the catalogue. ``corner`` says what it is there for; ``long`` keeps it out of ordinary runs;
    ``repeat``: run twice, with the same bytes both times; ``sequence``: cases with one name run in one session in
    their order, and in reverse, so that a kernel kept from one call is offered to the next."""

    id: str
    op: str
    dtype: str
    make: Make
    corner: str = ""
    long: bool = False
    repeat: bool = False
    sequence: str = ""

    def load(self, seed: int = 0) -> Trial:
        """Data and right results. The same seed gives the same data, whatever else runs."""
        made = self.make(Maker(np.random.default_rng([seed, zlib.crc32(self.id.encode())]), self.dtype))
        return _trial(self, made)


class Trial(NamedTuple):
    """A case with its data. Inputs are in the op's order; ``attrs`` are text, as in the protocol. Without a refusal:
    ``expected`` holds float64 (not rounded) or int64 results, ``rules`` how near they must be met, ``unjudged`` is
    True where a result is not compared."""

    case: Case
    inputs: Mapping[str, Arg]
    attrs: Mapping[str, str]
    outputs: Mapping[str, Out]
    refusal: Refusal | None
    expected: Mapping[str, Array]
    rules: Mapping[str, Rule]
    unjudged: Mapping[str, Array]
    want: Mapping[str, Array]

    @property
    def values(self) -> dict[str, Array | None]:
        """Inputs as the op sees them."""
        return {name: arg.value for name, arg in self.inputs.items()}


def dense(array: Array, offset: int = 0) -> Arg:
    """Row major, that many elements behind the start of its memory; what lies before is NaN (or a large number)."""
    storage = np.ascontiguousarray(array).reshape(-1)
    if offset:
        storage = np.concatenate([_junk(offset, array.dtype), storage])
    return Arg(storage, array.shape, dense_strides(array.shape), offset)


def strided(array: Array, order: tuple[int, ...] = (), gap: int = 0) -> Arg:
    """The same tensor, lying in memory with its axes in ``order`` (outermost first) and ``gap`` unused elements behind
    each run of the innermost one. Unused elements hold NaN, or a large number."""
    order = order or tuple(range(array.ndim))
    lying = np.ascontiguousarray(array.transpose(order))
    padded = _junk(lying.size // max(lying.shape[-1], 1) * (lying.shape[-1] + gap), array.dtype)
    padded = padded.reshape(*lying.shape[:-1], lying.shape[-1] + gap)
    padded[..., : lying.shape[-1]] = lying
    steps = dense_strides(padded.shape)
    return Arg(padded.reshape(-1), array.shape, tuple(steps[order.index(axis)] for axis in range(array.ndim)))


def repeated(array: Array, shape: Shape) -> Arg:
    """A tensor broadcast to a wider shape by strides of 0."""
    wide = np.broadcast_to(array, shape)
    size = array.itemsize
    return Arg(np.ascontiguousarray(array).reshape(-1), shape, tuple(step // size for step in wide.strides))


def _junk(count: int, dtype: np.dtype[Any]) -> Array:
    value = np.nan if DTYPES[name_of(np.empty(0, dtype))].floating else np.iinfo(dtype).max
    return np.full(count, value).astype(dtype)


def _trial(case: Case, made: Made) -> Trial:
    inputs = _ordered(case, made)
    values: dict[str, Array | None] = {name: arg.value for name, arg in inputs.items()}
    if made.refusal is not None:
        outputs = {name: _wished(wish, (), case.dtype) for name, wish in made.outputs.items()}
        return Trial(case, inputs, made.attrs, outputs, made.refusal, {}, {}, {}, {})
    attrs = OPS[case.op].parse(made.attrs)
    wishes = {
        name: reference.Target(wish.shape, wish.dtype or case.dtype)
        for name, wish in made.outputs.items()
        if wish.shape is not None
    }
    results = reference.compute(case.op, values, attrs, wishes)
    optional = {one.name for one in OPS[case.op].outputs if one.optional}
    results = {name: array for name, array in results.items() if name not in optional or name in made.outputs}
    outputs = {
        name: _wished(made.outputs.get(name, Wish()), array.shape, reference.result_type(case.op, values, name))
        for name, array in results.items()
    }
    types = {name: out.dtype for name, out in outputs.items()}
    judged = rules(case.op, values, attrs, results, types)
    if made.exact:
        judged = dict.fromkeys(judged, EXACT)
    hidden = reference.unjudged(case.op, values)
    return Trial(case, inputs, made.attrs, outputs, None, results, judged, hidden, made.want)


def _ordered(case: Case, made: Made) -> dict[str, Arg]:
    known = [operand.name for operand in OPS[case.op].inputs]
    extra = set(made.inputs) - set(known)
    if extra:
        raise UsageError(f"{case.id}: {case.op} has no input {', '.join(sorted(extra))}")
    given = ((name, made.inputs.get(name)) for name in known)
    return {name: one if isinstance(one, Arg) else dense(one) for name, one in given if one is not None}


def _wished(wish: Wish, shape: Shape, dtype: str) -> Out:
    described = bool(wish.dtype or wish.strides or wish.alias or wish.shape is not None)
    shape = shape if wish.shape is None else wish.shape
    return Out(shape, wish.dtype or dtype, wish.strides or dense_strides(shape), wish.alias, described)
