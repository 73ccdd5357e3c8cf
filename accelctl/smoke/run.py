"""`accelctl smoke`: choose a device, start a service for it or use one that runs, run cases, gather evidence."""

from __future__ import annotations

import fnmatch
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from accelctl.abi import capabilityfile, compute
from accelctl.abi.compute import Found
from accelctl.abi.ops import Template
from accelctl.abi.platforms import templates_of
from accelctl.errors import AccelError, DeviceUnusable, NoDeviceError, UsageError
from accelctl.exits import SIGNAL_BASE
from accelctl.hal.endings import in_order
from accelctl.hal.trace import Trace
from accelctl.model.smokereport import CaseRow, DecodeRun, SmokeReport
from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP
from accelctl.smoke import capabilities, compare, through
from accelctl.smoke.alone import Alone
from accelctl.smoke.cases import Case, Trial, select, sequences
from accelctl.smoke.decode import decode
from accelctl.smoke.ladder import Ladder
from accelctl.smoke.machine import ServiceMachine
from accelctl.smoke.ownservice import OwnService
from accelctl.umd import listen
from accelctl.umd.client import Client, ClientSession, ServiceError, SessionGone

DEADLINE_S = 20.0
"""Of one call: a busy machine is no failure of a kernel."""
Tick = Callable[[str, int, int], None]
"""Told before each case: its id, its number, how many there are."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for."""

    device: tuple[str, ...] = ()
    target: str = ""
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    cases: str = ""
    """A pattern for ids, as in ``softmax/*/large*``."""
    seed: int = 0
    only: frozenset[str] = frozenset()
    """Ids of cases; empty: all."""
    long: bool = False
    model: bool = True
    """Also run the small transformer."""
    trace: str = ""
    """File for what happens, as Chrome trace JSON."""
    save: str = ""
    """File that keeps the evidence (abi.capabilityfile)."""


def chosen(request: Request) -> list[Case]:
    """The cases. UsageError for names that nothing has, and for a choice that leaves nothing."""
    if request.seed < 0:
        raise UsageError(f"--seed {request.seed}: 0 or more is possible")
    found = select(request.ops, request.dtypes, request.long)
    if request.cases:
        found = [case for case in found if fnmatch.fnmatchcase(case.id, request.cases)]
    if request.only:
        found = [case for case in found if case.id in request.only]
    if not found:
        raise UsageError("no case fits --op, --dtype and --case together", "accelctl smoke --list-cases")
    return found


def carry_out(request: Request, tick: Tick = lambda name, number, count: None) -> SmokeReport:
    """Run it. NoDeviceError where the device is not here, and says what was looked for. From the first case on there is
    a report, whatever ends the run."""
    cases = chosen(request)
    if request.trace and os.path.lexists(request.trace):  # asked here: our service's refusal is a failure of smoke
        raise UsageError(f"{request.trace}: there is such a file already")
    if request.save:
        capabilityfile.update(request.save, list)  # a place that cannot be written is told before the run
    with in_order(), ExitStack() as held:
        try:
            run, hello, found = _begun(request, held, tick)
        except ServiceError as error:
            if error.code != "UNAVAILABLE" or error.kind == "permission":
                raise
            kind = NoDeviceError if request.target else DeviceUnusable
            raise kind(error.message, error.hint) from error
        run.everything(cases, tick)
        try:
            held.close()
        except AccelError as error:
            run.unclean(error)
        report = run.report(hello, found)
        if request.save:
            capabilityfile.update(request.save, lambda known: capabilities.gathered(known, report, found))
        return report


def _begun(request: Request, held: ExitStack, tick: Tick) -> tuple[Run, Any, Found | None]:
    client, device = _connect(request, held, tick)
    trace = _trace(request, held)
    hello = client.handshake()
    found = device or _local(hello.device)
    alone = _alone(found, held)
    flush = found is not None and found.device.flushes
    run = Run(client, Ladder(_names(found), alone, flush, _behind(found)), request, held, trace)
    if flush:
        run.notes.append("this device flushes subnormal numbers to zero, which is no error of add")
    return run, hello, found


