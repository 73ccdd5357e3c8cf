"""Runtimes that break the contract in one respect each, and the assertions that must notice."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from accelctl.abi.hostmem import Pages
from accelctl.abi.runtime import Arg, Runtime
from accelctl.abi.runtime import core as cores
from accelctl.abi.runtime.arguments import as_block
from accelctl.abi.runtime.launching import ECHO
from accelctl.abi.runtime.memory import MemoryInfo
from accelctl.abi.runtime.pointer import Pointer
from accelctl.abi.runtime.stream import Do, Work
from accelctl.errors import AccelError


def _lenient(error_kind: str, method: Callable[..., Any], answer: Any = None) -> Callable[..., Any]:
    """The call, with one kind of failure turned into an answer."""

    def call(self: Runtime, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except AccelError as error:
            if error.kind != error_kind:
                raise
            return answer

    return call


class DoubleFree(Runtime):
    """The second free of a pointer is fine."""

    free = _lenient("invalid_argument", Runtime.free)


class ZeroBytes(Runtime):
    """malloc(0) gives something."""

    def _allocated(self, size: int, space: str) -> Pointer:
        return super()._allocated(max(1, size), space)


class FreeNull(Runtime):
    """free(None) fails."""

    def _freed(self, pointer: Pointer | None, spaces: tuple[str, ...]) -> None:
        super()._freed(pointer or Pointer(0, 0, 0), spaces)


class Misaligned(Runtime):
    """Pointers start anywhere."""

    def malloc(self, size: int) -> Pointer:
        return super().malloc(size + 8) + 8


class Overlapping(Runtime):
    """Every allocation is the same one."""

    def malloc(self, size: int) -> Pointer:
        self.__dict__.setdefault("_all", super().malloc(1 << 20))
        return self.__dict__["_all"]  # type: ignore[no-any-return]


class Leaky(Runtime):
    """free gives nothing back."""

    def _freed(self, pointer: Pointer | None, spaces: tuple[str, ...]) -> None:
        if pointer is not None:
            device = self.of(pointer)
            device.forget(device.base(pointer, spaces))


class Boundless(Runtime):
    """There is always more memory."""

    def malloc(self, size: int) -> Pointer:
        return super().malloc(min(size, 1 << 20))


class WrongInfo(Runtime):
    """More is free than there is."""

    def memory_info(self) -> Any:
        free, total = super().memory_info()
        return MemoryInfo(total + free, total)


class Forgetful(Runtime):
    """A call that works clears the last error."""

    def set_device(self, index: int) -> None:
        super().set_device(index)
        self._here.last = "ok"


class Sticking(Runtime):
    """Asking for the last error does not clear it."""

    def last_error(self) -> str:
        kind = super().last_error()
        self._here.last = kind
        return kind


class NotReadyKept(Runtime):
    """not_ready is a last error."""

    def query(self, stream: Any) -> str:
        found = super().query(stream)
        self._here.last = found
        return found


class SharedError(Runtime):
    """One last error for all threads."""

    def note(self, error: AccelError) -> None:
        self.__dict__["_shared"] = error.kind

    def last_error(self) -> str:
        return str(self.__dict__.get("_shared", "ok"))


class ZeroTime(Runtime):
    """The time to an event that was not recorded is 0."""

    elapsed = _lenient("invalid_state", Runtime.elapsed, 0.0)


class PendingTime(Runtime):
    """So is that to a pending one."""

    elapsed = _lenient("not_ready", Runtime.elapsed, 0.0)


class WrongClock(Runtime):
    """Seconds, not milliseconds."""

    def elapsed(self, first: Any, second: Any) -> float:
        return super().elapsed(first, second) / 1e3


class NoTimeout(Runtime):
    """A bounded wait that ends says ok."""

    sync = _lenient("timeout", Runtime.sync)


class Shuffled(Runtime):
    """Every other item of a stream goes before the one ahead of it."""

    def enqueue(self, stream: Any, item: Work | Do) -> None:
        held = self.__dict__.setdefault("_held", {})
        if isinstance(item, Work) and stream not in held:
            held[stream] = item
            return
        super().enqueue(stream, item)
        if stream in held:
            super().enqueue(stream, held.pop(stream))

    def wait_for(self, stream: Any, number: int, timeout_s: float | None) -> None:
        if stream in self.__dict__.get("_held", {}):
            super().enqueue(stream, self.__dict__["_held"].pop(stream))
        super().wait_for(stream, stream.last if timeout_s is None else number, timeout_s)


class NoWait(Runtime):
    """Waiting for an event does nothing."""

    def wait(self, stream: Any, event: Any) -> None:
        self.live_stream(stream)


class FirstMark(Runtime):
    """An event stands for what it was recorded for first."""

    def record(self, event: Any, stream: Any) -> None:
        if event.mark is None:
            super().record(event, stream)


class DefaultStream(Runtime):
    """No stream is a stream too."""

    def live_stream(self, stream: Any) -> Any:
        return self.device().own if stream is None else super().live_stream(stream)


class DeviceZero(Runtime):
    """A thread that selected nothing has device 0."""

    def device(self) -> Any:
        try:
            return super().device()
        except AccelError:
            return self._devices[0]


class SelectionLost(Runtime):
    """A refused selection takes the old one."""

    def set_device(self, index: int) -> None:
        self._here.device = (-1, -1)
        super().set_device(index)


class OneSelection(Runtime):
    """A selection is everybody's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._here = type("Here", (), {})()


