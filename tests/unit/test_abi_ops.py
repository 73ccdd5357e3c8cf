"""The suite of chips that compute: a right one passes it, and each way to be wrong is named by the check for it."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from accelctl.abi import blob, call, gem
from accelctl.abi.conformance import check_ops
from accelctl.abi.handshake import Chip
from accelctl.abi.launch import Launch
from accelctl.abi.lifecycle import FD, VA, Block, Env, Lifecycle, Session, Sizes, Stage, Target
from accelctl.abi.manifest import Manifest
from accelctl.abi.ops import Device, Template, elementwise_launch
from accelctl.abi.opset import ANY, OPS
from accelctl.abi.queue import Timeline
from accelctl.abi.tensors import Tensor, span
from accelctl.abi.testbench import Check
from accelctl.errors import NoDeviceError, UsageError
from accelctl.hal.devfile import DevFile, File
from tests.abikit import TARGET, failed, space

PACK = {"fp32": "<f", "fp16": "<e", "int8": "<b", "int32": "<i", "uint8": "<B"}
RANGE = {"int8": (-128, 127), "uint8": (0, 255), "int32": (-(1 << 31), (1 << 31) - 1)}


def number(dtype: str, data: bytes) -> float:
    return float(struct.unpack("<f", b"\0\0" + data)[0] if dtype == "bf16" else struct.unpack(PACK[dtype], data)[0])


def stored(dtype: str, value: float) -> bytes:
    """Exact values only."""
    if dtype == "bf16":
        return struct.pack("<f", value)[2:]
    low, high = RANGE.get(dtype, (0, 0))
    return struct.pack(PACK[dtype], min(max(int(value), low), high) if dtype in RANGE else value)


class Toy(Session):
    """va -> object (a memfd) -> cpu_map. Kernels see blocks by their addresses."""

    def __init__(self, target: Target, env: Env, flaws: set[str]) -> None:
        self.env, self.flaws = env, flaws
        self.blocks: dict[int, Block] = {}
        self.rings: list[Ring] = []
        files = (DevFile(target.node, syscalls=env.syscalls),)
        self.space = env.space(1 << 20, 1 << 30, 4096)
        cpu = gem.own_map_stage()
        stages = (
            Stage("va", VA, self.take, self.give),
            Stage("object", FD, self.create, gem.close_own_file),
            *(() if "unmapped" in flaws else (cpu,)),
        )
        sync = self.sync if "alone" in flaws else None
        super().__init__(target, (Lifecycle("plain", stages, Sizes(4096, 1 << 20), sync),), files)

    def sync(self, block: Block, begin: bool) -> None:
        """The first one to end takes the memory from the others."""
        block.extra = (block.extra or 0) + (1 if begin else -1)
        if block.extra and not begin and block.map is not None:
            block.map[:4] = b"gone"

    def take(self, block: Block) -> int:
        block.address = self.space.alloc(block.size)
        if "nowhere" in self.flaws:
            self.space.free(block.address)
            block.address = 0
        self.blocks[block.address] = block
        return block.address

    def give(self, block: Block) -> None:
        del self.blocks[block.address]
        if block.address:
            self.space.free(block.address)

    def create(self, block: Block) -> int:
        block.file = File(self.env.syscalls.memfd("toy", block.size, 0), "toy object", self.env.syscalls)
        return block.file.fd

    def close(self) -> None:
        for ring in self.rings if "forgets" not in self.flaws else ():
            ring.close()
        super().close()

    def reach(self, tensor: Tensor) -> tuple[Block, int]:
        """The block of an operand, and where in it. UsageError where there is none."""
        size = span(tensor.shape, tensor.strides, tensor.dtype)
        for at, block in self.blocks.items():
            if at <= tensor.address and tensor.address + size <= at + block.size:
                return block, tensor.address - at
        if "reaches" in self.flaws and self.blocks:
            return next(iter(self.blocks.values())), 0
        raise UsageError(f"no {size} bytes at {tensor.address:#x}")


def places(tensor: Tensor, dense: bool) -> list[int]:
    found = [0]
    if dense:
        return [at * tensor.dtype.itemsize for at in range(tensor.elements)]
    for length, stride in zip(tensor.shape, tensor.strides, strict=True):
        found = [at + stride * step * tensor.dtype.itemsize for at in found for step in range(length)]
    return found


class Ring:
    """Runs a copy as soon as it is submitted."""

    def __init__(self, session: Toy, depth: int) -> None:
        self.session, self.depth, self.flaws = session, depth, session.flaws
        self.line = Timeline(depth)
        session.rings.append(self)

    @property
    def state(self) -> str:
        return self.line.state

    def submit(self, work: bytes) -> int:
        if "counts" in self.flaws:
            self.line.advance(self.line.take())
        try:
            copies = self.read(work)
        except UsageError:
            if "dies" in self.flaws:
                self.line.lose("a bad instruction")
            if "believes" in self.flaws:
                copies = []
            else:
                raise
        point = self.line.take()
        for target, at, data in copies:
            assert target.map is not None
            target.map[at : at + len(data)] = data
        self.line.advance(point)
        return point

    def read(self, work: bytes) -> list[tuple[Block, int, bytes]]:
        if "tolerates" in self.flaws:
            work = work.removesuffix(b"\0") if len(work) > 36 and work[-1:] == b"\0" else work
        found = blob.decode(work)
        if found.kernel_id != 7 and "guesses" not in self.flaws:
            raise UsageError(f"no kernel {found.kernel_id}")
        made = call.decode(OPS["copy"], found.body, found.params)
        (x,), (y,) = made.inputs, made.outputs
        assert x is not None
        assert y is not None
        if not x.elements:
            if "full" in self.flaws:
                raise UsageError("nothing to do")
            return []
        (source, start), (target, end) = self.session.reach(x), self.session.reach(y)
        assert source.map is not None
        size, copies = x.dtype.itemsize, []
        straight = "straight" in self.flaws
        for one, other in zip(places(x, straight), places(y, straight), strict=True):
            data = bytes(source.map[start + one : start + one + size])
            if "raw" not in self.flaws and x.dtype != y.dtype:
                data = stored(y.dtype.name, number(x.dtype.name, data))
            copies.append((target, end + other, data + bytes("spills" in self.flaws)))
        return copies

    def passed(self) -> int:
        return self.line.passed()

    def wait(self, point: int, timeout_s: float) -> bool:
        return self.line.wait(point, min(timeout_s, 0.2))

    def close(self) -> None:
        self.line.close()


class ToyChip:
    """Memory and Ops in one object."""

    def __init__(self, *flaws: str, templates: tuple[Template, ...] = ()) -> None:
        self.flaws = set(flaws)
        self.table = templates or (template(),)

    def open(self, session: Any, depth: Any) -> Any:
        if isinstance(session, Target):
            return Toy(session, depth, self.flaws)
        if depth < 1:
            raise UsageError(f"a ring of depth {depth}")
        return Ring(session, depth)

    def devices(self) -> tuple[Device, ...]:
        if "absent" in self.flaws:
            raise NoDeviceError("the runtime is not installed", "pip install toy")
        mine = Device(TARGET, "Toy One", True)
        return (mine, mine) if "twins" in self.flaws else (mine,)

    def templates(self) -> tuple[Template, ...]:
        return self.table

    def lifecycle(self) -> str:
        return "fancy" if "elsewhere" in self.flaws else "plain"


def template(**changes: Any) -> Template:
    right = Template(7, "copy", "copy", ANY, lambda made: elementwise_launch(made.tensors[-1].elements))
    return right._replace(**changes)


def checks(chip: ToyChip) -> dict[str, Check]:
    manifest = Manifest(name="toy", title="Toy", features=frozenset({"memory", "ops"}))
    made: Any = chip
    return {
        check.name: check for check in check_ops(Chip(manifest, made, None, made, "test"), TARGET, Env(space=space))
    }


def test_a_right_chip_passes_every_check() -> None:
    found = checks(ToyChip())
    assert {name: check for name, check in found.items() if check.result != "pass"} == {}
    assert list(found) == [
        "ops: devices",
        "ops: kernels",
        "ops: lifecycle",
        "ops: copy",
        "ops: no elements",
        "ops: bad instructions",
        "ops ring: points",
        "ops ring: unknown point",
        "ops ring: full",
        "ops ring: two at once",
        "ops ring: closed",
        "ops ring: depth",
        "ops ring: left open",
    ]


@pytest.mark.parametrize(
    ("flaw", "check", "detail"),
    [
        ("twins", "ops: devices", "its devices are toy:0, toy:0: each is toy:<n>, once"),
        ("elsewhere", "ops: lifecycle", "lifecycle() is 'fancy', the session has plain"),
        ("unmapped", "ops: lifecycle", "plain has no cpu_map: nothing gets in or out"),
        ("nowhere", "ops: lifecycle", "a block of plain at address 0x0"),
        ("alone", "ops: lifecycle", "a block that is accessed twice at a time holds 676f6e65"),
        ("straight", "ops: copy", "copy of fp32 from a transposed view: 0102"),
        ("raw", "ops: copy", "copy of fp32 to fp16: 000000000000, it must be 003c00c1b05c"),
        ("spills", "ops: copy", "copy of fp32 as it is: it writes behind its output"),
        ("full", "ops: no elements", "nothing to do"),
        ("believes", "ops: bad instructions", "no bytes is taken, as point 1"),
        ("tolerates", "ops: bad instructions", "a byte more is taken, as point 1"),
        ("guesses", "ops: bad instructions", "an unknown kernel is taken, as point 1"),
        ("reaches", "ops: bad instructions", "an address that nobody has, read is taken, as point 1"),
        ("dies", "ops: bad instructions", "after no bytes was refused the ring is lost"),
        ("counts", "ops: bad instructions", "the first work that is right has point"),
        ("forgets", "ops ring: left open", "its session is closed, and the ring is idle"),
    ],
)
def test_a_flaw_is_named(flaw: str, check: str, detail: str) -> None:
    found = checks(ToyChip(flaw))
    assert found[check].result == "fail", found[check]
    assert found[check].detail.startswith(detail), found[check].detail


@pytest.mark.parametrize(
    ("table", "detail"),
    [
        ((template(), template(name="again")), "kernel_id 0x7 is there 2 times"),
        ((template(kernel_id=0),), "kernel 'copy': kernel_id 0 is not a number from 1"),
        ((template(op="dance"),), "kernel 'copy': there is no op 'dance'"),
        ((template(dtypes=frozenset()),), "kernel 'copy': copy takes bf16, fp16, fp32, int32, int8, uint8 first"),
        ((template(op="softmax"),), "kernel 'copy': softmax takes bf16, fp16, fp32 first"),
        ((template(strided=False),), "there is no copy that takes strides: nothing can be lowered"),
        ((template(op="relu"),), "there is no copy that takes strides"),
    ],
)
def test_a_table_that_cannot_be_used(table: tuple[Template, ...], detail: str) -> None:
    found = checks(ToyChip(templates=table))
    assert failed(found)["ops: kernels"].startswith(detail)
    assert found["ops: the rest"].result == "skip"


def test_what_cannot_be_judged_is_skipped_with_its_reason() -> None:
    found = checks(ToyChip("absent"))
    assert found["ops: devices"] == ("ops: devices", "skip", "the runtime is not installed")
    assert failed(found) == {}


def test_a_chip_that_copies_few_types_is_checked_on_those() -> None:
    """bf16 alone: no conversion is asked for, and views still are."""
    assert failed(checks(ToyChip(templates=(template(dtypes=frozenset({"bf16"})),)))) == {}


def test_a_launch_is_the_chip_s_own() -> None:
    table = (template(launch=lambda made: Launch((5, 1, 1), (32, 1, 1))),)
    assert failed(checks(ToyChip(templates=table))) == {}
