"""Stage 4: what comes out, and which kernels make it, on which grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accelctl.abi.call import Call
from accelctl.abi.launch import Launch
from accelctl.abi.ops import Template
from accelctl.abi.tensors import Tensor, show, span
from accelctl.errors import AccelError, UsageError
from accelctl.umd.dispatch import refused_by, taken
from accelctl.umd.pipeline.lower import Form, Node, Recipe, form_of
from accelctl.umd.pipeline.route import Route
from accelctl.umd.pipeline.validate import OUTPUTS
from accelctl.umd.refusal import Refusal, refusal_of
from accelctl.umd.translators.common import Ask, Described, Output, dense_facts


class Chosen(NamedTuple):
    """A kernel call with everything but its bytes."""

    node: Node
    template: Template
    launch: Launch


class Graph(NamedTuple):
    """What a request becomes. Without any steps there is nothing to compute: all results are empty."""

    steps: tuple[Chosen, ...]
    scratch: int


def outputs_of(ask: Ask, route: Route) -> tuple[Tensor | None, ...]:
    """The outputs, complete; None for optional ones that nobody wants. Refusal for operands that do not fit together,
    and for a description that is not what the op makes."""
    found: list[Tensor | None] = []
    for index, output in enumerate(route.check(ask)):
        said = ask.outputs[index]
        wanted = output.needed or said is not None
        found.append(_complete(output, said or _NOTHING_SAID, OUTPUTS[index]) if wanted else None)
    return tuple(found)


_NOTHING_SAID = Described()


def _complete(output: Output, said: Described, field: str) -> Tensor:
    if said.shape is not None and said.shape != output.shape:
        raise Refusal(f"{field}.shape", f"{show(said.shape)}: the result is {show(output.shape)}")
    dtype = said.dtype or output.dtypes[0]
    if dtype not in output.dtypes:
        names = " or ".join(one.name for one in output.dtypes)
        raise Refusal(f"{field}.data_type", f"{dtype.name}: the result is {names}")
    try:
        size, strides = dense_facts(output.shape, dtype)
        if said.strides is not None:
            strides = said.strides
            span(output.shape, strides, dtype)
    except UsageError as error:
        raise Refusal(f"{field}.shape", f"the result: {error.message}") from None
    if said.byte_size and said.byte_size != size:
        raise Refusal(
            f"{field}.byte_size", f"{said.byte_size}: the result {show(output.shape)} of {dtype.name} has {size}"
        )
    return Tensor(output.shape, dtype, strides)


def graph_of(
    ask: Ask, route: Route, ways: Sequence[Recipe], outputs: Sequence[Tensor | None], through: frozenset[int]
) -> Graph:
    """The first way that the chip's kernels take, a special one before the general ones. Refusal with each kernel's
    reason where none does."""
    if all(one is None or 0 in one.shape for one in outputs):
        return Graph((), 0)
    reasons: dict[str, None] = dict.fromkeys(route.dark)
    for way in ways:
        form = form_of(way, ask, outputs, through)
        verdicts = route.dispatch.judge(form.main.call)
        special = taken(verdicts)
        main = _chosen(special, form.main) if special is not None else _pick(route.templates, form.main, reasons)
        if main is not None:
            if verdicts:
                route.dispatch.count(verdicts)
            return _complete_graph(form, main, route)
    raise Refusal("op_type", f"no kernel takes this {ask.op.name}: {'; '.join(reasons)}", "not_supported")


def _complete_graph(form: Form, main: Chosen, route: Route) -> Graph:
    if not form.before and not form.after:
        return Graph((main,), form.scratch)
    reasons: dict[str, None] = {}
    steps: list[Chosen] = []
    for node in (*form.before, form.main, *form.after):
        chosen = main if node is form.main else _pick(route.copies, node, reasons)
        if chosen is None:
            raise Refusal(
                "op_type", f"no kernel copies between layouts or types here: {'; '.join(reasons)}", "not_supported"
            )
        steps.append(chosen)
    return Graph(tuple(steps), form.scratch)


def _pick(templates: Sequence[Template], node: Node, reasons: dict[str, None]) -> Chosen | None:
    """The first template that takes the call."""
    for template in templates:
        why = refused_by(template, node.call)
        if not why:
            return _chosen(template, node)
        reasons[f"{template.name}: {why}"] = None
    return None


def _chosen(template: Template, node: Node) -> Chosen:
    return Chosen(node, template, launch_of(template, node.call))


def launch_of(template: Template, call: Call) -> Launch:
    """Grid and block. Refusal where the template cannot say it."""
    try:
        return template.launch(call)
    except AccelError as error:
        raise refusal_of(error, "op_type") from None
