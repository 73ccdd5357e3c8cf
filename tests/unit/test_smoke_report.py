"""Verdicts and counts of a smoke report, and what a capability record takes."""

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from accelctl.abi.capability import LADDER, Capability, Platform, Semantics
from accelctl.abi.condition import MOST, Conditions
from accelctl.errors import AbiError
from accelctl.model.smokereport import SCHEMA, CaseRow, DecodeRun, Evidence, SmokeReport

PLATFORM = Platform("sim:0", "", "sim 1", ("numpy 2.0",))


def row(result: str = "pass", op: str = "relu", dtype: str = "fp32", name: str = "n1") -> CaseRow:
    return CaseRow(f"{op}/{dtype}/{name}", op, dtype, result, "Y: max abs 0, 0 ulp")


def run(result: str = "pass") -> DecodeRun:
    return DecodeRun("fp16", result, "", (5, 9), ((1,), (2,)), 0.5, (0.25, 0.75), {"relu": 1}, 0.0, 1.0)


def report(*rows: CaseRow, **more: Any) -> SmokeReport:
    facts = {"device": "opencl:0", "chip": "opencl", "target": "", "simulated": False, "seed": 0, "command": "x"}
    return SmokeReport(**{**facts, "rows": rows, **more})


@pytest.mark.parametrize(
    ("found", "verdict", "code"),
    [
        (report(row()), "passed", 0),
        (report(row(), simulated=True), "passed (simulated)", 0),
        (report(row(), row("skip")), "passed", 0),
        (report(row(), row("fail")), "failed", 1),
        (report(row(), row("fail"), simulated=True), "failed", 1),
        (report(row(), decode=(run("fail"),)), "failed", 1),
        (report(row(), row("inconclusive")), "inconclusive", 0),
        (report(row(), ended=130), "inconclusive", 130),
        (report(row("fail"), ended=143), "failed", 1),
        (report(row(), gone="no service answers"), "failed", 7),
        (report(row(), hang="wait of relu/fp32/n1"), "failed", 6),
        (report(row("skip")), "nothing ran", 77),
        (report(), "nothing ran", 77),
        (report(decode=(run(),)), "passed", 0),
    ],
)
def test_verdicts(found: SmokeReport, verdict: str, code: int) -> None:
    assert (found.verdict, found.exit_code) == (verdict, code)


def test_counts_and_groups() -> None:
    found = report(row(), row("fail", dtype="fp16"), row(op="add"), row("skip", op="add"), decode=(run(),))
    assert found.counts == {"pass": 3, "fail": 1, "skip": 1, "inconclusive": 0}
    grouped = found.by_op()
    assert {op: {dtype: len(rows) for dtype, rows in types.items()} for op, types in grouped.items()} == {
        "relu": {"fp32": 1, "fp16": 1},
        "add": {"fp32": 2},
    }
    assert SCHEMA == "accelctl.smoke/1"


def test_reports_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        report().simulated = True  # type: ignore[misc]


def test_figures_of_a_decode_run() -> None:
    assert (run().token_seconds, run().tokens_per_second) == (0.5, 4.0)
    nothing = run()._replace(step_seconds=())
    assert (nothing.token_seconds, nothing.tokens_per_second) == (0.0, 0.0)


# -- capability --


def capability(*rungs: str, **more: Any) -> Capability:
    evidence = tuple(Evidence(rung, "2026-03-01", {"cases": 12}) for rung in rungs)
    return Capability(**{"kernel": "relu_f32", "op": "relu", "platform": PLATFORM, "evidence": evidence, **more})


def test_the_ladder() -> None:
    assert list(LADDER) == [
        "blob golden",
        "kernel alone",
        "through the service",
        "dispatch counted",
        "replayed from the cache",
        "end to end",
    ]


def test_a_rung_counts_only_with_those_below() -> None:
    assert (capability().reached, capability().missing) == ("", "blob golden")
    found = capability("blob golden", "kernel alone", "end to end")
    assert (found.reached, found.missing) == ("kernel alone", "through the service")
    assert (capability("kernel alone").reached, capability("kernel alone").missing) == ("", "blob golden")
    assert (capability(*LADDER).reached, capability(*LADDER).missing) == ("end to end", "")


def test_climbing_keeps_the_order_and_replaces_the_older() -> None:
    found = capability("blob golden", "through the service").climbed(Evidence("kernel alone", "2026-03-02", {}))
    assert [one.rung for one in found.evidence] == ["blob golden", "kernel alone", "through the service"]
    newer = found.climbed(Evidence("kernel alone", "2026-04-01", {"max_ulps": 1}))
    assert [one.date for one in newer.evidence] == ["2026-03-01", "2026-04-01", "2026-03-01"]
    assert len(found.evidence) == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kernel": ""}, "without a kernel"),
        ({"op": "gelu"}, "no op 'gelu'"),
        ({"evidence": (Evidence("proven", "2026-03-01", {}),)}, "no rung 'proven'"),
        ({"evidence": (Evidence("kernel alone", "1.3.2026", {}),)}, "'1.3.2026' is no day"),
        ({"evidence": (Evidence("kernel alone", "2026-13-01", {}),)}, "is no day"),
        ({"evidence": (Evidence("kernel alone", "2026-03-01", {"rate": float("nan")}),)}, "rate is not finite"),
    ],
)
def test_what_is_no_capability(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(AbiError, match=said) as caught:
        capability(**wrong)
    assert "\n" not in str(caught.value)


def test_rungs_twice_or_out_of_order_are_refused() -> None:
    for rungs in (("kernel alone", "blob golden"), ("kernel alone", "kernel alone")):
        with pytest.raises(AbiError, match="out of order"):
            capability(*rungs)
    with pytest.raises(AbiError, match="no rung 'moon'"):
        capability().climbed(Evidence("moon", "2026-03-01", {}))


def test_as_json() -> None:
    where = Conditions(dtypes=frozenset({"fp32"}), dims={"X.0": (1, 4), "X.rank": (2, MOST)}, dense=True)
    meaning = {"torch": Semantics("F.relu", "accelctl::relu(Tensor X) -> Tensor", "Y: as X")}
    found = capability("blob golden", preconditions=where, semantics=meaning, fallback="relu")
    document = json.loads(json.dumps(found.document()))
    assert document["platform"] == {
        "device": "sim:0",
        "architecture": "",
        "driver": "sim 1",
        "toolchain": ["numpy 2.0"],
        "versions": {},
        "fingerprint": found.platform.fingerprint,
    }
    assert document["preconditions"] == {
        "text": ["element type is fp32", "1 <= X.0 <= 4", "X.rank >= 2", "operands are dense"],
        "dtypes": ["fp32"],
        "dense": True,
        "dims": {"X.0": [1, 4], "X.rank": [2]},
    }
    assert document["evidence"] == [
        {"rung": "blob golden", "date": "2026-03-01", "figures": {"cases": 12}, "detail": ""}
    ]
    assert (document["reached"], document["missing"]) == ("blob golden", "kernel alone")
    assert document["fallback"] == "relu"
    assert document["semantics"]["torch"] == {
        "function": "F.relu",
        "schema": "accelctl::relu(Tensor X) -> Tensor",
        "meta": "Y: as X",
        "in_place": [],
        "graph_capture": False,
    }
