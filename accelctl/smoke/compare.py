"""Results against the reference: one verdict for each output, and one line that says what is wrong and by how much.

NaN must be where the reference has NaN. Both zeros are one number. A result beyond the largest number of its element
type is inf, as rounding makes it. Half a unit in the last place is always allowed, except where equality is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from accelctl.smoke.numbers import FORMATS, Array, floating, name_of, rounded, ulp, ulp_distance
from accelctl.smoke.tolerance import SCORE_GAP, Rule

if TYPE_CHECKING:
    from accelctl.smoke.cases.record import Trial


class Result(NamedTuple):
    """How one output came out. ``max_abs``, ``max_rel`` and ``ulps`` are over what is finite on both sides; ``first``
    is the index of the first wrong element in row-major order; ``detail`` is one line."""

    output: str
    passed: bool
    detail: str
    max_abs: float = 0.0
    max_rel: float = 0.0
    ulps: int = 0
    first: tuple[int, ...] | None = None
    wrong: int = 0
    elements: int = 0
    share: float = 0.0
    """The worst difference as a share of what is allowed there; 0 where equality is asked."""


FLUSHED = frozenset({"add"})
"""Ops for which the collected op facts forgive a device that flushes subnormal numbers to zero."""


def judge(trial: Trial, got: Mapping[str, Array], flush: bool = False) -> list[Result]:
    """One result for each output that the trial expects. ``flush``: the device says that it flushes subnormal numbers
    to zero, which is no error of the ops in FLUSHED then."""
    found, flush = [], flush and trial.case.op in FLUSHED
    for name, want in trial.expected.items():
        array, out = got.get(name), trial.outputs[name]
        if array is None:
            found.append(Result(name, False, f"{name} was not given"))
        else:
            hidden = trial.unjudged.get(name)
            found.append(compare(name, array, want, out.dtype, trial.rules[name], hidden, flush))
    return found


def changed(trial: Trial, first: Mapping[str, Array], second: Mapping[str, Array]) -> str:
    """Which bytes of two runs of one trial differ, where results are judged at all; empty: none."""
    for name, one in first.items():
        raw = [np.ascontiguousarray(each).reshape(-1, 1).view(np.uint8) for each in (one, second[name])]
        differ = (raw[0] != raw[1]).any(axis=1).reshape(one.shape)
        differ &= ~np.broadcast_to(trial.unjudged.get(name, np.False_), one.shape)
        if differ.any():
            return f"{name}: {int(differ.sum())} of {differ.size} elements have other bytes"
    return ""


def judge_refusal(trial: Trial, message: str | None) -> Result:
    """The result of a trial that must be refused: ``message`` is what the refusal said, None where it ran."""
    assert trial.refusal is not None
    if message is None:
        return Result("", False, f"it ran, although: {trial.refusal.why}")
    missing = [word for word in trial.refusal.says if word not in message]
    if missing:
        return Result("", False, f"refused, but the reason does not say {', '.join(missing)}: {message}")
    return Result("", True, f"refused: {message}")


def compare(
    name: str, got: Array, want: Array, dtype: str, rule: Rule, unjudged: Array | None = None, flush: bool = False
) -> Result:
    """``want`` is float64 or int64 and not rounded; ``dtype`` is the element type that ``got`` must have."""
    if got.shape != want.shape:
        return Result(name, False, f"{name}: shape {got.shape}, right is {want.shape}")
    if name_of(got) != dtype:
        return Result(name, False, f"{name}: element type {name_of(got)}, right is {dtype}")
    hidden = np.zeros(want.shape, bool) if unjudged is None else np.broadcast_to(unjudged, want.shape)
    return _KINDS[rule.kind](name, got, want, rule, hidden, flush)


def _numbers(name: str, got: Array, want: Array, rule: Rule, hidden: Array, flush: bool) -> Result:
    """Kinds close and exact."""
    dtype = name_of(got)
    right = rounded(want, dtype)
    if not floating(dtype):
        allowed = np.zeros(want.shape)
        bad = (got != right) & ~hidden
    else:
        allowed = _allowed(want, dtype, rule)
        bad = ~_near(got.astype(np.float64), want, right, allowed, rule.kind == "exact", flush) & ~hidden
    measured = _measure(name, got, want, right, hidden)
    measured = measured._replace(share=_share(got.astype(np.float64), want, allowed, hidden))
    if bad.any():
        return _wrong(measured, bad, got, right, allowed)
    said = rule.check(np.where(hidden, want, got.astype(np.float64))) if rule.check is not None else ""
    if said:
        return measured._replace(passed=False, detail=f"{name}: {said}")
    return measured


def _allowed(want: Array, dtype: str, rule: Rule) -> Array:
    """How far each element may be from the reference; 0 for what is not finite, and where equality is asked."""
    if rule.kind == "exact":
        return np.zeros(want.shape)
    with np.errstate(invalid="ignore"):
        asked = rule.rtol * np.abs(want) + rule.atol
    return np.where(np.isfinite(want), np.maximum(asked, ulp(want, dtype) / 2), 0.0)


def _share(y: Array, want: Array, allowed: Array, hidden: Array) -> float:
    """How much of what is allowed the worst element uses; 1 is all of it."""
    there = np.isfinite(y) & np.isfinite(want) & (allowed > 0) & ~hidden
    return float((np.abs(y[there] - want[there]) / allowed[there]).max(initial=0.0))


def _near(y: Array, want: Array, right: Array, allowed: Array, exact: bool, flush: bool) -> Array:
    """True where an element passes."""
    fraction, lowest, most = FORMATS[name_of(right)]
    stored = right.astype(np.float64)
    same = (y == stored) | (np.isnan(y) & np.isnan(stored))
    if flush:
        smallest = 2.0**lowest
        same |= (np.abs(stored) < smallest) & (np.abs(y) <= smallest)
    if exact:
        return np.asarray(same)
    with np.errstate(invalid="ignore"):
        near = np.abs(y - want) <= allowed
        # inf for a number that, with what is allowed, may round to inf
        end = most + 2.0 ** (np.frexp(most)[1] - 2 - fraction)
        over = np.isinf(y) & (np.sign(y) == np.sign(want)) & (np.abs(want) + allowed >= end)
    return np.asarray(same | near | (over & np.isfinite(want)))


def _measure(name: str, got: Array, want: Array, right: Array, hidden: Array) -> Result:
    """A passing result with its figures."""
    ref = (want if floating(name_of(got)) else right).astype(np.float64)  # what wraps is no error
    y = got.astype(np.float64)
    there = np.isfinite(y) & np.isfinite(ref) & ~hidden
    if not there.any():
        return Result(name, True, f"{name}: nothing finite to measure", elements=int(y.size))
    off = np.abs(y[there] - ref[there])
    size = np.abs(ref[there])
    relative = off[size > 0] / size[size > 0]
    ulps = int(ulp_distance(got, right)[there & np.isfinite(right.astype(np.float64))].max(initial=0))
    most = float(off.max())
    detail = f"{name}: max abs {most:.2g}, {ulps} ulp"
    return Result(name, True, detail, most, float(relative.max(initial=0.0)), ulps, elements=int(y.size))


def _wrong(measured: Result, bad: Array, got: Array, right: Array, allowed: Array) -> Result:
    """The failing result: where it starts, and what is there."""
    first = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape)) if bad.ndim else ()
    limit = f" +-{float(allowed[first]):.2g}" if float(allowed[first]) else ""
    where = f"at ({','.join(map(str, first))})"
    said = f"got {_plain(got[first])}, right {_plain(right[first])}{limit}"
    wrong = int(bad.sum())
    detail = f"{measured.output}: {wrong} of {bad.size} wrong, first {where}: {said}; "
    detail += f"max abs {measured.max_abs:.2g}, {measured.ulps} ulp"
    return measured._replace(passed=False, detail=detail, first=first, wrong=wrong)


def _plain(value: object) -> str:
    """A number with as many digits as tell it from its neighbours, roughly."""
    number = float(value)  # type: ignore[arg-type]
    return str(int(number)) if number.is_integer() and abs(number) < 1e16 else f"{number:.6g}"


def _ids(name: str, got: Array, want: Array, rule: Rule, hidden: Array, flush: bool) -> Result:
    """Chosen experts: exact, but those whose scores nearly meet may change places. Where a row held NaN or inf only
    that they are distinct is asked."""
    scores, poisoned = rule.context["scores"], rule.context["poisoned"][:, None]
    ids = got.astype(np.int64)
    outside = (ids < 0) | (ids >= scores.shape[1])
    safe = np.where(outside, 0, ids)
    gap = np.abs(np.take_along_axis(scores, safe, 1) - np.take_along_axis(scores, want, 1))
    swapped = (gap < SCORE_GAP) & (gap > 0)
    twice = np.array([[row.count(one) > 1 for one in row] for row in ids.tolist()], bool).reshape(ids.shape)
    bad = outside | twice | ((ids != want) & ~swapped & ~poisoned)
    measured = Result(name, True, f"{name}: exact", elements=int(ids.size))
    if bad.any():
        return _wrong(measured, bad, got, want, np.zeros(want.shape))
    changed = int(((ids != want) & ~poisoned).sum())
    return measured._replace(detail=f"{name}: {changed} near ties in another order") if changed else measured


def _weights(name: str, got: Array, want: Array, rule: Rule, hidden: Array, flush: bool) -> Result:
    """Weights of the chosen experts. Where a row held NaN or inf only that they are finite is asked."""
    free = rule.context["poisoned"][:, None] & np.isfinite(got)
    return _numbers(name, got, want, rule._replace(kind="close"), free, flush)


def _lists(name: str, got: Array, want: Array, rule: Rule, hidden: Array, flush: bool) -> Result:
    """Slots by expert: the order within one expert's list is free."""
    sides = []
    for side in (got.astype(np.int64), want.copy()):
        at = 0
        for length in rule.context["lists"].tolist():
            side[at : at + length] = np.sort(side[at : at + length])
            at += length
        sides.append(side)
    found = _numbers(name, sides[0].astype(got.dtype), sides[1], rule, hidden, flush)
    return found if found.passed else found._replace(detail=found.detail + " (each expert's list sorted)")


def _owners(name: str, got: Array, want: Array, rule: Rule, hidden: Array, flush: bool) -> Result:
    """The expert of each block; behind the last used one 0, or what the map makes of 0."""
    used = int(rule.context["lists"].sum() // rule.context["block"])
    behind = np.arange(want.size) >= used
    free = behind & np.isin(got, rule.context["beyond"])
    return _numbers(name, got, want, rule, free, flush)


_KINDS: dict[str, Callable[[str, Array, Array, Rule, Array, bool], Result]] = {
    "close": _numbers,
    "exact": _numbers,
    "ids": _ids,
    "weights": _weights,
    "lists": _lists,
    "owners": _owners,
}
