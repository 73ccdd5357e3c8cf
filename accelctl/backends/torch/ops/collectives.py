"""Collectives of PyTorch: ``torch.distributed`` with gloo, one process for each rank, over the loopback.

gloo's answer to calls that do not fit each other is a broken connection at best, and to a rank that does not call it is
a timeout somewhere inside. So the ranks first leave what they are about to call in the store that they met in, and
nothing moves before everybody's is there and equal.
"""

from __future__ import annotations

import base64
import datetime
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelctl.abi.runtime.collectives import ALL_GATHER, BROADCAST, Collective, Outcome
from accelctl.abi.runtime.failure import fail
from accelctl.abi.tensors import DTYPES
from accelctl.errors import AccelError
from accelctl.hal.worker import Gone, Wire, Worker

_MODULE = "accelctl.backends.torch.ops.collectives"
_START_S, _SLACK_S, _LOOK_S = 120.0, 10.0, 0.005


class GlooGroup:
    """See abi.runtime.collectives.Group."""

    def __init__(self, ranks: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="accelctl-gloo-")
        place = str(Path(self._folder.name) / "store")
        environ = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        self._workers = [Worker(_MODULE, [place, str(rank), str(ranks)], environ) for rank in range(ranks)]
        try:
            for rank, worker in enumerate(self._workers):
                said = self._heard(worker, _START_S)
                if said.kind != "ok":
                    raise fail(said.kind, f"rank {rank} does not start: {said.message}")
        except BaseException:
            self.close()
            raise

    @property
    def ranks(self) -> int:
        """How many."""
        return len(self._workers)

    def run(self, calls: Sequence[Collective | None], limit_s: float) -> list[Outcome]:
        """Each rank's call; a rank that dies is an outcome too."""
        found = [Outcome("communication", message="it did not call")] * self.ranks
        told = []
        for rank, (worker, call) in enumerate(zip(self._workers, calls, strict=True)):
            if call is None:
                continue
            try:
                worker.tell([call.name, *call[2:], base64.b64encode(call.data).decode(), limit_s])
                told.append(rank)
            except Gone as gone:
                found[rank] = Outcome("communication", message=f"its process is gone: {gone}")
        for rank in told:
            found[rank] = self._heard(self._workers[rank], 2 * limit_s + _SLACK_S)
        return found

    def _heard(self, worker: Worker, timeout_s: float) -> Outcome:
        try:
            said = worker.hear(timeout_s)
        except Gone as gone:
            return Outcome("communication", message=f"its process is gone: {gone}")
        if said is None:
            return Outcome("timeout", message=f"no answer after {timeout_s:g} s", seconds=timeout_s)
        kind, data, message, seconds = said
        return Outcome(kind, base64.b64decode(data), message, seconds)

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()
        self._folder.cleanup()


# -- a rank's side --


def main(wire: Wire, arguments: Sequence[str]) -> None:
    """Meet, then call what is told."""
    place, rank, ranks = arguments[0], int(arguments[1]), int(arguments[2])
    try:
        member = _Member(place, rank, ranks)
    except (RuntimeError, ImportError, OSError, ValueError) as error:
        wire.send(("communication", "", _line(error), 0.0))
        return
    wire.send(("ok", "", "", 0.0))
    while True:
        *fields, data, limit_s = wire.receive()
        wire.send(member.answer(_call(fields, data), limit_s))


def _call(fields: Sequence[Any], data: str) -> Collective:
    name, *rest = fields
    return Collective(name, base64.b64decode(data), *rest)


class _Member:
    def __init__(self, place: str, rank: int, ranks: int) -> None:
        import torch.distributed

        self._dist: Any = torch.distributed
        self._rank, self._ranks, self._round, self._broken = rank, ranks, 0, ""
        store = torch.distributed.FileStore(place, ranks)
        wait = datetime.timedelta(seconds=_START_S)
        self._dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=wait)
        self._store: Any = self._dist.PrefixStore("accelctl", store)

    def answer(self, call: Collective, limit_s: float) -> tuple[str, str, str, float]:
        """Kind, data in base 64, message, seconds."""
        start = time.monotonic()
        try:
            if self._broken:
                raise fail("communication", f"the group must be made anew: {self._broken}")
            self._meet(call, limit_s)
            data = base64.b64encode(self._called(call)).decode() if call.elements else ""
            return "ok", data, "", time.monotonic() - start
        except AccelError as error:
            self._broken = self._broken or error.message
            return error.kind, "", error.message, time.monotonic() - start
        except RuntimeError as error:
            self._broken = self._broken or _line(error)
            return "communication", "", _line(error), time.monotonic() - start

    def _meet(self, call: Collective, limit_s: float) -> None:
        """Everybody is here, and calls the same. timeout, invalid_argument."""
        self._round += 1
        keys = [f"{self._round}/{rank}" for rank in range(self._ranks)]
        self._store.set(keys[self._rank], repr(call.header))
        end = time.monotonic() + limit_s
        while not self._store.check(keys):  # the store's own wait looks once a second
            if time.monotonic() > end:
                raise fail("timeout", f"a rank did not come within {limit_s:g} s")
            time.sleep(_LOOK_S)
        said = {self._store.get(key).decode() for key in keys}
        if len(said) > 1:
            raise fail("invalid_argument", f"ranks do not call the same: {', '.join(sorted(said))}")

    def _called(self, call: Collective) -> bytes:
        import torch

        from accelctl.backends.torch.ops.numeric import TYPES

        dtype = TYPES[call.dtype]
        width = DTYPES[call.dtype].itemsize
        mine = torch.frombuffer(bytearray(call.data[: call.elements * width]), dtype=dtype)
        if call.name == ALL_GATHER:
            whole = torch.empty(call.elements * self._ranks, dtype=dtype)
            if call.in_place:
                part = whole[self._rank * call.elements : (self._rank + 1) * call.elements]
                part.copy_(mine)
                mine = part
            self._dist.all_gather(list(whole.chunk(self._ranks)), mine)
            mine = whole
        elif call.name == BROADCAST:
            self._dist.broadcast(mine, call.root)
        else:
            reductions = self._dist.ReduceOp
            which = {"sum": reductions.SUM, "max": reductions.MAX, "min": reductions.MIN}[call.op]
            self._dist.all_reduce(mine, which)
        return bytes(mine.view(torch.uint8).numpy().tobytes())


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
