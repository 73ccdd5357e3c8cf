"""attention_prefill and attention_decode."""

from __future__ import annotations

from accelctl.abi.tensors import FP32, Shape, Tensor, broadcast, show
from accelctl.errors import UsageError
from accelctl.umd.translators.common import Ask, Output, attr, exactly, like_first, rank, shape_of


def prefill(ask: Ask) -> tuple[Output, ...]:
    """Q [N, H, L, E] or [H, L, E]; K [.., Hkv, S, E], V [.., Hkv, S, Ev]; mask broadcast to [N, H, L, S]."""
    q, k, v = rank(ask, 0, 3, 4), rank(ask, 1, 3, 4), rank(ask, 2, 3, 4)
    like_first(ask, 1, 2)
    _numbers(ask)
    for index, one in ((1, k), (2, v)):
        if len(one.shape) != len(q.shape):
            raise shape_of(index, f"{show(one.shape)}: as many dimensions as Q {show(q.shape)}")
    if k.shape[:-3] != q.shape[:-3] or k.shape[-1] != q.shape[-1]:
        raise shape_of(1, f"{show(k.shape)}: batch and head dimension must be those of Q {show(q.shape)}")
    if v.shape[:-1] != k.shape[:-1]:
        raise shape_of(2, f"{show(v.shape)}: all but the last dimension must be those of K {show(k.shape)}")
    _heads(1, q.shape[-3], k.shape[-3])
    _mask(ask.inputs[3], (*q.shape[:-1], k.shape[-2]))
    return _outputs(q, v)


def _mask(mask: Tensor | None, scores: Shape) -> None:
    if mask is None:
        return
    try:
        fits = broadcast(mask.shape, scores) == scores
    except UsageError:
        fits = False
    if not fits:
        raise shape_of(3, f"{show(mask.shape)}: it cannot be repeated to the scores, {show(scores)}")


def _heads(index: int, queries: int, keys: int) -> None:
    if (keys == 0 and queries) or (keys and queries % keys):
        raise shape_of(index, f"{queries} query heads cannot share {keys} key and value heads evenly")


def _numbers(ask: Ask) -> None:
    if ask.real("softcap") < 0:
        raise attr("softcap", f"{ask.real('softcap')!r}: 0 (off) or more")
    if not 0 <= ask.number("window") < 1 << 31:
        raise attr("window", f"{ask.number('window')}: 0 (off) or more, and below 2^31")


def _outputs(q: Tensor, v: Tensor) -> tuple[Output, ...]:
    return (Output((*q.shape[:-1], v.shape[-1]), (q.dtype,)), Output(q.shape[:-1], (FP32,), needed=False))


def decode(ask: Ask) -> tuple[Output, ...]:
    """Q [seqs, H, E]; caches [blocks, block_size, Hkv, E] and [.., Ev]; block_table [seqs, most]; seq_lens [seqs]."""
    q, k, v = rank(ask, 0, 3), rank(ask, 1, 4), rank(ask, 2, 4)
    like_first(ask, 1, 2)
    _numbers(ask)
    size = ask.number("block_size")
    if size < 1 or k.shape[1] != size:
        raise attr("block_size", f"{size}: a block of k_cache {show(k.shape)} has {k.shape[1]} slots")
    if k.shape[3] != q.shape[2]:
        raise shape_of(1, f"{show(k.shape)}: the head dimension must be that of Q {show(q.shape)}")
    if v.shape[:3] != k.shape[:3]:
        raise shape_of(2, f"{show(v.shape)}: all but the last dimension must be those of k_cache {show(k.shape)}")
    _heads(1, q.shape[1], k.shape[2])
    table = rank(ask, 3, 2)
    if table.shape[0] != q.shape[0]:
        raise shape_of(3, f"{show(table.shape)}: one row for each of the {q.shape[0]} sequences of Q")
    ask.must(4)
    exactly(ask, 4, q.shape[:1], "one length for each sequence of Q")
    return _outputs(q, v)


CHECKS = {"attention_prefill": prefill, "attention_decode": decode}
