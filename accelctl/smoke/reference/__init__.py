"""What every op computes, in float64 and by formula: the judge of all executors, and independent of each of them."""

from __future__ import annotations

from collections.abc import Mapping

from accelctl.abi.opset import OPS, Attrs
from accelctl.smoke.numbers import Array, floating, name_of, rounded
from accelctl.smoke.reference import attention, contraction, elementwise, norm, position, routing
from accelctl.smoke.reference.common import Formula, Inputs, Outputs, Refused, Target, refuse

FORMULAS: dict[str, Formula] = {
    "matmul": contraction.matmul,
    "conv2d": contraction.conv2d,
    "grouped_gemm": contraction.grouped_gemm,
    "layernorm": norm.layernorm,
    "rmsnorm": norm.rmsnorm,
    "softmax": norm.softmax,
    "relu": elementwise.relu,
    "add": elementwise.add,
    "silu_and_mul": elementwise.silu_and_mul,
    "rope": position.rope,
    "attention_prefill": attention.attention_prefill,
    "attention_decode": attention.attention_decode,
    "topk_softmax": routing.topk_softmax,
    "moe_align": routing.moe_align,
}
"""All ops but copy, whose result depends on where it goes."""

__all__ = ["FORMULAS", "Refused", "Target", "compute", "result_type", "stored", "unjudged"]


def compute(op: str, inputs: Inputs, attrs: Attrs, targets: Mapping[str, Target] | None = None) -> Outputs:
    """Results of an op by name, optional ones included: float64 and not rounded, or int64. ``attrs`` are complete and
    typed (``Op.parse``); ``targets`` describe what is asked for, and only copy needs them.

    Refused where the op has no right value for these operands, with the reason.
    """
    for operand in OPS[op].inputs:
        array = inputs.get(operand.name)
        refuse(array is None and not operand.optional, f"{operand.name} is missing")
        wrong = array is not None and name_of(array) not in operand.dtypes
        refuse(wrong, f"{operand.name} cannot be {name_of(array) if array is not None else ''}")
    if op == "copy":
        return elementwise.copy(inputs, attrs, (targets or {})["Y"])
    return FORMULAS[op](inputs, attrs)


def result_type(op: str, inputs: Inputs, output: str) -> str:
    """Element type that a result has unless another one is asked for."""
    allowed = next(one.dtypes for one in OPS[op].outputs if one.name == output)
    if len(allowed) == 1:
        return next(iter(allowed))
    first, *others = (array for operand in OPS[op].inputs if (array := inputs.get(operand.name)) is not None)
    if op == "add":
        return elementwise.promoted(name_of(first), name_of(others[0]))
    if op == "matmul" and not floating(name_of(first)):
        return "int32"
    return name_of(first)


def stored(results: Outputs, types: Mapping[str, str]) -> dict[str, Array]:
    """Results in their element types, rounded once."""
    return {name: rounded(array, types[name]) for name, array in results.items()}


def unjudged(op: str, inputs: Inputs) -> dict[str, Array]:
    """Where a result is not defined or not agreed on, by output: True there. It broadcasts from the left."""
    if op == "grouped_gemm":
        return {"Y": contraction.undefined_rows(inputs)[:, None]}
    return {"Y": elementwise.unsettled(inputs)} if op == "silu_and_mul" else {}
