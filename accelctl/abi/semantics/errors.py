"""Errors: which stay, which pass, and what is remembered."""

from __future__ import annotations

from accelctl.abi.runtime import Arg, Operand, Runtime, Stream
from accelctl.abi.semantics.devices import round_trip
from accelctl.abi.semantics.memory import numbers
from accelctl.abi.semantics.suite import Bench, asserts, kind_of, refused, same, too_much
from accelctl.abi.tensors import FP32, INT32

_DIM, _BLOCK, _NOWHERE = 16, 4, 100_000


def out_of_bounds(rt: Runtime, stream: Stream) -> None:
    """A kernel whose own data send it out of its operands: attention over a cache block that there is not. The launch
    is right, so it is accepted; only the device can see it."""
    query, cache = Operand((1, 1, _DIM), FP32), Operand((2, _BLOCK, 1, _DIM), FP32)
    table, lengths = Operand((1, 1), INT32), Operand((1,), INT32)
    kernel = rt.kernel("attention_decode", (query, cache, cache, table, lengths), (query,))
    places = [rt.malloc(4 * _DIM * _BLOCK * 2) for _ in range(6)]
    for place in places:
        rt.memcpy(place, bytes(4 * _DIM), 4 * _DIM)
    rt.memcpy(places[3], numbers(_NOWHERE), 4)
    rt.memcpy(places[4], numbers(2), 4)
    args = [*(Arg("pointer", place) for place in places), Arg("i64", _BLOCK)]
    shape = rt.launch_shape(kernel, args)
    rt.launch(kernel, shape.grid, shape.block, args, 0, stream)


@asserts("error_sticky", 1, "a kernel out of bounds: sync says illegal_access, and so does everything after it")
def _fault_stays(b: Bench) -> None:
    rt = b.runtime()
    stream = rt.create_stream()
    out_of_bounds(rt, stream)
    refused("illegal_access", lambda: rt.sync(stream), "sync after the kernel")
    refused("illegal_access", lambda: rt.malloc(64), "the next malloc")
    refused("illegal_access", lambda: rt.query(stream), "a query afterwards")
    same(rt.last_error(), "illegal_access", "last error")
    same(rt.last_error(), "illegal_access", "last error, asked again")
    again = b.raw()
    again.init()
    refused("illegal_access", lambda: again.set_device(0), "another runtime of this process")


@asserts("error_sticky", 2, "a refused argument does not stay")
def _refusal_passes(b: Bench) -> None:
    rt = b.runtime()
    refused("invalid_argument", lambda: rt.malloc(-1), "malloc(-1)")
    round_trip(rt)


@asserts("error_sticky", 3, "out_of_memory does not stay")
def _shortage_passes(b: Bench) -> None:
    rt = b.runtime()
    refused("out_of_memory", lambda: rt.malloc(too_much(rt)), "more than there is")
    round_trip(rt)


@asserts("device_sync", 2, "after a kernel fault it says illegal_access")
def _device_sync_fault(b: Bench) -> None:
    rt = b.runtime()
    stream = rt.create_stream()
    out_of_bounds(rt, stream)
    refused("illegal_access", rt.synchronise_device, "synchronise_device after the kernel")


@asserts("last_error", 1, "the last failure is kept over calls that work, and given once")
def _kept_once(b: Bench) -> None:
    rt = b.runtime()
    rt.last_error()
    refused("invalid_argument", lambda: rt.malloc(0), "malloc(0)")
    rt.set_device(0)
    same(rt.last_error(), "invalid_argument", "last error after a call that worked")
    same(rt.last_error(), "ok", "last error, asked again")


@asserts("last_error", 2, "not_ready is not kept")
def _not_ready_passes(b: Bench) -> None:
    rt = b.runtime()
    stream, event, other = rt.create_stream(), rt.create_event(True), rt.create_event(True)
    rt.last_error()
    b.ready(rt)

    def unready() -> tuple[str, ...]:
        rt.record(event, stream)
        kinds = (rt.query(stream), rt.event_query(event), kind_of(lambda: rt.elapsed(other, event)))
        return (*kinds, rt.last_error())

    rt.record(other, stream)
    found = b.behind(rt, stream, 0.2, unready)
    same(found, (*["not_ready"] * 3, "ok"), "a query, one of an event, the time to it, and last error")
