"""Comparison: what passes, what fails, and the line that says so; and the tolerances against the collected facts."""

import json
from typing import Any

import numpy as np
import pytest

from accelctl.abi.opset import OPS
from accelctl.smoke import reference
from accelctl.smoke.cases import select
from accelctl.smoke.cases.record import Case, Made, Trial
from accelctl.smoke.compare import Result, compare, judge, judge_refusal
from accelctl.smoke.numbers import NUMPY, Array, rounded
from accelctl.smoke.tolerance import CLOSE, EXACT, LSE, SCORE_GAP, WEIGHTS, Rule, close, rules
from tests.helpers import ROOT
from tests.smokehost import execute

FACTS = json.loads((ROOT / "tests/golden/op_data.json").read_text(encoding="utf-8"))
LONG = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
INF, NAN = np.inf, np.nan


def said(got: Any, want: Any, rule: Rule = EXACT, dtype: str = "fp32", **more: Any) -> Result:
    return compare("Y", np.array(got).astype(NUMPY[dtype]), np.array(want, float), dtype, rule, **more)


# -- the numbers --


def test_tolerances_are_the_proposed_ones() -> None:
    for op, table in CLOSE.items():
        proposed = FACTS[op]["proposed"]
        for dtype, pair in table.items():
            if (op, dtype) != ("attention_decode", "fp32"):
                assert list(pair) == proposed[LONG[dtype]], (op, dtype)
    assert list(LSE) == FACTS["attention_prefill"]["proposed"]["lse"]
    assert list(WEIGHTS) == FACTS["topk_softmax"]["proposed"]["weights_float32"]
    assert f"{SCORE_GAP:.0e}".replace("e-0", "e-") in FACTS["topk_softmax"]["proposed"]["ids"]


def test_every_result_of_every_op_has_a_rule() -> None:
    covered = set()
    for op in OPS:
        case = next(case for case in select([op]) if "/refused" not in case.id)
        trial = case.load()
        assert set(trial.rules) == set(trial.expected) == set(trial.outputs)
        covered |= {rule.kind for rule in trial.rules.values()}
    assert covered == {"close", "exact", "ids", "weights", "lists", "owners"}


@pytest.mark.parametrize(("length", "factor"), [(64, 32 * 8), (1024, 1024), (8192, 8192)])
def test_contractions_are_allowed_more_the_longer_they_are(length: int, factor: float) -> None:
    a, b = np.full((1, length), 2, np.float32), np.full((length, 1), 3, np.float32)
    found = rules("matmul", {"A": a, "B": b}, {"tf32": False}, {"Y": np.zeros((1, 1))}, {"Y": "fp32"})["Y"]
    assert found.rtol == 2.0**-23
    np.testing.assert_allclose(found.atol, factor * 2.0**-23 * 6)


def test_each_matrix_of_a_batch_has_its_own_allowance() -> None:
    a = np.stack([np.full((2, 4), size, np.float32) for size in (1, 100)])
    found = rules("matmul", {"A": a, "B": np.ones((4, 3), np.float32)}, {"tf32": False}, {"Y": a}, {"Y": "fp32"})["Y"]
    assert np.asarray(found.atol).shape == (2, 1, 1)
    assert np.asarray(found.atol)[1] == 100 * np.asarray(found.atol)[0]


# -- numbers against numbers --


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_zeros_are_equal_and_nan_is_where_it_belongs(dtype: str) -> None:
    assert said([0.0, -0.0, NAN, INF, -INF], [-0.0, 0.0, NAN, INF, -INF], dtype=dtype).passed
    for got, want in ((NAN, 1.0), (1.0, NAN), (INF, -INF), (INF, NAN), (INF, 1.0), (1.0, INF)):
        for rule in (EXACT, close((0.1, 0.1))):
            assert not said([0.0, got], [0.0, want], rule, dtype).passed, (got, want)


def test_the_first_wrong_element_is_named() -> None:
    want = np.arange(12.0).reshape(3, 4)
    got = want.copy()
    got[1, 2] += 1
    got[2, 3] -= 3
    found = said(got, want, close((0.0, 0.5)))
    assert (found.passed, found.first, found.wrong, found.elements) == (False, (1, 2), 2, 12)
    assert (found.max_abs, found.max_rel) == (3.0, 3 / 11)
    assert found.detail.startswith("Y: 2 of 12 wrong, first at (1,2): got 7, right 6 +-0.5; max abs 3, ")
    assert "\n" not in found.detail


def test_a_scalar_has_no_index() -> None:
    found = said(2.0, 1.0)
    assert found.first == ()
    assert "first at ()" in found.detail


