"""`accelctl caps`: what a file of records says, what two of them differ in, and what still holds on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accelctl.abi import capabilityfile, compute
from accelctl.abi.capability import LADDER, Capability, Platform
from accelctl.abi.condition import Conditions
from accelctl.abi.platforms import platform_of, templates_of
from accelctl.accept.caps import verify as verifying
from accelctl.accept.caps.check import GONE, Stale, stale
from accelctl.accept.caps.choosing import EACH, call_of, cases_for
from accelctl.accept.caps.diff import CHANGED, NEW, Change, Delta, diff
from accelctl.accept.caps.diff import GONE as REMOVED
from accelctl.accept.caps.verify import ABSENT, DIFFERS, HOLDS, REPLACED, STALE, UNPROVEN, UNSEEN, verify
from accelctl.backends.sim.ops import contraction
from accelctl.errors import AccelError, NoDeviceError, UsageError
from accelctl.model.smokereport import CaseRow, Evidence, KernelEvidence, SmokeReport
from accelctl.smoke.cases import catalogue
from tests.helpers import run_cli

FOUND = compute.named("sim:0")
TEMPLATES = templates_of(FOUND)
RUNGS = tuple(LADDER)[:3]


def record(kernel: str = "relu", *rungs: str, **more: Any) -> Capability:
    template = TEMPLATES.get(kernel, TEMPLATES["relu"])
    facts = {
        "kernel": kernel,
        "op": template.op,
        "platform": platform_of(FOUND, template),
        "preconditions": template.conditions or Conditions(dtypes=template.dtypes),
        "evidence": tuple(Evidence(rung, "2026-03-01", {"cases": 2}) for rung in rungs or RUNGS),
        "fallback": template.fallback,
        "simulated": True,
    }
    return Capability(**{**facts, **more})


def elsewhere(one: Capability, **change: Any) -> Capability:
    """The same, written on another platform."""
    return replace(one, platform=one.platform._replace(**change), recorded="")


OLD = {"versions": (("numpy", "1.0"),)}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "caps.toml")


def tick(name: str, number: int, count: int) -> None:
    pass


# -- stale


def test_only_what_changed_is_stale(path: str) -> None:
    capabilityfile.save(path, [record("relu"), elsewhere(record("matvec"), **OLD)])
    (found,) = stale(path, "sim:0")
    assert found[:3] == ("matvec", "matmul", "sim:0")
    assert found.why.startswith("numpy: 1.0, now ")


def test_a_newer_record_replaces_a_stale_one(path: str) -> None:
    capabilityfile.save(path, [record("matvec"), elsewhere(record("matvec"), **OLD)])
    assert stale(path, "sim:0") == []


def test_a_kernel_that_the_chip_does_not_have_any_more(path: str) -> None:
    capabilityfile.save(path, [record("relu_old")])
    assert stale(path, "sim:0") == [Stale("relu_old", "relu", "sim:0", GONE)]


def test_nothing_is_stale_without_records(path: str) -> None:
    assert stale(path, "sim:0") == []
    capabilityfile.save(path, [record(platform=Platform("opencl:9", "", ""))])
    assert stale(path, "sim:0") == []
    with pytest.raises(NoDeviceError):
        stale(path, "opencl:9")


# -- verify


def test_what_holds_what_is_stale_and_what_is_not_here(path: str) -> None:
    capabilityfile.save(
        path,
        [
            record("matvec"),
            record("matmul_f"),
            record("relu"),
            elsewhere(record("relu"), **OLD),
            elsewhere(record("add"), driver="old"),
            record("softmax", platform=Platform("nochip:0", "", "")),
        ],
    )
    found = verify(path, (), tick)
    states = {(one.record.kernel, one.state): one.detail for one in found.rows}
    assert set(states) == {
        ("matvec", HOLDS), ("matmul_f", HOLDS), ("relu", HOLDS),
        ("relu", REPLACED), ("add", STALE), ("softmax", ABSENT),
    }  # fmt: skip
    assert states["add", STALE] == "driver: old, now sim"
    assert found.exit_code == 1


def test_a_kernel_that_computes_something_else_now_differs(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, where the wrong kernel is: the run asks a service of this process."""
    rows = (CaseRow("matmul/fp32/20-by-20", "matmul", "fp32", "fail", "off by 3", kernel="matvec"),)
    evidence = tuple(
        KernelEvidence(name, op, tuple(Evidence(rung, "2026-03-01", {}) for rung in RUNGS))
        for name, op in (("matvec", "matmul"), ("relu", "relu"))
    )
    report = SmokeReport(
        device="sim:0", chip="sim", target="", simulated=True, seed=0, command="x", rows=rows, evidence=evidence
    )
    monkeypatch.setattr(verifying, "carry_out", lambda request, tick: report)
    capabilityfile.save(path, [record("matvec"), record("relu"), record("add")])
    found = verify(path, (), tick)
    assert {one.record.kernel: (one.state, one.detail) for one in found.rows} == {
        "matvec": (DIFFERS, "matmul/fp32/20-by-20: off by 3"),
        "relu": (HOLDS, ""),
        "add": (DIFFERS, "not shown again: blob golden, kernel alone, through the service"),
    }
    assert found.exit_code == 1


