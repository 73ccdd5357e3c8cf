"""Sensors of devices: keyed by device, absent where the text means "no value", and untouched where the device sleeps
(cases MON-04, MON-05 and MON-06)."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi import telemetryrows as rows
from accelctl.abi.rooms import all_rooms
from accelctl.hal.kepttree import KeptTree
from accelctl.hal.root import Converter, SysRoot
from accelctl.hal.tree import DirTree
from accelctl.model.snapshot import DeviceLevel, Gone, Snapshot
from accelctl.telemetry.live import allow_chips, of_devices
from accelctl.telemetry.sensors import Devices, Sensors
from accelctl.telemetry.source import Source
from tests.telemetrykit import Machine, tick

GEM_INFO = "pid     1234 command x:\n\t0x00000001:      4096 byte VRAM\n\t0x00000002:  8192 byte GTT exported as 0\n"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def row(snapshot: Snapshot, identity: str = "0000:01:00.0") -> DeviceLevel:
    return next(one for one in snapshot.devices if one.id == identity)


def absence(snapshot: Snapshot, name: str) -> Gone:
    return snapshot.absences[f"devices/0000:01:00.0/{name}"]


# -- MON-04: numbers that mean "no value" --


@pytest.mark.parametrize(
    ("convert", "text", "value"),
    [
        (rows.percent, "4294967295", None),
        (rows.percent, "150", None),
        (rows.percent, "-1", None),
        (rows.percent, "0", 0.0),
        (rows.percent, "100", 1.0),
        (rows.rpm, "65535", None),
        (rows.rpm, "0", 0),
        (rows.rpm, "1350", 1350),
        (rows.celsius, "65535", None),
        (rows.celsius, "65", 65.0),
        (rows.milliwatts, "65535", None),
        (rows.milliwatts, "0", 0),
        (rows.size, "18446744073709551615", None),
        (rows.size, "[N/A]", None),
        (rows.size, "0", 0),
        (rows.milli_celsius, "-273150", None),
        (rows.milli_celsius, "65535000", None),
        (rows.milli_celsius, "65535", 65.535),  # a real temperature in this unit
        (rows.milli_celsius, "-20000", -20.0),
        (rows.milli_celsius, "53000", 53.0),
        (rows.microwatts, "36717000", 36717.0),
        (rows.microwatts, "4294967295", None),
        (rows.megahertz, "65535", None),
        (rows.megahertz, "2100", 2_100_000_000),
        (rows.count, "18446744073709551615", None),
    ],
)
def test_mon_04_texts(convert: Converter, text: str, value: float | None) -> None:
    assert convert(text) == value


def test_mon_04_absences_are_not_clamped_and_zeros_are_real(machine: Machine) -> None:
    for name, text in {
        "gpu_busy_percent": "150",
        "mem_info_vram_used": "18446744073709551615",
        "hwmon/hwmon0/fan1_input": "65535",
        "hwmon/hwmon0/temp1_input": "-273150",
    }.items():
        machine.file(name).write_text(f"{text}\n")
    machine.look()
    found = machine.sample()
    one = row(found)
    assert (one.busy_ratio, one.memory_used_bytes, one.fan_rpm, one.temperature_celsius) == (None,) * 4
    assert absence(found, "fan_rpm") == Gone("empty", "it says 65535, which means that there is none")
    assert absence(found, "busy_ratio").detail == "it says 150, which means that there is none"
    machine.file("gpu_busy_percent").write_text("0\n")
    machine.file("hwmon/hwmon0/fan1_input").write_text("0\n")
    now = row(machine.sample())
    assert (now.busy_ratio, now.fan_rpm) == (0.0, 0)


def test_mon_04_power_of_the_input_where_there_is_no_average(machine: Machine) -> None:
    machine.file("hwmon/hwmon0/power1_average").unlink()
    machine.file("hwmon/hwmon0/power1_input").write_text("36717000\n")
    machine.look()
    found = machine.sample()
    assert row(found).power_mw == 36717.0
    assert found.sources["devices/0000:01:00.0/power_mw"].endswith("/power1_input")


def test_mon_04_the_average_goes_before_the_input(machine: Machine) -> None:
    machine.file("hwmon/hwmon0/power1_input").write_text("36717000\n")
    machine.look()
    assert row(machine.sample()).power_mw == 18000.0


def test_mon_04_host_memory_is_no_device_memory(machine: Machine) -> None:
    for name in ("mem_info_vram_total", "mem_info_vram_used"):
        machine.file(name).unlink()
    machine.look()
    found = machine.sample()
    assert (row(found).memory_total_bytes, row(found).memory_used_bytes) == (None, None)
    assert absence(found, "memory_total_bytes").kind == "not_captured"


# -- MON-05: a sleeping device --


def test_mon_05_nothing_of_a_sleeping_device_is_read(machine: Machine) -> None:
    machine.file("power/runtime_status").write_text("suspended\n")
    machine.file("power_state").write_text("D3cold\n")
    for name in ("gpu_metrics", "config"):
        machine.file(name).write_text("x\n")
    machine.look()
    for _ in range(20):
        found = machine.sample()
        one = row(found)
        assert (one.asleep, one.power_state) == (True, "suspended")
        assert (one.temperature_celsius, one.power_mw, one.busy_ratio, one.memory_used_bytes) == (None,) * 4
        assert absence(found, "temperature_celsius") == Gone("asleep")
        assert found.pools == ()
    base = str(machine.file("").relative_to(machine.folder))
    assert dict(machine.tree.reads) == {f"{base}/power/runtime_status": 20}
    machine.file("power/runtime_status").write_text("active\n")
    one = row(machine.sample())
    assert (one.asleep, one.temperature_celsius, one.memory_used_bytes) == (False, 41.0, 28000256)
    before = dict(machine.tree.reads)
    machine.file("power/runtime_status").write_text("suspending\n")
    assert row(machine.sample()).asleep
    changed = {path for path, count in machine.tree.reads.items() if before.get(path) != count}
    assert changed == {f"{base}/power/runtime_status"}


def test_mon_05_only_the_sleeping_one_is_left_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.file("power/runtime_status", 1).write_text("suspended\n")
    machine.look()
    found = machine.sample()
    assert [one.asleep for one in found.devices] == [False, True]
    assert [one.temperature_celsius for one in found.devices] == [41.0, None]


def test_a_device_without_runtime_status_is_awake(machine: Machine) -> None:
    machine.file("power/runtime_status").unlink()
    machine.look()
    one = row(machine.sample())
    assert (one.asleep, one.power_state, one.temperature_celsius) == (False, "", 41.0)


def test_a_device_that_is_about_to_sleep_is_let(machine: Machine) -> None:
    """Awake, but nobody uses it: each read of a sensor would put off its sleep. Files that are free are read."""
    machine.file("power/runtime_usage").write_text("0\n")
    machine.look()
    machine.tree.live = True
    machine.sources = sources(machine)
    found = machine.sample()
    one = row(found)
    assert (one.asleep, one.power_state, one.memory_used_bytes) == (False, "active", 28000256)
    assert (one.temperature_celsius, one.power_mw, one.busy_ratio) == (None,) * 3
    assert absence(found, "temperature_celsius").kind == "asleep"
    assert not [path for path in machine.tree.reads if "hwmon" in path or "busy" in path]
    machine.file("power/runtime_usage").write_text("1\n")
    assert row(machine.sample()).temperature_celsius == 41.0
    machine.file("power/runtime_usage").write_text("0\n")
    machine.file("power/control").write_text("on\n")
    machine.look()
    machine.sources = sources(machine)
    assert row(machine.sample()).temperature_celsius == 41.0  # it never sleeps


def sources(machine: Machine) -> list[Source]:
    """As on the running machine, where files that wake are not read of everything."""
    root = SysRoot(machine.tree)
    assert not root.allow_wake
    allow_chips(root, all_rooms(), machine.devices)
    return of_devices(root, machine.devices)


# -- MON-06: folder numbers --


@pytest.mark.parametrize("number", [2, 4])
def test_mon_06_by_device_and_not_by_number(machine: Machine, number: int) -> None:
    folder = machine.file("hwmon/hwmon0")
    folder.rename(folder.with_name(f"hwmon{number}"))
    machine.file(f"hwmon/hwmon{number}/temp1_input").write_text("45000\n")
    other = machine.folder / f"sys/class/hwmon/hwmon{6 - number}"
    other.mkdir(parents=True)
    (other / "name").write_text("nvme\n")
    (other / "temp1_input").write_text("62850\n")
    machine.look()
    found = machine.sample()
    assert [(one.id, one.temperature_celsius) for one in found.devices] == [("0000:01:00.0", 45.0)]
    assert "devices/0000:01:00.0/temperature_celsius" in found.sources


def test_mon_06_a_doubled_folder_is_one_row(machine: Machine) -> None:
    folder = machine.file("hwmon/hwmon0")
    folder.rename(folder.with_name("hwmon5"))
    shutil.copytree(folder.with_name("hwmon5"), folder.with_name("hwmon6"), symlinks=True)
    machine.look()
    found = machine.sample()
    assert [(one.id, one.temperature_celsius) for one in found.devices] == [("0000:01:00.0", 41.0)]
    assert not [path for path in machine.tree.reads if "hwmon6" in path]


def test_the_lowest_channel_is_the_device(machine: Machine) -> None:
    """xe has temp2 (package) and temp3 (memory), and no temp1."""
    hwmon = machine.file("hwmon/hwmon0")
    (hwmon / "temp1_input").unlink()
    (hwmon / "temp10_input").write_text("90000\n")
    (hwmon / "temp2_input").write_text("50000\n")
    machine.look()
    assert row(machine.sample()).temperature_celsius == 50.0


def test_power_of_an_energy_counter(machine: Machine) -> None:
    hwmon = machine.file("hwmon/hwmon0")
    (hwmon / "power1_average").unlink()
    (hwmon / "energy1_input").write_text("1000000\n")
    machine.look()
    found = machine.sample()
    assert row(found).power_mw is None
    assert absence(found, "power_mw").kind == "empty"
    (hwmon / "energy1_input").write_text("13500000\n")
    found = machine.sample()
    assert row(found).power_mw == 12500.0  # 12.5 J in a second
    assert found.sources["devices/0000:01:00.0/power_mw"].startswith("computed: difference of ")
    (hwmon / "energy1_input").write_text("500000\n")  # it began again
    assert row(machine.sample()).power_mw is None
    (hwmon / "energy1_input").write_text("1500000\n")
    assert row(machine.sample()).power_mw == 1000.0


# -- cost --


def test_reads_of_a_steady_tick(tmp_path: Path) -> None:
    """Power state, temperature, power, fan, clock, load and memory: seven files a device."""
    machine = Machine(tmp_path, 8)
    machine.look()
    machine.sample()
    machine.tree.reads.clear()
    found = machine.sample()
    assert len(machine.tree.reads) == 8 * 7
    assert set(machine.tree.reads.values()) == {1}
    assert len(found.devices) == 8


def test_files_stay_open(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.look()
    tree = KeptTree(DirTree(str(tmp_path)))
    machine.sources = [Devices(SysRoot(tree), machine.devices), Sensors(SysRoot(tree), machine.devices)]
    machine.sample()
    opened = tree.opens
    machine.file("hwmon/hwmon0/temp1_input").write_text("42000\n")
    for _ in range(5):
        found = machine.sample()
    assert tree.opens == opened == 5
    assert row(found).temperature_celsius == 42.0
    machine.file("hwmon/hwmon0/temp1_input").unlink()
    assert row(machine.sample()).temperature_celsius == 42.0  # the file that is open is another than the name
    tree.close()
    found = machine.sample()
    assert absence(found, "temperature_celsius").kind == "not_captured"
    tree.close()


# -- debugfs --


def test_handles_that_the_driver_counts(machine: Machine) -> None:
    folder = machine.folder / "sys/kernel/debug/dri/0"
    folder.mkdir(parents=True)
    info = folder / "amdgpu_gem_info"
    info.write_text(GEM_INFO)
    machine.look()
    found = machine.sample()
    assert row(found).handles == 2
    assert found.sources["devices/0000:01:00.0/handles"] == "sys/kernel/debug/dri/0/amdgpu_gem_info"
    info.write_text("")
    assert row(machine.sample()).handles == 2  # asked every five seconds
    machine.number = 6
    assert row(machine.sample()).handles == 0


def test_no_handles_without_debugfs(machine: Machine) -> None:
    machine.look()
    found = machine.sample()
    assert row(found).handles is None
    assert absence(found, "handles").kind == "not_captured"


# -- PCIe errors --


def test_error_counters_that_rise_are_events(machine: Machine) -> None:
    machine.look()
    counters = machine.file("aer_dev_correctable")
    assert machine.sample().events == ()
    counters.write_text("RxErr 0\nBadTLP 3\nBadDLLP 0\nRollover 0\nTimeout 1\nTOTAL_ERR_COR 4\n")
    machine.number = 6
    (mark,) = machine.sample().events
    assert (mark.kind, mark.device, mark.level) == ("aer", "0000:01:00.0", "warn")
    assert mark.text == "PCI-AER-CORRECTABLE: 4 correctable PCIe errors (BadTLP 3, Timeout 1)"
    assert mark.at_ns == tick(6).now_ns
    machine.file("aer_dev_fatal").write_text("DLP 1\nTOTAL_ERR_FATAL 1\n")
    assert machine.sample().events == ()  # looked at every five seconds
    machine.number = 12
    (mark,) = machine.sample().events
    assert (mark.level, mark.text) == ("critical", "PCI-AER-FATAL: 1 fatal PCIe error (DLP 1)")


# -- texts of strangers --


CONVERTERS = (
    rows.percent, rows.rpm, rows.celsius, rows.milli_celsius, rows.milliwatts, rows.microwatts, rows.size, rows.hertz,
    rows.megahertz, rows.count,
)  # fmt: skip


@pytest.mark.parametrize("convert", CONVERTERS)
@given(text=st.one_of(st.text(max_size=30), st.integers().map(str), st.sampled_from(["", "N/A", "[N/A]", "0x10"])))
def test_any_text_is_a_number_none_or_malformed(convert: Converter, text: str) -> None:
    try:
        value = convert(text)
    except ValueError:
        return
    assert value is None or (isinstance(value, (int, float)) and math.isfinite(value))
    if convert is rows.percent and value is not None:
        assert 0 <= value <= 1
