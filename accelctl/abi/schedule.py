"""The Schedule contract: a list of instructions that a chip takes in once and runs as a whole, as often as wanted (a
command list, a graph). Since ABI 2.

    recorded = schedule.record(ring, blobs)     everything is read and checked here, and nothing is run
    point = recorded.replay()                   one work of the ring: it takes one place, and has one fence point
    recorded.close()

What is bound, and what is not. A list names addresses, as instructions do, and there is no way to put others in: a list
for other addresses, shapes or attributes is another list. It does not keep memory alive. Whoever frees memory that a
list names ends the list first; a chip refuses to replay one whose memory it cannot reach any more, and cannot know of
memory that was freed and handed out again at the same address.

Chips without this contract lose nothing but time: the service submits the instructions of a list one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from accelctl.abi.queue import Ring
from accelctl.errors import AccelError


class ListClosed(AccelError):
    """The list was closed."""

    default_kind = "invalid_state"


class Recorded(Protocol):
    """A list on one ring. May be used by several threads."""

    @property
    def works(self) -> int:
        """Instructions in it."""

    def replay(self) -> int:
        """Hand all of it to its ring as one work; the point that is passed when the last instruction is done. They run
        in order, after what was submitted before and before what is submitted after. Never waits.

        ListClosed; UsageError where memory that it names cannot be reached any more; and as Ring.submit QueueFull,
        QueueClosed, DeviceUnusable: there is no point then, and nothing of it runs. Where an instruction fails while it
        runs, the ring is lost, and the list's point is never passed.
        """

    def close(self) -> None:
        """Give it back; what of it is in flight runs to its end. Safe to call twice, and after its ring was closed."""


class Schedule(Protocol):
    """What a chip with lists offers. It has Ops as well."""

    def record(self, ring: Ring, blobs: Sequence[bytes]) -> Recorded:
        """Take in instructions (abi.blob) for a ring that this chip's ``Ops.open`` gave.

        UsageError for an empty list, for a ring of somebody else, and for whatever Ring.submit would refuse about an
        instruction, which is named as ``blobs[3]: ...``; QueueClosed, DeviceUnusable for a ring that takes nothing any
        more; AccelError (out_of_resources) where the chip has no room for another list, or for one so long. Nothing is
        kept then.
        """
