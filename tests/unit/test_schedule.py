"""Lists of instructions: sim keeps the contract, each way to break it is named by the check for it, and what the
simulated driver does with lists."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the simulated chip computes with numpy: pip install 'accelctl[umd]'")

import numpy as np

from accelctl.abi import blob, call, registry
from accelctl.abi.call import Call
from accelctl.abi.conformance import check_ops, check_schedule
from accelctl.abi.devmem import ask, number
from accelctl.abi.handshake import Given
from accelctl.abi.handshake import check as handshake
from accelctl.abi.lifecycle import Block, Env
from accelctl.abi.manifest import Manifest
from accelctl.abi.opset import OPS
from accelctl.abi.queue import LOST, QueueFull, Ring
from accelctl.abi.schedule import ListClosed, Recorded
from accelctl.abi.tensors import DTYPES, tensor
from accelctl.abi.testbench import Check
from accelctl.backends.sim import jobs, uapi
from accelctl.backends.sim.memory import MEMORY
from accelctl.backends.sim.ops import reader
from accelctl.backends.sim.ops.contract import OPS as SIM
from accelctl.backends.sim.ops.contract import SimOpsRing
from accelctl.backends.sim.schedule import SCHEDULE
from accelctl.errors import AbiError, AccelError, DeviceUnusable, UsageError
from tests.simkit import TARGET, Opened, open_sim, space

CHIP = registry.load("sim")


def checks(schedule: Any) -> dict[str, Check]:
    env = Env(MEMORY.syscalls(TARGET, Env()), space)
    return {check.name: check for check in check_schedule(CHIP._replace(schedule=schedule), TARGET, env)}


def test_sim_passes_every_check() -> None:
    found = checks(SCHEDULE)
    assert {name: check for name, check in found.items() if check.result != "pass"} == {}
    assert [name for name in found if not name.startswith("schedule ring")] == [
        "schedule: same results",
        "schedule: order",
        "schedule: several",
        "schedule: bad instructions",
        "schedule: memory gone",
        "schedule: closed",
        "schedule: left open",
    ]


# -- each way to be wrong


class Flawed:
    """sim's lists, with one flaw."""

    def __init__(self, flaw: str) -> None:
        self.flaw, self.lists = flaw, 0

    def record(self, ring: Ring, blobs: Sequence[bytes]) -> Recorded:
        self.lists += 1
        if self.flaw == "hoards" and self.lists > 150:
            raise AccelError("no room for another list", kind="out_of_resources")
        if self.flaw == "anybody" and not isinstance(ring, SimOpsRing):
            return NoList()
        try:
            made = SCHEDULE.record(ring, self.changed(blobs))
        except UsageError as error:
            if self.flaw == "believes":
                return NoList()
            if self.flaw == "mumbles":
                raise UsageError("something is wrong with it") from error
            raise
        if self.flaw == "runs":
            made.replay()
        return FlawedList(self.flaw, made, ring, blobs)

    def changed(self, blobs: Sequence[bytes]) -> Sequence[bytes]:
        if self.flaw == "backwards":
            return blobs[::-1]
        return blobs[:1] if self.flaw == "first" else blobs


class NoList:
    works = 2

    def replay(self) -> int:
        return 0

    def close(self) -> None:
        pass


class FlawedList:
    def __init__(self, flaw: str, made: Recorded, ring: Ring, blobs: Sequence[bytes]) -> None:
        self.flaw, self.made, self.ring, self.blobs = flaw, made, ring, blobs
        self.works = made.works + (flaw == "counts") if flaw != "first" else len(blobs)

    def replay(self) -> int:
        if self.flaw == "splits":
            return [self.ring.submit(one) for one in self.blobs][-1]
        try:
            return self.made.replay()
        except UsageError:
            if self.flaw == "wastes":
                self.ring.submit(self.blobs[0])
            if self.flaw != "keeps":
                raise
            return 1
        except ListClosed:
            if self.flaw != "reopens":
                raise
            return self.ring.passed()

    def close(self) -> None:
        if self.flaw != "once" or self.ring.state != "closed":
            self.made.close()
        else:
            raise UsageError("closed already")


