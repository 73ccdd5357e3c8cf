"""What all calls of the runtime have in common: who may make them, and how they fail.

State is of three kinds. Of the process and a chip: whether a fault has ended it. Of a runtime: its devices. Of a
thread: the selected device, the last error, what it captures.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import Env, Target
from accelctl.abi.runtime.device import Device, contracts
from accelctl.abi.runtime.failure import STICKY, fail
from accelctl.abi.runtime.pointer import Pointer
from accelctl.abi.runtime.stream import Event, Stream
from accelctl.errors import AccelError

if TYPE_CHECKING:
    from accelctl.abi.runtime.capture import Graph

_SLICE_S = 1.0
"""How long a ring is waited for before the others are looked at."""
_MOST_WAITING = 4096
"""Items that a stream keeps before its caller has to wait, as every stack's full queue makes him."""

dead: dict[str, tuple[str, str]] = {}
"""Chip -> kind and words of the fault that ended it in this process."""

F = TypeVar("F", bound=Callable[..., Any])
_running: set[Core] = set()
"""Held until fini(): what is open does not go because nobody names it any more."""


@atexit.register
def _at_exit() -> None:
    """A process may end without fini(): some stacks' threads must not outlive the interpreter (PyTorch aborts)."""
    for one in tuple(_running):
        if one._pid == os.getpid():
            one.fini()


def runtime_call(method: F) -> F:
    """A call: refused where nothing may be called, and remembered where it fails."""

    @wraps(method)
    def inner(self: Core, *args: Any, **kwargs: Any) -> Any:
        try:
            self.enter()
            return method(self, *args, **kwargs)
        except AccelError as error:
            self.note(error)
            raise

    return inner  # type: ignore[return-value]


