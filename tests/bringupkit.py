"""Steps and reports that tests of `accelctl bringup` share: what a step does is said by the test."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from accelctl.accept.bringup import run, subjects, table
from accelctl.accept.bringup.state import State
from accelctl.accept.bringup.step import PASS, Came, Job, Order, Step
from accelctl.accept.bringup.steps import ops as ops_step
from accelctl.hal import ownpython
from accelctl.model.bringupreport import BringupReport, StepResult, Subject
from accelctl.model.finding import Evidence, Finding

Work = Callable[[Job], Came]
SIM = Subject(
    "sim:0", "simulated accelerator", "sim", True, proven="simulated", ops_device="sim:0", memory_device="sim:0"
)
REAL = Subject("0000:03:00.0", "Some GPU", "amdgpu", ops="this chip offers no ops", proven="kernel guest 6.12")
BAD = Finding("OPS-WRONG-RESULT", "error", "relu: wrong", "sim:0", (Evidence("case 1", "got 2, right 1"),), ("look",))


def step(name: str, work: Work, per_device: bool = True, box_s: float = 10.0, **more: Any) -> Step:
    return Step(name, name, work, per_device, (box_s, box_s, box_s), **more)


def look(mark: str = "this machine") -> Step:
    """A step that looks at the machine: without it nothing of an earlier run is kept."""
    return step("probe", lambda job: Came(PASS, "looked", fingerprint=mark), False, resumed=False)


def use(monkeypatch: Any, *steps: Step, found: tuple[Subject, ...] = (SIM,)) -> None:
    monkeypatch.setattr(table, "STEPS", steps)
    monkeypatch.setattr(subjects, "chosen", lambda order: found)


def carried_out(folder: str, order: Order | None = None, resume: bool = False) -> BringupReport:
    with State(folder) as state:
        return run.carry_out(order or Order(device=("sim:0",)), state, "accelctl bringup", silent, resume)


def silent(number: int, count: int, name: str, said: str) -> None:
    """Progress that nobody looks at."""


def report(*steps: StepResult, found: tuple[Subject, ...] = (SIM,), **more: Any) -> BringupReport:
    return BringupReport(1, found, "accelctl bringup", "0.1.0", "2026-01-31T12:00:00Z", list(steps), **more)


def done(name: str, result: str, device: str = "sim:0", **more: Any) -> StepResult:
    return StepResult(name, device, result, more.pop("reason", f"{name} {result}"), **more)


# -- machines that are broken on purpose -------------------------------------------------------------------------------

WRONG_RELU = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "accelctl.backends.sim.ops.elementwise":
            return None
        import importlib.util
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        inner = spec.loader.exec_module

        def exec_module(module):
            inner(module)
            right = module.relu

            def relu(attrs, out, x):
                right(attrs, out, x)
                if out.size > 100:
                    out.reshape(-1)[7] += 3

            module.relu = relu

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""
"""Makes one element of every larger result of one kernel wrong, in whichever process runs it first."""


def wrong_relu(monkeypatch: Any) -> None:
    """In interpreters that accelctl starts the simulated chip computes relu wrong."""
    right = ownpython.command

    def command(module: str, words: Sequence[str]) -> list[str]:
        *start, code = right(module, [])
        return [*start, f"{WRONG_RELU}\n{code}", *words]

    monkeypatch.setattr(ownpython, "command", command)


def slow_channel(monkeypatch: Any, seconds: float = 0.02) -> None:
    """Every transfer into the data channel takes so much longer."""
    from accelctl.umd.channel import transfer

    right = transfer.Sender.send

    def send(self: Any, *args: Any, **named: Any) -> Any:
        time.sleep(seconds)
        return right(self, *args, **named)

    monkeypatch.setattr(transfer.Sender, "send", send)


def only_ops(monkeypatch: Any, *ops: str) -> None:
    """The step "ops" with some ops only."""
    right = ops_step.request
    monkeypatch.setattr(ops_step, "request", lambda order, device: replace(right(order, device), ops=ops))


def only_steps(monkeypatch: Any, *names: str, factor: float = 1) -> None:
    """These steps of the table, with boxes that are so many times as large."""
    kept = [one for one in table.STEPS if one.name in names]
    larger = [(factor * one, factor * two, factor * three) for one, two, three in (step.boxes for step in kept)]
    steps = tuple(one._replace(boxes=boxes) for one, boxes in zip(kept, larger, strict=True))
    monkeypatch.setattr(table, "STEPS", steps)


class Plain:
    """A monkeypatch for a process that ends with the test."""

    setattr = staticmethod(setattr)


MISSING = """schema = "accelctl.expect/1"

[[device]]
name = "a card that was there"
match = { vendor_id = "0x1002", device_id = "0xffff" }
count = 1
"""


def bad_ids(report: BringupReport) -> list[str]:
    """Ids of findings that reject, and of all that warn: nothing else may be there."""
    return [one.id for one in report.findings if one.level in ("warn", "error", "critical")]
