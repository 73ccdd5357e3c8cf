"""The Ops contract: kernels that a chip has, and a ring that runs instructions.

A chip describes its kernels as templates; the service picks the first one that takes a call, and where none takes its
element types or layout, puts ``copy`` kernels around one that takes others. So ``copy`` is the one kernel that every
chip with ops must have.

Data get in and out through the Memory contract: a block whose lifecycle has a ``cpu_map`` is written and read through
``Block.map``, between ``Lifecycle.sync(block, True)`` and ``sync(block, False)`` where the lifecycle has that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from accelctl.abi.call import Call
from accelctl.abi.condition import Conditions
from accelctl.abi.launch import Launch
from accelctl.abi.lifecycle import Session, Target
from accelctl.abi.queue import Ring


class Template(NamedTuple):
    """One kernel of a chip."""

    kernel_id: int
    """In instructions; 1 or more, once per chip."""
    name: str
    op: str
    """A key of abi.opset.OPS."""
    dtypes: frozenset[str]
    """Element types of the op's first input that it takes; the other floating operands have the same."""
    launch: Callable[[Call], Launch]
    """Blocks and threads for a call."""
    strided: bool = True
    """Whether operands may have gaps or be transposed; otherwise all must be dense."""
    refuses: Callable[[Call], str] | None = None
    """Why it cannot take a call (its shapes, attributes); empty where it can."""
    tile: tuple[int, ...] = ()
    """What one block computes, for people."""
    conditions: Conditions | None = None
    """When it may be used, as data (abi.condition), beside ``refuses``, which may know more."""
    fallback: str = ""
    """Of a special kernel, the name of the general one that is used where it is not: only who has evidence for a
    special kernel uses it, and its row stands behind that of its fallback."""


class Device(NamedTuple):
    """A device of the chip on this machine."""

    target: Target
    title: str
    """For people: the device's own name, and whose driver it is."""
    accelerator: bool
    """False for a CPU or a simulation: only taken when it is asked for by name."""
    flushes: bool = False
    """By its own word it takes fp32 numbers below the smallest normal one as 0."""


class Ops(Protocol):
    """What a chip that computes offers.

    It may also have ``prepare(target)``, for what takes long once on a device, as building kernels does: the service
    calls it before it takes requests, whose deadlines do not allow for that; ``versions(target, template)``, name and
    version of all that a kernel's results depend on there (driver, compiler, its own source); and ``offers(target)``,
    what the device has of what kernels may need (abi.condition.Offers).
    """

    def devices(self) -> tuple[Device, ...]:
        """What of it is here, ``<chip>:<n>`` in order. NoDeviceError, naming what to install, where a package is
        missing."""

    def templates(self) -> tuple[Template, ...]:
        """Its kernels; the first one that takes a call is used."""

    def lifecycle(self) -> str:
        """Name of the Memory lifecycle whose blocks its kernels use: one with an address and a cpu_map."""

    def open(self, session: Session, depth: int) -> Ring:
        """A ring of a session of the same chip. ``submit(blob)`` takes an instruction (abi.blob) and runs it in order;
        UsageError for one that the device cannot read or whose addresses it cannot reach. A failure while it runs
        loses the ring (DeviceUnusable)."""


def elementwise_launch(elements: int, threads: int = 256) -> Launch:
    """One thread an element, folded into as many blocks as there may be; the kernel strides over the rest."""
    blocks = max(1, -(-elements // threads))
    return Launch((min(blocks, 1 << 24), 1, 1), (threads, 1, 1))


def tiled_launch(rows: int, columns: int, batch: int, tile: tuple[int, int] = (16, 16)) -> Launch:
    """One block a tile of the output; what exceeds the grid is strided over."""
    grid = (
        min(max(1, -(-columns // tile[1])), 1 << 24),
        min(max(1, -(-rows // tile[0])), 1 << 16),
        min(max(1, batch), 1 << 12),
    )
    return Launch(grid, (tile[1], tile[0], 1))
