"""A running service as a source: every number is what the service really has; its going and coming is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.memory.va import GoodFit
from accelctl.model.snapshot import PoolLevel, Snapshot, SourceLevel, key
from accelctl.smoke.ownservice import OwnService
from accelctl.telemetry.merge import merged
from accelctl.telemetry.service import NoAnswer, ServiceSource, labels, owner
from accelctl.umd.client import Client, ClientSession, ServiceError, wait_until_ready
from accelctl.umd.telemetry import held_ranges, space_level
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
    whose = [*(row.process for row in found.pools), *(row.process for row in found.queues)]
    whose += [row.process for row in found.spaces]
    assert whose == [f"pid {os.getpid()} {process.name}"] * 3


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


def test_a_service_of_another_user_is_not_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client says where a socket lets nobody else in: tests/unit/test_umd_client.py."""
    refused = ServiceError("permission denied: /x/s", kind="permission", code="UNAVAILABLE")
    monkeypatch.setattr(Client, "handshake", lambda self: (_ for _ in ()).throw(refused))
    source = ServiceSource("unix:/x/s")
    with pytest.raises(NoAnswer, match="permission denied: the service is another user's"):
        source._ask()
    source.close()


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


# -- two at once --


def test_rows_of_two_services_are_told_apart(own: OwnService, session: ClientSession) -> None:
    """Each counts its devices and its sessions from the same number."""
    session.alloc_bytes(1 << 20)
    with (
        OwnService("sim:0", ("--memory", "32M")) as second,
        Client(second.address, deadline_s=20) as client,
        client.session() as other,
    ):
        other.alloc_bytes(2 << 20)
        names = [owner(session.id), owner(other.id)]
        found = []
        for address, label in zip((own.address, second.address), ("a", "b"), strict=True):
            feed = ProcessFeed(f"ServiceFeed({address!r}, label={label!r}, period_s=0.1, budget=0)")
            try:
                found.append(wait_for(feed, lambda one: bool(one.pools) and bool(pool_of(one).in_use_bytes)))
            finally:
                feed.close()
    both = merged([Snapshot(taken_ns=1), *found])
    assert [(one.id, one.memory_total_bytes) for one in both.devices] == [("sim:0@a", LIMIT), ("sim:0@b", LIMIT // 2)]
    assert [(one.id, one.in_use_bytes) for one in both.pools] == [
        (f"sim:0@a {names[0]}", 1 << 20), (f"sim:0@b {names[1]}", 2 << 20),
    ]  # fmt: skip
    assert [one.owner for one in both.pools] == names
    assert [one.id for one in both.queues] == [one.id for one in both.spaces] == [one.id for one in both.pools]
    (process,) = both.processes
    assert process.memory == (("sim:0@a", names[0], 1 << 20), ("sim:0@b", names[1], 2 << 20))
    assert {f"pools/{one.id}/in_use_bytes" for one in both.pools} <= both.sources.keys()


def test_a_label_is_as_short_as_it_may_be() -> None:
    assert labels(["unix:/a/s"]) == [""]
    assert labels(["unix:/a/x.sock", "unix:/a/y.sock"]) == ["x.sock", "y.sock"]
    assert labels(["unix:/a/s", "unix:/b/s", "127.0.0.1:7"]) == ["/a/s", "/b/s", "127.0.0.1:7"]


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
