"""Blocks of the chip: acquired stage by stage, released in reverse, counted against the service's limit."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

from accelctl.abi.lifecycle import Block, Lifecycle
from accelctl.memory import in_bytes
from accelctl.umd.refusal import Refusal


class Budget:
    """Bytes of device memory that may be held. 0: whatever the chip has."""

    def __init__(self, limit: int = 0, who: str = "the service") -> None:
        self.limit, self.held, self.who = limit, 0, who
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"{self.who} may hold {in_bytes(self.limit)}, {in_bytes(max(0, self.limit - self.held))} are left"

    def take(self, size: int) -> bool:
        """Whether so much more fits; it is held then."""
        with self._lock:
            if self.limit and self.held + size > self.limit:
                return False
            self.held += size
            return True

    def give(self, size: int) -> None:
        """Back."""
        with self._lock:
            self.held -= size


class Source:
    """Where a session's blocks come from. ``pressure`` gives back what is kept idle elsewhere (bytes), for a request
    that is refused otherwise. ``own``: what the session alone may hold of the budget."""

    def __init__(
        self, lifecycle: Lifecycle, budget: Budget, pressure: Callable[[], int], own: Budget | None = None
    ) -> None:
        self.lifecycle, self._budget, self._pressure = lifecycle, budget, pressure
        self._own = own or Budget()
        self._serial = 0
        self.wrong: Exception | None = None
        """The first failure of a release. There is nothing to be done about it but to say so at the end."""

    def acquire(self, size: int) -> Block:
        """A block of at least ``size`` bytes. Refusal."""
        largest = self.lifecycle.sizes.largest
        if largest and size > largest:
            text = f"{in_bytes(size)}: one block of this device has at most {in_bytes(largest)}"
            raise Refusal("byte_size", text, "out_of_memory")
        try:
            return self._once(size)
        except Refusal as refusal:
            if refusal.kind != "out_of_memory" or not self._pressure():
                raise
            return self._once(size)

    def _once(self, size: int) -> Block:
        self._take(size)
        self._serial += 1
        block = Block(size, self._serial)
        try:
            self._stages(block)
        except BaseException:
            self._give(size)
            raise
        return block

    def _take(self, size: int) -> None:
        if not self._own.take(size):
            raise Refusal("byte_size", f"{in_bytes(size)}: {self._own}", "out_of_memory")
        if not self._budget.take(size):
            self._own.give(size)
            raise Refusal("byte_size", f"{in_bytes(size)}: {self._budget}", "out_of_memory")

    def _give(self, size: int) -> None:
        self._own.give(size)
        self._budget.give(size)

    def _stages(self, block: Block) -> None:
        try:
            for stage in self.lifecycle.stages:
                stage.acquire(block)
                block.held.append(stage)
        except BaseException as error:
            self._unwind(block)
            if isinstance(error, OSError):
                raise _refused(error, stage.name, block.size) from error
            raise

    def release(self, block: Block, size: int) -> None:
        """Back to the driver, all stages, whatever one of them answers."""
        self._give(size)
        self._unwind(block)

    def _unwind(self, block: Block) -> None:
        while block.held:
            stage = block.held.pop()
            try:
                if stage.release is not None:
                    stage.release(block)
            except Exception as error:  # whatever a driver raises, the other stages still go back
                self.wrong = self.wrong or error


def _refused(error: OSError, stage: str, size: int) -> Refusal:
    full = error.errno in (errno.ENOMEM, errno.ENOSPC, errno.ENOBUFS)
    text = f"{in_bytes(size)}: the driver refused it at its stage {stage} ({error.strerror or error})"
    return Refusal("byte_size", text, "out_of_memory" if full else "os_error")
