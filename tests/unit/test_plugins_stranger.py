"""A third party's chip, installed as its own distribution: every command knows it without one change in accelctl.

The distribution is what `accelctl backends new` writes. Its device is a node that every Linux has, /dev/zero, which
probe finds by the class folder that its chip.toml names.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accelctl.abi import shelf
from accelctl.accept.plugins import scaffold
from accelctl.errors import UsageError
from accelctl.exits import ExitCode
from tests.helpers import ROOT, environment, run_cli

DEVICE = "mem:zero"
CHIP = """
schema = "accelctl.chip/1"
name = "zork"
title = "Zork Z1"
vendor = "Zork"
kind = "npu"
proven = "simulated"
sysclass = [{ dir = "sys/class/mem", entry = "zero", link = "", source = "Documentation/admin-guide/devices.txt" }]
node = [{ glob = "dev/zero", role = "device", source = "Documentation/admin-guide/devices.txt" }]
module = [{ name = "zork", role = "kernel", source = "made up" }]
"""
INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: accelctl-zork\nVersion: 0.1.0\n",
    "entry_points.txt": "[accelctl.backends]\nzork = accelctl_zork\n",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the search path with the distribution in it, laid out as pip does."""
    if not Path("/sys/class/mem/zero").exists():
        pytest.skip("no /sys/class/mem/zero here: the stranger's device is not there")
    base = tmp_path_factory.mktemp("stranger")
    made, _ = scaffold.new("zork", str(base), "Zork Z1")
    site = base / "site"
    shutil.copytree(Path(made) / "accelctl_zork", site / "accelctl_zork")
    (site / "accelctl_zork/chip.toml").write_text(CHIP)
    (site / "accelctl_zork-0.1.0.dist-info").mkdir()
    for name, text in INFO.items():
        (site / "accelctl_zork-0.1.0.dist-info" / name).write_text(text)
    return site


def run(site: Path, *words: str, code: int | None = 0, **env: str | None) -> Any:
    """Of a command, as JSON."""
    found = {"PYTHONPATH": f"{site}:{ROOT}", "ACCELCTL_PLUGINS": None, "XDG_DATA_HOME": str(site / "data"), **env}
    return json.loads(run_cli(*words, "--json", env=found, code=code).stdout)


def test_probe_finds_it_without_its_code(site: Path) -> None:
    (device,) = (one for one in run(site, "probe", code=None)["devices"] if one["id"] == DEVICE)
    assert (device["chip"], device["kind"]) == ("zork", "physical")
    without = run(site, "probe", code=None, ACCELCTL_PLUGINS="none")
    assert not any(one["id"] == DEVICE for one in without["devices"])


def test_stress_runs_on_it_and_says_simulated(site: Path) -> None:
    found = run(site, "stress", "--device", f"id={DEVICE}", "--duration", "1")
    assert found["result"] == "pass"
    assert found["simulated"] is True


def test_it_is_simulated_so_nothing_takes_it_unasked(site: Path) -> None:
    done = run_cli("stress", env={"PYTHONPATH": f"{site}:{ROOT}", "ACCELCTL_PLUGINS": None}, code=ExitCode.NO_DEVICE)
    assert f"accelctl stress --device id={DEVICE}" in done.stderr
    lying = (site / "accelctl_zork/compute.py").read_text()
    try:
        (site / "accelctl_zork/compute.py").write_text(lying.replace("accelerator=False", "accelerator=True"))
        words = ("smoke", "--op", "relu")
        refused = run_cli(*words, env={"PYTHONPATH": f"{site}:{ROOT}", "ACCELCTL_PLUGINS": None}, code=None)
        assert "zork:0" not in refused.stdout
    finally:
        (site / "accelctl_zork/compute.py").write_text(lying)


def test_smoke_proves_its_kernels(site: Path) -> None:
    found = run(site, "smoke", "--device", "zork:0", "--op", "relu", "--op", "copy", "--dtype", "fp16")
    assert (found["result"], found["simulated"]) == ("passed (simulated)", True)
    assert {one["kernel"] for one in found["evidence"]} == {"zork_relu", "zork_copy"}
    assert found["counts"]["pass"] > 20


def test_top_shows_it(site: Path) -> None:
    found = run(site, "top", "--once")
    (device,) = (one for one in found["devices"] if one["id"] == DEVICE)
    assert (device["name"], device["chip"], device["simulated"]) == ("Zork Z1", "zork", True)


