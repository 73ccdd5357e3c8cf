"""Instructions on the simulated device: read strictly when they are submitted, run when their time has come."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("numpy", reason="needs numpy: pip install 'accelctl[umd]'")
pytest.importorskip("ml_dtypes", reason="needs ml-dtypes: pip install 'accelctl[umd]'")

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelctl.abi import blob
from accelctl.abi.call import Call
from accelctl.abi.lifecycle import Block, Env, Session
from accelctl.abi.opset import OPS
from accelctl.abi.queue import BUSY, IDLE, LOST, QueueFull
from accelctl.abi.tensors import FP32, Tensor, tensor
from accelctl.abi.testbench import Door
from accelctl.backends.sim import uapi
from accelctl.backends.sim.memory import MEMORY, TICK_S
from accelctl.backends.sim.ops.contract import OPS as SIM
from accelctl.backends.sim.ops.kernels import TEMPLATES
from accelctl.backends.sim.ops.reader import MOST_BYTES
from accelctl.backends.sim.queue import QUEUE, WORK
from accelctl.errors import AccelError, DeviceUnusable, NoDeviceError, UsageError, extra
from accelctl.hal.devfile import PAGE
from tests.helpers import environment
from tests.opskit import Machine, Out, array, machine
from tests.simkit import TARGET, Opened, open_sim, space

NONE = dict.fromkeys(uapi.COUNTERS, 0)


@pytest.fixture
def opened() -> Iterator[Opened]:
    sim = open_sim(latency="10")
    yield sim
    sim.session.close()
    sim.device.check()
    assert (sim.device.memory, sim.device.vram.used) == (-1, 0)


@pytest.fixture
def sim(opened: Opened) -> Iterator[Machine]:
    with machine(SIM, opened.session, 1 << 20, depth=4) as made:
        yield made


def doubled(sim: Machine, values: Any = (1, 2, 3)) -> Call:
    x = array(values)
    return sim.call("add", {"A": x, "B": x}, {"C": Out(x.shape)})


def summed(x: Tensor, place: Tensor, factor: int) -> Call:
    """place = x + factor * x"""
    return Call(OPS["add"], (x, x), (place,), {"alpha": float(factor)})


def works(sim: Machine) -> bool:
    """Whether the ring still computes."""
    x = array([1, 2, 3])
    return bool(sim.run("add", {"A": x, "B": x}, {"C": Out((3,))})["C"].tolist() == [2, 4, 6])


# -- what is no instruction --


def test_bad_instructions_are_refused_and_the_ring_goes_on(sim: Machine) -> None:
    right = sim.instruction(doubled(sim))
    kernels = {name: struct.pack("<Q", number) for name, number in (("relu", 0x40), ("none", 0x999), ("zero", 0))}
    for wrong, said in (
        (b"", "an instruction of 0 bytes"),
        (right[:35], "the header alone has 36"),
        (right[:-1], "its header says"),
        (right + b"\0", "its header says"),
        (b"\0" + right[1:], "it begins with 0x5a5a5a00"),
        (bytes(MOST_BYTES + 1), "an instruction of 65701 bytes"),
        (right[:20] + struct.pack("<Q", 17) + right[28:], "17 parameters"),
        (right[:20] + struct.pack("<Q", 1 << 63) + right[28:], "parameters"),
        (right[:4] + kernels["relu"] + right[12:], "not version 1 of relu"),
        (right[:4] + kernels["none"] + right[12:], "there is no kernel 0x999"),
        (right[:4] + kernels["zero"] + right[12:], "there is no kernel 0x0"),
        (right[:28] + struct.pack("<Q", 1) + right[36:], "kernel add: a launch of .*grid=.2, 1, 1"),
        (right[:28] + struct.pack("<Q", 0xFFF << 52) + right[36:], "more than 1024 threads"),
    ):
        with pytest.raises(UsageError, match=f"the device cannot read this work: .*{said}|{said}"):
            sim.ring.submit(wrong)
        assert sim.ring.state == IDLE
    assert works(sim)
    assert sim.ring.passed() == 1


def test_addresses_that_the_device_cannot_reach(sim: Machine) -> None:
    made = doubled(sim)
    (a, b), (c,) = made.inputs, made.outputs
    assert a is not None
    assert b is not None
    assert c is not None
    end = sim.block.address + sim.block.size
    for wrong, said in (
        (made._replace(inputs=(a._replace(address=0), b)), "A: the device cannot reach 12 bytes at 0x0"),
        (made._replace(inputs=(a, b._replace(address=end - 8))), "B: the device cannot reach 12 bytes"),
        (made._replace(outputs=(c._replace(address=(1 << 64) - 4),)), "C: the device cannot reach 12 bytes"),
        (made._replace(inputs=(a, b._replace(strides=(1 << 20,)))), "B: the device cannot reach 8388612 bytes"),
        (made._replace(inputs=(a._replace(address=a.address + 2), b)), "A: address .* is no multiple of 4"),
    ):
        with pytest.raises(UsageError, match=said):
            sim.ring.submit(sim.instruction(wrong))
    last = made._replace(outputs=(c._replace(address=end - 12),))
    assert sim.ring.wait(sim.ring.submit(sim.instruction(last)), 1.0)
    assert works(sim)


def test_another_session_s_memory_is_out_of_reach(opened: Opened, sim: Machine) -> None:
    """A second session of the same chip has a VM of its own, in which the same numbers mean nothing."""
    other = MEMORY.open(TARGET, Env(opened.syscalls, lambda *args: space(1 << 40, args[1], args[2])))
    with machine(SIM, other, 1 << 16) as theirs:
        with pytest.raises(UsageError, match="A: the device cannot reach"):
            theirs.ring.submit(sim.instruction(doubled(sim)))
        assert works(theirs)
    other.close()


def test_an_empty_operand_needs_no_address(sim: Machine) -> None:
    made = sim.call("relu", {"X": array(np.ones((0, 3)))}, {"Y": Out((0, 3))})
    nowhere = tensor((0, 3), FP32, 0xDEAD0001)
    there = made._replace(inputs=(nowhere,), outputs=(nowhere,))
    assert sim.ring.wait(sim.ring.submit(sim.instruction(there)), 1.0)


# -- what the kernels lack --


def forced(sim: Machine, kernel: str, inputs: Any, outputs: Any, **attrs: str) -> None:
    (template,) = (one for one in TEMPLATES if one.name == kernel)
    made = sim.call(template.op, inputs, outputs, **attrs)
    sim.ring.submit(sim.instruction(made, template))


def test_what_the_table_says_is_missing_is_refused(sim: Machine) -> None:
    x = array(np.ones((4, 6)), "bf16")
    with pytest.raises(UsageError, match="kernel 0x30: layernorm does not take bf16"):
        forced(sim, "layernorm", {"X": x}, {"Y": Out((4, 6), "bf16")}, epsilon="0")
    args = ({"gating": x}, {"weights": Out((4, 1)), "ids": Out((4, 1), "int32")})
    with pytest.raises(UsageError, match="kernel 0xd0: topk_f32 does not take bf16"):
        forced(sim, "topk_f32", *args, k="1", renormalize="true")
    image, kernel = array(np.ones((1, 4, 4, 2))), array(np.ones((3, 2, 1, 1)))
    with pytest.raises(UsageError, match=r"kernel 0x20: its images are channels first \(nchw\)"):
        forced(sim, "conv2d_nchw", {"X": image, "W": kernel}, {"Y": Out((1, 4, 4, 3))}, layout="nhwc")
    with pytest.raises(UsageError, match="kernel 0x11: matmul_i does not take bf16"):
        forced(sim, "matmul_i", {"A": x, "B": x.T}, {"Y": Out((4, 4), "bf16")})
    inputs = {"X": array(np.ones((8, 2, 3))).T, "positions": np.arange(3, dtype=np.int32)}
    with pytest.raises(UsageError, match="kernel 0x80: rope_dense takes dense tensors only"):
        forced(sim, "rope_dense", inputs, {"Y": Out((3, 2, 8))}, style="neox")
    assert works(sim)


def test_the_table_is_one_that_a_service_can_use() -> None:
    assert TEMPLATES[0].op == "copy"
    assert {one.op for one in TEMPLATES} == set(OPS)
    assert len({one.kernel_id for one in TEMPLATES}) == len(TEMPLATES)


# -- when it runs --


def test_it_runs_when_its_time_has_come(opened: Opened, sim: Machine) -> None:
    made = doubled(sim)
    assert made.outputs[0] is not None
    before = sim.read(made.outputs[0]).tobytes()
    point = sim.ring.submit(sim.instruction(made))
    assert not sim.ring.wait(point, 5 * TICK_S)
    assert (sim.ring.state, sim.read(made.outputs[0]).tobytes()) == (BUSY, before)
    assert sim.ring.wait(point, 1.0)
    assert sim.read(made.outputs[0]).tolist() == [2, 4, 6]


def test_one_command_buffer_serves_all_that_is_in_flight(sim: Machine) -> None:
    """Each instruction is another one, and its bytes are written over by the next."""
    x = sim.put(array([1.0]))
    places = [sim.room(Out((1,))) for _ in range(4)]
    for factor, place in enumerate(places):
        sim.ring.submit(sim.instruction(summed(x, place, factor)))
    with pytest.raises(QueueFull):
        sim.ring.submit(sim.instruction(summed(x, places[0], 9)))
    assert sim.ring.wait(4, 1.0)
    assert [float(sim.read(place)[0]) for place in places] == [1, 2, 3, 4]


def test_operands_are_held_until_it_has_run(opened: Opened) -> None:
    before = opened.counts()
    (life,) = (life for life in opened.session.lifecycles if life.name == "vram")
    block = Block(4 * PAGE)
    for stage in life.stages:
        stage.acquire(block)
    ring = SIM.open(opened.session, 1)
    made = summed(tensor((4,), FP32, block.address), tensor((4,), FP32, block.address + 64), 1)
    add = next(one for one in TEMPLATES if one.op == "add")
    bench = Machine(SIM, opened.session, ring, block)
    point = ring.submit(bench.instruction(made, add))
    for stage in reversed(life.stages):
        assert stage.release is not None
        stage.release(block)
    opened.device.check()
    mine = opened.counts()["vram_used"]
    assert ring.wait(point, 1.0)
    assert opened.counts()["vram_used"] == mine - 4 * PAGE
    ring.close()
    assert opened.counts() == before


def test_a_ring_that_is_left_open_goes_with_its_session(opened: Opened) -> None:
    SIM.open(opened.session, 2)
    assert opened.counts()["sim-handles"] == 1
    census = opened.session.census()
    assert census == dict.fromkeys(uapi.COUNTERS[:5], 0)


# -- when it fails --


def test_a_job_that_fails_takes_its_ring_with_it_and_nothing_else(opened: Opened, sim: Machine) -> None:
    q, cache = array(np.ones((1, 1, 4))), array(np.ones((2, 2, 1, 4)))
    table = np.array([[0, 2]], np.int32)
    inputs = {"Q": q, "k_cache": cache, "v_cache": cache, "block_table": table, "seq_lens": np.array([3], np.int32)}
    bad = sim.instruction(sim.call("attention_decode", inputs, {"O": Out((1, 1, 4))}, block_size="2"))
    other = SIM.open(opened.session, 2)
    sim.ring.submit(
        sim.instruction(summed(tensor((1,), FP32, sim.block.address), tensor((1,), FP32, sim.block.address), 1))
    )
    sim.ring.submit(bad)
    sim.ring.submit(bad)
    said = r"the ring is lost: job 2 failed: block_table\[0\] names blocks 0 to 2, the cache has 2"
    with pytest.raises(DeviceUnusable, match=said):
        sim.ring.wait(3, 1.0)
    assert (sim.ring.state, sim.ring.passed(), sim.ring.wait(1, 0.0)) == (LOST, 1, True)
    with pytest.raises(DeviceUnusable, match=said):
        sim.ring.submit(bad)
    with pytest.raises(DeviceUnusable, match=said):
        sim.ring.wait(2, 0.0)
    opened.device.check()
    assert works(Machine(SIM, opened.session, other, sim.block))


@pytest.mark.parametrize("ask", ["state", "passed", "submit"])
@pytest.mark.parametrize("offs", [[2, 1], [1, 3], [-1, 2]])
def test_whoever_asks_first_learns_of_it(opened: Opened, sim: Machine, ask: str, offs: list[int]) -> None:
    inputs = {"A": array(np.ones((2, 2))), "B": array(np.ones((2, 2, 2))), "offs": np.array(offs, np.int32)}
    bad = sim.instruction(sim.call("grouped_gemm", inputs, {"Y": Out((2, 2))}))
    sim.ring.submit(bad)
    opened.session.idle(1.0)
    if ask == "passed":
        assert sim.ring.passed() == 0
    elif ask == "submit":
        with pytest.raises(DeviceUnusable, match="offs"):
            sim.ring.submit(bad)
    assert sim.ring.state == LOST


@pytest.mark.parametrize(
    ("lens", "table", "said"),
    [
        ([5], [[0, 1]], r"seq_lens\[0\] is 5, 2 blocks of 2 hold fewer"),
        ([-1], [[0, 1]], r"seq_lens\[0\] is -1"),
        ([1], [[-1, 0]], r"block_table\[0\] names blocks -1 to -1"),
    ],
)
def test_numbers_in_memory_that_cannot_be_used(sim: Machine, lens: list[int], table: Any, said: str) -> None:
    cache = array(np.ones((2, 2, 1, 4)))
    inputs = {"Q": array(np.ones((1, 1, 4))), "k_cache": cache, "v_cache": cache}
    inputs |= {"block_table": np.array(table, np.int32), "seq_lens": np.array(lens, np.int32)}
    with pytest.raises(DeviceUnusable, match=said):
        sim.run("attention_decode", inputs, {"O": Out((1, 1, 4))}, block_size="2")


def test_what_breaks_inside_is_a_lost_ring_too(sim: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelctl.backends.sim.ops import engine

    def broken(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setitem(engine._UNITS, "add", broken)
    with pytest.raises(DeviceUnusable, match="job 1 failed: MemoryError"):
        works(sim)


# -- opening --


def test_opening_fails_at_each_of_its_calls_and_leaves_nothing(opened: Opened) -> None:
    doors: list[Door] = []

    def wrap(inner: Any) -> Door:
        doors.append(Door(inner))
        return doors[0]

    other = open_sim(wrap)
    before = other.counts()
    fired = []
    for nth in range(1, 10):
        doors[0].arm(nth)
        try:
            ring = SIM.open(other.session, 2)
        except AccelError:
            fired.append(doors[0].fired)
        else:
            doors[0].disarm()
            ring.close()
            break
        doors[0].disarm()
        assert other.counts() == before
        assert doors[0].maps == {}
    assert len(fired) == 4  # CREATE, mmap, MAP, QUEUE_CREATE
    assert other.counts() == before == NONE
    other.session.close()


def test_what_cannot_be_opened(opened: Opened) -> None:
    for depth in (0, -1, 1025):
        with pytest.raises(UsageError, match=f"a ring of depth {depth}"):
            SIM.open(opened.session, depth)
    with pytest.raises(UsageError, match="needs a session of sim"):
        SIM.open(Session(TARGET, (), ()), 1)
    small = open_sim(vram_bytes=str(4 * PAGE))
    with pytest.raises(AccelError, match="no memory for a command buffer") as caught:
        SIM.open(small.session, 1)
    assert caught.value.kind == "out_of_memory"
    small.session.close()


def test_the_plain_queue_takes_instructions_as_well(opened: Opened, sim: Machine) -> None:
    """The driver's own interface: the instruction lies wherever its address says."""
    made = doubled(sim)
    code = sim.instruction(made)
    assert sim.block.map is not None
    start = sim.block.size - len(code)
    sim.block.map[start:] = code
    at, ring = sim.block.address + start, QUEUE.open(opened.session, 1)
    for wrong in ({"dst": 4}, {"value": 1}, {"size": len(code) + 1}, {"src": 0}, {"size": 0}, {"size": 1 << 40}):
        with pytest.raises(UsageError):
            ring.submit(bytes(WORK.pack(**{"op": uapi.EXEC, "src": at, "size": len(code)} | wrong)))
    assert ring.wait(ring.submit(bytes(WORK.pack(op=uapi.EXEC, src=at, size=len(code)))), 1.0)
    assert made.outputs[0] is not None
    assert sim.read(made.outputs[0]).tolist() == [2, 4, 6]


