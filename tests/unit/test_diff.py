"""--diff: what changed between two looks at a machine, and nothing that changes by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.accept.diff import Change, Delta, compare, is_document, load
from accelctl.errors import UsageError
from accelctl.model.reading import IDENTITY, absent
from accelctl.model.report import Report
from accelctl.render.delta import delta_document, delta_text
from accelctl.render.document import document, dumps
from accelctl.render.term import Term
from tests.reports import asleep, finding, full_machine, gpu, read, report, volatile

PIPE = Term(False, None, None, True)


def delta(a: Report, b: Report) -> Delta:
    return compare(document(a), document(b), ("before", "after"))


def changes(a: Report, b: Report) -> dict[str | None, list[Change]]:
    return {subject.id: list(subject.changes) for subject in delta(a, b).subjects}


def test_a_machine_does_not_differ_from_itself() -> None:
    found = delta(full_machine(), full_machine())
    assert found.same
    assert delta_text(found, PIPE).splitlines()[-1] == "no difference"


def test_volatile_and_identity_are_no_difference() -> None:
    other = report(gpu(0))
    other.devices[0].facts["sensors/hwmon0/temp1/input_celsius"] = volatile(90.0)
    other.devices[0].facts["identity/unique_id"] = read("1", scope=IDENTITY)
    other.machine["shm/free_bytes"] = volatile(0)
    assert delta(report(gpu(0)), other).same


def test_changes_are_grouped_by_device_and_machine() -> None:
    a, b = report(gpu(0), gpu(1)), report(gpu(0), gpu(1))
    b.devices[1].facts["link/max_width"] = read(8)
    b.machine["kernel/release"] = read("6.13.0")
    assert changes(a, b) == {
        None: [Change("kernel/release", "6.12.0", "6.13.0")],
        "0000:02:00.0": [Change("link/max_width", 16, 8)],
    }


def test_a_device_that_went_shifts_no_other() -> None:
    a, b = report(gpu(0), gpu(1), gpu(2)), report(gpu(0), gpu(2))
    found = delta(a, b)
    assert [(one.id, one.state, one.changes) for one in found.subjects] == [("0000:02:00.0", "gone", ())]
    assert [one.state for one in delta(b, a).subjects] == ["new"]


def test_a_value_that_went_says_why() -> None:
    a, b = report(gpu(0)), report(gpu(0))
    b.devices[0].facts["link/max_width"] = absent("x", "no_permission")
    del b.devices[0].facts["vbios/version"]
    assert changes(a, b)["0000:01:00.0"] == [
        Change("link/max_width", 16, None, None, "no permission"),
        Change("vbios/version", "113-D70201-00", None, None, "no such fact"),
    ]
    bare = compare(document(a, evidence=False), document(b, evidence=False), ("a", "b"))
    assert bare.subjects[0].changes[0].reason_after == "no value"


def test_types_count() -> None:
    a, b = report(x=read(1)), report(x=read(True))
    assert not delta(a, b).same


def test_findings_that_came_and_went() -> None:
    a = report(gpu(0), findings=(finding(),))
    b = report(asleep(gpu(0)), findings=(finding("X-NEW", "warn", device="0000:01:00.0"),))
    found = delta(a, b)
    assert [(one.state, one.id) for one in found.findings] == [("gone", "PCI-LINK-WIDTH"), ("new", "X-NEW")]
    assert "new   warn X-NEW  0000:01:00.0: link is x8 of x16" in delta_text(found, PIPE)


def test_text_for_people() -> None:
    a, b = report(gpu(0), gpu(1)), report(gpu(0))
    b.devices[0].facts["vbios/version"] = absent("x", "asleep")
    assert delta_text(delta(a, b), PIPE).splitlines() == [
        "before before, after after",
        "",
        "0000:01:00.0  Navi 31 [Radeon RX 7900 XTX]",
        "  vbios/version  113-D70201-00 → (asleep)",
        "",
        "0000:02:00.0  Navi 31 [Radeon RX 7900 XTX]  gone",
        "",
        "1 fact changed, 1 device came or went",
    ]


def test_json_for_programs() -> None:
    whole = json.loads(dumps(delta_document(delta(report(gpu(0)), report()))))
    assert whole["schema"] == "accelctl.diff/1"
    assert (whole["a"], whole["b"], whole["same"]) == ("before", "after", False)
    assert whole["changes"] == [
        {"device": "0000:01:00.0", "name": "Navi 31 [Radeon RX 7900 XTX]", "state": "gone", "facts": []}
    ]


# -- files --


def test_a_document_is_told_from_an_archive(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("\n " + dumps(document(report())), encoding="ascii")
    (tmp_path / "b.tar").write_bytes(b"\xfd7zXZ\x00")
    assert is_document(str(tmp_path / "a.json"))
    assert not is_document(str(tmp_path / "b.tar"))
    assert not is_document(str(tmp_path))
    assert not is_document(str(tmp_path / "none"))
    assert load(str(tmp_path / "a.json"))["machine"]["kernel"]["release"] == "6.12.0"


GOOD = document(report(gpu(0), findings=(finding(),)))


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "accelctl.probe/2"},
        {"machine": []},
        {"devices": {}},
        {"devices": [1]},
        {"devices": [{"id": 1}]},
        {"findings": [{"id": "X"}]},
        {"evidence": []},
    ],
)
def test_what_is_no_document_is_one_line(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({**GOOD, **change}), encoding="ascii")
    with pytest.raises(UsageError, match="not a probe document") as caught:
        load(str(file))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("text", ["", "{", "{" * 100_000, '{"a":' * 5000, "[]", "\x00", '{"schema": NaN}'])
def test_broken_files_are_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="not a probe document"):
        load(str(file))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["machine", "devices", "findings", "evidence"]), JSON), JSON, JSON)
def test_any_json_is_compared_or_refused(change: dict[str, Any], facts: Any, names: Any) -> None:
    from accelctl.accept.diff import _check

    whole: dict[str, Any] = {**GOOD, **change}
    if isinstance(facts, dict):
        whole["devices"] = [{**facts, "id": "a", "sensors": names, "name": names}]
    try:
        _check(whole)
    except (ValueError, TypeError, KeyError):
        return
    text = delta_text(compare(GOOD, whole, ("a", "b")), PIPE)
    assert text.endswith("\n")
