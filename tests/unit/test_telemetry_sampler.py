"""The sampler: a source that hangs is named, set aside and comes back; the rest goes on; nothing stays behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelctl.abi.telemetry import Draft, Tick
from accelctl.model.snapshot import Gone, Snapshot
from accelctl.telemetry.cost import Budget, Meter
from accelctl.telemetry.quarantine import Quarantine
from accelctl.telemetry.sampler import Plan, Sampler
from accelctl.telemetry.source import Plainly, Source
from tests.helpers import environment
from tests.telemetrykit import LIMIT_S, Calls, Fifo, Steady, counted, health, nothing_left, texts, until

PERIOD_S = 0.01
DEADLINE_S = 0.2


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "hangs"
    os.mkfifo(path)
    return path


def sampler(*sources: Source, first_s: float = 0.3, silence_s: float = 10.0, budget: float = 0.0) -> Sampler:
    return Sampler(
        Plan(sources),
        period_s=PERIOD_S,
        budget=budget,
        deadline_s=DEADLINE_S,
        silence_s=silence_s,
        quarantine=Quarantine(first_s, 2 * first_s),
    )


@pytest.fixture
def running() -> Iterator[list[Sampler]]:
    """Samplers to be closed."""
    found: list[Sampler] = []
    yield found
    for one in found:
        one.close()
        one.close()


# -- what goes well --


def test_each_tick_is_a_snapshot(running: list[Sampler]) -> None:
    running.append(sampler(Steady()))
    seen = until(running[0], lambda one: one.devices[0].open_files == 5)
    assert counted(seen) == [1, 2, 3, 4, 5]
    elapsed = [one.devices[0].mapped_bytes for one in seen]
    times = [one.monotonic_ns for one in seen]
    assert elapsed == [0, *(after - before for before, after in itertools.pairwise(times))]
    assert all(health(one, "steady") == "ok" for one in seen)
    assert [one.cost.reads for one in seen] == [1] * 5
    assert {one.cost.period_ns for one in seen} == {10_000_000}
    assert seen[0].cost.memory_bytes > 1 << 20


def test_sources_are_told_again_only_when_they_change(running: list[Sampler]) -> None:
    class Changing(Steady):
        def sample(self, draft: Draft, tick: Tick) -> None:
            super().sample(draft, tick)
            if self.ticks >= 3:
                draft.gone("dev:0", "power_mw", Gone("asleep"))

    running.append(sampler(Changing()))
    seen = until(running[0], lambda one: one.devices[0].open_files == 4)
    names = {"devices/dev:0/open_files", "devices/dev:0/mapped_bytes"}
    assert [set(one.sources) for one in seen] == [names, set(), names, set()]
    gone = {f"devices/dev:0/{name}" for name in ("busy_ratio", "memory_total_bytes", "memory_used_bytes")}
    assert [set(one.absences) for one in seen] == [gone, set(), {*gone, "devices/dev:0/power_mw"}, set()]


def test_a_stale_list_of_devices_is_told(running: list[Sampler]) -> None:
    class Stale(Steady):
        def sample(self, draft: Draft, tick: Tick) -> None:
            super().sample(draft, tick)
            draft.stale = self.ticks == 2

    running.append(sampler(Stale()))
    until(running[0], lambda one: one.devices[0].open_files == 1)
    assert not running[0].stale
    until(running[0], lambda one: one.devices[0].open_files == 3)
    assert running[0].stale


def test_other_sources_from_now_on(running: list[Sampler]) -> None:
    running.append(sampler(Steady()))
    until(running[0], lambda one: True)
    running[0].renew(Plan([Calls("other", lambda tick: None)]))
    (one, *_) = until(running[0], lambda one: True)
    assert [level.id for level in one.health] == ["other"]
    assert one.devices == ()


# -- what hangs --


def test_what_hangs_is_named_and_set_aside_and_the_rest_goes_on(running: list[Sampler], fifo: Path) -> None:
    running.append(sampler(Steady(), Fifo(fifo), first_s=60))
    seen = until(running[0], lambda one: one.devices[0].open_files == 20)
    last = seen[-1]
    assert health(last, "steady") == "ok"
    (held,) = [level for level in last.health if level.state == "quarantined"]
    assert (held.id, held.path) == ("fifo", str(fifo))
    assert held.wchan in ("", "wait_for_partner")  # fifo_open in fs/pipe.c; "" where the kernel hides it
    assert abs(held.retry_ns - held.since_ns - 60e9) < 5e9
    marks = [mark for one in seen for mark in one.events]
    assert [(mark.kind, mark.level) for mark in marks] == [("source", "warn")]
    assert f"{fifo} did not come back for 0." in marks[0].text
    assert "left alone for 60 s" in marks[0].text
    assert counted(seen)[-20:] == list(range(1, 21))


def test_it_is_tried_again_without_disturbing_and_comes_back(running: list[Sampler], fifo: Path) -> None:
    running.append(sampler(Steady(), Fifo(fifo), first_s=0.2))
    first = until(running[0], lambda one: health(one, "fifo") == "quarantined")[-1]
    before = next(level for level in first.health if level.id == "fifo")

    def retried(one: Snapshot) -> bool:
        return next(level.retry_ns for level in one.health if level.id == "fifo") > before.retry_ns + 100_000_000

    again = until(running[0], retried)
    ticks = counted(again)
    assert ticks == list(range(ticks[0], ticks[0] + len(ticks)))  # the same child, not one tick lost
    assert next(level.since_ns for level in again[-1].health if level.id == "fifo") == before.since_ns
    writer = os.open(fifo, os.O_RDWR)
    try:
        os.write(writer, b"7" * 4096)
        back = until(running[0], lambda one: health(one, "fifo") == "ok")
        assert back[-1].devices[0].power_mw == 7.0
        assert texts(back) == [f"{fifo} is back"]
        assert {one.events[0].level for one in back if one.events} == {"info"}
        (later, *_) = until(running[0], lambda one: True)
        assert later.devices[0].power_mw == 7.0
        assert running[0]._trial is None
    finally:
        os.close(writer)


def test_two_that_hang(running: list[Sampler], tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        os.mkfifo(path)
    one, two = Fifo(paths[0]), Fifo(paths[1])
    one.name, two.name = "a", "b"
    running.append(sampler(one, two, Steady(), first_s=60))
    last = until(running[0], lambda found: health(found, "b") == "quarantined")[-1]
    assert {level.id: level.state for level in last.health} == {"a": "quarantined", "b": "quarantined", "steady": "ok"}


def test_the_child_dies_while_it_reads(running: list[Sampler]) -> None:
    def die(tick: Tick) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    running.append(sampler(Steady(), Calls("bad", die, "sys/bad"), first_s=60))
    seen = until(running[0], lambda one: one.devices[0].open_files == 3)
    assert health(seen[-1], "bad") == "quarantined"
    assert texts(seen) == ["sys/bad died (killed by SIGSEGV): left alone for 60 s"]


def test_the_child_dies_while_it_reads_nothing(running: list[Sampler], tmp_path: Path) -> None:
    once = tmp_path / "once"

    def die(tick: Tick) -> None:
        if not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    running.append(sampler(Calls("bad", die), Steady()))
    seen = until(running[0], lambda one: one.devices[0].open_files == 3)
    assert texts(seen) == ["the sampler is started anew: it ended while it read nothing (killed by SIGKILL)"]
    assert health(seen[-1], "bad") == "ok"


def test_a_source_that_raises_is_absent_and_the_rest_goes_on(running: list[Sampler]) -> None:
    class Failing(Steady):
        name = "failing"

        def sample(self, draft: Draft, tick: Tick) -> None:
            self.ticks += 1
            if self.ticks in (2, 3):
                raise OSError(5, "Input/output error")

    running.append(sampler(Failing(), Steady()))
    seen = until(running[0], lambda one: one.devices[0].open_files == 5)
    assert [health(one, "failing") for one in seen] == ["ok", "absent", "absent", "ok", "ok"]
    assert texts(seen) == ["failing fails: OSError: [Errno 5] Input/output error", "failing works again"]
    assert counted(seen) == [1, 2, 3, 4, 5]


def test_what_works_for_the_first_time_does_not_work_again(running: list[Sampler]) -> None:
    class Late(Steady):
        name = "late"

        def sample(self, draft: Draft, tick: Tick) -> None:
            self.ticks += 1
            if self.ticks in (1, 3):
                raise Plainly("nobody is there")

    running.append(sampler(Late(), Steady()))
    seen = until(running[0], lambda one: one.devices[0].open_files == 4)
    told = ["late fails: nobody is there", "late works", "late fails: nobody is there", "late works again"]
    assert texts(seen) == told
    away = [row for one in seen for row in one.health if row.state == "absent"]
    assert [row.path for row in away] == ["nobody is there"] * 2
    assert 0 < away[0].since_ns < away[1].since_ns


def test_a_child_that_stands_still_is_told(running: list[Sampler]) -> None:
    """Stopped from outside, between two ticks: there is no source to blame."""
    running.append(Sampler(Plan([Steady()]), period_s=0.2, budget=0.0, silence_s=0.5))
    until(running[0], lambda one: one.devices[0].open_files == 2)
    (child,) = running[0].pids
    os.kill(child, signal.SIGSTOP)
    seen = until(running[0], lambda one: running[0].pids[0] != child and one.devices)
    assert texts(seen)[-1].startswith("the sampler stood still for ")
    assert texts(seen)[-1].endswith(" s: it is started anew")


def test_a_source_that_computes_without_end_is_set_aside(running: list[Sampler]) -> None:
    def spin(tick: Tick) -> None:
        while True:
            pass

    running.append(sampler(Calls("endless", spin), Steady(), first_s=60, silence_s=0.5))
    seen = until(running[0], lambda one: one.devices[0].open_files == 3)
    assert health(seen[-1], "endless") == "quarantined"
    assert "endless computed for" in texts(seen)[0]


def test_a_child_is_replaced_from_another_thread(running: list[Sampler], fifo: Path) -> None:
    """Screens poll from a thread of their own: the child that is forked there makes it its main one."""
    running.append(sampler(Steady(), Fifo(fifo), first_s=60))
    found: list[Snapshot] = []
    worker = threading.Thread(target=lambda: found.extend(until(running[0], lambda one: counted([one]) == [3])))
    worker.start()
    worker.join()
    assert health(found[-1], "fifo") == "quarantined"
    assert len(texts(found)) == 1


# -- the end --

PROGRAM = """
import os, sys
from pathlib import Path
from accelctl.telemetry.quarantine import Quarantine
from accelctl.telemetry.sampler import Plan, Sampler
from tests.telemetrykit import Fifo, Steady, health, until
one = Sampler(Plan([Steady(), Fifo(Path(sys.argv[1]))]), period_s=0.01, budget=0, deadline_s=0.2,
              quarantine=Quarantine(0.1, 60))
