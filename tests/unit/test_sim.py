"""The simulated chip: what it is to the outside, what its driver refuses, and what can be ordered of it."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable

import pytest

from accelctl.abi import registry
from accelctl.abi.conformance import check_memory, check_ops, check_queue
from accelctl.abi.devmem import ask, number
from accelctl.abi.lifecycle import Block, Env
from accelctl.abi.queue import FULL, LOST, QueueFull
from accelctl.abi.testbench import descriptors
from accelctl.backends.sim import uapi
from accelctl.backends.sim.driver import NODE
from accelctl.backends.sim.memory import MEMORY, TICK_S, VA_BASE
from accelctl.backends.sim.options import KEYS, SimOptions, parse
from accelctl.backends.sim.queue import QUEUE, WORK
from accelctl.errors import DeviceUnusable, UsageError
from accelctl.hal.devfile import PAGE, SYSCALLS, DevFile, open_files
from accelctl.hal.ioc import iowr
from accelctl.hal.trace import Trace, TracedSyscalls, calls_of
from accelctl.memory.va import VaExhausted
from accelctl.stress.door import Door, parse_fault
from tests.simkit import TARGET, Opened, open_sim, space

EXACT = uapi.COUNTERS[:5]


def errno_of(call: Callable[[], object]) -> str:
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "no error"


def test_it_says_that_it_is_simulated() -> None:
    manifest = registry.load("sim").manifest
    assert (manifest.tier, manifest.proven, manifest.drivers) == ("simulated", "simulated", ())
    assert TARGET.simulated


def test_it_passes_the_suite_that_every_chip_passes() -> None:
    chip = registry.load("sim")
    env = Env(MEMORY.syscalls(TARGET, Env()), space)
    checks = check_memory(chip, TARGET, env) + check_queue(chip, TARGET, env)
    assert [check for check in checks if check.result == "fail"] == []
    assert sum(check.result == "pass" for check in checks) > 40
    assert {check.name for check in checks if check.result == "skip"} == {
        f"{name}{end}"
        for name, ends in {
            "vram: va": (" loses its answer", " fails at release"),
            "queue: va": (" loses its answer", " fails at release"),
            "vram: cpu_map": (" loses its answer",),
            "export: cpu_map": (" loses its answer",),
            "export: export": (" fails at release",),
        }.items()
        for end in ends
    }


def test_it_passes_the_suite_of_chips_that_compute() -> None:
    pytest.importorskip("ml_dtypes", reason="needs numpy and ml-dtypes: pip install 'accelctl[umd]'")
    checks = check_ops(registry.load("sim"), TARGET, Env(MEMORY.syscalls(TARGET, Env()), space))
    assert [check for check in checks if check.result != "pass"] == []
    assert len(checks) == 13


def test_nothing_is_left_after_close() -> None:
    before, files = descriptors(), open_files()
    sim = open_sim()
    stages = [life.stages for life in sim.session.lifecycles]
    for every in stages:  # held, all of it, and never released
        block = Block(8192)
        for stage in every:
            stage.acquire(block)
        if block.file is not None:
            block.file.close()
    QUEUE.open(sim.session, 4).submit(QUEUE.nop())
    sim.session.close()
    sim.device.check()
    assert (sim.device.files, sim.device.vram.used, sim.device.maps) == ({}, 0, {})
    assert (descriptors(), open_files()) == (before, files)


def test_without_a_driver_beneath_it_brings_its_own() -> None:
    session = MEMORY.open(TARGET, Env(SYSCALLS, space))
    assert [counter.read() for counter in session.counters()] == [0, 0, 0, 0, 0, 0]
    session.close()


def test_the_node_is_a_character_device_and_nothing_else_is_changed() -> None:
    calls = MEMORY.syscalls(TARGET, Env())
    assert stat.S_ISCHR(calls.stat(NODE).st_mode)
    fd = calls.open("/dev/null", 0)
    assert calls.fstat(fd).st_rdev == SYSCALLS.stat("/dev/null").st_rdev != calls.stat(NODE).st_rdev
    calls.close(fd)
    assert errno_of(lambda: calls.fstat(fd)) == "EBADF"


def test_numbers_and_structures_that_the_driver_does_not_know() -> None:
    sim = open_sim()
    file, calls = sim.session.file, sim.syscalls
    other_size = iowr("S", 1, uapi.CREATE.layout.size + 8)
    assert errno_of(lambda: file.ioctl(iowr("S", 0x7F, 8), bytearray(8))) == "ENOTTY"
    assert errno_of(lambda: file.ioctl(other_size, bytearray(64))) == "ENOTTY"
    assert errno_of(lambda: calls.ioctl(file.fd, uapi.CREATE.number, bytearray(23))) == "EINVAL"
    assert errno_of(lambda: calls.ioctl(file.fd, uapi.CREATE.number, 1)) == "EINVAL"
    sim.session.close()


CREATE, DESTROY, MAP, UNMAP = uapi.CREATE, uapi.DESTROY, uapi.MAP, uapi.UNMAP


def test_what_the_driver_refuses() -> None:
    sim = open_sim(slots="3")
    file, vm = sim.session.file, sim.session.vm
    handle = number(file, CREATE, "handle", size=3 * PAGE)
    second = number(file, CREATE, "handle", size=1)
    assert (handle, second) == (1, 2)
    ask(file, MAP, va=0x10000, size=2 * PAGE, handle=handle, vm=vm)
    for code, call, values in (
        ("EINVAL", CREATE, {"size": 0}),
        ("EINVAL", CREATE, {"size": PAGE, "pad": 1}),
        ("ENOSPC", CREATE, {"size": 1 << 62}),
        ("EINVAL", DESTROY, {"handle": 9}),
        ("ENOENT", uapi.EXPORT, {"handle": 9}),
        ("EINVAL", uapi.VM_DESTROY, {"vm": 9}),
        ("EEXIST", MAP, {"va": 0x11000, "size": PAGE, "handle": handle, "vm": vm}),
        ("EEXIST", MAP, {"va": 0x0F000, "size": 2 * PAGE, "handle": handle, "vm": vm}),
        ("EINVAL", MAP, {"va": 0x20000, "size": 4 * PAGE, "handle": handle, "vm": vm}),
        ("EINVAL", MAP, {"va": 0x20010, "size": PAGE, "handle": handle, "vm": vm}),
        ("ENOENT", MAP, {"va": 0x20000, "size": PAGE, "handle": 9, "vm": vm}),
        ("ENOENT", MAP, {"va": 0x20000, "size": PAGE, "handle": handle, "vm": 9}),
        ("ENOENT", UNMAP, {"va": 0x10000, "size": PAGE, "vm": vm}),
        ("EINVAL", uapi.QUEUE_CREATE, {"depth": 0}),
        ("ENOENT", uapi.SUBMIT, {"queue": 1}),
        ("ENOENT", uapi.WAIT, {"queue": 1}),
        ("EINVAL", uapi.COUNT, {"counter": 6}),
        ("EINVAL", uapi.IDLE, {"ticks": 1 << 60}),
    ):
        assert errno_of(lambda: ask(file, call, **values)) == code, (call.name, values)  # noqa: B023
    for va in (0x12000, 0x0F000):
        ask(file, MAP, va=va, size=PAGE, handle=second, vm=vm)
    assert errno_of(lambda: ask(file, MAP, va=0x40000, size=PAGE, handle=second, vm=vm)) == "ENOSPC"
    assert errno_of(lambda: file.map(PAGE, 1 << 29)) == "EINVAL"
    with DevFile(NODE, syscalls=sim.syscalls) as other:
        assert errno_of(lambda: other.map(PAGE, 0)) == "EACCES"
        assert number(other, CREATE, "handle", size=PAGE) == 1
    sim.device.check()
    sim.session.close()


def test_numbers_are_lowest_free() -> None:
    sim = open_sim()
    file = sim.session.file
    for handle in (1, 2, 3, 4):
        assert number(file, CREATE, "handle", size=PAGE) == handle
    for handle in (3, 1):
        ask(file, DESTROY, handle=handle)
    assert [number(file, CREATE, "handle", size=PAGE) for _ in range(3)] == [1, 3, 5]
    sim.session.close()


def test_mappings_and_dma_bufs_keep_what_lost_its_handle() -> None:
    sim = open_sim()
    file, vm = sim.session.file, sim.session.vm
    made = CREATE.layout.unpack(ask(file, CREATE, size=PAGE))
    fd = number(file, uapi.EXPORT, "fd", handle=made["handle"])
    one, other = file.map(PAGE, made["offset"]), sim.syscalls.map(fd, PAGE, 0)
    ask(file, MAP, va=PAGE, size=PAGE, handle=made["handle"], vm=vm)
    ask(file, DESTROY, handle=made["handle"])
    one[0:4] = b"text"
    assert other[0:4] == b"text"  # one piece of VRAM, seen twice
    file.unmap(one)
    sim.syscalls.unmap(other)
    sim.syscalls.close(fd)
    assert sim.counts() | {"vram_used": 0} == dict.fromkeys(uapi.COUNTERS, 0) | {"sim-pages": 1}
    assert sim.counts()["vram_used"] == PAGE
    ask(file, UNMAP, va=PAGE, size=PAGE, vm=vm)
    assert sim.counts()["vram_used"] == 0
    sim.session.close()


def test_a_view_keeps_a_mapping_alive() -> None:
    sim = open_sim()
    made = CREATE.layout.unpack(ask(sim.session.file, CREATE, size=PAGE))
    mapping = sim.session.file.map(PAGE, made["offset"])
    view = memoryview(mapping)
    with pytest.raises(BufferError):
        sim.session.file.unmap(mapping)
    assert sim.counts()["sim-cpu-maps"] == 1
    view.release()
    sim.session.file.unmap(mapping)
    assert sim.counts()["sim-cpu-maps"] == 0
    sim.session.close()


# -- what is ordered --

LEAKS = {
    "object": ("vram", "sim-handles", 4096),
    "gpu_map": ("vram", "sim-pages", 4096),
    "cpu_map": ("vram", "sim-cpu-maps", 4096),
    "export": ("export", "sim-dmabufs", 4096),
    "fd": ("export", "sim-dmabufs", 4096),
    "queue": ("queue", "sim-queues", 0),
}


@pytest.mark.parametrize("stage", LEAKS)
def test_a_leak_shows_in_its_own_counter_and_the_device_s_and_nowhere_else(stage: str) -> None:
    before = descriptors()
    lifecycle, counter, each = LEAKS[stage]
    sim = open_sim(leak=f"{stage}:10")
    sim.cycles(lifecycle, 105)
    sim.device.check()
    left = dict.fromkeys(EXACT, 0) | {counter: 10}
    assert sim.counts() == left | {"vram_used": 10 * each}
    assert sim.session.census() == left
    assert sim.counts() == dict.fromkeys(uapi.COUNTERS, 0)
    sim.device.check()
    sim.session.close()
    assert descriptors() == before


@pytest.mark.parametrize("stage", LEAKS)
def test_a_leak_ends_with_its_file(stage: str) -> None:
    before = descriptors()
    sim = open_sim(leak=f"{stage}:1")
    sim.cycles(LEAKS[stage][0], 3)
    sim.session.close()
    sim.device.check()
    assert (sim.device.vram.used, sim.device.memory, descriptors()) == (0, -1, before)


def test_a_leak_of_addresses_shows_in_the_address_space_alone() -> None:
    made: list[int] = []

    class Counted:
        def alloc(self, size: int, align: int | None = None, owner: str = "") -> int:
            made.append(size)
            return (len(made) + 1) << 21

        def free(self, va: int) -> int:
            return made.pop()

    session = MEMORY.open(TARGET, Env(space=lambda base, size, granule: Counted(), options={"leak": "va:10"}))
    Opened(session, None, None).cycles("vram", 105)  # type: ignore[arg-type]
    assert len(made) == 10
    assert {counter.read() for counter in session.counters()} == {0}
    session.close()


def test_a_refusal_that_is_ordered() -> None:
    sim = open_sim(fail="object:3:ENOSPC+gpu_map:2")
    file = sim.session.file
    handles = [number(file, CREATE, "handle", size=PAGE) for _ in range(2)]
    assert errno_of(lambda: ask(file, CREATE, size=PAGE)) == "ENOSPC"
    ask(file, MAP, va=PAGE, size=PAGE, handle=handles[0], vm=sim.session.vm)
    assert errno_of(lambda: ask(file, MAP, va=0x8000, size=PAGE, handle=1, vm=sim.session.vm)) == "ENOMEM"
    assert number(file, CREATE, "handle", size=PAGE) == 3
    sim.session.close()


def test_a_device_that_is_lost_still_takes_things_back() -> None:
    sim = open_sim(lost="20")
    file = sim.session.file
    handle = number(file, CREATE, "handle", size=PAGE)
    ring = QUEUE.open(sim.session, 2)
    sim.session.idle(20 * TICK_S)
    with pytest.raises(DeviceUnusable):
        ring.submit(QUEUE.nop())
    assert ring.state == LOST
    with pytest.raises(DeviceUnusable):
        ring.wait(1, 0.0) if ring.passed() else ring.submit(QUEUE.nop())
    assert errno_of(lambda: ask(file, CREATE, size=PAGE)) == "ENODEV"
    ask(file, DESTROY, handle=handle)
    ring.close()
    assert sim.counts() == dict.fromkeys(uapi.COUNTERS, 0)
    sim.session.close()


def test_vram_is_as_large_as_ordered_and_others_have_their_part() -> None:
    sim = open_sim(vram_bytes="64KiB", others="16KiB", foreign_step="4096@1000+-8192@2000")
    file = sim.session.file
    handles = [number(file, CREATE, "handle", size=PAGE) for _ in range(12)]
    assert errno_of(lambda: ask(file, CREATE, size=PAGE)) == "ENOSPC"
    ask(file, DESTROY, handle=handles.pop())
    sim.session.idle(1000 * TICK_S)
    assert sim.counts()["vram_used"] == 64 << 10
    assert errno_of(lambda: ask(file, CREATE, size=PAGE)) == "ENOSPC"
    sim.session.idle(1000 * TICK_S)
    assert sim.counts()["vram_used"] == 56 << 10
    assert number(file, CREATE, "handle", size=PAGE) == 12
    sim.session.close()


def test_an_address_space_as_large_as_ordered_is_used_up() -> None:
    sim = open_sim(va_bytes="16KiB")
    va = sim.session.lifecycles[0].stages[0]
    blocks = [Block(PAGE) for _ in range(4)]
    assert [va.acquire(block) for block in blocks] == [VA_BASE + PAGE * page for page in range(4)]
    with pytest.raises(VaExhausted):
        va.acquire(Block(PAGE))
    sim.session.close()


@pytest.mark.parametrize("books", ["device", "noisy"])
def test_books_that_are_switched_off(books: str) -> None:
    sim = open_sim(books=books, leak="object:1")
    sim.cycles("export", 3)
    assert [counter.name for counter in sim.session.counters()] == ["vram_used"]
    assert not sim.session.counters()[0].exact
    assert sim.counts()["vram_used"] == 3 * PAGE
    assert sim.session.census() == {}
    sim.session.close()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vrambytes", "1GiB"),
        ("vram_bytes", "1"),
        ("vram_bytes", "5000"),
        ("vram_bytes", "much"),
        ("va_bytes", "4095"),
        ("vram_bytes", "9999TiB"),
        ("seed", "-1"),
        ("leak", "object"),
        ("leak", "object:0"),
        ("leak", "job:10"),
        ("leak", ""),
        ("fail", "va:1"),
        ("fail", "object:2:ENOTHING"),
        ("fail", "object:2:errorcode"),
        ("noise", "pink:3"),
        ("noise", "ar1"),
        ("noise", "ar1:1MiB,1"),
        ("noise", "ar1:1MiB,nan"),
        ("noise", "ar1:1MiB,"),
        ("noise", "steps:1MiB,0"),
        ("noise", "sawtooth:1MiB,x"),
        ("noise_ticks", "0"),
        ("foreign", "-1"),
        ("foreign_step", "4096"),
        ("foreign_step", "x@1"),
        ("others", "2GiB"),
        ("latency", "soon"),
        ("slots", "0"),
        ("lost", "0"),
        ("books", "none"),
    ],
)
def test_bad_options_are_one_line_and_nothing_is_opened(key: str, value: str) -> None:
    before = descriptors()
    for opening in (MEMORY.syscalls, MEMORY.open):
        with pytest.raises(UsageError) as caught:
            opening(TARGET, Env(space=space, options={key: value}))
        assert "\n" not in caught.value.message
        assert caught.value.message.startswith("--sim ")
    assert descriptors() == before


def test_every_option_is_read_and_there_are_no_others() -> None:
    values = {
        "vram_bytes": ("2MiB", 2 << 20),
        "va_bytes": ("1MiB", 1 << 20),
        "seed": ("7", 7),
        "leak": ("object:10+va:3", {"object": 10, "va": 3}),
        "fail": ("fd:2:EMFILE", {"export": (2, errno.EMFILE)}),
        "noise": ("ar1:4KiB,0.5+steps:8KiB", (("ar1", 4096, 0.5), ("steps", 8192, 50_000.0))),
        "noise_ticks": ("4", 4),
        "others": ("1MiB", 1 << 20),
        "foreign": ("64KiB", 64 << 10),
        "foreign_step": ("4KiB@10+-4KiB@20", ((4096, 10), (-4096, 20))),
        "latency": ("3", 3),
        "slots": ("9", 9),
        "lost": ("1000", 1000),
        "books": ("device", "device"),
    }
    assert set(values) == set(KEYS) == set(SimOptions._fields)
    found = parse({key: text for key, (text, _) in values.items()})
    assert found._asdict() == {key: value for key, (_, value) in values.items()}
    assert parse({"noise": "none"}).others == 0
    assert parse({"noise": "ar1:1"}).others == 1 << 28


# -- queues --


def job(op: int, **values: int) -> bytes:
    return bytes(WORK.pack(op=op, **values))


def test_jobs_move_bytes_when_their_time_has_come() -> None:
    sim = open_sim(latency="10")
    file, vm = sim.session.file, sim.session.vm
    maps = []
    for va in (0x10000, 0x20000):
        made = CREATE.layout.unpack(ask(file, CREATE, size=PAGE))
        ask(file, MAP, va=va, size=PAGE, handle=made["handle"], vm=vm)
        maps.append(file.map(PAGE, made["offset"]))
        maps[-1][:] = bytes(PAGE)
    ring = QUEUE.open(sim.session, 2)
    fill = ring.submit(job(uapi.FILL, dst=0x10010, size=8, value=0x01020304))
    copy = ring.submit(job(uapi.COPY, dst=0x20000, src=0x10000, size=32))
    assert (fill, copy, ring.state, maps[0][16:24]) == (1, 2, FULL, bytes(8))
    with pytest.raises(QueueFull):
        ring.submit(QUEUE.nop())
    assert not ring.wait(copy, 12 * TICK_S)
    assert (ring.passed(), maps[0][16:24], maps[1][16:24]) == (1, b"\4\3\2\1" * 2, bytes(8))
    assert ring.wait(copy, 1.0)
    assert maps[1][16:24] == b"\4\3\2\1" * 2
    for wrong in (job(uapi.FILL, dst=0x10000, size=PAGE + 4), job(uapi.COPY, dst=0x10000, size=4), job(7), b"?"):
        with pytest.raises(UsageError):
            ring.submit(wrong)
    assert ring.submit(QUEUE.nop()) == 3
    sim.session.close()


def test_a_job_in_flight_keeps_its_object() -> None:
    sim = open_sim(latency="100")
    file, vm = sim.session.file, sim.session.vm
    ask(file, MAP, va=PAGE, size=PAGE, handle=number(file, CREATE, "handle", size=PAGE), vm=vm)
    ring = QUEUE.open(sim.session, 1)
    point = ring.submit(job(uapi.FILL, dst=PAGE, size=PAGE, value=7))
    ask(file, UNMAP, va=PAGE, size=PAGE, vm=vm)
    ask(file, DESTROY, handle=1)
    sim.device.check()
    assert sim.counts()["vram_used"] == PAGE
    assert ring.wait(point, 1.0)
    assert sim.counts()["vram_used"] == 0
    sim.session.close()


# -- what stands in between --


def test_doors_see_every_call_and_their_faults_work() -> None:
    doors: list[Door] = []

    def wrap(inner: object) -> Door:
        doors.append(Door(inner, [parse_fault("object:2=ENOMEM@after")]))  # type: ignore[arg-type]
        return doors[0]

    sim = open_sim(wrap)
    door = doors[0]
    block, stages = Block(PAGE), sim.session.lifecycles[0].stages
    for stage in stages:
        door.at(stage.name)
        stage.acquire(block)
    for stage in reversed(stages):
        door.at(f"-{stage.name}")
        assert stage.release is not None
        stage.release(block)
    once = {name: 1 for stage in ("object", "cpu_map", "gpu_map") for name in (stage, f"-{stage}")}
    assert door.counts == once
    door.at("object")
    assert errno_of(lambda: stages[1].acquire(block)) == "ENOMEM"
    door.at("")
    assert sim.counts()["sim-handles"] == 1  # made, and nobody was told
    assert sim.session.census()["sim-handles"] == 1
    sim.session.close()


def test_traces_decode_its_calls(tmp_path: object) -> None:
    path = f"{tmp_path}/trace.json"
    trace = Trace(path)
    sim = open_sim(lambda inner: TracedSyscalls(inner, trace, calls_of([uapi])))
    sim.cycles("vram", 1)
    sim.session.close()
    trace.close()
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for name in ("SIM_IOCTL_CREATE", "SIM_IOCTL_MAP", "SIM_IOCTL_UNMAP", "SIM_IOCTL_DESTROY", "mmap", "munmap"):
        assert f'"name": "{name}"' in text
    assert "ioctl 0x" not in text
