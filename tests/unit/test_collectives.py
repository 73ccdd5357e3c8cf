"""Collectives made of copies and additions, over several simulated chips: equal to numpy, and equal on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.abi.runtime.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    Collective,
    Group,
    Outcome,
    PortableGroup,
    reduced,
)
from accelctl.abi.semantics import ASSERTIONS, carry_out
from accelctl.errors import AccelError
from accelctl.smoke import semantics
from tests.alignworker import Stuck, stuck
from tests.groupkit import group

TYPES: dict[str, Any] = {"int32": np.int32, "int8": np.int8, "uint8": np.uint8, "fp32": np.float32}


@pytest.fixture(scope="module")
def four() -> Iterator[Group]:
    made = group("sim:0", 4)
    yield made
    made.close()


def _values(rank: int, count: int, dtype: str) -> Any:
    """Whole numbers, whose sums are exact in every order."""
    rng = np.random.default_rng([rank, count])
    low, high = (0, 60) if dtype == "uint8" else (-30, 30)
    return rng.integers(low, high, count).astype(TYPES[dtype])


def _received(found: Sequence[Outcome]) -> list[bytes]:
    assert [one.message for one in found if one.kind != "ok"] == []
    return [one.data for one in found]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize(("op", "right"), [("sum", np.sum), ("max", np.max), ("min", np.min)])
def test_all_reduce_equals_numpy(four: Group, dtype: str, op: str, right: Any, in_place: bool) -> None:
    for count in (1, 3, 4, 257):
        rows = [_values(rank, count, dtype) for rank in range(four.ranks)]
        calls = [Collective(ALL_REDUCE, row.tobytes(), count, dtype, op, in_place=in_place) for row in rows]
        wanted = right(np.stack(rows).astype(np.int64), axis=0).astype(TYPES[dtype]).tobytes()
        assert _received(four.run(calls, 60.0)) == [wanted] * four.ranks


def test_sums_of_fp32_are_taken_in_the_order_of_the_ranks(four: Group) -> None:
    rows = [np.random.default_rng(rank).normal(0, 1, 1003).astype(np.float32) for rank in range(four.ranks)]
    wanted = rows[0]
    for row in rows[1:]:
        wanted = wanted + row
    calls = [Collective(ALL_REDUCE, row.tobytes(), row.size) for row in rows]
    for _ in range(2):
        assert _received(four.run(calls, 60.0)) == [wanted.tobytes()] * four.ranks


@pytest.mark.parametrize("in_place", [False, True])
def test_all_gather_and_broadcast_equal_numpy(four: Group, in_place: bool) -> None:
    rows = [_values(rank, 77, "int32").tobytes() for rank in range(four.ranks)]
    calls = [Collective(ALL_GATHER, row, 77, "int32", in_place=in_place) for row in rows]
    assert _received(four.run(calls, 60.0)) == [b"".join(rows)] * four.ranks
    for root in range(four.ranks):
        calls = [Collective(BROADCAST, row, 77, "int32", root=root, in_place=in_place) for row in rows]
        assert _received(four.run(calls, 60.0)) == [rows[root]] * four.ranks


def test_ranks_that_do_not_agree_are_told_so_and_the_group_is_over() -> None:
    made = group("sim:0", 3)
    calls = [Collective(ALL_REDUCE, bytes(16), 4, "int32", "max" if rank else "sum") for rank in range(3)]
    assert {one.kind for one in made.run(calls, 5.0)} == {"invalid_argument"}
    assert {one.kind for one in made.run([calls[0]] * 3, 5.0)} == {"communication"}
    made.close()


def test_a_missing_rank_keeps_nobody() -> None:
    made = group("sim:0", 3)
    one = Collective(ALL_REDUCE, bytes(16), 4, "int32")
    found = made.run([one, None, one], 0.3)
    assert [each.kind for each in found] == ["timeout", "communication", "timeout"]
    assert max(each.seconds for each in found) < 5.0
    made.close()


def test_a_rank_that_fails_is_communication_for_the_others() -> None:
    made = group("sim:0", 3)
    good = Collective(ALL_REDUCE, bytes(16), 4, "int32")
    bad = good._replace(data=b"")  # its send buffer is shorter than what it wants to send
    found = made.run([good, bad, good], 30.0)
    assert [each.kind for each in found] == ["communication", "invalid_argument", "communication"]
    assert max(each.seconds for each in found) < 20.0
    made.close()


def test_a_device_that_does_not_come_back_keeps_nobody(monkeypatch: Any) -> None:
    """The work of rank 1 never gets done."""
    monkeypatch.setattr("accelctl.abi.runtime.collectives._GRACE_S", 0.5)
    made = group("sim:0", 3)
    runtime = made._runtime  # type: ignore[attr-defined]
    inner = runtime.create_stream
    runtime.create_stream = lambda: stuck(runtime) if runtime.get_device() == 1 else inner()
    one = Collective(ALL_REDUCE, bytes(16), 4, "int32")
    found = made.run([one] * 3, 0.3)
    assert {each.kind for each in found} <= {"timeout", "communication"}
    assert found[1].kind == "timeout"
    assert {each.kind for each in made.run([one] * 3, 0.3)} <= {"timeout", "communication"}
    (left,) = (one for one in runtime._devices[1].streams if isinstance(one.ring, Stuck))
    assert len(runtime._devices[1].live) == 4  # nothing that its work may use is freed
    left.ring = left.ring.inner
    made.close()


@settings(max_examples=60)
@given(st.sampled_from(["fp16", "fp32", "int8", "int32", "uint8"]), st.sampled_from(["sum", "max", "min"]), st.data())
def test_what_the_host_reduces_equals_numpy(dtype: str, op: str, data: Any) -> None:
    kind = {**TYPES, "fp16": np.float16}[dtype]
    count, ranks = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5))
    limits = (-100, 100) if dtype.startswith("fp") else (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    numbers = st.lists(st.integers(*limits), min_size=count, max_size=count)
    rows = [np.array(data.draw(numbers)).astype(kind) for _ in range(ranks)]
    stack = np.stack(rows).astype(np.float64 if dtype.startswith("fp") else np.int64)
    wanted = {"sum": stack.sum(axis=0), "max": stack.max(axis=0), "min": stack.min(axis=0)}[op].astype(kind)
    assert reduced([row.tobytes() for row in rows], dtype, op) == wanted.tobytes()


def test_what_nobody_reduces_is_said() -> None:
    for dtype, op in (("bf16", "max"), ("fp32", "mean")):
        with pytest.raises(AccelError) as caught:
            reduced([bytes(4)], dtype, op)
        assert caught.value.kind == "not_supported"


class _Wrong(PortableGroup):
    """One rank's result has one bit too many."""

    def run(self, calls: Sequence[Collective | None], limit_s: float) -> list[Outcome]:
        """See Group."""
        found = super().run(calls, limit_s)
        last = found[-1]
        if last.data:
            found[-1] = last._replace(data=bytes([last.data[0] ^ 1]) + last.data[1:])
        return found


