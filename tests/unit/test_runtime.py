"""The portable runtime beyond what the semantics suite asks: what it does where rings are full, streams wait for each
other, chips lack things, and whoever uses it makes mistakes."""

from __future__ import annotations

import inspect
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from accelctl.abi import compute
from accelctl.abi.runtime import Arg, Operand, Runtime
from accelctl.abi.runtime import core as cores
from accelctl.abi.runtime.failure import STICKY, NotAsync, fault_kind
from accelctl.abi.runtime.memory import MOST_POOLED
from accelctl.abi.semantics.suite import download, pattern
from accelctl.abi.tensors import INT32
from accelctl.errors import KINDS, AccelError, DeviceUnusable
from accelctl.smoke.semantics import environment
from tests.helpers import ROOT
from tests.helpers import environment as variables

FOUND = compute.named("sim:0")


def _runtime(devices: int = 1, depth: int = 64) -> Runtime:
    made = Runtime(FOUND.chip, (FOUND.device.target,) * devices, environment("sim"), depth=depth)
    made.init()
    made.set_device(0)
    return made


@pytest.fixture
def rt() -> Iterator[Runtime]:
    made = _runtime()
    yield made
    made.fini()


def test_nothing_has_a_default_stream_or_device() -> None:
    """Every call that takes a stream, a device or an event says so: no parameter of that name has a default."""
    named = {"stream", "device", "event", "index", "other", "first", "second", "timing"}
    for name, method in inspect.getmembers(Runtime, inspect.isfunction):
        for parameter in inspect.signature(method).parameters.values():
            if not name.startswith("_") and parameter.name in named:
                assert parameter.default is inspect.Parameter.empty, f"{name}({parameter.name})"
    assert inspect.signature(Runtime.memcpy_async).parameters["allow_sync"].default is False


def test_not_async_is_a_word_of_a_kind_that_there_is(rt: Runtime) -> None:
    place, stream = rt.malloc(8), rt.create_stream()
    with pytest.raises(NotAsync, match="not_async") as caught:
        rt.memcpy_async(place, b"12345678", 8, stream)
    assert (caught.value.word, caught.value.kind) == ("not_async", "not_supported")
    assert caught.value.hint is not None
    assert "allow_sync" in caught.value.hint
    assert rt.counts == {"pageable_refused": 1}
    assert set(KINDS) >= STICKY


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_more_work_than_a_ring_holds_is_done_in_order(depth: int) -> None:
    rt = _runtime(depth=depth)
    place, stream = rt.malloc(4), rt.create_stream()
    one = Operand((1,), INT32)
    kernel = rt.kernel("add", (one, one), (one,))
    args = [Arg("pointer", place)] * 3
    shape = rt.launch_shape(kernel, args)
    rt.memset_async(place, 0, 4, stream)
    rt.memset_async(place, 1, 1, stream)
    for _ in range(24):
        rt.launch(kernel, shape.grid, shape.block, args, 0, stream)
    assert stream.waiting > 0
    rt.sync(stream)
    assert stream.waiting == 0
    assert download(rt, place, 4) == (1 << 24).to_bytes(4, "little")
    rt.fini()


def test_a_caller_who_never_waits_is_made_to(rt: Runtime, monkeypatch: Any) -> None:
    monkeypatch.setattr(cores, "_MOST_WAITING", 16)
    place, stream = rt.malloc(4), rt.create_stream()
    for number in range(300):
        rt.memset_async(place, number & 0xFF, 4, stream)
        assert stream.waiting <= 17
    rt.sync(stream)
    assert download(rt, place, 4) == bytes([299 & 0xFF]) * 4


@pytest.mark.parametrize("seed", range(6))
def test_any_web_of_streams_and_events_keeps_every_order_that_was_asked_for(seed: int) -> None:
    """Random programs: each step writes its number after waiting for what it must follow. Executed orders are read
    from a log that every stream writes in turn under one chain of events."""
    rng, rt = random.Random(seed), _runtime(depth=3)
    streams = [rt.create_stream() for _ in range(4)]
    cell, log = rt.malloc(1), rt.malloc(200)
    last: Any = None
    for number in range(200):
        stream = rng.choice(streams)
        if last is not None:
            rt.wait(stream, last)
        rt.memset_async(cell, number, 1, stream)
        rt.memcpy_async(log + number, cell, 1, stream)
        last = rt.create_event(rng.random() < 0.3)
        rt.record(last, stream)
        if rng.random() < 0.1:
            rt.query(rng.choice(streams))
    rt.event_sync(last)
    assert download(rt, log, 200) == bytes(range(200))
    rt.fini()


