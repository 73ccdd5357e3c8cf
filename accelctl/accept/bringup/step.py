"""What a step is, what it is given, and what it brings back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from accelctl.model.bringupreport import Chart, Fact, Subject
from accelctl.model.finding import Evidence, Finding
from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP

LEVELS = (1, 2, 3)
Say = Callable[[str], None]
"""Progress of a step, one short line."""


@dataclass(frozen=True)
class Order:
    """What the command line asked for. Paths are as typed, or empty."""

    device: tuple[str, ...] = ()
    level: int = 1
    disruptive: bool = False
    unproven: bool = False
    shared: bool = False
    allow_wake: bool = False
    expect: str = ""
    baseline: str = ""
    caps: str = ""
    kmsg: str = ""
    max_regress: float = 5.0
    seed: int = 1
    sim: Mapping[str, str] = field(default_factory=dict)
    """How the simulated chip behaves (stress --sim)."""
    time_s: float = 0.0
    """For all steps together; 0: as long as the level takes."""


class Came(NamedTuple):
    """What a step came to; the runner adds its name, its device and how long it took."""

    result: str
    reason: str
    findings: tuple[Finding, ...] = ()
    facts: tuple[Fact, ...] = ()
    charts: tuple[Chart, ...] = ()
    command: str = ""
    hang: str = ""
    cut: bool = False
    fingerprint: str = ""
    """Of the machine, from the step that looks at it: what was found on another one is not kept."""


class Job(NamedTuple):
    """One step on one device (None: the machine), with its time."""

    order: Order
    subjects: tuple[Subject, ...]
    subject: Subject | None
    box_s: float
    say: Say

    @property
    def device(self) -> Subject:
        """The device, in a step that has one."""
        assert self.subject is not None
        return self.subject


class Step(NamedTuple):
    """One step of the acceptance. ``needs`` says why it does not apply, or nothing; ``boxes`` are seconds at levels 1,
    2 and 3, 0 where the step is not part of the level."""

    name: str
    title: str
    work: Callable[[Job], Came]
    per_device: bool
    boxes: tuple[float, float, float]
    needs: Callable[[Order, Subject | None], str] = lambda order, subject: ""
    resumed: bool = True
    """Whether its result is kept from an earlier part of the run."""


def skipped(why: str) -> Came:
    """It does not apply, or nobody asked for it."""
    return Came(SKIP, why)


def left_alone(why: str, lift: str = "") -> str:
    """Why a device is not opened, and what to type to have it opened."""
    return f"left alone: {why}" + (f" ({lift})" if lift else "")


def undecided(why: str) -> Came:
    """It was wanted and could not be done."""
    return Came(INCONCLUSIVE, why)


def passed(why: str, facts: tuple[Fact, ...] = (), charts: tuple[Chart, ...] = (), command: str = "") -> Came:
    """All right."""
    return Came(PASS, why, (), facts, charts, command)


def finding(identity: str, title: str, device: str, seen: tuple[tuple[str, str], ...], fix: tuple[str, ...]) -> Finding:
    """An error that a step of ours found."""
    return Finding(identity, "error", title, device, tuple(Evidence(*one) for one in seen), fix)


__all__ = [
    "FAIL",
    "INCONCLUSIVE",
    "PASS",
    "SKIP",
    "Came",
    "Job",
    "Order",
    "Say",
    "Step",
    "finding",
    "left_alone",
    "passed",
    "skipped",
    "undecided",
]