class WaitingCopy(Runtime):
    """An asynchronous copy waits."""

    def memcpy_async(self, to: Any, source: Any, size: int, stream: Any, allow_sync: bool = False) -> None:
        super().memcpy_async(to, source, size, stream, allow_sync)
        self.sync(stream)


class SilentPageable(Runtime):
    """Pageable memory is copied behind the caller's back."""

    def _pageable(self, allow_sync: bool) -> None:
        self.outside_capture("a copy of pageable memory")


class UncountedPageable(Runtime):
    """Nobody counts it."""

    def _pageable(self, allow_sync: bool) -> None:
        super()._pageable(allow_sync)
        self.counts.clear()


class CapturedPageable(Runtime):
    """It is allowed in a capture, and copied then."""

    def outside_capture(self, what: str) -> None:
        return


class LostWork(Runtime):
    """Destroying a stream drops what is in it."""

    def destroy_stream(self, stream: Any, timeout_s: float | None = None) -> None:
        live = self.live_stream(stream)
        live._pending.clear()
        live._flying.clear()
        self._devices[live.device].streams.remove(live)
        live.close()


class Undead(Runtime):
    """A destroyed stream can be used."""

    def live_stream(self, stream: Any) -> Any:
        if stream is not None and not stream.alive:
            return self.device().own
        return super().live_stream(stream)


class FewStreams(Runtime):
    """32 streams at most."""

    def create_stream(self) -> Any:
        if len(self.device().streams) >= 32:
            raise AccelError("no more streams", kind="out_of_resources")
        return super().create_stream()


class Impatient(Runtime):
    """Synchronising the device looks at one stream."""

    def synchronise_device(self) -> None:
        streams = self.device().streams
        if streams:
            self.sync(streams[0])


class NeverReady(Runtime):
    """A query waits until the stream is done."""

    def query(self, stream: Any) -> str:
        self.sync(stream)
        return "ok"


class AnyLaunch(Runtime):
    """A launch that cannot be is dropped."""

    launch = _lenient("launch_config", Runtime.launch)


class LateArguments(Runtime):
    """Arguments are read when the kernel runs."""

    def launch(self, kernel: Any, grid: Any, block: Any, args: Any, shared: int, stream: Any) -> None:
        if kernel is not ECHO:
            super().launch(kernel, grid, block, args, shared, stream)
            return
        place = next(one.value for one in args if isinstance(one.value, Pointer))
        self.enqueue(stream, Do(lambda: self.of(place).write(place, as_block(args))))


class Packed(Runtime):
    """Arguments without the gaps that alignment asks for."""

    def _echo(self, device: Any, args: Any, stream: Any) -> None:
        tight = [one if one.type == "pointer" else Arg("bytes", one.data) for one in args]
        super()._echo(device, tight, stream)


class EagerCapture(Runtime):
    """What is captured runs at once as well."""

    def enqueue(self, stream: Any, item: Work | Do) -> None:
        super().enqueue(stream, item)
        if stream.graph is not None:
            stream.put(item)


class LooseFork(Runtime):
    """A fork that nobody joins is fine."""

    end_capture = _lenient("capture_violation", Runtime.end_capture)


class RegisteredTwice(Runtime):
    """Pages may be registered again."""

    host_register = _lenient("already_exists", Runtime.host_register)


class Unregistered(Runtime):
    """And given back as often as one likes."""

    def host_unregister(self, pages: Pages) -> None:
        self._registered = [one for one in self._registered if one[0] != pages.address]


class OwnPeer(Runtime):
    """A device is its own peer."""

    enable_peer = _lenient("invalid_argument", Runtime.enable_peer)


class HalfPeer(Runtime):
    """Declared absent, and accepted all the same."""

    enable_peer = _lenient("not_supported", Runtime.enable_peer)


