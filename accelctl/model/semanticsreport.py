"""What the semantics suite found on one device: one row for each assertion, and what the device declares absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from accelctl.model.rowsreport import RowsReport

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
class SemanticsReport(RowsReport):
    """Everything about one run on one device."""

    device: str
    chip: str
    proven: str = ""
    capabilities: Mapping[str, str] = field(default_factory=dict)
    """Flag -> native, emulated or absent; empty where the device could not be opened."""
    rows: tuple[SemanticsRow, ...] = ()