FLAWS = [
    ("runs", "same results", "something was run when the list was recorded"),
    ("backwards", "same results", "copies in a row, beginning with 1, left [1, 1, 2, 3]"),
    ("first", "same results", "copies in a row, beginning with 1, left [1, 1, 3, 4]"),
    ("counts", "same results", "a list of 3 instructions says that it has 4"),
    ("splits", "order", "a work, a list and a work have the points [1, 3, 4]"),
    ("hoards", "several", "no room for another list"),
    ("believes", "bad instructions", "a list with no bytes is taken"),
    ("mumbles", "bad instructions", "no bytes: refused without naming blobs[1]"),
    ("anybody", "bad instructions", "a list with a ring of somebody else is taken"),
    ("keeps", "memory gone", "a list is replayed whose memory was given back"),
    ("wastes", "memory gone", "after a refused replay the next work has point 3, not 2"),
    ("reopens", "closed", "replay() of a closed list works"),
    ("once", "closed", "closed already"),
]


@pytest.mark.parametrize(("flaw", "check", "detail"), FLAWS, ids=[flaw for flaw, *_ in FLAWS])
def test_a_flaw_is_named(flaw: str, check: str, detail: str) -> None:
    found = checks(Flawed(flaw))[f"schedule: {check}"]
    assert found.result == "fail"
    assert found.detail.startswith(detail), found.detail


def test_a_chip_with_lists_keeps_the_contract_of_ops() -> None:
    env = Env(MEMORY.syscalls(TARGET, Env()), space)
    assert [check for check in check_ops(CHIP, TARGET, env) if check.result != "pass"] == []


# -- the handshake


@pytest.mark.parametrize(
    ("features", "abi", "schedule", "line"),
    [
        ({"ops", "schedule"}, 1, SCHEDULE, "written for ABI 1, and claims schedule, a contract of ABI 2"),
        ({"schedule"}, 2, SCHEDULE, "claims schedule and not ops"),
        ({"ops", "schedule"}, 2, None, "claims schedule and registers no object for it"),
        ({"ops"}, 2, SCHEDULE, "registers schedule, which is not among the features"),
        ({"ops", "schedule"}, 2, object(), "its schedule has no method record(ring, blobs)"),
    ],
)
def test_who_may_claim_it(features: set[str], abi: int, schedule: object, line: str) -> None:
    manifest = Manifest(name="toy", title="Toy", features=frozenset(features), abi=abi)
    contracts: dict[str, object] = {"ops": SIM if "ops" in features else None, "schedule": schedule}
    with pytest.raises(AbiError) as caught:
        handshake(Given(manifest, contracts), "chip toy", "test", abi)
    assert line in caught.value.message


def test_what_was_written_for_the_first_abi_still_fits() -> None:
    manifest = Manifest(name="toy", title="Toy", features=frozenset({"ops"}), abi=1)
    made = handshake(Given(manifest, {"ops": SIM}), "chip toy", "test", 1)
    assert (made.ops, made.schedule) == (SIM, None)


# -- the simulated driver


class Bench:
    """One session with a ring, and memory in it."""

    def __init__(self, depth: int = 8, **options: str) -> None:
        self.calls: list[int] = []
        self.opened: Opened = open_sim(**options)
        ring = SIM.open(self.opened.session, depth)
        assert isinstance(ring, SimOpsRing)
        self.ring = ring
        self.life = next(life for life in self.opened.session.lifecycles if life.name == "vram")
        self.serial = 0

    def block(self, size: int = 4096) -> Block:
        self.serial += 1
        made = Block(size, self.serial)
        for stage in self.life.stages:
            stage.acquire(made)
        return made

    def give(self, block: Block) -> None:
        for stage in reversed(self.life.stages):
            if stage.release is not None:
                stage.release(block)

    def put(self, array: Any) -> Block:
        block = self.block(max(4096, array.nbytes))
        assert block.map is not None
        block.map[: array.nbytes] = array.tobytes()
        return block

    def get(self, block: Block, count: int) -> list[float]:
        assert block.map is not None
        return [float(one) for one in np.frombuffer(bytes(block.map[: 4 * count]), np.float32)]

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *ended: object) -> None:
        self.opened.device.check()
        self.ring.close()
        self.opened.session.close()


def work(op: str, inputs: Sequence[Any], outputs: Sequence[Any], **attrs: Any) -> bytes:
    """An instruction for sim's first kernel that takes it."""
    defaults: dict[str, Any] = {attr.name: attr.default for attr in OPS[op].attrs}
    made = Call(OPS[op], tuple(inputs), tuple(outputs), {**defaults, **attrs})
    kernel = next(
        one
        for one in SIM.templates()
        if one.op == op and made.tensors[0].dtype.name in one.dtypes and not (one.refuses and one.refuses(made))
    )
    params = [one.address for one in made.tensors]
    return blob.encode(kernel.kernel_id, kernel.launch(made).encode(), params, call.encode(made))


