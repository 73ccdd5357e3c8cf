"""Six machines that are broken in one way each: the acceptance rejects them, and names that and nothing else.

The same six on the kernel's own drivers stand in tests/kernel/guest/test_bringup.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from accelctl.abi import capabilityfile
from accelctl.abi.capability import Capability
from accelctl.accept.bench import store
from accelctl.accept.bench.run import measure
from accelctl.accept.bringup.step import Order
from accelctl.accept.bringup.steps import bench, lifecycles, probe
from accelctl.model.bringupreport import PASSED_SIMULATED, REJECTED, BringupReport
from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding
from accelctl.model.report import Report
from accelctl.smoke import run as smoke
from tests.bringupkit import (
    MISSING,
    SIM,
    bad_ids,
    carried_out,
    only_ops,
    only_steps,
    slow_channel,
    wrong_relu,
)

ORDER = Order(device=("sim:0",))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two ops, few cycles, one part of bench, and records of nobody's."""
    only_ops(monkeypatch, "relu", "add")
    monkeypatch.setattr(lifecycles, "CYCLES", 400)
    monkeypatch.setattr(bench, "QUICK", ("channel",))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def rejected(report: BringupReport, identity: str) -> Finding:
    """The one finding of a rejection."""
    assert (report.verdict, report.exit_code) == (f"{REJECTED} (simulated)", 1), report.why
    assert bad_ids(report) == [identity]
    found = next(one for one in report.findings if one.id == identity)
    assert found.evidence
    assert found.fix
    assert report.why.startswith(f"{identity}: ")
    return found


def test_the_machine_that_is_not_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only_steps(monkeypatch, "probe", "expected", "lifecycles", "ops", "capabilities")
    report = carried_out(str(tmp_path / "state"), ORDER)
    assert (report.verdict, bad_ids(report)) == (PASSED_SIMULATED, [])


def test_node_permission(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = Finding(
        "NODE-PERMISSION", "info", "may not open it", "sim:0", (Evidence("dev/sim", "denied"),), ("usermod",)
    )
    machine = Report("/", True, devices=[Device("sim:0", "virtual", "", chip="sim")], findings=[seen])
    monkeypatch.setattr(probe, "look", lambda *args, **named: (machine, None))
    monkeypatch.setattr(
        "accelctl.accept.bringup.subjects.chosen", lambda order: (replace(SIM, left_alone="no permission"),)
    )
    only_steps(monkeypatch, "probe", "lifecycles")
    report = carried_out(str(tmp_path / "state"), ORDER)
    assert rejected(report, "NODE-PERMISSION").level == "error"
    assert [one.result for one in report.steps] == ["fail", "inconclusive"]


def test_swallowed_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only_steps(monkeypatch, "probe", "lifecycles", "ops")
    report = carried_out(str(tmp_path / "state"), replace(ORDER, sim={"leak": "queue:20"}))
    found = rejected(report, "LIFECYCLE-LEAK")
    assert "sim-queues" in found.evidence[0].raw
    assert "--lifecycle queue" in found.fix[0]


def test_wrong_result_in_one_op(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong_relu(monkeypatch)
    only_steps(monkeypatch, "probe", "lifecycles", "ops")
    report = carried_out(str(tmp_path / "state"), ORDER)
    found = rejected(report, "OPS-WRONG-RESULT")
    assert found.title.startswith("relu: ")
    assert "--op relu" in found.fix[0]


def test_missing_expected_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "type.toml").write_text(MISSING)
    only_steps(monkeypatch, "probe", "expected", "lifecycles")
    report = carried_out(str(tmp_path / "state"), replace(ORDER, expect=str(tmp_path / "type.toml")))
    assert "a card that was there" in rejected(report, "EXPECT-MISSING-DEVICE").title


def test_slow_channel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = str(tmp_path / "base.json")
    store.save(base, measure(("sim:0",), ("channel",), 4.0))
    order = replace(ORDER, baseline=base, max_regress=50.0)
    only_steps(monkeypatch, "probe", "lifecycles", "bench")
    healthy = carried_out(str(tmp_path / "state"), order)
    assert (healthy.verdict, bad_ids(healthy)) == (PASSED_SIMULATED, []), healthy.why
    slow_channel(monkeypatch)
    found = rejected(carried_out(str(tmp_path / "state"), order), "BENCH-SLOWER")
    assert all(one.raw.startswith("channel/") for one in found.evidence), found.evidence
    assert any(one.raw.startswith("channel/up, data channel") for one in found.evidence)


def test_stale_capability(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = str(tmp_path / "caps.toml")
    smoke.carry_out(smoke.Request(device=("sim:0",), ops=("relu", "add"), dtypes=("fp32",), model=False, save=path))
    order = replace(ORDER, caps=path)
    only_steps(monkeypatch, "probe", "lifecycles", "capabilities")
    healthy = carried_out(str(tmp_path / "state"), order)
    assert (healthy.verdict, bad_ids(healthy)) == (PASSED_SIMULATED, []), healthy.why

    def aged(records: list[Capability]) -> list[Capability]:
        return [
            replace(one, platform=one.platform._replace(versions=(("numpy", "1.0"),))) if one.op == "relu" else one
            for one in records
        ]

    capabilityfile.update(path, aged)
    found = rejected(carried_out(str(tmp_path / "state"), order), "CAPS-STALE")
    assert "relu" in found.title
    assert "add" not in found.title
    assert "numpy" in found.evidence[0].raw
