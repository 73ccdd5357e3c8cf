"""What hidden keys hold: nothing of it reaches the result, in every mix of NaN, inf and underflow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("numpy", reason="needs numpy: pip install 'accelctl[umd]'")
pytest.importorskip("ml_dtypes", reason="needs ml-dtypes: pip install 'accelctl[umd]'")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.abi.opset import OPS
from tests.opskit import Array, Machine, Out, machine
from tests.simkit import open_sim

ODD = st.sampled_from([1.0, -2.0, 0.5, np.nan, np.inf, -np.inf])


@pytest.fixture(scope="module")
def sim() -> Iterator[Machine]:
    from accelctl.backends.sim.ops.contract import OPS as SIM

    opened = open_sim()
    with machine(SIM, opened.session) as made:
        yield made
    opened.session.close()


def one_row(scores: Array, values: Array) -> Array:
    """The formula, over the keys that take part."""
    seen = ~np.isneginf(scores)
    if not seen.any():
        return np.zeros(values.shape[1])
    scores, values = scores[seen], values[seen].astype(np.float64)
    powers = np.exp(scores - scores.max())
    found: Array = (powers[:, None] * values).sum(axis=0) / powers.sum()
    return found


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.lists(ODD, min_size=2, max_size=2), min_size=4, max_size=4),
    bias=st.lists(st.sampled_from([0.0, 1.0, -np.inf, -500.0]), min_size=12, max_size=12),
    causal=st.sampled_from(["none", "upper_left", "lower_right"]),
    window=st.sampled_from(["0", "1", "2"]),
)
def test_hidden_keys_take_no_part(
    sim: Machine, values: list[list[float]], bias: list[float], causal: str, window: str
) -> None:
    v, mask = np.array(values, np.float32), np.array(bias, np.float32).reshape(3, 4)
    q, k = np.ones((1, 3, 2), np.float32), np.zeros((1, 4, 2), np.float32)
    inputs = {"Q": q, "K": k, "V": v[None], "mask": mask}
    found = sim.run("attention_prefill", inputs, {"O": Out((1, 3, 2))}, causal=causal, window=window)["O"][0]
    at = np.arange(3)[:, None] + (0 if causal == "upper_left" else 1)
    key, wide = np.arange(4)[None], int(window)
    seen = (key <= at) | (causal == "none" and not wide)
    seen &= (key > at - wide) | (not wide)
    with np.errstate(all="ignore"):
        wanted = np.stack([one_row(row, v) for row in np.where(seen, mask, -np.inf).astype(np.float32)])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_what_lies_before_the_window_is_not_read(sim: Machine) -> None:
    cache = np.full((3, 2, 1, 2), np.nan, np.float32)
    cache[1, 1], cache[2, 0] = 3, 3
    table, lens = np.array([[-7, 1, 2, 99]], np.int32), np.array([5], np.int32)
    inputs = {"Q": np.ones((1, 1, 2), np.float32), "k_cache": cache, "v_cache": cache}
    outputs = {"O": Out((1, 1, 2)), "lse": Out((1, 1))}
    found = sim.run(
        "attention_decode", {**inputs, "block_table": table, "seq_lens": lens}, outputs, block_size="2", window="2"
    )
    assert found["O"].tolist() == [[[3, 3]]]
    assert found["lse"][0, 0] == pytest.approx(6 / np.sqrt(2) + np.log(2))


def test_a_soft_cap_below_fp32_is_not_no_cap(sim: Machine) -> None:
    k = np.array([[[9, 9], [1, 1]]], np.float32)
    inputs = {"Q": np.ones((1, 1, 2), np.float32), "K": k, "V": np.array([[[2, 2], [4, 4]]], np.float32)}
    found = sim.run("attention_prefill", inputs, {"O": Out((1, 1, 2))}, softcap="1e-50")["O"]
    assert found.tolist() == [[[3, 3]]]


def test_what_the_driver_would_refuse_no_kernel_takes() -> None:
    """So that the service translates nothing that is refused when it is submitted."""
    from accelctl.backends.sim.ops.contract import OPS as SIM

    assert {template.op for template in SIM.templates() if template.refuses is not None} == set(OPS)
