"""What a run came to: the series that were counted, one judgement per counter, and the verdict over all of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

WARMUP, CYCLE, IDLE = "warmup", "cycle", "idle"
BLOCKS = (WARMUP, CYCLE, IDLE)
"""What the run was doing when a sample was taken."""

CLEAN, LEAK, CACHE, INCONCLUSIVE, FOREIGN = "clean", "leak", "cache", "inconclusive", "foreign"
VERDICTS = (CLEAN, CACHE, FOREIGN, INCONCLUSIVE, LEAK)
"""Best first. FOREIGN is shown to people as "not ours": it grows whether or not we run."""


class Sample(NamedTuple):
    """One reading of a counter: after how many cycles of this run, when (s, any origin), and in which block."""

    cycles: int
    seconds: float
    value: float
    block: str = CYCLE


class Samples(Sequence[Sample]):
    """Samples in columns: 25 bytes each instead of some 160: a noisy counter is read tens of thousands of times."""

    __slots__ = ("_blocks", "_cycles", "_seconds", "_values")

    def __init__(self) -> None:
        self._cycles, self._seconds, self._values = array("q"), array("d"), array("d")
        self._blocks = bytearray()

    def add(self, cycles: int, seconds: float, value: float, block: str = CYCLE) -> None:
        """Note a reading. ValueError for a block that is none of BLOCKS."""
        if block not in BLOCKS:
            raise ValueError(f"{block!r} is no block of a run")
        self._blocks.append(BLOCKS.index(block))
        self._cycles.append(cycles)
        self._seconds.append(seconds)
        self._values.append(value)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Sample]:
        columns = zip(self._cycles, self._seconds, self._values, map(BLOCKS.__getitem__, self._blocks), strict=True)
        return map(Sample._make, columns)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return Sample(self._cycles[index], self._seconds[index], self._values[index], BLOCKS[self._blocks[index]])


class Series(NamedTuple):
    """What one counter showed during a run.

    ``unit`` is "bytes" or what is counted, in the plural ("handles"). ``scope`` is file, process, device or system.
    ``exact``: at rest it moves only by what this run does. ``kind`` is the kind of the stages that move it
    (accelctl.abi.lifecycle), empty where that is not known. ``capacity`` is the value at which it is exhausted.
    """

    name: str
    unit: str
    scope: str
    exact: bool
    source: str
    samples: Sequence[Sample] = ()
    kind: str = ""
    capacity: float | None = None


class Forecast(NamedTuple):
    """Until when it lasts: ``cycles`` more fit, counted from the first sample; the next one fails with ``error`` (an
    errno name; empty: not known). ``left`` are those that still fit now; ``seconds`` until then at the run's pace."""

    cycles: int
    left: int
    seconds: float | None = None
    error: str = ""


class Judgement(NamedTuple):
    """What follows from one counter.

    ``per_cycle`` and ``interval`` are in the counter's unit per cycle; None where nothing was estimated. ``exact``
    tells a count from an estimate. ``warmup_cut`` is the number of cycles at the start that do not count. ``why`` is
    one line for people; ``decides`` says what would decide it, empty where it is decided. ``stages`` are those that
    can hold such a thing.
    """

    counter: str
    verdict: str
    why: str
    per_cycle: float | None = None
    interval: tuple[float, float] | None = None
    at_stake: Forecast | None = None
    warmup_cut: int = 0
    decides: str = ""
    stages: tuple[str, ...] = ()
    exact: bool = True


class Verdict(NamedTuple):
    """``overall`` and the judgements, worst first; ``books`` are the counters it rests on, ``unreadable`` those that
    could not be read with the reason. ``simulated``: nothing real was behind it."""

    overall: str
    judgements: tuple[Judgement, ...]
    books: tuple[str, ...]
    unreadable: tuple[tuple[str, str], ...] = ()
    simulated: bool = False