def _connect(request: Request, held: ExitStack, tick: Tick) -> tuple[Client, Found | None]:
    if request.target:
        client = held.enter_context(Client(listen.parse(request.target).grpc, deadline_s=DEADLINE_S))
        there = client.handshake().device
        if request.device and there not in request.device:
            raise NoDeviceError(f"the service at {request.target} has {there}, not {' or '.join(request.device)}")
        return client, None
    found = compute.choose(list(request.device))
    options = ("--evidence", "none", *(("--trace", request.trace) if request.trace else ()))
    tick(f"starting a service for {found.device.target.id}", 0, 0)
    service = held.enter_context(OwnService(found.device.target.id, options))
    return held.enter_context(Client(service.address, deadline_s=DEADLINE_S)), found


def _trace(request: Request, held: ExitStack) -> Trace | None:
    """The service of our own has begun the file and will end it; beside one that runs already it is only ours."""
    if not request.trace:
        return None
    trace = Trace(request.trace, join=not request.target)
    if request.target:
        held.callback(trace.close, quiet=True)  # the report has a note of it
    return trace


def _local(device: str) -> Found | None:
    """The same device opened here; None where this machine does not have it (a service elsewhere)."""
    try:
        return compute.named(device)
    except AccelError:
        return None


def _alone(found: Found | None, held: ExitStack) -> Alone | None:
    if found is None:
        return None
    alone = Alone(found)
    held.callback(alone.close)
    return alone


def _names(found: Found | None) -> dict[int, tuple[str, str]]:
    known = templates_of(found) if found is not None else {}
    return {one.kernel_id: (one.name, one.op) for one in known.values()}


def _behind(found: Found | None) -> dict[str, Template]:
    known = templates_of(found) if found is not None else {}
    return {one.name: known[one.fallback] for one in known.values() if one.fallback in known}


