"""Several feeds as one: rows are put together by their ids, and a part that says nothing is said to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelctl.model.snapshot import DeviceLevel, Gone, ProcessLevel, Snapshot, SourceLevel
from accelctl.telemetry import merge
from accelctl.telemetry.merge import MergedFeed, merged
from tests import snapkit
from tests.feedkit import Listed


def _health(one: Snapshot) -> SourceLevel:
    (row,) = one.health
    return row


def test_merging_puts_rows_together_by_id() -> None:
    live = snapkit.snapshot(devices=2, processes=2)
    shared = live.processes[0]
    other = Snapshot(
        taken_ns=9,
        devices=(
            snapkit.snapshot(simulated=True, devices=0, processes=0).devices[0],
            live.devices[1].__class__(id=live.devices[1].id, clients=3, name="ignored", memory_used_bytes=5),
        ),
        processes=(ProcessLevel(pid=shared.pid, started=shared.started, memory=(("sim:0", "session 1", 7),)),),
        health=(SourceLevel(id="service x"),),
    )
    found = merged([live, other])
    assert [one.id for one in found.devices] == [live.devices[0].id, live.devices[1].id, "sim:0"]
    assert (found.devices[1].clients, found.devices[1].name) == (3, live.devices[1].name)
    assert found.devices[1].memory_used_bytes == 5
    assert found.processes[0].memory == (*shared.memory, ("sim:0", "session 1", 7))
    assert found.processes[0].name == shared.name
    assert found.taken_ns == live.taken_ns
    assert found.health == (*live.health, *other.health)


def test_a_merged_feed_has_the_latest_of_each_and_every_event_once() -> None:
    first = Listed([snapkit.snapshot(tick=tick) for tick in (4, 5, 6)])
    second = Listed([snapkit.snapshot(tick=tick, devices=0, processes=0, simulated=True) for tick in (3, 4, 5)])
    feed = MergedFeed([first, second])
    found = [one for _ in range(3) if (one := feed.poll(0)) is not None]
    assert [one.taken_ns for one in found] == [snapkit.snapshot(tick=tick).taken_ns for tick in (4, 5, 6)]
    assert [one.pools[-1].misses for one in found] == [16 + 5] * 3
    assert [len(one.events) for one in found] == [0, 1, 0]
    feed.close()
    assert (first.closed, second.closed) == (1, 1)


def test_a_part_that_has_gone_silent_is_left_out_and_said_to_be() -> None:
    ticks = [replace(snapkit.snapshot(tick=tick), health=()) for tick in range(10)]
    service = replace(snapkit.snapshot(devices=0, processes=0, simulated=True), health=(SourceLevel(id="service x"),))
    feed = MergedFeed([Listed(ticks), Listed([service])])
    found = [one for _ in range(10) if (one := feed.poll(0)) is not None]
    assert ["sim:0" in {device.id for device in one.devices} for one in found] == [True] * 6 + [False] * 4
    assert [_health(one).state for one in found] == ["ok"] * 6 + ["absent"] * 4
    assert _health(found[-1]).since_ns == service.taken_ns


def test_a_part_that_has_said_nothing_yet_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = [replace(snapkit.snapshot(tick=tick), health=()) for tick in range(3)]
    late = Listed([])
    feed = MergedFeed([Listed(ticks), late])
    found = [feed.poll(0)]
    monkeypatch.setattr(merge, "START_S", 0.0)
    found.append(feed.poll(0))
    late.left = [Snapshot(taken_ns=1, monotonic_ns=ticks[2].monotonic_ns, health=(SourceLevel(id="test"),))]
    found.append(feed.poll(0))
    assert [(row.id, row.state) for one in found if one is not None for row in one.health] == [
        ("test", "starting"), ("test", "absent"), ("test", "ok"),
    ]  # fmt: skip


def test_sources_of_the_slower_part_are_told_once() -> None:
    ticks = [snapkit.snapshot(tick=tick) for tick in range(3)]
    slow = snapkit.snapshot(devices=0, processes=0, simulated=True)
    feed = MergedFeed([Listed(ticks), Listed([slow])])
    found = [one for _ in range(3) if (one := feed.poll(0)) is not None]
    assert set(found[0].sources) == set(ticks[0].sources) | set(slow.sources)
    assert [one.sources for one in found[1:]] == [{}, {}]


def test_a_change_in_one_part_tells_the_sources_of_all() -> None:
    """Whoever reads takes what comes for all there is."""
    quiet = Snapshot(taken_ns=1, monotonic_ns=1)
    live = replace(
        quiet, sources={"devices/gpu/power_state": "sys/x"}, absences={"devices/gpu/power_mw": Gone("asleep")}
    )
    service = replace(quiet, sources={"devices/sim:0/clients": "service"})
    fewer = replace(quiet, sources={"devices/gpu/clients": "proc"})
    late = Listed([])
    feed = MergedFeed([Listed([live, quiet, quiet, fewer]), late])
    told = [feed.poll(0)]
    late.left = [service]
    told += [feed.poll(0) for _ in range(3)]
    both = {**live.sources, **service.sources}
    assert [one and (one.sources, one.absences) for one in told] == [
        (live.sources, live.absences), (both, live.absences), ({}, {}), ({**fewer.sources, **service.sources}, {}),
    ]  # fmt: skip


def test_what_two_services_hold_of_one_device_is_added_up() -> None:
    rows = [
        DeviceLevel(id="gpu", clients=number, memory_attributed_bytes=number * 5, busy_ratio=number / 10)
        for number in (1, 2)
    ]
    services = [Snapshot(taken_ns=1, devices=(row,)) for row in rows]
    (one,) = merged([Snapshot(taken_ns=1), *services]).devices
    assert (one.clients, one.memory_attributed_bytes, one.busy_ratio) == (3, 15, 0.2)
    machine = Snapshot(taken_ns=1, devices=(DeviceLevel(id="gpu", clients=7, memory_attributed_bytes=99),))
    (one,) = merged([machine, *services]).devices
    assert (one.clients, one.memory_attributed_bytes) == (7, 99)
