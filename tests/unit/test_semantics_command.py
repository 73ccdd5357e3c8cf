"""`accelctl smoke --semantics` and `--align` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from accelctl.abi import compute
from accelctl.cli import main
from accelctl.smoke import beside


def _said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["smoke", *words])
    out, err = capsys.readouterr()
    return int(status or 0), out, err


def test_some_intents_on_the_simulated_chip(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = tmp_path / "junit.xml"
    words = ("--semantics", "--device", "sim:0", "--intent", "malloc", "--intent", "ipc_memory", "--junit", str(place))
    status, out, _ = _said(capsys, *words)
    assert status == 0
    assert "sim:0: passed (simulated): 3 of 6 assertions passed, 3 for what the device does not have" in out
    assert "SIMULATED" in out
    suite = ElementTree.parse(place).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("skipped")) == ("6", "3")


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = _said(capsys, "--semantics", "--device", "sim:0", "--intent", "free_null", "--json")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert (document["schema"], document["verdict"]) == ("accelctl.semantics/1", "passed (simulated)")
    assert [one["id"] for one in document["assertions"]] == ["free_null/1"]


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("--semantics", "--device", "sim:7"), 3, "sim:7 is not here"),
        (("--semantics", "--device", "nothing:0"), 3, "no chip is called nothing"),
        (("--semantics", "--device", "pci:0000:01:00.0"), 2, "named by chip"),
        (("--semantics", "--device", "sim:0", "--device", "opencl:0"), 2, "one device at a time"),
        (("--semantics", "--device", "sim:0", "--align", "sim:0"), 2, "two runs"),
        (("--semantics", "--device", "sim:0", "--intent", "rubbish"), 2, "no intent 'rubbish'"),
        (("--intent", "malloc", "--device", "sim:0"), 2, "--intent belongs to --semantics"),
        (("--align", "sim:0", "--device", "sim:0"), 2, "agrees with itself"),
        (("--semantics", "--op", "relu"), 2, "--op does not go with --semantics"),
        (("--semantics", "--target", "unix:/x"), 2, "--target does not go with --semantics"),
        (("--semantics", "--no-model"), 2, "--no-model does not go with --semantics"),
        (("--semantics", "--seed", "3"), 2, "--seed does not go with --semantics"),
        (("--semantics", "--list-cases"), 2, "--list-cases does not go with --semantics"),
        (("--align", "sim:0", "--trace", "x"), 2, "--trace does not go with --align"),
        (("--align", "vgem:0", "--device", "sim:0"), 3, "chip vgem has no kernels"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], status: int, says: str, capsys: Any) -> None:
    found, out, err = _said(capsys, *words)
    assert (found, out) == (status, "")
    assert says in err
    assert "Traceback" not in err


def test_nothing_falls_back_to_the_simulated_chip(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(compute, "everything", lambda: (_only_sim(), []))
    for words in (("--semantics",), ("--align", "sim:0")):
        status, out, err = _said(capsys, *words)
        assert (status, out) == (3, "")
        assert "no accelerator that computes is here" in err


def _only_sim() -> list[Any]:
    return [compute.named("sim:0")]


def test_the_first_accelerator_is_taken(monkeypatch: Any) -> None:
    one = compute.named("sim:0").device
    real = one._replace(target=one.target._replace(id="x:0", chip="x", made_up=False), accelerator=True)
    monkeypatch.setattr(compute, "everything", lambda: ([compute.Found(real, "x")], []))
    assert beside.device_for(beside.Wanted(semantics=True)) == "x:0"
