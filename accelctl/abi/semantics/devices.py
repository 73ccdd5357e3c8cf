"""Devices, threads, processes: who may call what, and what is left afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable

from accelctl.abi.runtime import Runtime
from accelctl.abi.semantics.suite import (
    Bench,
    asserts,
    download,
    holds,
    kind_of,
    pattern,
    refused,
    same,
    tells_free,
    told,
    whole,
)
from accelctl.abi.testbench import Wrong
from accelctl.hal.reader import run_watched

_MANY = 1000
FORKED_S = 30.0


def in_threads(*bodies: Callable[[], None]) -> None:
    """All at once; what one of them raises is raised here."""
    wrong: list[Exception] = []

    def run(body: Callable[[], None]) -> None:
        try:
            body()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


@asserts("device_select", 1, "two threads select different devices, each reads back its own")
def _select_two(b: Bench) -> None:
    rt = b.two_devices()
    meet = threading.Barrier(2, timeout=30)

    def one(index: int) -> None:
        rt.set_device(index)
        meet.wait()
        same(rt.get_device(), index, "the selected device")

    in_threads(lambda: one(0), lambda: one(1))


@asserts("device_select", 2, "a device that there is not: no_device, and the selection stays")
def _select_none(b: Bench) -> None:
    rt = b.runtime()
    for index in (rt.device_count(), -1):
        refused("no_device", lambda index=index: rt.set_device(index), f"set_device({index})")  # type: ignore[misc]
    same(rt.get_device(), 0, "the selection afterwards")


@asserts("device_select", 3, "a fresh thread has no device")
def _select_fresh(b: Bench) -> None:
    rt = b.runtime()
    in_threads(lambda: (refused("not_initialized", lambda: rt.malloc(64), "malloc without a device"), None)[1])
    rt.free(rt.malloc(64))


def _copies(rt: Runtime, salt: int, count: int) -> None:
    rt.set_device(0)
    stream, size = rt.create_stream(), 512
    data = pattern(size, salt)
    there, back = rt.malloc(size), rt.malloc_host(size)
    rt.host_write(back, data)
    for number in range(count):
        to, source = (there, back) if number % 2 == 0 else (back, there)
        rt.memcpy_async(to, source, size, stream)
    rt.sync(stream)
    whole(rt.host_read(back, size), data, f"after {count} copies")
    rt.destroy_stream(stream)
    rt.free(there)
    rt.free_host(back)


@asserts("thread_model", 1, "4 threads with 1000 copies each, on streams of their own")
def _threads_apart(b: Bench) -> str:
    rt = b.runtime()
    in_threads(*(lambda salt=salt: _copies(rt, salt, _MANY) for salt in range(4)))
    return f"{4 * _MANY} copies"


@asserts("thread_model", 2, "2 threads on one stream: both finish, each one's data are whole")
def _threads_together(b: Bench) -> None:
    rt = b.runtime()
    stream, size = rt.create_stream(), 4096
    places = [rt.malloc(size) for _ in range(2)]

    def one(which: int) -> None:
        rt.set_device(0)
        for number in range(200):
            rt.memset_async(places[which], (2 * number + which) & 0xFF, size, stream)

    in_threads(lambda: one(0), lambda: one(1))
    rt.sync(stream)
    for which, place in enumerate(places):
        whole(download(rt, place, size), bytes([(2 * 199 + which) & 0xFF]) * size, f"memory of thread {which}")


@asserts("thread_model", 3, "an error of one thread is no last error of another")
def _threads_errors(b: Bench) -> None:
    rt = b.runtime()
    rt.last_error()

    def other() -> None:
        rt.set_device(0)
        refused("invalid_argument", lambda: rt.malloc(0), "malloc(0)")
        same(rt.last_error(), "invalid_argument", "last error of the thread that failed")

    in_threads(other)
    same(rt.last_error(), "ok", "last error of the other thread")


@asserts("mem_info", 1, "free and total make sense")
def _info_sane(b: Bench) -> str:
    free, total = told(b.runtime()).memory_info()
    holds(total > 0 and 0 <= free <= total, f"{free} bytes of {total} are free")
    return f"{free} of {total} bytes"


@asserts("mem_info", 2, "an allocation of 256 MiB lowers what is free by as much, within 5 %")
def _info_moves(b: Bench) -> str:
    rt, size = tells_free(b.runtime()), 256 << 20
    before = rt.memory_info().free
    place = rt.malloc(size)
    lower = before - rt.memory_info().free
    rt.free(place)
    holds(lower >= (size - rt.granularity()) * 0.95, f"free fell by {lower} bytes for {size}")
    holds(lower <= size * 1.05 + rt.granularity(), f"free fell by {lower} bytes for {size}")
    return f"free fell by {lower} bytes"


@asserts("device_reset", 1, "a pointer from before a reset is dead")
def _reset_pointer(b: Bench) -> None:
    rt = b.runtime()
    place, stream = rt.malloc(4096), rt.create_stream()
    rt.reset_device()
    refused("invalid_argument", lambda: rt.free(place), "free of a pointer from before the reset")
    refused("invalid_handle", lambda: rt.sync(stream), "a stream from before the reset")
    rt.set_device(0)
    refused("invalid_argument", lambda: rt.free(place), "free of that pointer after a new set_device")


@asserts("device_reset", 2, "after a reset and set_device everything works again")
def _reset_works(b: Bench) -> None:
    rt = b.runtime()
    rt.malloc(4096)
    rt.reset_device()
    rt.set_device(0)
    round_trip(rt)


def round_trip(rt: Runtime) -> None:
    """Memory, a stream, a copy there and back."""
    size = 4096
    data, one, two, stream = pattern(size, 5), rt.malloc(size), rt.malloc(size), rt.create_stream()
    rt.memcpy(one, data, size)
    rt.memcpy_async(two, one, size, stream)
    rt.sync(stream)
    whole(download(rt, two, size), data, "a round trip")
    rt.destroy_stream(stream)
    rt.free(one)
    rt.free(two)


@asserts("init_fini", 1, "nothing works before init")
def _init_first(b: Bench) -> None:
    rt = b.raw()
    refused("not_initialized", lambda: rt.set_device(0), "set_device before init")
    refused("not_initialized", lambda: rt.malloc(64), "malloc before init")
    rt.init()
    rt.set_device(0)
    rt.fini()
    refused("not_initialized", lambda: rt.malloc(64), "malloc after fini")


@asserts("init_fini", 2, "init again is no error, and changes nothing")
def _init_twice(b: Bench) -> None:
    rt = b.runtime()
    place = rt.malloc(64)
    rt.init()
    rt.free(place)
    round_trip(rt)


@asserts("init_fini", 3, "a process that ends without fini neither hangs nor crashes")
def _exit_plain(b: Bench) -> str:
    if b.place.leave is None:
        raise Wrong("no process can be started from here")
    ended = b.place.leave()
    holds(not ended, f"the process: {ended}")
    return "exit status 0"


@asserts("fork_safety", 1, "a forked child gets not_initialized from every call, its parent goes on")
def _forked(b: Bench) -> str:
    rt = b.runtime()
    place, stream = rt.malloc(4096), rt.create_stream()
    calls: dict[str, Callable[[], object]] = {
        "set_device": lambda: rt.set_device(0),
        "malloc": lambda: rt.malloc(64),
        "free": lambda: rt.free(place),
        "memset_async": lambda: rt.memset_async(place, 1, 64, stream),
        "sync": lambda: rt.sync(stream),
        "synchronise_device": rt.synchronise_device,
    }

    def child(watch: object) -> dict[str, str]:
        return {name: kind_of(call) for name, call in calls.items()}

    found = run_watched(child, total_s=FORKED_S).value
    wrong = {name: kind for name, kind in found.items() if kind != "not_initialized"}
    same(wrong, {}, "kinds in the child")
    round_trip(rt)
    return f"{len(found)} calls"
