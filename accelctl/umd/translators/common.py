"""What the checks of all op families share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from accelctl.abi.opset import Attrs, Op
from accelctl.abi.tensors import FP32, DType, Shape, Tensor, broadcast, byte_size, dense_strides, show
from accelctl.errors import UsageError
from accelctl.umd.refusal import Refusal


@lru_cache(maxsize=4096)
def dense_facts(shape: Shape, dtype: DType) -> tuple[int, Shape]:
    """Bytes of all elements, and dense strides. Few shapes make up most of what is ever asked for. UsageError."""
    return byte_size(shape, dtype), dense_strides(shape)


class Described(NamedTuple):
    """An output as the caller describes it; None is "not said"."""

    shape: Shape | None = None
    dtype: DType | None = None
    strides: Shape | None = None
    byte_size: int = 0
    """0 is "not said"."""


class Ask(NamedTuple):
    """One op to translate: operands without their addresses, absent ones None, all attributes."""

    op: Op
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Described | None, ...]
    attrs: Attrs

    def must(self, index: int) -> Tensor:
        """An input that the op cannot do without. Refusal."""
        found = self.inputs[index]
        if found is None:
            raise Refusal(f"inputs[{index}]", f"{self.op.name} needs its operand {self.op.inputs[index].name}")
        return found

    def number(self, name: str) -> int:
        """An attribute that is a whole number."""
        value = self.attrs[name]
        assert isinstance(value, int)
        return value

    def numbers(self, name: str, count: int, least: int) -> tuple[int, ...]:
        """An attribute of so many whole numbers, none below ``least``. Refusal."""
        value = self.attrs[name]
        assert isinstance(value, tuple)
        if len(value) != count:
            raise attr(name, f"{len(value)} numbers, {self.op.name} wants {count}")
        if any(not least <= one < 1 << 31 for one in value):
            raise attr(name, f"{show(value)}: every number must be {least} or more, and below 2^31")
        return value

    def real(self, name: str) -> float:
        """An attribute that is a real number."""
        value = self.attrs[name]
        assert isinstance(value, float)
        return value


class Output(NamedTuple):
    """What an op makes. ``dtypes``: those that it may have, the first one unless the caller says another."""

    shape: Shape
    dtypes: tuple[DType, ...]
    needed: bool = True
    """Otherwise it is made only where the caller describes it."""


def shape_of(index: int, why: str) -> Refusal:
    """An input's shape is wrong."""
    return Refusal(f"inputs[{index}].shape", why)


def attr(name: str, why: str) -> Refusal:
    """An attribute is wrong."""
    return Refusal(f"attrs[{name!r}]", why)


def rank(ask: Ask, index: int, *allowed: int) -> Tensor:
    """The input, which has one of these numbers of dimensions. Refusal."""
    found = ask.must(index)
    if len(found.shape) not in allowed:
        raise shape_of(index, f"{show(found.shape)}: {ask.op.inputs[index].name} of {ask.op.name} has "
                              f"{' or '.join(map(str, allowed))} dimensions")  # fmt: skip
    return found


def exactly(ask: Ask, index: int, shape: Sequence[int], of: str) -> None:
    """The input, where it is there, has this shape. Refusal naming both."""
    found = ask.inputs[index]
    if found is not None and found.shape != tuple(shape):
        name = ask.op.inputs[index].name
        raise shape_of(index, f"{show(found.shape)}: {name} must be {show(shape)}, {of}")


def like_first(ask: Ask, *indices: int) -> None:
    """These inputs, where they are there, have the first one's type: no promotion. Refusal."""
    first = ask.must(0).dtype
    for index in indices:
        found = ask.inputs[index]
        if found is not None and found.dtype is not first:
            names = ask.op.inputs
            text = f"{found.dtype.name}: {names[index].name} must have the type of {names[0].name}, {first.name}"
            raise Refusal(f"inputs[{index}].data_type", text)


def axis_of(ask: Ask, dims: int) -> int:
    """The attribute ``axis``, counted from the front. Refusal outside of -dims .. dims-1 (a scalar counts as one)."""
    axis, dims = ask.number("axis"), dims or 1
    if not -dims <= axis < dims:
        raise attr("axis", f"{axis}: X has {dims} dimensions, so {-dims} to {dims - 1} are possible")
    return axis % dims


def common_shape(index: int, first: Sequence[int], second: Sequence[int]) -> Shape:
    """The broadcast shape. Refusal, about that input, naming both."""
    try:
        return broadcast(first, second)
    except UsageError as error:
        raise shape_of(index, error.message) from None


def or_fp32(dtype: DType) -> tuple[DType, ...]:
    """A half-precision result may stay in fp32."""
    return (dtype,) if dtype is FP32 else (dtype, FP32)