def of(block: Block, shape: Sequence[int], dtype: str = "fp32") -> Any:
    return tensor(tuple(shape), DTYPES[dtype], block.address)


def relu(x: Block, y: Block) -> bytes:
    return work("relu", [of(x, (4,))], [of(y, (4,))])


def decode(bench: Bench, table: int) -> bytes:
    """An instruction that fails while it runs, where the table points to a block that there is not."""
    q, cache = bench.put(np.ones((1, 1, 4), np.float32)), bench.put(np.ones((2, 4, 1, 4), np.float32))
    where, lengths = bench.put(np.array([[table]], np.int32)), bench.put(np.array([1], np.int32))
    inputs = [of(q, (1, 1, 4)), of(cache, (2, 4, 1, 4)), of(cache, (2, 4, 1, 4))]
    inputs += [of(where, (1, 1), "int32"), of(lengths, (1,), "int32")]
    outputs = [of(bench.block(), (1, 1, 4)), None]
    return work("attention_decode", inputs, outputs, block_size=4)


def test_a_failure_inside_a_list_loses_the_ring_and_is_named() -> None:
    with Bench() as bench:
        x, y, z = (bench.put(np.full(4, value, np.float32)) for value in (1, 2, 3))
        listed = SCHEDULE.record(bench.ring, [relu(x, y), decode(bench, 99), relu(x, z)])
        point = listed.replay()
        with pytest.raises(DeviceUnusable, match=r"job 1 failed: instruction 1 of its list: .*block"):
            bench.ring.wait(point, 1.0)
        assert (bench.ring.state, bench.ring.passed()) == (LOST, 0)
        assert (bench.get(y, 4), bench.get(z, 4)) == ([1] * 4, [3] * 4), "in order, and nothing after it"
        for again in (listed.replay, lambda: SCHEDULE.record(bench.ring, [relu(x, y)])):
            with pytest.raises(DeviceUnusable):
                again()
        listed.close()


def test_the_same_list_with_a_block_that_is_there() -> None:
    with Bench() as bench:
        point = SCHEDULE.record(bench.ring, [decode(bench, 1)]).replay()
        assert bench.ring.wait(point, 1.0)


def test_a_list_is_read_once_and_handed_over_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bench() as bench:
        x, y = bench.put(np.full(4, -1, np.float32)), bench.block()
        works = [relu(x, y)] * 50
        read: list[bytes] = []

        def reading(raw: bytes) -> Any:
            read.append(raw)
            return reader.read(raw)

        monkeypatch.setattr("accelctl.backends.sim.ops.engine.read", reading)
        listed = SCHEDULE.record(bench.ring, works)
        assert len(read) == 50
        calls: list[int] = []
        driver = bench.opened.session.file
        real = driver.ioctl

        def ioctl(code: int, argument: Any) -> Any:
            calls.append(code)
            return real(code, argument)

        monkeypatch.setattr(driver, "ioctl", ioctl)
        points = [listed.replay() for _ in range(3)]
        assert (points, calls) == ([1, 2, 3], [uapi.SUBMIT.number] * 3)
        assert len(read) == 50
        assert bench.ring.wait(3, 1.0)


def test_a_list_takes_the_time_of_its_instructions_and_one_place() -> None:
    with Bench(depth=2, latency="16") as bench:
        x, y = bench.put(np.zeros(4, np.float32)), bench.block()
        listed = SCHEDULE.record(bench.ring, [relu(x, y)] * 10)
        start = bench.opened.device.now
        assert [listed.replay(), listed.replay()] == [1, 2]
        with pytest.raises(QueueFull):
            listed.replay()
        assert bench.ring.wait(2, 1.0)
        assert 2 * 10 * 16 <= bench.opened.device.now - start < 2 * 10 * 16 + 16


def test_memory_that_moves_under_a_list_is_found_again() -> None:
    """Something else is mapped and unmapped: the list is placed anew, and its results are the same."""
    with Bench() as bench:
        x, y = bench.put(np.array([-1, 2, -3, 4], np.float32)), bench.block()
        listed = SCHEDULE.record(bench.ring, [relu(x, y)])
        for _ in range(3):
            bench.give(bench.block())
            assert bench.ring.wait(listed.replay(), 1.0)
            assert bench.get(y, 4) == [0, 2, 0, 4]
            assert y.map is not None
            y.map[:16] = bytes(16)
        bench.give(x)
        with pytest.raises(UsageError, match="the device cannot reach 16 bytes"):
            listed.replay()