def test_a_rung_that_was_never_reached_is_not_asked_for_again(path: str) -> None:
    capabilityfile.save(path, [record("relu", "through the service")])
    assert verify(path, ["sim:0"], tick).exit_code == 0


def test_a_record_that_shows_nothing_does_not_hold(path: str) -> None:
    bare, top = record("relu", evidence=()), record("add", tuple(LADDER)[-1])
    capabilityfile.save(path, [bare, top])
    found = verify(path, (), tick)
    assert {one.state for one in found.rows} == {UNPROVEN}
    assert found.exit_code == 77
    capabilityfile.save(path, [bare, record("matvec")])
    assert verify(path, (), tick).exit_code == 0


def smoked(*rows: CaseRow, **more: Any) -> SmokeReport:
    rungs = tuple(Evidence(rung, "2026-03-01", {}) for rung in RUNGS)
    evidence = (KernelEvidence("relu", "relu", rungs), KernelEvidence("add", "add", rungs))
    facts = {"device": "sim:0", "chip": "sim", "target": "", "simulated": True, "seed": 0, "command": "x"}
    return SmokeReport(**{**facts, "rows": rows, "evidence": evidence, **more})


def fails(error: AccelError) -> Any:
    def carry_out(*words: Any) -> SmokeReport:
        raise error

    return carry_out


LOST = CaseRow("service/end", "service", "", "fail", "the service was killed")


@pytest.mark.parametrize(
    ("run", "relu"),
    [
        (fails(AccelError("no service came up")), (UNSEEN, "no service came up")),
        (lambda *words: smoked(LOST), (UNSEEN, "service/end: the service was killed")),
        (lambda *words: smoked(hang="add/fp32/x: it hangs"), (UNSEEN, "add/fp32/x: it hangs")),
        (lambda *words: smoked(gone="nobody answers"), (UNSEEN, "nobody answers")),
        (
            lambda *words: smoked(CaseRow("relu/fp32/x", "relu", "fp32", "fail", "off by 3"), LOST),
            (DIFFERS, "relu/fp32/x: off by 3"),
        ),
    ],
)
def test_a_run_that_fails_says_nothing_of_kernels(
    path: str, monkeypatch: pytest.MonkeyPatch, run: Any, relu: tuple[str, str]
) -> None:
    monkeypatch.setattr(verifying, "carry_out", run)
    capabilityfile.save(path, [record("relu"), record("add")])
    found = verify(path, (), tick)
    states = {one.record.kernel: (one.state, one.detail) for one in found.rows}
    assert states["relu"] == relu
    assert states["add"][0] == UNSEEN
    assert found.exit_code == (1 if relu[0] == DIFFERS else 7)


