"""The few cases that show again what a record says: for each element type of the kernel, such as it takes itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accelctl.abi.call import Call
from accelctl.abi.ops import Template
from accelctl.abi.opset import OPS
from accelctl.abi.tensors import DTYPES, Shape, Tensor
from accelctl.smoke.cases import Case, Trial, select

EACH = 2
"""Cases of one kernel and element type."""
_LOADED = 12
"""Cases of one op and element type whose data are made, at most, to find those."""


def cases_for(templates: Sequence[Template], wanted: Sequence[Template]) -> frozenset[str]:
    """Ids. ``templates``: all kernels of the chip, special ones included."""
    special = [one for one in templates if one.fallback]
    return frozenset(case.id for one in wanted for case in _cases(one, special))


def _cases(template: Template, special: Sequence[Template]) -> Iterator[Case]:
    for dtype in sorted(template.dtypes):
        count = 0
        plain = [case for case in select([template.op], [dtype]) if not case.long]
        for case in plain if template.fallback else plain[:_LOADED]:
            trial = case.load()
            if trial.refusal is None and _takes(template, special, call_of(trial)):
                yield case
                count += 1
            if count == EACH:
                break


def _takes(template: Template, special: Sequence[Template], call: Call) -> bool:
    """Whether the service would choose this kernel, as far as its conditions say it."""
    mine = [one for one in special if one.op == template.op and (one is template or not template.fallback)]
    holds = [one for one in mine if one.conditions is not None and not one.conditions.failed(call)]
    return template in holds if template.fallback else not holds


def call_of(trial: Trial) -> Call:
    """What a trial asks for, without addresses."""
    op = OPS[trial.case.op]
    inputs = {name: _tensor(one.shape, one.dtype, one.strides) for name, one in trial.inputs.items()}
    outputs = {name: _tensor(one.shape, one.dtype, one.strides) for name, one in trial.outputs.items()}
    return Call(
        op,
        tuple(inputs.get(one.name) for one in op.inputs),
        tuple(outputs.get(one.name) for one in op.outputs),
        op.parse(trial.attrs),
    )


def _tensor(shape: Shape, dtype: str, strides: Shape) -> Tensor:
    return Tensor(tuple(shape), DTYPES[dtype], tuple(strides))
