"""`accelctl top` as a program: what it refuses, what it prints once, pictures, recordings that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from accelctl.telemetry.record import Recorder
from tests import snapkit
from tests.helpers import loaded_modules, run_cli


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("entry") / "one.jsonl"
    recorder = Recorder(str(file), str)
    for snapshot in snapkit.recording(12, devices=2, processes=3, simulated=True):
        recorder.add(snapshot)
    recorder.close()
    return str(file)


def test_once_prints_text(recording: str) -> None:
    done = run_cli("top", "--replay", recording, "--speed", "100", "--once", code=0)
    assert "0000:03:00.0" in done.stdout
    assert "simulated" in done.stdout
    assert done.stderr == ""


def test_once_as_json_has_sources_and_absences(recording: str) -> None:
    done = run_cli("top", "--replay", recording, "--speed", "100", "--json", code=0)
    found = json.loads(done.stdout)
    assert found["schema"] == "accelctl.snapshot/1"
    assert [device["id"] for device in found["devices"]] == ["0000:03:00.0", "0000:04:00.0", "sim:0"]
    assert found["sources"]["devices/0000:03:00.0/power_mw"].endswith("power1_input")
    assert found["absences"]["devices/0000:04:00.0/power_mw"]


def test_once_loads_no_textual(recording: str) -> None:
    names = loaded_modules("top", "--replay", recording, "--speed", "100", "--once")
    assert {"textual", "asyncio", "grpc", "numpy"} & names == set()


def test_a_screenshot_needs_no_terminal(recording: str, tmp_path: Path) -> None:
    file = tmp_path / "top.svg"
    run_cli("top", "--replay", recording, "--speed", "100", "--screen", "memory", "--screenshot", str(file), code=0)
    text = file.read_text()
    ElementTree.fromstring(text)
    assert "[2 Memory]" in text
    assert "sim:0 session 7" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--screen", "nonsense", "--once"), "--screen nonsense: the screens are overview, memory, queues, spaces"),
        (("--size", "huge", "--screenshot", "-"), "--size huge: columns and lines"),
        (("--size", "20x5", "--screenshot", "-"), "--size 20x5"),
        (("--size", "120x4²", "--screenshot", "-"), "--size 120x4²: columns and lines"),
        (("--screenshot", "/nonexistent/top.svg"), "/nonexistent/top.svg: cannot be written"),
        (("--demo", "--device", "vendor=amd", "--once"), "--demo and --device do not go together"),
        (("--replay", "x", "--device", "nonsense===", "--once"), "--replay and --device do not go together"),
        (("--once", "--screenshot", "-"), "--screenshot and --once do not go together"),
        (("--period", "0", "--once"), "--period"),
        (("--device", "nonsense", "--once"), "--device"),
    ],
)
def test_wrong_options_are_one_line(words: tuple[str, ...], said: str) -> None:
    done = run_cli("top", *words, code=2)
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 2


BAD: dict[str, Callable[[str], str]] = {
    "truncated": lambda text: text[: len(text) // 2].rpartition("\n")[0][:-40] + "\n",
    "foreign": lambda text: "not a recording\n",
    "empty": lambda text: "",
    "unknown schema": lambda text: text.replace("accelctl.recording/1", "accelctl.recording/99"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_what_is_no_recording_is_one_line(name: str, recording: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(BAD[name](Path(recording).read_text()))
    done = run_cli("top", "--replay", str(file), "--once", code=2)
    assert str(file) in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_recording_that_is_not_there() -> None:
    done = run_cli("top", "--replay", "/nonexistent.jsonl", "--once", code=2)
    assert "cannot be read (no such file or directory)" in done.stderr


def test_recording_once_can_be_replayed(tmp_path: Path, recording: str) -> None:
    copy = str(tmp_path / "copy.jsonl")
    run_cli("top", "--replay", recording, "--speed", "100", "--record", copy, "--once", code=0)
    done = run_cli("top", "--replay", copy, "--json", code=0)
    assert json.loads(done.stdout)["devices"][0]["id"] == "0000:03:00.0"
