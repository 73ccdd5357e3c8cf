"""Stage 2: who knows this op, and has the chip anything for it?"""

from __future__ import annotations

from typing import NamedTuple

from accelctl.abi.ops import Template
from accelctl.abi.opset import Op
from accelctl.umd.chip import Chip
from accelctl.umd.dispatch import Dispatch
from accelctl.umd.refusal import Refusal
from accelctl.umd.translators import FAMILIES, Check


class Route(NamedTuple):
    """An op's check, its general kernels on this chip, those that copy, and who knows the special ones."""

    check: Check
    templates: tuple[Template, ...]
    copies: tuple[Template, ...]
    dispatch: Dispatch
    dark: tuple[str, ...] = ()
    """Of its kernels that are switched off, why."""


def route(op: Op, chip: Chip) -> Route:
    """The way for an op. Refusal where the chip has no kernel for it."""
    found = chip.routes.get(op.name)
    if found is None:
        age = chip.age
        found = _find(op, chip)
        with chip.lock:
            if chip.age == age:  # otherwise it may be of before a switch, and is good for this once
                chip.routes[op.name] = found
    return found


def _find(op: Op, chip: Chip) -> Route:
    check = FAMILIES[op.family][op.name]
    templates = chip.by_op.get(op.name, ())
    off = chip.off.ops.get(op.name)
    if off is not None:
        raise Refusal("op_type", f"{op.name} is switched off for {chip.target.id} by {off}", "not_supported")
    if not templates and op.name in chip.dark:
        why = "; ".join(chip.dark[op.name])
        raise Refusal("op_type", f"no kernel of {chip.target.id} is left for {op.name}: {why}", "not_supported")
    if not templates:
        there = ", ".join(sorted(chip.by_op))
        raise Refusal("op_type", f"{chip.target.chip} has no kernel for {op.name} (it has: {there})", "not_supported")
    return Route(check, templates, chip.copies, chip.dispatch, tuple(chip.dark.get(op.name, ())))
