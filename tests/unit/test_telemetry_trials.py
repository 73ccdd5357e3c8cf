"""Trying again what hung: nobody is woken for it, nobody joins a child that cannot die, and nothing said is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelctl.abi.telemetry import Draft, Tick
from accelctl.hal import reader
from accelctl.model.snapshot import Snapshot
from accelctl.telemetry.quarantine import Quarantine
from accelctl.telemetry.sampler import Plan, Sampler
from accelctl.telemetry.source import Source
from tests.telemetrykit import LIMIT_S, Calls, Steady, nothing_left, texts, until

PATH = "sys/hangs"


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def sampler(*sources: Source) -> Sampler:
    return Sampler(Plan(sources), period_s=0.01, budget=0, deadline_s=0.2, quarantine=Quarantine(0.05, 0.1))


def hang(fifo: Path) -> None:
    """For ever: nobody writes."""
    os.close(os.open(fifo, os.O_RDONLY))


def retried(feed: Sampler, name: str, times: int) -> None:
    """Until it was set aside anew so many times."""
    seen = [0]

    def enough(one: Snapshot) -> bool:
        for level in one.health:
            if level.id == name and level.retry_ns > seen[-1] + 20_000_000:  # a first wait is of 50 ms
                seen.append(level.retry_ns)
        return len(seen) > times + 1

    until(feed, enough)


class Sleeping(Steady):
    """Tells that a device sleeps."""

    name = "power states"

    def sample(self, draft: Draft, tick: Tick) -> None:
        super().sample(draft, tick)
        draft.devices["dev:0"]["asleep"] = True


def test_a_trial_knows_who_sleeps(fifo: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"

    def work(tick: Tick) -> None:
        with told.open("a") as file:
            file.write(f"{os.getpid()} {sorted(tick.asleep)}\n")
        hang(fifo)

    feed = sampler(Sleeping(), Calls("sensors", work, PATH))
    try:
        retried(feed, "sensors", 2)
    finally:
        feed.close()
    lines = [line.partition(" ") for line in told.read_text().splitlines()]
    assert len({pid for pid, _, _ in lines}) > 1
    assert {asleep for _, _, asleep in lines} == {"['dev:0']"}


def test_where_a_child_cannot_die_no_other_follows_it(
    fifo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in state D, in which not even SIGKILL ends a process."""
    here, children = os.getpid(), tmp_path / "children"
    really_kill = os.kill

    def work(tick: Tick) -> None:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        with children.open("a") as file:
            file.write(f"{os.getpid()}\n")
        hang(fifo)

    def kill(pid: int, number: int) -> None:
        if os.getpid() != here:
            really_kill(pid, number)

    feed = sampler(Steady(), Calls("deaf", work, PATH))
    monkeypatch.setattr(os, "kill", kill)
    try:
        retried(feed, "deaf", 3)
        pids = [int(line) for line in children.read_text().split()]
        assert len(pids) == 1
        assert reader.hangs_yet(PATH)
        monkeypatch.undo()
        really_kill(pids[0], signal.SIGKILL)
        end = time.monotonic() + LIMIT_S
        while len(children.read_text().split()) == 1:  # it is tried again when that one is gone
            assert time.monotonic() < end
            feed.poll(0.01)
    finally:
        monkeypatch.undo()
        for line in children.read_text().split():
            if reader.hangs_yet(PATH):
                really_kill(int(line), signal.SIGKILL)
        feed.close()
    assert not reader.hangs_yet(PATH)


def test_a_trial_that_learns_of_other_devices_tells_it(fifo: Path, tmp_path: Path) -> None:
    class Once(Steady):
        name = "uevents"

        def sample(self, draft: Draft, tick: Tick) -> None:
            tick.enter(PATH)
            if PATH in tick.quarantine:
                return
            first, second = tmp_path / "first", tmp_path / "second"
            if not first.exists():
                first.touch()
                hang(fifo)
            draft.stale = not second.exists()
            second.touch()

    feed = sampler(Steady(), Once())
    try:
        until(feed, lambda one: f"{PATH} is back" in texts([one]))
        assert feed.stale
    finally:
        feed.close()
