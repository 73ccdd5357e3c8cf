"""The steps in their order, and which of them a run has."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from accelctl.accept.bringup import needs
from accelctl.accept.bringup.step import Came, Job, Order, Step
from accelctl.model.bringupreport import Subject


def _late(name: str) -> Callable[[Job], Came]:
    """The work of a step, imported where it is done: gRPC must not be there before a fork, and numpy need not be."""

    def work(job: Job) -> Came:
        came: Came = import_module(f"accelctl.accept.bringup.steps.{name}").work(job)
        return came

    return work


def _of_machine(name: str, title: str, boxes: tuple[float, float, float], applies: needs.Needs, resumed: bool) -> Step:
    return Step(name, title, _late(name), False, boxes, applies, resumed)


def _of_device(name: str, title: str, boxes: tuple[float, float, float], applies: needs.Needs) -> Step:
    return Step(name, title, _late(name), True, boxes, applies)


STEPS = (
    _of_machine("probe", "what is here, and what is wrong with it", (30, 60, 120), needs.nothing, False),
    _of_machine("expected", "is it what this machine type must be", (30, 60, 120), needs.expected, True),
    _of_device("lifecycles", "allocate, map, free; nothing may stay", (45, 240, 1800), needs.memory),
    _of_device("ops", "results against a float64 reference", (90, 300, 1200), needs.ops),
    _of_device("capabilities", "is what was proven still true", (20, 20, 20), needs.records),
    _of_device("semantics", "streams, events, copies and memory", (60, 180, 300), needs.ops),
    _of_device("bench", "bandwidths and times", (40, 120, 600), needs.figures),
    _of_device("disruptive", "fault sweep, SIGKILL", (0, 0, 900), needs.disruptive),
)
"""Boxes are seconds at levels 1, 2 and 3: several times of what a quiet machine takes. A busy one shall not be cut."""
AFTER_HANG = ("probe", "expected", "capabilities")
"""Steps that do not touch a device: a device that hangs keeps none of them from running."""


class Planned(NamedTuple):
    """One step of a run. ``why`` it will not run, or nothing."""

    step: Step
    subject: Subject | None
    box_s: float
    why: str

    @property
    def device(self) -> str:
        """Empty for a step about the machine."""
        return "" if self.subject is None else self.subject.id


def planned(order: Order, subjects: tuple[Subject, ...]) -> list[Planned]:
    """Every step on every device, in the order in which they run. Steps of other levels are not among them."""
    rows = []
    for step in STEPS:
        box = step.boxes[order.level - 1]
        if not box:
            continue
        for subject in subjects if step.per_device else (None,):
            rows.append(Planned(step, subject, box, step.needs(order, subject)))
    return rows
