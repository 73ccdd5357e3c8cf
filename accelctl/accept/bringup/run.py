"""The run: steps one after the other, each in its box, each kept; signals end it in order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

import accelctl
from accelctl.accept.bringup import needs
from accelctl.accept.bringup import subjects as choosing
from accelctl.accept.bringup.boxed import boxed
from accelctl.accept.bringup.state import State, key
from accelctl.accept.bringup.step import INCONCLUSIVE, LEVELS, SKIP, Came, Job, Order, left_alone, undecided
from accelctl.accept.bringup.table import AFTER_HANG, Planned, planned
from accelctl.errors import AccelError, UsageError
from accelctl.exits import SIGNAL_BASE
from accelctl.hal.endings import once
from accelctl.model.bringupreport import BringupReport, StepResult, Subject

Tick = Callable[[int, int, str, str], None]
"""Progress: number of the step, how many there are, the step and its device, what it does."""
LEAST_S = 0.05
"""With less than that left a step is not begun."""


def check(order: Order) -> None:
    """What can be wrong is told before anything is done. UsageError."""
    if order.level not in LEVELS:
        raise UsageError(f"--level {order.level}: 1 (seconds), 2 (minutes) or 3 (an hour)")
    if order.seed < 0:
        raise UsageError(f"--seed {order.seed}: 0 or more is possible")
    if order.disruptive and order.level < 3:
        raise UsageError("--disruptive goes with --level 3")
    if order.sim and order.device != ("sim:0",):
        raise UsageError("--sim goes with --device sim:0")
    if not 0 <= order.max_regress <= 1000:
        raise UsageError(f"--max-regress {order.max_regress:g}: a share in percent, 0 or more")
    _check_files(order)


def _check_files(order: Order) -> None:
    """Read once, so that a typing error costs nothing. Steps read them again, so a pipe will not do."""
    for option, path in (("--expect", order.expect), ("--baseline", order.baseline), ("--caps", order.caps)):
        if path and os.path.exists(path) and not os.path.isfile(path):
            raise UsageError(f"{option} {path}: not a plain file, and it is read more than once")
    if order.expect:
        from accelctl.accept import manifest

        wanted = manifest.load(order.expect)
        if not (wanted.machine or wanted.parameters or wanted.devices):
            raise UsageError(f"{order.expect}: it expects nothing", "accelctl probe --save-expect FILE writes one")
    if order.baseline:
        from accelctl.accept.bench import store

        if not store.read(order.baseline).figures:
            raise UsageError(f"{order.baseline}: it has no figures to compare with", "accelctl bench --save FILE")
    if order.caps:
        from accelctl.abi import capabilityfile

        if not os.path.exists(order.caps):
            raise UsageError(f"{order.caps}: there is no such file", "accelctl smoke --save FILE writes one")
        capabilityfile.read(order.caps)


def carry_out(order: Order, state: State, command: str, tick: Tick, resume: bool = False) -> BringupReport:
    """All steps. From the choice of devices on there is a report, whatever ends the run. NoDeviceError (exit 3) where
    there is nothing to accept, or a package is missing."""
    begin = time.monotonic()
    started = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = choosing.chosen(order)
    needs.packages(found)
    report = BringupReport(order.level, found, command, accelctl.__version__, started)
    head = key(order, found)
    if resume:
        why = state.resume(head)
        report.notes += [f"begun anew: {why}"] if why else []
    else:
        state.begin(head)
    run = _Run(order, found, state, report, tick, begin)
    try:
        with once():
            run.everything()
    except KeyboardInterrupt:
        report.ended = SIGNAL_BASE + signal.SIGINT
    except SystemExit as error:  # hal.endings
        report.ended = int(error.code or 0)
    run.rest()
    report.seconds = time.monotonic() - begin
    return report


class _Run:
    """One run."""

    def __init__(
        self,
        order: Order,
        subjects: tuple[Subject, ...],
        state: State,
        report: BringupReport,
        tick: Tick,
        begin: float,
    ) -> None:
        self._order, self._subjects, self._state = order, subjects, state
        self._report, self._tick = report, tick
        self._end = begin + order.time_s if order.time_s else float("inf")
        self._plan = planned(order, subjects)
        self._hung: dict[str, str] = {}
        """Device -> what did not come back."""

    def everything(self) -> None:
        """Every step that is not done yet."""
        for number, one in enumerate(self._plan, start=1):
            self._report.steps.append(self._step(number, one))

    def rest(self) -> None:
        """What an ending kept from running stands in the report too."""
        said = "interrupted in the middle of it"
        for one in self._plan[len(self._report.steps) :]:
            self._report.steps.append(_result(one, Came(SKIP, one.why) if one.why else undecided(said)))
            said = said if one.why else "not run: interrupted before it"

    def _step(self, number: int, one: Planned) -> StepResult:
        if one.why:
            return _result(one, Came(SKIP, one.why))
        kept = self._state.kept(one.step.name, one.device) if one.step.resumed else None
        if kept is not None:
            return replace(kept, kept=True)
        hung = self._hung.get(one.device, "")
        if hung and one.step.name not in AFTER_HANG:
            return _result(one, Came(INCONCLUSIVE, f"not run: the device hangs ({hung})"))
        if one.subject is not None and one.subject.left_alone:
            return _result(one, undecided(left_alone(one.subject.left_alone, one.subject.lift)))
        left = self._end - time.monotonic()
        if left < LEAST_S:
            return _result(one, Came(INCONCLUSIVE, f"not run: no time left of {self._order.time_s:g} s", cut=True))
        return self._run(number, one, min(one.box_s, left))

    def _run(self, number: int, one: Planned, box_s: float) -> StepResult:
        name = f"{one.step.name} of {one.device}" if one.device else one.step.name

        def say(text: str) -> None:
            self._tick(number, len(self._plan), name, text)

        begin = time.monotonic()
        came = boxed(
            one.step.name,
            one.device,
            lambda tell: one.step.work(Job(self._order, self._subjects, one.subject, box_s, tell)),
            box_s,
            say,
        )
        result = _result(one, came, time.monotonic() - begin, box_s)
        self._note_hang(result)
        if one.step.resumed:
            self._keep(result)
        else:
            why = self._state.seen(came.fingerprint)
            self._report.notes += [f"begun anew: {why}"] if why else []
        return result

    def _keep(self, result: StepResult) -> None:
        """What cannot be written cannot be resumed, and decides nothing."""
        try:
            self._state.add(result)
        except AccelError as error:
            note = f"--resume will not find all of this run: {error.message}"
            self._report.notes += [note] if note not in self._report.notes else []

    def _note_hang(self, step: StepResult) -> None:
        if step.hang and step.device:
            self._hung[step.device] = step.hang


def _result(one: Planned, came: Came, seconds: float = 0.0, box_s: float = 0.0) -> StepResult:
    return StepResult(
        one.step.name,
        one.device,
        came.result,
        came.reason,
        came.findings,
        came.facts,
        came.charts,
        came.command,
        came.hang,
        came.cut,
        round(seconds, 3),
        box_s,
    )
