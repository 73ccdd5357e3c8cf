"""Locked memory, shared memory, sensors: only where something that is here needs it or says so itself."""

from __future__ import annotations

from typing import Any

import pytest

from accelctl.model.reading import Reading
from accelctl.model.report import Report
from tests.cases import advice, case, findings, function

NPU = function("0000:c5:00.1", "0x1022", "0x17f0", "0x118000")
GPU = function("0000:01:00.0", "0x1002", "0x744c")
LIMITS = "Limit                  Soft Limit    Hard Limit    Units\nMax locked memory      {0}        {0}        bytes"
ME = {"uid": 1000, "gid": 1000}


@pytest.mark.parametrize(
    ("files", "limit", "process", "found"),
    [
        (NPU, "8388608", ME, 1),  # 8 MiB, what "ulimit -l" prints as 8192
        (NPU, "65536", ME, 1),
        (NPU, "0", ME, 1),
        (NPU, "unlimited", ME, 0),
        (NPU, "8388608", {**ME, "capabilities": 1 << 14}, 0),  # CAP_IPC_LOCK
        (NPU, "8388608", {**ME, "capabilities": 1 << 21}, 1),
        (NPU, "3098341376", ME, 0),  # systemd's default of an eighth of the memory
        (GPU, "8388608", ME, 0),  # nothing here pins memory
        ({}, "8388608", ME, 0),
    ],
)
def test_locked_memory(files: dict[str, Any], limit: str, process: dict[str, int], found: int) -> None:
    report = case(files={**files, "proc/self/limits": LIMITS.format(limit)}, process=process)
    hits = findings(report, "LIMIT-MEMLOCK")
    assert [one.level for one in hits] == ["warn"] * found
    for one in hits:
        for word in ("limits.d", "limitmemlock", "--ulimit memlock"):
            assert word in advice(one)
    if limit == "8388608" and hits:
        assert "8 MiB" in hits[0].title


def shm_case(size: int, files: dict[str, Any], boxed: bool) -> Report:
    """shm comes from statvfs, which a captured machine has not: the rule is run on a report that has the fact."""
    from accelctl.abi.rooms import Directory, all_rooms
    from accelctl.abi.rules import RuleContext
    from accelctl.probes.rules.memory import shared_memory
    from tests.cases import machine

    report = case(files=files)
    report.machine["shm/size_bytes"] = Reading(size, "dev/shm", str(size), "bytes")
    report.machine["container/kind"] = Reading("docker" if boxed else "none", ".dockerenv")
    context = RuleContext(machine(files=files), report, Directory(all_rooms()), None)
    report.findings = list(shared_memory(context))
    return report


@pytest.mark.parametrize(
    ("size", "files", "boxed", "levels"),
    [
        (64 << 20, GPU, True, ["warn"]),
        (256 << 20, GPU, True, ["warn"]),
        (64 << 20, GPU, False, ["info"]),
        (256 << 20, GPU, False, []),  # half of a small machine's memory: the usual default
        (8 << 30, GPU, True, []),
        (64 << 20, {}, True, []),  # no accelerator, nobody to care
    ],
)
def test_shared_memory(size: int, files: dict[str, Any], boxed: bool, levels: list[str]) -> None:
    assert [one.level for one in findings(shm_case(size, files, boxed), "SHM-SMALL")] == levels


def heat_case(**channel: str) -> Report:
    base = "$D(0000:01:00.0)/hwmon/hwmon3"
    files = {f"{base}/name": "amdgpu"} | {f"{base}/{name}": text for name, text in channel.items()}
    return case(files={**GPU, **files})


@pytest.mark.parametrize(
    ("now", "limit", "found"),
    [
        ("45000", "100000", 0),
        ("99000", "100000", 0),
        ("100000", "100000", 1),
        ("107000", "100000", 1),
        ("45000", "0", 0),  # not set
        ("45000", "-273150", 0),  # absolute zero: not set
        ("45000", "30000", 0),  # below any plausible limit
        ("45000", None, 0),
    ],
)
def test_a_temperature_at_its_limit(now: str, limit: str | None, found: int) -> None:
    channel = {"temp1_input": now, "temp1_label": "junction"} | ({} if limit is None else {"temp1_crit": limit})
    hits = findings(heat_case(**channel), "SENSOR-HOT")
    assert [one.level for one in hits] == ["error"] * found
    assert all("junction" in one.title for one in hits)


@pytest.mark.parametrize(("flag", "found"), [("0", 0), ("1", 1), ("", 0)])
def test_a_fault_flag(flag: str, found: int) -> None:
    assert len(findings(heat_case(fan1_fault=flag, fan1_input="0"), "SENSOR-FAULT")) == found
