"""The JSON document: every value where its scope says, its evidence under a pointer that leads to it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import accelctl
from accelctl.model.device import Device
from accelctl.model.reading import IDENTITY, STABLE, VOLATILE, Absence, Reading, absent
from accelctl.model.report import Report
from accelctl.render.document import document, document_text, dumps, placed, pointer, resolve
from tests.reports import finding, full_machine, gpu, read, report, volatile

SCHEMA = json.loads((Path(accelctl.__file__).parent / "data/schema/probe-1.json").read_text(encoding="utf-8"))


def valid(whole: dict[str, Any]) -> None:
    """Fails with the schema's complaint."""
    Draft202012Validator(SCHEMA).validate(json.loads(dumps(whole)))


def owners(made: Report) -> Iterator[dict[str, Reading]]:
    yield made.machine
    yield from (device.facts for device in made.devices)


def test_schema_itself_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("evidence", [True, False])
def test_document_follows_its_schema(evidence: bool) -> None:
    valid(document(full_machine(), evidence=evidence))


def test_schema_refuses_what_is_not_a_document() -> None:
    """A schema that accepts everything would prove nothing."""
    changes: list[dict[str, Any]] = [{"schema": "x"}, {"devices": {}}, {"simulated": True}, {"extra": 1}]
    for change in [*changes, {"rules": {"run": -1}}]:
        assert list(Draft202012Validator(SCHEMA).iter_errors({**document(full_machine()), **change})), change


def test_every_reading_has_evidence_and_every_pointer_leads_to_its_value() -> None:
    made = full_machine()
    whole = document(made)
    assert len(whole["evidence"]) == sum(len(facts) for facts in owners(made))
    for text, entry in whole["evidence"].items():
        value = resolve(whole, text)
        assert (value is None) == ("reason" in entry), text


def test_value_stands_where_its_scope_says() -> None:
    whole = document(report(gpu(0)))
    device = "0000:01:00.0"
    assert resolve(whole, "/devices/0/link/max_width") == 16
    assert resolve(whole, f"/volatile/devices/{device}/link/current_width") == 16
    assert resolve(whole, f"/identity/devices/{device}/identity/unique_id") == "00000000a0000000"
    assert resolve(whole, "/volatile/machine/shm/free_bytes") == 67000000
    assert resolve(whole, "/identity/machine/kernel/command_line") == "ro iommu=pt"
    assert "current_width" not in whole["devices"][0]["link"]


def test_evidence_of_a_value_and_of_an_absence() -> None:
    evidence = document(report(gpu(0)))["evidence"]
    path = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    assert evidence["/devices/0/link/max_speed_gts"] == {
        "unit": "GT/s",
        "source": f"{path}/max_link_speed",
        "raw": "16.0 GT/s PCIe",
    }
    assert evidence["/devices/0/driver_version"] == {
        "reason": "not_offered",
        "errno": "ENOENT",
        "source": "sys/module/amdgpu/version",
        "fix": None,
        "detail": "its version is the kernel's",
        "raw": None,
    }


def test_numbers_stay_numbers_and_minus_one_stays_minus_one() -> None:
    whole = json.loads(dumps(document(report(gpu(0)))))
    assert whole["devices"][0]["numa"]["node"] == -1
    assert whole["devices"][0]["memory"]["vram_total_bytes"] == 25753026560
    assert isinstance(whole["devices"][0]["link"]["max_speed_gts"], float)
    assert "4294967295" not in dumps(document(report(gpu(0))))


def test_what_json_lacks_becomes_null() -> None:
    made = report(x=read(float("nan")), y=read([float("inf"), 1]), z=read({1: (2, 3)}))
    machine = json.loads(dumps(document(made)), parse_constant=pytest.fail)["machine"]
    assert (machine["x"], machine["y"], machine["z"]) == (None, [None, 1], {"1": [2, 3]})


def test_text_is_ascii_and_ends_in_one_line_break() -> None:
    text = dumps(document(report(x=read("Grün \udcff °"))))
    assert text.isascii()
    assert text.endswith("}\n")
    assert json.loads(text)["machine"]["x"] == "Grün \udcff °"


@pytest.mark.parametrize("evidence", [True, False])
@pytest.mark.parametrize("made", [full_machine(), Report("/", True)], ids=["full", "empty"])
def test_the_text_of_a_report_is_that_of_its_document(made: Report, evidence: bool) -> None:
    assert document_text(made, evidence=evidence) == dumps(document(made, evidence=evidence))
    expected = {"x": [1, {"y": None}]}
    assert document_text(made, expected=expected) == dumps(document(made, expected=expected))


WORDS = st.none() | st.text(max_size=6)


@given(
    st.dictionaries(st.text('a/~"\\\udcff\0', max_size=5), st.tuples(WORDS, WORDS, WORDS), max_size=8), st.booleans()
)
def test_evidence_of_any_words_is_written_as_json_has_it(facts: dict[str, tuple[Any, Any, Any]], there: bool) -> None:
    device = Device("d", "physical", "sys/x")
    for key, (one, other, more) in facts.items():
        gone = None if there else Absence(one or "", other, more, one)
        device.facts[key] = Reading(other if there else None, more or "", one, other, gone)
    made = Report("/", True, devices=[device])
    assert document_text(made) == dumps(document(made))
    assert json.loads(document_text(made)) == document(made)


# -- without evidence --


