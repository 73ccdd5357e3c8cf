"""The demonstration: a stranger sees the injected leak named, and nothing is left of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.errors import NoDeviceError, extra
from accelctl.hal.claim import private_folder
from accelctl.model.snapshot import Snapshot, key
from accelctl.telemetry import demo
from accelctl.telemetry.demo import DemoFeed
from accelctl.telemetry.history import History
from tests.feedkit import ProcessFeed
from tests.helpers import ROOT

PATIENCE_S = 120.0


def demonstration() -> ProcessFeed:
    return ProcessFeed("DemoFeed(period_s=0.5, budget=0)", "[feed.title, feed.address, feed.pids]")


def follow(feed: ProcessFeed, history: History, right: Callable[[Snapshot], bool]) -> Snapshot:
    """The first Snapshot that is right; all until then are taken into the history."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = feed.poll(1.0)
        if found is not None:
            history.take(found)
            assert not [event for event in found.events if event.level == "error"]
            if right(found):
                return found
    raise AssertionError("never came")


def ended(pids: list[int]) -> bool:
    """None of them runs any more (a zombie does not run)."""

    def state(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "Z"

    return all(state(pid) == "Z" for pid in pids)


def test_the_leaking_process_is_named_and_pool_and_space_grow() -> None:
    feed, history = demonstration(), History()
    title, address, pids = feed.about
    try:
        assert title == "demo (simulated)"
        assert set(pids) == {"service", "compute", "churn", "leak"}

        def leaking(found: Snapshot) -> list[int]:
            return [one.pid for one in found.processes if history.leaks(f"{one.pid}@{one.started}")]

        found = follow(feed, history, lambda one: pids["leak"] in leaking(one))
        assert found.simulated
        names = {one.pid: one.name for one in found.processes}
        assert names == {pids[role]: f"demo-{role}" for role in ("compute", "churn", "leak")}
        (leak,) = [one for one in found.processes if one.pid == pids["leak"]]
        rise = history.leak(f"{leak.pid}@{leak.started}")
        assert rise is not None
        assert rise.per_s == pytest.approx(demo.LEAK_PER_S, rel=0.5)
        ((_, session, _),) = leak.memory
        pool = f"sim:0 {session}"
        assert (history.growth(key("pools", pool, "in_use_bytes")) or 0) > 0
        assert (history.growth(key("spaces", pool, "mapped_bytes")) or 0) > 0
        assert history.full_in_s(pool) is not None
        assert history.pool_full_in_s(pool) is not None
        assert pids["compute"] not in leaking(found)
        (queue,) = [one for one in found.queues if one.finished]
        assert queue.wait_ns is not None
    finally:
        feed.close()
    assert feed.loaded == []
    assert ended(list(pids.values()))
    assert not Path(address.removeprefix("unix:")).exists()


def test_all_of_it_ends_with_its_parent() -> None:
    """Killed, it cannot end anything; its children notice by themselves, and the service takes its socket away."""
    code = (
        "import time\n"
        "from accelctl.telemetry.demo import DemoFeed\n"
        "feed = DemoFeed(period_s=0.2)\n"
        "while not (found := feed.poll(1.0)) or len(found.processes) < 3: pass\n"
        "print(feed.address, *feed.pids.values(), *feed._feed._sampler.pids, flush=True)\n"
        "time.sleep(100)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    address, *words = parent.stdout.readline().split()
    pids = [int(word) for word in words]
    assert len(pids) == 5
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 60
    while not ended(pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert ended(pids)
    assert not Path(address.removeprefix("unix:")).exists()
    assert not list(Path(private_folder()).glob(f"demo-{parent.pid}.*"))


def test_a_part_that_dies_is_an_event() -> None:
    feed = demonstration()
    try:
        os.kill(feed.about[2]["churn"], signal.SIGKILL)
        end, texts = time.monotonic() + PATIENCE_S, list[str]()
        while not texts and time.monotonic() < end:
            found = feed.poll(1.0)
            texts += [event.text for event in found.events if event.level == "error"] if found else []
        assert texts == ["the demo's churn ended with status -9: it said nothing"]
    finally:
        feed.close()


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_NEEDED", ("no_such_package_anywhere",))
    with pytest.raises(NoDeviceError) as caught:
        DemoFeed()
    assert caught.value.hint == extra("umd")
