"""What `accelctl bench` measured, as plain records: one Figure per thing, with all its samples.

A figure is kept as what one round gave, not as one number: only so can a later run be told from noise. Rounds of all
figures are interleaved, and each sample has beside it a floor that was measured in the same moment, so that a machine
that was slower for a while moved both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from accelctl.exits import ExitCode
from accelctl.model.stressreport import SKIP

SCHEMA = "accelctl.bench/1"
PARTS = ("bandwidth", "roundtrip", "batch", "stream", "cache", "channel", "lifecycles", "pool", "ops")
"""In the order in which they are shown."""
BYTES_PER_S, SECONDS, PER_S = UNITS = ("bytes_per_s", "seconds", "per_s")
"""Of a figure: a bandwidth, a time for one, a rate."""
LEAST, MOST = 1e-18, 1e18
"""Between them is whatever can be measured, in any unit, with room to spare; quotients of quotients of such numbers are
still floats."""
MEASURED, SIMULATED, STOPPED, NOTHING = "measured", "measured (simulated)", "stopped", "nothing was measured"
STAGES = ("validate", "route", "lower", "infer", "instantiate", "submit", "rpc", "queue")
"""Where an op spends its time on the way through the service; the kernel itself is what it also takes without."""


def is_sample(value: float) -> bool:
    """Can that have been measured? False for a whole number that no float holds."""
    return LEAST < value < MOST


class Spread(NamedTuple):
    """A median and where it can be: with probability ``coverage`` the true one lies in [low, high], whatever the
    distribution of the noise (order statistics, see accept.bench.statistics)."""

    median: float
    low: float
    high: float
    coverage: float
    n: int

    @property
    def relative(self) -> float:
        """Half the width of the interval as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


class Ceiling(NamedTuple):
    """What cannot be exceeded. ``value`` in the figure's unit. ``name`` says what it is, ``how`` how it was computed or
    measured; ``computed`` is False for one that was measured in the same run, as a copy within this machine's memory
    is."""

    value: float
    name: str
    how: str
    computed: bool = True


class Figure(NamedTuple):
    """One thing that was measured, in rounds. ``name`` is unique within its part."""

    part: str
    name: str
    unit: str
    samples: tuple[float, ...]
    spread: Spread
    floor_name: str = ""
    """What was measured in turns with it; empty: nothing was."""
    floor: tuple[float, ...] = ()
    """In the figure's unit, one for each sample."""
    floor_spread: Spread | None = None
    ratio: Spread | None = None
    """Sample / floor, pair by pair: below 1 is slower for bandwidths and rates, above 1 for times."""
    ceiling: Ceiling | None = None
    detail: str = ""

    @property
    def id(self) -> str:
        """``bandwidth/h2d mapped 1 MiB``."""
        return f"{self.part}/{self.name}"

    @property
    def of_ceiling(self) -> float | None:
        """The share of the ceiling that was reached."""
        return self.spread.median / self.ceiling.value if self.ceiling and self.ceiling.value else None

    @property
    def more_is_better(self) -> bool:
        """Of bandwidths and rates; of times less is."""
        return self.unit != SECONDS


class Skipped(NamedTuple):
    """A part, or a figure of one, that was not measured, and why."""

    what: str
    why: str
    result: str = SKIP