def test_without_anything_to_look_at(path: str) -> None:
    assert verify(path, (), tick).exit_code == 77
    capabilityfile.save(path, [record(platform=Platform("nochip:0", "", ""))])
    assert verify(path, (), tick).exit_code == 77
    with pytest.raises(UsageError, match=r"sim:0: .* has no record of it"):
        verify(path, ["sim:0"], tick)
    with pytest.raises(NoDeviceError):
        verify(path, ["nochip:0"], tick)


def test_cases_are_few_and_each_is_for_its_kernel() -> None:
    wanted = [TEMPLATES["matvec"], TEMPLATES["matmul_f"], TEMPLATES["relu"]]
    ids = cases_for(tuple(TEMPLATES.values()), wanted)
    assert len(ids) <= EACH * sum(len(one.dtypes) for one in wanted)
    cases = {case.id: case for case in catalogue()}
    products = [call_of(cases[one].load()) for one in ids if one.startswith("matmul/")]
    assert TEMPLATES["matvec"].conditions is not None
    takes = [not TEMPLATES["matvec"].conditions.failed(call) for call in products]
    assert (takes.count(True), takes.count(False)) == (6, 6)


# -- diff


def test_equal_files_differ_in_nothing_and_days_are_no_difference(path: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.json")
    capabilityfile.save(path, [record()])
    later = tuple(one._replace(date="2027-01-01") for one in record().evidence)
    capabilityfile.save(other, [record(evidence=later)])
    assert diff(path, other) == []


def test_what_two_files_differ_in(path: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.json")
    capabilityfile.save(path, [elsewhere(record("relu", *RUNGS), driver="1"), record("add"), record("softmax")])
    narrow = Conditions(dtypes=frozenset({"fp32"}))
    capabilityfile.save(
        other, [elsewhere(record("relu", *RUNGS[:2]), driver="2"), record("add", preconditions=narrow), record("rope")]
    )
    add, relu, gone, new = diff(path, other)
    assert (add.kernel, add.state) == ("add", CHANGED)
    assert [one.fact for one in add.changes] == ["preconditions.dtypes"]
    assert relu.changes == (
        Change("platform.driver", "1", "2"),
        Change("evidence.through the service", "shown", None),
        Change("evidence.through the service.cases", 2, None),
    )
    assert (gone, new) == (
        Delta(REMOVED, "softmax", "softmax", "sim:0"), Delta(NEW, "rope", "relu", "sim:0"),
    )  # fmt: skip
    with pytest.raises(UsageError, match="there is no such file"):
        diff(path, str(tmp_path / "none"))


# -- the command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    capabilityfile.save(str(tmp_path / "a.toml"), [record("matvec"), record("relu")])
    capabilityfile.save(str(tmp_path / "b.json"), [record("add")])
    return tmp_path


def caps(folder: Path, *words: str, code: int = 0) -> str:
    done = run_cli("caps", *words, cwd=folder, code=code, env={"XDG_DATA_HOME": str(folder), "COLUMNS": "200"})
    assert "Traceback" not in done.stderr
    return done.stdout if code in (0, 1, 77) else done.stderr


def test_list_and_show(folder: Path) -> None:
    text = caps(folder, "list", "--file", "a.toml")
    assert [line.split()[:3] for line in text.splitlines()] == [
        ["kernel", "op", "device"], ["matvec", "matmul", "sim:0"], ["relu", "relu", "sim:0"],
    ]  # fmt: skip
    assert "through the service SIMULATED" in text
    shown = caps(folder, "show", "matvec", "--file", "a.toml")
    for words in ("matvec (matmul) on sim:0 SIMULATED", "N == 1, batch == 1", "else        matmul_f", "cases 2"):
        assert words in shown
    document = json.loads(caps(folder, "--file", "a.toml", "--json"))
    assert (document["schema"], len(document["capabilities"])) == (capabilityfile.SCHEMA, 2)
    assert json.loads(caps(folder, "show", "relu", "--file", "a.toml", "--json"))["capabilities"][0]["op"] == "relu"


def test_what_list_prints_as_json_can_be_read_again(folder: Path) -> None:
    (folder / "c.json").write_text(caps(folder, "list", "--file", "a.toml", "--json"), encoding="utf-8")
    assert caps(folder, "diff", "a.toml", "c.json") == "no difference\n"


def test_no_records_yet(folder: Path) -> None:
    assert caps(folder).startswith(f"{folder}/accelctl/capabilities.toml: no records\n")
    assert caps(folder, "verify", code=77) == f"{folder}/accelctl/capabilities.toml: no records\n"


def test_diff_and_merge(folder: Path) -> None:
    assert "new         add (add) on sim:0" in caps(folder, "diff", "a.toml", "b.json", code=1)
    document = json.loads(caps(folder, "diff", "a.toml", "b.json", "--json", code=1))
    assert [one["state"] for one in document["differences"]] == ["gone", "gone", "new"]
    assert caps(folder, "diff", "a.toml", "a.toml") == "no difference\n"
    assert caps(folder, "merge", "a.toml", "b.json", "--file", "all.toml") == "all.toml: 3 records, 2 files merged\n"
    assert caps(folder, "merge", "a.toml", "b.json", "--file", "all.toml") == "all.toml: 3 records, 2 files merged\n"
    caps(folder, "merge", "b.json")
    assert [one.kernel for one in capabilityfile.read(f"{folder}/accelctl/capabilities.toml")] == ["add"]


def test_verify_says_simulated_and_how_to_prove_again(folder: Path) -> None:
    text = caps(folder, "verify", "--file", "b.json")
    assert "holds     add (add) on sim:0 SIMULATED" in text
    assert text.endswith("b.json: 1 hold (simulated ones among them)\n")
    capabilityfile.save(str(folder / "b.json"), [elsewhere(record("add"), **OLD)])
    text = caps(folder, "verify", "--file", "b.json", code=1)
    assert "stale     add (add) on sim:0 SIMULATED: numpy: 1.0, now" in text
    assert text.endswith("to prove again: accelctl smoke --device sim:0 --save b.json\n")
    document = json.loads(caps(folder, "verify", "--file", "b.json", "--json", code=1))
    assert [(one["kernel"], one["state"]) for one in document["records"]] == [("add", "stale")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("list", "--file", "none"), "none: there is no such file"),
        (("list", "--file", "."), ".: cannot be read ("),
        (("list", "--file", "bad"), "bad: no capabilities of accelctl: "),
        (("verify", "--file", "bad"), "bad: no capabilities of accelctl: "),
        (("list", "--file", "a.toml", "--device", "sim:1"), "--device sim:1: a.toml has no record of it"),
        (("verify", "--file", "a.toml", "--device", "opencl:0"), "--device opencl:0: a.toml has no record of it"),
        (("show", "matvek", "--file", "a.toml"), "a.toml has no record of a kernel matvek (did you mean matvec?)"),
        (("diff", "a.toml", "none"), "none: there is no such file"),
        (("merge", "bad", "--file", "new"), "bad: no capabilities of accelctl: "),
        (("merge", "a.toml", "--file", "no/such/folder"), "no/such/folder: cannot be written (no such file"),
    ],
)
def test_bad_input_is_one_line(folder: Path, words: tuple[str, ...], said: str) -> None:
    (folder / "bad").write_bytes(b"\x00\xff\xfe garbage")
    text = caps(folder, *words, code=2)
    assert text.startswith(f"accelctl caps: {said}")
    assert len([line for line in text.splitlines() if not line.startswith(" ")]) == 1
    assert not (folder / "new").exists()


def test_a_wrong_kernel_is_found_by_the_real_run(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is replaced but the arithmetic of the kernel when it is alone."""
    right = contraction.matvec

    def wrong(attrs: Any, out: Any, a: Any, b: Any) -> None:
        right(attrs, out, a, b)
        out[...] = out * 2 + 1

    from accelctl.backends.sim.ops import engine

    monkeypatch.setitem(engine._UNITS, "matvec", wrong)
    capabilityfile.save(path, [record("matvec"), record("relu")])
    found = verify(path, (), tick)
    states = {one.record.kernel: one.state for one in found.rows}
    assert states == {"matvec": DIFFERS, "relu": HOLDS}