class Core:
    """Made over a chip and those of its devices that are to be used; nothing is opened before ``set_device``."""

    def __init__(self, chip: Chip, targets: Sequence[Target], env: Env, *, depth: int = 64) -> None:
        contracts(chip)
        self.chip, self._targets, self._env, self._depth = chip, tuple(targets), env, depth
        self.counts: Counter[str] = Counter()
        """What the shim had to do: pageable copies that were refused, and those that were staged."""
        self._pid = 0
        self._devices: dict[int, Device] = {}
        self._generations: Counter[int] = Counter()
        self._here = threading.local()
        self._lock = threading.RLock()
        self._stamper: threading.Thread | None = None
        self._stamps = threading.Event()

    # -- the rules of every call --

    def enter(self) -> None:
        """not_initialized, or the fault that ended it all."""
        if self._pid != os.getpid():
            raise fail("not_initialized", "init() was not called in this process")
        if self.chip.manifest.name in dead:
            kind, words = dead[self.chip.manifest.name]
            raise fail(kind, f"this process had a fault: {words}")

    def note(self, error: AccelError) -> None:
        """Keep it for last_error, and for good where it is a fault. What a device says that the caller's program
        cannot have caused is not a refusal."""
        self._here.last = error.kind
        if error.kind in STICKY:
            dead.setdefault(self.chip.manifest.name, (error.kind, error.message))

    def last_error(self) -> str:
        """The kind of this thread's last failed call, or "ok"; asking clears it, unless nothing works any more."""
        if self._pid == os.getpid() and self.chip.manifest.name in dead:
            return dead[self.chip.manifest.name][0]
        kind: str = getattr(self._here, "last", "ok")
        self._here.last = "ok"
        return kind

    def init(self) -> None:
        """Before anything else; again is no error."""
        self._pid = os.getpid()
        _running.add(self)

    def fini(self) -> None:
        """Release everything; safe to call twice."""
        with self._lock:
            self._pid = 0
            _running.discard(self)
            for device in self._devices.values():
                device.close()
            self._devices.clear()

    # -- devices --

    @runtime_call
    def device_count(self) -> int:
        """How many there are."""
        return len(self._targets)

    @runtime_call
    def set_device(self, index: int) -> None:
        """Select one for this thread. no_device, and the old selection stays."""
        if not 0 <= index < len(self._targets):
            raise fail("no_device", f"device {index}: there are {len(self._targets)}")
        with self._lock:
            if index not in self._devices:
                self._devices[index] = self._opened(index)
            self._here.device = (index, self._generations[index])

    def _opened(self, index: int) -> Device:
        return Device(index, self._generations[index], self.chip, self._targets[index], self._env, self._depth)

    @runtime_call
    def get_device(self) -> int:
        """The selected one; not_initialized where this thread has selected none."""
        return self.device().index

    def device(self) -> Device:
        """The selected one."""
        index, generation = getattr(self._here, "device", (-1, -1))
        if index < 0 or generation != self._generations[index]:
            raise fail("not_initialized", "this thread has not called set_device()")
        return self._devices[index]

    def of(self, pointer: Pointer) -> Device:
        """The device of a pointer, whichever is selected; invalid_argument."""
        found = self._devices.get(pointer.device)
        if found is None or pointer.generation != found.generation:
            raise fail("invalid_argument", f"{pointer.address:#x} is of a device that was reset")
        return found

    @runtime_call
    def reset_device(self) -> None:
        """Free everything that this process has on the selected device. Handles and pointers from before are dead;
        every thread selects anew."""
        with self._lock:
            device = self.device()
            del self._devices[device.index]
            self._generations[device.index] += 1
            device.close()

    # -- handles --

    def live_stream(self, stream: Stream | None) -> Stream:
        """invalid_handle for none at all, one that is destroyed, or one from before a reset."""
        if not isinstance(stream, Stream) or not stream.alive or not self._present(stream):
            raise fail("invalid_handle", "this is no live stream; there is no default one")
        return stream

    def live_event(self, event: Event | None) -> Event:
        """As live_stream."""
        if not isinstance(event, Event) or not event.alive or not self._present(event):
            raise fail("invalid_handle", "this is no live event")
        return event

    def _present(self, handle: Stream | Event) -> bool:
        found = self._devices.get(handle.device)
        return found is not None and found.generation == handle.generation

    # -- captures --

    @property
    def capturing(self) -> Graph | None:
        """What this thread captures."""
        graph: Graph | None = getattr(self._here, "graph", None)
        return graph

    def outside_capture(self, what: str) -> None:
        """Raise where this thread captures: the capture is lost."""
        graph = self.capturing
        if graph is not None:
            graph.lost = f"{what} inside a capture"
            raise fail("capture_violation", graph.lost)

    # -- progress --

    def pump(self) -> None:
        """Hand over what may be handed over, on every device, until nothing moves."""
        streams = [one for device in self._devices.values() for one in device.streams if one.waiting]
        moved = True
        while moved:
            moved = False
            for stream in streams:
                moved |= stream.advance()

    def relieve(self, stream: Stream) -> None:
        """Wait where a stream keeps too much."""
        if stream.waiting > _MOST_WAITING:
            self.wait_for(stream, stream.last - _MOST_WAITING // 2, None)

    def wait_for(self, stream: Stream, number: int, timeout_s: float | None) -> None:
        """Until that item of a stream is complete. timeout."""
        clock = self._devices[stream.device].clock
        end = None if timeout_s is None else clock() + timeout_s
        while True:
            with self._lock:
                self.pump()
                if stream.look() >= number:
                    return
                found = stream.blocker(number)
            left = _SLICE_S if end is None else end - clock()
            if left <= 0:
                raise fail("timeout", f"the stream is not done after {timeout_s:g} s")
            self._wait(found, min(left, _SLICE_S))

    def _wait(self, blocker: tuple[Stream, int] | None, seconds: float) -> None:
        if blocker is None:  # what it waits for was done a moment ago
            return
        stream, point = blocker
        stream._asked(lambda: int(stream.ring.wait(point, seconds)))

    def watch_stamps(self) -> None:
        """Start the thread that looks when marks are reached, for rings that do not tell."""
        self._stamps.set()
        if self._stamper is None:
            self._stamper = threading.Thread(target=self._look, name="accelctl-stamps", daemon=True)
            self._stamper.start()

    def _look(self) -> None:
        while True:
            self._stamps.wait()
            with self._lock:
                streams = [one for device in self._devices.values() for one in device.streams if one.stamping]
                if not streams:
                    self._stamps.clear()
                for stream in streams:
                    try:
                        stream.advance()
                    except AccelError:
                        stream._stamps.clear()  # whoever waits for the stream is told why
            time.sleep(_LOOK_S)


_LOOK_S = 0.0005
