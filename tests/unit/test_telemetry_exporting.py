"""What `export --listen` answers when nothing new comes: old numbers are worse than none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from accelctl.hal.scrape import Page
from accelctl.model.snapshot import SelfCost, Snapshot
from accelctl.telemetry import exporting

SECOND = 1_000_000_000


class Scraper:
    """An endpoint that is asked after each look, at made-up times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: list[float]) -> None:
        self.times, self.now = times, 0.0
        self.answers: list[Page] = []
        self.stop = threading.Event()
        monkeypatch.setattr(exporting, "time", SimpleNamespace(monotonic=lambda: self.now))

    def attend(self, timeout_s: float, produce: Callable[[], Page]) -> None:
        self.now = self.times.pop(0)
        self.answers.append(produce())
        if not self.times:
            self.stop.set()


class Once:
    """A feed that says something at these calls and falls silent."""

    title, seekable = "test", False

    def __init__(self, calls: set[int], period_s: float) -> None:
        self.calls, self.count, self.period_ns = calls, 0, int(period_s * SECOND)

    def poll(self, timeout_s: float) -> Snapshot | None:
        self.count += 1
        if self.count not in self.calls:
            return None
        return Snapshot(taken_ns=self.count, cost=SelfCost(period_ns=self.period_ns))

    def seek(self, seconds: float) -> Snapshot | None:
        return None

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("period_s", "limit_s"), [(0.1, 5), (1, 5), (10, 50)])
def test_a_feed_gone_silent_has_no_numbers_until_it_speaks_again(
    monkeypatch: pytest.MonkeyPatch, period_s: float, limit_s: float
) -> None:
    scraper: Any = Scraper(monkeypatch, [0.5, limit_s - 0.1, limit_s + 0.1, 1000, 1000.1])
    feed = Once({1, 5}, period_s)
    exporting.listen(feed, scraper, lambda one: f"tick {one.taken_ns}", "text/plain", 0, scraper.stop)
    assert [page.status for page in scraper.answers] == [
        "200 OK", "200 OK", "503 Service Unavailable", "503 Service Unavailable", "200 OK",
    ]  # fmt: skip
    assert scraper.answers[-1].body == b"tick 5"
    assert b"no numbers" in scraper.answers[2].body
