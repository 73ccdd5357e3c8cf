"""From the run that went wrong to the shortest sequence of steps that still does (delta debugging, Zeller 2002)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from accelctl.errors import UsageError
from accelctl.stress.plan import Step

REPLAYS = 120
"""Attempts at most: each opens the device anew."""
_STEP = re.compile(r"(\d{1,4}):(\d{1,15}):(\d{1,2})([re])\Z", re.ASCII)


def shortest(
    steps: Sequence[Step], wrong: Callable[[tuple[Step, ...]], bool], budget: int = REPLAYS
) -> tuple[Step, ...]:
    """A subsequence that is still wrong and from which nothing can be left out, as far as the budget goes.

    ``steps`` itself must be wrong. Steps before the last one that matters are dropped in ever smaller pieces.
    """
    kept, pieces = tuple(steps), 2
    while len(kept) > 1 and budget > 0:
        size = -(-len(kept) // pieces)
        for start in range(0, len(kept), size):
            fewer = kept[:start] + kept[start + size :]
            budget -= 1
            if fewer and wrong(fewer):
                kept, pieces = fewer, max(2, pieces - 1)
                break
            if budget <= 0:
                return kept
        else:
            if size == 1:
                return kept
            pieces = min(len(kept), pieces * 2)
    return kept


def written(steps: Sequence[Step]) -> str:
    """As --replay takes them: slot:size:depth and the order of releasing (r or e)."""
    return ",".join(f"{s.slot}:{s.size}:{s.depth}{'e' if s.early else 'r'}" for s in steps)


def parsed(text: str, stages: int, hold: int) -> tuple[Step, ...]:
    """Raises UsageError for anything that :func:`written` does not write, or that the plan has no room for."""
    steps = []
    for part in text.split(","):
        match = _STEP.match(part.strip())
        if match is None:
            raise UsageError(f"--replay {part[:40]!r}: not SLOT:SIZE:DEPTH and r or e, such as 0:4096:3r")
        slot, size, depth = (int(match.group(number)) for number in (1, 2, 3))
        if slot >= hold or not 1 <= depth <= stages or size < 1:
            raise UsageError(f"--replay {part}: {hold} slots and {stages} stages are what there is")
        steps.append(Step(slot, size, depth, match.group(4) == "e"))
    return tuple(steps)


def words(steps: Sequence[Step], names: Sequence[str]) -> tuple[str, ...]:
    """The same for people."""
    return tuple(
        f"slot {s.slot}: release what is there{' (early order)' if s.early else ''}, "
        f"{' + '.join(names[: s.depth])} of {s.size:,} bytes"
        for s in steps
    )
