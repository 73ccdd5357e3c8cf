"""The Ops contract over the simulated driver: instructions are written to a command buffer in VRAM and submitted."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import ExitStack

from accelctl.abi.condition import Offers
from accelctl.abi.devmem import ask, number
from accelctl.abi.launch import MOST_THREADS
from accelctl.abi.lifecycle import Block, Session, Target
from accelctl.abi.ops import Device, Template
from accelctl.abi.queue import Ring
from accelctl.backends.sim import uapi
from accelctl.backends.sim.driver import NODE
from accelctl.backends.sim.jobs import MOST_DEPTH
from accelctl.backends.sim.memory import SimSession
from accelctl.backends.sim.ops.kernels import TEMPLATES
from accelctl.backends.sim.ops.reader import MOST_BYTES
from accelctl.backends.sim.queue import SimRing
from accelctl.errors import AccelError, DeviceUnusable, NoDeviceError, UsageError, extra

LIFECYCLE = "vram"


class SimOpsRing(SimRing):
    """A queue of the device, and the command buffer that its instructions pass through. One is enough for all: the
    driver has read an instruction when SUBMIT returns."""

    def __init__(self, session: SimSession, depth: int) -> None:
        with ExitStack() as held:
            self._buffer = _acquired(session, held)
            super().__init__(session, depth)
            self._held = held.pop_all()

    def submit(self, work: bytes) -> int:
        """An instruction (abi.blob); see Ring. Errors name what the driver does not take about it."""
        if not 0 < len(work) <= MOST_BYTES:
            raise UsageError(f"an instruction of {len(work)} bytes: 1 to {MOST_BYTES} can be")
        with self._lock:
            self._alive()
            assert self._buffer.map is not None
            self._buffer.map[: len(work)] = work
            return self._hand_over(uapi.EXEC, src=self._buffer.address, size=len(work))

    def record(self, works: Sequence[bytes]) -> int:
        """Instructions as one list; its number. See Schedule."""
        listed = 0
        with self._lock:
            self._alive()
            try:
                for at, work in enumerate(works):
                    listed = self._recorded(at, work, listed)
            except Exception:
                if listed:
                    self.forget(listed)
                raise
        return listed

    def _recorded(self, at: int, work: bytes, listed: int) -> int:
        if not isinstance(work, bytes) or not 0 < len(work) <= MOST_BYTES:
            raise UsageError(f"blobs[{at}]: an instruction is 1 to {MOST_BYTES} bytes")
        assert self._buffer.map is not None
        self._buffer.map[: len(work)] = work
        fields = {"queue": self._queue, "vm": self._vm, "src": self._buffer.address, "size": len(work)}
        try:
            return number(self._file, uapi.RECORD, "list", list=listed, **fields)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise AccelError(f"blobs[{at}]: {error.strerror}", kind="out_of_resources") from error
            refused = self._refused(error)
            if isinstance(refused, UsageError):
                raise UsageError(f"blobs[{at}]: {refused.message}") from error
            raise refused from error

    def replay(self, listed: int) -> int:
        """A list, as one work; its point. See Recorded."""
        with self._lock:
            self._alive()
            return self._hand_over(uapi.LIST, value=listed)

    def forget(self, listed: int) -> None:
        """A list goes; without its ring it is gone already."""
        with self._lock:
            if not self._closed and self._file.fd >= 0:
                ask(self._file, uapi.FORGET, queue=self._queue, list=listed)

    def close(self) -> None:
        """See Ring."""
        with self._lock:
            if not self._closed:
                try:
                    super().close()
                finally:
                    self._held.close()


def _acquired(session: SimSession, held: ExitStack) -> Block:
    """A command buffer: a block of the session as any other. ``held`` gives it back."""
    (life,) = (life for life in session.lifecycles if life.name == LIFECYCLE)
    block = Block(MOST_BYTES)
    for stage in life.stages:
        stage.acquire(block)
        if stage.release is not None:
            held.callback(stage.release, block)
    return block


class SimOps:
    """What the chip offers."""

    def devices(self) -> tuple[Device, ...]:
        """One, wherever it is asked for."""
        return (Device(Target("sim:0", "sim", "sim", NODE), "simulated accelerator", accelerator=False),)

    def templates(self) -> tuple[Template, ...]:
        """Its kernels; see sim.ops.kernels for what they lack."""
        return TEMPLATES

    def versions(self, target: Target, template: Template) -> dict[str, str]:
        """The library that does its arithmetic."""
        from importlib.metadata import version  # 50 ms, and nobody else needs it

        return {"numpy": version("numpy")}

    def offers(self, target: Target) -> Offers:
        """As many threads in a block as a launch can say."""
        return Offers({"threads": MOST_THREADS})

    def lifecycle(self) -> str:
        """Plain VRAM, mapped on both sides."""
        return LIFECYCLE

    def open(self, session: Session, depth: int) -> Ring:
        """A ring. UsageError for a depth that the device does not have, or a session of another chip; NoDeviceError
        without numpy and ml-dtypes, which do the arithmetic."""
        if not isinstance(session, SimSession):
            raise UsageError("a ring of sim needs a session of sim")
        if not 1 <= depth <= MOST_DEPTH:
            raise UsageError(f"a ring of depth {depth}: the device has 1 to {MOST_DEPTH}")
        try:
            import accelctl.backends.sim.ops.engine  # noqa: F401
        except ImportError as error:
            raise NoDeviceError(f"the simulated chip cannot compute: {error}", extra("umd")) from error
        try:
            return SimOpsRing(session, depth)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise AccelError(f"no memory for a command buffer: {error.strerror}", kind="out_of_memory") from error
            raise DeviceUnusable(f"a ring cannot be opened: {error.strerror}") from error


OPS = SimOps()
