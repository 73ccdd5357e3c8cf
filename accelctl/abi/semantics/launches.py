"""Launches, captures, and devices that reach each other."""

from __future__ import annotations

import struct

from accelctl.abi.launch import MOST_GRID, MOST_THREADS
from accelctl.abi.runtime import ECHO, Arg, Operand, Runtime, Stream
from accelctl.abi.runtime.pointer import Pointer
from accelctl.abi.semantics.memory import doubled, numbers
from accelctl.abi.semantics.suite import Bench, absent, asserts, download, pattern, refused, same, whole
from accelctl.abi.tensors import INT32

_ONE = (1, 1, 1)
_REPLAYS = 100


def _echoed(b: Bench, args: list[Arg], size: int) -> bytes:
    """The argument block as the device has it; the first argument but one pointer is where it stores it."""
    rt = b.runtime()
    stream, place = rt.create_stream(), rt.malloc(size)
    given = [one._replace(value=place) if one.type == "pointer" else one for one in args]
    rt.launch(ECHO, _ONE, _ONE, given, 0, stream)
    rt.sync(stream)
    return download(rt, place, size)


@asserts("launch_args", 1, "char, double, int, pointer and short arrive, each where natural alignment puts it")
def _arguments_arrive(b: Bench) -> str:
    place = Pointer(0, 0, 0)
    args = [Arg("i8", -5), Arg("f64", 2.5), Arg("i32", -70000), Arg("pointer", place), Arg("i16", 1234)]
    native = struct.Struct("=b7xdi4xQh6x")  # what a C compiler makes of such a struct
    found = native.unpack(_echoed(b, args, native.size))
    same((*found[:3], found[4]), (-5, 2.5, -70000, 1234), "values that the device has")
    same(found[3] > 0, True, "a pointer that the device has")
    return "the device stored its own argument block"


@asserts("launch_args", 2, "a struct of 64 bytes by value")
def _arguments_struct(b: Bench) -> None:
    body = pattern(64, 12)
    found = _echoed(b, [Arg("pointer", Pointer(0, 0, 0)), Arg("bytes", body, 8)], 72)
    whole(found[8:], body, "the struct")


@asserts("launch_args", 3, "values are copied at the call")
def _arguments_copied(b: Bench) -> None:
    rt, size = b.runtime(), 64
    stream, place = rt.create_stream(), rt.malloc(size + 8)
    value = bytearray(size)

    def launched() -> None:
        value[:] = pattern(size, 13)
        rt.launch(ECHO, _ONE, _ONE, [Arg("pointer", place), Arg("bytes", value)], 0, stream)
        value[:] = bytes(size)

    b.behind(rt, stream, 0.1, launched)
    whole(download(rt, place, size + 8)[8:], pattern(size, 13), "the value that was passed")


@asserts("launch_args", 4, "4096 bytes arrive; one more is launch_config")
def _arguments_most(b: Bench) -> None:
    rt = b.runtime()
    body = pattern(4096 - 8, 14)
    found = _echoed(b, [Arg("pointer", Pointer(0, 0, 0)), Arg("bytes", body)], 4096)
    whole(found[8:], body, "4096 bytes of arguments")
    place, stream = rt.malloc(8192), rt.create_stream()
    rt.memcpy(place, pattern(8192), 8192)
    args = [Arg("pointer", place), Arg("bytes", body + b"!")]
    refused("launch_config", lambda: rt.launch(ECHO, _ONE, _ONE, args, 0, stream), "4097 bytes of arguments")
    rt.sync(stream)
    whole(download(rt, place, 8192), pattern(8192), "memory after the refused launch")


