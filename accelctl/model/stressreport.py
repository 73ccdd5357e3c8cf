"""What `accelctl stress` found, as plain records: one Outcome per lifecycle, one report per device."""

from __future__ import annotations

from dataclasses import dataclass, field
from signal import SIGINT
from typing import NamedTuple

from accelctl.exits import SIGNAL_BASE, ExitCode
from accelctl.model.verdict import Series, Verdict

PASS, FAIL, SKIP, INCONCLUSIVE = "pass", "fail", "skip", "inconclusive"
RESULTS = (PASS, SKIP, INCONCLUSIVE, FAIL)
"""Best first."""


class Failure(NamedTuple):
    """A stage that was refused: "gpu_map" for acquiring, "-gpu_map" for releasing; errno or status name."""

    stage: str
    error: str
    times: int


class StageCounts(NamedTuple):
    """The ledger's account of a stage."""

    name: str
    held: int
    acquired: int
    released: int
    peak: int


class Replay(NamedTuple):
    """The shortest sequence found that shows a divergence: what to type, and the steps in words."""

    command: str
    steps: tuple[str, ...]


@dataclass
class Outcome:
    """One lifecycle of the device, run to its verdict. ``reason`` says why in one line."""

    lifecycle: str
    result: str = PASS
    reason: str = ""
    stages: tuple[StageCounts, ...] = ()
    cycles: int = 0
    seconds: float = 0.0
    verdict: Verdict | None = None
    series: tuple[Series, ...] = ()
    failures: tuple[Failure, ...] = ()
    outstanding: tuple[str, ...] = ()
    mistakes: tuple[str, ...] = ()
    census: dict[str, int] = field(default_factory=dict)
    replay: Replay | None = None
    hang: str = ""
    notes: tuple[str, ...] = ()


class PointTotals(NamedTuple):
    """One row of a sweep's table: how the fault points of a stage ended."""

    lifecycle: str
    stage: str
    kind: str
    """door-before, door-after or kernel."""
    points: int
    balanced: int
    stranded: int
    leaked: int
    detail: tuple[str, ...] = ()
    """Reproducers of what leaked or stayed until close."""


@dataclass
class StressReport:
    """Everything about one run on one device."""

    device: str
    chip: str
    driver: str
    node: str
    tier: str
    proven: str
    simulated: bool
    seed: int
    command: str
    outcomes: list[Outcome] = field(default_factory=list)
    sweep: list[PointTotals] = field(default_factory=list)
    kernel_leaks: tuple[str, ...] = ()
    """kmemleak's records that appeared during the run and name our calls."""
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    ended: int = 0
    """Exit status that the signal asks for (128 + its number), where one ended the run."""

    @property
    def result(self) -> str:
        """The worst of the outcomes; a leak at a fault point or in kmemleak fails; skip when nothing ran. What was
        interrupted never passed: it did not do what it was asked."""
        found = [outcome.result for outcome in self.outcomes]
        ran = [result for result in found if result != SKIP]
        if self.kernel_leaks or any(row.leaked for row in self.sweep):
            return FAIL
        if self.sweep and not ran:
            return PASS
        worst = max(ran, key=RESULTS.index) if ran else SKIP
        return INCONCLUSIVE if self.interrupted and worst != FAIL else worst

    @property
    def exit_code(self) -> int:
        """0: passed or undecided; 1: failed; 3: nothing of it is supported; 6: a call did not come back; 128 + n: a
        signal ended the run, and nothing had failed until then."""
        if any(outcome.hang for outcome in self.outcomes):
            return int(ExitCode.TIMEOUT)
        if self.interrupted and self.result != FAIL:
            return self.ended or SIGNAL_BASE + SIGINT
        codes = {FAIL: ExitCode.FINDINGS, SKIP: ExitCode.NO_DEVICE}
        return int(codes.get(self.result, ExitCode.OK))
