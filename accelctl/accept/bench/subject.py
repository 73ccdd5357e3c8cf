"""What is measured: a device opened here, and a service of our own on it, with the memory that both may take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from accelctl.abi.lifecycle import Block, Env, Lifecycle, Session, Target
from accelctl.errors import AccelError, NoDeviceError
from accelctl.hal.devfile import SYSCALLS
from accelctl.memory.va import space

if TYPE_CHECKING:
    from accelctl.abi.handshake import Chip
    from accelctl.abi.queue import Ring
    from accelctl.umd.client import Client, ClientSession
    from accelctl.umd.echo import Echo

T = TypeVar("T")
KIB, MIB = 1 << 10, 1 << 20
MOST_BYTES, FREE_SHARE = 256 * MIB, 20
"""Of all that a run holds at one time: 256 MiB, and one part in 20 of what is free."""
SHARES = 8
"""Two blocks of the device here, two tensors of the service's, four buffers of the host."""
SPOTS, STAY = 16, 32
"""Places that a small copy takes by turns, and copies at each."""
DEPTH = 4
WAIT_S, DEADLINE_S = 60.0, 20.0


class Place(NamedTuple):
    """A block of the device, and how this process reaches it."""

    life: Lifecycle
    block: Block
    view: memoryview

    def write(self, data: memoryview, at: int = 0) -> None:
        """Put bytes into it, between the two calls that the driver wants around CPU accesses."""
        sync = self.life.sync
        if sync is not None:
            sync(self.block, True)
        try:
            self.view[at : at + len(data)] = data
        finally:
            if sync is not None:
                sync(self.block, False)

    def read(self, into: memoryview, at: int = 0) -> None:
        """Fill a buffer with what lies there."""
        sync = self.life.sync
        if sync is not None:
            sync(self.block, True)
        try:
            into[:] = self.view[at : at + len(into)]
        finally:
            if sync is not None:
                sync(self.block, False)


class Native:
    """The device itself, in this process and without any service. ``ring`` is None where the chip has no kernels."""

    def __init__(self, chip: Chip, target: Target) -> None:
        if chip.memory is None:
            raise NoDeviceError(f"{target.id}: chip {chip.manifest.name} has no memory to measure")
        self._held = ExitStack()
        env = Env(space=space)
        self.session: Session = chip.memory.open(target, env)
        self._held.callback(self.session.close)
        try:
            self.ring: Ring | None = None
            if chip.ops is not None:
                self.ring = chip.ops.open(self.session, DEPTH)
                self._held.callback(self.ring.close)
            self.life = self._life(chip)
        except BaseException:
            self._held.close()
            raise

    def _life(self, chip: Chip) -> Lifecycle | None:
        """Whose blocks are written and read: those of the kernels, else the first that the CPU can reach."""
        usable = [one for one in self.session.lifecycles if not one.unsupported]
        if chip.ops is not None:
            wanted = chip.ops.lifecycle()
            return next(one for one in usable if one.name == wanted)
        return next((one for one in usable if any(stage.kind == "cpu_map" for stage in one.stages)), None)

    def place(self, size: int, held: ExitStack) -> Place:
        """A block that lives as long as ``held``. AccelError or OSError where the driver refuses."""
        if self.life is None:
            raise NoDeviceError(f"{self.session.target.id}: the CPU reaches none of its memory")
        block = acquired(self.life, size, held)
        if block.map is None:
            raise AccelError(f"{self.life.name}: a block has no CPU mapping", kind="not_supported")
        view = memoryview(block.map)
        held.callback(view.release)
        return Place(self.life, block, view)

    def run(self, work: bytes) -> None:
        """One instruction, to its end."""
        assert self.ring is not None
        if not self.ring.wait(self.ring.submit(work), WAIT_S):
            raise AccelError(f"an instruction did not end in {WAIT_S:g} s", kind="timeout")

    def close(self) -> None:
        """Ring, then session."""
        self._held.close()


