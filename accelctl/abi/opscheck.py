"""The suite of the Ops contract: a table that can be used, memory that kernels reach, and a ring that takes
instructions and nothing else. Only ``copy`` is run here, which every chip has; that all kernels compute right is for
`smoke` to show.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from accelctl.abi import blob, call
from accelctl.abi.call import Call
from accelctl.abi.condition import Conditions
from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import CPU_MAP, Block, Env, Lifecycle, NotOffered, Session, Target
from accelctl.abi.ops import Ops, Template
from accelctl.abi.opset import OPS, Op
from accelctl.abi.queue import CLOSED, IDLE
from accelctl.abi.ringcheck import RING_CHECKS, RingSuite, passes
from accelctl.abi.tensors import BF16, DTYPES, FP16, FP32, INT8, INT32, U64, UINT8, DType, Tensor, tensor
from accelctl.abi.testbench import Bench, Check, Wrong
from accelctl.errors import AbiError, NoDeviceError, UsageError
from accelctl.hal.devfile import Mapped

_COPY = OPS["copy"]


def check_ops(chip: Chip, target: Target, env: Env) -> list[Check]:
    """Every check of the Ops contract on one device; as :func:`check_memory`."""
    ops = chip.ops
    assert ops is not None
    suite = RingSuite(chip, target, env, ops)
    bodies: dict[str, Callable[[Bench], None]] = {
        "ops: devices": lambda bench: _devices(ops, chip.manifest.name),
        "ops: kernels": lambda bench: _kernels(ops.templates()),
        "ops: lifecycle": lambda bench: _memory(ops, bench),
    }
    checks = [suite.run(name, body) for name, body in bodies.items()]
    if any(check.result == "fail" for check in checks):
        return [*checks, Check("ops: the rest", "skip", "nothing can be run without these")]
    bodies = {
        "ops: copy": partial(_copies, suite, ops),
        "ops: no elements": partial(_nothing, suite, ops),
        "ops: bad instructions": partial(_bad, suite, ops),
    }
    for name, check in RING_CHECKS.items():
        bodies[f"ops ring: {name}"] = partial(_ring, suite, ops, check)
    checks += [suite.run(name, body) for name, body in bodies.items()]
    checks.append(suite.run("ops ring: left open", partial(_left, suite, ops), strict=False))
    return checks


def _devices(ops: Ops, name: str) -> None:
    try:
        found = ops.devices()
    except NoDeviceError as error:
        raise NotOffered(error.message) from error
    ids = [device.target.id for device in found]
    if len(set(ids)) < len(ids) or not all(one.startswith(f"{name}:") for one in ids):
        raise Wrong(f"its devices are {', '.join(ids)}: each is {name}:<n>, once")
    for device in found:
        if device.target.chip != name or not device.title.strip():
            raise Wrong(f"{device.target.id} is of chip {device.target.chip!r}, with the title {device.title!r}")


def _kernels(templates: Sequence[Template]) -> None:
    ids = [template.kernel_id for template in templates]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise Wrong(f"kernel_id {twice[0]:#x} is there {ids.count(twice[0])} times")
    for template in templates:
        op, who = OPS.get(template.op), f"kernel {template.name!r}"
        if not 1 <= template.kernel_id <= U64:
            raise Wrong(f"{who}: kernel_id {template.kernel_id} is not a number from 1 to 2^64 - 1")
        if op is None:
            raise Wrong(f"{who}: there is no op {template.op!r}")
        before = [one.name for one in templates[: templates.index(template)] if one.op == template.op]
        if template.fallback and template.fallback not in before:
            raise Wrong(f"{who}: its fallback {template.fallback!r} is no earlier kernel of {op.name}")
        if template.conditions is not None:
            _conditions(who, template.conditions, op)
        if not template.dtypes or not template.dtypes <= op.inputs[0].dtypes:
            raise Wrong(f"{who}: {op.name} takes {', '.join(sorted(op.inputs[0].dtypes))} first")
    if not any(template.op == "copy" and template.strided for template in templates):
        raise Wrong("there is no copy that takes strides: nothing can be lowered")


def _conditions(who: str, conditions: Conditions, op: Op) -> None:
    try:
        conditions.check(op)
    except AbiError as error:
        raise Wrong(f"{who}: {error.message}") from None


def _life(ops: Ops, session: Session) -> Lifecycle:
    name = ops.lifecycle()
    for life in session.lifecycles:
        if life.name == name:
            if life.unsupported:
                raise NotOffered(life.unsupported)
            return life
    raise Wrong(f"lifecycle() is {name!r}, the session has {', '.join(life.name for life in session.lifecycles)}")


class Place(NamedTuple):
    """A block that kernels use, and how the CPU gets at it."""

    life: Lifecycle
    block: Block

    def put(self, data: bytes) -> None:
        """Write at its start."""
        with self.reach() as memory:
            memory[: len(data)] = data

    def get(self, size: int) -> bytes:
        """Read from its start."""
        with self.reach() as memory:
            return memory[:size]

    @contextmanager
    def reach(self) -> Iterator[Mapped]:
        """The CPU's view, as long as it is used."""
        if self.block.map is None:
            raise Wrong(f"a block of {self.life.name} is not mapped")
        if self.life.sync:
            self.life.sync(self.block, True)
        try:
            yield self.block.map
        finally:
            if self.life.sync:
                self.life.sync(self.block, False)