def test_waiting_in_a_circle_of_old_marks_ends(rt: Runtime) -> None:
    one, two = rt.create_stream(), rt.create_stream()
    place = rt.malloc(1)
    events = [rt.create_event(False) for _ in range(2)]
    for number in range(3000):
        rt.memset_async(place, number & 0xFF, 1, one)
        rt.record(events[0], one)
        rt.wait(two, events[0])
        rt.memset_async(place, (number + 1) & 0xFF, 1, two)
        rt.record(events[1], two)
        rt.wait(one, events[1])
    rt.synchronise_device()
    assert download(rt, place, 1) == bytes([3000 & 0xFF])


def test_a_pool_keeps_some_blocks_and_gives_the_rest_back(rt: Runtime) -> None:
    stream, device = rt.create_stream(), rt.device()
    before = device.held
    for place in [rt.malloc_async(4096 * (1 + number), stream) for number in range(MOST_POOLED + 20)]:
        rt.free_async(place, stream)
    assert len(device.pool) == MOST_POOLED
    assert device.held > before
    device.trim(0)
    assert device.held == before


def test_a_pooled_block_that_is_still_used_is_not_given_to_another_stream(rt: Runtime) -> None:
    one, two = rt.create_stream(), rt.create_stream()
    first = rt.malloc_async(4096, one)
    rt.memset_async(first, 1, 4096, one)
    rt.free_async(first, one)
    other = rt.malloc_async(4096, two)
    again = rt.malloc_async(4096, one)
    assert other.address != first.address
    assert again.address == first.address
    assert rt.counts["pool_reused"] == 1


def test_everything_is_given_back_at_the_end(rt: Runtime) -> None:
    device = rt.device()
    rt.malloc(10_000)
    rt.malloc_host(5)
    stream = rt.create_stream()
    rt.memcpy_async(rt.malloc(64), pattern(64), 64, stream, allow_sync=True)
    rt.memset_async(rt.malloc_async(64, stream), 7, 64, stream)
    rt.fini()
    rt.fini()
    assert device.session.files[0].fd < 0
    assert (device.live, device.pool) == ({}, [])
    with pytest.raises(AccelError) as caught:
        rt.malloc(1)
    assert caught.value.kind == "not_initialized"


def test_an_allocation_that_fails_half_way_holds_nothing() -> None:
    env = environment("sim")
    options = dict(env.options) | {"fail": "gpu_map:2"}
    rt = Runtime(FOUND.chip, (FOUND.device.target,), type(env)(env.syscalls, env.space, options))
    rt.init()
    rt.set_device(0)
    rt.malloc(64)
    books = {one.name: one.read() for one in rt.device().session.counters() if one.exact}
    with pytest.raises(AccelError) as caught:
        rt.malloc(64)
    assert caught.value.kind == "out_of_memory"
    assert {one.name: one.read() for one in rt.device().session.counters() if one.exact} == books
    rt.malloc(64)
    rt.fini()


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("the ring is lost: job 3 failed: block_table[0] names blocks 9 to 9, the cache has 2", "illegal_access"),
        ("instruction 1 failed: offs: they fall, or end behind the rows of A", "illegal_access"),
        ("the ring is lost: job 1 failed: MemoryError", "launch_failure"),
        ("the device is lost", "launch_failure"),
    ],
)
def test_what_ended_a_ring(reason: str, kind: str) -> None:
    assert fault_kind(reason) == kind


def test_a_chip_without_kernels_is_refused() -> None:
    chip = FOUND.chip._replace(ops=None)
    with pytest.raises(AccelError, match="does not offer memory and ops together"):
        Runtime(chip, (FOUND.device.target,), environment("sim"))


def test_a_device_that_cannot_be_opened_is_no_fault() -> None:
    class Broken:
        def open(self, target: Any, env: Any) -> Any:
            raise DeviceUnusable("its node does not open", kind="os_error")

    rt = Runtime(FOUND.chip._replace(memory=Broken()), (FOUND.device.target,), environment("sim"))
    rt.init()
    with pytest.raises(AccelError, match="does not open"):
        rt.set_device(0)
    assert rt.last_error() == "os_error"
    assert rt.last_error() == "ok"
    assert cores.dead == {}


LEAVING = """
from accelctl.abi import compute
from accelctl.abi.runtime import Runtime
from accelctl.smoke.semantics import environment
found = compute.named("sim:0")
rt = Runtime(found.chip, (found.device.target,), environment("sim"))
rt.init(); rt.set_device(0)
session = rt.device().session
inner = session.close
session.close = lambda: (inner(), print("closed"))
del rt
"""


def test_what_is_open_at_the_end_of_a_process_is_closed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVING],
        cwd=ROOT,
        env=variables(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")
