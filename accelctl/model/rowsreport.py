"""What rows with a result each come to: counts, word and exit status of a report that is nothing but rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from accelctl.exits import ExitCode
from accelctl.model.smokereport import FAILED, NOTHING, PASSED, PASSED_SIMULATED
from accelctl.model.stressreport import FAIL, PASS, SKIP


class Row(Protocol):
    """What is counted."""

    @property
    def result(self) -> str:
        """PASS, FAIL or SKIP."""


@dataclass(frozen=True, kw_only=True)
class RowsReport:
    """Such a report."""

    simulated: bool
    rows: tuple[Row, ...] = ()
    hang: str = ""
    """The first row that did not come back; empty: all did."""

    @property
    def counts(self) -> dict[str, int]:
        """pass, fail, skip -> how many rows."""
        found = Counter(row.result for row in self.rows)
        return {result: found[result] for result in (PASS, FAIL, SKIP)}

    @property
    def verdict(self) -> str:
        """passed, passed (simulated), failed; nothing ran."""
        counts = self.counts
        if counts[FAIL]:
            return FAILED
        if not counts[PASS]:
            return NOTHING
        return PASSED_SIMULATED if self.simulated else PASSED

    @property
    def exit_code(self) -> int:
        """0: passed; 1: a row fails; 6: one did not come back; 77: nothing ran."""
        if self.hang:
            return int(ExitCode.TIMEOUT)
        return int({FAILED: ExitCode.FINDINGS, NOTHING: ExitCode.SKIPPED}.get(self.verdict, ExitCode.OK))
