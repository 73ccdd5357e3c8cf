"""What `accelctl smoke` found, as plain records: one row per case, runs of the small transformer, and the evidence that
each kernel has gathered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from accelctl.exits import ExitCode
from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP

SCHEMA = "accelctl.smoke/1"
PASSED, PASSED_SIMULATED, FAILED = "passed", "passed (simulated)", "failed"
UNDECIDED, NOTHING = "inconclusive", "nothing ran"
"""Neither passed nor failed: something could not be decided, or the run was stopped; every case was skipped."""


class CaseRow(NamedTuple):
    """One case. ``result`` is pass, fail, skip or inconclusive, and ``detail`` says why in one line."""

    id: str
    op: str
    dtype: str
    result: str
    detail: str
    corner: str = ""
    """What the case is there for."""
    refusal: bool = False
    """It must be refused; a pass then says that it was."""
    tolerance: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    ulps: int = 0
    first: tuple[int, ...] | None = None
    """Index of the first wrong element."""
    kernel: str = ""
    """What ran; several, with commas, where copies stood around it."""
    seconds: float = 0.0
    share: float = 0.0
    """The worst difference as a share of what is allowed there; 0 where equality is asked."""


class Evidence(NamedTuple):
    """One rung of the ladder (abi.capability) that a kernel stands on. ``date`` is a day as 2026-01-31; ``figures`` are
    numbers with their unit in the name (cases, max_ulps, launches, latency_us)."""

    rung: str
    date: str
    figures: Mapping[str, float]
    detail: str = ""


class KernelEvidence(NamedTuple):
    """The rungs of one kernel, lowest first."""

    kernel: str
    op: str
    rungs: tuple[Evidence, ...]


class DecodeRun(NamedTuple):
    """The small transformer: prompts, then one token after the other for all of them at once. Times in seconds."""

    dtype: str
    result: str
    detail: str
    prompts: tuple[int, ...]
    """Tokens of each prompt."""
    tokens: tuple[tuple[int, ...], ...]
    """What was generated for each prompt."""
    first_token_seconds: float
    """From handing over the first prompt until its first token is known."""
    step_seconds: tuple[float, ...]
    """Of each further step, which gives one token for each prompt."""
    launches: Mapping[str, int]
    """Op -> how often it ran."""
    worst: float
    """Largest difference of a logit from the float64 reference, in units of the logits' root mean square."""
    allowed: float

    @property
    def token_seconds(self) -> float:
        """Seconds a token, for one of the sequences; 0 where there was no step."""
        return sum(self.step_seconds) / len(self.step_seconds) if self.step_seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together; 0 where no time passed."""
        seconds = sum(self.step_seconds)
        return len(self.step_seconds) * len(self.prompts) / seconds if seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class SmokeReport:
    """Everything about one run on one device."""

    device: str
    chip: str
    target: str
    """Address of the service, or empty where the run started one itself."""
    simulated: bool
    seed: int
    command: str
    proven: str = ""
    rows: tuple[CaseRow, ...] = ()
    decode: tuple[DecodeRun, ...] = ()
    evidence: tuple[KernelEvidence, ...] = ()
    notes: tuple[str, ...] = ()
    ended: int = 0
    """Exit status that a signal asks for (128 + its number), where one ended the run; 0: none did."""
    hang: str = ""
    """What did not come back, empty where nothing hung."""
    gone: str = ""
    """That the service does not answer any more, empty where it does."""

    @property
    def interrupted(self) -> bool:
        """What had not run yet is not in here."""
        return self.ended != 0

    @property
    def counts(self) -> dict[str, int]:
        """pass, fail, skip, inconclusive -> how many cases and decode runs."""
        found = Counter([*(row.result for row in self.rows), *(run.result for run in self.decode)])
        return {result: found[result] for result in (PASS, FAIL, SKIP, INCONCLUSIVE)}

    def by_op(self) -> dict[str, dict[str, list[CaseRow]]]:
        """op -> element type -> rows, in the order in which they ran."""
        found: dict[str, dict[str, list[CaseRow]]] = {}
        for row in self.rows:
            found.setdefault(row.op, {}).setdefault(row.dtype, []).append(row)
        return found

    @property
    def verdict(self) -> str:
        """passed, passed (simulated), failed; or why neither can be said."""
        counts = self.counts
        if counts[FAIL] or self.hang or self.gone:
            return FAILED
        if counts[INCONCLUSIVE] or self.interrupted:
            return UNDECIDED
        if not counts[PASS]:
            return NOTHING
        return PASSED_SIMULATED if self.simulated else PASSED

    @property
    def exit_code(self) -> int:
        """0: passed or undecided; 1: failed; 6: something did not come back; 7: the service is gone; 77: every case was
        skipped; 128 + n: a signal ended the run, and nothing had failed until then."""
        if self.hang:
            return int(ExitCode.TIMEOUT)
        if self.gone:
            return int(ExitCode.UNUSABLE)
        if self.ended and self.verdict != FAILED:
            return self.ended
        return int({FAILED: ExitCode.FINDINGS, NOTHING: ExitCode.SKIPPED}.get(self.verdict, ExitCode.OK))
