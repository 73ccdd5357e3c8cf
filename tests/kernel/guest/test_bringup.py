"""`accelctl bringup` on the guest's devices: accepted as they are, and rejected for each of six faults that are made.

What a kernel device can have wrong is made wrong on one (its node, a release that is swallowed, a device that is
missing); ops, the channel and capability records need a chip that computes, which here is the simulated one.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from accelctl.abi import capabilityfile
from accelctl.accept.bench import store
from accelctl.accept.bench.run import measure
from accelctl.accept.bringup import table
from accelctl.accept.bringup.step import Order
from accelctl.accept.bringup.steps import bench, lifecycles
from accelctl.hal import devfile
from accelctl.model.bringupreport import ACCEPTED, PASSED_SIMULATED, REJECTED, BringupReport
from accelctl.render import bringup as render
from accelctl.render.htmlreport import html
from accelctl.render.term import Term
from accelctl.smoke import run as smoke
from accelctl.stress import run
from tests.bringupkit import MISSING, bad_ids, carried_out, only_ops, only_steps, slow_channel, wrong_relu
from tests.helpers import ROOT, environment, run_cli

from .helpers import needs
from .test_stress import Forgetful, chosen

VGEM, SIM = Order(device=("chip=vgem",)), Order(device=("sim:0",))
DEVICES = ["chip=vgem", "chip=bochs", "chip=qxl", "chip=virtio_gpu"]
SLOW = 30
"""An emulated machine takes so many times as long: boxes are for real ones."""
CYCLES = 300
NOBODY = 1234
ON_DEVICES, ON_SIM = needs("stock"), needs("debug")
"""No test needs what one of the kernels has alone, and both run at the same time: each gets half of them."""


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Larger boxes and less work; records of nobody's."""
    only_steps(monkeypatch, *(one.name for one in table.STEPS), factor=SLOW)
    monkeypatch.setattr(lifecycles, "CYCLES", CYCLES)
    monkeypatch.setattr(bench, "QUICK", ("channel",))
    monkeypatch.setattr(bench, "SHARE", {1: 0.02})
    only_ops(monkeypatch, "relu")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def rejected(report: BringupReport, identity: str) -> None:
    words = [(one.id, one.level, one.title) for one in report.findings]
    assert bad_ids(report) == [identity], words
    assert (report.verdict.removesuffix(" (simulated)"), report.exit_code) == (REJECTED, 1), words
    found = next(one for one in report.findings if one.id == identity)
    assert found.evidence
    assert found.fix
    assert identity in html(report)
    print(f"{report.verdict}: {report.why}")


def healthy(report: BringupReport, verdict: str = ACCEPTED) -> None:
    assert (report.verdict, bad_ids(report)) == (verdict, []), (report.why, report.findings)


