"""The portable runtime on PyTorch's CPU: its contract, its own collectives (gloo, a process for each rank), and op by
op beside the simulated chip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from accelctl.abi.runtime.collectives import ALL_GATHER, ALL_REDUCE, BROADCAST, Collective, Group
from accelctl.abi.semantics import ASSERTIONS
from accelctl.smoke import align, semantics
from tests.groupkit import group

pytest.importorskip("torch", reason="PyTorch is not installed: the runtime is not tried on it")
RANKS = 2


def test_the_contract_is_kept() -> None:
    report = semantics.run("torch:cpu")
    assert [f"{row.id}: {row.detail}" for row in report.rows if row.result == "fail"] == []
    assert {row.id for row in report.rows} == set(ASSERTIONS)
    for row in report.rows:
        if row.result == "skip":
            flag = row.detail.partition(":")[0]
            assert report.capabilities.get(flag) == "absent" or "it needs two devices" in row.detail, row.id
    assert report.counts["pass"] >= 99
    assert (report.verdict, report.simulated) == ("passed", False)


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Group, Group]]:
    """The same ranks on PyTorch and on simulated chips."""
    ours, theirs = group("sim:0", RANKS), group("torch:cpu", RANKS)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("name", "op"),
    [(ALL_REDUCE, "sum"), (ALL_REDUCE, "max"), (ALL_REDUCE, "min"), (ALL_GATHER, "sum"), (BROADCAST, "sum")],
)
@pytest.mark.parametrize("dtype", ["int32", "fp32", "uint8"])
def test_gloo_and_the_simulated_chips_agree(
    name: str, op: str, dtype: str, in_place: bool, both: tuple[Group, Group]
) -> None:
    """Whole numbers, exact in every order of summing; of two ranks any fp32 sum has one order."""
    kind: Any = {"int32": np.int32, "fp32": np.float32, "uint8": np.uint8}[dtype]
    rows = [np.random.default_rng([rank, 5]).integers(0, 99, 301).astype(kind) for rank in range(RANKS)]
    calls = [Collective(name, row.tobytes(), 301, dtype, op, root=1, in_place=in_place) for row in rows]
    results = [[(one.kind, one.data) for one in each.run(calls, 60.0)] for each in both]
    assert results[0] == results[1]
    stack = np.stack(rows)
    wanted = {
        ALL_REDUCE: {"sum": stack.sum(axis=0), "max": stack.max(axis=0), "min": stack.min(axis=0)}[op],
        ALL_GATHER: stack,
        BROADCAST: rows[1],
    }[name]
    assert results[0] == [("ok", wanted.astype(kind).tobytes())] * RANKS


def test_a_rank_that_dies_is_communication_and_keeps_nobody() -> None:
    made = group("torch:cpu", RANKS)
    worker = made._workers[0]  # type: ignore[attr-defined]
    worker._process.kill()
    worker._process.wait()
    found = made.run([Collective(ALL_REDUCE, bytes(8), 2, "int32")] * RANKS, 1.0)
    made.close()
    assert found[0].kind == "communication"
    assert found[1].kind in ("communication", "timeout")
    assert found[1].seconds < 10.0


def test_it_is_in_step_with_the_simulated_chip() -> None:
    report = align.run("torch:cpu", "sim:0")
    assert [f"{row.name}: {row.detail}" for row in report.rows if row.result != "pass"] == []