@contextmanager
def places(ops: Ops, bench: Bench, count: int = 2) -> Iterator[list[Place]]:
    """Blocks of the lifecycle that kernels use, as long as they are needed."""
    life = _life(ops, bench.session)
    size, blocks = max(4096, life.sizes.granule), list[Block]()
    try:
        for serial in range(count):
            blocks.append(bench.acquire(life.stages, size, serial + 1)[0])
        yield [Place(life, block) for block in blocks]
    finally:
        wrong = [line for block in reversed(blocks) for line in bench.release(block)]
    if wrong:
        raise Wrong("; ".join(wrong))


def _memory(ops: Ops, bench: Bench) -> None:
    life = _life(ops, bench.session)
    if not any(stage.kind == CPU_MAP for stage in life.stages):
        raise Wrong(f"{life.name} has no cpu_map: nothing gets in or out")
    with places(ops, bench) as (one, two):
        for place in (one, two):
            if place.block.map is None or not place.block.address:
                raise Wrong(f"a block of {life.name} at address {place.block.address:#x}, mapped: {place.block.map!r}")
        first, last = sorted((one.block, two.block), key=lambda block: block.address)
        if first.address + first.size > last.address:
            raise Wrong(f"two blocks of {first.size} bytes at {first.address:#x} and {last.address:#x}")
        _readers(one)


def _readers(place: Place) -> None:
    """Transfers of one tensor may overlap, and the first one to end must not take the memory from the others."""
    with place.reach() as first:
        with place.reach() as second:
            second[:4] = b"both"
        if first[:4] != b"both":
            raise Wrong(f"a block that is accessed twice at a time holds {bytes(first[:4]).hex()}")


def copying(ops: Ops, x: Tensor, y: Tensor) -> bytes:
    """A copy. NotOffered where no kernel takes it."""
    made = Call(_COPY, (x,), (y,), {})
    for template in ops.templates():
        fits = template.op == "copy" and x.dtype.name in template.dtypes
        if fits and (template.strided or (x.dense and y.dense)) and not (template.refuses and template.refuses(made)):
            word = template.launch(made).encode()
            return blob.encode(template.kernel_id, word, (x.address, y.address), call.encode(made))
    raise NotOffered(f"no copy of {x.dtype.name}")


class _Move(NamedTuple):
    """A copy whose bytes are known. Strides in elements; empty: dense."""

    what: str
    x: DType
    y: DType
    given: bytes
    wanted: bytes
    shape: tuple[int, ...] = (3,)
    x_strides: tuple[int, ...] = ()
    y_strides: tuple[int, ...] = ()


def _moves() -> Iterator[_Move]:
    for dtype in DTYPES.values():
        size = dtype.itemsize
        data = bytes(range(1, 15 * size + 1))
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        turned = b"".join(parts[3 * column + row] for row in range(3) for column in range(5))
        yield _Move(f"{dtype.name} as it is", dtype, dtype, data, data, (15,))
        yield _Move(f"{dtype.name} from a transposed view", dtype, dtype, data, turned, (3, 5), (1, 3))
        yield _Move(f"{dtype.name} into a transposed view", dtype, dtype, turned, data, (3, 5), (), (1, 3))
    given = struct.pack("<3f", 1.0, -2.5, 300.0)
    for dtype, wanted in (
        (FP16, struct.pack("<3e", 1.0, -2.5, 300.0)),
        (BF16, b"".join(given[at + 2 : at + 4] for at in (0, 4, 8))),
        (INT32, struct.pack("<3i", 1, -2, 300)),
        (INT8, struct.pack("<3b", 1, -2, 127)),
        (UINT8, struct.pack("<3B", 1, 0, 255)),
    ):
        yield _Move(f"fp32 to {dtype.name}", FP32, dtype, given, wanted)
        if dtype.floating:
            yield _Move(f"{dtype.name} to fp32", dtype, FP32, wanted, given)


