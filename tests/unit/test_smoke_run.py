"""The runner itself, against a service that answers what a test wants: what it runs, how often, in which order, and
which mistakes it notices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from accelctl.abi.ops import Device
from accelctl.model.smokereport import CaseRow
from accelctl.smoke import through
from accelctl.smoke.cases import Case, Trial, catalogue, select, sequences
from accelctl.smoke.compare import FLUSHED, changed, judge
from accelctl.smoke.ladder import Ladder
from accelctl.smoke.numbers import Array
from accelctl.smoke.run import Request, Run
from tests.smokehost import execute

Answer = Callable[[Trial], Mapping[str, Array]]


class Service:
    """Sessions that are counted, and no launch ever."""

    def __init__(self) -> None:
        self.sessions = 0

    def session(self) -> Any:
        self.sessions += 1
        return SimpleNamespace(number=self.sessions, close=lambda: None)

    def telemetry(self) -> Any:
        return SimpleNamespace(ops=[])


class Bed:
    """A run whose ops are answered by a function; ``ran`` says which session ran what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Answer = execute, flush: bool = False) -> None:
        self.ran: list[tuple[int, str]] = []
        self._answer = answer
        monkeypatch.setattr(through, "run", self._run)
        ladder = Ladder({1: ("k", "none")}, None, flush)
        service: Any = Service()
        self.run = Run(service, ladder, Request(), ExitStack())

    def _run(self, session: Any, trial: Trial) -> through.Ran:
        self.ran.append((session.number, trial.case.id))
        response = SimpleNamespace(instructions=[SimpleNamespace(kernel_id=1)], cache_hit=True)
        return through.Ran(self._answer(trial), None, response)

    def cases(self, *cases: Case) -> list[CaseRow]:
        self.run.cases(cases, lambda name, number, count: None)
        return self.run.rows


def case(name: str) -> Case:
    (found,) = (one for one in catalogue() if one.id == name)
    return found


def together() -> list[Case]:
    ((_, found),) = sequences(catalogue())
    return found


# -- OPS-08: the order does not matter


def test_sequences_run_in_order_and_then_in_reverse_in_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(monkeypatch)
    bed.run.orders(catalogue())
    ids = [one.id for one in together()]
    assert bed.ran == [(1, name) for name in (*ids, *reversed(ids))]
    (row,) = bed.run.rows
    assert (row.id, row.result) == ("order/ops-08", "pass")


def test_a_result_that_depends_on_what_ran_before_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a product after one with a transposed operand is off by a last place, which tolerances forgive."""
    before = [""]

    def answer(trial: Trial) -> Mapping[str, Array]:
        found = execute(trial)
        if before[0].endswith("ops-08-9") and trial.case.id.endswith("ops-08-8"):
            found = {name: np.nextafter(one, np.float32(np.inf)) for name, one in found.items()}
        before[0] = trial.case.id
        assert all(one.passed for one in judge(trial, found))
        return found

    bed = Bed(monkeypatch, answer)
    bed.run.orders(catalogue())
    (row,) = bed.run.rows
    assert row.result == "fail"
    assert "matmul/fp32/ops-08-8, in reverse order: Y: " in row.detail


def test_a_kernel_kept_for_another_type_is_noticed_in_its_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[int, ...]] = []

    def answer(trial: Trial) -> Mapping[str, Array]:
        shape = next(iter(trial.outputs.values())).shape
        wrong = bool(kept) and kept[-1] == shape and trial.case.op == "add"
        kept.append(shape)
        return {name: one * 0 if wrong else one for name, one in execute(trial).items()}

    bed = Bed(monkeypatch, answer)
    bed.run.orders(catalogue())
    assert bed.run.rows[0].detail.startswith("add/fp32/ops-08-5: C: ")


def test_one_case_of_a_sequence_has_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(monkeypatch)
    bed.run.orders(together()[:1])
    assert (bed.ran, bed.run.rows) == ([], [])


# -- repeat: the same bytes


def slots_moved(trial: Trial) -> Mapping[str, Array]:
    """Right, and another order within one expert's list."""
    found = execute(trial)
    order = found["sorted_token_ids"].copy()
    order[:2] = order[1::-1]
    return {**found, "sorted_token_ids": order}


def test_cases_that_ask_for_it_run_twice_and_must_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = next(one for one in select(["moe_align"]) if one.repeat)
    bed = Bed(monkeypatch)
    assert bed.cases(wanted, wanted)[-1].result == "pass"
    assert [name for _, name in bed.ran] == [wanted.id] * 4
    turns = iter([execute, slots_moved])
    bed = Bed(monkeypatch, lambda trial: next(turns)(trial))  # noqa: PLW0108  # next, each time
    (row,) = bed.cases(wanted)
    assert row.result == "fail"
    assert row.detail.startswith("the second time: sorted_token_ids: 2 of ")
    assert judge(wanted.load(), slots_moved(wanted.load()))[0].passed


def test_every_case_that_must_be_repeated_is(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [one for one in select(["moe_align"]) if one.repeat]
    assert len(wanted) > 5
    bed = Bed(monkeypatch)
    bed.cases(*wanted)
    assert {name: [one for _, one in bed.ran].count(name) for name in (one.id for one in wanted)} == {
        one.id: 2 for one in wanted
    }


def test_other_cases_need_not_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum may come in another order."""
    wanted = case("matmul/fp32/ops-08-8")
    turns = iter([1.0, 1 + 2.0**-23])
    bed = Bed(monkeypatch, lambda trial: {"Y": execute(trial)["Y"] * np.float32(next(turns))})
    (row,) = bed.cases(wanted)
    assert (row.result, len(bed.ran)) == ("pass", 2)


def test_bytes_that_are_not_judged_may_change() -> None:
    trial = next(
        one for one in map(Case.load, select(["grouped_gemm"])) if any(hidden.any() for hidden in one.unjudged.values())
    )
    (name,) = trial.unjudged
    first = execute(trial)
    hidden = np.broadcast_to(trial.unjudged[name], first[name].shape)
    assert hidden.any()
    assert (
        changed(trial, first, {name: np.where(hidden, first[name] * 0 + 3, first[name]).astype(first[name].dtype)})
        == ""
    )
    assert changed(trial, first, {name: first[name] + 1}) != ""


def test_zeros_of_another_sign_are_other_bytes() -> None:
    trial = case("relu/fp32/ops-08-6").load()
    zero = np.zeros((8,), np.float32)
    assert changed(trial, {"Y": zero}, {"Y": -zero}) == "Y: 8 of 8 elements have other bytes"
    assert changed(trial, {"Y": zero}, {"Y": zero.copy()}) == ""


# -- subnormal numbers


def flushed(trial: Trial) -> Mapping[str, Array]:
    return {name: np.where(np.abs(one) < 2.0**-126, one * 0, one) for name, one in execute(trial).items()}


def test_flushing_is_forgiven_where_the_device_says_so_and_for_no_other_op(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = case("add/fp32/subnormal")
    assert [row.result for row in Bed(monkeypatch, flushed).cases(wanted)] == ["fail"]
    assert [row.result for row in Bed(monkeypatch, flushed, flush=True).cases(wanted)] == ["pass"]
    assert {"add"} == FLUSHED
    relu = wanted.load()._replace(case=wanted._replace(op="relu"))
    assert [one.passed for one in judge(relu, flushed(relu), flush=True)] == [False]
    assert Device._field_defaults == {"flushes": False}
