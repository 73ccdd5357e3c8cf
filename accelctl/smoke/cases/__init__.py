"""The catalogue: op x element type x shape x attributes, with every corner that the collected op facts name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from accelctl.abi.opset import OPS
from accelctl.abi.tensors import DTYPES
from accelctl.errors import UsageError
from accelctl.smoke.cases import (
    conv2d,
    copying,
    decode,
    elementwise,
    grouped,
    matmul,
    norms,
    prefill,
    rope,
    routing,
    softmax,
)
from accelctl.smoke.cases.record import Arg, Case, Out, Refusal, Trial

__all__ = ["Arg", "Case", "Out", "Refusal", "Trial", "catalogue", "select", "sequences"]

_BOOKS = {
    "matmul": matmul.cases,
    "conv2d": conv2d.cases,
    "layernorm": norms.layernorm_cases,
    "relu": elementwise.relu_cases,
    "add": elementwise.add_cases,
    "softmax": softmax.cases,
    "rmsnorm": norms.rmsnorm_cases,
    "rope": rope.cases,
    "silu_and_mul": elementwise.silu_cases,
    "attention_prefill": prefill.cases,
    "attention_decode": decode.cases,
    "grouped_gemm": grouped.cases,
    "topk_softmax": routing.topk_cases,
    "moe_align": routing.align_cases,
    "copy": copying.cases,
}


@cache
def catalogue() -> tuple[Case, ...]:
    """Every case, in the order of the op table. No data are made."""
    return tuple(case for op in OPS for case in _BOOKS[op]())


def select(ops: Iterable[str] = (), dtypes: Iterable[str] = (), long: bool = False) -> list[Case]:
    """Cases of these ops and element types (none named: all); without ``long``, those that take long are left out.
    UsageError for an unknown name."""
    ops, dtypes = list(ops), list(dtypes)
    _known("op", ops, list(OPS))
    _known("element type", dtypes, list(DTYPES))
    return [
        case
        for case in catalogue()
        if (not ops or case.op in ops) and (not dtypes or case.dtype in dtypes) and (long or not case.long)
    ]


def _known(what: str, given: Iterable[str], there: list[str]) -> None:
    for name in given:
        if name not in there:
            raise UsageError(f"no {what} {name!r}; there are: {', '.join(there)}")


def sequences(cases: Iterable[Case]) -> Iterator[tuple[str, list[Case]]]:
    """Cases that belong together, by the name of their sequence: to be run in one session in this order, and then in
    reverse. The order is that of the number at the end of the id."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        if case.sequence:
            found.setdefault(case.sequence, []).append(case)
    for name, together in found.items():
        yield name, sorted(together, key=lambda case: int(case.id.rpartition("-")[2]))
