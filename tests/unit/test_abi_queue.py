"""Fence points: the state machine, under threads, and the suite that every chip's rings pass."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.conformance import check_queue
from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import Env, Session, Target
from accelctl.abi.manifest import Manifest
from accelctl.abi.queue import BUSY, CLOSED, FULL, IDLE, LOST, QueueClosed, QueueFull, Timeline
from accelctl.abi.testbench import Check
from accelctl.errors import DeviceUnusable, UsageError
from accelctl.hal.devfile import DevFile


def test_the_states_of_a_ring() -> None:
    line = Timeline(2)
    assert (line.state, line.passed(), line.wait(0, 0)) == (IDLE, 0, True)
    assert (line.take(), line.state) == (1, BUSY)
    assert (line.take(), line.state) == (2, FULL)
    with pytest.raises(QueueFull, match="2 works are in flight"):
        line.take()
    line.advance(1)
    assert (line.state, line.wait(1, 0), line.wait(2, 0)) == (BUSY, True, False)
    line.advance(2)
    assert line.state == IDLE
    assert line.take() == 3
    line.lose("it fell off the bus")
    line.lose("and again")
    assert line.state == LOST
    for call in (line.take, lambda: line.wait(3, 1.0)):
        with pytest.raises(DeviceUnusable, match="the ring is lost: it fell off the bus"):
            call()
    assert line.wait(2, 0)  # passed before that
    line.close()
    line.close()
    assert line.state == CLOSED
    for call in (line.take, lambda: line.wait(3, 1.0)):
        with pytest.raises(QueueClosed):
            call()


def test_what_nobody_can_mean() -> None:
    with pytest.raises(ValueError, match="depth 0"):
        Timeline(0)
    line = Timeline(4)
    line.take()
    for point in (-1, 2):
        with pytest.raises(ValueError, match=f"point {point} was never submitted"):
            line.wait(point, 0)
    line.advance(1)
    for point in (0, 2):
        with pytest.raises(ValueError, match=f"point {point} passed, of 1..1"):
            line.advance(point)


@pytest.mark.parametrize("end", ["advance", "lose", "close"])
def test_whoever_waits_is_woken(end: str) -> None:
    line = Timeline(1)
    line.take()
    call: Callable[[], None] = {
        "advance": lambda: line.advance(1),
        "lose": lambda: line.lose("x"),
        "close": line.close,
    }[end]
    timer = threading.Timer(0.05, call)
    start = time.monotonic()
    timer.start()
    if end == "advance":
        assert line.wait(1, 30)
    else:
        with pytest.raises((QueueClosed, DeviceUnusable)):
            line.wait(1, 30)
    timer.join()
    assert time.monotonic() - start < 10


def test_waiting_ends_in_time() -> None:
    line = Timeline(1)
    line.take()
    start = time.monotonic()
    assert line.wait(1, 0.05) is False
    assert 0.05 <= time.monotonic() - start < 5


@given(st.integers(1, 5), st.lists(st.one_of(st.just("take"), st.integers(0, 40)), max_size=60))
def test_points_against_a_model(depth: int, steps: list[Any]) -> None:
    line, submitted, passed = Timeline(depth), 0, 0
    for step in steps:
        if step == "take":
            if submitted - passed < depth:
                submitted += 1
                assert line.take() == submitted
            else:
                with pytest.raises(QueueFull):
                    line.take()
        elif passed <= step <= submitted:
            line.advance(step)
            passed = step
        else:
            with pytest.raises(ValueError, match="passed, of"):
                line.advance(step)
        assert line.passed() == passed
        assert line.state == (IDLE if submitted == passed else FULL if submitted - passed == depth else BUSY)


# -- the suite --


class ToyRing:
    """One thread takes the works in order. Flaws are words."""

    def __init__(self, session: ToySession, depth: int, flaws: set[str]) -> None:
        self.line, self.depth, self.flaws = Timeline(depth), depth, flaws
        self.works: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        session.rings.append(self)

    def _run(self) -> None:
        while point := self.works.get():
            time.sleep(0.001)
            if "hangs" not in self.flaws or point < 3:
                self.line.advance(point)

    @property
    def state(self) -> str:
        return self.line.state

    def submit(self, work: bytes) -> int:
        point = self.line.take()
        self.works.put(point)
        return point * 2 if "skips" in self.flaws else point

    def passed(self) -> int:
        return self.line.passed()

    def wait(self, point: int, timeout_s: float) -> bool:
        if "believes" in self.flaws and point > 0:
            return True
        if "waits" in self.flaws:
            point = min(max(point, 0), self.line._submitted)
        return self.line.wait(point, min(timeout_s, 0.2))

    def close(self) -> None:
        if "stays" in self.flaws:
            return
        self.line.close()
        self.works.put(0)
        self.thread.join()


class ToySession(Session):
    def __init__(self, target: Target, env: Env, flaws: set[str]) -> None:
        super().__init__(target, (), (DevFile(target.node, syscalls=env.syscalls),))
        self.rings: list[ToyRing] = []
        self.flaws = flaws

    def close(self) -> None:
        for ring in self.rings if "forgets" not in self.flaws else ():
            ring.close()
        super().close()


class ToyChip:
    def __init__(self, *flaws: str) -> None:
        self.flaws = flaws

    def nop(self) -> bytes:
        return b""

    def open(self, session: Any, depth: Any) -> Any:
        if isinstance(session, Target):
            return ToySession(session, depth, set(self.flaws))
        if depth < 1 and "depthless" not in self.flaws:
            raise UsageError(f"a ring of depth {depth}")
        return ToyRing(session, max(1, depth), set(self.flaws))


def rings(*flaws: str) -> dict[str, Check]:
    chip = ToyChip(*flaws)
    manifest = Manifest(name="toy", title="Toy", features=frozenset({"memory", "queue"}))
    target = Target("toy:0", "toy", "toy", "/dev/null")
    return {check.name: check for check in check_queue(Chip(manifest, chip, chip, None, "test"), target, Env())}


def test_right_rings_pass() -> None:
    checks = rings()
    assert {name: check for name, check in checks.items() if check.result != "pass"} == {}
    assert len(checks) == 7


@pytest.mark.parametrize(
    ("flaw", "check", "detail"),
    [
        ("skips", "ring: points", "work 1 has point 2: points rise by one from 1"),
        ("hangs", "ring: points", "point 3 is not passed after 5 s; the last one passed is 2"),
        ("believes", "ring: points", "wait() says that point 1 is passed, passed() says 0"),
        ("waits", "ring: unknown point", "wait() takes point 2, which nobody has"),
        ("stays", "ring: closed", "after close() the ring is idle"),
        ("forgets", "ring: left open", "its session is closed, and the ring is "),
        ("depthless", "ring: depth", "a ring of depth 0 is opened"),
    ],
)
def test_a_flaw_is_named(flaw: str, check: str, detail: str) -> None:
    found = rings(flaw)[check]
    assert found.result == "fail", found
    assert found.detail.startswith(detail)
