"""Dashboards for tests: a state with ticks of tests.snapkit in it, and a feed that gives them."""

from __future__ import annotations

import time

from accelctl.model.snapshot import Snapshot
from accelctl.telemetry.history import History
from accelctl.tui.signs import signs_for
from accelctl.tui.state import State
from tests import snapkit


class Ticks:
    """A Feed of Snapshots that are there already."""

    def __init__(self, snapshots: list[Snapshot], title: str = "this machine", seekable: bool = False) -> None:
        self.snapshots, self.title, self.seekable = snapshots, title, seekable
        self.next = 0
        self.closed = 0

    def poll(self, timeout_s: float) -> Snapshot | None:
        if self.next >= len(self.snapshots):
            time.sleep(min(timeout_s, 0.02))
            return None
        self.next += 1
        return self.snapshots[self.next - 1]

    def seek(self, seconds: float) -> Snapshot | None:
        self.next = min(max(int(seconds) + 1, 1), len(self.snapshots))
        return self.snapshots[self.next - 1]

    def close(self) -> None:
        self.closed += 1


def state_of(
    ticks: int = 60,
    devices: int = 4,
    processes: int = 8,
    *,
    unicode: bool = True,
    simulated: bool = True,
    leak_pid: int = 1002,
) -> State:
    state = State(History(), signs_for(unicode), "this machine")
    for one in snapkit.recording(ticks, leak_pid, devices=devices, processes=processes, simulated=simulated):
        state.take(one)
    return state
