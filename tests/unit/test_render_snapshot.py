"""A Snapshot as text, as a document, and as OpenMetrics: all of it, nothing cut, nothing made up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.model import snapshotjson
from accelctl.model.snapshot import DeviceLevel, EventMark, PoolLevel, ProcessLevel, QueueLevel, Snapshot
from accelctl.render.openmetrics import _TABLES, metrics_text
from accelctl.render.snapshot import snapshot_document, snapshot_json, snapshot_text
from accelctl.render.term import Term
from tests import snapkit

PIPE = Term(False, None, None, True)
NARROW = Term(True, 80, None, True)
PLAIN = Term(True, 80, None, False)


def made(**options: Any) -> Snapshot:
    """With sources and absences, as the first Snapshot of a run has them."""
    options = {"devices": 5, "simulated": True, **options}
    first = snapkit.snapshot(tick=0, **options)
    return replace(snapkit.snapshot(tick=12, **options), sources=first.sources, absences=first.absences)


# -- text --


def test_a_pipe_gets_every_row_on_one_line() -> None:
    snapshot = made(devices=16, processes=64)
    lines = snapshot_text(snapshot, PIPE).splitlines()
    for one in snapshot.devices:
        (line,) = [line for line in lines if line.startswith(f"  {one.id} ") and one.name in line]
        assert ("asleep" in line) is one.asleep
    for process in snapshot.processes:
        (line,) = [line for line in lines if line.startswith(f"  {process.pid} ")]
        assert process.name in line
        assert all(device in line for device in process.devices)


@pytest.mark.parametrize("term", [NARROW, PLAIN])
def test_eighty_columns_are_enough(term: Term) -> None:
    text = snapshot_text(made(processes=64), term)
    too_wide = [line for line in text.splitlines() if len(line) > 80 and "/sys/" not in line]
    assert too_wide == []
    assert "and 24 more" in text


def test_ascii_is_ascii() -> None:
    snapshot = replace(made(), processes=(ProcessLevel(pid=1, started=2, name="Größe\x1b[31m"),))
    text = snapshot_text(snapshot, PLAIN)
    assert text.isascii()
    assert "\x1b" not in snapshot_text(snapshot, NARROW)


def test_sections_say_what_there_is() -> None:
    text = snapshot_text(made(), PIPE, "this machine")
    for words in (
        "this machine, simulated, 6 devices, 8 processes, 2026-09-21 14:13:32Z",
        "warn PCI-LINK-WIDTH",
        "8.0 of 16.0 GiB",
        "sim:0 session 7",
        "28 × 1 MiB",
        "2 of 64",
        "D in dma_fence_default_wait",
        "2 processes cannot be looked into",
        "error fault     0000:03:00.0: ring gfx_0.0.0 timeout",
        "quarantined",
        "waits in wait_for_completion",
    ):
        assert words in text


def test_what_is_missing_has_its_reason_and_what_to_type() -> None:
    text = snapshot_text(made(), PIPE)
    missing = text[text.index("Missing") :]
    assert "reading it would wake a sleeping device (runtime_status is suspended): 0000:04:00.0 busy_ratio" in missing
    assert "    echo on > /sys/devices/pci0000:00/0000:04:00.0/power/control" in missing
    assert "N/A" not in text


def test_a_machine_with_nothing() -> None:
    assert "No device found." in snapshot_text(Snapshot(taken_ns=0), NARROW)


# -- the document --


def test_the_document_is_the_snapshot() -> None:
    snapshot = made()
    found = json.loads(snapshot_json(snapshot, "this machine"))
    assert found["schema"] == "accelctl.snapshot/1"
    assert found["tool"]["name"] == "accelctl"
    assert (found["watched"], found["simulated"]) == ("this machine", True)
    rest = {name: value for name, value in found.items() if name in {one.name for one in fields(Snapshot)}}
    assert snapshotjson.read(rest) == snapshot
    assert found["devices"][1]["power_mw"] is None


def test_the_document_says_simulated_only_where_it_is() -> None:
    assert snapshot_document(made(simulated=False))["simulated"] is False


# -- OpenMetrics --


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Sample name and labels -> value, as the reference parser sees it; it raises where the text is wrong."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="pip install 'accelctl[umd]'")
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            place = (sample.name, tuple(sorted(sample.labels.items())))
            assert place not in found
            found[place] = sample.value
    return found


def numbers(snapshot: Snapshot, table: str) -> Iterator[tuple[str, Any, float]]:
    for family in _TABLES[table]:
        for row in getattr(snapshot, table):
            value = getattr(row, family.field)
            if value is not None:
                yield family.name + ("_total" if family.kind == "counter" else ""), row, value * family.scale


def test_every_number_is_there_once_and_keyed_by_device() -> None:
    snapshot = made()
    found = parsed(metrics_text(snapshot))
    for table in _TABLES:
        for name, row, value in numbers(snapshot, table):
            labels = [
                dict(labels) for (sample, labels), at in found.items() if sample == f"accelctl_{name}" and at == value
            ]
            assert any(one["device"] == getattr(row, "device", row.id) for one in labels), name


def test_units_are_base_units() -> None:
    found = parsed(metrics_text(made()))
    device = (("device", "0000:03:00.0"),)
    assert found["accelctl_device_power_watts", device] == pytest.approx(228.972)
    queue = (*device, ("queue", "0000:03:00.0 ring 0"))
    assert found["accelctl_queue_wait_seconds", queue] == pytest.approx(180e-6)
    assert found["accelctl_device_asleep", (("device", "0000:04:00.0"),)] == 1
    assert found["accelctl_source_up", (("source", "hwmon 0000:06:00.0"),)] == 0


def test_what_is_missing_has_no_line() -> None:
    text = metrics_text(made())
    asleep = [line for line in text.splitlines() if 'device="0000:04:00.0"' in line]
    assert not any("power" in line or "busy" in line for line in asleep)


def test_the_end_mark_is_the_end() -> None:
    assert metrics_text(Snapshot(taken_ns=0)).endswith("\n# EOF\n")
    parsed(metrics_text(Snapshot(taken_ns=0)))


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=20))
def test_any_name_comes_through(text: str) -> None:
    snapshot = Snapshot(
        taken_ns=5,
        devices=(DeviceLevel(id=text, name=text, memory_used_bytes=7),),
        pools=(PoolLevel(id=text, device=text, owner=text, in_use_bytes=3, ops=((text, 2, 1),)),),
        queues=(QueueLevel(id=text, device=text, finished=1 << 63),),
        processes=(ProcessLevel(pid=1, started=1, name=text, memory=((text, text, 5), (text, text, 6))),),
        events=(EventMark(at_ns=1, kind="fault", device=text, level="error", text=text),),
    )
    found = parsed(metrics_text(snapshot))
    text = "".join(one if one == "\n" or one.isprintable() else "?" for one in text)  # a terminal would obey it
    assert found["accelctl_device_memory_used_bytes", (("device", text),)] == 7
    names = (("device", text), ("name", text), ("pid", "1"), ("region", text))
    assert found["accelctl_process_memory_bytes", names] == 11
    assert found["accelctl_queue_finished_total", (("device", text), ("queue", text))] == 1 << 63
    assert "\x1b" not in snapshot_text(snapshot, NARROW)
    json.loads(snapshot_json(snapshot))