until(one, lambda found: health(found, "fifo") == "quarantined")
while len(one.pids) < 2:  # a trial runs as well
    one.poll(0.01)
print(*one.pids, flush=True)
os.kill(os.getpid(), 9)
"""


def test_no_child_outlives_its_parent(fifo: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(fifo)], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    end = time.monotonic() + LIMIT_S
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end, f"{pids} are still there"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


# -- cost --


def test_the_budget_stretches_the_period() -> None:
    budget = Budget(1.0, 0.02)
    assert budget.period_ns == 1_000_000_000
    budget.spent(10_000_000)  # 10 ms a second are 1 %
    assert budget.period_ns == 1_000_000_000
    for _ in range(8):
        budget.spent(40_000_000)
    assert budget.period_ns == 2_000_000_000
    budget.spent(8 * 200_000_000 - 7 * 40_000_000)  # the mean is 200 ms
    assert budget.period_ns == 10_000_000_000
    for _ in range(8):
        budget.spent(1_000_000)
    assert budget.period_ns == 1_000_000_000
    for _ in range(8):
        budget.spent(60_000_000_000)
    assert budget.period_ns == 60_000_000_000  # no longer, whatever it costs
    unlimited = Budget(0.5, 0)
    unlimited.spent(10**12)
    assert unlimited.period_ns == 500_000_000


def test_dear_ticks_come_less_often(running: list[Sampler]) -> None:
    def burn(tick: Tick) -> None:
        end = time.process_time_ns() + 5_000_000
        while time.process_time_ns() < end:
            pass

    running.append(sampler(Calls("dear", burn), budget=0.25))
    seen = until(running[0], lambda one: one.cost.period_ns > 10_000_000)
    assert seen[0].cost.period_ns == 10_000_000
    assert seen[-1].cost.period_ns >= 20_000_000  # 5 ms at a quarter of a core
    assert all(one.cost.tick_ns >= 5_000_000 for one in seen)
    later = until(running[0], lambda one: one.cost.cpu_ratio > 0)
    assert later[-1].cost.cpu_ratio < 1.5


def test_ticks_that_were_taken_late_cost_no_more_than_they_did() -> None:
    meter = Meter()
    meter.cpu_ratio(0, 1_000_000_000)
    shares = [meter.cpu_ratio(20_000_000, (2 + number) * 1_000_000_000) for number in range(5)]  # all at once
    assert shares == [pytest.approx(0.02, abs=0.002)] * 5


# -- quarantine --


def test_each_time_twice_as_long_up_to_the_most() -> None:
    held = Quarantine(5, 300)
    now, waits = 0, []
    for _ in range(8):
        one = held.add("sys/a", "a", "", now, 1_000 + now)
        waits.append(one.wait_s)
        assert held.due(one.retry_at - 1) is None
        due = held.due(one.retry_at)
        assert due is not None
        now = due.retry_at
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    assert held.held()[0].since_ns == 1_000


def test_one_that_hangs_again_soon_goes_on_where_it_was() -> None:
    held, second = Quarantine(5, 300), 1_000_000_000
    held.add("sys/a", "a", "", 0, 0)
    held.add("sys/a", "a", "", 5 * second, 0)
    held.passed("sys/a", 15 * second)
    assert held.blocked() == frozenset()
    assert held.held() == []
    assert held.due(20 * second) is None
    assert held.add("sys/a", "a", "", 21 * second, 7).wait_s == 20
    assert held.held()[0].since_ns == 7
    held.passed("sys/a", 41 * second)
    assert held.due(62 * second) is None  # proven: forgotten
    assert held.add("sys/a", "a", "", 63 * second, 0).wait_s == 5


def test_all_but_the_one_that_is_tried_are_blocked() -> None:
    held = Quarantine(5, 300)
    held.add("sys/a", "a", "", 0, 0)
    held.add("sys/b", "b", "", 1, 0)
    assert held.blocked() == {"sys/a", "sys/b"}
    assert held.blocked(but="sys/a") == {"sys/b"}
    due = held.due(10_000_000_000)
    assert due is not None
    assert due.path == "sys/a"
