"""What the formulas of the reference share: exact inputs, refusals, and the shape rules of operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from accelctl.abi.opset import Attrs
from accelctl.smoke.numbers import Array, name_of, wide

Inputs = Mapping[str, "Array | None"]
"""Operands by name, in the tested element type; an optional one that is left out is absent or None."""
Outputs = dict[str, Array]
"""Results by name: float64 and not yet rounded, or integers as they are stored (int64)."""


class Target(NamedTuple):
    """What a result is asked to be: only ``copy`` needs to know."""

    shape: tuple[int, ...]
    dtype: str


class Refused(ValueError):
    """There is no right value: shapes, types or attributes do not fit. The text is the reason."""


Formula = Callable[[Inputs, Attrs], Outputs]


def need(inputs: Inputs, name: str) -> Array:
    """An operand that must be there."""
    array = inputs.get(name)
    if array is None:
        raise Refused(f"{name} is missing")
    return array


def exact(inputs: Inputs, name: str) -> Array:
    """An operand that must be there, in float64 or int64."""
    return wide(need(inputs, name))


def maybe(inputs: Inputs, name: str) -> Array | None:
    """An optional operand in float64 or int64; None where it is left out."""
    array = inputs.get(name)
    return None if array is None else wide(array)


def refuse(wrong: bool, reason: str) -> None:
    """Refused, with the reason, where that is so."""
    if wrong:
        raise Refused(reason)


def same_types(inputs: Inputs, *names: str) -> None:
    """Operands that are there must have one element type: nothing promotes silently."""
    found = {name: name_of(array) for name in names if (array := inputs.get(name)) is not None}
    refuse(len(set(found.values())) > 1, "mixed element types: " + ", ".join(f"{k} {v}" for k, v in found.items()))


def whole(attrs: Attrs, name: str) -> int:
    """An attribute that is a whole number."""
    value = attrs[name]
    assert isinstance(value, int)
    return value


def real(attrs: Attrs, name: str) -> float:
    """An attribute that is a number."""
    value = attrs[name]
    assert isinstance(value, (int, float))
    return float(value)


def axis_of(axis: int, rank: int) -> int:
    """A possibly negative axis, counted from the front."""
    refuse(not -rank <= axis < rank, f"axis {axis} of a tensor with {rank} dimensions")
    return axis % rank


def shown(shape: tuple[int, ...]) -> str:
    """(2,3)."""
    return "(" + ",".join(map(str, shape)) + ")"


def common_shape(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast from the right."""
    try:
        return np.broadcast_shapes(first, second)
    except ValueError:
        raise Refused(f"shapes {shown(first)} and {shown(second)} do not broadcast") from None
