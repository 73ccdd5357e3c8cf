"""When a kernel may be used, as data: it can be written to a file, compared, and evaluated for a call.

Whoever says "only for small batches" in words has said it to people. Here each condition is a value with a name, and
the words are made of it, so that what is printed is what is checked. The words of a condition are the same for every
call: they are what a service counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

from accelctl.abi.call import Call
from accelctl.abi.opset import Op, text_of
from accelctl.abi.tensors import DTYPES, Tensor, broadcast, is_dense
from accelctl.errors import AbiError, UsageError

Bounds = tuple[int, int]
"""Least and most."""
MOST = (1 << 63) - 1
"""Upper bound where there is none."""
MATMUL_DIMS = ("M", "K", "N", "batch")
M, K, N = range(3)
Check = Callable[[Call], str]
"""The words of a condition that does not hold; empty: all that it asks for does."""


class Offers(NamedTuple):
    """What a device has of what kernels may need."""

    resources: Mapping[str, int] = MappingProxyType({})
    """With the unit in the name, as in ``needs``."""
    instructions: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """All must hold. What is empty asks for nothing. AbiError, in one line, for what no call could be asked."""

    dtypes: frozenset[str] = frozenset()
    """Element types of the op's first input."""
    results: frozenset[str] = frozenset()
    """Element types of every result."""
    dims: Mapping[str, Bounds] = field(default_factory=dict)
    """Name of a dimension -> its bounds. M, K, N and batch of a matrix product; of every op ``X.0``, ``X.-1`` (an
    operand's axis) and ``X.rank``."""
    dense: bool = False
    """Every operand is row major without gaps."""
    absent: frozenset[str] = frozenset()
    """Optional operands that must not be there (a bias, say)."""
    present: frozenset[str] = frozenset()
    """Optional operands that must be there."""
    attrs: Mapping[str, str] = field(default_factory=dict)
    """Attributes that must have this value, as the protocol writes it."""
    needs: Mapping[str, int] = field(default_factory=dict)
    """What one block takes of the device, with the unit in the name (``local_memory_bytes``, ``threads``)."""
    instructions: tuple[str, ...] = ()
    """Instructions or extensions that the device must have."""
    words: tuple[str, ...] = ()
    """Conditions of an older file, which nobody can evaluate: they never hold."""

    def __post_init__(self) -> None:
        unknown = sorted((self.dtypes | self.results) - set(DTYPES))
        _refuse(bool(unknown), f"no element type {', '.join(map(repr, unknown))}")
        for name, (least, most) in self.dims.items():
            _refuse(not 0 <= least <= most <= MOST, f"{name} from {least} to {most}: no call has that")
        for name, amount in self.needs.items():
            _refuse(not 0 <= amount <= MOST, f"{name}: {amount} is no amount")
        both = sorted(self.absent & self.present)
        _refuse(bool(both), f"{', '.join(both)} cannot be there and be left out")

    def check(self, op: Op) -> None:
        """AbiError for a name that this op does not have."""
        operands = {one.name: one.optional for one in (*op.inputs, *op.outputs)}
        own = MATMUL_DIMS if op.name == "matmul" else ()
        for name in self.dims:
            operand, _, axis = name.rpartition(".")
            known = name in own or (operand in operands and (axis == "rank" or _is_axis(axis)))
            _refuse(not known, f"{op.name} has no dimension {name!r}")
        for name in sorted(self.absent | self.present):
            _refuse(not operands.get(name), f"{op.name} has no optional operand {name!r}")
        try:
            parsed = {name: op.parse({**_given(op), name: text})[name] for name, text in self.attrs.items()}
        except UsageError as error:
            raise AbiError(f"conditions: {error.message}") from None
        for name, value in parsed.items():
            _refuse(text_of(value) != self.attrs[name], f"{name} is written {text_of(value)!r}")

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """What a call is asked, in this order. Evaluated for every translation that has a special kernel, so what is
        asked of the same thing is one function."""
        found: list[Check] = [_always(one) for one in self.words]
        dims = _ordered(self.dims)
        if lengths := [(name, bounds) for name, bounds in dims if name in MATMUL_DIMS]:
            found.append(_product(lengths))
        if self.dtypes or self.results:
            found.append(_types(self.dtypes, self.results))
        found += [_axis(name, *bounds) for name, bounds in dims if name not in MATMUL_DIMS]
        found += [_operand(name, False) for name in sorted(self.absent)]
        found += [_operand(name, True) for name in sorted(self.present)]
        found += [_attr(name, text) for name, text in sorted(self.attrs.items())]
        return (*found, _all_dense) if self.dense else tuple(found)

    def failed(self, call: Call) -> str:
        """The first condition that does not hold, in words; empty: all hold."""
        for check in self.checks:
            words = check(call)
            if words:
                return words
        return ""

    def lacking(self, offers: Offers) -> str:
        """What of these the device does not have, in words; empty: it has all. No call changes that."""
        short = [name for name, amount in sorted(self.needs.items()) if offers.resources.get(name, 0) < amount]
        missing = [one for one in self.instructions if one not in offers.instructions]
        found = [*(_needed(name, self.needs[name]) for name in short), *map(_had, missing)]
        return found[0] if found else ""

    def texts(self) -> tuple[str, ...]:
        """All of them, for people."""
        resources = (_needed(name, amount) for name, amount in sorted(self.needs.items()))
        calls = [
            *self.words,
            *(_said(name, *bounds) for name, bounds in _ordered(self.dims) if name in MATMUL_DIMS),
            *([_typed(self.dtypes)] if self.dtypes else []),
            *([_resulting(self.results)] if self.results else []),
            *(_said(name, *bounds) for name, bounds in _ordered(self.dims) if name not in MATMUL_DIMS),
            *(_lacks(name, False) for name in sorted(self.absent)),
            *(_lacks(name, True) for name in sorted(self.present)),
            *(_valued(name, text) for name, text in sorted(self.attrs.items())),
            *([_DENSE] if self.dense else []),
        ]
        return (*calls, *resources, *map(_had, self.instructions))

    def document(self) -> dict[str, Any]:
        """As plain values, with what asks for nothing left out; the words beside them are derived."""
        found: dict[str, Any] = {"text": list(self.texts())}
        for name in ("dtypes", "results", "absent", "present"):
            if getattr(self, name):
                found[name] = sorted(getattr(self, name))
        for name in ("instructions", "words"):
            if getattr(self, name):
                found[name] = list(getattr(self, name))
        if self.dense:
            found["dense"] = True
        if self.dims:
            found["dims"] = {name: _written(*bounds) for name, bounds in sorted(self.dims.items())}
        for name in ("attrs", "needs"):
            if getattr(self, name):
                found[name] = dict(sorted(getattr(self, name).items()))
        return found


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise AbiError(f"conditions: {why}")