# -- what is loaded --


def in_a_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, encoding="utf-8", check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


START = (
    "import sys; from accelctl.abi import registry; from tests.simkit import open_sim; chip = registry.load('sim'); "
)


def test_numpy_comes_with_the_first_ring_that_computes() -> None:
    code = START + (
        "sim = open_sim(); sim.cycles('vram', 3); sim.cycles('queue', 3); chip.queue.open(sim.session, 1).close(); "
        "chip.ops.templates(); chip.ops.devices(); print('numpy' in sys.modules, 'ml_dtypes' in sys.modules); "
        "chip.ops.open(sim.session, 1); print('numpy' in sys.modules)"
    )
    assert in_a_new_process(code).split() == ["False", "False", "True"]


@pytest.mark.parametrize("missing", ["numpy", "ml_dtypes"])
def test_what_to_install_is_said(missing: str) -> None:
    code = START + (
        f"sys.modules[{missing!r}] = None; sim = open_sim()\n"
        "try:\n    chip.ops.open(sim.session, 1)\n"
        "except Exception as error:\n    print(type(error).__name__, error.hint, error.message)"
    )
    said = in_a_new_process(code)
    assert said.startswith(f"{NoDeviceError.__name__} {extra('umd')} the simulated chip cannot compute:")
    assert missing in said


