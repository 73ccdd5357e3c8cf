"""Evidence in a file: what is written can be read again, what is damaged is one clear error, and nothing is half
written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi import compute
from accelctl.abi.capability import LADDER, Capability, Platform
from accelctl.abi.opset import OPS
from accelctl.errors import UsageError
from accelctl.model.smokereport import CaseRow, DecodeRun, Evidence, KernelEvidence, SmokeReport
from accelctl.smoke.capabilities import MOST_BYTES, SCHEMA, gathered, read, save
from tests.helpers import run_cli

WORDS = st.text(max_size=12)
FIGURES = st.dictionaries(WORDS, st.floats(allow_nan=False, allow_infinity=False), max_size=3)
DAYS = st.dates().map(lambda day: day.isoformat())


@st.composite
def capabilities(draw: st.DrawFn) -> Capability:
    held = draw(st.sets(st.sampled_from(list(LADDER))))
    return Capability(
        kernel=draw(st.text(min_size=1, max_size=12)),
        op=draw(st.sampled_from(list(OPS))),
        platform=Platform(draw(WORDS), draw(WORDS), draw(WORDS), tuple(draw(st.lists(WORDS, max_size=2)))),
        preconditions=tuple(draw(st.lists(WORDS, max_size=2))),
        semantics=draw(st.dictionaries(WORDS, WORDS, max_size=2)),
        evidence=tuple(
            Evidence(rung, draw(DAYS), draw(FIGURES), draw(WORDS)) for rung in LADDER if rung in held
        ),
        fallback=draw(WORDS),
        simulated=draw(st.booleans()),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


def one(**more: Any) -> Capability:
    platform = Platform("sim:0", "card", "driver 1", ("tool 2",))
    evidence = (Evidence("blob golden", "2026-03-01", {"cases": 12.0}, "all"),)
    return Capability(**{"kernel": "relu", "op": "relu", "platform": platform, "evidence": evidence, **more})


@given(st.lists(capabilities(), max_size=3))
def test_what_was_written_is_read(folder: Path, records: list[Capability]) -> None:
    path = str(folder / "round")
    save(path, records)
    assert read(path) == records


def test_no_file_holds_no_records(tmp_path: Path) -> None:
    assert read(str(tmp_path / "none")) == []


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(found for key, part in inner for found in places(part, (*at, key)))]


def whole() -> dict[str, Any]:
    return {"schema": SCHEMA, "accelctl": "1", "capabilities": [one(semantics={"torch": "relu"}).document()]}


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def refused_in_one_line(path: str) -> bool:
    """Whether a file is refused, and then in one line that names it; False: it is still good."""
    try:
        read(path)
        return False
    except UsageError as error:
        said = error.message
    assert said.startswith(f"{path}: no capabilities of accelctl: ")
    assert "\n" not in said
    return True


@given(st.sampled_from(places(whole())[1:]), JUNK, st.booleans())
def test_a_part_that_is_missing_or_something_else(folder: Path, at: tuple[Any, ...], junk: Any, remove: bool) -> None:
    document: Any = whole()
    holder = document
    for key in at[:-1]:
        holder = holder[key]
    if remove:
        del holder[at[-1]]
    else:
        holder[at[-1]] = junk
    path = folder / "damaged"
    path.write_text(json.dumps(document), encoding="utf-8")
    refused = refused_in_one_line(str(path))
    needed = {"schema", "capabilities", "kernel", "op", "platform", "evidence", "rung", "date", "device", "toolchain"}
    assert refused or not (remove and at[-1] in needed)


@given(st.data())
def test_bytes_that_are_missing_or_wrong(folder: Path, data: st.DataObject) -> None:
    raw = json.dumps(whole()).encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    path = folder / "bytes"
    path.write_bytes(raw[:start] + data.draw(st.binary(max_size=8)) + raw[end:])
    refused_in_one_line(str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("[]", "the file cannot be []"),
        ("{}", "schema is None, not 'accelctl.capabilities/1'"),
        ('{"schema": "accelctl.capabilities/2"}', "schema is 'accelctl.capabilities/2'"),
        (f'{{"schema": "{SCHEMA}"}}', "capabilities is missing"),
        ("[" * 100_000, "recursion"),
        (" " * (MOST_BYTES + 1), "more than 16777216 bytes"),
    ],
    ids=["empty", "list", "object", "later", "bare", "deep", "long"],
)
def test_what_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "f").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read(str(tmp_path / "f"))
    assert said in caught.value.message


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read(str(tmp_path))


# -- writing


def test_what_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    save(str(path), [one()])
    before = path.read_bytes()

    def fail(*words: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("replace", "fsync"):
        monkeypatch.setattr(os, step, fail)
        with pytest.raises(UsageError, match="no space left"):
            save(str(path), [one(), one(kernel="other")])
        monkeypatch.undo()
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["f"]


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "f").symlink_to("there/f")
    save(str(tmp_path / "f"), [one()])
    assert (tmp_path / "f").is_symlink()
    assert read(str(tmp_path / "there/f")) == [one()]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        save(str(tmp_path / "none" / "f"), [])


# -- what a run adds


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
    assert relu.preconditions == ("bf16, fp16, fp32, int32, int8, uint8", "any strides")


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


@pytest.mark.parametrize("op", ["dispatch", "order", "evidence", "decode"])
def test_nothing_is_taken_from_a_run_that_failed_as_a_whole(op: str) -> None:
    before = [one(kernel="kept")]
    assert gathered(before, report(GOOD, CaseRow(f"{op}/x", op, "", "fail", "")), FOUND) == before


def test_nothing_is_taken_when_the_model_was_wrong() -> None:
    wrong = DecodeRun("fp16", "fail", "", (5,), ((1,),), 0.5, (0.25,), {}, 9.0, 1.0)
    assert gathered([], report(GOOD, decode=(wrong,)), FOUND) == []


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
