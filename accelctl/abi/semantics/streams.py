"""Streams: order, life, and what is known of them without waiting."""

from __future__ import annotations

from accelctl.abi.semantics.memory import doubled, numbers
from accelctl.abi.semantics.suite import Bench, asserts, download, holds, kind_of, pattern, refused, same, whole

_STREAMS, _QUERIES = 64, 100_000


@asserts("stream_create", 1, "work of one stream runs in its order")
def _in_order(b: Bench) -> None:
    rt = b.runtime()
    place, stream = rt.malloc(8), rt.create_stream()
    for _ in range(5):
        rt.memset_async(place, 0, 8, stream)
        rt.memset_async(place, 1, 4, stream)
        for _ in range(20):
            doubled(rt, place, 2, stream)
        rt.sync(stream)
        same(download(rt, place, 8), numbers(0x01010101 << 20 & 0x7FFFFFFF, 0), "after 20 kernels")


@asserts("stream_create", 2, "two streams with kernels of 100 ms each give right results")
def _two_streams(b: Bench) -> None:
    rt = b.runtime()
    streams, places = [rt.create_stream() for _ in range(2)], [rt.malloc(8) for _ in range(2)]
    for salt, (stream, place) in enumerate(zip(streams, places, strict=True), 1):
        rt.memset_async(place, salt, 8, stream)
        b.burn(rt, stream, 0.1)
        doubled(rt, place, 2, stream)
    for salt, (stream, place) in enumerate(zip(streams, places, strict=True), 1):
        rt.sync(stream)
        same(download(rt, place, 8), bytes([2 * salt]) * 8, f"stream {salt}")


@asserts("stream_create", 3, "64 streams live at once")
def _many_streams(b: Bench) -> None:
    rt = b.runtime()
    streams = [rt.create_stream() for _ in range(_STREAMS)]
    place = rt.malloc(_STREAMS)
    for number, stream in enumerate(streams):
        rt.memset_async(place + number, number, 1, stream)
    rt.synchronise_device()
    same(download(rt, place, _STREAMS), bytes(range(_STREAMS)), "a byte of each stream")
    for stream in streams:
        rt.destroy_stream(stream)


@asserts("stream_destroy", 1, "work of a stream that is destroyed at once is done")
def _destroyed_busy(b: Bench) -> None:
    rt, size = b.runtime(), 1 << 16
    host, place, stream = rt.malloc_host(size), rt.malloc(size), rt.create_stream()
    rt.host_write(host, pattern(size, 8))
    b.burn(rt, stream, 0.05)
    rt.memcpy_async(place, host, size, stream)
    rt.destroy_stream(stream)
    rt.synchronise_device()
    whole(download(rt, place, size), pattern(size, 8), "what was copied")


@asserts("stream_destroy", 2, "a destroyed stream is an invalid handle")
def _destroyed_used(b: Bench) -> None:
    rt = b.runtime()
    stream, place, event = rt.create_stream(), rt.malloc(64), rt.create_event(False)
    rt.destroy_stream(stream)
    refused("invalid_handle", lambda: rt.memset_async(place, 0, 64, stream), "work in a destroyed stream")
    refused("invalid_handle", lambda: rt.sync(stream), "sync of a destroyed stream")
    refused("invalid_handle", lambda: rt.record(event, stream), "record in a destroyed stream")
    refused("invalid_handle", lambda: rt.destroy_stream(stream), "destroying it again")
    refused("invalid_handle", lambda: rt.destroy_stream(None), "destroying a default stream")


@asserts("default_stream", 1, "there is none: a stream is always named")
def _no_default(b: Bench) -> None:
    rt = b.runtime()
    place, host = rt.malloc(64), rt.malloc_host(64)
    for what, call in {
        "a copy": lambda: rt.memcpy_async(place, host, 64, None),
        "a fill": lambda: rt.memset_async(place, 0, 64, None),
        "sync": lambda: rt.sync(None),
        "query": lambda: rt.query(None),
        "malloc_async": lambda: rt.malloc_async(64, None),
    }.items():
        refused("invalid_handle", call, f"{what} without a stream")


