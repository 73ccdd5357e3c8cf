"""Copies and fills: what is there afterwards, and who waits."""

from __future__ import annotations

from functools import partial

from accelctl.abi.runtime import Runtime
from accelctl.abi.runtime.copies import Place
from accelctl.abi.semantics.memory import doubled, numbers, unwaited
from accelctl.abi.semantics.suite import Bench, asserts, download, holds, pattern, refused, same, whole
from accelctl.abi.testbench import Wrong
from accelctl.errors import AccelError

_LARGE = (1 << 26) + 1


@asserts("memcpy_sync", 1, "there, across and back: 1, 3, 4096 and 2^26 + 1 bytes")
def _copy_sizes(b: Bench) -> None:
    rt = b.runtime()
    for size in (1, 3, 4096, _LARGE):
        data, one, two = pattern(size, 1), rt.malloc(size), rt.malloc(size)
        rt.memcpy(one, data, size)
        rt.memcpy(two, one, size)
        whole(download(rt, two, size), data, f"{size} bytes")
        rt.free(one)
        rt.free(two)


@asserts("memcpy_sync", 2, "0 bytes touch no pointer")
def _copy_nothing(b: Bench) -> None:
    rt = b.runtime()
    rt.memcpy(None, None, 0)


@asserts("memcpy_sync", 3, "work of another stream that follows sees what was copied")
def _copy_seen(b: Bench) -> None:
    rt = b.runtime()
    place, stream = rt.malloc(4096), rt.create_stream()
    for number in range(1, 51):
        rt.memcpy(place, numbers(number, -number), 8)
        doubled(rt, place, 2, stream)
        rt.sync(stream)
        same(download(rt, place, 8), numbers(2 * number, -2 * number), f"round {number}")


@asserts("memcpy_sync", 4, "wrong pointers are refused, and nothing moves")
def _copy_wrong(b: Bench) -> None:
    rt, size = b.runtime(), 4096
    place, gone = rt.malloc(size), rt.malloc(size)
    rt.memcpy(place, pattern(size), size)
    rt.free(gone)
    host = bytearray(size)
    cases: dict[str, tuple[Place, Place, int]] = {
        "from nothing": (place, None, 8),
        "to nothing": (None, place, 8),
        "from freed memory": (place, gone, 8),
        "beyond the end": (place, pattern(size + 1), size + 1),
        "from behind the end": (host, place + (size - 4), 8),
        "between two places of the host": (host, b"12345678", 8),
        "from a host buffer that is too short": (place, b"1234", 8),
        "into memory that cannot be written": (b"12345678", place, 8),
        "of a negative size": (place, pattern(8), -1),
        "of overlapping places": (place + 4, place, 8),
    }
    for what, (to, source, count) in cases.items():
        refused("invalid_argument", partial(rt.memcpy, to, source, count), f"a copy {what}")
    whole(download(rt, place, size), pattern(size), "the memory")


@asserts("memcpy_async_pinned", 1, "behind a kernel of 200 ms the call returns in less than 50 ms")
def _pinned_returns(b: Bench) -> str:
    rt, size = b.runtime(), 1 << 20
    host, place, stream = rt.malloc_host(size), rt.malloc(size), rt.create_stream()
    b.ready(rt)
    return unwaited(b, rt, stream, lambda: rt.memcpy_async(place, host, size, stream), 0.2)


@asserts("memcpy_async_pinned", 2, "the data are right after a synchronisation, both ways")
def _pinned_right(b: Bench) -> None:
    rt = b.runtime()
    stream = rt.create_stream()
    for size in (1, 3, 4096, (1 << 20) + 1):
        one, two, place = rt.malloc_host(size), rt.malloc_host(size), rt.malloc(size)
        rt.host_write(one, pattern(size, 2))
        rt.memcpy_async(place, one, size, stream)
        rt.memcpy_async(two, place, size, stream)
        rt.sync(stream)
        whole(rt.host_read(two, size), pattern(size, 2), f"{size} bytes")
        rt.free_host(one)
        rt.free_host(two)
        rt.free(place)


@asserts("memcpy_async_pinned", 3, "copies and kernels of one stream keep their order")
def _pinned_order(b: Bench) -> None:
    rt = b.runtime()
    host, back, place, stream = rt.malloc_host(12), rt.malloc_host(12), rt.malloc(12), rt.create_stream()
    rt.host_write(host, numbers(1, 2, 3))
    for _ in range(20):
        rt.memcpy_async(place, host, 12, stream)
        doubled(rt, place, 3, stream)
        doubled(rt, place, 3, stream)
    rt.memcpy_async(back, place, 12, stream)
    rt.memset_async(place, 0, 12, stream)
    rt.sync(stream)
    same(rt.host_read(back, 12), numbers(4, 8, 12), "what was copied between a kernel and a fill")


