"""The filter of the dashboards leaves of each process what it holds of the devices that are wanted."""

from __future__ import annotations

import pytest

from accelctl.model.snapshot import DeviceLevel, PoolLevel, ProcessLevel, QueueLevel, Snapshot, SpaceLevel
from accelctl.tui.wanted import parse


def test_memory_on_other_devices_is_not_shown() -> None:
    both = ProcessLevel(pid=1, started=1, devices=("a", "b"), memory=(("a", "vram", 1), ("b", "vram", 40)))
    devices = (DeviceLevel(id="a", driver="xe"), DeviceLevel(id="b"))
    whole = Snapshot(taken_ns=1, monotonic_ns=1, devices=devices, processes=(both,))
    (one,) = parse("driver=xe").of(whole).processes
    assert (one.devices, one.memory) == (("a",), (("a", "vram", 1),))
    assert parse("pid=1").of(whole).processes == (both,)


def of_service(number: int, process: str, device: str = "sim:0") -> Snapshot:
    """The rows of one session."""
    name, owner = f"{device} session {number}", f"session {number}"
    return Snapshot(
        taken_ns=1,
        pools=(PoolLevel(id=name, device=device, owner=owner, process=process),),
        queues=(QueueLevel(id=name, device=device, owner=owner, process=process),),
        spaces=(SpaceLevel(id=name, device=device, owner=owner, process=process),),
    )


def demonstration() -> Snapshot:
    """Two sessions of two processes, and one of a client that is on no Unix socket."""
    parts = [
        of_service(1, "pid 40 demo-leak"), of_service(2, "pid 41 demo-churn"), of_service(3, "the client says: pid 40"),
    ]  # fmt: skip
    return Snapshot(
        taken_ns=1,
        devices=(DeviceLevel(id="sim:0"), DeviceLevel(id="gpu")),
        pools=tuple(row for part in parts for row in part.pools),
        queues=tuple(row for part in parts for row in part.queues),
        spaces=tuple(row for part in parts for row in part.spaces),
        processes=(
            ProcessLevel(pid=40, started=1, devices=("sim:0",)), ProcessLevel(pid=41, started=1, devices=("sim:0",)),
            ProcessLevel(pid=4, started=1, devices=("gpu",)),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "pids", "sessions"),
    [
        ("pid=40", [40], [1]),
        ("session=1", [40], [1]),
        ("session=2", [41], [2]),
        ("session=3", [], [3]),
        ("session=1 pid=41", [40, 41], [1, 2]),
        ("pid=4", [4], []),
        ("pid=0", [], []),
    ],
)
def test_a_process_and_its_session_are_found_on_every_screen(text: str, pids: list[int], sessions: list[int]) -> None:
    seen = parse(text).of(demonstration())
    assert [one.pid for one in seen.processes] == pids
    owners = [f"session {number}" for number in sessions]
    assert [[row.owner for row in rows] for rows in (seen.pools, seen.queues, seen.spaces)] == [owners] * 3
    homes = {"sim:0": [pid for pid in pids if pid != 4] or sessions, "gpu": 4 in pids}
    assert [device.id for device in seen.devices] == [name for name, there in homes.items() if there]


def test_both_of_two_services_have_the_device_that_is_asked_for() -> None:
    devices = (DeviceLevel(id="sim:0@a"), DeviceLevel(id="sim:0@b"), DeviceLevel(id="sim:1@b"))
    seen = parse("sim:0").of(Snapshot(taken_ns=1, devices=devices))
    assert [one.id for one in seen.devices] == ["sim:0@a", "sim:0@b"]