def test_equal_nodes_give_equal_bytes() -> None:
    """Other serials, temperatures and root, same machine type."""
    one, other = report(gpu(0), findings=(finding(device="0000:01:00.0"),)), report(gpu(0), live=False)
    other.findings = [finding(device="0000:01:00.0", evidence=())]
    other.devices[0].facts["identity/unique_id"] = read("00000000deadbeef", scope=IDENTITY)
    other.devices[0].facts["sensors/hwmon0/temp1/input_celsius"] = volatile(77.0)
    other.machine["log/source"] = absent("kernel log", "not_captured", scope=VOLATILE)
    assert dumps(document(one, evidence=False)) == dumps(document(other, evidence=False))
    assert dumps(document(one)) != dumps(document(other))


def test_without_evidence_nothing_is_left_that_changes() -> None:
    whole = document(full_machine(), evidence=False)
    assert not {"evidence", "volatile", "identity", "root", "live"} & set(whole)
    assert all("evidence" not in one for one in whole["findings"])
    text = dumps(whole)
    assert "a0000000" not in text
    assert "temp1_input" not in text


def test_different_nodes_give_different_bytes() -> None:
    one, other = report(gpu(0)), report(gpu(0))
    other.devices[0].facts["link/max_width"] = read(8)
    assert dumps(document(one, evidence=False)) != dumps(document(other, evidence=False))


# -- summary --


def test_summary_counts() -> None:
    summary = document(full_machine())["summary"]
    assert summary["accelerators"] == 5
    assert summary["devices"] == {"physical": 5, "vf": 2, "partition": 0, "virtual": 1, "display": 1}
    assert summary["findings"] == {"ok": 0, "info": 1, "warn": 1, "error": 0, "critical": 1}
    assert summary["health"] == {"ok": 3, "warn": 1, "error": 0, "critical": 1}
    assert summary["worst"] == "critical"


def test_an_empty_machine_is_a_document_too() -> None:
    whole = document(Report("/", True))
    valid(whole)
    assert whole["summary"]["worst"] == "ok"
    assert whole["devices"] == []


def test_a_report_that_crosses_a_pipe_is_the_same_report() -> None:
    gone = absent("sys/y", "empty", errno="ENOENT", fix="f", detail="d", raw="r", unit="u", scope=VOLATILE)
    device = Device("d", "vf", "sys/x", "p", "c", {"a": read([1, "x"], scope=IDENTITY), "b": gone})
    copy = pickle.loads(pickle.dumps(device))
    assert copy == device
    assert isinstance(copy.facts["a"], Reading)
    assert isinstance(copy.facts["b"].absence, Absence)


# -- keys that meet --


def test_a_key_that_is_also_a_folder_moves_into_it() -> None:
    assert placed(["a", "a/b"]) == {"a": "a/value", "a/b": "a/b"}
    assert placed(["a", "a/b", "a/value"]) == {"a": "a/value_", "a/b": "a/b", "a/value": "a/value"}
    assert placed(["a", "a/value/x"])["a"] == "a/value_"


def test_names_that_a_device_has_already_get_an_underscore() -> None:
    assert placed(["id", "id_", "idx", "kind/a"], ("id", "kind")) == {
        "id": "id_",
        "id_": "id__",
        "idx": "idx",
        "kind/a": "kind_/a",
    }


def test_facts_that_meet_keep_both_values_and_the_devices_own_names() -> None:
    device = Device("drm:card0", "virtual", "sys/x")
    device.facts.update({"id": read("mine"), "a": read(1), "a/b": read(2, scope=VOLATILE), "path/x": read(3)})
    whole = document(Report("/", True, devices=[device]))
    entry = whole["devices"][0]
    assert (entry["id"], entry["id_"], entry["a"], entry["path"], entry["path_"]) == (
        "drm:card0",
        "mine",
        {"value": 1},
        "sys/x",
        {"x": 3},
    )
    assert resolve(whole, "/volatile/devices/drm:card0/a/b") == 2


def test_pointers_are_escaped() -> None:
    device = Device("node:dri/card~0", "virtual", "sys/x", facts={"x": read(1, scope=VOLATILE)})
    whole = document(Report("/", True, devices=[device]))
    assert "/volatile/devices/node:dri~1card~00/x" in whole["evidence"]
    assert resolve(whole, "/volatile/devices/node:dri~1card~00/x") == 1


KEYS = st.lists(
    st.lists(st.sampled_from(["a", "b", "value", "value_", "id", "id_", "~", "0", ""]), min_size=1, max_size=4).map(
        "/".join
    ),
    max_size=12,
    unique=True,
)


@given(KEYS, st.data())
def test_whatever_the_keys_no_value_is_lost(keys: list[str], data: st.DataObject) -> None:
    """Any set of keys in any order and scope: each pointer leads to the value of its own fact."""
    device = Device("d/~", "physical", "sys/x")
    for number, key in enumerate(data.draw(st.permutations(keys))):
        device.facts[key] = read(number, raw=key, scope=data.draw(st.sampled_from((STABLE, VOLATILE, IDENTITY))))
    whole = document(Report("/", True, devices=[device]))
    found = {entry["raw"]: resolve(whole, text) for text, entry in whole["evidence"].items()}
    assert found == {key: one.value for key, one in device.facts.items()}
    assert whole["devices"][0]["id"] == "d/~"
    assert placed(keys, ("id",)) == placed(reversed(keys), ("id",))


@pytest.mark.parametrize("text", ["x", "/x", "/a/9", "/a/-1", "/a/0/b", "/a/²"])
def test_resolve_says_when_a_pointer_leads_nowhere(text: str) -> None:
    with pytest.raises(LookupError):
        resolve({"a": [1]}, text)


def test_pointer_of_the_whole_document() -> None:
    assert pointer(()) == ""
    assert resolve({"a": 1}, "") == {"a": 1}
