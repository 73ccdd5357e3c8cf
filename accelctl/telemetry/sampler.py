"""The sampler: one watched child that asks all sources at each tick and sends a Snapshot.

A read of a driver's file can hang for ever. The child writes the path it is about to read into a slot shared with us;
when it stays there for too long we name the path, start a new child that leaves it alone, and go on: one tick is late,
no more. After a while the path is tried again, by a child of its own that does nothing else, so that a path that still
hangs costs nobody a second tick. What has come back is read again.

There is no thread: :meth:`Sampler.poll` does all of this and has to be called several times a second.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from accelctl.hal import sharedmem
from accelctl.hal.child import Watch
from accelctl.hal.devfile import PAGE
from accelctl.hal.reader import Failed, Finished, Message, Stuck, WatchedChild, hangs_yet
from accelctl.model.snapshot import EventMark, SelfCost, Snapshot, SourceLevel
from accelctl.telemetry.cost import BUDGET, PERIOD_S, Budget, Meter
from accelctl.telemetry.quarantine import FIRST_S, MOST_S, Held, Quarantine
from accelctl.telemetry.said import Said
from accelctl.telemetry.sensors import Devices
from accelctl.telemetry.source import Draft, Plainly, Source, Tick

DEADLINE_S = 2.0
SILENCE_S = 10.0
"""A source that computes for so long without an end is set aside like one that hangs."""
SOURCE = "source:"
"""Begins what stands for a whole source among the paths of a quarantine."""
_NONE = 255
_CREDIT_S = 1.0
"""What one call of poll may count at most: whoever was stopped himself (Ctrl-Z) condemns nobody."""
_RESTART_S, _MOST_RESTART_S = 0.5, 30.0


class Told(NamedTuple):
    """What the child sends at each tick."""

    snapshot: Snapshot
    failed: dict[str, str]
    """Source -> what it raised."""
    cpu_ns: int
    stale: bool


@dataclass
class Plan:
    """What the child does. Whoever makes it reads nothing: the sources open their files in the child."""

    sources: Sequence[Source]
    begin: Callable[[Watch], None] = lambda watch: None
    """Called in each new child before its first tick."""
    keep: Iterable[int] = ()
    """Descriptors that the child inherits."""
    finish: Callable[[Draft], None] = lambda draft: None
    """Called with what all sources have said."""


class Sampler:
    """Snapshots, as they come."""

    def __init__(
        self,
        plan: Plan,
        *,
        period_s: float = PERIOD_S,
        budget: float = BUDGET,
        deadline_s: float = DEADLINE_S,
        silence_s: float = SILENCE_S,
        quarantine: Quarantine | None = None,
    ) -> None:
        self.stale = False
        """A source said that the list of devices is out of date; for the reader to reset."""
        self._plan, self._period_s, self._budget = plan, period_s, budget
        self._deadline_s, self._silence_s = deadline_s, silence_s
        self._quarantine = quarantine or Quarantine(FIRST_S, MOST_S)
        self._where = sharedmem.create("sampler", PAGE)
        self._child: WatchedChild | None = None
        self._trial: WatchedChild | None = None
        self._tried: Held | None = None
        self._trial_ends = 0.0
        self._events: list[EventMark] = []
        self._failed: dict[str, str] = {}
        self._failed_ns: dict[str, int] = {}
        self._met: set[str] = set()
        """Sources that have worked."""
        self._meter = Meter()
        self._starts_at, self._restart_s = 0.0, _RESTART_S
        self._silent_s, self._polled_at = 0.0, time.monotonic()
        self._slow_s = silence_s
        self._start()

    # -- the parent's side --

    def fileno(self) -> int:
        """Readable when a Snapshot is there; -1 while no child runs. Another number after each restart: ask again."""
        return self._child.fileno() if self._child is not None else -1

    @property
    def pids(self) -> list[int]:
        """The children that run."""
        return [one.pid for one in (self._child, self._trial) if one is not None and one.pid]

    def renew(self, plan: Plan) -> None:
        """Go on with other sources, in a new child. What hung is held as before."""
        self._plan = plan
        self._end_trial()
        self._start()

    def poll(self, timeout_s: float) -> Snapshot | None:
        """The next Snapshot, or None after so many seconds."""
        end = time.monotonic() + timeout_s
        while True:
            self._attend_trial()
            left = end - time.monotonic()
            snapshot = self._attend(max(0.0, min(left, 0.25)))
            if snapshot is not None or end - time.monotonic() <= 0:
                return snapshot

    def _attend(self, timeout_s: float) -> Snapshot | None:
        if self._child is None:
            wait = self._starts_at - time.monotonic()
            if wait > 0:
                time.sleep(min(wait, timeout_s))
                return None
            self._start()
        assert self._child is not None
        event = self._child.poll(timeout_s)
        now = time.monotonic()
        self._silent_s += min(now - self._polled_at, _CREDIT_S)
        self._polled_at = now
        if isinstance(event, Message):
            return self._finish(event.value)
        if isinstance(event, Stuck):
            self._stuck(event)
        elif isinstance(event, (Failed, Finished)):
            self._ended(f"it failed: {event.error}" if isinstance(event, Failed) else "it ended")
        elif self._silent_s > self._slow_s:
            self._silent()
        return None

    def _start(self) -> None:
        """A new child; the old one is ended."""
        if self._child is not None:
            self._child.close()
        self._mark(_NONE)
        self._child = WatchedChild(
            self._run, deadline_s=self._deadline_s, quarantine=self._quarantine.blocked(), keep=self._plan.keep
        )
        self._child.start()
        self._silent_s, self._polled_at = 0.0, time.monotonic()

    def _finish(self, told: Told) -> Snapshot:
        """Put to a Snapshot what only the parent knows."""
        self._silent_s, self._restart_s = 0.0, _RESTART_S
        self._slow_s = max(self._silence_s, 5 * told.snapshot.cost.period_ns / 1e9)
        self.stale = self.stale or told.stale
        self._note_failures(told.failed)
        found = told.snapshot
        events, self._events = [*self._events, *found.events], []
        child = self._child.pid if self._child is not None else 0
        ratio = self._meter.cpu_ratio(told.cpu_ns, found.monotonic_ns)
        cost = replace(found.cost, cpu_ratio=ratio, memory_bytes=self._meter.memory_bytes(child))
        return replace(found, events=tuple(events), health=tuple(self._health()), cost=cost)

    def _health(self) -> Iterable[SourceLevel]:
        held = self._quarantine.held()
        wall = time.time_ns() - time.monotonic_ns()
        for one in held:
            path = "" if one.path.startswith(SOURCE) else one.path
            yield SourceLevel(
                id=one.source, state="quarantined", path=path, since_ns=one.since_ns, wchan=one.wchan,
                retry_ns=wall + one.retry_at,
            )  # fmt: skip
        away = {one.source for one in held}
        for source in self._plan.sources:
            if source.name not in away:
                why, since = self._failed.get(source.name), self._failed_ns.get(source.name, 0)
                yield SourceLevel(
                    id=source.name, state="ok" if why is None else "absent", path=why or "", since_ns=since
                )

    def _note_failures(self, failed: dict[str, str]) -> None:
        """What begins or ends to fail is told; that something works for the first time is told only after a failure
        that was."""
        for name, why in failed.items():
            if name not in self._failed:
                self._failed_ns[name] = time.time_ns()
                self._say("warn", f"{name} fails: {why}")
        for name in self._failed:
            if name not in failed:
                del self._failed_ns[name]
                self._say("info", f"{name} works{' again' if name in self._met else ''}")
        self._failed = failed
        self._met.update(source.name for source in self._plan.sources if source.name not in failed)

    def _say(self, level: str, text: str) -> None:
        self._events.append(EventMark(at_ns=time.time_ns(), kind="source", device="", level=level, text=text))

    # -- what hangs --

    def _stuck(self, stuck: Stuck) -> None:
        """The child hung, or died."""
        died = len(stuck.state) > 1
        if not stuck.path:
            self._ended(f"it ended while it read nothing ({stuck.state})")
            return
        what = f"died ({stuck.state})" if died else f"did not come back for {stuck.age_s:.1f} s (state {stuck.state})"
        self._hold(stuck.path, f"{stuck.path} {what}", stuck.wchan)
        self._start()

    def _silent(self) -> None:
        """The child computes, or waits where no path stands."""
        name = self._source_at()
        if name:
            self._hold(f"{SOURCE}{name}", f"{name} computed for {self._silent_s:.0f} s without an end", "")
        else:
            self._say("warn", f"the sampler stood still for {self._silent_s:.0f} s: it is started anew")
        self._start()

    def _hold(self, path: str, text: str, wchan: str) -> None:
        held = self._quarantine.add(path, self._source_at(), wchan, time.monotonic_ns(), time.time_ns())
        where = f" in {wchan}" if wchan else ""
        self._say("warn", f"{text}{where}: left alone for {held.wait_s:g} s")

    def _ended(self, text: str) -> None:
        """Nobody to blame: start again, later each time."""
        self._say("warn", f"the sampler is started anew: {text}")
        if self._child is not None:
            self._child.close()
            self._child = None
        self._starts_at = time.monotonic() + self._restart_s
        self._restart_s = min(2 * self._restart_s, _MOST_RESTART_S)

    # -- trying again --

    def _attend_trial(self) -> None:
        """Begin a trial when one is due; end the one that is decided."""
        if self._trial is None:
            held = self._quarantine.due(time.monotonic_ns())
            if held is not None and hangs_yet(held.path):  # no child is needed to know
                self._quarantine.add(held.path, held.source, held.wchan, time.monotonic_ns(), time.time_ns())
            elif held is not None:
                self._begin_trial(held)
            return
        held, event = self._tried, self._trial.poll(0.0)
        assert held is not None
        if isinstance(event, Finished):
            self._end_trial()
            self._quarantine.passed(held.path, time.monotonic_ns())
            events, stale = event.value
            self._events += events
            self.stale = self.stale or stale
            self._say("info", f"{held.path.removeprefix(SOURCE)} is back")
            self._start()
        elif isinstance(event, (Failed, Stuck)) or time.monotonic() > self._trial_ends:
            self._end_trial()
            wchan = event.wchan if isinstance(event, Stuck) else ""
            self._quarantine.add(held.path, held.source, wchan, time.monotonic_ns(), time.time_ns())

    def _begin_trial(self, held: Held) -> None:
        def work(watch: Watch) -> tuple[list[EventMark], bool]:
            self._plan.begin(watch)
            draft, tick = Draft(), _tick(watch, 0)
            for source in self._plan.sources:
                if source.name in (Devices.name, held.source):  # nobody is woken to see whether a path hangs yet
                    source.sample(draft, tick)
                    tick = _asleep(tick, draft)
            return draft.events, draft.stale  # what was taken out of a socket is in no other child's

        self._tried = held
        self._trial_ends = time.monotonic() + self._silence_s
        self._trial = WatchedChild(
            work, deadline_s=self._deadline_s, quarantine=self._quarantine.blocked(but=held.path), keep=self._plan.keep
        )
        self._trial.start()

    def _end_trial(self) -> None:
        if self._trial is not None:
            self._trial.close()
        self._trial = self._tried = None

    def close(self) -> None:
        """End the children; safe to call twice."""
        self._end_trial()
        if self._child is not None:
            self._child.close()
            self._child = None
        self._starts_at = float("inf")
        self._where.close()

    # -- the child's side --

    def _mark(self, number: int) -> None:
        self._where.view[0] = number

    def _source_at(self) -> str:
        """The source that is at work, or was when the child ended."""
        number = self._where.view[0]
        return self._plan.sources[number].name if number < len(self._plan.sources) else ""

    def _run(self, watch: Watch) -> None:
        """Tick for ever: the parent ends us."""
        gc.enable()  # whoever forked this may do without, since it has but started
        self._plan.begin(watch)
        budget, seen, ticks = Budget(self._period_s, self._budget), Said(), 0
        cpu = before = sent = 0
        while True:
            tick = _tick(watch, before)
            before, last, cpu = tick.monotonic_ns, cpu, time.process_time_ns()
            if ticks > 1:  # the first one finds and opens everything
                budget.spent(cpu - last)
            draft, failed = self._sample(tick, watch.quarantine)
            watch.slot.enter("")
            took, period = time.monotonic_ns() - before, budget.period_ns
            cost = SelfCost(reads=draft.reads, tick_ns=took, period_ns=period)
            found = seen.news(replace(draft.snapshot(tick), cost=cost))
            used, sent = time.process_time_ns() - sent, time.process_time_ns()
            watch.send(Told(found, failed, used, draft.stale))
            time.sleep(max(0, before + period - time.monotonic_ns()) / 1e9)
            ticks += 1

    def _sample(self, tick: Tick, quarantine: frozenset[str]) -> tuple[Draft, dict[str, str]]:
        """Ask every source; one that fails does not keep the others from being asked."""
        draft, failed = Draft(), {}
        for number, source in enumerate(self._plan.sources):
            if f"{SOURCE}{source.name}" in quarantine:
                continue
            self._mark(number)
            tick.enter("")  # what the source before read last is not this one's
            try:
                source.sample(draft, tick)
            except Exception as error:
                failed[source.name] = _why(error)
            tick = _asleep(tick, draft)
        self._mark(_NONE)
        self._plan.finish(draft)
        return draft, failed


def _why(error: Exception) -> str:
    """What failed, for a line. A class's name is no word for people: only for what nobody put into words."""
    said = " ".join(str(error).split())[:160]
    return said if said and isinstance(error, Plainly) else f"{type(error).__name__}: {said}"


def _tick(watch: Watch, before_ns: int) -> Tick:
    now = time.monotonic_ns()
    return Tick(time.time_ns(), now, now - before_ns if before_ns else 0, watch.slot.enter, watch.quarantine)


def _asleep(tick: Tick, draft: Draft) -> Tick:
    """The tick as the next source sees it: with the devices of which it is known that they sleep."""
    return tick._replace(asleep=frozenset(name for name, fields in draft.devices.items() if fields.get("asleep")))