def _kernel(
    rt: Runtime, place: Pointer, stream: Stream, grid: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    one = Operand((8,), INT32)
    kernel = rt.kernel("add", (one, one), (one,))
    rt.launch(kernel, grid, block, [Arg("pointer", place)] * 3, 0, stream)


@asserts("launch_limits", 1, "a block that is too large is launch_config, and the next launch works")
def _block_too_large(b: Bench) -> None:
    rt = b.runtime()
    place, stream = rt.malloc(64), rt.create_stream()
    rt.memcpy(place, numbers(*range(8)), 32)
    for block in ((2 * MOST_THREADS, 1, 1), (MOST_THREADS, 2, 1), (1, 1, 1 << 20)):
        refused("launch_config", lambda block=block: _kernel(rt, place, stream, _ONE, block), f"a block of {block}")  # type: ignore[misc]
    refused(
        "launch_config", lambda: _kernel(rt, place, stream, (MOST_GRID[0] + 1, 1, 1), _ONE), "a grid beyond the limit"
    )
    one = Operand((8,), INT32)
    args = [Arg("pointer", place)] * 3
    refused(
        "launch_config",
        lambda: rt.launch(rt.kernel("add", (one, one), (one,)), _ONE, _ONE, args, 1 << 30, stream),
        "a gigabyte of shared memory",
    )
    rt.sync(stream)
    same(download(rt, place, 32), numbers(*range(8)), "memory after the refused launches")
    doubled(rt, place, 8, stream)
    rt.sync(stream)
    same(download(rt, place, 32), numbers(*range(0, 16, 2)), "memory after the next launch")


@asserts("launch_limits", 2, "a dimension of 0 is launch_config")
def _no_blocks(b: Bench) -> None:
    rt = b.runtime()
    place, stream = rt.malloc(64), rt.create_stream()
    rt.memcpy(place, numbers(*range(8)), 32)
    for axis in range(3):
        zero = tuple(0 if one == axis else 1 for one in range(3))
        refused("launch_config", lambda zero=zero: _kernel(rt, place, stream, zero, _ONE), f"a grid of {zero}")  # type: ignore[misc]
        refused("launch_config", lambda zero=zero: _kernel(rt, place, stream, _ONE, zero), f"a block of {zero}")  # type: ignore[misc]
    rt.sync(stream)
    same(download(rt, place, 32), numbers(*range(8)), "memory afterwards")


@asserts("peer_access", 1, "enabling twice is no error")
def _peer_twice(b: Bench) -> None:
    rt = b.two_devices()
    if not rt.can_access(0, 1):
        raise absent("peer", lambda: rt.enable_peer(1), lambda: rt.enable_peer(1))
    rt.enable_peer(1)
    rt.enable_peer(1)


@asserts("peer_access", 2, "a device is no peer of itself")
def _peer_self(b: Bench) -> None:
    rt = b.runtime()
    refused("invalid_argument", lambda: rt.enable_peer(0), "enabling a device for itself")


@asserts("peer_access", 3, "a copy from device to device is right without enabling")
def _peer_copy(b: Bench) -> None:
    rt, size = b.two_devices(), 10_001
    source = rt.malloc(size)
    rt.memcpy(source, pattern(size, 15), size)
    rt.set_device(1)
    target, stream = rt.malloc(size), rt.create_stream()
    rt.memcpy(target, source, size)
    whole(download(rt, target, size), pattern(size, 15), "after a synchronous copy")
    rt.memset_async(target, 0, size, stream)
    rt.memcpy_async(target, source, size, stream)
    rt.sync(stream)
    whole(download(rt, target, size), pattern(size, 15), "after an asynchronous copy")


def _captured(rt: Runtime, place: Pointer, stream: Stream) -> None:
    """Three kernels."""
    doubled(rt, place, 4, stream)
    rt.memset_async(place, 1, 4, stream)
    doubled(rt, place, 4, stream)


@asserts("graph_capture", 1, "three kernels captured and replayed 100 times equal direct runs; nothing runs meanwhile")
def _replays(b: Bench) -> str:
    rt = b.runtime()
    direct, replayed, stream = rt.malloc(16), rt.malloc(16), rt.create_stream()
    start = numbers(0, 1, 2, -3)
    for place in (direct, replayed):
        rt.memcpy(place, start, 16)
    rt.begin_capture(stream)
    _captured(rt, replayed, stream)
    graph = rt.end_capture(stream)
    rt.sync(stream)
    same(download(rt, replayed, 16), start, "memory after the capture")
    for _ in range(_REPLAYS):
        _captured(rt, direct, stream)
        rt.replay(graph, stream)
    rt.sync(stream)
    same(download(rt, replayed, 16), download(rt, direct, 16), "replays, against direct runs")
    return f"{_REPLAYS} replays"


@asserts("graph_capture", 2, "a synchronisation inside is a violation, and loses the capture")
def _capture_sync(b: Bench) -> None:
    rt = b.runtime()
    stream, place = rt.create_stream(), rt.malloc(64)
    inside = {
        "sync": lambda: rt.sync(stream),
        "query": lambda: rt.query(stream),
        "malloc": lambda: rt.malloc(64),
        "free": lambda: rt.free(place),
        "synchronise_device": rt.synchronise_device,
    }
    for what, call in inside.items():
        rt.begin_capture(stream)
        rt.memset_async(place, 1, 64, stream)
        refused("capture_violation", call, f"{what} in a capture")
        refused("capture_violation", lambda: rt.end_capture(stream), f"the end of a capture with {what} in it")
    rt.sync(stream)


def _forked(rt: Runtime, one: Stream, two: Stream, places: tuple[Pointer, Pointer], join: bool) -> object:
    fork, joined = rt.create_event(False), rt.create_event(False)
    rt.begin_capture(one)
    rt.memset_async(places[0], 3, 64, one)
    rt.record(fork, one)
    rt.wait(two, fork)
    rt.memcpy_async(places[1], places[0], 64, two)
    if join:
        rt.record(joined, two)
        rt.wait(one, joined)
        rt.memset_async(places[0], 4, 64, one)
    return rt.end_capture(one)


@asserts("graph_capture", 3, "a fork and its join by events are captured")
def _capture_fork(b: Bench) -> None:
    rt = b.runtime()
    one, two, places = rt.create_stream(), rt.create_stream(), (rt.malloc(64), rt.malloc(64))
    graph = _forked(rt, one, two, places, join=True)
    same(rt.query(two), "ok", "the second stream after the capture")
    rt.memset_async(places[1], 0, 64, two)
    rt.sync(two)
    rt.replay(graph, one)  # type: ignore[arg-type]
    rt.sync(one)
    same(download(rt, places[1], 64), b"\x03" * 64, "what the fork copied")
    same(download(rt, places[0], 64), b"\x04" * 64, "what follows the join")


@asserts("graph_capture", 4, "a fork that is not joined is a violation")
def _capture_unjoined(b: Bench) -> None:
    rt = b.runtime()
    one, two, places = rt.create_stream(), rt.create_stream(), (rt.malloc(64), rt.malloc(64))
    refused(
        "capture_violation", lambda: _forked(rt, one, two, places, join=False), "the end of a capture with a loose fork"
    )
    rt.memset_async(places[0], 8, 64, two)
    rt.sync(two)
    same(download(rt, places[0], 64), b"\x08" * 64, "work in the second stream afterwards")
