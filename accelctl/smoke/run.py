"""`accelctl smoke`: choose a device, start a service for it or use one that runs, run cases, gather evidence."""

from __future__ import annotations

import fnmatch
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from accelctl.abi import compute
from accelctl.abi.compute import Found
from accelctl.errors import AccelError, NoDeviceError, UsageError
from accelctl.model.smokereport import CaseRow, DecodeRun, SmokeReport
from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP
from accelctl.smoke import compare, through
from accelctl.smoke.alone import Alone
from accelctl.smoke.cases import Case, Trial, select
from accelctl.smoke.decode import decode
from accelctl.smoke.ladder import Ladder
from accelctl.smoke.machine import ServiceMachine
from accelctl.smoke.ownservice import OwnService
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
    long: bool = False
    model: bool = True
    """Also run the small transformer."""


def chosen(request: Request) -> list[Case]:
    """The cases. UsageError for names that nothing has, and for a choice that leaves nothing."""
    found = select(request.ops, request.dtypes, request.long)
    if request.cases:
        found = [case for case in found if fnmatch.fnmatchcase(case.id, request.cases)]
    if not found:
        raise UsageError("no case fits --op, --dtype and --case together", "accelctl smoke --list-cases")
    return found


def carry_out(request: Request, tick: Tick = lambda name, number, count: None) -> SmokeReport:
    """Run it. NoDeviceError where the device is not here, and says what was looked for."""
    cases = chosen(request)
    with ExitStack() as held:
        client, device = _connect(request, held)
        hello = client.handshake()
        found = device or _local(hello.device)
        alone = _alone(found, held)
        run = Run(client, Ladder(_names(found), alone), request, held)
        try:
            run.cases(cases, tick)
            run.model()
            run.count()
        except KeyboardInterrupt:
            run.interrupted = True
        return run.report(hello, found)


def _connect(request: Request, held: ExitStack) -> tuple[Client, Found | None]:
    if request.target:
        client = held.enter_context(Client(request.target, deadline_s=DEADLINE_S))
        there = client.handshake().device
        if request.device and there not in request.device:
            raise NoDeviceError(f"the service at {request.target} has {there}, not {' or '.join(request.device)}")
        return client, None
    found = compute.choose(list(request.device))
    service = held.enter_context(OwnService(found.device.target.id))
    return held.enter_context(Client(service.address, deadline_s=DEADLINE_S)), found


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
    if found is None or found.chip.ops is None:
        return {}
    return {one.kernel_id: (one.name, one.op) for one in found.chip.ops.templates()}


class Run:
    """One run against one service."""

    def __init__(self, client: Client, ladder: Ladder, request: Request, held: ExitStack) -> None:
        self._client, self.ladder, self._request = client, ladder, request
        self._held = held
        self._session: ClientSession | None = None
        self.rows: list[CaseRow] = []
        self.decodes: list[DecodeRun] = []
        self.notes: list[str] = []
        self.hang = ""
        self.interrupted = False
        self._before = self._launches()
        held.callback(self._end)

    def _end(self) -> None:
        if self._session is not None:
            self._session.close()

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
                self.notes.append(f"a lost session was not given back cleanly: {error.message}")

    def cases(self, cases: Iterable[Case], tick: Tick) -> None:
        """Each of them, in order."""
        every = list(cases)
        replayed: set[str] = set()
        for number, case in enumerate(every):
            tick(case.id, number, len(every))
            trial = case.load(self._request.seed)
            start = time.monotonic()
            row = self._case(trial)
            plain = row.kernel and "," not in row.kernel
            if row.result == PASS and (case.repeat or (plain and row.kernel not in replayed)):
                row = self._again(trial, row)
                replayed.add(row.kernel)
            self.rows.append(row._replace(seconds=time.monotonic() - start))
            if self.hang:
                return

    def _case(self, trial: Trial) -> CaseRow:
        case = trial.case
        row = CaseRow(case.id, case.op, case.dtype, FAIL, "", case.corner, trial.refusal is not None)
        try:
            ran = through.run(self.session, trial)
        except SessionGone as error:
            self._session = None
            return row._replace(detail=error.message)
        except ServiceError as error:
            if error.kind == "timeout":
                self.hang = f"{case.id}: {error.message}"
            self._drop()
            return row._replace(detail=error.message)
        if ran.response is not None:
            self.ladder.counted(ran.response)
        if ran.lost:
            self._drop()
        return self._judged(row, trial, ran)

    def _judged(self, row: CaseRow, trial: Trial, ran: through.Ran) -> CaseRow:
        if trial.refusal is not None:
            found = compare.judge_refusal(trial, ran.refused)
            return row._replace(result=PASS if found.passed else FAIL, detail=found.detail)
        if ran.refused is not None:
            return row._replace(result=SKIP if ran.unsupported else FAIL, detail=f"refused: {ran.refused}")
        results = compare.judge(trial, ran.results)
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
                first=worst.first,
                detail="; ".join(one.detail for one in bad) or worst.detail,
            )
        if bad or ran.gaps:
            return row._replace(result=FAIL, detail=row.detail if bad else ran.gaps)
        self.ladder.passed(trial, ran.response, max((one.ulps for one in results), default=0))
        return row._replace(result=PASS)

    def _again(self, trial: Trial, row: CaseRow) -> CaseRow:
        """The same once more: from the cache, and right again."""
        try:
            ran = through.run(self.session, trial)
        except ServiceError as error:
            return row._replace(result=FAIL, detail=f"the second time: {error.message}")
        self.ladder.counted(ran.response)
        bad = [one.detail for one in compare.judge(trial, ran.results) if not one.passed]
        if bad:
            return row._replace(result=FAIL, detail=f"the second time: {bad[0]}")
        if not ran.response.cache_hit:
            return row._replace(result=FAIL, detail="the second time it was translated again, not taken from the cache")
        self.ladder.replayed(ran.response)
        return row

    def model(self) -> None:
        """The small transformer, in each element type that was asked for."""
        if not self._request.model or self.hang or self._request.ops or self._request.cases:
            return
        for dtype in ("fp32", "fp16", "bf16"):
            if self._request.dtypes and dtype not in self._request.dtypes:
                continue
            machine = ServiceMachine(self.session, self.ladder.kernels)
            try:
                self.decodes.append(decode(machine, time.monotonic, dtype, self._request.seed))
            except ServiceError as error:
                self._drop()
                self.notes.append(f"the small transformer in {dtype} did not run: {error.message}")
                self.rows.append(CaseRow(f"decode/{dtype}", "decode", dtype, FAIL, error.message))
                return
            self.ladder.launched.update(machine.launches)
            machine.close()
        self.ladder.ended(self.decodes)

    def count(self) -> None:
        """Were as many instructions launched as were handed over?"""
        now = self._launches()
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
        if self.interrupted:
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
            interrupted=self.interrupted,
            hang=self.hang,
        )
