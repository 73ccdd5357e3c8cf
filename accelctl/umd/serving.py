"""`accelctl serve`: the service as a process, from a chosen device to a graceful end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import TypeAlias

from accelctl.abi import capabilityfile, compute
from accelctl.abi.capability import RUNGS, Capability
from accelctl.abi.compute import Found
from accelctl.errors import UsageError
from accelctl.hal.claim import Claim
from accelctl.hal.lockfile import distrusted
from accelctl.memory import in_bytes
from accelctl.model import quantity
from accelctl.model.profile import Profile, for_device
from accelctl.umd import listen, metrics
from accelctl.umd.channel.door import Door
from accelctl.umd.chip import Chip
from accelctl.umd.dispatch import DEFAULT_RUNG, Dispatch, dispatch_of
from accelctl.umd.metrics import Endpoint, Metrics
from accelctl.umd.observer import Both, Observer
from accelctl.umd.profiles import limited, switched
from accelctl.umd.registrar import Limits
from accelctl.umd.server import Server, serve
from accelctl.umd.service import USUAL, Service

LOG = logging.getLogger("accelctl.umd")
Asked: TypeAlias = "SimpleQueue[int]"
"""Where somebody asks to stop: the number of a signal, or 0."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for."""

    device: tuple[str, ...] = ()
    address: str = ""
    metrics: str = ""
    grace_s: float = 5.0
    keepalive_s: float = USUAL.keepalive_s
    """After so long without a call a session is reclaimed, unless its client wishes otherwise."""
    memory: str = ""
    """Device memory that all sessions together may hold, as 8GiB; empty: what the device has."""
    stop_on_eof: bool = False
    sim: str = ""
    """How the simulated chip behaves: KEY=VALUE;KEY=VALUE."""
    trace: str = ""
    """File for what happens, as Chrome trace JSON."""
    capabilities: str = ""
    """File of records (abi.capabilityfile) by which special kernels are taken; empty: the default one, if it is
    there."""
    evidence: str = DEFAULT_RUNG
    """The least of it that a special kernel needs: a key of abi.capability.RUNGS."""
    kernels_off: tuple[str, ...] = ()
    """Special kernels that are not taken."""
    profiles: tuple[Profile, ...] = ()
    """Of the configuration files; those that fit the device apply. What is typed stands above them."""


MOST_GRACE_S = 3600.0
PAGE = 4096


class Ready:
    """A service that listens. ``note`` lines are for people."""

    def __init__(self, server: Server, address: str, device: str, simulated: bool, metrics_at: str) -> None:
        self.server, self.address, self.device = server, address, device
        self.simulated, self.metrics_at = simulated, metrics_at


def run(request: Request, ready: Callable[[Ready], None]) -> None:
    """Serve until a signal, or the end of standard input, says to stop. ``ready`` is told once it listens."""
    _within("--keepalive", request.keepalive_s, USUAL.least_keepalive_s, USUAL.most_keepalive_s)
    _within("--grace", request.grace_s, 0, MOST_GRACE_S)
    memory_bytes = _memory(request.memory)
    address = listen.parse(request.address)
    spot = _metrics_place(request.metrics)
    found = compute.choose(list(request.device))
    options = quantity.pairs("--sim", request.sim)
    if options and not found.device.target.simulated:
        raise UsageError(f"--sim: {found.device.target.id} is not the simulated chip", "--device sim:0")
    with ExitStack() as held, _signals() as stop:
        listen.claim(address, held)
        counted = Metrics()
        door = _door(address, held)
        chip, limits, special = _profiled(request, found, options)
        limits = limits._replace(keepalive_s=request.keepalive_s, memory_bytes=memory_bytes or limits.memory_bytes)
        _holds_something(
            limits.memory_bytes, chip, f"--memory {request.memory}" if memory_bytes else "memory.limit of a profile"
        )
        observer = _traced(request.trace, counted, held) if request.trace else counted
        chip.dispatch = dispatching(replace(request, kernels_off=request.kernels_off + special), found)
        service = Service(chip, limits=limits, observer=observer, door=door)
        server = serve(service, address.grpc)
        held.callback(server.stop, request.grace_s)
        where = f"{_shown(address.host)}:{server.port}" if address.host else address.grpc
        told = ""
        if spot is not None:
            endpoint = Endpoint(*spot, lambda: metrics.text(counted, service.telemetry, chip.dispatch.counts))
            held.callback(endpoint.close)
            told = f"http://{_shown(spot[0])}:{endpoint.port}/metrics"
        if request.stop_on_eof:
            threading.Thread(target=_until_eof, args=(stop,), name="accelctl-eof", daemon=True).start()
        ready(Ready(server, where, found.device.target.id, found.device.target.simulated, told))
        _wait(stop)


