"""Allocations: what is given out, and what is taken back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from accelctl.abi.hostmem import pages
from accelctl.abi.runtime import Arg, Operand, Pointer, Runtime, Stream
from accelctl.abi.runtime.pointer import ALIGNMENT, HOST_ALIGNMENT
from accelctl.abi.semantics.suite import (
    Absent,
    Bench,
    absent,
    asserts,
    download,
    holds,
    pattern,
    refused,
    same,
    tells_free,
    too_much,
    whole,
)
from accelctl.abi.tensors import INT32

_MIB = 1 << 20
_CYCLES = 10_000
MOST_S = 0.05
"""For a call that does not wait."""


def books(rt: Runtime) -> dict[str, int]:
    """The driver's own exact counters of the selected device's session."""
    return {one.name: one.read() for one in rt.device().session.counters() if one.exact}


def unchanged(rt: Runtime, before: dict[str, int], more: int = 0) -> None:
    """They stand where they stood, or so many higher. Wrong; Absent where there is none to look at."""
    if not before:
        raise Absent("the driver has no exact counter: nothing tells whether memory is given back")
    now = {name: count for name, count in books(rt).items() if not 0 <= count - before[name] <= more}
    same(now, {}, f"what the driver counts, beside {before}")


def doubling(rt: Runtime, count: int) -> Callable[[Pointer, Stream], None]:
    """A kernel: count int32 numbers become twice what they are."""
    one = Operand((count,), INT32)
    kernel = rt.kernel("add", (one, one), (one,))
    shape = rt.launch_shape(kernel, [Arg("pointer", Pointer(0, 0, 0))] * 3)

    def launch(place: Pointer, stream: Stream) -> None:
        rt.launch(kernel, shape.grid, shape.block, [Arg("pointer", place)] * 3, 0, stream)

    return launch


def doubled(rt: Runtime, place: Pointer, count: int, stream: Stream) -> None:
    """That kernel, once."""
    doubling(rt, count)(place, stream)


def numbers(*values: int) -> bytes:
    """int32."""
    return b"".join(value.to_bytes(4, "little", signed=True) for value in values)


@asserts("malloc", 1, "sizes from 1 byte to 2 MiB + 1 start at multiples of 256")
def _malloc_aligned(b: Bench) -> None:
    rt = b.runtime()
    for size in (1, 255, 256, 257, 2 * _MIB - 1, 2 * _MIB + 1):
        place = rt.malloc(size)
        same(place.address % ALIGNMENT, 0, f"address of {size} bytes, modulo {ALIGNMENT}")
        rt.free(place)


@asserts("malloc", 2, "more than there is: out_of_memory, and the device stays usable")
def _malloc_too_much(b: Bench) -> None:
    rt = b.runtime()
    refused("out_of_memory", lambda: rt.malloc(too_much(rt)), "more than there is")
    rt.free(rt.malloc(4096))


@asserts("malloc", 3, "two live allocations do not overlap")
def _malloc_apart(b: Bench) -> None:
    rt, size = b.runtime(), 5000
    places = [rt.malloc(size) for _ in range(8)]
    ends = sorted((one.address, one.address + size) for one in places)
    holds(all(end <= start for (_, end), (start, _) in pairwise(ends)), f"ranges {ends}")
    for salt, place in enumerate(places):
        rt.memcpy(place, pattern(size, salt), size)
    for salt, place in enumerate(places):
        whole(download(rt, place, size), pattern(size, salt), f"allocation {salt}")


@asserts("alloc_alignment_granularity", 1, "the granularity is a power of two")
def _granularity(b: Bench) -> str:
    unit = b.runtime().granularity()
    holds(unit > 0 and not unit & unit - 1, f"granularity {unit}")
    return f"{unit} bytes"


@asserts("alloc_alignment_granularity", 2, "1000 allocations of a byte take at most 1000 units")
def _granularity_used(b: Bench) -> str:
    rt, count = tells_free(b.runtime()), 1000
    before = rt.memory_info().free
    places = [rt.malloc(1) for _ in range(count)]
    used = before - rt.memory_info().free
    for place in places:
        rt.free(place)
    holds(used <= count * rt.granularity(), f"{used} bytes for {count} allocations, units of {rt.granularity()}")
    return f"{used} bytes"


@asserts("malloc_zero", 1, "malloc(0) is refused, and nothing is given")
def _malloc_nothing(b: Bench) -> None:
    rt = b.runtime()
    before = books(rt)
    refused("invalid_argument", lambda: rt.malloc(0), "malloc(0)")
    unchanged(rt, before)


@asserts("malloc_zero", 2, "so is 0 of malloc_host, malloc_async and malloc_managed")
def _others_nothing(b: Bench) -> None:
    rt = b.runtime()
    stream = rt.create_stream()
    refused("invalid_argument", lambda: rt.malloc_host(0), "malloc_host(0)")
    refused("invalid_argument", lambda: rt.malloc_async(0, stream), "malloc_async(0)")
    refused("invalid_argument", lambda: rt.malloc_managed(0), "malloc_managed(0)")


@asserts("malloc_host", 1, "the host reads and writes it")
def _host_memory(b: Bench) -> None:
    rt, size = b.runtime(), 10_001
    place = rt.malloc_host(size)
    rt.host_write(place, pattern(size, 9))
    whole(rt.host_read(place, size), pattern(size, 9), "host memory")
    rt.free_host(place)


@asserts("malloc_host", 2, "an asynchronous copy from it does not wait for a long kernel ahead")
def _host_memory_async(b: Bench) -> str:
    rt, size = b.runtime(), 4096
    place, there, stream = rt.malloc_host(size), rt.malloc(size), rt.create_stream()
    rt.host_write(place, pattern(size, 3))
    b.ready(rt)
    seen = unwaited(b, rt, stream, lambda: rt.memcpy_async(there, place, size, stream), 0.3)
    rt.sync(stream)
    whole(download(rt, there, size), pattern(size, 3), "what was copied")
    return seen


def unwaited(b: Bench, rt: Runtime, stream: Stream, call: Callable[[], object], seconds: float) -> str:
    """Behind work of so many seconds a call returns in less than 50 ms, and the work is not done then. A busy machine
    may keep any caller for as long, so the best of three tries counts. Wrong."""
    best = min(b.behind(rt, stream, seconds, lambda: b.took(rt, call)) for _ in range(3))
    holds(best < MOST_S, f"the call took {best * 1e3:.0f} ms behind {seconds * 1e3:.0f} ms of work")
    return f"{best * 1e3:.1f} ms behind {seconds * 1e3:.0f} ms of work"


@asserts("malloc_host", 3, "it starts at a multiple of 64")
def _host_memory_aligned(b: Bench) -> None:
    rt = b.runtime()
    for size in (1, 63, 65, 4097):
        place = rt.malloc_host(size)
        same(place.address % HOST_ALIGNMENT, 0, f"address of {size} bytes, modulo {HOST_ALIGNMENT}")
        rt.free_host(place)


@asserts("free", 1, "memory that a kernel used is given back after a synchronisation")
def _free_used(b: Bench) -> None:
    rt = b.runtime()
    before = books(rt)
    place, stream = rt.malloc(4096), rt.create_stream()
    rt.memset_async(place, 0, 4096, stream)
    doubled(rt, place, 1024, stream)
    rt.synchronise_device()
    rt.free(place)
    rt.destroy_stream(stream)
    rt.free(rt.malloc(4096))
    unchanged(rt, before, 1)  # one block more: the runtime's table of bytes


@asserts("free", 2, "10000 allocations and frees of one size, and nothing grows")
def _free_cycles(b: Bench) -> str:
    rt = b.runtime()
    rt.free(rt.malloc(8192))
    native = rt.capabilities()["memory_info"] == "native"  # asking makes a stream
    before = books(rt)
    free = rt.memory_info().free if native else 0
    for _ in range(_CYCLES):
        rt.free(rt.malloc(8192))
    if native:
        holds(rt.memory_info().free >= free - rt.granularity(), "less memory is free than before")
    if before or not native:
        unchanged(rt, before)
    return f"{_CYCLES} cycles, books {before}"


@asserts("free_null", 1, "free of nothing is fine")
def _free_nothing(b: Bench) -> None:
    rt = b.runtime()
    rt.free(None)
    same(rt.last_error(), "ok", "last error afterwards")


def _works(rt: Runtime) -> None:
    place = rt.malloc(64)
    rt.memcpy(place, pattern(64), 64)
    whole(download(rt, place, 64), pattern(64), "a copy afterwards")
    rt.free(place)


@asserts("double_free", 1, "the second free of a pointer is refused")
def _free_twice(b: Bench) -> None:
    rt = b.runtime()
    place = rt.malloc(4096)
    rt.free(place)
    refused("invalid_argument", lambda: rt.free(place), "a second free")


@asserts("double_free", 2, "free of an interior pointer is refused, and frees nothing")
def _free_inside(b: Bench) -> None:
    rt = b.runtime()
    place = rt.malloc(4096)
    rt.memcpy(place, pattern(4096), 4096)
    refused("invalid_argument", lambda: rt.free(place + 1), "free of a pointer into the middle")
    whole(download(rt, place, 4096), pattern(4096), "the memory")
    rt.free(place)


@asserts("double_free", 3, "free of host memory is refused")
def _free_host(b: Bench) -> None:
    rt = b.runtime()
    place = rt.malloc_host(4096)
    refused("invalid_argument", lambda: rt.free(place), "free of host memory")
    rt.host_write(place, b"still")
    rt.free_host(place)


@asserts("double_free", 4, "the device works after all of these")
def _free_wrong_then_right(b: Bench) -> None:
    rt = b.runtime()
    place, host = rt.malloc(4096), rt.malloc_host(64)
    rt.free(place)
    for what, wrong in (("freed", place), ("interior", host + 4), ("host", host)):
        refused("invalid_argument", lambda wrong=wrong: rt.free(wrong), f"free of a {what} pointer")  # type: ignore[misc]
    _works(rt)


@asserts("mem_pool", 1, "10000 of malloc_async, a kernel, free_async, and nothing grows")
def _pool_cycles(b: Bench) -> str:
    rt = b.runtime()
    stream = rt.create_stream()
    rt.free_async(rt.malloc_async(4096, stream), stream)
    before, double = books(rt), doubling(rt, 8)
    for _ in range(_CYCLES):
        place = rt.malloc_async(4096, stream)
        double(place, stream)
        rt.free_async(place, stream)
    rt.sync(stream)
    unchanged(rt, before)
    return rt.capabilities()["mem_pool_native"]


@asserts("mem_pool", 2, "another stream may use it after an event")
def _pool_elsewhere(b: Bench) -> None:
    rt, size = b.runtime(), 4096
    one, two, event = rt.create_stream(), rt.create_stream(), rt.create_event(False)
    place, there = rt.malloc_async(size, one), rt.malloc(size)
    b.burn(rt, one, 0.02)
    rt.memset_async(place, 0x3C, size, one)
    rt.record(event, one)
    rt.wait(two, event)
    rt.memcpy_async(there, place, size, two)
    rt.sync(two)
    whole(download(rt, there, size), b"\x3c" * size, "what the other stream copied")
    rt.free_async(place, two)
    rt.sync(two)


@asserts("mem_pool", 3, "free takes such a pointer after a synchronisation")
def _pool_freed(b: Bench) -> None:
    rt = b.runtime()
    stream = rt.create_stream()
    place = rt.malloc_async(4096, stream)
    rt.memset_async(place, 1, 4096, stream)
    rt.sync(stream)
    rt.free(place)
    refused("invalid_argument", lambda: rt.free_async(place, stream), "free_async of it afterwards")


@asserts("ipc_memory", 1, "another process reads through a handle what was written")
def _ipc_read(b: Bench) -> None:
    rt = b.runtime()
    place = rt.malloc(4096)
    raise absent("ipc", lambda: rt.ipc_export(place), lambda: rt.ipc_open(b""))


@asserts("ipc_memory", 2, "only the base of an allocation can be exported")
def _ipc_interior(b: Bench) -> None:
    rt = b.runtime()
    place = rt.malloc(4096)
    raise absent("ipc", lambda: rt.ipc_export(place + 256))


@asserts("ipc_memory", 3, "one process may open a handle twice")
def _ipc_twice(b: Bench) -> None:
    rt = b.runtime()
    raise absent("ipc", lambda: rt.ipc_open(b"handle"), lambda: rt.ipc_open(b"handle"))


@asserts("host_register", 1, "register, copy asynchronously, unregister")
def _register(b: Bench) -> None:
    rt, size = b.runtime(), 8192
    mine, place, stream = pages(size), rt.malloc(size), rt.create_stream()
    mine.view[0:size] = pattern(size, 7)
    rt.host_register(mine, size)
    rt.memcpy_async(place, mine, size, stream)
    rt.sync(stream)
    mine.view[0:size] = bytes(size)
    rt.memcpy_async(mine, place, size, stream)
    rt.sync(stream)
    whole(mine.view[0:size], pattern(size, 7), "what came back")
    rt.host_unregister(mine)
    refused("not_supported", lambda: rt.memcpy_async(place, mine, size, stream), "a copy of them afterwards")


@asserts("host_register", 2, "what is registered cannot be registered again")
def _register_twice(b: Bench) -> None:
    rt, size = b.runtime(), 8192
    mine = pages(size)
    rt.host_register(mine, size)
    refused("already_exists", lambda: rt.host_register(mine, 4096), "a range of it")
    rt.host_unregister(mine)


@asserts("host_register", 3, "what is not registered cannot be unregistered")
def _unregister_twice(b: Bench) -> None:
    rt, size = b.runtime(), 4096
    mine = pages(size)
    rt.host_register(mine, size)
    rt.host_unregister(mine)
    refused("invalid_state", lambda: rt.host_unregister(mine), "a second unregister")


def _managed(rt: Runtime, size: int) -> Pointer:
    """Absent where the device has no such memory."""
    if rt.capabilities()["managed"] == "absent":
        raise absent("managed", lambda: rt.malloc_managed(size))
    return rt.malloc_managed(size)


@asserts("unified_memory", 1, "the host writes, a kernel works, the host reads")
def _managed_read(b: Bench) -> None:
    rt = b.runtime()
    place, stream = _managed(rt, 4096), rt.create_stream()
    rt.host_write(place, numbers(1, 20, -300))
    doubled(rt, place, 3, stream)
    rt.sync(stream)
    same(rt.host_read(place, 12), numbers(2, 40, -600), "what the host reads")


@asserts("unified_memory", 2, "a kernel works, the host writes, a kernel works")
def _managed_write(b: Bench) -> None:
    rt = b.runtime()
    place, stream = _managed(rt, 4096), rt.create_stream()
    rt.memset_async(place, 1, 12, stream)
    rt.sync(stream)
    rt.host_write(place, numbers(5, 6, 7))
    doubled(rt, place, 3, stream)
    rt.sync(stream)
    same(rt.host_read(place, 12), numbers(10, 12, 14), "what the host reads")
