"""The stages in their order, with the session's cache around them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from time import perf_counter_ns as now
from typing import NamedTuple

from accelctl.abi.opset import BY_CODE as OPS
from accelctl.umd import wire
from accelctl.umd.chip import Chip
from accelctl.umd.memory import Allocation, Place
from accelctl.umd.pipeline.infer import graph_of, outputs_of
from accelctl.umd.pipeline.instantiate import Plan, Slot, blobs_of, plan_of
from accelctl.umd.pipeline.lower import recipes
from accelctl.umd.pipeline.route import route
from accelctl.umd.pipeline.validate import INPUTS, OUTPUTS, Names, Taken, ask_of, key_of, take_names
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal
from accelctl.umd.session import Kept, Known, Session, keep

_NOWHERE = (0, 0)
NOTHING: frozenset[int] = frozenset()
IN_PLACE = frozenset({"relu", "add"})
"""Ops that read an element only to write the same one: their result may lie where an operand lies."""


class Made(NamedTuple):
    """A translated request. ``fresh``: memory that was allocated for results."""

    kept: Kept
    hit: bool
    stage_ns: list[int]
    fresh: tuple[Allocation, ...]


def translate(session: Session, request: pb.OpRequest) -> Made:
    """Make instructions of a request, which is used up by that: its addresses are taken out. ``session.lock`` is held.
    Refusal; nothing stays allocated then."""
    start = now()
    taken = take_names(request)
    submit = request.submit
    if submit:
        request.submit = False
    key = key_of(request, taken)
    plan = session.plans.get(key)
    if plan is None:
        plan, stages = _planned(session.chip, key, request, taken, NOTHING)
        keep(session.plans, key, plan)
        hit = False
    else:
        stages, hit = [0, 0, 0, 0, 0, 0], True
        stages[0] = now() - start
    placing = now()
    placed = Placed(session, plan, taken)
    try:
        if placed.shared and (through := placed.through()):
            plan, more = _variant(session, request, key, through, taken)
            stages = [a + b for a, b in zip(stages, more, strict=True)]
            hit = hit and not any(more)
        stages[0] += now() - placing
        putting = now()
        scratch = _scratch(session, plan.scratch) if plan.scratch else 0
        blobs, fields = blobs_of(plan, placed.addresses, scratch)
    except BaseException:
        placed.undo()
        raise
    used = tuple(placed.allocations)
    kept = Kept(plan.op.name, fields + placed.fields(), tuple(blobs), used, plan.launches, submit)
    for step, made in zip(plan.steps, blobs, strict=True):
        keep(session.known, made, Known(step.op, used))
    stages[4] += now() - putting
    return Made(kept, hit, stages, tuple(placed.fresh))


def _scratch(session: Session, size: int) -> int:
    try:
        return session.scratch(size).start
    except Refusal as refusal:
        raise Refusal("", f"scratch memory for this op: {refusal.message}", refusal.kind, refusal.hint) from None


def _variant(
    session: Session, request: pb.OpRequest, key: Hashable, through: frozenset[int], taken: Taken
) -> tuple[Plan, Sequence[int]]:
    """The plan for results that lie over operands, and what making it took (zeros: it was there)."""
    found = session.plans.get((key, through))
    if found is not None:
        return found, (0, 0, 0, 0, 0, 0)
    plan, stages = _planned(session.chip, (key, through), request, taken, through)
    keep(session.plans, (key, through), plan)
    return plan, stages


def _planned(
    chip: Chip, key: Hashable, request: pb.OpRequest, taken: Taken, through: frozenset[int]
) -> tuple[Plan, list[int]]:
    """A plan that is new to a session. Another one may have had it made: it holds nothing of any session."""
    start = now()
    plan = chip.plans.get(key)
    if plan is not None:
        return plan, [0, 0, 0, 0, now() - start, 0]
    age = chip.age
    plan, stages = compiled(chip, request, taken, through)
    with chip.lock:
        if chip.age == age:
            keep(chip.plans, key, plan)
    return plan, stages


def compiled(chip: Chip, request: pb.OpRequest, taken: Taken, through: frozenset[int]) -> tuple[Plan, list[int]]:
    """A plan, and nanoseconds per stage. ``through``: see lower.Builder. Refusal."""
    start = now()
    ask = ask_of(request, taken)
    validated = now()
    way = route(ask.op, chip)
    routed = now()
    ways = recipes(ask)
    lowered = now()
    made = outputs_of(ask, way)
    graph = graph_of(ask, way, ways, made, through)
    inferred = now()
    plan = plan_of(ask.op, ask.inputs, made, graph)
    stages = [validated - start, routed - validated, lowered - routed, inferred - lowered, now() - inferred, 0]
    return plan, stages


class Placed:
    """Where the operands of one request lie; results without a place have been given one."""

    def __init__(self, session: Session, plan: Plan, taken: Taken) -> None:
        self._session, self._plan = session, plan
        self.addresses: list[int] = []
        self.allocations: list[Allocation] = []
        self.fresh: list[Allocation] = []
        self.shared = False
        """Two operands lie in one allocation, and one of them is written."""
        self._outputs: list[tuple[Place, Slot] | None] = []
        try:
            self._place_inputs(taken.input_names)
            self._place_outputs(taken.output_names)
        except BaseException:
            self.undo()
            raise

    def _place_inputs(self, names: Names) -> None:
        place, addresses, allocations = self._session.memory.place, self.addresses, self.allocations
        given = len(names)
        for index, slot in enumerate(self._plan.inputs):
            number, address = names[index] if index < given else _NOWHERE
            if slot is None:
                if number or address:
                    raise Refusal(f"{INPUTS[index]}.data_type", "it is not said")
                continue
            found, address = place(number, address, slot.span, slot.align, INPUTS[index])
            addresses.append(address)
            if found is not None:
                allocations.append(found)

    def _place_outputs(self, names: Names) -> None:
        given = len(names)
        for index, slot in enumerate(self._plan.outputs):
            number, address = names[index] if index < given else _NOWHERE
            if slot is None:
                self._outputs.append(None)
                continue
            if number or address or not slot.span:
                where = self._session.memory.place(number, address, slot.span, slot.align, OUTPUTS[index])
                found = where.allocation
                if found is not None and found in self.allocations:
                    self.shared = True
            else:
                found = self._allocated(slot.span, OUTPUTS[index])
                self.fresh.append(found)
                where = Place(found, found.start)
            self.addresses.append(where.address)
            self._outputs.append((where, slot))
            if found is not None:
                self.allocations.append(found)

    def _allocated(self, size: int, field: str) -> Allocation:
        try:
            return self._session.allocate(size, self._plan.op.name)
        except Refusal as refusal:
            raise Refusal(field, refusal.message, refusal.kind, refusal.hint) from None

    def through(self) -> frozenset[int]:
        """Outputs that overlap an operand, so they are made elsewhere first. Refusal for two outputs that overlap."""
        inputs = [slot for slot in self._plan.inputs if slot is not None]
        reads = [(address, slot) for address, slot in zip(self.addresses, inputs, strict=False)]
        found: set[int] = set()
        for index, output in enumerate(self._outputs):
            if output is None:
                continue
            where, slot = output
            for address, other in reads:
                if overlap(where.address, slot.span, address, other.span) and not self._in_place(
                    output, address, other
                ):
                    found.add(index)
            for earlier, before in enumerate(self._outputs[:index]):
                if before and overlap(where.address, slot.span, before[0].address, before[1].span):
                    text = f"it lies over {OUTPUTS[earlier]}"
                    raise Refusal(f"{OUTPUTS[index]}.device_addr", text)
        return frozenset(found)

    def _in_place(self, output: tuple[Place, Slot], address: int, other: Slot) -> bool:
        where, slot = output
        return self._plan.op.name in IN_PLACE and where.address == address and slot.tensor == other.tensor

    def fields(self) -> bytes:
        """The outputs, as the fields of an OpResponse."""
        found = []
        for output in self._outputs:
            if output is not None:
                where, slot = output
                name = where.allocation.wire if where.allocation is not None else b""
                one = name + slot.described + wire.number(5, where.address)
                found.append(wire.chunk(5, one))
        return b"".join(found)

    def undo(self) -> None:
        """Give back what was allocated."""
        for one in self.fresh:
            self._session.memory.free(one.number)
        self.fresh = []


def overlap(first: int, size: int, second: int, other: int) -> bool:
    """Whether two ranges of bytes have one in common."""
    return first < second + other and second < first + size


def op_name(request: pb.OpRequest) -> str:
    """For counts; empty for an op that nobody knows."""
    op = OPS.get(request.op_type)
    return op.name if op is not None else ""
