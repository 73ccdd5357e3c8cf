"""What `accelctl backends` finds out, as plain records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from accelctl.exits import ExitCode
from accelctl.model.stressreport import PASS

FULFILLED, FULFILLED_SIMULATED, BROKEN, UNTRIED = "passed", "passed (simulated)", "differs", "not tried"


@dataclass(frozen=True, kw_only=True)
class ChipRow:
    """One chip in the list. What only its code knows is None until it is loaded."""

    name: str
    title: str
    origin: str
    version: str
    abi: int | None = None
    features: tuple[str, ...] | None = None
    tier: str | None = None
    proven: str | None = None
    problem: str = ""
    """Why it was refused, where it was loaded."""


@dataclass(frozen=True)
class Listing:
    """All chips with code, what is wrong with plug-ins, and how many rooms are data only."""

    rows: tuple[ChipRow, ...]
    problems: tuple[str, ...]
    data_only: tuple[str, ...]
    loaded: bool


@dataclass(frozen=True, kw_only=True)
class ChipDetail:
    """One chip: what its manifest says, what its room knows, what it lacks."""

    row: ChipRow
    manifest: dict[str, Any] | None
    """None: it has a room and no code."""
    module: str = ""
    where: str = ""
    """Folder of its room."""
    ids: int = 0
    nodes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    install: dict[str, str] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    """What its manifest does not promise, and what that costs."""
    versions: tuple[str, ...] = ()
    """On the shelf."""


class CheckRow(NamedTuple):
    """One check of one contract."""

    contract: str
    name: str
    result: str
    detail: str = ""


class ContractRow(NamedTuple):
    """What was promised of one contract, and what came of it."""

    name: str
    promised: bool
    observed: str
    differs: bool


@dataclass(frozen=True)
class CheckReport:
    """A conformance run."""

    name: str
    who: str
    device: str
    """Empty: there was none to run on."""
    simulated: bool
    contracts: tuple[ContractRow, ...]
    checks: tuple[CheckRow, ...]

    @property
    def verdict(self) -> str:
        """One word for all of it."""
        if any(one.differs for one in self.contracts):
            return BROKEN
        nothing = not any(one.result == PASS for one in self.checks)
        if nothing or any(one.observed.startswith(UNTRIED) for one in self.contracts):
            return UNTRIED
        return FULFILLED_SIMULATED if self.simulated else FULFILLED

    @property
    def exit_code(self) -> int:
        """1: something differs; 3: a promise could not be tried here."""
        if self.verdict == BROKEN:
            return int(ExitCode.FINDINGS)
        return int(ExitCode.NO_DEVICE if self.verdict == UNTRIED else ExitCode.OK)


class VersionRow(NamedTuple):
    """One version on the shelf."""

    version: str
    folder: str
    current: bool = False
    before: bool = False
    """It was current: `rollback` goes to the last one of these."""
    problem: str = ""


@dataclass(frozen=True)
class Versions:
    """All versions of one chip."""

    name: str
    folder: str
    rows: tuple[VersionRow, ...]
    since: str = ""
    smoke: str = ""
    """passed or failed: the first smoke of the current one; empty: none yet."""
    problem: str = ""


class Trial(NamedTuple):
    """What one version did in a canary run: exit status, verdict, counts, seconds, and what failed."""

    version: str
    exit_code: int
    verdict: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    failures: tuple[str, ...] = ()
    error: str = ""
    bench: tuple[tuple[str, float, str], ...] = ()
    """Figure, median and unit; empty where nothing was measured."""


@dataclass(frozen=True)
class Canary:
    """Two versions of one chip, side by side."""

    name: str
    device: str
    simulated: bool
    base: Trial | None
    """The current version; None where there is none."""
    new: Trial
    worse: tuple[str, ...]
    """What the new version does worse, one line each."""
    slower: tuple[str, ...] = ()
    """Figures of bench that are worse outside the noise."""

    @property
    def exit_code(self) -> int:
        """0: the new version is no worse."""
        return int(ExitCode.FINDINGS if self.worse or self.slower else ExitCode.OK)
