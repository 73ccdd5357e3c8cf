"""Collectives over several ranks: the chip's own where it has them, else those of the runtime."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import log2

from accelctl.abi.runtime.collectives import ALL_GATHER, ALL_REDUCE, BROADCAST, Collective, Group, Outcome
from accelctl.abi.semantics.suite import Bench, asserts, holds, same, whole
from accelctl.abi.testbench import Wrong

PATIENCE_S = 60.0
LIMIT_S = 2.0
"""For a rank that does not come."""
_COUNT = 1003
"""Elements: no multiple of any number of ranks."""


def ints(rank: int, count: int = _COUNT) -> list[int]:
    """What a rank has; sums wrap nowhere."""
    return [(rank + 1) * 1000 + at * (rank + 3) % 977 - 500 for at in range(count)]


def packed(values: Sequence[int]) -> bytes:
    """int32."""
    return struct.pack(f"<{len(values)}i", *values)


def together(group: Group, calls: Sequence[Collective | None], limit_s: float = PATIENCE_S) -> list[bytes]:
    """What every rank received. Wrong where one of them did not."""
    found = group.run(calls, limit_s)
    bad = [f"rank {rank}: {one.kind} ({one.message})" for rank, one in enumerate(found) if one.kind != "ok"]
    if bad:
        raise Wrong("; ".join(bad))
    return [one.data for one in found]


@asserts("coll_all_reduce", 1, "integers: the exact sum on every rank")
def _reduce_ints(b: Bench) -> str:
    group = b.group()
    calls = [Collective(ALL_REDUCE, packed(ints(rank)), _COUNT, "int32") for rank in range(group.ranks)]
    wanted = packed([sum(column) for column in zip(*(ints(rank) for rank in range(group.ranks)), strict=True)])
    for rank, data in enumerate(together(group, calls)):
        whole(data, wanted, f"rank {rank}")
    return f"{group.ranks} ranks"


@asserts("coll_all_reduce", 2, "in place equals out of place")
def _reduce_in_place(b: Bench) -> None:
    group = b.group()
    calls = [Collective(ALL_REDUCE, floats(rank), _COUNT) for rank in range(group.ranks)]
    apart = together(group, calls)
    inside = together(group, [one._replace(in_place=True) for one in calls])
    for rank in range(group.ranks):
        whole(inside[rank], apart[rank], f"rank {rank}")


def floats(rank: int, count: int = _COUNT) -> bytes:
    """fp32 numbers around 1 whose sums round."""
    return struct.pack(f"<{count}f", *(((at * 37 + rank * 101) % 1009 - 504) / 311 for at in range(count)))


@asserts("coll_all_reduce", 3, "fp32: within 1e-5 * log2(ranks), and the same bits on every rank")
def _reduce_floats(b: Bench) -> str:
    group = b.group()
    rows = [floats(rank) for rank in range(group.ranks)]
    found = together(group, [Collective(ALL_REDUCE, row, _COUNT) for row in rows])
    for rank, data in enumerate(found):
        whole(data, found[0], f"rank {rank}, against rank 0")
    values = [struct.unpack(f"<{_COUNT}f", row) for row in rows]
    allowed, worst = 1e-5 * log2(max(2, group.ranks)), 0.0
    for got, column in zip(struct.unpack(f"<{_COUNT}f", found[0]), zip(*values, strict=True), strict=True):
        worst = max(worst, abs(got - sum(column)) / max(abs(sum(column)), sum(map(abs, column)) * 2.0**-6, 1e-9))
    holds(worst <= allowed, f"relative error {worst:.2g}, {allowed:.2g} is allowed")
    return f"relative error {worst:.1g}"


@asserts("coll_all_reduce", 4, "no elements are fine")
def _reduce_nothing(b: Bench) -> None:
    group = b.group()
    same(together(group, [Collective(ALL_REDUCE, b"", 0)] * group.ranks), [b""] * group.ranks, "what came back")


@asserts("coll_all_gather", 1, "the data of every rank, in the order of the ranks")
def _gather(b: Bench) -> None:
    group = b.group()
    rows = [packed(ints(rank, 501)) for rank in range(group.ranks)]
    for rank, data in enumerate(together(group, [Collective(ALL_GATHER, row, 501, "int32") for row in rows])):
        whole(data, b"".join(rows), f"rank {rank}")


@asserts("coll_all_gather", 2, "in place")
def _gather_in_place(b: Bench) -> None:
    group = b.group()
    rows = [packed(ints(rank, 77)) for rank in range(group.ranks)]
    calls = [Collective(ALL_GATHER, row, 77, "int32", in_place=True) for row in rows]
    for rank, data in enumerate(together(group, calls)):
        whole(data, b"".join(rows), f"rank {rank}")


@asserts("coll_broadcast", 1, "each rank as root once")
def _broadcast(b: Bench) -> str:
    group = b.group()
    rows = [packed(ints(rank)) for rank in range(group.ranks)]
    for root, row in enumerate(rows):
        calls = [
            Collective(BROADCAST, one, _COUNT, "int32", root=root, in_place=at == root) for at, one in enumerate(rows)
        ]
        for rank, data in enumerate(together(group, calls)):
            whole(data, row, f"root {root}, rank {rank}")
    return f"{group.ranks} roots"


@asserts("coll_errors", 1, "a rank that does not call: the others get timeout, within the limit and a tenth")
def _missing_rank(b: Bench) -> str:
    group = b.group(fresh=True)
    one = Collective(ALL_REDUCE, packed(ints(0)), _COUNT, "int32")
    together(group, [one] * group.ranks)  # what takes long once is over
    found = group.run([*[one] * (group.ranks - 1), None], LIMIT_S)
    others = found[:-1]
    same({each.kind for each in others}, {"timeout"}, "what the others get")
    slowest = max(each.seconds for each in others)
    holds(slowest <= LIMIT_S * 1.1 + 0.3, f"after {slowest:.2f} s, the limit is {LIMIT_S:g} s")
    after = {each.kind for each in group.run([one] * group.ranks, LIMIT_S)}
    holds("ok" not in after, f"the group goes on as if nothing had been: {sorted(after)}")
    return f"timeout after {slowest:.2f} s"


@asserts("coll_errors", 2, "calls that do not fit each other never end well")
def _mismatch(b: Bench) -> str:
    group = b.group(fresh=True)
    data = packed(ints(0))
    calls = [Collective(ALL_REDUCE, data, _COUNT - (rank == 0), "int32") for rank in range(group.ranks)]
    found: list[Outcome] = group.run(calls, LIMIT_S)
    kinds = {each.kind for each in found}
    holds(kinds <= {"communication", "invalid_argument", "timeout"}, f"the ranks get {sorted(kinds)}")
    return ", ".join(sorted(kinds))