def test_ulps_are_counted_against_the_rounded_result() -> None:
    found = said([1 + 2 * 2.0**-10], [1 + 2.0**-12], close((1e-2, 0.0)), "fp16")
    assert (found.passed, found.ulps) == (True, 2)


def test_shape_and_type_come_first() -> None:
    assert "shape (2,), right is (3,)" in said([1, 2], [1, 2, 3]).detail
    got = compare("Y", np.zeros(2, np.float16), np.zeros(2), "fp32", EXACT)
    assert (got.passed, got.detail) == (False, "Y: element type fp16, right is fp32")


def test_half_a_unit_is_always_allowed_unless_equality_is_asked() -> None:
    """A correctly rounded subnormal number is far off in relation to itself."""
    least = 2.0**-24
    assert said([least], [0.51 * least], close((1e-3, 0.0)), "fp16").passed
    assert not said([2 * least], [1.49 * least], close((1e-3, 0.0)), "fp16").passed
    assert said([1 + 2.0**-10], [1 + 0.6 * 2.0**-10], EXACT, "fp16").passed
    assert not said([1], [1 + 0.6 * 2.0**-10], EXACT, "fp16").passed


@pytest.mark.parametrize(
    ("got", "want", "passes"),
    [
        (INF, 131072.0, True),
        (65504.0, 131072.0, False),
        (NAN, 131072.0, False),
        (-INF, 131072.0, False),
        (INF, -131072.0, False),
        (65504.0, 65525.0, True),
        (INF, 65510.0, True),
        (INF, 65000.0, False),
    ],
)
def test_beyond_the_largest_half(got: float, want: float, passes: bool) -> None:
    """OPS-03 d: inf is right and the largest number is not; near the end both are within what is allowed."""
    assert said([got], [want], close((2.0**-10, 0.0)), "fp16").passed is passes


def test_equality_at_the_end_of_the_range() -> None:
    assert said([INF, 65504.0], [65520.0, 65519.0], EXACT, "fp16").passed
    assert not said([65504.0], [65520.0], EXACT, "fp16").passed


def test_flushing_is_forgiven_only_where_it_is_known() -> None:
    least = 2.0**-149
    assert not said([0.0], [least], EXACT).passed
    assert said([0.0], [least], EXACT, flush=True).passed
    assert said([2.0**-126], [2.0**-126 - least], EXACT, flush=True).passed
    assert not said([0.0], [2.0**-126], EXACT, flush=True).passed


def test_what_is_not_judged_counts_nowhere() -> None:
    found = said([1.0, NAN], [1.0, 7.0], unjudged=np.array([False, True]))
    assert (found.passed, found.max_abs) == (True, 0.0)


def test_integers_are_exact() -> None:
    got = compare("Y", np.array([5, -3], np.int32), np.array([5, -4]), "int32", EXACT)
    assert (got.passed, got.first, got.ulps) == (False, (1,), 1)
    assert got.detail == "Y: 1 of 2 wrong, first at (1): got -3, right -4; max abs 1, 1 ulp"


def test_empty_results_pass() -> None:
    assert compare("Y", np.zeros((0, 3), np.float32), np.zeros((0, 3)), "fp32", EXACT).passed


# -- further demands --


def trial(case_id: str) -> Trial:
    (case,) = (case for case in select([case_id.partition("/")[0]]) if case.id == case_id)
    return case.load()


def changed(found: Trial, name: str, change: Any) -> list[Result]:
    got = execute(found)
    got[name] = change(got[name].copy())
    return judge(found, got)


def test_softmax_sums_to_one() -> None:
    """Each element is within its tolerance, together they are not."""
    found = changed(trial("softmax/fp32/n1024"), "Y", lambda y: y + np.float32(9.9e-8))
    assert [one.passed for one in found] == [False]
    assert "sums to 1" in found[0].detail


def test_rope_keeps_the_length_of_pairs() -> None:
    held = trial("rope/fp32/neox-far")
    loose = held._replace(rules={"Y": held.rules["Y"]._replace(atol=1.0)})
    assert all(one.passed for one in judge(loose, execute(loose)))
    found = changed(loose, "Y", lambda y: y * np.float32(1.001))
    assert "changed their length" in found[0].detail


# -- experts --


def routed(ids: Any, weights: Any, gating: Any, k: int) -> list[Result]:
    attrs = {"k": str(k), "renormalize": "false"}
    case = Case("t", "topk_softmax", "fp32", lambda m: Made({"gating": m.values(gating)}, attrs))
    got = {"ids": np.array(ids, np.int32), "weights": np.array(weights, np.float32)}
    return judge(case.load(), got)