def _profiled(request: Request, found: Found, options: dict[str, str]) -> tuple[Chip, Limits, tuple[str, ...]]:
    """The chip and the limits as the profiles want them, and special kernels that they switch off. UsageError."""
    device = found.device
    force = for_device(request.profiles, found.name, device.target.id, device.title)
    if found.chip.ops is None:
        return Chip.registered(found.chip, device.target, options), USUAL, ()
    off = switched(force, found.chip.ops)
    chip = Chip.registered(found.chip, device.target, options, off=off.off)
    return chip, limited(force, USUAL, chip), off.special


def dispatching(request: Request, found: Found) -> Dispatch:
    """Who chooses special kernels. UsageError for a file that is named and not there, or is none."""
    records = []
    if RUNGS.get(request.evidence, "?"):  # else no record is asked for
        path = request.capabilities
        records = capabilityfile.present(path) if path else _usual_records()
    return dispatch_of(found, records, rung=request.evidence, off=request.kernels_off)


def _usual_records() -> list[Capability]:
    """Of the file that nobody named: none, and a warning, where somebody else may have written it."""
    path = capabilityfile.default_path()
    reason = distrusted(path)
    if reason:
        LOG.warning("%s: not taken: %s", path, reason)
        return []
    return capabilityfile.read(path)


def _within(option: str, seconds: float, least: float, most: float) -> None:
    if not least <= seconds <= most:  # NaN is not
        raise UsageError(f"{option} {seconds:g}: {least:g} to {most:g} seconds are possible")


def _memory(text: str) -> int:
    size = quantity.size_bytes("--memory", text) if text else 0
    if text and not size:
        raise UsageError(f"--memory {text}: that is none; without the option, all of the device")
    return size


def _holds_something(limit: int, chip: Chip, where: str) -> None:
    """Memory is given out in whole pages of the device: with less than one, every tensor would be refused. AccelError
    where the device cannot be opened."""
    if not limit:
        return
    session, lifecycle = chip.open()
    session.close()
    least = lifecycle.sizes.granule or PAGE
    if limit < least:
        raise UsageError(f"{where}: no tensor fits into that, a page of this device is {in_bytes(least)}")


def _traced(path: str, counted: Observer, held: ExitStack) -> Observer:
    from accelctl.hal.trace import Trace
    from accelctl.umd.tracing import Tracing

    trace = Trace(path)
    held.callback(trace.close, quiet=True)
    return Both(counted, Tracing(trace))


def _metrics_place(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    place = listen.parse(text)
    if place.path:
        raise UsageError(f"--metrics {text}: metrics are served on a loopback port, as in 127.0.0.1:9400")
    return place.host, place.port


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _door(address: listen.Address, held: ExitStack) -> Door | None:
    """The data channel stands beside a Unix socket; through TCP there may be no common machine."""
    if not address.path:
        return None
    lock = address.path + listen.DATA
    held.enter_context(Claim(f"{lock}.lock", lock)).remove_socket(lock)
    door = Door(lock)
    held.callback(door.close)
    return door


@contextmanager
def _signals() -> Iterator[Asked]:
    """SIGINT, SIGTERM and SIGHUP (a closed terminal) ask to stop; a second one ends the process at once, as it would
    have without us. Who started us with SIGHUP ignored (nohup) wants us to outlive the terminal.

    A queue, for its ``put`` may interrupt its own ``get``: a handler that sets an Event on which this thread is just
    beginning to wait would wait for a lock that this thread has.
    """
    stop: Asked = SimpleQueue()

    def ask(number: int, frame: object) -> None:
        stop.put(number)
        signal.signal(number, signal.SIG_DFL)

    numbers = [signal.SIGINT, signal.SIGTERM]
    numbers += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(stop: Asked) -> None:
    """Until it is asked for. In rounds: a signal that comes just before the wait begins does not end it, and its
    handler runs only when Python does."""
    while True:
        with suppress(Empty):
            stop.get(timeout=1.0)
            return


def _until_eof(stop: Asked) -> None:
    """Who started us holds the other end of our standard input; its end, of whatever kind, is ours. None: there was no
    standard input from the start."""
    try:
        while sys.stdin is not None and os.read(sys.stdin.fileno(), 4096):
            pass
    except (OSError, ValueError):
        pass
    stop.put(0)