class HalfIpc(Runtime):
    """So is this one."""

    def ipc_export(self, pointer: Pointer) -> bytes:
        return b"handle"


class Waits(Runtime):
    """Synchronising with an event that was never recorded waits for the device."""

    def event_sync(self, event: Any, timeout_s: float | None = None) -> None:
        if event.mark is None:
            self.synchronise_device()
        super().event_sync(event, timeout_s)


class Ready(Runtime):
    """No init() is needed."""

    def enter(self) -> None:
        self._pid = self._pid or -1


class OverlapAllowed(Runtime):
    """Whatever the places of a copy are, it is done."""

    memcpy = _lenient("invalid_argument", Runtime.memcpy)


class PoolAnywhere(Runtime):
    """What was freed in stream order can be freed again."""

    free_async = _lenient("invalid_argument", Runtime.free_async)


MUTANTS: dict[type[Runtime], tuple[str, ...]] = {
    DoubleFree: ("double_free/1", "double_free/2", "double_free/3", "double_free/4"),
    ZeroBytes: ("malloc_zero/1", "malloc_zero/2"),
    FreeNull: ("free_null/1",),
    Misaligned: ("malloc/1",),
    Overlapping: ("malloc/3",),
    Leaky: ("free/1",),
    Boundless: ("malloc/2",),
    WrongInfo: ("mem_info/1",),
    Forgetful: ("last_error/1",),
    Sticking: ("last_error/1",),
    NotReadyKept: ("last_error/2", "stream_query/3"),
    SharedError: ("thread_model/3",),
    ZeroTime: ("event_elapsed/2", "event_elapsed/3"),
    PendingTime: ("event_elapsed/4",),
    WrongClock: ("event_elapsed/1",),
    NoTimeout: ("stream_sync/2",),
    Shuffled: ("stream_create/1", "memset_async/2", "memcpy_async_pinned/3"),
    NoWait: ("default_stream/3", "mem_pool/2", "event_record/2", "event_record/3", "graph_capture/3"),
    FirstMark: ("event_record/2",),
    DefaultStream: ("default_stream/1",),
    DeviceZero: ("device_select/3",),
    SelectionLost: ("device_select/2",),
    OneSelection: ("device_select/1", "device_select/3"),
    WaitingCopy: ("memcpy_async_pinned/1", "malloc_host/2"),
    SilentPageable: ("memcpy_async_pageable/1",),
    UncountedPageable: ("memcpy_async_pageable/1",),
    CapturedPageable: ("memcpy_async_pageable/3", "graph_capture/2"),
    LostWork: ("stream_destroy/1",),
    Undead: ("stream_destroy/2",),
    FewStreams: ("stream_create/3",),
    Impatient: ("device_sync/1",),
    NeverReady: ("stream_query/1",),
    AnyLaunch: ("launch_limits/1", "launch_limits/2", "launch_args/4"),
    LateArguments: ("launch_args/3",),
    Packed: ("launch_args/1",),
    EagerCapture: ("graph_capture/1",),
    LooseFork: ("graph_capture/4", "graph_capture/2"),
    RegisteredTwice: ("host_register/2",),
    Unregistered: ("host_register/3",),
    OwnPeer: ("peer_access/2",),
    HalfPeer: ("peer_access/1",),
    HalfIpc: ("ipc_memory/1", "ipc_memory/2"),
    Waits: ("event_sync_blocking/1",),
    Ready: ("init_fini/1",),
    OverlapAllowed: ("memcpy_sync/4",),
    PoolAnywhere: ("mem_pool/3",),
}
"""Runtime -> assertions that must fail on it."""


class Revived(Runtime):
    """A fault is forgotten."""

    def enter(self) -> None:
        cores.dead.clear()
        super().enter()


class NoFault(Runtime):
    """Nobody hears of a fault."""

    def wait_for(self, stream: Any, number: int, timeout_s: float | None) -> None:
        try:
            super().wait_for(stream, number, timeout_s)
        except AccelError as error:
            if error.kind != "illegal_access":
                raise


class Alive(Runtime):
    """Pointers outlive a reset."""

    free = _lenient("invalid_argument", Runtime.free)


class Forked(Runtime):
    """A child is as good as its parent."""

    def enter(self) -> None:
        self._pid = os.getpid()
        super().enter()


POISONED: dict[type[Runtime], tuple[str, ...]] = {
    Revived: ("error_sticky/1",),
    NoFault: ("error_sticky/1", "device_sync/2"),
    Alive: ("device_reset/1",),
    Forked: ("fork_safety/1",),
}
"""Those that are run in a process of their own."""