def acquired(life: Lifecycle, size: int, held: ExitStack) -> Block:
    """All stages of a block, released in reverse when ``held`` ends."""
    block = Block(size)
    for stage in life.stages:
        stage.acquire(block)
        if stage.release is not None:
            held.callback(stage.release, block)
    return block


class Subject:
    """One device, and everything that parts need of it; what is asked for is opened once, and closed with it."""

    def __init__(self, chip: Chip, target: Target, *, accelerator: bool, room: int) -> None:
        """room: bytes that may be held."""
        self.chip, self.target, self.accelerator = chip, target, accelerator
        self.largest = _power_of_two(max(64 * KIB, room // SHARES))
        """Bytes of the largest thing that is moved."""
        self._no_service: AccelError | None = None
        self.held = ExitStack()

    @cached_property
    def native(self) -> Native:
        """The device itself."""
        made = Native(self.chip, self.target)
        self.held.callback(made.close)
        return made

    @cached_property
    def places(self) -> tuple[Place, Place]:
        """Two blocks of the largest size."""
        return (self.native.place(self.largest, self.held), self.native.place(self.largest, self.held))

    @cached_property
    def host(self) -> tuple[memoryview, memoryview]:
        """Two buffers of the host whose pages are there, of the largest size."""
        return (self._pages(1), self._pages(2))

    @cached_property
    def spare(self) -> tuple[memoryview, memoryview]:
        """Two more, for plain copies that others are compared with."""
        return (self._pages(3), self._pages(4))

    def _pages(self, value: int) -> memoryview:
        """Whole pages. Where two buffers lie unlike within theirs, a processor may copy at a tenth of its speed (seen
        with 64 KiB on a Zen), and that would be taken for the device's."""
        view = memoryview(SYSCALLS.map(-1, self.largest, 0))  # unmapped with the last slice of it
        view[:] = bytes([value]) * self.largest
        return view

    def plain_copy(self, size: int) -> Callable[[], None]:
        """So many bytes from one buffer of the host to another."""
        source, into = self.spare
        spots = turning([(source[at : at + size], into[at : at + size]) for at in self.starts(size)])

        def copy() -> None:
            one, other = next(spots)
            other[:] = one

        return copy

    def starts(self, size: int) -> list[int]:
        """Where something of that size is put by turns within the largest: pages that happen to share sets of a cache
        make a copy a tenth slower, in one run and not in the next."""
        return list(range(0, self.largest - size + 1, max(size, self.largest // SPOTS)))

    @property
    def computes(self) -> bool:
        """It has kernels, so a service can be had."""
        return self.chip.ops is not None

    @cached_property
    def client(self) -> Client:
        """Of a service of our own in another process. One that does not start is not tried again."""
        from accelctl.smoke.ownservice import OwnService
        from accelctl.umd.client import Client

        if self._no_service is not None:
            raise self._no_service
        try:
            service = self.held.enter_context(OwnService(self.target.id))
        except AccelError as error:
            self._no_service = error
            raise
        return self.held.enter_context(Client(service.address, deadline_s=DEADLINE_S))

    @cached_property
    def session(self) -> ClientSession:
        """A session of it."""
        return self.held.enter_context(self.client.session())

    @cached_property
    def tensors(self) -> tuple[Any, Any]:
        """Two pieces of the session's memory, of the largest size."""
        return (self.session.alloc_bytes(self.largest), self.session.alloc_bytes(self.largest))

    @cached_property
    def echo(self) -> Echo:
        """gRPC with nothing behind it."""
        from accelctl.umd.echo import Echo

        return self.held.enter_context(Echo())

    def close(self) -> None:
        """Everything that was opened, in reverse."""
        self.held.close()


def turning(spots: Sequence[T]) -> Iterator[T]:
    """Each of them so many times, without end: often enough to be in the caches."""
    return cycle([one for one in spots for _ in range(STAY)])


def _power_of_two(size: int) -> int:
    return 1 << (size.bit_length() - 1)
