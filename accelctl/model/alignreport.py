"""What `accelctl smoke --align` found: each op of each known sample on two devices, and the first one that drifts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from accelctl.model.rowsreport import RowsReport
from accelctl.model.stressreport import FAIL

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
class AlignReport(RowsReport):
    """Both devices get the same operands for every op: those that the first one computed. ``simulated``: one of the two
    is. ``hang``: the first op that did not come back; its sample ends there."""

    device: str
    other: str
    seed: int
    rows: tuple[AlignRow, ...] = ()

    @property
    def drift(self) -> AlignRow | None:
        """The first op whose results differ by more than they may."""
        return next((row for row in self.rows if row.result == FAIL), None)
