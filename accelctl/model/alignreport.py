"""What `accelctl smoke --align` found: each op of each known sample on two devices, and the first one that drifts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from accelctl.exits import ExitCode
from accelctl.model.smokereport import FAILED, NOTHING, PASSED, PASSED_SIMULATED
from accelctl.model.stressreport import FAIL, PASS, SKIP

SCHEMA = "accelctl.align/1"


class AlignRow(NamedTuple):
    """One op of a sample. ``number`` counts them from 0 over all samples; ``tolerance`` is what two right results may
    differ by, since each may be off by that of its op."""

    number: int
    sample: str
    op: str
    dtype: str
    result: str
    detail: str
    max_abs: float = 0.0
    max_rel: float = 0.0
    ulps: int = 0
    first: tuple[int, ...] | None = None
    """Index of the first element that differs by more."""
    tolerance: str = ""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.sample} #{self.number} {self.op}"


@dataclass(frozen=True, kw_only=True)
class AlignReport:
    """Both devices get the same operands for every op: those that the first one computed."""

    device: str
    other: str
    simulated: bool
    """One of the two is."""
    seed: int
    rows: tuple[AlignRow, ...] = ()
    hang: str = ""
    """The first op that did not come back; empty: all did. Its sample ends there."""

    @property
    def drift(self) -> AlignRow | None:
        """The first op whose results differ by more than they may."""
        return next((row for row in self.rows if row.result == FAIL), None)

    @property
    def counts(self) -> dict[str, int]:
        """pass, fail, skip -> how many ops."""
        found = Counter(row.result for row in self.rows)
        return {result: found[result] for result in (PASS, FAIL, SKIP)}

    @property
    def verdict(self) -> str:
        """passed, passed (simulated), failed; nothing ran."""
        if self.drift is not None:
            return FAILED
        if not self.counts[PASS]:
            return NOTHING
        return PASSED_SIMULATED if self.simulated else PASSED

    @property
    def exit_code(self) -> int:
        """0: no op drifts; 1: one does; 6: one did not come back; 77: nothing could be compared."""
        if self.hang:
            return int(ExitCode.TIMEOUT)
        return int({FAILED: ExitCode.FINDINGS, NOTHING: ExitCode.SKIPPED}.get(self.verdict, ExitCode.OK))
