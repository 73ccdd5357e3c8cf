"""The simulated chip in tests: opened with options given as on the command line."""

from __future__ import annotations

from typing import Any, NamedTuple

from accelctl.abi.lifecycle import AddressSpace, Block, Env, Session, Target
from accelctl.backends.sim.device import Device
from accelctl.backends.sim.driver import NODE, SimSyscalls
from accelctl.backends.sim.memory import MEMORY, SimSession
from accelctl.hal.devfile import Syscalls
from accelctl.memory.va import GoodFit

TARGET = Target("sim:0", "sim", "sim", NODE)


def space(base: int, size: int, granule: int) -> AddressSpace:
    return GoodFit(base, size, granule=granule)


class Opened(NamedTuple):
    session: SimSession
    device: Device
    syscalls: SimSyscalls

    def counts(self) -> dict[str, int]:
        return {counter.name: counter.read() for counter in self.session.counters()}

    def cycles(self, lifecycle: str, count: int, size: int = 4096) -> None:
        stages = next(life.stages for life in self.session.lifecycles if life.name == lifecycle)
        for number in range(count):
            block = Block(size, number)
            for stage in stages:
                stage.acquire(block)
            for stage in reversed(stages):
                if stage.release is not None:
                    stage.release(block)


def open_sim(wrap: Any = None, **options: str) -> Opened:
    """``wrap`` makes system calls of the driver's, as a door or a trace does."""
    env = Env(space=space, options=options)
    inner = MEMORY.syscalls(TARGET, env)
    assert isinstance(inner, SimSyscalls)
    outer: Syscalls = inner if wrap is None else wrap(inner)
    session: Session = MEMORY.open(TARGET, Env(outer, space, options))
    assert isinstance(session, SimSession)
    return Opened(session, inner.device, inner)