def _is_axis(text: str) -> bool:
    number = text.removeprefix("-")
    return number.isascii() and number.isdigit() and len(number) == 1


def _given(op: Op) -> dict[str, str]:
    """Something for each attribute that has no default, so that one of them can be looked at alone."""
    some = {"int": "1", "float": "1.0", "bool": "true", "ints": ""}
    return {one.name: one.words[0] if one.words else some[one.kind] for one in op.attrs if one.default is None}


def _any_of(names: frozenset[str]) -> str:
    return " or ".join(sorted(names))


def _written(least: int, most: int) -> list[int]:
    return [least] if most == MOST else [least, most]


def _needed(name: str, amount: int) -> str:
    return f"the device has {name} >= {amount}"


def _had(instruction: str) -> str:
    return f"the device has {instruction}"


def _said(name: str, least: int, most: int) -> str:
    if least == most:
        return f"{name} == {least}"
    if most == MOST:
        return f"{name} >= {least}"
    return f"{name} <= {most}" if not least else f"{least} <= {name} <= {most}"


def _ordered(dims: Mapping[str, Bounds]) -> list[tuple[str, Bounds]]:
    """Exact ones first: they say most."""
    return sorted(dims.items(), key=lambda one: (one[1][0] != one[1][1], one[0]))


def _typed(names: frozenset[str]) -> str:
    return f"element type is {_any_of(names)}"


def _resulting(names: frozenset[str]) -> str:
    return f"result is {_any_of(names)}"


def _lacks(name: str, there: bool) -> str:
    return f"{name} is there" if there else f"no {name}"


def _valued(name: str, text: str) -> str:
    return f"{name} is {text}"


def _always(words: str) -> Check:
    return lambda call: words


def _types(given: frozenset[str], made: frozenset[str]) -> Check:
    wrong, other = _typed(given), _resulting(made)

    def check(call: Call) -> str:
        if given:
            first = call.inputs[0]
            if first is None or first.dtype.name not in given:
                return wrong
        if made:
            for one in call.outputs:
                if one is not None and one.dtype.name not in made:
                    return other
        return ""

    return check


def _product(lengths: Sequence[tuple[str, Bounds]]) -> Check:
    """M, K, N and batch: a vector on the left has M 1, one on the right N 1."""
    wanted = [(MATMUL_DIMS.index(name), *bounds, _said(name, *bounds)) for name, bounds in lengths]

    def check(call: Call) -> str:
        one, other = call.inputs
        a, b = one.shape, other.shape  # type: ignore[union-attr]  # a matmul has both
        for at, least, most, words in wanted:
            if at == N:
                length = b[-1] if len(b) > 1 else 1
            elif at == K:
                length = a[-1]
            elif at == M:
                length = a[-2] if len(a) > 1 else 1
            else:
                length = 1 if len(a) < 3 and len(b) < 3 else prod(broadcast(a[:-2], b[:-2]))
            if not least <= length <= most:
                return words
        return ""

    return check


def _axis(name: str, least: int, most: int) -> Check:
    """A length of an operand, or its rank; where it is not there, no bounds hold."""
    operand, _, axis = name.rpartition(".")
    words, index = _said(name, least, most), 0 if axis == "rank" else int(axis)

    def check(call: Call) -> str:
        one = _found(call, operand)
        if one is None:
            return words
        if axis == "rank":
            return "" if least <= len(one.shape) <= most else words
        there = -len(one.shape) <= index < len(one.shape)
        return "" if there and least <= one.shape[index] <= most else words

    return check


def _found(call: Call, name: str) -> Tensor | None:
    for operand, one in zip((*call.op.inputs, *call.op.outputs), (*call.inputs, *call.outputs), strict=True):
        if operand.name == name:
            return one
    return None


def _operand(name: str, wanted: bool) -> Check:
    words = _lacks(name, wanted)
    return lambda call: "" if (_found(call, name) is not None) == wanted else words


def _attr(name: str, text: str) -> Check:
    words = _valued(name, text)
    return lambda call: "" if name in call.attrs and text_of(call.attrs[name]) == text else words


_DENSE = "operands are dense"


def _all_dense(call: Call) -> str:
    for one in call.inputs + call.outputs:
        if one is None:
            continue
        shape, _, strides, _ = one
        if len(shape) == 2 and strides[0] == shape[1] and strides[1] == 1:
            continue  # as nearly all are
        if not is_dense(shape, strides):
            return _DENSE
    return ""


ALWAYS = Conditions()
"""No condition at all."""
