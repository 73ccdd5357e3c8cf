"""Stage 3: the ways in which an op can be put to a chip, the plainest first.

    as it is     element types, strides and layout of the request
    dense        operands with gaps or transposed ones are copied together before
    nchw         a convolution in nhwc, as the nchw convolution of the same elements seen with other strides
    fp32         where no kernel has the type, or the operands are of several: everything in fp32, then one rounding

What is put before and after the kernel are ``copy`` kernels, and their temporaries lie in the session's scratch memory.
A result that is computed in fp32 and then rounded is the result that every op promises: one rounding, at the end. No
operand is ever made narrower than it is.

A result whose memory overlaps an operand's goes through scratch as well: it could be written before all of the operand
is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accelctl.abi.call import Call
from accelctl.abi.opset import OPS, Attrs, Value
from accelctl.abi.tensors import FP32, DType, Shape, Tensor, tensor
from accelctl.umd.translators.common import Ask

ALIGN = 256
"""Of temporaries in scratch memory, bytes: enough for any vendor's vector loads."""
_COPY = OPS["copy"]


class Recipe(NamedTuple):
    """One way. ``dtype``: what floating operands become; None: what they are."""

    dtype: DType | None = None
    nchw: bool = False
    dense: bool = False


PLAIN = Recipe()
"""As it is."""


class Node(NamedTuple):
    """One kernel call. ``refs`` has for each tensor that is there where it lies: an operand's place in Form.tensors, or
    -1 - offset in scratch memory."""

    call: Call
    refs: tuple[int, ...]


class Form(NamedTuple):
    """An op put in one way: copies before, the kernel, copies after; and the scratch memory that they need."""

    before: tuple[Node, ...]
    main: Node
    after: tuple[Node, ...]
    scratch: int


_AS_IS = (PLAIN, Recipe(dense=True))
_WIDER = (Recipe(FP32), Recipe(FP32, dense=True))


def recipes(ask: Ask) -> tuple[Recipe, ...]:
    """All ways that make sense for these operands, the plainest first."""
    if is_mixed(ask):
        found: tuple[Recipe, ...] = _WIDER
    else:
        first = ask.must(0).dtype
        found = _AS_IS + _WIDER if first.floating and first is not FP32 else _AS_IS
    if ask.attrs.get("layout") != "nhwc":
        return found
    return tuple(way for one in found[::2] for way in _both_layouts(one))


def _both_layouts(one: Recipe) -> tuple[Recipe, ...]:
    ways = one, one._replace(nchw=True)
    return tuple(wanted for way in ways for wanted in (way, way._replace(dense=True)))


def is_mixed(ask: Ask) -> bool:
    """Several types among what is computed with. (Whole numbers are indices or masks, but in a sum.)"""
    first: DType | None = None
    for one in ask.inputs:
        if one is not None and one.dtype is not first and (one.dtype.floating or ask.op.name == "add"):
            if first is not None:
                return True
            first = one.dtype
    return False


_IN_ORDER = tuple(range(16))


def form_of(recipe: Recipe, ask: Ask, outputs: Sequence[Tensor | None], through: frozenset[int]) -> Form:
    """An op put in one way. ``through``: outputs that must go through scratch memory."""
    if recipe is PLAIN and not through and ask.op.name != "conv2d":
        absent = ask.inputs.count(None) + outputs.count(None)
        refs = _IN_ORDER[: len(ask.inputs) + len(outputs) - absent]
        return Form((), Node(Call(ask.op, ask.inputs, tuple(outputs), ask.attrs), refs), (), 0)
    return Builder(recipe, ask).build(outputs, through)


class Builder:
    """Puts one op in one way."""

    def __init__(self, recipe: Recipe, ask: Ask) -> None:
        self.recipe, self._ask = recipe, ask
        self._before: list[Node] = []
        self._after: list[Node] = []
        self._scratch = 0
        self._conv = ask.op.name == "conv2d"
        self._sum = ask.op.name == "add"

    def build(self, outputs: Sequence[Tensor | None], through: frozenset[int]) -> Form:
        """``through``: outputs that must go through scratch memory."""
        inputs: list[Tensor | None] = []
        refs: list[int] = []
        place = 0
        for index, one in enumerate(self._ask.inputs):
            found = None
            if one is not None:
                found, ref = self._operand(self._view(one, index), place)
                refs.append(ref)
                place += 1
            inputs.append(found)
        made: list[Tensor | None] = []
        for index, one in enumerate(outputs):
            found = None
            if one is not None:
                found, ref = self._result(self._view(one, index), place, index in through)
                refs.append(ref)
                place += 1
            made.append(found)
        call = Call(self._ask.op, tuple(inputs), tuple(made), self._attrs())
        return Form(tuple(self._before), Node(call, tuple(refs)), tuple(self._after), self._scratch)

    def _attrs(self) -> Attrs:
        if not self.recipe.nchw:
            return self._ask.attrs
        changed: dict[str, Value] = {**self._ask.attrs, "layout": "nchw"}
        return changed

    def _view(self, one: Tensor, index: int) -> Tensor:
        """A convolution's X (and Y) with all four dimensions, and in nchw where that is the way: the same elements."""
        if not self._conv or index:
            return one
        shape, strides = one.shape, one.strides
        if len(shape) == 3:
            shape, strides = (1, *shape), (0, *strides)
        if self.recipe.nchw:
            shape, strides = _channels_first(shape), _channels_first(strides)
        return Tensor(shape, one.dtype, strides)

    def _wanted(self, one: Tensor) -> DType:
        if self.recipe.dtype is None or not (one.dtype.floating or self._sum):
            return one.dtype
        return self.recipe.dtype

    def _operand(self, one: Tensor, place: int) -> tuple[Tensor, int]:
        wanted = self._wanted(one)
        if wanted is one.dtype and not (self.recipe.dense and not one.dense):
            return one, place
        made, ref = self._temporary(one.shape, wanted)
        if made.elements:
            self._before.append(Node(Call(_COPY, (one,), (made,), {}), (place, ref)))
        return made, ref

    def _result(self, one: Tensor, place: int, through: bool) -> tuple[Tensor, int]:
        wanted = self._wanted(one)
        if wanted is one.dtype and not through and not (self.recipe.dense and not one.dense):
            return one, place
        made, ref = self._temporary(one.shape, wanted)
        if made.elements:
            self._after.append(Node(Call(_COPY, (made,), (one,), {}), (ref, place)))
        return made, ref

    def _temporary(self, shape: Shape, dtype: DType) -> tuple[Tensor, int]:
        made = tensor(shape, dtype)
        offset = self._scratch
        self._scratch += -(-made.nbytes // ALIGN) * ALIGN
        return made, -1 - offset


def _channels_first(lengths: Shape) -> Shape:
    images, height, width, channels = lengths
    return images, channels, height, width