class _WrongInPlace(_Wrong):
    """Only where it was asked to work in place."""

    def run(self, calls: Sequence[Collective | None], limit_s: float) -> list[Outcome]:
        """See Group."""
        one = calls[-1]
        return (
            super().run(calls, limit_s) if one is not None and one.in_place else PortableGroup.run(self, calls, limit_s)
        )


class _Deaf(PortableGroup):
    """Whatever goes wrong, it says ok."""

    def run(self, calls: Sequence[Collective | None], limit_s: float) -> list[Outcome]:
        """See Group."""
        return [one._replace(kind="ok") for one in super().run(calls, limit_s)]


@pytest.mark.parametrize(
    ("broken", "identity"),
    [
        (_Wrong, "coll_all_reduce/1"),
        (_WrongInPlace, "coll_all_reduce/2"),
        (_Wrong, "coll_all_reduce/3"),
        (_Wrong, "coll_all_gather/1"),
        (_Wrong, "coll_all_gather/2"),
        (_Wrong, "coll_broadcast/1"),
        (_Deaf, "coll_errors/1"),
        (_Deaf, "coll_errors/2"),
    ],
)
def test_wrong_collectives_are_noticed(broken: Any, identity: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("accelctl.abi.semantics.suite.PortableGroup", broken)
    place = semantics.place("sim:0")._replace(ranks=2, kept=None)
    assert carry_out(ASSERTIONS[identity], place).result == "fail"
