"""`accelctl bringup` as people type it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from accelctl.abi import compute
from accelctl.hal.root import open_root
from accelctl.stress import targets
from tests.helpers import loaded_modules, run_cli


def quiet(tmp_path: Path) -> dict[str, str | None]:
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_DATA_HOME": str(tmp_path / "data")}


def test_the_whole_acceptance_of_the_simulated_chip(tmp_path: Path) -> None:
    page, xml = tmp_path / "report.html", tmp_path / "report.xml"
    options = ("--device", "sim:0", "--level", "1", "--json", "--html", str(page), "--junit", str(xml))
    done = run_cli("bringup", *options, env=quiet(tmp_path), code=0)
    found = json.loads(done.stdout)
    assert (found["verdict"], found["simulated"], found["exit_code"]) == ("passed (simulated)", True, 0)
    results = {one["name"]: one["result"] for one in found["steps"]}
    skipped = {"expected", "capabilities"}
    assert {name for name, result in results.items() if result == "skip"} == skipped
    assert {name for name, result in results.items() if result == "pass"} == set(results) - skipped
    assert [one for one in found["findings"] if one["level"] in ("warn", "error")] == []
    text = page.read_text(encoding="utf-8")
    assert "passed (simulated)" in text
    assert "Nothing real was tested" in text
    assert not any(word in text for word in ("<script", "http://", "https://"))
    assert ElementTree.parse(xml).getroot().attrib["failures"] == "0"
    assert "step 1 of 7: probe" in done.stderr
    again = run_cli("bringup", "--device", "sim:0", "--resume", env=quiet(tmp_path), code=0)
    assert again.stdout.count("kept from before") == 4
    assert again.stdout.splitlines()[-1].startswith(f"report: {tmp_path}/state/accelctl/bringup/sim-0-1/bringup-")
    assert Path(again.stdout.splitlines()[-1].removeprefix("report: ")).is_file()


def test_without_an_accelerator(tmp_path: Path) -> None:
    kinds = {one.device.kind for one in targets.find(open_root("/"), targets.Allowed()).candidates}
    if kinds & {"physical", "vf", "partition"} or any(one.device.accelerator for one in compute.everything()[0]):
        pytest.skip("this machine has an accelerator")
    done = run_cli("bringup", env=quiet(tmp_path), code=3)
    assert done.stdout == ""
    assert "looked at PCI" in done.stderr
    assert done.stderr.count("\n") == 2
    assert not (tmp_path / "state" / "accelctl" / "bringup" / "machine-1" / "state.json").exists()


WRONG = [
    (("--level", "4"), "--level 4"),
    (("--level", "x"), "--level"),
    (("--time", "soon"), "--time"),
    (("--device", "xyz"), "xyz"),
    (("--device", "sim:0", "--sim", "what=1"), "--sim what"),
    (("--device", "sim:0", "--sim", "what"), "--sim"),
    (("--sim", "leak=object:1"), "--sim goes with"),
    (("--disruptive",), "--level 3"),
    (("--json", "--nagios"), "exclude each other"),
    (("--json", "--junit", "-"), "exclude each other"),
    (("--json", "--html", "-"), "exclude each other"),
    (("--junit", "-", "--html", "-"), "exclude each other"),
    (("--html", "/tmp/../tmp/x", "--junit", "/tmp/x"), "are one file"),
    (("--device", "sim:0", "--html", "/proc/none/x"), "/proc/none/x"),
    (("--device", "sim:0", "--junit", "/proc/none/x"), "/proc/none/x"),
    (("--device", "sim:0", "--state", "/proc/none"), "/proc/none"),
    (("--device", "sim:0", "--expect", "/etc/passwd"), "/etc/passwd"),
    (("--device", "sim:0", "--baseline", "/etc/passwd"), "/etc/passwd"),
    (("--device", "sim:0", "--caps", "/etc/passwd"), "/etc/passwd"),
]


@pytest.mark.parametrize(("options", "word"), WRONG, ids=[" ".join(options) for options, _ in WRONG])
def test_mistakes_are_one_line(options: tuple[str, ...], word: str, tmp_path: Path) -> None:
    done = run_cli("bringup", *options, env=quiet(tmp_path), code=2)
    assert done.stdout == ""
    assert word in done.stderr
    assert done.stderr.count("\n") <= 2
    assert "Traceback" not in done.stderr


def test_the_plan_runs_nothing(tmp_path: Path) -> None:
    done = run_cli("bringup", "--device", "sim:0", "--plan", "--json", "--level", "3", env=quiet(tmp_path), code=0)
    found = json.loads(done.stdout)
    assert found["schema"] == "accelctl.bringup-plan/1"
    assert [one["step"] for one in found["steps"] if not one["skip"]] == [
        "probe",
        "lifecycles",
        "ops",
        "semantics",
        "bench",
    ]
    assert not (tmp_path / "state").exists()


def test_nothing_heavy_in_the_process_that_keeps_the_time(tmp_path: Path) -> None:
    options = ("bringup", "--device", "sim:0", "--time", "0.01", "--state", str(tmp_path / "state"))
    loaded = loaded_modules(*options, env=quiet(tmp_path))
    assert "accelctl.accept.bringup.run" in loaded
    assert {"grpc", "numpy", "pyopencl", "torch", "textual"} & loaded == set()


def test_nagios_has_its_own_status(tmp_path: Path) -> None:
    done = run_cli("bringup", "--device", "sim:0", "--time", "0.01", "--nagios", env=quiet(tmp_path), code=3)
    assert done.stdout.count("\n") == 1
    assert "UNKNOWN" in done.stdout
    assert "(simulated)" in done.stdout