@asserts("default_stream", 2, "a kernel in one stream and a copy in another, no event: no order is assumed")
def _no_order(b: Bench) -> str:
    rt, size = b.runtime(), 4096
    one, two, source, target = rt.create_stream(), rt.create_stream(), rt.malloc(size), rt.malloc(size)
    rt.memset_async(source, 1, size, one)
    rt.sync(one)
    b.burn(rt, one, 0.02)
    rt.memset_async(source, 2, size, one)
    rt.memcpy_async(target, source, size, two)
    rt.synchronise_device()
    whole(download(rt, source, size), b"\x02" * size, "what the kernel wrote")
    found = set(download(rt, target, size))
    holds(found <= {1, 2}, f"the copy holds bytes {sorted(found)[:8]}, of 1 and 2")
    return "the copy saw " + " and ".join({1: "the old", 2: "the new"}[value] for value in sorted(found)) + " data"


@asserts("default_stream", 3, "an event makes the order")
def _event_order(b: Bench) -> None:
    rt, size = b.runtime(), 4096
    one, two, event = rt.create_stream(), rt.create_stream(), rt.create_event(False)
    source, target = rt.malloc(size), rt.malloc(size)
    for value in range(1, 6):
        b.burn(rt, one, 0.01)
        rt.memset_async(source, value, size, one)
        rt.record(event, one)
        rt.wait(two, event)
        rt.memcpy_async(target, source, size, two)
        rt.sync(two)
        whole(download(rt, target, size), bytes([value]) * size, f"round {value}")


@asserts("stream_query", 1, "not_ready while a long kernel runs, then ok")
def _query_changes(b: Bench) -> None:
    rt = b.runtime()
    stream = rt.create_stream()
    same(rt.query(stream), "ok", "a new stream")
    same(b.behind(rt, stream, 0.2, lambda: rt.query(stream)), "not_ready", "behind 200 ms of work")
    same(rt.query(stream), "ok", "after sync")


@asserts("stream_query", 2, "100000 queries do not block")
def _query_often(b: Bench) -> str:
    rt = b.runtime()
    stream = rt.create_stream()
    b.ready(rt)
    b.burn(rt, stream, 0.3)
    slowest = seen = 0.0
    for number in range(_QUERIES):
        if number % 1000 == 0:
            slowest = max(slowest, b.took(rt, lambda: rt.query(stream)))
        elif rt.query(stream) == "not_ready":
            seen += 1
    rt.sync(stream)
    holds(seen > 0, "no query met work that runs")
    holds(slowest < 0.25, f"one query took {slowest * 1e3:.0f} ms")
    return f"{_QUERIES} queries, {int(seen)} of them not_ready"


@asserts("stream_query", 3, "not_ready is no last error")
def _query_no_error(b: Bench) -> None:
    rt = b.runtime()
    stream = rt.create_stream()
    rt.last_error()
    found = b.behind(rt, stream, 0.1, lambda: (rt.query(stream), rt.last_error()))
    same(found, ("not_ready", "ok"), "the query, and last error after it")


@asserts("stream_sync", 1, "after sync a copy to the host is complete")
def _sync_complete(b: Bench) -> None:
    rt, size = b.runtime(), 1 << 20
    host, place, stream = rt.malloc_host(size), rt.malloc(size), rt.create_stream()
    rt.memcpy(place, pattern(size, 11), size)
    b.burn(rt, stream, 0.03)
    rt.memcpy_async(host, place, size, stream)
    rt.sync(stream)
    whole(rt.host_read(host, size), pattern(size, 11), "host memory")


@asserts("stream_sync", 2, "10 ms of patience with 500 ms of work: timeout, and a later sync is fine")
def _sync_timeout(b: Bench) -> str:
    rt = b.runtime()
    stream, place = rt.create_stream(), rt.malloc(64)
    b.ready(rt)

    def impatient() -> str:
        rt.memset_async(place, 3, 64, stream)
        return kind_of(lambda: rt.sync(stream, timeout_s=0.01))

    same(b.behind(rt, stream, 0.5, impatient), "timeout", "sync for 10 ms behind 500 ms of work")
    same(download(rt, place, 64), b"\x03" * 64, "the work that went on")
    return "timeout, then ok"


@asserts("device_sync", 1, "work in 8 streams, one synchronisation, all is there")
def _device_sync(b: Bench) -> None:
    rt, size = b.runtime(), 4096
    streams, places = [rt.create_stream() for _ in range(8)], [rt.malloc(size) for _ in range(8)]
    for number, (stream, place) in enumerate(zip(streams, places, strict=True)):
        b.burn(rt, stream, 0.01)
        rt.memset_async(place, number + 1, size, stream)
    rt.synchronise_device()
    for number, place in enumerate(places):
        same(rt.query(streams[number]), "ok", f"stream {number}")
        whole(download(rt, place, size), bytes([number + 1]) * size, f"memory of stream {number}")
