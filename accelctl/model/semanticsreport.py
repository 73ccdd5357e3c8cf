"""What the semantics suite found on one device: one row for each assertion, and what the device declares absent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from accelctl.exits import ExitCode
from accelctl.model.smokereport import FAILED, NOTHING, PASSED, PASSED_SIMULATED
from accelctl.model.stressreport import FAIL, PASS, SKIP

SCHEMA = "accelctl.semantics/1"


class SemanticsRow(NamedTuple):
    """One assertion. ``id`` is ``<intent>/<n>``, counted from 1 in the order of the contract's tests. ``detail`` says
    what was seen; of a skip, what the device does not have."""

    id: str
    intent: str
    what: str
    result: str
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SemanticsReport:
    """Everything about one run on one device."""

    device: str
    chip: str
    simulated: bool
    proven: str = ""
    capabilities: Mapping[str, str] = field(default_factory=dict)
    """Flag -> native, emulated or absent; empty where the device could not be opened."""
    rows: tuple[SemanticsRow, ...] = ()
    hang: str = ""
    """The first assertion that did not come back; empty: all did."""

    @property
    def counts(self) -> dict[str, int]:
        """pass, fail, skip -> how many assertions."""
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
        """0: passed; 1: an assertion fails; 6: one did not come back; 77: nothing ran."""
        if self.hang:
            return int(ExitCode.TIMEOUT)
        return int({FAILED: ExitCode.FINDINGS, NOTHING: ExitCode.SKIPPED}.get(self.verdict, ExitCode.OK))
