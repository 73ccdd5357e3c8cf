"""What makes probe cheap is counted, not timed, and gives what the plain way gives."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from accelctl.accept import probing
from accelctl.errors import NoDeviceError
from accelctl.hal import allowlist, reader
from accelctl.hal.root import SysRoot, open_root
from accelctl.model.device import Device
from accelctl.model.report import Report
from accelctl.probes import topology
from accelctl.probes.scan import probe
from accelctl.probes.topology import Place
from accelctl.render.output import json_and_verdict
from tests.reports import read
from tests.synthetic import make_machine


@pytest.fixture
def machine(tmp_path: Path) -> str:
    return str(make_machine(tmp_path / "machine", 3))


def test_each_file_of_a_device_is_opened_once(machine: str) -> None:
    root = open_root(machine)
    folders = tuple(f"{device.path}/" for device in probe(root).devices)
    opened = {path: count for path, count in root.opened.items() if path.startswith(folders)}
    assert len(opened) >= 3 * 45
    assert {path: count for path, count in opened.items() if count > 1} == {}


def test_opens_grow_with_the_devices_and_no_faster(tmp_path: Path) -> None:
    counts = []
    for devices in (1, 2, 9):
        root = open_root(str(make_machine(tmp_path / str(devices), devices)))
        probe(root)
        counts.append(sum(root.opened.values()))
    assert counts[2] - counts[0] == 8 * (counts[1] - counts[0])


def test_a_row_without_wildcards_makes_no_regular_expression() -> None:
    allow = allowlist.AllowList()
    for number in range(50):
        allow.add(f"made_up_{number}/file", "free")
    before = allowlist._compiled.cache_info().currsize
    assert allow.effect("sys/devices/x/made_up_7/file") == "free"
    assert allow.effect("made_up_7/file") == "free"
    assert allow.effect("sys/made_up_7/file") == "free"
    assert allow.effect("sys/devices/not_made_up_7/file") is None
    assert allow.effect("proc/x/made_up_7/file") is None
    assert allowlist._compiled.cache_info().currsize == before


# -- the report stays in the child --


def view(report: Report) -> tuple[str, bool]:
    return json_and_verdict(report, evidence=True, level="error")


def test_the_text_made_in_the_child_is_that_of_the_report(machine: str) -> None:
    report, _ = probing.look(machine)
    assert probing.made(machine, None, view) == view(report)


def test_filters_hold_in_the_child_as_well(machine: str) -> None:
    report, _ = probing.look(machine, ["pci:0000:02:00.0"])
    assert [one.id for one in report.devices] == ["0000:02:00.0"]
    assert probing.made(machine, ["pci:0000:02:00.0"], view) == view(report)
    with pytest.raises(NoDeviceError, match="no device fits"):
        probing.made(machine, ["vendor=nvidia"], view)


def test_a_finding_that_never_fails_the_run(machine: str) -> None:
    levels = ("info", "warn", "error", "critical", "never")
    found = [probing.made(machine, None, partial(json_and_verdict, evidence=False, level=level))[1] for level in levels]
    assert found == sorted(found, reverse=True)
    assert found[-1] is False


def test_a_hang_is_in_the_text_that_the_child_makes(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second child has to know what the first one hung at: its text is made before the parent sees a report."""
    real: Callable[..., Any] = SysRoot._bytes
    watched: Callable[..., Any] = reader.run_watched

    def stuck(self: SysRoot, path: str, limit: int) -> bytes:
        if path.endswith("0000:02:00.0/vbios_version"):
            self._touch(path)
            time.sleep(60)
        return real(self, path, limit)  # type: ignore[no-any-return]

    def impatient(work: Any, **rest: Any) -> Any:
        return watched(work, **{**rest, "deadline_s": 0.3})

    monkeypatch.setattr(SysRoot, "_bytes", stuck)
    monkeypatch.setattr("accelctl.accept.watched.run_watched", impatient)
    text, bad = probing.made(machine, None, view)
    assert bad
    whole = json.loads(text)
    assert [path.rpartition("/")[2] for path in whole["stuck"]] == ["vbios_version"]
    assert [one["device"] for one in whole["findings"] if one["id"] == "HANG-READ"] == ["0000:02:00.0"]
    assert whole["evidence"]["/devices/1/vbios/version"]["reason"] == "timed_out"


# -- shortcuts against the plain way --


def facts_below(device: Device, prefix: str) -> dict[str, Any]:
    return {key: one for key, one in device.facts.items() if key.startswith(prefix.rstrip("/") + "/")}


def test_facts_below_a_prefix_whatever_happened_to_the_facts() -> None:
    source = random.Random(3)
    names = ["a", "a/b", "a/c/d", "a/c/e", "ab/c", "b/a", "/a", "a/"]
    device = Device("d", "physical", "sys/x")
    for step in range(400):
        key = source.choice(names)
        if source.random() < 0.3:
            device.facts.pop(key, None)
        else:
            device.facts[key] = read(step)
        for prefix in ("a", "a/", "a/c", "b", "", "z"):
            assert list(device.under(prefix).items()) == list(facts_below(device, prefix).items()), (step, prefix)


def word(one: Place, other: Place) -> str:
    """The word for a pair, by definition."""
    if one.host == other.host and one.host.rpartition("/")[2].startswith("pci"):
        common = [folder for folder in one.above if folder in other.above]
        if not common:
            return "PHB"
        return "PIX" if one.above.index(common[0]) + other.above.index(common[0]) <= 2 else "PXB"
    if one.node is None or other.node is None:
        return "?"
    return "NODE" if one.node == other.node else "SYS"


def test_the_matrix_is_the_one_made_pair_by_pair() -> None:
    source = random.Random(4)
    for _ in range(50):
        places = []
        for _ in range(12):
            host = f"sys/devices/{source.choice(('pci0000:00', 'pci0000:40', 'platform/x'))}"
            above = [host]
            for _ in range(source.randrange(5)):
                above.append(f"{above[-1]}/0000:00:0{source.randrange(2)}.0")
            places.append(Place(above[:0:-1], host, source.choice((None, 0, 1))))
        assert topology._rows(places) == [[word(one, other) for other in places] for one in places]
