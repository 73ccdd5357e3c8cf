"""Cases of attention_decode: a paged cache whose unused slots and blocks hold NaN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from accelctl.smoke.cases.book import FLOATS, HALVES, Book
from accelctl.smoke.cases.record import Arg, Case, Made, Make, Maker, Wish, strided
from accelctl.smoke.numbers import Array

_LSE = {"lse": Wish()}


class Plan(NamedTuple):
    """Sizes of a cache and of what reads it. ``spare`` blocks belong to nobody; ``tail`` is what the table holds behind
    the last block of a sequence (None: a block of NaN)."""

    lengths: tuple[int, ...]
    heads: tuple[int, int] = (4, 2)
    dim: int = 16
    block: int = 4
    values: int = 0
    spare: int = 3
    tail: int | None = None
    attrs: Mapping[str, str] = {}


def build(m: Maker, plan: Plan) -> Made:
    """Blocks in random order; block 0 is spare, so that an index of 0 shows."""
    used = [-(-length // plan.block) for length in plan.lengths]
    blocks = sum(used) + plan.spare
    order = iter((m.rng.permutation(blocks - 1) + 1).tolist())
    taken = [[next(order) for _ in range(count)] for count in used]
    rest = next(order, 0) if plan.tail is None else plan.tail
    width = max((*used, 0)) + 1
    table = np.array([row + [rest] * (width - len(row)) for row in taken], np.int32).reshape(len(used), width)
    shape = (blocks, plan.block, plan.heads[1])
    keys, values = m.full(np.nan, *shape, plan.dim), m.full(np.nan, *shape, plan.values or plan.dim)
    for row, length in zip(taken, plan.lengths, strict=True):
        _fill(m, keys, row, length)
        _fill(m, values, row, length)
    bound = plan.dim**-0.5
    query = m.rng.uniform(-bound, bound, (len(used), plan.heads[0], plan.dim))
    lengths = np.array(plan.lengths, np.int32)
    inputs = {"Q": m.values(query * 4), "k_cache": keys, "v_cache": values, "block_table": table, "seq_lens": lengths}
    return Made(inputs, {"block_size": str(plan.block), **plan.attrs}, _LSE)


def _fill(m: Maker, cache: Array, row: list[int], length: int) -> None:
    """The tokens of one sequence; what lies behind them stays NaN."""
    size = cache.shape[1]
    for at, block in enumerate(row):
        count = min(size, length - at * size)
        cache[block, :count] = m.normal(count, *cache.shape[2:])


def _plan(plan: Plan) -> Make:
    return lambda m: build(m, plan)


def cases() -> list[Case]:
    """All of them."""
    book = Book("attention_decode")
    for name, plan, corner in (
        ("one-token", Plan((1,)), "seq_len 1"),
        ("full-blocks", Plan((8, 4)), "no partial block"),
        ("partial-block", Plan((5, 7, 9)), "NaN behind the last token"),
        ("block-1", Plan((3, 5), block=1), "FlashInfer's page of 1"),
        ("block-5", Plan((11, 5, 14), block=5), "a block size that is no power of two"),
        ("block-8", Plan((54, 97), block=8), "FlashInfer's pages"),
        ("tail-minus-1", Plan((5, 13, 1), tail=-1), "the table holds -1 behind the last block"),
        ("tail-huge", Plan((5, 13, 1), tail=2**31 - 1), "the table holds garbage behind the last block"),
        ("empty-sequence", Plan((0, 5)), "seq_len 0 gives 0, and lse -inf"),
        ("no-sequences", Plan(()), "nobody asks"),
        ("softcap", Plan((9, 12), attrs={"softcap": "2.0"}), "the cap"),
        ("scale", Plan((9, 12), attrs={"scale": "0.9"}), "a scale of its own"),
        ("window-1", Plan((9, 12), attrs={"window": "1"}), "only the last token"),
        ("window-6", Plan((9, 12, 3), attrs={"window": "6"}), "the last six tokens"),
        ("wide-values", Plan((6, 7), values=24), "values wider than keys"),
        ("one-head", Plan((6, 7), heads=(1, 1)), "no groups"),
        ("all-share", Plan((6, 7), heads=(8, 1)), "one key head for all"),
    ):
        book.add(name, _plan(plan), corner=corner)
    book.add("shared-block", _shared, corner="one block serves two sequences")
    book.add("window-nan", _window_nan, corner="what lies before the window, NaN and blocks that are gone, is not read")
    book.add("caches-apart", _apart, corner="keys and values interleaved in one allocation")
    book.add("heads-first", _heads_first, corner="a cache with heads outside slots in memory")
    book.add("large-ids", _large_ids(8, 1), ("fp16",), "32768 blocks, the last ones used")
    _sizes(book)
    book.add("beyond-2gib", _large_ids(256, 8), ("fp16",), "byte offsets above 2^31", long=True)
    _refused(book)
    return book.cases


def _sizes(book: Book) -> None:
    for heads in ((32, 8), (40, 40), (64, 8)):
        for dim, block in ((64, 16), (128, 32)):
            plan = Plan((1, 37, 64, 5, 33, 16, 90), heads, dim, block)
            book.add(f"heads-{heads[0]}-{heads[1]}-dim-{dim}-block-{block}", _plan(plan), HALVES, "vLLM's sizes")
    for dim in (40, 80, 120, 256, 512):
        book.add(f"dim-{dim}", _plan(Plan((17, 30), (4, 4), dim, 16)), corner="unusual heads: right, or refused")
    twelve = tuple(range(3, 98, 8))
    book.add("batch-12", _plan(Plan(twelve, (32, 4), 128, 16)), ("fp16",), "FlashInfer's sizes")
    book.add("kv-2048", _plan(Plan((2048, 2047), (4, 4), 128, 16)), HALVES, "FlashInfer's sizes")
    long = Plan((16384, 300), (32, 4), 128, 16)
    book.add("kv-16384", _plan(long), ("fp16",), "FlashInfer's size", long=True)
    pool = Plan((100, 1000, 37, 2000, 5, 640, 333), (64, 8), 128, 16, spare=4000)
    book.add("4321-blocks", _plan(pool), ("bf16",), "vLLM's size", long=True)


def _shared(m: Maker) -> Made:
    """Both sequences start with the block of the first one."""
    made = build(m, Plan((7, 6)))
    table = np.array(made.inputs["block_table"])
    table[1, 0] = table[0, 0]
    return made._replace(inputs={**made.inputs, "block_table": table})


def _window_nan(m: Maker) -> Made:
    """NaN in the tokens before the window; the table has forgotten the blocks that have only such."""
    made = build(m, Plan((9, 12, 3), attrs={"window": "3"}))
    keys, values, table = (np.array(made.inputs[name]) for name in ("k_cache", "v_cache", "block_table"))
    for row, length in enumerate((9, 12)):
        for token in range(length - 3):
            place = table[row, token // 4], token % 4
            keys[place], values[place] = np.nan, np.nan
        table[row, : (length - 3) // 4] = -1
    return made._replace(inputs={**made.inputs, "k_cache": keys, "v_cache": values, "block_table": table})


def _apart(m: Maker) -> Made:
    """[blocks, 2, slots, heads, dim], keys and values as views of it."""
    made = build(m, Plan((5, 7, 9)))
    keys, values = (made.inputs[name] for name in ("k_cache", "v_cache"))
    assert isinstance(keys, np.ndarray)
    assert isinstance(values, np.ndarray)
    both = np.stack([keys, values], axis=1)
    steps = tuple(step // both.itemsize for step in both.strides)
    strides = (steps[0], *steps[2:])
    views = {
        name: Arg(both.reshape(-1), keys.shape, strides, steps[1] * n) for n, name in enumerate(("k_cache", "v_cache"))
    }
    return made._replace(inputs={**made.inputs, **views})


def _heads_first(m: Maker) -> Made:
    made = build(m, Plan((5, 7, 9)))
    views = {}
    for name in ("k_cache", "v_cache"):
        cache = made.inputs[name]
        assert isinstance(cache, np.ndarray)
        views[name] = strided(cache, (0, 2, 1, 3))
    return made._replace(inputs={**made.inputs, **views})


def _large_ids(dim: int, heads: int) -> Make:
    """32769 blocks of 16 slots. Untouched blocks are pages of zeros that take no memory here."""

    def make(m: Maker) -> Made:
        keys = np.zeros((32769, 16, heads, dim), m.full(0).dtype)
        table = np.array([[32768, 1, 32766], [32767, 32765, 2]], np.int32)
        for block in table.reshape(-1):
            keys[block] = m.normal(16, heads, dim)
        inputs = {"Q": m.normal(2, heads * 2, dim), "k_cache": keys, "v_cache": keys, "block_table": table}
        lengths = np.array([40, 33], np.int32)
        return Made({**inputs, "seq_lens": lengths}, {"block_size": "16"}, _LSE)

    return make


def _refused(book: Book) -> None:
    book.refuse("heads", "four query heads over three", _plan(Plan((5,), (4, 3))), FLOATS)
    book.refuse("block-size", "block_size 8, blocks of 4 slots", _plan(Plan((5,), attrs={"block_size": "8"})))
    book.refuse("block-size-0", "block_size 0", _plan(Plan((5,), attrs={"block_size": "0"})))
    book.refuse("window", "a negative window", _plan(Plan((5,), attrs={"window": "-1"})))
    book.refuse("no-block-size", "block_size has no default", lambda m: build(m, Plan((5,)))._replace(attrs={}))
    for name, why, replaced in (
        ("dim", "keys have 16 numbers, queries 8", ("Q", (1, 4, 8), "")),
        ("rank", "Q has two dimensions", ("Q", (4, 16), "")),
        ("caches", "keys and values in caches of different shape", ("v_cache", (2, 4, 2, 16), "")),
        ("table", "a table for two sequences of one", ("block_table", (2, 2), "int32")),
        ("lengths", "two lengths for one sequence", ("seq_lens", (2,), "int32")),
        ("mixed", "element types differ", ("v_cache", (5, 4, 2, 16), "bf16")),
    ):
        book.refuse(name, why, _with(*replaced))


def _with(name: str, shape: tuple[int, ...], dtype: str) -> Make:
    """One operand replaced by one of another shape or type (whole numbers: zeros)."""

    def make(m: Maker) -> Made:
        made = build(m, Plan((5,)))
        other = m.full(0, *shape, dtype=dtype)
        return made._replace(inputs={**made.inputs, name: other}, outputs={})

    return make
