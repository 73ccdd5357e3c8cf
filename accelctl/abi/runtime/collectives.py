"""Collectives: many ranks, one call each, equal results.

A chip that has collectives of its own offers ``group`` beside its Ops contract; for every other one they are made here
of copies and the chip's ``add``. Sums are taken in the order of the ranks, each part by one of them, so every rank has
the same bits, and so has another run. Calls that do not fit each other are refused before anything moves; a rank that
does not come ends in timeout for the others; after either the group is of no use any more.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from typing import NamedTuple, Protocol

from accelctl.abi.runtime.arguments import Arg, pointer
from accelctl.abi.runtime.failure import fail
from accelctl.abi.runtime.launching import Operand
from accelctl.abi.runtime.pointer import Pointer
from accelctl.abi.runtime.runtime import Runtime
from accelctl.abi.runtime.stream import Stream
from accelctl.abi.runtime.streams import READY
from accelctl.abi.tensors import DTYPES
from accelctl.errors import AccelError

ALL_REDUCE, ALL_GATHER, BROADCAST = NAMES = ("all_reduce", "all_gather", "broadcast")
REDUCTIONS = ("sum", "max", "min")
_GRACE_S = 5.0


class Collective(NamedTuple):
    """What one rank calls. ``data`` is its send buffer; ``elements`` of it are sent."""

    name: str
    data: bytes
    elements: int
    dtype: str = "fp32"
    op: str = "sum"
    root: int = 0
    in_place: bool = False

    @property
    def header(self) -> tuple[str, int, str, str, int]:
        """What must be equal on every rank."""
        return self.name, self.elements, self.dtype, self.op, self.root


class Outcome(NamedTuple):
    """What came of it on one rank: a kind ("ok": ``data`` is the receive buffer), and how long it took."""

    kind: str
    data: bytes = b""
    message: str = ""
    seconds: float = 0.0


class Group(Protocol):
    """Ranks that can call collectives."""

    @property
    def ranks(self) -> int:
        """How many."""

    def run(self, calls: Sequence[Collective | None], limit_s: float) -> list[Outcome]:
        """Each rank's call at the same time; None: that rank does not call."""

    def close(self) -> None:
        """Give everything back."""


