"""What was typed, turned into an order, checked, and carried out."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from accelctl.accept.bringup import needs, run
from accelctl.accept.bringup.state import State, default_folder
from accelctl.accept.bringup.step import Order
from accelctl.accept.bringup.subjects import chosen
from accelctl.accept.bringup.table import Planned, planned
from accelctl.errors import UsageError
from accelctl.model import quantity
from accelctl.model.bringupreport import BringupReport


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options as typed."""

    device: list[str] | None = None
    level: int = 1
    time: str = ""
    disruptive: bool = False
    unproven: bool = False
    shared: bool = False
    allow_wake: bool = False
    expect: str = ""
    baseline: str = ""
    max_regress: float = 5.0
    caps: str = ""
    kmsg: str = ""
    sim: str = ""
    seed: int = 1
    state: str = ""
    resume: bool = False
    html: str = ""


FIELDS = frozenset(field.name for field in fields(Request))


def order_of(request: Request) -> Order:
    """Checked. UsageError for what makes no sense."""
    read: dict[str, Any] = {
        "device": tuple(request.device or ()),
        "sim": quantity.pairs("--sim", request.sim),
        "time_s": quantity.seconds("--time", request.time) if request.time else 0.0,
    }
    order = Order(**read, **{one.name: getattr(request, one.name) for one in fields(Order) if one.name not in read})
    run.check(order)
    return order


def check_outputs(html: str, junit: str, *, as_json: bool, nagios: bool) -> None:
    """UsageError where two things would go to one place."""
    if as_json + nagios + (junit == "-") + (html == "-") > 1:
        raise UsageError("--json, --nagios, --junit - and --html - exclude each other")
    if html and junit and os.path.realpath(html) == os.path.realpath(junit):
        raise UsageError(f"--html {html} and --junit {junit} are one file")


def plan(request: Request) -> list[Planned]:
    """The steps that would run; nothing is opened but by the libraries that know what is here."""
    order = order_of(request)
    found = chosen(order)
    needs.packages(found)
    return planned(order, found)


def carry_out(request: Request, tick: run.Tick, check: Callable[[str], None]) -> BringupReport:
    """The run. ``check`` raises where a file cannot be written: before the work, not after it."""
    order = order_of(request)
    check(request.html)
    with State(request.state or default_folder(order)) as state:
        command = shlex.join(["accelctl", *sys.argv[1:]])
        report = run.carry_out(order, state, command, tick, request.resume)
        if report.ended or any(step.cut for step in report.steps):
            report.notes.append(f"to go on with what is not done: {command}{'' if request.resume else ' --resume'}")
        when = time.strftime("%Y-%m-%d-%H%M%S")
        report.html = request.html or os.path.join(state.folder, f"bringup-{when}.html")
    return report
