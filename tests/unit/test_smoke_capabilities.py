"""What a run adds to the evidence that is kept, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accelctl.abi import compute
from accelctl.abi.capability import Capability, Platform
from accelctl.abi.capabilityfile import read
from accelctl.model.smokereport import CaseRow, DecodeRun, Evidence, KernelEvidence, SmokeReport
from accelctl.smoke.capabilities import gathered
from tests.helpers import run_cli


def one(**more: Any) -> Capability:
    platform = Platform("sim:0", "card", "driver 1", ("tool 2",))
    evidence = (Evidence("blob golden", "2026-03-01", {"cases": 12.0}, "all"),)
    return Capability(**{"kernel": "relu", "op": "relu", "platform": platform, "evidence": evidence, **more})


def report(*rows: CaseRow, **more: Any) -> SmokeReport:
    rungs = (Evidence("blob golden", "2026-04-01", {"cases": 1.0}), Evidence("kernel alone", "2026-04-01", {}))
    facts = {
        "device": "sim:0",
        "chip": "sim",
        "target": "",
        "simulated": True,
        "seed": 0,
        "command": "x",
        "rows": rows,
        "evidence": (KernelEvidence("relu", "relu", rungs), KernelEvidence("add", "add", rungs[:1])),
    }
    return SmokeReport(**{**facts, **more})


FOUND = compute.named("sim:0")
GOOD, BAD = (CaseRow("relu/fp32/x", "relu", "fp32", result, "") for result in ("pass", "fail"))


def test_a_run_adds_its_rungs_with_where_they_were_climbed() -> None:
    relu, add = gathered([], report(GOOD), FOUND)
    assert (relu.kernel, relu.reached, add.kernel, add.reached) == ("relu", "kernel alone", "add", "blob golden")
    assert relu.simulated
    assert relu.platform[:3] == ("sim:0", "simulated accelerator", "sim")
    assert relu.platform.toolchain[-1].startswith("accelctl ")
    assert dict(relu.platform.versions).keys() == {"numpy"}
    assert relu.preconditions.texts() == ("element type is bf16 or fp16 or fp32 or int32 or int8 or uint8",)
    assert relu.semantics["torch"].schema == "accelctl::relu(Tensor X) -> Tensor"


def test_newer_evidence_takes_the_place_of_older_and_the_rest_stays() -> None:
    first = gathered([], report(GOOD), FOUND)
    old = [one.climbed(Evidence("end to end", "2020-01-01", {})) for one in first]
    elsewhere = one(platform=Platform("opencl:0", "", "", ()))
    found = gathered([elsewhere, *old], report(GOOD), FOUND)
    assert [one.kernel for one in found] == ["relu", "relu", "add"]
    assert found[0] == elsewhere
    assert [(rung.rung, rung.date) for rung in found[1].evidence] == [
        ("blob golden", "2026-04-01"),
        ("kernel alone", "2026-04-01"),
        ("end to end", "2020-01-01"),
    ]


def test_a_kernel_that_fails_loses_what_it_had() -> None:
    before = gathered([], report(GOOD), FOUND)
    assert [one.kernel for one in gathered(before, report(GOOD, BAD), FOUND)] == ["add"]


def names(records: list[Capability]) -> list[str]:
    return [one.kernel for one in records]


def test_a_kernel_that_passed_nothing_is_in_no_evidence_and_loses_its_record_too() -> None:
    before = gathered([], report(GOOD), FOUND)
    assert names(gathered(before, report(BAD, evidence=()), FOUND)) == ["add"]
    others = (KernelEvidence("add", "add", ()),)
    assert names(gathered(before, report(BAD, evidence=others), FOUND)) == ["add"]


def test_a_failure_takes_the_record_of_each_kernel_that_ran_and_of_each_kernel_of_the_op() -> None:
    before = gathered([], report(GOOD), FOUND)
    ran = CaseRow("softmax/fp32/x", "softmax", "fp32", "fail", "", kernel="add, softmax")
    assert names(gathered(before, report(ran), FOUND)) == ["relu"]
    alone = CaseRow("evidence/relu", "evidence", "", "fail", "relu (relu): kernel alone: wrong")
    assert names(gathered(before, report(alone, evidence=()), FOUND)) == ["add"]


def test_records_of_other_platforms_stay_whatever_failed_here() -> None:
    here = gathered([], report(GOOD), FOUND)[0]
    renamed = replace(one(kernel="matvec"), platform=here.platform)  # of another op than the chip's kernel is
    others = [one(), renamed, replace(here, platform=here.platform._replace(device="opencl:0"), recorded="")]
    assert gathered([*others, here], report(BAD, evidence=()), FOUND) == others


@pytest.mark.parametrize("op", ["dispatch", "order", "evidence", "service", "decode"])
def test_a_run_that_failed_as_a_whole_adds_nothing_and_still_withdraws(op: str) -> None:
    whole = CaseRow(f"{op}/x", op, "", "fail", "")
    kept = [one(kernel="kept")]
    assert gathered(kept, report(GOOD, whole), FOUND) == kept
    before = gathered([], report(GOOD), FOUND)
    assert gathered(before, report(GOOD, whole), FOUND) == before
    assert names(gathered(before, report(BAD, whole), FOUND)) == ["add"]


def test_a_model_that_was_wrong_adds_nothing_and_the_run_still_withdraws() -> None:
    wrong = DecodeRun("fp16", "fail", "", (5,), ((1,),), 0.5, (0.25,), {}, 9.0, 1.0)
    assert gathered([], report(GOOD, decode=(wrong,)), FOUND) == []
    before = gathered([], report(GOOD), FOUND)
    assert names(gathered(before, report(BAD, decode=(wrong,)), FOUND)) == ["add"]


def test_a_device_that_is_elsewhere_has_no_fingerprint() -> None:
    assert gathered([], report(GOOD), None)[0].platform[:3] == ("sim:0", "", "")


def test_the_command_keeps_and_reads_it(tmp_path: Path) -> None:
    words = ("smoke", "--device", "sim:0", "--op", "relu", "--dtype", "fp32", "--save", "kept.json")
    run_cli(*words, cwd=tmp_path, code=0)
    (relu,) = [one for one in read(str(tmp_path / "kept.json")) if one.op == "relu"]
    assert relu.reached == "replayed from the cache"
    (tmp_path / "kept.json").write_text("{", encoding="utf-8")
    done = run_cli(*words, cwd=tmp_path, code=2)
    assert done.stderr.startswith("accelctl smoke: kept.json: no capabilities of accelctl: ")
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "kept.json").read_text(encoding="utf-8") == "{"
