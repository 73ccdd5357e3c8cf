"""A session's pinned lists: ops whose shapes and places are fixed, kept translated, found again and run as a whole.

A list is valid as long as nothing that it was made of has changed. What ends it is said to whoever asks for it then:

    ops, shape, strides, dtype, attrs, place    other ops were pinned under its name; the first difference
    memory                                      a tensor that it names was freed
    switch, kernels                             an op or a kernel was switched off or on, the choice of kernels changed
    device                                      the device failed
    room                                        others were pinned since, and there is only so much room
    client                                      it was unpinned
    session                                     its session was closed
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from accelctl.abi.opset import BY_CODE as OPS
from accelctl.abi.schedule import Recorded
from accelctl.abi.tensors import BY_CODE as DTYPES
from accelctl.umd.memory import Allocation
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal

REASONS = (
    "ops",
    "shape",
    "strides",
    "dtype",
    "attrs",
    "place",
    "memory",
    "switch",
    "kernels",
    "device",
    "room",
    "client",
    "session",
)
AGAIN = frozenset({"switch", "kernels", "room"})
"""Reasons after which translating the same ops again makes sense."""
_REMEMBERED = 1024
"""Lists that are gone, of which is known why."""
Key = tuple[bytes, ...]
"""The ops of a list, each as the bytes of its request."""


class Translated(NamedTuple):
    """What was made of a list's ops."""

    blobs: tuple[bytes, ...]
    allocations: tuple[Allocation, ...]
    launches: tuple[tuple[str, int], ...]
    answers: tuple[pb.OpResponse, ...]
    placed: Key
    """The ops, each result with its place."""
    recorded: Recorded | None
    """On the chip; None: it takes one instruction after the other."""


class Pinned:
    """One list that is valid."""

    def __init__(self, number: int, name: str, key: Key, made: Translated) -> None:
        self.number, self.name, self.key, self.made = number, name, key, made
        self.uses = frozenset(made.allocations)
        self.size = sum(map(len, (*made.blobs, *key, *made.placed))) + sum(one.ByteSize() for one in made.answers)


class Ended(NamedTuple):
    """A list that is not valid any more."""

    reason: str
    text: str
    name: str
    placed: Key
    uses: frozenset[Allocation]
    """Without any of these it cannot be translated again: others may lie at their addresses."""


class Lists:
    """Not locked: the session's lock is held by whoever calls. ``most`` lists, ``most_bytes`` all together."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self.size = 0
        self.counts: Counter[str] = Counter()
        """pinned, hits, replays; and ``ended:REASON``."""
        self._serial = 0
        self._by_number: OrderedDict[int, Pinned] = OrderedDict()
        """The least recently used one first."""
        self._by_key: dict[Key, Pinned] = {}
        self._by_name: dict[str, Pinned] = {}
        self._ended: OrderedDict[int, Ended] = OrderedDict()
        self._spare = 0
        """Bytes of ops of ended lists, for those who ask to have them translated again."""

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, name: str, key: Key) -> Pinned | None:
        """The list of these ops under this name, if it is there."""
        found = self._by_key.get(key)
        if found is None or found.name != name:
            return None
        self.counts["hits"] += 1
        self._by_number.move_to_end(found.number)
        return found

    def add(self, name: str, key: Key, made: Translated, number: int = 0) -> Pinned:
        """Keep a new list (``number``: one that was ended, again), in place of what had its name or its ops. Refusal
        for one that has no room even alone."""
        if not number:
            self._serial += 1
        pinned = Pinned(number or self._serial, name, key, made)
        if pinned.size > self.most_bytes:
            close(made.recorded)
            text = f"the list has {pinned.size} bytes, all lists of a session have room for {self.most_bytes}"
            raise Refusal("ops", text, "out_of_resources", "pin fewer ops")
        before = self._by_name.get(name) if name else None
        if before is not None:
            self.end(before, *difference(before.key, key))
        if key in self._by_key:
            self.end(self._by_key[key], "ops", f"its ops were pinned again, as {name or 'a list without a name'}")
        while len(self) >= self.most or self.size + pinned.size > self.most_bytes:
            oldest = next(iter(self._by_number.values()))
            self.end(
                oldest, "room", f"{self.most} lists or {self.most_bytes} bytes are kept, and others were used since"
            )
        self._by_number[pinned.number] = self._by_key[key] = pinned
        if name:
            self._by_name[name] = pinned
        self.size += pinned.size
        self._forget(pinned.number)
        return pinned

    def use(self, number: int) -> Pinned | Ended:
        """A list, or why it is not valid any more. Refusal for one that nobody knows."""
        found = self._by_number.get(number)
        if found is not None:
            self._by_number.move_to_end(number)
            return found
        ended = self._ended.get(number)
        if ended is not None:
            return ended
        known = 0 < number <= self._serial
        text = f"{number}: this list ended long ago" if known else f"{number}: this session never had such a list"
        raise Refusal("list_id", text, "invalid_state" if known else "invalid_handle", "pin the ops again")

    def end(self, pinned: Pinned, reason: str, text: str) -> None:
        """It is not valid any more."""
        del self._by_number[pinned.number], self._by_key[pinned.key]
        if self._by_name.get(pinned.name) is pinned:
            del self._by_name[pinned.name]
        self.size -= pinned.size
        self.counts[f"ended:{reason}"] += 1
        placed = pinned.made.placed if reason in AGAIN else ()
        self._spare += sum(map(len, placed))
        self._ended[pinned.number] = Ended(reason, text, pinned.name, placed, pinned.uses if placed else frozenset())
        while len(self._ended) > _REMEMBERED or self._spare > self.most_bytes:
            self._forget(next(iter(self._ended)))
        close(pinned.made.recorded)

    def _forget(self, number: int) -> None:
        gone = self._ended.pop(number, None)
        if gone is not None:
            self._spare -= sum(map(len, gone.placed))

    def freed(self, allocation: Allocation) -> None:
        """Memory is about to go."""
        text = f"tensor {allocation.number}, which it names, was freed"
        for one in [one for one in self._by_number.values() if allocation in one.uses]:
            self.end(one, "memory", text)
        for number, ended in list(self._ended.items()) if self._spare else ():  # 0: none keeps what it could be made of
            if allocation in ended.uses:
                self._spare -= sum(map(len, ended.placed))
                self._ended[number] = Ended("memory", text, ended.name, (), frozenset())

    def end_all(self, reason: str, text: str) -> None:
        """None is valid any more."""
        for one in list(self._by_number.values()):
            self.end(one, reason, text)

    def level(self) -> pb.ListLevel:
        """As the protocol says it."""
        return level(self.counts, len(self), self.size)


def close(recorded: Recorded | None) -> None:
    """Give a chip's list back. What goes wrong with that concerns nobody: it goes with its queue."""
    if recorded is not None:
        try:
            recorded.close()
        except Exception:
            pass