def passed(found: list[Result]) -> dict[str, bool]:
    return {one.output: one.passed for one in found}


def test_ties_take_the_lower_index() -> None:
    assert passed(routed([[0, 1]], [[0.25, 0.25]], [[1, 1, 1, 1]], 2))["ids"]
    assert not passed(routed([[2, 3]], [[0.25, 0.25]], [[1, 1, 1, 1]], 2))["ids"]


def test_near_ties_may_change_places_and_say_so() -> None:
    gating = [[1, 1 + 2.0**-22, 0, 0]]
    scores = np.exp([1, 1, 0, 0]) / np.exp([1, 1, 0, 0]).sum()
    found = routed([[0, 1]], [scores[:2]], gating, 2)
    assert passed(found) == {"ids": True, "weights": True}
    assert "near ties" in "".join(one.detail for one in found)
    assert not passed(routed([[1, 2]], [scores[:2]], gating, 2))["ids"]


def test_poisoned_rows_need_distinct_ids_and_finite_weights() -> None:
    gating = [[NAN, 1, 2, 3]]
    assert passed(routed([[3, 1]], [[0.0, 0.0]], gating, 2)) == {"ids": True, "weights": True}
    assert not passed(routed([[1, 1]], [[0.0, 0.0]], gating, 2))["ids"]
    assert not passed(routed([[0, 4]], [[0.0, 0.0]], gating, 2))["ids"]
    assert not passed(routed([[0, -1]], [[0.0, 0.0]], gating, 2))["ids"]
    assert not passed(routed([[0, 1]], [[NAN, 0.0]], gating, 2))["weights"]


def aligned(change: Any, mapped: Array | None = None) -> dict[str, bool]:
    ids = np.array([[2, 0], [2, 1], [0, 2]], np.int32)
    attrs = {"num_experts": "5", "block_size": "2"}
    held = Case("t", "moe_align", "int32", lambda m: Made({"topk_ids": ids, "expert_map": mapped}, attrs)).load()
    got = {name: rounded(one, "int32") for name, one in held.expected.items()}
    change(got)
    return passed(judge(held, got))


def test_the_order_within_one_expert_is_free() -> None:
    def swap(got: dict[str, Array]) -> None:
        assert got["sorted_token_ids"][:2].tolist() == [1, 4]
        got["sorted_token_ids"][:2] = [4, 1]

    def mix(got: dict[str, Array]) -> None:
        got["sorted_token_ids"][[0, 2]] = got["sorted_token_ids"][[2, 0]]

    def spill(got: dict[str, Array]) -> None:
        got["sorted_token_ids"][-1] = 0

    assert all(aligned(swap).values())
    assert not aligned(mix)["sorted_token_ids"]
    assert not aligned(spill)["sorted_token_ids"]


def test_blocks_behind_the_last_one_are_zero_or_its_name() -> None:
    def set_tail(value: int) -> Any:
        return lambda got: got["expert_ids"].__setitem__(-1, value)

    mapped = np.array([6, 1, 2, 3, 4], np.int32)
    assert aligned(set_tail(0))["expert_ids"]
    assert not aligned(set_tail(6))["expert_ids"]
    assert aligned(set_tail(6), mapped)["expert_ids"]
    assert not aligned(set_tail(2), mapped)["expert_ids"]


# -- whole trials --


def test_a_missing_result_fails() -> None:
    found = judge(trial("relu/fp32/n31"), {})
    assert [(one.passed, one.detail) for one in found] == [(False, "Y was not given")]


def test_refusals_are_judged_by_what_they_say() -> None:
    held = trial("add/fp32/refused-ops-06d")
    assert judge_refusal(held, "shapes (10,1) and (3,1) do not broadcast").passed
    assert "does not say (3,1)" in judge_refusal(held, "shapes differ: (10,1)").detail
    assert "it ran" in judge_refusal(held, None).detail


def test_a_result_type_that_was_asked_for() -> None:
    held = trial("matmul/fp16/fp32-result")
    assert held.outputs["Y"].described
    assert execute(held)["Y"].dtype == np.float32
    assert reference.result_type("matmul", held.values, "Y") == "fp16"


def test_an_integer_that_wraps_is_no_error() -> None:
    """The reference holds 64 bits and is not wrapped; what is stored is, and the figures are about that."""
    found = compare("Y", np.array([-(2**31)], np.int32), np.array([2**31]), "int32", EXACT)
    assert found.passed
    assert (found.max_abs, found.max_rel, found.ulps) == (0.0, 0.0, 0)
