"""The small transformer: right on a right machine, noticed on a wrong one, timed by the clock that it is given."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from accelctl.smoke.decode import ALLOWED, PROMPTS, Loop, decode
from accelctl.smoke.transformer import Sizes, build, logits
from tests.smokehost import Held, Host


def counting() -> Callable[[], float]:
    """A clock that goes on by one second each time it is read."""
    return itertools.count(0.0, 1.0).__next__


class Spoiled(Host):
    """A machine with one mistake: ``change`` may alter operands and attributes of each op."""

    def __init__(self, change: Callable[[str, dict[str, Any], dict[str, str]], None]) -> None:
        self.change = change

    def run(
        self, op: str, inputs: Mapping[str, Held], attrs: Mapping[str, str], outputs: Mapping[str, Held]
    ) -> Mapping[str, Held]:
        given, said = dict(inputs), dict(attrs)
        self.change(op, given, said)
        return super().run(op, given, said, outputs)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_right_machine_passes(dtype: str) -> None:
    """With a third of what is allowed, so that a device that sums in another order does too."""
    found = decode(Host(), counting(), dtype, seed=1, steps=5)
    assert found.result == "pass"
    assert 0 < found.worst < ALLOWED[dtype] / 3
    assert found.detail.startswith("logits within ")
    assert [len(made) for made in found.tokens] == [6, 6]
    assert found.prompts == PROMPTS


def test_the_reference_does_not_see_later_tokens() -> None:
    model = build("fp32", 3)
    whole, part = logits(model, [5, 17, 80, 2]), logits(model, [5, 17, 80])
    np.testing.assert_allclose(whole[:3], part, rtol=1e-12)
    assert (np.abs(logits(model, [5, 17, 80])[2] - logits(model, [17, 5, 80])[2]) > 1e-3).any()


def test_the_seed_decides_weights_and_prompts() -> None:
    first, again, other = (decode(Host(), counting(), seed=seed, steps=2).tokens for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_times_come_from_the_clock() -> None:
    found = decode(Host(), counting(), steps=4)
    assert found.first_token_seconds == 1.0
    assert found.step_seconds == (1.0, 1.0, 1.0, 1.0)
    assert found.token_seconds == 1.0
    assert found.tokens_per_second == 2.0


def test_launches_are_counted_by_op() -> None:
    sizes, steps = Sizes(), 3
    found = decode(Host(), counting(), steps=steps)
    runs = len(PROMPTS) + steps
    blocks = sum(-(-length // sizes.block) for length in PROMPTS)
    copies = len(PROMPTS) + 2 * blocks + steps * (1 + 2 * len(PROMPTS))
    assert found.launches == {
        "rmsnorm": runs * (2 * sizes.layers + 1),
        "matmul": runs * (4 * sizes.layers + 1),
        "rope": runs * 2 * sizes.layers,
        "silu_and_mul": runs * sizes.layers,
        "add": runs * sizes.layers,
        "attention_prefill": len(PROMPTS) * sizes.layers,
        "attention_decode": steps * sizes.layers,
        "copy": copies * sizes.layers,
    }


def not_causal(op: str, inputs: dict[str, Any], attrs: dict[str, str]) -> None:
    if op == "attention_prefill":
        attrs["causal"] = "none"


def short_by_one(op: str, inputs: dict[str, Any], attrs: dict[str, str]) -> None:
    if op == "attention_decode":
        inputs["seq_lens"] = Host().put(inputs["seq_lens"].array - 1)


def long_by_one(op: str, inputs: dict[str, Any], attrs: dict[str, str]) -> None:
    """NaN that lies behind the last token is read."""
    if op == "attention_decode":
        inputs["seq_lens"] = Host().put(inputs["seq_lens"].array + 1)


def other_style(op: str, inputs: dict[str, Any], attrs: dict[str, str]) -> None:
    if op == "rope":
        attrs["style"] = "interleaved"


def late_position(op: str, inputs: dict[str, Any], attrs: dict[str, str]) -> None:
    """Only while decoding: one token."""
    if op == "rope" and inputs["positions"].array.size == 2:
        inputs["positions"] = Host().put(inputs["positions"].array + np.array([1, 0], np.int32))


def no_residual(op: str, inputs: dict[str, Any], attrs: dict[str, str]) -> None:
    if attrs.get("variant") == "fused_add":
        inputs["residual"] = Host().put(np.zeros_like(inputs["residual"].array))


def values_not_written(op: str, inputs: dict[str, Any], attrs: dict[str, str]) -> None:
    """Keys in the cache's place for values."""
    if op == "attention_decode":
        inputs["v_cache"] = inputs["k_cache"]


def sequences_swapped(op: str, inputs: dict[str, Any], attrs: dict[str, str]) -> None:
    if op == "attention_decode":
        inputs["block_table"] = Host().put(inputs["block_table"].array[::-1])


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    "change",
    [
        not_causal,
        short_by_one,
        long_by_one,
        other_style,
        late_position,
        no_residual,
        values_not_written,
        sequences_swapped,
    ],
    ids=lambda change: str(change.__name__),
)
def test_mistakes_are_noticed(change: Any, dtype: str) -> None:
    found = decode(Spoiled(change), counting(), dtype, steps=4)
    assert found.result == "fail"
    assert found.worst > ALLOWED[dtype]


def test_nothing_is_written_outside_the_blocks_of_a_sequence() -> None:
    host = Host()
    loop = Loop(host, build("fp32"), (9, 6))
    loop.prefill(0, [1, 2, 3, 4, 5])
    loop.prefill(1, [6, 7])
    loop.step([8, 9])
    tables = [row[: -(-length // 4)] for row, length in zip(loop._tables.tolist(), (6, 3), strict=True)]
    for keys, values in loop._caches:
        for cache in (host.get(keys), host.get(values)):
            written = np.isfinite(cache).all(axis=(2, 3))
            assert (written == ~np.isnan(cache).any(axis=(2, 3))).all()
            want = np.zeros_like(written)
            for row, length in zip(tables, (6, 3), strict=True):
                for token in range(length):
                    want[row[token // 4], token % 4] = True
            assert (written == want).all()