class OpRow(NamedTuple):
    """One op by itself and through the service, in seconds. ``stages``: where the way through the service spends its
    time, medians by name of STAGES; what ``queue`` holds may be negative: the device had begun while the answer was on
    its way."""

    op: str
    shape: str
    kernel: str
    native: Spread
    service: Spread
    stages: dict[str, float]
    blame: str
    """The stage that holds most of the difference; empty where there is none outside the noise."""
    share: float
    """Of all that the stages add, which that one holds."""

    @property
    def difference(self) -> float:
        """Seconds that the service adds; negative: none."""
        return self.service.median - self.native.median


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What must be equal for two reports to be comparable (``place``), and what may differ, but has to be told
    (``versions``)."""

    device: str
    title: str
    driver: str
    simulated: bool
    cpu: str
    cpus: int
    link: str = ""
    """Of the device, as ``PCIe 4.0 x16``; empty: none is known."""
    versions: dict[str, str]
    """tool, python, kernel, back-end, driver -> version."""

    @property
    def place(self) -> dict[str, str]:
        """What must be equal."""
        names = ("device", "title", "driver", "cpu", "cpus")
        return {name: str(getattr(self, name)) for name in names}


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """Everything about one run on one device."""

    fingerprint: Fingerprint
    chip: str
    proven: str
    command: str
    seconds: float
    """The run took."""
    rounds: int
    parts: tuple[str, ...] = PARTS
    """What was asked for."""
    figures: tuple[Figure, ...] = ()
    ops: tuple[OpRow, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    ended: int = 0
    """Exit status that a signal asks for (128 + its number); 0: none ended the run."""
    gone: str = ""
    """What stopped the run before its end; empty: nothing did."""

    @property
    def device(self) -> str:
        """As it is named on the command line."""
        return self.fingerprint.device

    @property
    def simulated(self) -> bool:
        """Nothing real is behind it."""
        return self.fingerprint.simulated

    @property
    def verdict(self) -> str:
        """measured, measured (simulated), stopped, or that nothing was."""
        if self.gone or self.ended:
            return STOPPED
        if not self.figures:
            return NOTHING
        return SIMULATED if self.simulated else MEASURED

    @property
    def exit_code(self) -> int:
        """0: measured; 7: stopped; 77: every part was skipped; 128 + n: a signal ended it."""
        if self.ended:
            return self.ended
        if self.gone:
            return int(ExitCode.UNUSABLE)
        return int(ExitCode.OK if self.figures else ExitCode.SKIPPED)


SLOWER, FASTER, SAME, HIDDEN, MISSING, NEW = "slower", "faster", "same", "hidden", "missing", "new"
UNASKED = "not asked for"


class Change(NamedTuple):
    """One figure in two reports. ``slowdown`` is how many times as long it takes now (1.1: a tenth more time), with the
    interval that it lies in; None where one side lacks it. ``by``: what was compared, the figure alone or its ratio to
    the floor that was measured with it."""

    id: str
    word: str
    slowdown: Spread | None
    base: Spread | None
    now: Spread | None
    unit: str
    by: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two reports of one device on one machine."""

    rows: tuple[Change, ...]
    max_regress: float
    """Percent."""
    coverage: float
    """Of the intervals, each by itself."""
    simulated: bool
    device: str
    differs: tuple[str, ...] = ()
    """Versions that are not the same, as ``tool 1.0 -> 1.1``."""
    settle: str = ""
    """What would tell what the noise hides; empty: it hides nothing."""

    def of(self, word: str) -> tuple[Change, ...]:
        """The rows with that word."""
        return tuple(row for row in self.rows if row.word == word)

    @property
    def verdict(self) -> str:
        """``slower``, ``missing`` (some of the base could not be measured now), ``hidden`` (noise hides the answer for
        some), else ``no regression``."""
        found = {row.word for row in self.rows}
        return next((word for word in (SLOWER, MISSING, HIDDEN) if word in found), "no regression")

    @property
    def exit_code(self) -> int:
        """1: something is slower beyond the limit and outside the noise, or of the base and not to be measured now; 77:
        nothing could be compared; else 0."""
        if self.verdict in (SLOWER, MISSING):
            return int(ExitCode.FINDINGS)
        compared = any(row.slowdown is not None for row in self.rows)
        return int(ExitCode.OK if compared else ExitCode.SKIPPED)


class Golden(NamedTuple):
    """One result on a fixed seed. ``digest``: SHA-256 of its bytes. ``data``: the bytes, deflated, in base64; empty
    where they are too many to keep. ``right``: as near to smoke's float64 reference as the op must come."""

    case: str
    op: str
    output: str
    dtype: str
    shape: tuple[int, ...]
    kernel: str
    digest: str
    data: str = ""
    right: bool = True
    detail: str = ""
    """What the comparison with the reference said."""


@dataclass(frozen=True, kw_only=True)
class GoldenSet:
    """Results of one device."""

    fingerprint: Fingerprint
    seed: int
    rows: tuple[Golden, ...]
    notes: tuple[str, ...] = ()


class Drift(NamedTuple):
    """A result that is not the one of the set. ``word``: ``drift`` (within what the op may be off), ``changed``
    (beyond it, or what must be exact), ``missing``, ``new``."""

    case: str
    op: str
    word: str
    detail: str
    ulps: int = 0


@dataclass(frozen=True, kw_only=True)
class GoldenDelta:
    """A golden set against results of now, in the order of the set."""

    rows: tuple[Drift, ...]
    equal: int
    """Results with the same bytes."""
    device: str
    base_device: str
    simulated: bool
    differs: tuple[str, ...] = ()

    @property
    def first(self) -> Drift | None:
        """The first result with other bytes."""
        return next((row for row in self.rows if row.word in ("drift", "changed")), None)

    @property
    def exit_code(self) -> int:
        """1: a result changed, or is missing; 77: nothing could be compared; else 0."""
        if any(row.word in ("changed", MISSING) for row in self.rows):
            return int(ExitCode.FINDINGS)
        compared = self.equal or self.first is not None
        return int(ExitCode.OK if compared else ExitCode.SKIPPED)