@pytest.mark.parametrize("device", ["", "zork:0", f"id={DEVICE}"])
def test_check_passes_on_each_of_its_devices(device: str, site: Path) -> None:
    found = run(site, "backends", "check", "zork", *(("--device", device) if device else ()))
    assert found["result"] == "passed (simulated)"
    rows = {one["name"]: (one["promised"], one["differs"]) for one in found["contracts"]}
    assert rows == {
        "memory": (True, False),
        "queue": (True, False),
        "ops": (True, False),
        "telemetry": (True, False),
        "schedule": (False, False),
    }
    assert sum(one["result"] == "pass" for one in found["checks"]) >= 30


BREAKS = {
    "memory": ("memory.py", "del self.bound[block.address]", "pass"),
    "ops": ("compute.py", "found = blob.decode(work)", "found = blob.decode(b'ZZZZ' + work[4:])"),
    "crash": ("telemetry.py", "return ToyGauge(seat)", "import os; os._exit(3)"),
    "hang": ("telemetry.py", "return ToyGauge(seat)", "import threading; threading.Event().wait()"),
}
"""What is wrong -> file, text and what it becomes."""
AS_WELL = {"memory": ("queue", "ops")}
"""Rings need a session that keeps its books."""


@pytest.mark.parametrize("contract", BREAKS)
def test_check_says_what_differs(contract: str, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thing is wrong: its contract differs, and the others still pass."""
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    name, old, new = BREAKS[contract]
    text = (copy / "accelctl_zork" / name).read_text()
    assert old in text
    (copy / "accelctl_zork" / name).write_text(text.replace(old, new))
    script = (
        "import sys\nfrom accelctl.accept.plugins import check\ncheck.SILENT_S = float(sys.argv.pop(1))\n"
        "from accelctl.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "10" if contract == "hang" else "60", "backends", "check", "zork", "--json"],
        env=environment({"PYTHONPATH": f"{copy}:{ROOT}", "ACCELCTL_PLUGINS": None}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.FINDINGS, done.stderr
    found = json.loads(done.stdout)
    wrong = {one["name"] for one in found["contracts"] if one["differs"]}
    wanted = {"crash": "telemetry", "hang": "telemetry"}.get(contract, contract)
    failed = [one for one in found["checks"] if one["result"] == "fail"]
    assert wanted in wrong, failed
    assert wrong <= {wanted, *AS_WELL.get(contract, ())}, failed
    (first, *_) = (one for one in found["checks"] if one["result"] == "fail" and one["contract"] == wanted)
    if contract == "crash":
        assert "ended the process (exit status 3)" in first["detail"]
    if contract == "hang":
        assert "did not come back in 10 s" in first["detail"]


NOT_OFFERED = "from accelctl.abi.lifecycle import NotOffered; raise NotOffered('not on this board')"
FOREIGN = """

class Odd(BaseException):
    \"\"\"Made again in another process, it brings this module in.\"\"\"
"""
TELLS = "import os\nwith open(os.environ['TOLD'], 'a') as told: told.write(f'{os.getpid()}\\n')\n"


def changed(site: Path, goal: Path, *changes: tuple[str, str, str]) -> Path:
    """A copy of the distribution, in which these files have another text."""
    shutil.copytree(site, goal)
    for name, old, new in changes:
        place = goal / "accelctl_zork" / name
        text = place.read_text()
        assert old in text
        place.write_text(text.replace(old, new, 1))
    return goal


def test_a_chip_that_allocates_nothing_has_not_passed(site: Path, tmp_path: Path) -> None:
    copy = changed(
        site,
        tmp_path / "site",
        ("memory.py", "fd = self.calls.memfd", f"{NOT_OFFERED}\n        fd = self.calls.memfd"),
        ("__init__.py", '{"memory", "queue", "ops", "telemetry", "user_va"}', '{"memory", "user_va"}'),
        ("__init__.py", "queue=QUEUE, ops=OPS, telemetry=TELEMETRY", ""),
    )
    found = run(copy, "backends", "check", "zork", "--device", f"id={DEVICE}", code=ExitCode.NO_DEVICE)
    (row,) = (one for one in found["contracts"] if one["name"] == "memory")
    assert (found["result"], row["observed"], row["differs"]) == (
        "not tried",
        "not tried: nothing can be allocated here",
        False,
    )


def test_a_gauge_that_says_nothing_differs(site: Path, tmp_path: Path) -> None:
    copy = changed(site, tmp_path / "site", ("telemetry.py", "device = self._seat.device.id", "return"))
    found = run(copy, "backends", "check", "zork", "--device", f"id={DEVICE}", code=ExitCode.FINDINGS)
    (bad,) = (one for one in found["checks"] if one["result"] == "fail")
    assert (bad["contract"], bad["name"]) == ("telemetry", "telemetry: says something")


def test_nothing_of_it_comes_in_while_it_is_checked(site: Path, tmp_path: Path) -> None:
    copy = changed(
        site,
        tmp_path / "site",
        ("telemetry.py", "return ToyGauge(seat)", "raise Odd"),
        ("telemetry.py", "\n\nclass ToyGauge", f"{FOREIGN}\n\nclass ToyGauge"),
        ("__init__.py", "from __future__ import annotations\n", f"from __future__ import annotations\n{TELLS}"),
    )
    script = (
        "import os, sys\nprint(os.getpid(), file=sys.stderr)\n"
        "from accelctl.cli import main\nsys.exit(main(['backends', 'check', 'zork', '--json']))"
    )
    env = {"PYTHONPATH": f"{copy}:{ROOT}", "ACCELCTL_PLUGINS": None, "TOLD": str(tmp_path / "told")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(env), capture_output=True, text=True, check=False
    )
    (bad,) = (one for one in json.loads(done.stdout)["checks"] if one["result"] == "fail")
    assert bad["detail"] == "its first check failed: Odd"
    told = (tmp_path / "told").read_text().split()
    assert len(told) >= 4
    assert done.stderr.split()[0] not in told


LOOKS = """
import sys
from accelctl.accept.bringup import subjects
from accelctl.accept.bringup.step import Order
from accelctl.hal.root import open_root
from accelctl.stress import targets
here = targets.find(open_root("/"), targets.Allowed())
print([one.manifest.title for one in here.candidates if one.target.chip == "zork"])
(found,) = subjects.chosen(Order(device=("id=mem:zero",)))
print(found.memory, "|", found.ops)
print(sorted(name for name in sys.modules if name.startswith("accelctl_zork")))
"""


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("import os; os._exit(3)", "loading it ended the process (exit status 3)"),
        ("raise RuntimeError('no firmware')", "asked for its devices, it failed: RuntimeError: no firmware"),
    ],
)
def test_bringup_and_stress_look_at_it_without_its_code(end: str, why: str, site: Path, tmp_path: Path) -> None:
    text = (site / "accelctl_zork/compute.py").read_text()
    head = next(line for line in text.splitlines() if "def devices(self)" in line)
    copy = changed(site, tmp_path / "site", ("compute.py", head, f"{head}\n        {end}"))
    env = environment({"PYTHONPATH": f"{copy}:{ROOT}", "ACCELCTL_PLUGINS": None})
    done = subprocess.run([sys.executable, "-c", LOOKS], env=env, capture_output=True, text=True, check=True)
    titles, reasons, modules = done.stdout.splitlines()
    assert (titles, modules) == ("['Zork Z1']", "[]")
    memory, _, ops = reasons.partition(" | ")
    assert memory == ""
    assert ops.endswith(why)


def test_its_own_tests_pass(site: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(site.parent / "accelctl-zork/tests")],
        env=environment({"PYTHONPATH": f"{site}:{ROOT}", "ACCELCTL_PLUGINS": None}),
        cwd=site.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout[-2000:]


# -- new --


def test_new_overwrites_nothing(tmp_path: Path) -> None:
    folder, files = scaffold.new("zork", str(tmp_path))
    assert sorted(files) == sorted(str(one.relative_to(folder)) for one in Path(folder).rglob("*") if one.is_file())
    assert "@name@" not in "".join((Path(folder) / one).read_text() for one in files)
    (Path(folder) / "README.md").write_text("mine")
    with pytest.raises(UsageError, match="is there already: nothing is overwritten"):
        scaffold.new("zork", str(tmp_path))
    assert (Path(folder) / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["", "Zork", "zo-rk", "../x", "1zork", "a" * 33, "zork\n", "vgem", "sim", "pci", "drm", "id"]
)
def test_names_that_cannot_be(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        scaffold.new(name, str(tmp_path))
    assert "\n" not in caught.value.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("title", ['"', "a\\b", "{x}", "\x1b[31m"])
def test_titles_that_cannot_be(title: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be a title"):
        scaffold.new("zork", str(tmp_path), title)


def test_new_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        scaffold.new("zork", str(tmp_path / "file"))
    assert shelf.SCHEMA


@pytest.mark.slow
def test_bringup_is_the_whole_acceptance(site: Path, tmp_path: Path) -> None:
    """What it lacks (kernels, capability records) is not run and said so; nothing of what it has is found wrong."""
    report = tmp_path / "report.html"
    words = ("bringup", "--device", "zork:0", "--level", "1", "--state", str(tmp_path), "--html", str(report))
    found = run(site, *words)
    assert (found["verdict"], found["findings"]) == ("passed (simulated)", [])
    passed = {one["name"] for one in found["steps"] if one["result"] == "pass"}
    assert passed >= {"probe", "ops", "semantics", "bench"}
    assert "Zork Z1" in report.read_text(encoding="utf-8")
