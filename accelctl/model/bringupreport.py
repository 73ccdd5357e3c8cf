"""What `accelctl bringup` found, as plain records: one StepResult per step and device, one report per run.

The result of a step is one of those of stress and smoke. A skip is no gap: the step does not apply, or nobody asked for
it. What was wanted and could not be decided is inconclusive, and a machine is not accepted with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from accelctl.exits import ExitCode
from accelctl.model.finding import Finding, rank
from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP

SCHEMA = "accelctl.bringup/1"
ACCEPTED, REJECTED, INCOMPLETE = "accepted", "rejected", "not accepted: incomplete"
PASSED_SIMULATED = "passed (simulated)"
RESULTS = (PASS, FAIL, SKIP, INCONCLUSIVE)
BAD = rank("error")
"""A finding of this level or worse rejects."""
PROVES = ("lifecycles", "ops")
"""Steps of which one at least must have passed on a device: without them nothing was done with it."""

Value = str | int | float | bool | None


class Fact(NamedTuple):
    """One value and its evidence: ``source`` is a file below the root, a counter or how it was computed, ``raw`` what
    stood there. ``owner`` is a device, empty for the machine. An absent value is None, and ``raw`` says why."""

    name: str
    value: Value
    source: str
    raw: str = ""
    unit: str = ""
    owner: str = ""


class Bar(NamedTuple):
    """One bar: ``text`` is its value in words; ``limit`` is what it is compared with (a ceiling, a tolerance)."""

    label: str
    value: float
    text: str
    limit: float | None = None
    bad: bool = False


class Chart(NamedTuple):
    """Bars that share a scale. ``limit`` names what their limits are; ``note`` says where the numbers are from."""

    title: str
    bars: tuple[Bar, ...]
    note: str
    limit: str = ""
    logarithmic: bool = False


@dataclass(frozen=True)
class Subject:
    """One device that is to be accepted. ``memory`` and ``ops``: why there are no lifecycles and no ops to run, or
    empty."""

    id: str
    title: str
    chip: str
    simulated: bool = False
    memory: str = ""
    ops: str = ""
    left_alone: str = ""
    """Why it must not be opened (in use, asleep, unproven, no permission), and ``lift`` what to type to do it."""
    lift: str = ""
    proven: str = ""
    ops_device: str = ""
    """Its name among the devices that compute, as smoke and bench call it; empty: it does not compute."""
    memory_device: str = ""
    """Its name among the devices that stress knows; empty: it is none of them."""
    on: tuple[str, ...] = ()
    """The device of the machine behind a library's, as probe calls it; several: one of them, and nothing tells which.
    Empty where ``memory_device`` says it, and where nothing is on a bus (a processor, a simulation)."""


@dataclass(frozen=True)
class StepResult:
    """One step, done or not; ``reason`` says why in one line. ``device`` is empty for steps about the machine."""

    name: str
    device: str
    result: str
    reason: str
    findings: tuple[Finding, ...] = ()
    facts: tuple[Fact, ...] = ()
    charts: tuple[Chart, ...] = ()
    command: str = ""
    """What to type to see this step alone."""
    hang: str = ""
    """What did not come back."""
    cut: bool = False
    """It ran out of time."""
    seconds: float = 0.0
    box_s: float = 0.0
    kept: bool = False
    """From an earlier part of this run."""


@dataclass
class BringupReport:
    """Everything about one run. ``ended``: exit status that a signal asks for, 0 where none ended the run."""

    level: int
    subjects: tuple[Subject, ...]
    command: str
    version: str
    started: str
    """UTC, as 2026-01-31T12:00:00Z."""
    steps: list[StepResult] = field(default_factory=list)
    ended: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    html: str = ""

    @property
    def simulated(self) -> bool:
        """At least one of the devices is: then nothing is called accepted."""
        return any(one.simulated for one in self.subjects)

    @property
    def findings(self) -> list[Finding]:
        """Each once, worst first."""
        found = dict.fromkeys(finding for step in self.steps for finding in step.findings)
        return sorted(found, key=lambda one: (-rank(one.level), one.device or "", one.id, one.title))

    def with_result(self, *results: str) -> list[StepResult]:
        """Steps that came to one of these."""
        return [step for step in self.steps if step.result in results]

    @property
    def unproven(self) -> list[str]:
        """Devices with which nothing was done that could prove anything."""
        done = {step.device for step in self.steps if step.name in PROVES and step.result == PASS}
        return [one.id for one in self.subjects if one.id not in done]

    @property
    def rejected(self) -> bool:
        """A step failed, or a finding is bad enough."""
        bad = any(rank(one.level) >= BAD for one in self.findings)
        return bad or bool(self.with_result(FAIL))

    @property
    def verdict(self) -> str:
        """One of the words above, with "(simulated)" where that is so."""
        mark = " (simulated)" if self.simulated else ""
        if self.rejected:
            return REJECTED + mark
        if self.with_result(INCONCLUSIVE) or self.unproven or self.ended:
            return INCOMPLETE + mark
        return PASSED_SIMULATED if self.simulated else ACCEPTED

    @property
    def accepted(self) -> bool:
        """Nothing speaks against it; of a simulated device that is still no acceptance."""
        return self.verdict in (ACCEPTED, PASSED_SIMULATED)

    @property
    def why(self) -> str:
        """The verdict's reason in one line."""
        if self.rejected:
            return _first_bad(self)
        if self.accepted:
            return f"{len(self.with_result(PASS))} steps passed"
        undecided = [_named(step) + f": {step.reason}" for step in self.with_result(INCONCLUSIVE)]
        if undecided:
            return undecided[0] + (f" (and {len(undecided) - 1} more)" if len(undecided) > 1 else "")
        if self.ended:
            return "interrupted: what had not run yet is not in this report"
        return f"nothing was done with {', '.join(self.unproven)}"

    @property
    def exit_code(self) -> int:
        """0 accepted or passed; 1 rejected or undecided; 6 something hung or the time was up; 77 nothing was done with
        the device; 128 + n: a signal ended the run, and nothing had failed until then."""
        if any(step.hang for step in self.steps):
            return int(ExitCode.TIMEOUT)
        if self.rejected:
            return int(ExitCode.FINDINGS)
        if self.ended:
            return self.ended
        if any(step.cut for step in self.steps):
            return int(ExitCode.TIMEOUT)
        if self.accepted:
            return int(ExitCode.OK)
        return int(ExitCode.FINDINGS if self.with_result(INCONCLUSIVE) else ExitCode.SKIPPED)


def _first_bad(report: BringupReport) -> str:
    bad = [one for one in report.findings if rank(one.level) >= BAD]
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        return f"{bad[0].id}: {bad[0].title}{more}"
    step = report.with_result(FAIL)[0]
    return f"{_named(step)}: {step.reason}"


def _named(step: StepResult) -> str:
    return f"{step.name} of {step.device}" if step.device else step.name


def counts(steps: Iterable[StepResult]) -> dict[str, int]:
    """pass, fail, skip, inconclusive -> how many steps."""
    found: Sequence[str] = [step.result for step in steps]
    return {result: found.count(result) for result in RESULTS}
