"""The small transformer's machine (smoke.machine) with pinned lists: what a decode loop can make of them.

Between ``begin`` and ``get`` ops are only taken down. The n-th tensor of a step lies where the n-th of the step before
lay, so most ops are the same requests again; those that differ (keys and values go to another slot of the cache) are
found by comparing. What is equal in a row is a pinned list, the rest a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accelctl.abi.opset import OPS
from accelctl.smoke.machine import Placed, ServiceMachine
from accelctl.smoke.numbers import Array
from accelctl.umd.client import ClientSession
from accelctl.umd.pins import Pinned


class PinnedMachine(ServiceMachine):
    """See smoke.decode.Machine. ``sent``: messages by kind."""

    def __init__(self, session: ClientSession, kernels: Callable[[Any], list[tuple[str, str]]]) -> None:
        super().__init__(session, kernels)
        self.sent: Counter[str] = Counter()
        self._kept: list[Placed] = []
        self._at = -1
        """The next tensor of a step; below 0: no step, every op goes out at once."""
        self._ops: list[bytes] = []
        self._before: list[bytes] = []
        self._lists: dict[tuple[bytes, ...], Pinned] = {}

    def begin(self) -> None:
        """A step begins."""
        self._at, self._ops = 0, []

    def _new(self, shape: Sequence[int], dtype: str) -> Placed:
        if self._at < 0:
            return super()._new(shape, dtype)
        if self._at == len(self._kept):
            self.sent["alloc"] += 1
            self._kept.append(super()._new(shape, dtype))
        self._at += 1
        kept = self._kept[self._at - 1]
        assert (kept.shape, kept.dtype) == (tuple(shape), dtype), "another step than the one before"
        return kept

    def put(self, array: Array) -> Placed:
        """See Machine."""
        self.sent["write"] += 1
        return super().put(array)

    def run(
        self, op: str, inputs: Mapping[str, Placed], attrs: Mapping[str, str], outputs: Mapping[str, Placed]
    ) -> Mapping[str, Placed]:
        """See Machine."""
        if self._at < 0:
            self.sent["translate"] += 1
            return super().run(op, inputs, attrs, outputs)
        table, found = OPS[op], dict(outputs)
        for operand in table.outputs:
            if operand.name not in found and not operand.optional:
                found[operand.name] = self._new(_shape(op, inputs), next(iter(inputs.values())).dtype)
        given = [inputs[one.name].desc if one.name in inputs else None for one in table.inputs]
        wanted = [found[one.name].desc if one.name in found else None for one in table.outputs]
        self._ops.append(self._session.request(op, given, wanted, attrs).SerializeToString(deterministic=True))
        return found

    def get(self, tensor: Placed) -> Array:
        """See Machine: the step is over."""
        if self._at >= 0:
            self._flush()
            self._at = -1
        self.sent["read"] += 1
        return super().get(tensor)

    def _flush(self) -> None:
        same = [one == other for one, other in zip(self._ops, self._before, strict=True)] if self._before else []
        at = 0
        while at < len(self._ops):
            end = at + 1
            while same and end < len(self._ops) and same[end] == same[at]:
                end += 1
            part = self._ops[at : end if same else len(self._ops)]
            if same and same[at]:
                self._replay(tuple(part))
            else:
                self._batch(part)
            at += len(part)
        self._before = self._ops

    def _replay(self, part: tuple[bytes, ...]) -> None:
        if part not in self._lists:
            self.sent["pin"] += 1
            self._lists[part] = self._session.pin([_parsed(one) for one in part])
        self.sent["replay"] += 1
        self._fence = self._lists[part].replay()

    def _batch(self, part: Sequence[bytes]) -> None:
        ops = [_parsed(one) for one in part]
        for one in ops:
            one.submit = True
        self.sent["batch"] += 1
        answer = self._session.batch(ops)
        assert not answer.status.code, answer.status.message
        self._fence = answer.responses[-1].fence


def _parsed(raw: bytes) -> Any:
    from accelctl.umd.proto import umd_pb2 as pb

    return pb.OpRequest.FromString(raw)


def _shape(op: str, inputs: Mapping[str, Placed]) -> tuple[int, ...]:
    """Of the result of an op of the decode loop."""
    first, *rest = inputs.values()
    if op == "matmul":
        return (*first.shape[:-1], rest[0].shape[-1])
    if op == "silu_and_mul":
        return (*first.shape[:-1], first.shape[-1] // 2)
    return first.shape
