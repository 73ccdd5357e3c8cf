"""A running service as a source: every number is what the service really has; its going and coming is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.memory.va import GoodFit
from accelctl.model.snapshot import Gone, PoolLevel, ProcessLevel, Snapshot, SourceLevel, key
from accelctl.smoke.ownservice import OwnService
from accelctl.telemetry.merge import MergedFeed, merged
from accelctl.telemetry.service import owner
from accelctl.umd.client import Client, ClientSession, wait_until_ready
from accelctl.umd.telemetry import held_ranges, space_level
from tests import snapkit
from tests.feedkit import ProcessFeed
from tests.umdkit import Client as Direct
from tests.umdkit import HeldKernels, service_of

LIMIT = 64 << 20
PATIENCE_S = 30.0


def following(address: str) -> ProcessFeed:
    return ProcessFeed(f"ServiceFeed({address!r}, period_s=0.1, budget=0)")


@pytest.fixture(scope="module")
def own() -> Iterator[OwnService]:
    with OwnService("sim:0", ("--memory", "64M")) as made:
        yield made


@pytest.fixture
def feed(own: OwnService) -> Iterator[ProcessFeed]:
    made = following(own.address)
    yield made
    made.close()


@pytest.fixture
def session(own: OwnService) -> Iterator[ClientSession]:
    with Client(own.address, deadline_s=20) as client, client.session() as made:
        yield made


def wait_for(feed: ProcessFeed, right: Callable[[Snapshot], bool]) -> Snapshot:
    """The first Snapshot that is right; what came instead, where none is."""
    end, last = time.monotonic() + PATIENCE_S, None
    while time.monotonic() < end:
        found = feed.poll(0.5)
        last = found or last
        if found is not None and right(found):
            return found
    raise AssertionError(f"never came; the last one was {last}")


def pool_of(found: Snapshot) -> PoolLevel:
    (pool,) = found.pools
    return pool


# -- numbers --


def test_pools_are_what_the_client_took(feed: ProcessFeed, session: ClientSession) -> None:
    kept = [session.alloc((64, 64), "fp32") for _ in range(3)]
    session.free(session.alloc_bytes(100_000))
    found = wait_for(feed, lambda one: bool(one.pools) and pool_of(one).ops == (("client", 4, 1),))
    pool = pool_of(found)
    assert pool.misses == 4
    assert (pool.device, pool.owner, pool.capacity_bytes) == ("sim:0", owner(session.id), LIMIT)
    assert (pool.in_use_bytes, pool.asked_bytes) == (3 * 16384, 3 * 16384)
    assert pool.cached_bytes == 114_688
    assert pool.reserved_bytes == pool.high_water_bytes == 3 * 16384 + 114_688
    assert (pool.hits, pool.fragmentation_ratio) == (0, 0.0)
    assert pool.size_classes == ((16384, 3, 0), (114_688, 1, 1))
    assert pool.ops == (("client", 4, 1),)
    (device,) = found.devices
    assert (device.id, device.simulated, device.clients) == ("sim:0", True, 1)
    assert device.memory_used_bytes == device.memory_attributed_bytes == pool.reserved_bytes
    assert device.memory_total_bytes == LIMIT
    assert len(kept) == 3


def test_address_space_is_the_sum_of_its_blocks(feed: ProcessFeed, session: ClientSession) -> None:
    first = wait_for(feed, lambda one: bool(one.spaces)).spaces[0]
    for _ in range(5):
        session.alloc_bytes(1 << 20)
    found = wait_for(feed, lambda one: bool(one.spaces) and one.spaces[0].mapped_bytes != first.mapped_bytes)
    (space,) = wait_for(feed, lambda one: pool_of(one).misses == 5).spaces
    assert found.devices[0].id == space.device
    assert first.mapped_bytes is not None
    assert space.mapped_bytes == first.mapped_bytes + (5 << 20)
    assert space.size_bytes == space.mapped_bytes + (space.free_bytes or 0) + (space.reserved_bytes or 0)
    assert sum(size for _, size, _ in space.ranges) == space.mapped_bytes
    assert space.base == space.ranges[0][0]


def test_the_client_is_a_process_by_its_own_word(feed: ProcessFeed, session: ClientSession) -> None:
    session.alloc_bytes(1 << 20)
    found = wait_for(feed, lambda one: bool(one.pools) and pool_of(one).in_use_bytes == 1 << 20)
    (process,) = found.processes
    assert (process.pid, process.uid) == (os.getpid(), os.geteuid())
    assert process.memory == (("sim:0", owner(session.id), 1 << 20),)
    assert process.name == Path("/proc/self/comm").read_text().strip()


def test_queues_count_and_time_the_work(feed: ProcessFeed, session: ClientSession) -> None:
    a, b, c = (session.alloc((64, 64), "fp32") for _ in range(3))
    wait_for(feed, lambda one: bool(one.queues))
    for _ in range(40):
        session.wait(session.translate(session.request("add", [a, b], [c], submit=True)).fence)
    found = wait_for(feed, lambda one: one.queues[0].finished == 40)
    (queue,) = found.queues
    assert (queue.kind, queue.submitted, queue.running, queue.stalled_ns) == ("session", 40, 0, 0)
    assert queue.depth == session.queue_depth
    assert queue.busy_ratio is not None
    assert 0 < queue.busy_ratio <= 1
    assert queue.wait_ns is not None
    assert 0 < queue.wait_ns < 40 * 10**9


def test_every_number_has_a_source_or_an_absence(feed: ProcessFeed, session: ClientSession) -> None:
    """Numbers of the first Snapshot that has rows, with all that was said so far."""
    session.alloc_bytes(4096)
    sources, absences = dict[str, str](), dict[str, object]()

    def told(one: Snapshot) -> bool:
        sources.update(one.sources)
        absences.update(one.absences)
        return bool(one.pools) and pool_of(one).in_use_bytes == 4096

    found = wait_for(feed, told)
    for table, names in (
        ("pools", ("in_use_bytes", "capacity_bytes", "hits", "fragmentation_ratio")),
        ("queues", ("running", "finished", "wait_ns", "stalled_ns")),
        ("spaces", ("mapped_bytes", "largest_hole_bytes")),
        ("devices", ("memory_used_bytes", "memory_total_bytes", "busy_ratio", "power_mw")),
    ):
        for row in getattr(found, table):
            for name in names:
                assert key(table, row.id, name) in (sources if getattr(row, name) is not None else absences)


def test_sessions_that_open_and_close_are_events(feed: ProcessFeed, own: OwnService) -> None:
    wait_for(feed, lambda one: bool(one.devices))
    texts: list[str] = []

    def heard(word: str) -> Callable[[Snapshot], bool]:
        def right(one: Snapshot) -> bool:
            texts.extend(event.text for event in one.events)
            return any(word in text for text in texts)

        return right

    with Client(own.address, deadline_s=20, name="somebody, pid 1") as client:
        made = client.session()
        name = owner(made.id)
        wait_for(feed, heard(f"{name} was opened by somebody"))
        made.close()
        wait_for(feed, heard(f"{name} of somebody, pid 1 is gone"))


# -- going and coming --


def _health(one: Snapshot) -> SourceLevel:
    (row,) = one.health
    return row


def test_a_service_that_goes_and_comes_back(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    feed = following(address)
    try:
        gone = wait_for(feed, lambda one: _health(one).state == "absent")
        assert "nobody answers there" in _health(gone).path
        assert gone.devices == ()
        for _ in range(2):
            with _serving(address):
                found = wait_for(feed, lambda one: bool(one.devices))
                assert _health(found).state == "ok"
            gone = wait_for(feed, lambda one: _health(one).state == "absent")
            assert any(event.level == "warn" and "nobody answers" in event.text for event in gone.events)
    finally:
        feed.close()


def test_a_service_started_anew_is_told(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    feed = following(address)
    texts: list[str] = []

    def told(one: Snapshot) -> bool:
        texts.extend(event.text for event in one.events)
        return any("started anew: its sessions are gone" in text for text in texts)

    try:
        with _serving(address):
            wait_for(feed, lambda one: bool(one.devices))
        time.sleep(1.1)  # starts are told apart by the second
        with _serving(address):
            wait_for(feed, told)
    finally:
        feed.close()


def test_a_service_that_is_stopped_is_absent_and_comes_back(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    with _serving(address) as pid:
        feed = following(address)
        try:
            wait_for(feed, lambda one: bool(one.devices))
            os.kill(pid, signal.SIGSTOP)
            found = wait_for(feed, lambda one: _health(one).state != "ok")
            assert "does not answer within 1 s" in _health(found).path
            os.kill(pid, signal.SIGCONT)
            wait_for(feed, lambda one: bool(one.devices))
        finally:
            os.kill(pid, signal.SIGCONT)
            feed.close()


def test_something_else_listens_there(tmp_path: Path) -> None:
    """It takes connections and never says a word of HTTP/2."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(f"{tmp_path}/s")
        other.listen(8)
        feed = following(f"unix:{tmp_path}/s")
        try:
            wait_for(feed, lambda one: _health(one).state == "absent")
        finally:
            feed.close()