@ON_DEVICES
@pytest.mark.parametrize("name", DEVICES)
def test_real_virtual_devices_are_accepted(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only_steps(monkeypatch, "probe", "expected", "lifecycles", "ops", "capabilities", "semantics", "disruptive")
    report = carried_out(str(tmp_path / "state"), Order(device=(name,)))
    print([(one.name, one.result, one.reason, one.seconds) for one in report.steps])
    healthy(report)
    skipped = {one.name: one.reason for one in report.steps if one.result == "skip"}
    assert skipped["ops"] == skipped["semantics"] == "this chip offers no ops"


@ON_DEVICES
def test_the_command_line_in_the_guest(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    state = ("--state", str(tmp_path / "state"))
    done = run_cli("bringup", "--device", "chip=vgem", *state, "--html", str(page), "--json")
    document = json.loads(done.stdout)
    print(document["verdict"], document["why"], document["summary"], done.returncode)
    assert document["schema"] == "accelctl.bringup/1"
    assert document["verdict"] in (ACCEPTED, "not accepted: incomplete")  # boxes are for machines of another speed
    assert "not done" in page.read_text(encoding="utf-8").lower()
    assert run_cli("bringup", "--device", "chip=none", code=3).stderr.count("\n") == 2


ALONE = """
import pickle, sys
from accelctl.accept.bringup.step import Order
from accelctl.accept.bringup.steps import lifecycles
from tests.bringupkit import Plain, carried_out, only_steps

only_steps(Plain, "probe", "lifecycles", factor=30)
lifecycles.CYCLES = 300
report = carried_out(sys.argv[1], Order(device=("chip=vgem",)))
sys.stdout.buffer.write(pickle.dumps(report))
"""
OVERRIDES = "-dac_override,-dac_read_search"
"""Capabilities without which mode bits hold for root as well: as another user the checkout and the interpreter may be
out of reach."""


def bound_by_modes(folder: Path) -> BringupReport:
    """The run of a process that may open what its user and group may open, and nothing else."""
    rights = ("setpriv", f"--inh-caps={OVERRIDES}", f"--bounding-set={OVERRIDES}")
    command = [*rights, sys.executable, "-c", ALONE, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    report: BringupReport = pickle.loads(done.stdout)
    return report


@ON_DEVICES
def test_node_permission(tmp_path: Path) -> None:
    target = chosen("chip=vgem").target
    own = [Path(node) for node in (target.node, *target.others)]
    before = {path: path.stat() for path in own}
    healthy(bound_by_modes(tmp_path / "a"))
    try:
        for path in own:
            os.chown(path, NOBODY, NOBODY)
            path.chmod(0o600)
        report = bound_by_modes(tmp_path / "b")
    finally:
        for path, status in before.items():
            os.chown(path, status.st_uid, status.st_gid)
            path.chmod(status.st_mode & 0o777)
    rejected(report, "NODE-PERMISSION")
    assert [one.result for one in report.steps] == ["fail", "inconclusive"]
    assert f"no permission for {target.node}" in report.steps[1].reason


@ON_DEVICES
def test_swallowed_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only_steps(monkeypatch, "probe", "lifecycles")
    forgetful = Forgetful("object")
    monkeypatch.setattr(run, "SYSCALLS", forgetful)
    monkeypatch.setattr(devfile, "SYSCALLS", forgetful)
    report = carried_out(str(tmp_path / "state"), VGEM)
    rejected(report, "LIFECYCLE-LEAK")
    assert "gem-handles" in render.text(report, Term(False, None, None, True))


@ON_DEVICES
def test_missing_expected_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only_steps(monkeypatch, "probe", "expected", "lifecycles")
    there = '\n[[device]]\nname = "what is here"\nmatch = { kind = "*" }\n'
    for name, text in (("good", MISSING.partition("[[device]]")[0] + there), ("bad", MISSING + there)):
        (tmp_path / name).write_text(text)
    healthy(carried_out(str(tmp_path / "state"), replace(VGEM, expect=str(tmp_path / "good"))))
    rejected(carried_out(str(tmp_path / "state"), replace(VGEM, expect=str(tmp_path / "bad"))), "EXPECT-MISSING-DEVICE")


@ON_SIM
def test_wrong_result_in_one_op(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only_steps(monkeypatch, "probe", "ops")
    healthy(carried_out(str(tmp_path / "state"), SIM), PASSED_SIMULATED)
    wrong_relu(monkeypatch)
    rejected(carried_out(str(tmp_path / "state"), SIM), "OPS-WRONG-RESULT")


@ON_SIM
def test_stale_capability(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only_steps(monkeypatch, "probe", "capabilities")
    path = str(tmp_path / "caps.toml")
    smoke.carry_out(smoke.Request(device=("sim:0",), ops=("relu",), dtypes=("fp32",), model=False, save=path))
    order = replace(SIM, caps=path)
    assert bad_ids(carried_out(str(tmp_path / "state"), order)) == []
    capabilityfile.update(
        path,
        lambda found: [replace(one, platform=one.platform._replace(versions=(("numpy", "1.0"),))) for one in found],
    )
    rejected(carried_out(str(tmp_path / "state"), order), "CAPS-STALE")


@ON_SIM
def test_slow_channel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only_steps(monkeypatch, "probe", "bench")
    base = str(tmp_path / "base.json")
    store.save(base, measure(("sim:0",), ("channel",), 10.0))
    order = replace(SIM, baseline=base, max_regress=100.0)
    good = carried_out(str(tmp_path / "state"), order)
    assert bad_ids(good) == [], good.findings
    slow_channel(monkeypatch, 0.5)
    rejected(carried_out(str(tmp_path / "state"), order), "BENCH-SLOWER")