# -- anything --


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutated_instructions_never_break_the_device(opened: Opened, data: st.DataObject) -> None:
    """Refused, or run: nothing else, and a ring is lost only by numbers in memory, of which these have none."""
    with machine(SIM, opened.session, 1 << 16, depth=4) as sim:
        a, b, image = array(np.ones((3, 4))), array(np.ones((4, 3))), array(np.ones((1, 1, 4, 3)))
        made = data.draw(
            st.sampled_from(
                [
                    sim.call("matmul", {"A": a, "B": b}, {"Y": Out((3, 3))}),
                    sim.call("softmax", {"X": a}, {"Y": Out((3, 4))}, axis="0"),
                    sim.call("copy", {"X": a}, {"Y": Out((3, 4), "int8", (1, 3))}),
                    sim.call("conv2d", {"X": image, "W": image}, {"Y": Out((1, 1, 1, 1))}),
                    sim.call("topk_softmax", {"gating": a}, {"weights": Out((3, 2)), "ids": Out((3, 2), "int32")},
                             k="2", renormalize="true"),
                ]
            )
        )  # fmt: skip
        code = bytearray(sim.instruction(made))
        for _ in range(data.draw(st.integers(1, 2))):
            at = data.draw(st.integers(28, len(code) - 1))
            code[at] = data.draw(st.sampled_from([0, 1, 2, 3, 4, 8, 127, 255]) | st.integers(0, 255))
        try:
            point = sim.ring.submit(bytes(code))
        except UsageError:
            pass
        else:
            assert sim.ring.wait(point, 60.0)
            found = blob.decode(bytes(code))
            assert found.kernel_id in {one.kernel_id for one in TEMPLATES}
        assert works(sim)
        opened.device.check()