def _copies(suite: RingSuite, ops: Ops, bench: Bench) -> None:
    """Dense, through views, and to other types: what the service's lowering stands on."""
    missing = []
    with places(ops, bench) as (one, two):
        ring = suite.ring(bench)
        for move in _moves():
            x = tensor(move.shape, move.x, one.block.address, move.x_strides)
            y = tensor(move.shape, move.y, two.block.address, move.y_strides)
            try:
                work = copying(ops, x, y)
            except NotOffered as error:
                missing.append(error.reason)
                continue
            one.put(move.given)
            two.put(b"\xa5" * (len(move.wanted) + 8))
            passes(ring, ring.submit(work))
            found, after = two.get(len(move.wanted)), two.get(len(move.wanted) + 8)[len(move.wanted) :]
            if found != move.wanted:
                raise Wrong(f"copy of {move.what}: {found.hex()}, it must be {move.wanted.hex()}")
            if after != b"\xa5" * 8:
                raise Wrong(f"copy of {move.what}: it writes behind its output")
    if len(missing) == len(list(_moves())):
        raise Wrong(missing[0])


def _nothing(suite: RingSuite, ops: Ops, bench: Bench) -> None:
    """Tensors without elements are work like any other, and their addresses mean nothing."""
    empty = tensor((0, 3), some_dtype(ops))
    ring = suite.ring(bench)
    passes(ring, ring.submit(copying(ops, empty, empty)))


def some_dtype(ops: Ops) -> DType:
    """An element type that can be copied."""
    names = set().union(*(one.dtypes for one in ops.templates() if one.op == "copy"))
    return next(dtype for dtype in DTYPES.values() if dtype.name in names)


@contextmanager
def right_work(ops: Ops, bench: Bench) -> Iterator[bytes]:
    """An instruction that can be run as often as one likes."""
    dtype = some_dtype(ops)
    with places(ops, bench) as (one, two):
        one.put(bytes(64))
        yield copying(ops, tensor((4,), dtype, one.block.address), tensor((4,), dtype, two.block.address))


def wrong_works(ops: Ops, right: bytes) -> Iterator[tuple[str, bytes]]:
    """Instructions that are none, each near to the right one, and what is wrong with them."""
    found = blob.decode(right)
    word, dtype = found.launch.encode(), some_dtype(ops)
    yield "no bytes", b""
    yield "half of one", right[: len(right) // 2]
    yield "a byte less", right[:-1]
    yield "a byte more", right + b"\0"
    yield "another magic", b"\0" + right[1:]
    unknown = max(template.kernel_id for template in ops.templates())
    yield "an unknown kernel", blob.encode((unknown + 1) & U64, word, found.params, found.body)
    yield "another version", blob.encode(found.kernel_id, word, found.params, b"\2" + found.body[1:])
    yield "an address less", blob.encode(found.kernel_id, word, found.params[:1], found.body)
    for what, address, stride in (
        ("an address that nobody has", 1 << 63, 1),
        ("the address 0", 0, 1),
        ("a stride out of its block", found.params[0], 1 << 40),
    ):
        far, near = tensor((4,), dtype, address, (stride,)), tensor((4,), dtype, found.params[1])
        yield f"{what}, read", copying(ops, far, near)
        yield f"{what}, written to", copying(ops, near, far)


def _bad(suite: RingSuite, ops: Ops, bench: Bench) -> None:
    """Each is refused with UsageError and takes no point, and the ring goes on."""
    with right_work(ops, bench) as right:
        ring = suite.ring(bench)
        for what, work in wrong_works(ops, right):
            try:
                point = ring.submit(work)
            except UsageError:
                if ring.state == IDLE:
                    continue
                raise Wrong(f"after {what} was refused the ring is {ring.state}") from None
            raise Wrong(f"{what} is taken, as point {point}")
        point = ring.submit(right)
        if point != 1:
            raise Wrong(f"the first work that is right has point {point}")
        passes(ring, point)


def _ring(suite: RingSuite, ops: Ops, check: Callable[[RingSuite, Bench, bytes], None], bench: Bench) -> None:
    with right_work(ops, bench) as work:
        check(suite, bench, work)


def _left(suite: RingSuite, ops: Ops, bench: Bench) -> None:
    """The session ends a ring that nobody closed."""
    ring = suite.ring(bench, closed=False)
    with right_work(ops, bench) as work:
        passes(ring, ring.submit(work))
    bench.session.close()
    if ring.state != CLOSED:
        raise Wrong(f"its session is closed, and the ring is {ring.state}")
