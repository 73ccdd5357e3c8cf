"""Mutants of attention and routing."""

from collections.abc import Mapping
from unittest.mock import patch

import numpy as np

from accelctl.smoke.cases import Trial
from accelctl.smoke.numbers import Array, wide
from accelctl.smoke.reference import attention, routing
from tests.smokemutants import Attrs, Values, half, mutant, ref

BOTH = ("attention_prefill", "attention_decode")


@mutant("attention_prefill")
def upper_left_always(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    causal = "upper_left" if a["causal"] == "lower_right" else a["causal"]
    return ref("attention_prefill", v, a | {"causal": causal}, t)


@mutant("attention_prefill")
def lower_right_always(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    causal = "lower_right" if a["causal"] == "upper_left" else a["causal"]
    return ref("attention_prefill", v, a | {"causal": causal}, t)


@mutant(*BOTH)
def heads_tiled(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Query head h takes key head h % Hkv."""

    def tile(kv: Array, heads: int, axis: int) -> Array:
        return np.asarray(np.take(kv, np.arange(heads) % kv.shape[axis], axis=axis))

    with patch.object(attention, "repeat_heads", tile):
        return ref(t.case.op, v, a, t)


@mutant("attention_prefill")
def masked_rows_average(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """-1e9 in the place of -inf."""
    attend = attention.attend
    if not v["K"].shape[-2]:
        return None
    with patch.object(attention, "attend", lambda q, k, w, bias, a: attend(q, k, w, np.maximum(bias, -1e9), a)):
        return ref("attention_prefill", v, a, t)


@mutant(*BOTH)
def window_one_too_wide(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref(t.case.op, v, a | {"window": a["window"] + 1}, t) if a["window"] else None


@mutant(*BOTH)
def window_ignored(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    causal = {"causal": "lower_right"} if a.get("causal") == "none" and a["window"] else {}
    return ref(t.case.op, v, a | {"window": 0} | causal, t)


@mutant(*BOTH)
def softcap_ignored(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref(t.case.op, v, a | {"softcap": 0.0}, t)


@mutant("attention_prefill")
def capped_after_the_mask(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """The cap lifts hidden keys to -cap."""
    attend = attention.attend
    if not a["softcap"]:
        return None
    capped = a["softcap"]
    with patch.object(attention, "attend", lambda q, k, w, bias, a: attend(q, k, w, np.maximum(bias, -capped), a)):
        return ref("attention_prefill", v, a, t)


@mutant(*BOTH)
def scale_forgotten(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref(t.case.op, v, a | {"scale": 1.0}, t)


@mutant(*BOTH)
def scale_of_the_caller_ignored(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref(t.case.op, v, a | {"scale": 0.0}, t)


@mutant("attention_prefill")
def scores_in_half(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Q.K in fp16 before the scale: inf above 65504."""
    if (
        t.case.dtype != "fp16"
        or v["Q"].shape[-3] != v["K"].shape[-3]
        or v.get("mask") is not None
        or a["causal"] != "none"
    ):
        return None
    scores = half(wide(v["Q"]) @ np.swapaxes(wide(v["K"]), -1, -2), "fp16") * (a["scale"] or v["Q"].shape[-1] ** -0.5)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-1e300))
    return {"O": powers / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-300) @ wide(v["V"])}


