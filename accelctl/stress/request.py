"""What was asked on the command line, turned into a plan, checked before anything is opened, and carried out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from accelctl.errors import AccelError, UsageError
from accelctl.hal.root import SysRoot, open_root
from accelctl.hal.trace import Trace
from accelctl.model import quantity
from accelctl.model.stressreport import StressReport
from accelctl.stress import shrink, targets
from accelctl.stress.conductor import Tick
from accelctl.stress.door import Fault, parse_fault
from accelctl.stress.kill import kill_run
from accelctl.stress.limits import parse_limit
from accelctl.stress.lostmemory import searched
from accelctl.stress.plan import DEFAULT_BYTES, DEFAULT_SECONDS, Plan
from accelctl.stress.room import free_bytes
from accelctl.stress.run import OUTSIDE, Dish, Options, chosen, menu, run
from accelctl.stress.sweep import require_kernel
from accelctl.stress.sweeping import sweep_run
from accelctl.stress.targets import Allowed, Candidate, Found

SHARE = 0.05
"""Of what is free, at most, unless --bytes-limit says otherwise."""


@dataclass(frozen=True)
class Request:
    """The options as typed."""

    device: list[str] | None = None
    peer: str = ""
    lifecycle: list[str] | None = None
    sim: str = ""
    cycles: str = ""
    duration: str = ""
    workers: int = 1
    threads: int = 1
    seed: int = 1
    bytes_limit: str = ""
    sizes: str = "mixed"
    hold: int = 8
    order: str = "random"
    touch: str = "ends"
    va: str = "recycle"
    va_limit: str = ""
    fault: list[str] | None = None
    limit: list[str] | None = None
    sweep: bool = False
    sweep_kernel: bool = False
    kill: bool = False
    kmemleak: bool = False
    unproven: bool = False
    shared: bool = False
    allow_wake: bool = False
    disruptive: bool = False
    no_ledger: bool = False
    books: str = "near"
    trace: str = ""
    replay: str = ""


FIELDS = frozenset(field.name for field in fields(Request))


class Listed(NamedTuple):
    """A device of the list, with its lifecycles where it could be opened, or why it could not."""

    candidate: Candidate
    dishes: tuple[Dish, ...]
    problem: str


def listing(request: Request) -> tuple[list[Listed], tuple[str, ...]]:
    """Every device that could be put under stress; those that nothing speaks against are opened once. And problems."""
    found = targets.find(open_root("/"), _allowed(request))
    rows = []
    for candidate in (*found.candidates, targets.simulated()):
        dishes: tuple[Dish, ...] = ()
        problem = candidate.refusal
        if not problem:
            try:
                dishes = menu(candidate, Options())
            except AccelError as error:
                problem = error.message
        rows.append(Listed(candidate, dishes, problem))
    return rows, found.problems


def carry_out(request: Request, show: Callable[[str, Tick], None], say: Callable[[str], None]) -> StressReport:
    """Check everything, choose the device, run. ``show`` gets progress, ``say`` lines of a sweep. Raises AccelError."""
    faults = tuple(parse_fault(text) for text in request.fault or ())
    limits = tuple(parse_limit(text) for text in request.limit or ())
    plan = _plan(request, None)
    root = open_root("/")
    candidate, found = _candidate(request, root)
    _check_disruptive(request, candidate)
    if request.sweep_kernel:
        require_kernel()
    if request.books not in OUTSIDE:
        raise UsageError(f"--books {request.books}: not one of {', '.join(OUTSIDE)}")
    if not request.bytes_limit and found is not None:
        plan = _plan(request, int(SHARE * free_bytes(root, candidate.device)))
    trace = Trace(request.trace) if request.trace else None
    try:
        options = Options(
            lifecycles=tuple(request.lifecycle or ()),
            ledger=not request.no_ledger,
            books=request.books,
            va=request.va,
            va_limit=quantity.size_bytes("--va-limit", request.va_limit) if request.va_limit else 0,
            faults=faults,
            limits=limits,
            sim=quantity.pairs("--sim", request.sim),
            trace=trace,
            replay=request.replay,
            command=f"accelctl {shlex.join(sys.argv[1:])}",
        )
        dishes = chosen(candidate, options)
        _check_stages(faults, dishes)
        if request.replay:
            if len(dishes) != 1:
                raise UsageError("--replay needs one --lifecycle NAME")
            shrink.parsed(request.replay, len(dishes[0].stages), plan.hold)

        def work() -> StressReport:
            if request.sweep or request.sweep_kernel:
                return sweep_run(
                    candidate, plan, options, door=request.sweep, kernel=request.sweep_kernel, say=say, dishes=dishes
                )
            if request.kill:
                return kill_run(candidate, plan, options, dishes)
            return run(candidate, plan, options, show, dishes)

        return searched(work) if request.kmemleak else work()
    finally:
        if trace is not None:
            trace.close()


def _allowed(request: Request) -> Allowed:
    return Allowed(request.unproven, request.shared, request.allow_wake)


def _candidate(request: Request, root: SysRoot) -> tuple[Candidate, Found | None]:
    if request.device == [targets.SIMULATED] and not request.peer:
        return targets.simulated(), None  # nothing of this machine is looked at
    found = targets.find(root, _allowed(request))
    candidate = targets.choose(found, request.device)
    if request.peer:
        candidate = targets.paired(candidate, targets.peer(found, request.peer))
    return candidate, found


def _plan(request: Request, free_share: int | None) -> Plan:
    limit = DEFAULT_BYTES if free_share is None else max(1 << 20, min(DEFAULT_BYTES, free_share))
    cycles = quantity.count("--cycles", request.cycles) if request.cycles else 0
    if request.cycles and not cycles:
        raise UsageError("--cycles 0: at least one")
    seconds = quantity.seconds("--duration", request.duration) if request.duration else DEFAULT_SECONDS
    if not seconds:
        raise UsageError(f"--duration {request.duration}: no time at all")
    return Plan(
        seed=request.seed,
        cycles=cycles,
        seconds=seconds,
        bytes_limit=quantity.size_bytes("--bytes-limit", request.bytes_limit) if request.bytes_limit else limit,
        sizes=request.sizes,
        hold=request.hold,
        order=request.order,
        touch=request.touch,
        workers=request.workers,
        threads=request.threads,
        capped=bool(request.duration),
    )


def _check_disruptive(request: Request, candidate: Candidate) -> None:
    """Sweeps and kills leave real drivers in states that nobody has tested; virtual devices have no such price."""
    asked = [name for name in ("sweep", "sweep_kernel", "kill") if getattr(request, name)]
    if candidate.target.simulated and request.kill:
        raise UsageError("--kill: the simulated device lives in the worker and would die with it")
    if asked and candidate.device.kind not in ("virtual", "display") and not request.disruptive:
        raise UsageError(
            f"--{asked[0].replace('_', '-')} on real hardware can leave it unusable until a reset",
            "add --disruptive if that is all right",
        )


def _check_stages(faults: Sequence[Fault], dishes: Sequence[Dish]) -> None:
    known = {stage.name for dish in dishes for stage in dish.stages}
    for fault in faults:
        if fault.stage.lstrip("-") not in known:
            raise UsageError(f"--fault {fault}: no such stage; the stages are {', '.join(sorted(known))}")
