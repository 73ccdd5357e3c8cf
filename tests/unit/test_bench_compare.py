"""When something is called slower: rarely by mistake, nearly always where it is, and never across machines."""

import random
from dataclasses import replace

import pytest

from accelctl.accept.bench.compare import compare
from accelctl.errors import UsageError
from accelctl.model.benchreport import (
    BYTES_PER_S,
    FASTER,
    HIDDEN,
    MISSING,
    NEW,
    SAME,
    SECONDS,
    SLOWER,
    UNASKED,
    Comparison,
    Figure,
)
from tests.benchkit import PLACE, figure, noisy, report


def spread_out(middle: float, percent: float = 0.5, n: int = 15) -> list[float]:
    return [middle * (1 + percent / 100 * (place - n // 2) / n) for place in range(n)]


def one(found: Comparison) -> str:
    (row,) = found.rows
    return row.word


@pytest.mark.parametrize(
    ("times", "word"),
    [(1.0, SAME), (1.03, SAME), (1.1, SLOWER), (3.0, SLOWER), (0.9, FASTER), (0.97, SAME)],
)
@pytest.mark.parametrize("unit", [SECONDS, BYTES_PER_S])
def test_words_for_quiet_figures(times: float, word: str, unit: str) -> None:
    now = times if unit == SECONDS else 1 / times
    found = compare(report(figure("a", spread_out(1.0), unit=unit)), report(figure("a", spread_out(now), unit=unit)))
    assert one(found) == word
    assert found.exit_code == (1 if word == SLOWER else 0)
    assert found.rows[0].slowdown is not None
    assert found.rows[0].slowdown.median == pytest.approx(times, rel=0.01)


def test_a_limit_of_its_own() -> None:
    base, now = report(figure("a", spread_out(1.0))), report(figure("a", spread_out(1.1)))
    assert one(compare(base, now, 20)) == SAME
    assert one(compare(base, now, 9)) == SLOWER
    with pytest.raises(UsageError, match="--max-regress"):
        compare(base, now, -1)
    with pytest.raises(UsageError, match="--max-regress"):
        compare(base, now, float("nan"))


def test_noise_that_straddles_the_limit_hides_the_answer_and_says_what_settles_it() -> None:
    base, now = report(figure("a", spread_out(1.0, 40))), report(figure("a", spread_out(1.06, 40)))
    found = compare(base, now)
    assert one(found) == HIDDEN
    assert found.exit_code == 0
    assert found.verdict == HIDDEN
    assert "--seconds" in found.settle
    assert "--part ops" in found.settle


def test_too_few_samples_hide_the_answer() -> None:
    found = compare(report(figure("a", [1.0, 1.0])), report(figure("a", [9.0, 9.0])))
    assert one(found) == HIDDEN
    assert "too few" in found.rows[0].detail


def test_a_slower_machine_is_no_regression() -> None:
    """Everything takes twice as long, the floor too."""
    base = report(figure("a", spread_out(3.0), spread_out(1.0)))
    now = report(figure("a", spread_out(6.0), spread_out(2.0)))
    assert one(compare(base, now)) == SAME


def test_another_floor_is_not_divided_by() -> None:
    base = report(figure("a", spread_out(3.0), spread_out(1.0), floor_name="this"))
    now = report(figure("a", spread_out(6.0), spread_out(2.0), floor_name="that"))
    found = compare(base, now)
    assert one(found) == SLOWER
    assert found.rows[0].by == "by itself"


def test_what_only_one_side_has() -> None:
    def quiet(name: str, part: str = "ops") -> Figure:
        return figure(name, spread_out(1.0), part=part)

    base = report(quiet("a"), quiet("gone"), quiet("x", "pool"), quiet("y", "pool"))
    now = report(quiet("a"), quiet("fresh"))
    found = compare(base, now)
    assert {row.id: row.word for row in found.rows} == {
        "ops/a": SAME,
        "ops/fresh": NEW,
        "ops/gone": MISSING,
        "pool/x": MISSING,
        "pool/y": MISSING,
    }
    assert (found.verdict, found.exit_code) == (MISSING, 1)


def test_what_was_not_asked_for_is_not_missing() -> None:
    base = report(figure("a", spread_out(1.0)), figure("x", spread_out(1.0), part="pool"))
    now = replace(report(figure("a", spread_out(1.0))), parts=("ops",))
    found = compare(base, now)
    assert {row.id: row.word for row in found.rows} == {"ops/a": SAME, "pool": UNASKED}
    assert (found.verdict, found.exit_code) == ("no regression", 0)


def test_a_regression_is_told_before_what_is_missing() -> None:
    base = report(figure("a", spread_out(1.0)), figure("gone", spread_out(1.0)))
    found = compare(base, report(figure("a", spread_out(2.0))))
    assert (found.verdict, found.exit_code) == (SLOWER, 1)


def test_nothing_in_common_is_no_success() -> None:
    base, now = report(figure("a", spread_out(1.0))), report(figure("b", spread_out(1.0)))
    assert compare(base, now).exit_code == 1
    other = report(figure("b", spread_out(1.0), part="pool"))
    assert compare(base, replace(other, parts=("pool",))).exit_code == 77


@pytest.mark.parametrize("name", ["device", "title", "driver", "cpu"])
def test_a_base_of_another_machine_is_refused_by_what_differs(name: str) -> None:
    other = report(figure("a", spread_out(1.0)), place=replace(PLACE, **{name: "other"}))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"{name} 'other'"):
        compare(other, report(figure("a", spread_out(1.0))))


def test_other_versions_are_told() -> None:
    other = replace(PLACE, versions={"accelctl": "0.9", "kernel": "6.12", "driver": "5"})
    found = compare(report(figure("a", spread_out(1.0)), place=other), report(figure("a", spread_out(1.0))))
    assert found.differs == ("accelctl 0.9 -> 1.0", "driver 5 -> none")


FIGURES = 40


def test_equal_runs_are_rarely_called_slower() -> None:
    """Noise of 3 %, pauses, a pace that wanders by a fifth, and luck of 1 % between runs: in at most 5 % of the runs
    anything at all is called slower."""
    rng = random.Random(11)
    runs = 150
    wrong = sum(bool(compare(noisy(rng, FIGURES, 12), noisy(rng, FIGURES, 12)).of(SLOWER)) for _ in range(runs))
    assert wrong <= runs * 0.05


def test_equal_runs_without_luck_hold_the_promise_whatever_the_noise() -> None:
    """Noise of 20 %: the intervals are wide, and still anything is called slower in at most 5 % of the runs."""
    rng = random.Random(15)
    runs = 200
    wrong = 0
    for _ in range(runs):
        base, now = (noisy(rng, 10, 9, sigma=0.2, between=0.0) for _ in range(2))
        wrong += bool(compare(base, now, 0).of(SLOWER))  # no limit at all: only the intervals stand between
    assert wrong <= runs * 0.05


def test_a_tenth_more_is_found() -> None:
    """Among 40 figures, with as many rounds as a quiet machine gets in the usual time and noise of 2 %."""
    rng = random.Random(12)
    runs = 60
    found = [
        compare(noisy(rng, FIGURES, 21, sigma=0.02), noisy(rng, FIGURES, 21, sigma=0.02, slow=1.1)) for _ in range(runs)
    ]
    words = [next(row for row in one.rows if row.id == "ops/op 0").word for one in found]
    assert words.count(SLOWER) >= runs * 0.8
    assert SAME not in words  # what is not found is hidden, never cleared
    assert all(one.exit_code == (SLOWER in {row.word for row in one.rows}) for one in found)


def test_a_larger_slowdown_is_found_in_more_noise() -> None:
    rng = random.Random(14)
    found = [compare(noisy(rng, FIGURES, 15), noisy(rng, FIGURES, 15, slow=1.3)) for _ in range(40)]
    assert sum(bool(one.of(SLOWER)) for one in found) >= 38