@mutant(*BOTH)
def lse_in_base_2(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return {"lse": t.expected["lse"] / np.log(2)}


@mutant("attention_prefill")
def softmax_over_queries(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """The wrong axis."""
    if v["Q"].shape[-3] != v["K"].shape[-3] or v.get("mask") is not None or not v["Q"].size or not v["K"].size:
        return None
    scores = wide(v["Q"]) @ np.swapaxes(wide(v["K"]), -1, -2) * v["Q"].shape[-1] ** -0.5
    powers = np.exp(scores - scores.max(axis=-2, keepdims=True))
    return {"O": powers / powers.sum(axis=-2, keepdims=True) @ wide(v["V"])}


@mutant("attention_prefill")
def mask_inverted(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """True taken for hidden."""
    mask = v.get("mask")
    return None if mask is None or mask.dtype != np.uint8 else ref("attention_prefill", v | {"mask": 1 - mask}, a, t)


@mutant("attention_decode")
def whole_blocks_read(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Slots behind the last token take part."""
    size = a["block_size"]
    return ref("attention_decode", v | {"seq_lens": (-(-v["seq_lens"] // size) * size).astype(np.int32)}, a, t)


@mutant("attention_decode")
def last_token_left_out(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("attention_decode", v | {"seq_lens": np.maximum(v["seq_lens"] - 1, 0)}, a, t)


@mutant("attention_decode")
def table_ignored(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Blocks are taken in order."""
    table = v["block_table"]
    if not table.size or table.size > len(v["k_cache"]):
        return None
    order = np.arange(table.size, dtype=np.int32).reshape(table.shape)
    return ref("attention_decode", v | {"block_table": order}, a, t)


@mutant("attention_decode")
def block_size_of_a_power_of_two(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """t // size and t % size by shift and mask."""
    shift = a["block_size"].bit_length() - 1
    table, out = v["block_table"], np.zeros(t.expected["O"].shape)
    for row, length in enumerate(v["seq_lens"].tolist()):
        tokens = np.arange(length)
        block = np.minimum(tokens >> shift, table.shape[1] - 1)
        where = np.clip(table[row, block], 0, len(v["k_cache"]) - 1), tokens & ((1 << shift) - 1)
        k, w = (np.swapaxes(wide(v[name][where]), 0, 1) for name in ("k_cache", "v_cache"))
        k, w = (attention.repeat_heads(one, v["Q"].shape[1], 0) for one in (k, w))
        seen = attention.visible(1, length, "lower_right", a["window"])
        out[row] = attention.attend(wide(v["Q"])[row][:, None], k, w, np.where(seen, 0.0, -np.inf), a)[0][:, 0]
    return {"O": out}


@mutant("attention_decode")
def block_ids_of_16_bits(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    table = v["block_table"].astype(np.int16).astype(np.int32)
    return ref("attention_decode", v | {"block_table": table}, a, t)


@mutant("attention_decode")
def hidden_slots_multiplied_by_zero(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Every slot of a used block goes into the sum, weighted with 0: NaN stays."""
    if not t.expected["O"].size:
        return None
    used = np.clip(v["block_table"][:, :1], 0, None)
    spoiled = 0 * wide(v["v_cache"][used]).sum(axis=(1, 2, 3))
    return {"O": t.expected["O"] + np.resize(spoiled[:, None], t.expected["O"].shape)}


@mutant("attention_decode")
def decode_strides_ignored(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    for name in ("k_cache", "v_cache"):
        arg = t.inputs[name]
        v[name] = arg.storage[: int(np.prod(arg.shape))].reshape(arg.shape)
    return ref("attention_decode", v, a, t)


# -- routing --


def select(v: Values, a: Attrs, ids: Array) -> dict[str, Array]:
    weighing, _ = routing.scores(v, a)
    weights = np.take_along_axis(weighing, ids, axis=1)
    if a["renormalize"]:
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return {"ids": ids, "weights": weights}


@mutant("topk_softmax")
def ties_to_the_higher_index(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    _, choosing = routing.scores(v, a)
    experts = choosing.shape[1]
    ids = experts - 1 - np.argsort(-choosing[:, ::-1], axis=1, kind="stable")[:, : a["k"]]
    return select(v, a, ids)


@mutant("topk_softmax")
def ids_by_index(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """The right experts, not by score."""
    return select(v, a, np.sort(t.expected["ids"], axis=1))


@mutant("topk_softmax")
def weighed_with_the_bias(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if v.get("bias") is None:
        return None
    _, choosing = routing.scores(v, a)
    weights = np.take_along_axis(choosing, t.expected["ids"], axis=1)
    return {"weights": weights / weights.sum(axis=1, keepdims=True) if a["renormalize"] else weights}


@mutant("topk_softmax")
def chosen_without_the_bias(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("topk_softmax", v | {"bias": None}, a, t)


@mutant("topk_softmax")
def not_renormalised(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("topk_softmax", v, a | {"renormalize": False}, t)


@mutant("topk_softmax")
def renormalised_in_half(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return {"weights": half(t.expected["weights"], "fp16")} if a["renormalize"] else None


@mutant("topk_softmax")
def scoring_ignored(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("topk_softmax", v, a | {"scoring": "softmax"}, t)


@mutant("topk_softmax")
def nan_not_counted_as_zero(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """NaN wins every comparison and stays in the weights."""
    bad = np.asarray(np.isnan(wide(v["gating"])).any(axis=1))
    if not bad.any() or not a["k"]:
        return None
    return {"weights": np.where(bad[:, None], np.nan, t.expected["weights"])}


@mutant("moe_align")
def padded_with_zero(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    order = np.array(t.expected["sorted_token_ids"])
    order[order == v["topk_ids"].size] = 0
    return {"sorted_token_ids": order}


@mutant("moe_align")
def empty_experts_take_a_block(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    counts = np.bincount(v["topk_ids"].reshape(-1), minlength=a["num_experts"])
    return {"num_tokens_post_pad": np.array([(np.maximum(-(-counts // a["block_size"]), 1) * a["block_size"]).sum()])}


@mutant("moe_align")
def padding_not_counted(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return {"num_tokens_post_pad": np.array([v["topk_ids"].size])}


@mutant("moe_align")
def map_ignored(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("moe_align", v | {"expert_map": None}, a, t)


@mutant("moe_align")
def token_in_the_place_of_slot(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Slot ids without the choice: token instead of token*k + choice."""
    order, slots = t.expected["sorted_token_ids"], v["topk_ids"].size
    return {"sorted_token_ids": np.where(order < slots, order // max(v["topk_ids"].shape[1], 1), order)}


@mutant("moe_align")
def blocks_behind_the_end_minus_1(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    owners = np.array(t.expected["expert_ids"])
    owners[int(t.expected["num_tokens_post_pad"][0]) // a["block_size"] :] = -1
    return {"expert_ids": owners}


@mutant("moe_align")
def unstable_between_experts(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Two slots of different experts change places."""
    order = np.array(t.expected["sorted_token_ids"])
    block = a["block_size"]
    if int(t.expected["num_tokens_post_pad"][0]) <= block:
        return None
    order[[0, block]] = order[[block, 0]]
    return {"sorted_token_ids": order}