def level(counts: Counter[str], lists: int = 0, size: int = 0) -> pb.ListLevel:
    """Counts and levels, as the protocol says them."""
    ended = {name.partition(":")[2]: count for name, count in counts.items() if name.startswith("ended:")}
    return pb.ListLevel(
        lists=lists,
        bytes=size,
        pinned=counts["pinned"],
        hits=counts["hits"],
        replays=counts["replays"],
        ended=ended,
    )


def difference(before: Sequence[bytes], after: Sequence[bytes]) -> tuple[str, str]:
    """The first difference between the ops of two lists: its reason, and a line."""
    for at, (old, new) in enumerate(zip(before, after, strict=False)):
        if old != new:
            return _of_op(f"ops[{at}]", pb.OpRequest.FromString(old), pb.OpRequest.FromString(new))
    return "ops", f"{len(before)} ops became {len(after)}"


def _of_op(where: str, old: pb.OpRequest, new: pb.OpRequest) -> tuple[str, str]:
    if old.op_type != new.op_type:
        names = [OPS[one.op_type].name if one.op_type in OPS else str(one.op_type) for one in (old, new)]
        return "ops", f"{where}: {names[0]} became {names[1]}"
    if old.attrs != new.attrs:
        changed = sorted(name for name in {*old.attrs, *new.attrs} if old.attrs.get(name) != new.attrs.get(name))
        name = changed[0]
        return "attrs", f"{where}.attrs: {name} {old.attrs.get(name, '-')} became {new.attrs.get(name, '-')}"
    for side in ("inputs", "outputs"):
        ones, others = getattr(old, side), getattr(new, side)
        for at, (one, other) in enumerate(zip(ones, others, strict=False)):
            if one != other:
                return _of_tensor(f"{where}.{side}[{at}]", one, other)
        if len(ones) != len(others):
            return "ops", f"{where}.{side}: {len(ones)} became {len(others)}"
    return "ops", f"{where}: another request"


def _of_tensor(where: str, one: pb.TensorDesc, other: pb.TensorDesc) -> tuple[str, str]:
    for reason, field in (("shape", "shape"), ("dtype", "data_type"), ("strides", "strides")):
        old, new = getattr(one, field), getattr(other, field)
        if old != new:
            if field == "data_type":
                old, new = (DTYPES[n].name if n in DTYPES else n for n in (old, new))
            else:
                old, new = list(old), list(new)
            return reason, f"{where}.{field}: {old} became {new}"
    return "place", f"{where}: another place"