@asserts("memcpy_async_pageable", 1, "refused (not_async) and counted; allowed, the data are right both ways")
def _pageable(b: Bench) -> str:
    rt, size = b.runtime(), 5001
    place, stream, back = rt.malloc(size), rt.create_stream(), bytearray(size)
    before = dict(rt.counts)
    not_async(rt, lambda: rt.memcpy_async(place, pattern(size, 4), size, stream), "from pageable memory")
    not_async(rt, lambda: rt.memcpy_async(back, place, size, stream), "to pageable memory")
    rt.memcpy_async(place, pattern(size, 4), size, stream, allow_sync=True)
    rt.memcpy_async(back, place, size, stream, allow_sync=True)
    rt.sync(stream)
    whole(bytes(back), pattern(size, 4), "what came back")
    counted = {name: rt.counts[name] - before.get(name, 0) for name in ("pageable_refused", "pageable_staged")}
    same(counted, {"pageable_refused": 2, "pageable_staged": 2}, "what was counted")
    return "2 refused, 2 staged"


def not_async(rt: Runtime, call: object, what: str) -> None:
    """The call must be refused with that word. Wrong."""
    try:
        call()  # type: ignore[operator]
    except AccelError as error:
        same((error.kind, getattr(error, "word", "")), ("not_supported", "not_async"), f"an asynchronous copy {what}")
        return
    raise Wrong(f"an asynchronous copy {what} is accepted without allow_sync")


@asserts("memcpy_async_pageable", 2, "the source may change after a synchronisation, and what was copied stays")
def _pageable_source(b: Bench) -> None:
    rt, size = b.runtime(), 4096
    place, stream, source = rt.malloc(size), rt.create_stream(), bytearray(pattern(size, 6))
    b.burn(rt, stream, 0.02)
    rt.memcpy_async(place, source, size, stream, allow_sync=True)
    rt.sync(stream)
    source[:] = bytes(size)
    whole(download(rt, place, size), pattern(size, 6), "what was copied")


@asserts("memcpy_async_pageable", 3, "in a capture it is a violation, or right; never wrong data")
def _pageable_captured(b: Bench) -> str:
    rt, size = b.runtime(), 64
    place, stream = rt.malloc(size), rt.create_stream()
    rt.begin_capture(stream)
    kind = refused(
        "capture_violation",
        lambda: rt.memcpy_async(place, pattern(size), size, stream, allow_sync=True),
        "a pageable copy in a capture",
    )
    refused("capture_violation", lambda: rt.end_capture(stream), "the end of that capture")
    rt.memset_async(place, 9, size, stream)
    rt.sync(stream)
    whole(download(rt, place, size), b"\x09" * size, "work after the lost capture")
    return kind


@asserts("memset_async", 1, "three bytes over 1, 7, 4096 and 2^26 + 3 bytes")
def _fill_sizes(b: Bench) -> None:
    rt = b.runtime()
    stream = rt.create_stream()
    for size in (1, 7, 4096, (1 << 26) + 3):
        place = rt.malloc(size + 1)
        rt.memcpy(place + size, b"\x77", 1)
        for value in (0x00, 0xFF, 0xA5):
            rt.memset_async(place, value, size, stream)
            rt.sync(stream)
            found = download(rt, place, size + 1)
            holds(
                found.count(value, 0, size) == size,
                f"{size} bytes of {value:#x}: {found.count(value, 0, size)} are right",
            )
            same(found[size], 0x77, f"the byte behind {size} bytes")
        rt.free(place)
    rt.memset_async(None, 1, 0, stream)


@asserts("memset_async", 2, "fill, kernel, fill keep their order")
def _fill_order(b: Bench) -> None:
    rt = b.runtime()
    place, kept, stream = rt.malloc(8), rt.malloc(8), rt.create_stream()
    rt.memset_async(place, 1, 8, stream)
    doubled(rt, place, 2, stream)
    rt.memcpy_async(kept, place, 8, stream)
    rt.memset_async(place, 7, 8, stream)
    rt.sync(stream)
    same(download(rt, kept, 8), b"\x02" * 8, "between the fills")
    same(download(rt, place, 8), b"\x07" * 8, "behind the second fill")