def test_jobs_of_a_list_hold_their_memory() -> None:
    with Bench(latency="1000000") as bench:
        x, y = bench.put(np.full(4, 5, np.float32)), bench.block()
        listed = SCHEDULE.record(bench.ring, [relu(x, y)] * 2)
        point = listed.replay()
        listed.close()
        bench.opened.device.check()
        assert bench.ring.wait(point, 1e6)
        assert bench.get(y, 4) == [5] * 4


def test_the_driver_has_room_for_so_many_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MOST_LISTS", 3)
    monkeypatch.setattr(jobs, "MOST_LISTED", 2)
    with Bench() as bench:
        x, y = bench.put(np.zeros(4, np.float32)), bench.block()
        lists = [SCHEDULE.record(bench.ring, [relu(x, y)]) for _ in range(3)]
        with pytest.raises(AccelError, match="a queue has at most 3 lists") as caught:
            SCHEDULE.record(bench.ring, [relu(x, y)])
        assert caught.value.kind == "out_of_resources"
        lists[1].close()
        with pytest.raises(AccelError, match=r"blobs\[2\]: a list has at most 2 instructions"):
            SCHEDULE.record(bench.ring, [relu(x, y)] * 3)
        SCHEDULE.record(bench.ring, [relu(x, y)] * 2).close()  # the one that was refused left nothing


def refused(bench: Bench, ioctl: Any, **fields: int) -> str:
    with pytest.raises(OSError, match=r"Errno") as caught:
        ask(bench.opened.session.file, ioctl, **fields)
    return errno.errorcode[caught.value.errno or 0]


def test_what_the_driver_refuses_about_lists() -> None:
    with Bench() as bench:
        session, x, y = bench.opened.session, bench.put(np.zeros(4, np.float32)), bench.block()
        raw = relu(x, y)
        place = bench.put(np.frombuffer(raw, np.uint8))
        right = {"queue": 1, "vm": session.vm, "src": place.address, "size": len(raw)}
        listed = number(session.file, uapi.RECORD, "list", **right)
        assert number(session.file, uapi.RECORD, "count", list=listed, **right) == 2
        wrong: list[tuple[str, dict[str, int]]] = [
            ("ENOENT", {"queue": 9}),
            ("ENOENT", {"vm": 9}),
            ("ENOENT", {"list": 9}),
            ("EINVAL", {"count": 1}),
            ("EINVAL", {"size": len(raw) - 1}),
            ("EFAULT", {"src": 1 << 40}),
        ]
        for name, change in wrong:
            assert refused(bench, uapi.RECORD, **{**right, **change}) == name, change
        assert number(session.file, uapi.RECORD, "list", **right) == listed + 1, "what was refused has no number"
        job = {"queue": 1, "vm": session.vm, "op": uapi.LIST}
        for name, change in [("ENOENT", {"value": 9}), ("EINVAL", {"value": listed, "size": 4})]:
            assert refused(bench, uapi.SUBMIT, **{**job, **change}) == name, change
        ask(session.file, uapi.FORGET, queue=1, list=listed)
        assert refused(bench, uapi.FORGET, queue=1, list=listed) == "EINVAL"
        assert refused(bench, uapi.SUBMIT, **job, value=listed) == "ENOENT"


def test_a_list_belongs_to_its_queue() -> None:
    with Bench() as bench:
        x, y = bench.put(np.zeros(4, np.float32)), bench.block()
        listed = SCHEDULE.record(bench.ring, [relu(x, y)])
        other = SIM.open(bench.opened.session, 4)
        assert isinstance(other, SimOpsRing)
        with pytest.raises(UsageError):
            other.replay(1)
        other.close()
        assert bench.ring.wait(listed.replay(), 1.0)


def test_bad_records_leave_the_device_whole() -> None:
    """Whatever stands in the command buffer."""
    rng = np.random.default_rng(7)
    with Bench() as bench:
        x, y = bench.put(np.zeros(4, np.float32)), bench.block()
        raw = relu(x, y)
        for _ in range(300):
            bad = bytearray(raw)
            for at in rng.integers(0, len(bad), 3).tolist():
                bad[at] = int(rng.integers(0, 256))
            with suppress(UsageError):
                SCHEDULE.record(bench.ring, [raw, bytes(bad)]).close()
        assert not bench.opened.device.files[bench.opened.session.file.fd].queues.get(1, "queue").lists.things
        assert bench.ring.wait(SCHEDULE.record(bench.ring, [raw]).replay(), 1.0)
