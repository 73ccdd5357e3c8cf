"""Instructions that come back from a client: taken apart strictly, and held to everything that a request is held to.

A client may keep what was translated and hand it over later, many times, or change it on the way. What this session
made itself, byte for byte, is known. Everything else must be what the pipeline could have made for addresses of this
session: a device has no second look.
"""

from __future__ import annotations

from collections.abc import Sequence

from accelctl.abi import blob
from accelctl.abi.blob import Instruction
from accelctl.abi.call import Call, decode
from accelctl.abi.ops import Template
from accelctl.abi.opset import OPS, Operand
from accelctl.abi.tensors import Tensor, span
from accelctl.errors import UsageError
from accelctl.umd.chip import Chip
from accelctl.umd.dispatch import refused_by
from accelctl.umd.memory import Allocation
from accelctl.umd.pipeline.infer import launch_of, outputs_of
from accelctl.umd.pipeline.lower import is_mixed
from accelctl.umd.pipeline.route import route
from accelctl.umd.pipeline.run import IN_PLACE, overlap
from accelctl.umd.pipeline.validate import own_elements
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal
from accelctl.umd.session import Known, Session, keep
from accelctl.umd.translators.common import Ask, Described


def admit(session: Session, one: pb.HardwareInstruction, field: str) -> Known:
    """An instruction, checked. ``session.lock`` is held. Refusal naming what is wrong with it."""
    known = session.known.get(one.instruction_blob)
    if known is not None and all(allocation.alive for allocation in known.allocations):
        _same(blob.decode(one.instruction_blob), one, field)
        return known
    try:
        found = blob.decode(one.instruction_blob)
        template, call = _call(session.chip, found)
    except UsageError as error:
        raise Refusal(f"{field}.instruction_blob", error.message.removeprefix("instruction: ")) from None
    _same(found, one, field)
    _possible(session.chip, template, call, found, f"{field}.instruction_blob")
    admitted = Known(call.op.name, tuple(_places(session, call, f"{field}.param_addrs")))
    keep(session.known, one.instruction_blob, admitted)
    return admitted


def _call(chip: Chip, found: Instruction) -> tuple[Template, Call]:
    template = chip.by_number.get(found.kernel_id)
    if template is None:
        raise UsageError(chip.why_not(found.kernel_id))
    return template, decode(OPS[template.op], found.body, found.params)


def _same(found: Instruction, one: pb.HardwareInstruction, field: str) -> None:
    """What is said beside the blob, if anything, is what is in it."""
    for name, said, there in (
        ("kernel_id", one.kernel_id, found.kernel_id),
        ("launch_config", one.launch_config, found.launch.encode()),
        ("param_addrs", tuple(one.param_addrs), found.params),
    ):
        if said and said != there:
            raise Refusal(f"{field}.{name}", "not what the instruction says")


def _possible(chip: Chip, template: Template, call: Call, found: Instruction, field: str) -> None:
    """The operands fit together, the kernel takes them, and the launch is the one that it gets for them."""
    _types(call.inputs, call.op.inputs, field)
    _types(call.outputs, call.op.outputs, field)
    said = tuple(one and Described(one.shape, one.dtype, one.strides) for one in call.outputs)
    ask = Ask(call.op, call.inputs, said, call.attrs)
    try:
        made = outputs_of(ask, route(call.op, chip))
    except Refusal as refusal:
        raise Refusal(field, str(refusal), refusal.kind) from None
    if [one and one.shape for one in made] != [one and one.shape for one in call.outputs]:
        raise Refusal(field, "the results are not what the operands make")
    for one in call.outputs:
        if one is not None and 0 not in one.shape:
            own_elements(one.shape, one.strides, field)
    why = refused_by(template, call) or ("operands of several types" if is_mixed(ask) else "")
    why = why or chip.dispatch.why_not(template, call)
    if why:
        raise Refusal(field, f"kernel {template.name}: {why}", "not_supported")
    if launch_of(template, call) != found.launch:
        raise Refusal(field, f"kernel {template.name} is not launched like that for these operands", "launch_config")


def _types(tensors: Sequence[Tensor | None], operands: Sequence[Operand], field: str) -> None:
    for one, operand in zip(tensors, operands, strict=True):
        if one is not None and one.dtype.name not in operand.dtypes:
            raise Refusal(field, f"{one.dtype.name} for {operand.name}")


def _places(session: Session, call: Call, field: str) -> list[Allocation]:
    """Every operand is inside one allocation of the session, and no result lies over an operand. Refusal."""
    allocations = []
    ranges: list[tuple[int, int, Tensor]] = []
    for index, one in enumerate(call.tensors):
        size = span(one.shape, one.strides, one.dtype)
        place = session.memory.place(0, one.address, size, one.dtype.itemsize, f"{field}[{index}]")
        if place.allocation is not None:
            allocations.append(place.allocation)
        ranges.append((one.address, size, one))
    inputs = sum(one is not None for one in call.inputs)
    for index in range(inputs, len(ranges)):
        start, size, written = ranges[index]
        for other_start, other_size, other in ranges[:index]:
            if overlap(start, size, other_start, other_size) and not (call.op.name in IN_PLACE and other == written):
                raise Refusal(f"{field}[{index}]", "a result lies over another operand")
    return allocations
