"""What a run has done is kept: whole, by one process at a time, and only for the same question."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi import capabilityfile
from accelctl.accept.bringup import state as state_module
from accelctl.accept.bringup.state import FILE, State, default_folder, digest, key, packed, unpacked
from accelctl.accept.bringup.step import Order
from accelctl.errors import UsageError
from accelctl.model.bringupreport import Bar, Chart, Fact, StepResult
from accelctl.model.stressreport import PASS
from tests.bringupkit import BAD, SIM
from tests.helpers import environment

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
FACTS = st.builds(
    Fact,
    st.text(),
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | NUMBERS | st.text(),
    st.text(),
    st.text(),
)
BARS = st.builds(Bar, st.text(), NUMBERS, st.text(), st.none() | NUMBERS, st.booleans())
STEPS = st.builds(
    StepResult,
    name=st.text(),
    device=st.text(),
    result=st.sampled_from(["pass", "fail", "skip", "inconclusive"]),
    reason=st.text(),
    findings=st.just((BAD,)) | st.just(()),
    facts=st.lists(FACTS, max_size=3).map(tuple),
    charts=st.lists(st.builds(Chart, st.text(), st.lists(BARS, max_size=2).map(tuple), st.text()), max_size=2).map(
        tuple
    ),
    seconds=NUMBERS,
)
ORDER = Order(device=("sim:0",))
STEP = StepResult("ops", "sim:0", PASS, "600 cases right", (BAD,), (Fact("a", 1, "b"),))


@given(STEPS)
def test_a_step_comes_back_as_it_was(step: StepResult) -> None:
    assert unpacked(json.loads(json.dumps(packed(step)))) == step


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda more: st.lists(more) | st.dictionaries(st.text(), more))
)
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        unpacked(value)


def test_resume_keeps_what_was_done(tmp_path: Path) -> None:
    head = key(ORDER, (SIM,))
    with State(str(tmp_path)) as state:
        state.begin(dict(head))
        assert state.seen("this machine") == ""
        state.add(STEP)
    with State(str(tmp_path)) as state:
        assert state.resume(dict(head)) == ""
        assert state.kept("ops", "sim:0") is None, "which machine is this?"
        assert state.seen("this machine") == ""
        assert state.kept("ops", "sim:0") == STEP
        assert state.kept("ops", "sim:1") is None
        state.begin(dict(head))
        assert state.kept("ops", "sim:0") is None


CHANGES = [
    ("options", replace(ORDER, level=2), (SIM,)),
    ("options", replace(ORDER, sim={"leak": "object:9"}), (SIM,)),
    ("devices", ORDER, (replace(SIM, proven="other"),)),
    ("expect", replace(ORDER, expect=__file__), (SIM,)),
]


@pytest.mark.parametrize(("what", "order", "found"), CHANGES)
def test_another_question_is_begun_anew(what: str, order: Order, found: Any, tmp_path: Path) -> None:
    with State(str(tmp_path)) as state:
        state.begin(key(ORDER, (SIM,)))
        state.seen("this machine")
        state.add(STEP)
    with State(str(tmp_path)) as state:
        assert what in state.resume(key(order, found))
        state.seen("this machine")
        assert state.kept("ops", "sim:0") is None


def test_the_users_own_records_are_part_of_the_question(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    found = []
    for text in ("", "one", "two"):
        if text:
            path = Path(capabilityfile.default_path())
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        found.append(key(ORDER, (SIM,))["caps"])
    assert len(set(found)) == 3


def test_a_restart_is_part_of_the_question(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = key(ORDER, (SIM,))
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(state_module, "BOOT_ID", str(tmp_path / "boot_id"))
    assert [name for name, value in key(ORDER, (SIM,)).items() if before[name] != value] == ["boot"]


def test_a_pipe_does_not_keep_the_key_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    digest(str(tmp_path / "pipe"))


def test_time_is_no_part_of_the_question() -> None:
    assert key(replace(ORDER, time_s=60.0), (SIM,)) == key(ORDER, (SIM,))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"schema": 1}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"schema": "accelctl.bringup-state/1", "head": {}, "steps": [{}]}',
    ],
)
def test_a_damaged_file_is_begun_anew(data: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(data)
    with State(str(tmp_path)) as state:
        assert "not what accelctl wrote" in state.resume(key(ORDER, (SIM,)))
        state.add(STEP)
        assert json.loads((tmp_path / FILE).read_text())["steps"]


def test_no_earlier_run(tmp_path: Path) -> None:
    with State(str(tmp_path / "new" / "folder")) as state:
        assert state.resume(key(ORDER, (SIM,))) == "there is no earlier run"


def test_two_at_once_are_refused_with_the_pid(tmp_path: Path) -> None:
    with State(str(tmp_path)):
        with pytest.raises(UsageError, match=f"process {os.getpid()} runs it") as caught:
            State(str(tmp_path))
        assert caught.value.exit_code == 2
    State(str(tmp_path)).close()


@pytest.mark.parametrize("place", ["/proc/accelctl", "/dev/null/x"])
def test_a_folder_that_cannot_be_made(place: str) -> None:
    with pytest.raises(UsageError, match="cannot be made"):
        State(place)


def test_the_default_folder_is_one_for_each_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_folder(ORDER) == "/state/accelctl/bringup/sim-0-1"
    assert default_folder(Order(level=2)) == "/state/accelctl/bringup/machine-2"
    assert "/" not in default_folder(Order(device=("../../x", "/etc"))).removeprefix("/state/accelctl/bringup/")
    assert ".." not in Path(default_folder(Order(device=("..",)))).parts


KILLED = """
import sys
from tests.bringupkit import Plain, carried_out, look, step, use
from accelctl.accept.bringup.step import passed
import time

def first(job):
    open(sys.argv[2], "a").write("first\\n")
    return passed("done")

def second(job):
    open(sys.argv[2], "a").write("second\\n")
    time.sleep(float(sys.argv[3]))
    return passed("done")

use(Plain, look(), step("lifecycles", first), step("ops", second, box_s=100.0))
report = carried_out(sys.argv[1], resume=True)
print(report.verdict, [one.kept for one in report.steps])
"""


def test_killed_between_steps_it_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", KILLED, str(tmp_path / "state"), str(log)]
    running = subprocess.Popen([*command, "100"], env=environment(), stdout=subprocess.PIPE)
    end = time.monotonic() + 60
    while not (log.exists() and "second" in log.read_text()):
        assert time.monotonic() < end
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    done = subprocess.run([*command, "0"], env=environment(), capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "passed (simulated) [False, True, False]\n"
    assert log.read_text().split() == ["first", "second", "second"]
