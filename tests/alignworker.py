"""A process that stands in for that of two devices side by side: the second op goes wrong as the other device's name
says. ``right`` computes the reference; so does ``other``, but for that op."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

from accelctl.abi.runtime import Runtime
from accelctl.hal.worker import Wire
from accelctl.smoke import align

STUCK_AT = 1


class Stuck:
    """A ring that takes work and never does any."""

    def __init__(self, ring: Any) -> None:
        self.inner, self.busy = ring, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, work: bytes) -> int:
        """The last thing that it does."""
        self.busy = True
        return int(self.inner.submit(work))

    def passed(self) -> int:
        """No point ever."""
        return 0

    def wait(self, point: int, seconds: float) -> int:
        """Time passes, and that is all."""
        time.sleep(min(seconds, 0.05))
        return 0

    def close(self) -> None:
        """As a driver that waits for what was begun."""
        if self.busy:
            threading.Event().wait()
        self.inner.close()


def stuck(runtime: Runtime) -> Any:
    """A stream of which nothing comes, in the time of the host. Nothing else may be asked of the device then."""
    stream = Runtime.create_stream(runtime)
    stream.ring, stream.passes_at = Stuck(stream.ring), None  # type: ignore[assignment]
    runtime.device().clock = time.monotonic
    return stream


class Lab(align.Lab):
    """sim:0, which goes wrong."""

    def __init__(self, name: str) -> None:
        super().__init__("sim:0")
        self.what, self.calls = name.partition(":")[2], 0

    def compute(self, trial: Any) -> dict[str, Any]:
        """See align.Lab."""
        here, self.calls = self.calls, self.calls + 1
        if "elementwise" not in trial.case.id or here != STUCK_AT or self.what == "0":
            return super().compute(trial)
        if self.what == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.what == "deaf":
            threading.Event().wait()
        if self.what == "lost":
            os._exit(3)
        self._runtime.create_stream = lambda: stuck(self._runtime)  # type: ignore[method-assign]
        return super().compute(trial)


def main(wire: Wire, arguments: Sequence[str]) -> None:
    """See align.main."""
    if arguments[1].endswith("lost") and arguments[3] != "0":
        wire.send({"error": ("device_lost", "it fell off the bus", None)})
        wire.receive()
    align.WAIT_S = 0.3
    align.Lab = Lab  # type: ignore[misc]
    align.main(wire, arguments)
