"""Where Snapshots come from, for whoever shows them: a live machine, a recording, a demonstration."""

from __future__ import annotations

from typing import Protocol

from accelctl.model.snapshot import Snapshot


class Feed(Protocol):
    """A stream of Snapshots. Never blocks for longer than it was asked to, whatever a driver does."""

    @property
    def title(self) -> str:
        """What is watched: "this machine", "recording FILE", "demo (simulated)"."""

    @property
    def seekable(self) -> bool:
        """Whether ``seek`` works: recordings only."""

    def poll(self, timeout_s: float) -> Snapshot | None:
        """The next Snapshot, or None after so many seconds."""

    def seek(self, seconds: float) -> Snapshot | None:
        """The last Snapshot at or before so many seconds after the first one."""

    def close(self) -> None:
        """End children and give descriptors back; safe to call twice."""