def test_grpc_stays_out_of_the_process_that_watches(own: OwnService) -> None:
    feed = following(own.address)
    wait_for(feed, lambda one: bool(one.devices))
    feed.close()
    assert feed.loaded == []


class _serving:  # noqa: N801 - reads as a function
    """`accelctl serve` at an address; gives its pid."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> int:
        command = [sys.executable, "-m", "accelctl", "serve", "--device", "sim:0", "--listen", self._address]
        self._child = subprocess.Popen([*command, "--grace", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until_ready(self._address, 60, lambda: self._child.poll() is None)
        return self._child.pid

    def __exit__(self, *rest: object) -> None:
        self._child.terminate()
        self._child.wait(20)


# -- what the service says --


def test_ranges_are_the_complement_of_the_holes() -> None:
    space = GoodFit(1 << 21, 1 << 30)
    taken = [space.alloc(4096 * (n % 7 + 1)) for n in range(3000)]
    for va in taken[::2]:
        space.free(va)
    space.reserve((1 << 21) + (1 << 29), 8192)
    level = space_level(space)
    assert 500 < len(level.ranges) <= 512
    starts = [one.start for one in level.ranges]
    assert starts == sorted(starts)
    covered = sum(one.bytes for one in level.ranges)
    held = level.mapped_bytes + level.reserved_bytes
    assert held <= covered < held + sum(size for _, size in space.holes()) - level.largest_hole_bytes
    assert [one.reserved for one in level.ranges][-1]
    exact = held_ranges(space, 10_000)
    assert sum(size for _, size in exact) == held
    for start, size in exact:
        assert space.block(start) is not None
        assert space.block(start + size - 1) is not None


def test_an_empty_space_and_a_full_one() -> None:
    space = GoodFit(4096, 4 * 4096)
    assert held_ranges(space) == []
    space.alloc(4 * 4096)
    assert held_ranges(space) == [(4096, 4 * 4096)]


def test_time_in_the_queue_is_counted_by_what_is_in_flight() -> None:
    """Three works are held for a while: the queue is busy for that long, and all three wait together."""
    kernels = HeldKernels()
    with service_of(kernels) as service:
        client = Direct(service)
        a, b, c = (client.alloc((8, 8)) for _ in range(3))
        for _ in range(3):
            client.respond("add", [a, b], outputs=[c])
        (ring,) = kernels.rings
        before = time.monotonic_ns()
        (held,) = service.telemetry().sessions
        time.sleep(0.1)
        (later,) = service.telemetry().sessions
        elapsed = time.monotonic_ns() - before
        assert later.in_flight == 3
        assert 100e6 <= later.busy_ns - held.busy_ns <= elapsed
        assert later.flown_ns - held.flown_ns == 3 * (later.busy_ns - held.busy_ns)
        assert later.stalled_ns - held.stalled_ns == later.busy_ns - held.busy_ns
        ring.line.advance(2)
        (done,) = service.telemetry().sessions
        assert (done.in_flight, done.passed_fence) == (1, 2)
        assert done.stalled_ns < later.stalled_ns
        ring.line.advance(3)
        (idle,) = service.telemetry().sessions
        (rest,) = service.telemetry().sessions
        assert (idle.stalled_ns, rest.busy_ns) == (0, idle.busy_ns)


# -- several feeds as one --


class Listed:
    """A feed of what is given."""

    title, seekable = "test", False

    def __init__(self, snapshots: list[Snapshot]) -> None:
        self.left = list(reversed(snapshots))
        self.closed = 0

    def poll(self, timeout_s: float) -> Snapshot | None:
        return self.left.pop() if self.left else None

    def seek(self, seconds: float) -> Snapshot | None:
        return None

    def close(self) -> None:
        self.closed += 1


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


def test_a_part_that_has_gone_silent_is_left_out() -> None:
    ticks = [snapkit.snapshot(tick=tick) for tick in range(10)]
    feed = MergedFeed([Listed(ticks), Listed([snapkit.snapshot(devices=0, processes=0, simulated=True)])])
    found = [one for _ in range(10) if (one := feed.poll(0)) is not None]
    assert ["sim:0" in {device.id for device in one.devices} for one in found] == [True] * 6 + [False] * 4


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


def test_many_sessions_share_one_sample() -> None:
    with service_of() as service:
        clients = [Direct(service) for _ in range(100)]
        for client in clients:
            kept = [client.alloc((8, 8)).tensor_id for _ in range(200)]
            for number in kept[::2]:
                client.free(number)
            client.session.memory.trim()
        found = service.telemetry()
        counts = [len(space.ranges) for session in found.sessions for space in session.spaces]
        assert len(counts) == 100
        assert max(counts) <= 8192 // 100
        assert all(one.spaces[0].mapped_bytes >= 100 * 4096 for one in found.sessions)
