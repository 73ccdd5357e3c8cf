"""What a source of numbers is.

A source runs in the sampler's watched child: a read that never returns is named by the parent and set aside, so a
source reads nothing without having entered its path first. It knows one thing (the sensors of a device, the clients of
all of them, a service) and writes rows; what depends on several sources (unattributed memory, the busiest engine) is
put together when the draft becomes a Snapshot. Draft and Tick stand in accelctl.abi.telemetry, because chips write into
the same draft.
"""

from __future__ import annotations

from typing import Protocol

from accelctl.abi.telemetry import Draft, Tick

__all__ = ["Draft", "Plainly", "Source", "Tick"]


class Plainly(Exception):
    """A source has nothing in this tick, and its message says why in words for people."""


class Source(Protocol):
    """One source of numbers. Making one reads and opens nothing: that is for the child, at the first sample."""

    @property
    def name(self) -> str:
        """What it is called on screen: "fdinfo", "sensors", "service"."""

    def sample(self, draft: Draft, tick: Tick) -> None:
        """Add what it knows now. OSError of single files is an absence in the draft, not an exception."""

    def close(self) -> None:
        """Give descriptors back; safe to call twice."""
