"""A small transformer, end to end: prompts are prefilled, then one token after the other is decoded from a paged cache.

It is written over a Machine, which puts tensors on a device and runs ops there. Between the first op and the logits
nothing returns to the host, and keys and values reach the cache by ``copy``. Times come from the clock that is passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from accelctl.abi.opset import text_of
from accelctl.model.smokereport import DecodeRun
from accelctl.model.stressreport import FAIL, PASS
from accelctl.smoke.numbers import NUMPY, Array
from accelctl.smoke.transformer import BASE, EPSILON, Model, build, logits

Handle = Any
"""A tensor on the device, as the machine names it."""

ALLOWED = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 0.15}
"""Largest difference of a logit, in units of the logits' root mean square. Where every op is computed in float64 and
rounded once it is 4e-7, 3e-3 and 3e-2."""
PROMPTS = (5, 9)
"""Lengths: one ends inside a block of the cache, and they need different numbers of blocks."""


class Machine(Protocol):
    """What runs ops. Everything happens in the order of the calls; ``get`` waits for what it needs."""

    def put(self, array: Array) -> Handle:
        """A dense tensor with these numbers."""

    def empty(self, shape: Sequence[int], dtype: str) -> Handle:
        """A dense tensor with any numbers."""

    def view(self, tensor: Handle, shape: Sequence[int], strides: Sequence[int], offset: int) -> Handle:
        """Part of the memory of a tensor that put or empty made; strides and offset in elements."""

    def run(
        self, op: str, inputs: Mapping[str, Handle], attrs: Mapping[str, str], outputs: Mapping[str, Handle]
    ) -> Mapping[str, Handle]:
        """Run one op. Results by name: those that are given are written where they are, an optional one that is not
        given is not computed, others get new memory."""

    def get(self, tensor: Handle) -> Array:
        """Its numbers."""


class _Placed(NamedTuple):
    """A dense matrix on the device, and its width: what a view needs."""

    tensor: Handle
    rows: int
    columns: int


class Loop:
    """One model on one machine, with its cache; ``sequences`` tells how many tokens each may reach."""

    def __init__(self, machine: Machine, model: Model, sequences: Sequence[int], seed: int = 0) -> None:
        self.machine, self.model, self.size = machine, model, model.sizes
        self.launches: Counter[str] = Counter()
        self.lengths = [0] * len(sequences)
        self._weights = [type(layer)(*map(machine.put, layer)) for layer in model.layers]
        self._norm, self._head = machine.put(model.norm), machine.put(model.head)
        self._tables = self._blocks(sequences, np.random.default_rng([seed, 0xB1]))
        shape = (int(self._tables.max()) + 2, self.size.block, self.size.kv_heads, self.size.dim)
        stale = np.full(shape, np.nan).astype(NUMPY[model.dtype])
        self._caches = [(machine.put(stale), machine.put(stale)) for _ in model.layers]
        self._row = self.size.kv_heads * self.size.dim

    def _blocks(self, sequences: Sequence[int], rng: np.random.Generator) -> Array:
        """A table row for each sequence: blocks in no order. Block 0 is nobody's, and what is too much points to it."""
        counts = [-(-length // self.size.block) for length in sequences]
        order = iter((rng.permutation(sum(counts)) + 1).tolist())
        rows = [[next(order) for _ in range(count)] for count in counts]
        return np.array([row + [0] * (max(counts) - len(row)) for row in rows], np.int32)

    def prefill(self, sequence: int, tokens: Sequence[int]) -> Array:
        """Take in a whole prompt; logits of its last token."""
        positions = np.arange(len(tokens))

        def attend(layer: int, qkv: _Placed) -> _Placed:
            q, k, v = self._split(qkv, positions)
            for at, block, count in self._places(sequence, 0, len(tokens)):
                self._store(layer, (k, v), at, count, block, 0)
            out = self._new(qkv.rows, self.size.heads * self.size.dim)
            heads = {"Q": self._by_head(q), "K": self._by_head(k), "V": self._by_head(v)}
            self._run("attention_prefill", heads, {"causal": "lower_right"}, {"O": self._by_head(out)})
            return out

        self.lengths[sequence] = len(tokens)
        return np.asarray(self._forward(tokens, attend)[-1])

    def step(self, tokens: Sequence[int]) -> Array:
        """One more token for every sequence; logits [sequences, vocabulary]."""
        positions = np.array(self.lengths)
        self.lengths = [length + 1 for length in self.lengths]
        table = self.machine.put(self._tables)
        lengths = self.machine.put(np.array(self.lengths, np.int32))

        def attend(layer: int, qkv: _Placed) -> _Placed:
            q, k, v = self._split(qkv, positions)
            for sequence, position in enumerate(positions.tolist()):
                block = int(self._tables[sequence, position // self.size.block])
                self._store(layer, (k, v), sequence, 1, block, position % self.size.block)
            keys, values = self._caches[layer]
            inputs = {"Q": self._by_token(q), "k_cache": keys, "v_cache": values}
            inputs |= {"block_table": table, "seq_lens": lengths}
            out = self._new(qkv.rows, self.size.heads * self.size.dim)
            attrs = {"block_size": str(self.size.block)}
            self._run("attention_decode", inputs, attrs, {"O": self._by_token(out)})
            return out

        return self._forward(tokens, attend)

    def _forward(self, tokens: Sequence[int], attend: Callable[[int, _Placed], _Placed]) -> Array:
        """Logits of every token that goes in."""
        size, eps = self.size, {"epsilon": text_of(EPSILON)}
        x = self.machine.put(self.model.embedding[list(tokens)])
        for number, weights in enumerate(self._weights):
            h = self._run("rmsnorm", {"X": x, "scale": weights.norm_in}, eps)["Y"]
            qkv = self._run("matmul", {"A": h, "B": weights.qkv})["Y"]
            mixed = attend(number, _Placed(qkv, len(tokens), size.projected))
            out = self._run("matmul", {"A": mixed.tensor, "B": weights.out})["Y"]
            both = {"X": out, "residual": x, "scale": weights.norm_mid}
            kept = {"residual_out": self.machine.empty((len(tokens), size.hidden), self.model.dtype)}
            h = self._run("rmsnorm", both, {**eps, "variant": "fused_add"}, kept)["Y"]
            gated = self._run("silu_and_mul", {"X": self._run("matmul", {"A": h, "B": weights.gate_up})["Y"]})["Y"]
            down = self._run("matmul", {"A": gated, "B": weights.down})["Y"]
            x = self._run("add", {"A": kept["residual_out"], "B": down})["C"]
        h = self._run("rmsnorm", {"X": x, "scale": self._norm}, eps)["Y"]
        return self.machine.get(self._run("matmul", {"A": h, "B": self._head})["Y"]).astype(np.float64)

    def _run(
        self, op: str, inputs: Mapping[str, Handle], attrs: Mapping[str, str] = {}, outputs: Mapping[str, Handle] = {}
    ) -> Mapping[str, Handle]:
        self.launches[op] += 1
        return self.machine.run(op, inputs, attrs, outputs)

    def _new(self, rows: int, columns: int) -> _Placed:
        return _Placed(self.machine.empty((rows, columns), self.model.dtype), rows, columns)

    def _split(self, qkv: _Placed, positions: Array) -> tuple[_Placed, _Placed, _Placed]:
        """Queries and keys turned by their positions, values as they are; each dense."""
        size = self.size
        where = self.machine.put(positions.astype(np.int32))
        parts: list[_Placed] = []
        at = 0
        for heads in (size.heads, size.kv_heads, size.kv_heads):
            shape, strides = (qkv.rows, heads, size.dim), (qkv.columns, size.dim, 1)
            part = self.machine.view(qkv.tensor, shape, strides, at)
            into = self._new(qkv.rows, heads * size.dim)
            if len(parts) < 2:
                attrs = {"style": "neox", "base": text_of(BASE)}
                self._run("rope", {"X": part, "positions": where}, attrs, {"Y": self._by_token(into)})
            else:
                self._run("copy", {"X": part}, {}, {"Y": self._by_token(into)})
            parts.append(into)
            at += heads * size.dim
        return parts[0], parts[1], parts[2]

    def _by_token(self, part: _Placed) -> Handle:
        """[tokens, heads, dim]."""
        dim = self.size.dim
        return self.machine.view(part.tensor, (part.rows, part.columns // dim, dim), (part.columns, dim, 1), 0)

    def _by_head(self, part: _Placed) -> Handle:
        """[heads, tokens, dim] of the same memory."""
        dim = self.size.dim
        return self.machine.view(part.tensor, (part.columns // dim, part.rows, dim), (dim, part.columns, 1), 0)

    def _places(self, sequence: int, start: int, end: int) -> list[tuple[int, int, int]]:
        """(first token, block, tokens in it) for each block that these tokens fill."""
        step = self.size.block
        row = self._tables[sequence].tolist()
        return [(at, row[at // step], min(step, end - at)) for at in range(start, end, step)]

    def _store(self, layer: int, parts: tuple[_Placed, _Placed], at: int, count: int, block: int, slot: int) -> None:
        """Keys and values of ``count`` tokens into a block, from a slot on."""
        shape, steps = (count, self.size.kv_heads, self.size.dim), (self._row, self.size.dim, 1)
        for cache, part in zip(self._caches[layer], parts, strict=True):
            source = self.machine.view(part.tensor, shape, steps, at * self._row)
            target = self.machine.view(cache, shape, steps, (block * self.size.block + slot) * self._row)
            self._run("copy", {"X": source}, {}, {"Y": target})


def decode(
    machine: Machine, clock: Callable[[], float], dtype: str = "fp32", seed: int = 0, steps: int = 8
) -> DecodeRun:
    """Run the loop and judge every logit that it gave. ``clock`` gives seconds."""
    model = build(dtype, seed)
    rng = np.random.default_rng([seed, 0xC4])
    prompts = [rng.integers(0, model.sizes.vocabulary, length).tolist() for length in PROMPTS]
    loop = Loop(machine, model, [length + steps for length in PROMPTS], seed)
    seen: list[list[Array]] = []
    first = 0.0
    for number, prompt in enumerate(prompts):
        start = clock()
        seen.append([loop.prefill(number, prompt)])
        first = first if number else clock() - start
    tokens = [[_best(one[0])] for one in seen]
    spent = []
    for _ in range(steps):
        start = clock()
        found = loop.step([made[-1] for made in tokens])
        for made, one, row in zip(tokens, seen, found, strict=True):
            one.append(row)
            made.append(_best(row))
        spent.append(clock() - start)
    worst = max(_off(model, prompt, made, one) for prompt, made, one in zip(prompts, tokens, seen, strict=True))
    good = worst <= ALLOWED[dtype]
    detail = f"logits within {worst:.2g} of their root mean square, allowed {ALLOWED[dtype]:.2g}"
    return DecodeRun(
        dtype,
        PASS if good else FAIL,
        detail,
        tuple(map(len, prompts)),
        tuple(map(tuple, tokens)),
        first,
        tuple(spent),
        dict(loop.launches),
        worst,
        ALLOWED[dtype],
    )


def _best(row: Array) -> int:
    """The most likely token; 0 where every logit is NaN, which the comparison then shows."""
    return 0 if np.isnan(row).all() else int(np.nanargmax(row))


def _off(model: Model, prompt: Sequence[int], made: Sequence[int], seen: Sequence[Array]) -> float:
    """Largest difference from the reference over all steps, which are computed from the tokens that the machine chose;
    inf where a logit is not finite."""
    right = logits(model, [*prompt, *made[:-1]])[len(prompt) - 1 :]
    got = np.array(seen)
    if not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - right).max() / np.sqrt(np.square(right).mean()))