class Meeting:
    """Where ranks of one process wait for each other."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.broken = ranks, ""
        self._fell = ""
        """Why nobody needs to wait any longer."""
        self._here: dict[int, tuple[object, ...]] = {}
        self._change = threading.Condition()
        self._round = 0
        self._last: dict[int, tuple[object, ...]] = {}

    def meet(self, rank: int, said: tuple[object, ...], limit_s: float) -> dict[int, tuple[object, ...]]:
        """What every rank said, once all are there. timeout; communication where an earlier call failed."""
        end = time.monotonic() + limit_s
        with self._change:
            if self.broken:
                raise fail("communication", f"the group must be made anew: {self.broken}")
            mine, self._here[rank] = self._round, said
            if len(self._here) == self.ranks:
                self._last, self._here = self._here, {}
                self._round += 1
                self._change.notify_all()
            while self._round == mine:
                if self._fell:
                    raise fail("communication", f"another rank failed: {self._fell}")
                if not self._change.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                    self.broken = f"a rank did not come within {limit_s:g} s"
                    raise fail("timeout", self.broken)
            return self._last

    def give_up(self, why: str) -> None:
        """Nothing more is done together."""
        with self._change:
            self.broken = self._fell = self.broken or why
            self._change.notify_all()


class Communicator:
    """Collectives of one runtime's devices: rank r is device r."""

    def __init__(self, runtime: Runtime, ranks: int, limit_s: float) -> None:
        self._runtime, self._ranks, self._limit_s = runtime, ranks, limit_s
        self._meeting = Meeting(ranks)

    def call(self, rank: int, what: Collective, send: Pointer, receive: Pointer, stream: Stream) -> None:
        """Behind the work of the stream; the result is there when this returns. invalid_argument where the ranks do
        not call the same."""
        self._runtime.sync(stream, self._limit_s)
        said = self._meeting.meet(rank, (what.header, send), self._limit_s)
        if any(header != what.header for header, _ in said.values()):
            self._meeting.give_up("its ranks called different things")
            raise fail(
                "invalid_argument", f"ranks do not call the same: {sorted({str(one[0]) for one in said.values()})}"
            )
        sends = [said[one][1] for one in range(self._ranks)]
        size = what.elements * DTYPES[what.dtype].itemsize
        if size:
            _STEPS[what.name](self, rank, what, [one for one in sends if isinstance(one, Pointer)], receive, stream)
        self._meeting.meet(rank, (), self._limit_s)

    def _move(self, to: Pointer, source: Pointer, size: int) -> None:
        if (to.address, to.device) != (source.address, source.device):
            self._runtime.memcpy(to, source, size)

    def _all_gather(
        self, rank: int, what: Collective, sends: Sequence[Pointer], receive: Pointer, stream: Stream
    ) -> None:
        size = what.elements * DTYPES[what.dtype].itemsize
        for other, send in enumerate(sends):
            self._move(receive + other * size, send, size)

    def _broadcast(
        self, rank: int, what: Collective, sends: Sequence[Pointer], receive: Pointer, stream: Stream
    ) -> None:
        self._move(receive, sends[what.root], what.elements * DTYPES[what.dtype].itemsize)

    def _all_reduce(
        self, rank: int, what: Collective, sends: Sequence[Pointer], receive: Pointer, stream: Stream
    ) -> None:
        """Each rank sums one part, in the order of the ranks, and then all take all parts."""
        width = DTYPES[what.dtype].itemsize
        part = -(-what.elements // self._ranks)
        parts = [(at, max(0, min(part, what.elements - at))) for at in range(0, part * self._ranks, part)]
        at, count = parts[rank]
        own = self._runtime.malloc(max(1, count * width))
        try:
            if count:
                self._summed(what, [send + at * width for send in sends], own, count, stream)
            said = self._meeting.meet(rank, (own,), self._limit_s)
            for other, (start, length) in enumerate(parts):
                found = said[other][0]
                assert isinstance(found, Pointer)
                if length:
                    self._move(receive + start * width, found, length * width)
            self._meeting.meet(rank, (), self._limit_s)
        finally:
            self._give_back(own, stream)

    def _summed(self, what: Collective, sends: Sequence[Pointer], own: Pointer, count: int, stream: Stream) -> None:
        size = count * DTYPES[what.dtype].itemsize
        if what.op != "sum" or not self._adds(what.dtype):
            rows = []
            for send in sends:
                row = bytearray(size)
                self._runtime.memcpy(row, send, size)
                rows.append(bytes(row))
            self._runtime.memcpy(own, reduced(rows, what.dtype, what.op), size)
            return
        other = self._runtime.malloc(size)
        try:
            self._move(own, sends[0], size)
            for send in sends[1:]:
                self._move(other, send, size)
                self._add(what.dtype, own, other, count, stream)
        finally:
            self._give_back(other, stream)

    def _give_back(self, place: Pointer, stream: Stream) -> None:
        """Unless work that does not end may use it still."""
        if self._runtime.query(stream) == READY:
            self._runtime.free(place)

    def _adds(self, dtype: str) -> bool:
        table = self._runtime.device().ops.templates()
        return any(one.op == "add" and dtype in one.dtypes for one in table)

    def _add(self, dtype: str, own: Pointer, other: Pointer, count: int, stream: Stream) -> None:
        """own = own + other: kernels read all that they need before they write."""
        one = Operand((count,), DTYPES[dtype])
        kernel = self._runtime.kernel("add", (one, one), (one,))
        args = [pointer(own), pointer(other), pointer(own), Arg("f64", 1.0)]
        shape = self._runtime.launch_shape(kernel, args)
        self._runtime.launch(kernel, shape.grid, shape.block, args, 0, stream)
        self._runtime.sync(stream, self._limit_s)


_STEPS: dict[str, Callable[[Communicator, int, Collective, Sequence[Pointer], Pointer, Stream], None]] = {
    ALL_REDUCE: Communicator._all_reduce,
    ALL_GATHER: Communicator._all_gather,
    BROADCAST: Communicator._broadcast,
}
_CODES = {"fp32": "f", "fp16": "e", "int8": "b", "int32": "i", "uint8": "B"}


def reduced(rows: Sequence[bytes], dtype: str, op: str) -> bytes:
    """What no kernel does: the host's turn, element by element, in the order of the rows. not_supported for a type or
    an operation that nobody has asked for yet."""
    if dtype not in _CODES or op not in REDUCTIONS:
        raise fail("not_supported", f"all_reduce {op} of {dtype}")
    width = DTYPES[dtype].itemsize
    code = f"<{len(rows[0]) // width}{_CODES[dtype]}"
    columns = zip(*(struct.unpack(code, row) for row in rows), strict=True)
    if op == "sum":
        return struct.pack(code, *(_kept(reduce(lambda a, b: a + b, column), dtype) for column in columns))
    best = max if op == "max" else min
    return struct.pack(code, *(best(column) for column in columns))


def _kept(value: float, dtype: str) -> float:
    """Integers wrap."""
    if DTYPES[dtype].floating:
        return value
    bits = 8 * DTYPES[dtype].itemsize
    wrapped = int(value) % (1 << bits)
    signed = dtype != "uint8" and wrapped >= 1 << bits - 1
    return wrapped - (1 << bits) if signed else wrapped


class PortableGroup:
    """Ranks as threads of this process, each with a device of the runtime's."""

    def __init__(self, runtime: Runtime, ranks: int) -> None:
        self._runtime, self._ranks = runtime, ranks
        self._communicator: Communicator | None = None

    @property
    def ranks(self) -> int:
        """See Group."""
        return self._ranks

    def run(self, calls: Sequence[Collective | None], limit_s: float) -> list[Outcome]:
        """See Group."""
        shared = self._communicator = self._communicator or Communicator(self._runtime, self._ranks, limit_s)
        shared._limit_s = limit_s
        found = [
            Outcome("communication", message="it did not call")
            if one is None
            else Outcome("timeout", message="it hangs")
            for one in calls
        ]
        threads = [
            threading.Thread(target=self._one, args=(rank, one, shared, found), daemon=True)
            for rank, one in enumerate(calls)
            if one is not None
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 2 * limit_s + _GRACE_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in threads):  # it may not end for ever: the device does not come back
            shared._meeting.give_up("a rank did not come back")
        return list(found)

    def _one(self, rank: int, call: Collective, shared: Communicator, found: list[Outcome]) -> None:
        start = time.monotonic()
        try:
            found[rank] = Outcome("ok", self._called(rank, call, shared), "", time.monotonic() - start)
        except AccelError as error:
            if error.kind != "timeout":  # each rank waits for itself
                shared._meeting.give_up(error.message)
            found[rank] = Outcome(error.kind, b"", error.message, time.monotonic() - start)

    def _called(self, rank: int, call: Collective, shared: Communicator) -> bytes:
        runtime = self._runtime
        runtime.set_device(rank)
        size = call.elements * DTYPES[call.dtype].itemsize
        whole = size * (self._ranks if call.name == ALL_GATHER else 1)
        receive = runtime.malloc(max(1, whole))
        send, stream = receive, runtime.create_stream()
        try:
            if call.in_place:
                send = receive + (rank * size if call.name == ALL_GATHER else 0)
            else:
                send = runtime.malloc(max(1, size))
            runtime.memcpy(send, call.data, size)
            shared.call(rank, call, send, receive, stream)
            result = bytearray(whole)
            runtime.memcpy(result, receive, whole)
            return bytes(result)
        finally:
            with suppress(AccelError):  # work that does not end may use its memory still
                runtime.destroy_stream(stream, shared._limit_s)
                runtime.free(receive)
                runtime.free(None if call.in_place else send)

    def close(self) -> None:
        """See Group."""
        self._runtime.fini()
