"""What is known about one kernel on one device: where it may be used, what it means to a framework, and how well that
is proven.

Evidence climbs a ladder. A rung says nothing about the ones below it: a kernel that gives right results through the
service but whose bytes were never compared stands on no rung, and `reached` says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, NamedTuple

from accelctl.abi.opset import OPS
from accelctl.errors import AbiError
from accelctl.model.smokereport import Evidence

LADDER: dict[str, str] = {
    "blob golden": "its instruction has the bytes that were written down",
    "kernel alone": "submitted by hand it gives right results",
    "through the service": "requested as an op it gives right results",
    "dispatch counted": "it ran as often as it was asked for, and nothing else in its place",
    "replayed from the cache": "a second request reuses the first one's instruction, with right results",
    "end to end": "a model that uses it generates the right tokens",
}
"""Rung -> what it proves, lowest first."""
_DAY = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])\Z")


class Platform(NamedTuple):
    """What a kernel was proven on: another one needs its own evidence."""

    device: str
    """As ``--device`` takes it."""
    architecture: str
    """gfx90a, sm_90, ...; empty where that is not known."""
    driver: str
    """Name and version."""
    toolchain: tuple[str, ...] = ()
    """Compilers and libraries with their versions."""


@dataclass(frozen=True, kw_only=True)
class Capability:
    """AbiError, in one line, for what cannot be one."""

    kernel: str
    """Name of its template (abi.ops)."""
    op: str
    """A key of abi.opset.OPS."""
    platform: Platform
    preconditions: tuple[str, ...] = ()
    """What operands must be, each in a few words: element types, shapes, strides."""
    semantics: Mapping[str, str] = field(default_factory=dict)
    """Framework -> which of its functions this is, and where it differs."""
    evidence: tuple[Evidence, ...] = ()
    """At most one for each rung, lowest first."""
    fallback: str = ""
    """What is done where a precondition does not hold; empty: it is refused."""
    simulated: bool = False
    """Nothing real computed it."""

    def __post_init__(self) -> None:
        _refuse(not self.kernel, "a capability without a kernel")
        _refuse(self.op not in OPS, f"capability of {self.kernel}: no op {self.op!r}")
        rungs = [one.rung for one in self.evidence]
        unknown = [rung for rung in rungs if rung not in LADDER]
        _refuse(bool(unknown), f"capability of {self.kernel}: no rung {', '.join(map(repr, unknown))}")
        _refuse(rungs != [rung for rung in LADDER if rung in rungs], f"capability of {self.kernel}: rungs out of order")
        for one in self.evidence:
            _refuse(not _DAY.match(one.date), f"evidence {one.rung!r} of {self.kernel}: {one.date!r} is no day")
            wrong = [name for name, value in one.figures.items() if not isfinite(value)]
            _refuse(bool(wrong), f"evidence {one.rung!r} of {self.kernel}: {', '.join(wrong)} is not finite")

    @property
    def reached(self) -> str:
        """The highest rung below which none is missing; empty where not even the first one is there."""
        held, found = {one.rung for one in self.evidence}, ""
        for rung in LADDER:
            if rung not in held:
                break
            found = rung
        return found

    @property
    def missing(self) -> str:
        """The rung to climb next; empty at the top."""
        held = {one.rung for one in self.evidence}
        return next((rung for rung in LADDER if rung not in held), "")

    def climbed(self, evidence: Evidence) -> Capability:
        """With one more piece of evidence; it takes the place of an older one for the same rung."""
        kept = {one.rung: one for one in self.evidence} | {evidence.rung: evidence}
        order = [*(rung for rung in LADDER if rung in kept), *(rung for rung in kept if rung not in LADDER)]
        return replace(self, evidence=tuple(kept[rung] for rung in order))

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        rungs = [
            {"rung": one.rung, "date": one.date, "figures": dict(one.figures), "detail": one.detail}
            for one in self.evidence
        ]
        return {
            "kernel": self.kernel,
            "op": self.op,
            "simulated": self.simulated,
            "platform": {**self.platform._asdict(), "toolchain": list(self.platform.toolchain)},
            "preconditions": list(self.preconditions),
            "semantics": dict(self.semantics),
            "fallback": self.fallback,
            "reached": self.reached,
            "missing": self.missing,
            "evidence": rungs,
        }


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise AbiError(why)
