"""What is known about one kernel on one device: where it may be used, what it means to a framework, and how well that
is proven.

The unit is one kernel on one device and toolchain. Another driver, another compiler or another source of the kernel is
another platform: what was proven on the old one is stale there, and says nothing about any other kernel.

Evidence climbs a ladder. A rung says nothing about the ones below it: a kernel that gives right results through the
service but whose bytes were never compared stands on no rung, and `reached` says so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, NamedTuple

from accelctl.abi.condition import ALWAYS, Conditions
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
RUNGS: dict[str, str] = dict(
    zip(("none", "blob", "alone", "service", "counted", "cached", "model"), ("", *LADDER), strict=True)
)
"""The same in one word each, for options; ``none`` is the ground."""
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
    versions: tuple[tuple[str, str], ...] = ()
    """What else this kernel's results depend on there, by name: its source, the runtime below it."""

    @property
    def fingerprint(self) -> str:
        """One word for all of it: 16 hexadecimal digits."""
        words = json.dumps([*self[:3], list(self.toolchain), sorted(map(list, self.versions))])
        return hashlib.sha256(words.encode()).hexdigest()[:16]

    def differences(self, other: Platform) -> str:
        """What is another one there, each as ``name: mine, now theirs``; empty where nothing is."""
        mine, theirs = self._named(), other._named()
        every = (*mine, *(name for name in theirs if name not in mine))
        parts = (
            f"{name}: {mine.get(name) or 'not recorded'}, now {theirs.get(name) or 'none'}"
            for name in every
            if mine.get(name) != theirs.get(name)
        )
        return "; ".join(parts)

    def _named(self) -> dict[str, str]:
        named = {"device": self.device, "architecture": self.architecture, "driver": self.driver}
        return {**named, "toolchain": ", ".join(self.toolchain), **dict(self.versions)}


class Semantics(NamedTuple):
    """What a kernel is to one framework."""

    function: str
    """Which of its functions this is, and where it differs."""
    schema: str = ""
    """As the framework writes it: ``accelctl::matmul(Tensor A, Tensor B) -> Tensor``."""
    meta: str = ""
    """Shapes and types of the results, from those of the operands: what a trace without data needs."""
    in_place: tuple[str, ...] = ()
    """Operands that it writes."""
    graph_capture: bool = False
    """Launch and shapes depend on no number in memory, so a captured graph may replay it."""


@dataclass(frozen=True, kw_only=True)
class Capability:
    """AbiError, in one line, for what cannot be one."""

    kernel: str
    """Name of its template (abi.ops)."""
    op: str
    """A key of abi.opset.OPS."""
    platform: Platform
    preconditions: Conditions = ALWAYS
    """When it may be used."""
    semantics: Mapping[str, Semantics] = field(default_factory=dict)
    """By framework."""
    evidence: tuple[Evidence, ...] = ()
    """At most one for each rung, lowest first."""
    fallback: str = ""
    """The kernel that is used where a precondition does not hold; empty: the op is refused."""
    simulated: bool = False
    """Nothing real computed it."""
    recorded: str = ""
    """Fingerprint of the platform when the record was written; one that is not the platform's own now was changed by
    hand, and proves nothing."""

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
        self.preconditions.check(OPS[self.op])
        if not self.recorded:
            object.__setattr__(self, "recorded", self.platform.fingerprint)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What there is one record of."""
        return self.platform.device, self.kernel, self.op, self.recorded

    def stale(self, now: Platform) -> str:
        """Why it proves nothing on a platform; empty: it is the one that it was written on."""
        if self.recorded == now.fingerprint == self.platform.fingerprint:
            return ""
        return self.platform.differences(now) or "its fingerprint is not that of what it says"

    def proves(self, rung: str) -> bool:
        """Whether there is evidence for a rung and all below it; the empty one needs none."""
        held = {one.rung for one in self.evidence}
        order = list(LADDER)
        return not rung or held.issuperset(order[: order.index(rung) + 1])

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
            {
                "rung": one.rung,
                "date": one.date,
                "figures": {name: _whole(value) for name, value in one.figures.items()},
                "detail": one.detail,
            }
            for one in self.evidence
        ]
        return {
            "kernel": self.kernel,
            "op": self.op,
            "simulated": self.simulated,
            "fallback": self.fallback,
            "platform": {
                **self.platform._asdict(),
                "toolchain": list(self.platform.toolchain),
                "versions": dict(sorted(self.platform.versions)),
                "fingerprint": self.recorded,
            },
            "preconditions": self.preconditions.document(),
            "semantics": {
                name: {**one._asdict(), "in_place": list(one.in_place)} for name, one in sorted(self.semantics.items())
            },
            "reached": self.reached,
            "missing": self.missing,
            "evidence": rungs,
        }


def _whole(value: float) -> float:
    """A count without a point: 12.0 is read as 12 again, and looks like a measurement."""
    return int(value) if value == int(value) and abs(value) < 1 << 53 else value


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise AbiError(why)
