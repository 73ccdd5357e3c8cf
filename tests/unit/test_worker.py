"""A fresh interpreter that talks to us: messages both ways, and every way to end."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from accelctl.hal.worker import Gone, Wire, Worker
from tests.helpers import ROOT, environment
from tests.processkit import open_files

_MODULE = "tests.unit.test_worker"


def main(wire: Wire, arguments: list[str]) -> None:
    """The worker's side."""
    what = arguments[0]
    if what == "echo":
        while True:
            wire.send(wire.receive())
    if what == "prints":
        print("noise on standard output")
        wire.send("said")
        raise SystemExit(4)
    if what == "raises":
        raise ValueError("why it ended")
    if what == "environ":
        wire.send(os.environ.get("MARK"))
    if what == "ends":
        return
    wire.receive()


def test_messages_of_any_size_go_both_ways_and_nothing_stays_open() -> None:
    before = open_files()
    worker = Worker(_MODULE, ["echo"])
    for message in ("", [1, None, {"a": "line\nbreak"}], "x" * 300_000):
        worker.tell(message)
        assert worker.hear(30.0) == message
    assert worker.hear(0.0) is None
    worker.end()
    worker.end()
    assert open_files() == before


ENDINGS = {
    "raises": "exit status 1: ValueError: why it ended",
    "prints": "exit status 4",
    "ends": "exit status 0",
}


@pytest.mark.parametrize("what", list(ENDINGS))
def test_how_it_ended_is_told(what: str) -> None:
    worker = Worker(_MODULE, [what])
    if what == "prints":
        assert worker.hear(30.0) == "said"
    with pytest.raises(Gone, match=ENDINGS[what]):
        worker.hear(30.0)


def test_what_it_prints_is_nobodys(capfd: Any) -> None:
    worker = Worker(_MODULE, ["prints"])
    assert worker.hear(30.0) == "said"
    assert worker.wait(30.0) == 4
    worker.end()
    assert capfd.readouterr() == ("", "")


def test_one_that_does_not_answer_is_killed() -> None:
    worker = Worker(_MODULE, ["waits"])
    assert worker.hear(0.05) is None
    assert worker.wait(0.05) is None
    worker.end()
    assert not os.path.exists(f"/proc/{worker.pid}")


def test_its_environment_is_ours_and_more() -> None:
    worker = Worker(_MODULE, ["environ"], {"MARK": "mine"})
    assert worker.hear(30.0) == "mine"
    worker.end()


PARENT = f"""
import os
from accelctl.hal.worker import Worker
worker = Worker({_MODULE!r}, ["waits"])
print(worker.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_it_ends_with_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    pid = int(done.stdout)
    for _ in range(600):
        try:
            state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        os.sched_yield()
        subprocess.run(["true"], check=True)
    raise AssertionError("the worker outlived its parent")
