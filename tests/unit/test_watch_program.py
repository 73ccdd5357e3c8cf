"""The lines of `accelctl watch`, and the real program: signals, closed pipes, real events."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any

import pytest

from accelctl.probes.events import Event, Fault
from accelctl.render import events, term
from tests.eventkit import (
    BDF,
    CHIP,
    LOOP_ADD,
    LOOP_REMOVE,
    loop_devices,
    poke,
)
from tests.helpers import ROOT, environment, run_cli

# -- lines --

TIME = 1_700_000_000_123_456_789
LINE = Event(TIME, 5, "add", "0000:03:00.0", "drm", f"{BDF}/drm/card0", "/dev/dri/card0", "amdgpu", "kernel", 7)
FAULT = Event(
    TIME, 5, "fault", None, None, None, None, None, "kmsg", fault=Fault("NV-XID", "error", "bad\x1b[2J", "li\x07ne")
)  # fmt: skip
PLAIN = term.Term(False, None, None, False)
COLOR = term.Term(True, 80, "standard", True)


def test_the_text_of_an_event() -> None:
    assert events.line(LINE, PLAIN) == (
        "2023-11-14T22:13:20.123456Z add     0000:03:00.0 drm      /dev/dri/card0 driver=amdgpu"
    )
    detailed = LINE._replace(node=None, driver=None, action="change", detail={"HOTPLUG": "1"})
    assert events.line(detailed, PLAIN).endswith("change  0000:03:00.0 drm      card0 HOTPLUG=1")
    # What others wrote reaches no terminal as a control sequence.
    assert events.line(FAULT, PLAIN).split(maxsplit=3) == [
        "2023-11-14T22:13:20.123456Z",
        "fault",
        "-",
        "error NV-XID: bad?[2J [li?ne]",
    ]


def test_colour_only_adds_escape_codes() -> None:
    for one in (LINE, FAULT):
        coloured = events.line(one, COLOR)
        assert "\x1b[" in coloured
        assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == events.line(one, PLAIN)


def test_the_json_of_an_event() -> None:
    assert LINE.as_json() == {
        "schema": "accelctl.event/1",
        "time": "2023-11-14T22:13:20.123456Z",
        "monotonic_ns": 5,
        "action": "add",
        "device": "0000:03:00.0",
        "subsystem": "drm",
        "devpath": f"{BDF}/drm/card0",
        "node": "/dev/dri/card0",
        "driver": "amdgpu",
        "source": "kernel",
        "seqnum": 7,
        "detail": {},
        "fault": None,
    }
    fault = FAULT.as_json()
    assert list(fault) == list(LINE.as_json())
    assert fault["seqnum"] is None
    assert fault["fault"] == {"id": "NV-XID", "level": "error", "title": "bad\x1b[2J", "line": "li\x07ne"}


# -- the program --

#: The real command line with one more chip room: a test cannot plug in a GPU, but it can plug in a loop device.
PROGRAM = f"""
import sys
from accelctl.commands import watch
from accelctl.abi.rooms import parse_room
from pathlib import Path
text = {CHIP!r}.replace("dev/testacc*", "dev/null").replace("sys/class/testclass", "sys/class/block")
room = parse_room(text, Path("x"), "in-tree")
watch.all_rooms = lambda: (room,)
from accelctl.cli import main
sys.exit(main(["watch", *sys.argv[1:]]))
"""


class Program:
    """A running `accelctl watch`."""

    def __init__(self, *words: str, stdout: int | IO[bytes] = subprocess.PIPE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )
        assert self.process.stderr is not None
        self.first = self.process.stderr.readline()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, code: int) -> str:
        """Wait for the end; gives the rest of stderr."""
        try:
            _, said = self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        assert self.process.returncode == code, said
        return said


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(*words: str, **options: Any) -> Program:
        started.append(Program(*words, **options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


Start = Callable[..., Program]


def test_the_first_line_says_what_is_watched_and_by_what(program: Start) -> None:
    run = program("--duration", "0.2", "--no-kmsg")
    assert run.first.startswith(("accelctl: watching ", "accelctl: waiting: "))
    assert "netlink" in run.first or "polling" in run.first
    assert "--no-kmsg" in run.first
    assert run.end(0) == ""
    assert "polling sysfs every 2 s (as asked for)" in program("--poll", "--duration", "0.2").first


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_it_quietly(program: Start, number: signal.Signals, code: int) -> None:
    run = program()
    run.process.send_signal(number)
    assert run.end(code) == ""


def test_a_reader_that_goes_away_ends_it_at_once_and_quietly(program: Start) -> None:
    """Without waiting for an event to write: on a healthy machine the next one may come in a year."""
    read, write = os.pipe()
    run = program(stdout=write)
    os.close(write)
    os.close(read)
    assert run.end(141) == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--root", "/tmp"], "running machine"),
        (["--device", "colour=red"], "unknown key"),
        (["--device", "sim:0"], "sim:0"),
        (["--count", "0"], "--count"),
        (["--duration", "0"], "--duration"),
        (["--duration", "nan"], "--duration"),
        (["--duration", "inf"], "--duration"),
        (["--duration", "-1"], "--duration"),
        (["--duration", "soon"], "--duration"),
        (["extra"], "extra"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(words: list[str], says: str) -> None:
    done = run_cli("watch", *words, code=2)
    assert says in done.stderr.splitlines()[0]
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) <= 2


@pytest.fixture
def loop() -> Iterator[Callable[[int, int], None]]:
    with loop_devices() as act:
        yield act


@pytest.mark.parametrize(("options", "source"), [((), "kernel"), (("--poll",), "poll")], ids=["netlink", "polling"])
def test_real_devices_that_come_and_go(
    program: Start, loop: Callable[[int, int], None], options: tuple[str, ...], source: str
) -> None:
    number = 90 + len(options)
    run = program("--json", "--no-kmsg", "--device", f"id=block:loop{number}", "--count", "2", *options)
    loop(LOOP_ADD, number)
    first = json.loads(run.line())  # comes now, not when a buffer is full
    assert run.process.poll() is None
    loop(LOOP_REMOVE, number)
    second = json.loads(run.line())
    assert run.end(0) == ""
    assert [one["action"] for one in (first, second)] == ["add", "remove"]
    for one in (first, second):
        assert one["schema"] == "accelctl.event/1"
        assert one["device"] == f"block:loop{number}"
        assert one["node"] == f"/dev/loop{number}"
        assert one["devpath"] == f"/devices/virtual/block/loop{number}"
        assert one["source"] in (source, "udev")
    assert first["monotonic_ns"] < second["monotonic_ns"]


def test_a_real_change_event_as_text(program: Start) -> None:
    run = program("--count", "1", "--no-kmsg", "--device", "/dev/null")
    poke()
    assert run.line().split()[1:] == ["change", "mem:null", "mem", "/dev/null", "SYNTH_UUID=0"]
    assert run.end(0) == ""


def test_a_reader_that_goes_away_while_events_come(program: Start) -> None:
    run = program("--no-kmsg")
    assert run.process.stdout is not None
    run.process.stdout.close()
    run.process.stdout = None
    poke()
    assert run.end(141) == ""