class Run:
    """One run against one service."""

    def __init__(
        self, client: Client, ladder: Ladder, request: Request, held: ExitStack, trace: Trace | None = None
    ) -> None:
        self._client, self.ladder, self._request, self._trace = client, ladder, request, trace
        self._held = held
        self._session: ClientSession | None = None
        self.rows: list[CaseRow] = []
        self.decodes: list[DecodeRun] = []
        self.notes: list[str] = []
        self.hang = self.gone = ""
        """What did not come back; that the service does not answer any more. Either ends the run."""
        self.ended = 0
        """Exit status, where a signal ended the run."""
        self._before = self._launches()
        held.callback(self._drop)

    def everything(self, cases: list[Case], tick: Tick) -> None:
        """All of it, until something ends it."""
        try:
            self.cases(cases, tick)
            self.orders(cases)
            self.model()
            self.count()
        except KeyboardInterrupt:
            self.ended = SIGNAL_BASE + signal.SIGINT
        except SystemExit as error:  # see hal.endings
            self.ended = int(error.code or 0)

    def unclean(self, error: AccelError) -> None:
        """The end went wrong: where the service is gone, that says why it is."""
        if self.gone:
            self.gone = f"{self.gone}; {error.message}"
        else:
            self.rows.append(CaseRow("service/end", "service", "", FAIL, error.message))

    def _look(self, error: ServiceError) -> None:
        """Is anybody there?"""
        if error.code == "UNAVAILABLE":
            self.gone = self.gone or error.message

    @property
    def session(self) -> ClientSession:
        """The session; a new one where the last one was lost."""
        if self._session is None:
            self._session = self._client.session()
        return self._session

    def _drop(self) -> None:
        """A device that died under a session takes it along; the next case gets another."""
        session, self._session = self._session, None
        if session is not None:
            try:
                session.close()
            except ServiceError as error:
                self._look(error)
                if not self.gone:
                    self.notes.append(f"a session was not given back cleanly: {error.message}")

    def cases(self, cases: Iterable[Case], tick: Tick) -> None:
        """Each of them, in order."""
        every = list(cases)
        replayed: set[str] = set()
        for number, case in enumerate(every):
            tick(case.id, number, len(every))
            trial = case.load(self._request.seed)
            start = time.perf_counter_ns()
            row, ran = self._case(trial)
            plain = row.kernel and "," not in row.kernel
            if ran is not None and row.result == PASS and (case.repeat or (plain and row.kernel not in replayed)):
                row = self._again(trial, row, ran)
                replayed.add(row.kernel)
            self.rows.append(row._replace(seconds=(time.perf_counter_ns() - start) / 1e9))
            if self._trace is not None:
                self._trace.event(case.id, start, {"result": row.result, "kernel": row.kernel})
            if self.hang or self.gone:
                return

    def _case(self, trial: Trial) -> tuple[CaseRow, through.Ran | None]:
        """Its row, and what ran; None where nothing came back."""
        case = trial.case
        row = CaseRow(case.id, case.op, case.dtype, FAIL, "", case.corner, trial.refusal is not None)
        try:
            ran = through.run(self.session, trial)
        except SessionGone as error:
            self._session = None
            return row._replace(detail=error.message), None
        except ServiceError as error:
            if error.kind == "timeout":
                self.hang = f"{case.id}: {error.message}"
            self._look(error)
            self._drop()
            return row._replace(detail=error.message), None
        if ran.response is not None:
            self.ladder.counted(ran.response)
        if ran.lost:
            self._drop()
        return self._judged(row, trial, ran), ran

    def _judged(self, row: CaseRow, trial: Trial, ran: through.Ran) -> CaseRow:
        if trial.refusal is not None:
            found = compare.judge_refusal(trial, ran.refused)
            return row._replace(result=PASS if found.passed else FAIL, detail=found.detail)
        if ran.refused is not None:
            return row._replace(result=SKIP if ran.unsupported else FAIL, detail=f"refused: {ran.refused}")
        results = self.ladder.judge(trial, ran.results)
        bad = [one for one in results if not one.passed]
        worst = max(results, key=lambda one: (not one.passed, one.max_abs), default=None)
        kernels = self.ladder.kernels(ran.response)
        row = row._replace(
            tolerance=", ".join(dict.fromkeys(rule.text for rule in trial.rules.values())),
            kernel=", ".join(name for name, _ in kernels),
        )
        if worst is not None:
            row = row._replace(
                max_abs=worst.max_abs,
                max_rel=worst.max_rel,
                ulps=worst.ulps,
                share=max(one.share for one in results),
                first=worst.first,
                detail="; ".join(one.detail for one in bad) or worst.detail,
            )
        if bad or ran.gaps:
            return row._replace(result=FAIL, detail=row.detail if bad else ran.gaps)
        self.ladder.passed(trial, ran.response, max((one.ulps for one in results), default=0))
        return row._replace(result=PASS)

    def _again(self, trial: Trial, row: CaseRow, before: through.Ran) -> CaseRow:
        """The same once more: from the cache, and right again; where the case asks for it, with the same bytes."""
        try:
            ran = through.run(self.session, trial)
        except ServiceError as error:
            self._look(error)
            return row._replace(result=FAIL, detail=f"the second time: {error.message}")
        self.ladder.counted(ran.response)
        bad = [one.detail for one in self.ladder.judge(trial, ran.results) if not one.passed]
        if not bad and trial.case.repeat:
            bad = [said] if (said := compare.changed(trial, before.results, ran.results)) else []
        if bad:
            return row._replace(result=FAIL, detail=f"the second time: {bad[0]}")
        if not ran.response.cache_hit:
            return row._replace(result=FAIL, detail="the second time it was translated again, not taken from the cache")
        self.ladder.replayed(ran.response)
        return row

    def orders(self, cases: Iterable[Case]) -> None:
        """Cases that belong together, in a session of their own: in their order and in reverse, right and with the same
        bytes both times. A kernel that was kept for one of them is offered to the next."""
        for name, together in sequences(cases):
            if len(together) < 2 or self.hang or self.gone:
                continue
            start = time.monotonic()
            trials = [case.load(self._request.seed) for case in together]
            self._drop()
            said = self._both_ways(trials)
            self.rows.append(
                CaseRow(
                    f"order/{name}",
                    "order",
                    "",
                    FAIL if said else PASS,
                    said or f"{len(trials)} cases give the same in both orders",
                    "results must not depend on what ran before",
                    seconds=time.monotonic() - start,
                )
            )

    def _both_ways(self, trials: list[Trial]) -> str:
        """What is wrong, or nothing."""
        first: dict[str, through.Ran] = {}
        for trial in (*trials, *reversed(trials)):
            row, ran = self._case(trial)
            if row.result == SKIP:
                continue
            if row.result != PASS or ran is None:
                return f"{row.id}: {row.detail}"
            before = first.setdefault(row.id, ran)
            said = compare.changed(trial, before.results, ran.results)
            if said:
                return f"{row.id}, in reverse order: {said}"
        return ""

    def model(self) -> None:
        """The small transformer, in each element type that was asked for."""
        wanted = self._request.model and not self._request.ops and not self._request.cases
        if not wanted or self.hang or self.gone:
            return
        for dtype in ("fp32", "fp16", "bf16"):
            if self._request.dtypes and dtype not in self._request.dtypes:
                continue
            try:
                machine = ServiceMachine(self.session, self.ladder.kernels)
                self.decodes.append(decode(machine, time.monotonic, dtype, self._request.seed))
            except ServiceError as error:
                self._look(error)
                self._drop()
                self.notes.append(f"the small transformer in {dtype} did not run: {error.message}")
                result = SKIP if error.kind == "not_supported" else FAIL  # a chip may have a few kernels only
                self.rows.append(CaseRow(f"decode/{dtype}", "decode", dtype, result, error.message))
                return
            self.ladder.handed_over(machine.kernels)
            machine.close()
        self.ladder.ended(self.decodes)

    def count(self) -> None:
        """Were as many instructions launched as were handed over?"""
        if self.hang or self.gone:
            return
        try:
            now = self._launches()
        except ServiceError as error:
            self._look(error)
            self.rows.append(CaseRow("dispatch", "dispatch", "", FAIL, error.message))
            return
        told = {op: count - self._before.get(op, 0) for op, count in now.items()}
        said = self.ladder.dispatched(told)
        if said and self._request.target:
            self.notes.append(f"dispatch not counted: others use this service ({said})")
        elif said:
            self.rows.append(CaseRow("dispatch", "dispatch", "", FAIL, said))
        for line in self.ladder.wrong:
            self.rows.append(CaseRow(f"evidence/{line.partition(' ')[0]}", "evidence", "", FAIL, line))

    def _launches(self) -> dict[str, int]:
        """Op -> instructions that the service has launched, ever."""
        return {one.op: one.launches for one in self._client.telemetry().ops}

    def report(self, hello: Any, found: Found | None) -> SmokeReport:
        """What it came to."""
        if self._trace is not None and self._trace.lost:
            self.notes.append(self._trace.lost)
        if self.ended:
            self.notes.append("interrupted: what had not run yet is not in this report")
        undecided = [row for row in self.rows if row.result == INCONCLUSIVE]
        if undecided:
            self.notes.append(f"{len(undecided)} cases could not be decided")
        return SmokeReport(
            device=hello.device,
            chip=found.chip.manifest.name if found else hello.device.partition(":")[0],
            target=self._request.target,
            simulated=hello.simulated,
            seed=self._request.seed,
            command=shlex.join(["accelctl", *sys.argv[1:]]),
            proven=found.chip.manifest.proven if found else "",
            rows=tuple(self.rows),
            decode=tuple(self.decodes),
            evidence=self.ladder.evidence(),
            notes=tuple(self.notes),
            ended=self.ended,
            hang=self.hang,
            gone=self.gone,
        )
