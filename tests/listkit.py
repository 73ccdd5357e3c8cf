"""Pinned lists in tests: a session that has some, on the simulated chip with or without lists of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

import numpy as np

from accelctl.abi.queue import Ring
from accelctl.abi.schedule import Recorded
from accelctl.backends.sim.memory import MEMORY
from accelctl.backends.sim.schedule import SCHEDULE
from accelctl.errors import AccelError
from accelctl.umd.chip import Chip, Off
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal
from accelctl.umd.registrar import Limits
from accelctl.umd.service import Service
from tests.simkit import TARGET
from tests.umdkit import PATIENCE_S, QUICK, Array, Client, Kernels, device_files


class Counting:
    """sim's lists, counted."""

    def __init__(self) -> None:
        self.made = self.replays = self.closed = 0
        self.full = False

    def record(self, ring: Ring, blobs: Sequence[bytes]) -> Recorded:
        if self.full:
            raise AccelError("no room for another list", kind="out_of_resources")
        self.made += 1
        return CountedList(self, SCHEDULE.record(ring, blobs))


class CountedList:
    def __init__(self, counts: Counting, inner: Recorded) -> None:
        self.counts, self.inner, self.works = counts, inner, inner.works

    def replay(self) -> int:
        self.counts.replays += 1
        return self.inner.replay()

    def close(self) -> None:
        self.counts.closed += 1
        self.inner.close()


class Lists(Client):
    """A session with lists."""

    def pin(self, ops: Sequence[pb.OpRequest], name: str = "") -> pb.PinResponse:
        return self.service.pin(pb.PinRequest(session_id=self.number, name=name, ops=ops))

    def replay(self, number: int, *, retranslate: bool = False) -> pb.ReplayResponse:
        wanted = pb.ReplayRequest(session_id=self.number, list_id=number, retranslate=retranslate)
        return self.service.replay(wanted, PATIENCE_S)

    def unpin(self, number: int) -> None:
        self.service.unpin(pb.UnpinRequest(session_id=self.number, list_id=number))

    def ended(self, number: int) -> tuple[str, str]:
        """Reason and text of a list that is refused."""
        with pytest.raises(Refusal, match="is not valid any more") as caught:
            self.replay(number)
        assert (caught.value.field, caught.value.kind) == ("list_id", "invalid_state")
        _, _, rest = caught.value.message.partition("is not valid any more: ")
        reason, _, said = rest.partition(": ")
        return reason, said

    @property
    def level(self) -> pb.ListLevel:
        return self.service.telemetry().sessions[0].lists


@contextmanager
def listing(
    schedule: Any = None, limits: Limits = QUICK, kernels: Kernels | None = None, off: Off | None = None
) -> Iterator[Lists]:
    chip = Chip(MEMORY, kernels or Kernels(), TARGET, {}, schedule=schedule, off=off or Off())
    service = Service(chip, limits=limits)
    try:
        yield Lists(service)
    finally:
        service.close()
        assert device_files(service) == 0
        assert service.registrar.budget.held == 0


def three(client: Lists, x: pb.TensorDesc) -> tuple[list[pb.OpRequest], pb.TensorDesc]:
    """relu(x) -> y; y + y -> z; z + x -> out."""
    y, z, out = (client.alloc(list(x.shape)) for _ in range(3))
    ops = [
        client.request("relu", [x], outputs=[y]),
        client.request("add", [y, y], outputs=[z]),
        client.request("add", [z, x], outputs=[out]),
    ]
    return ops, out


def right(x: Array) -> Array:
    return np.asarray(2 * np.maximum(x, 0) + x)
