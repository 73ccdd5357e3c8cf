"""The table of assertions, and what each of them runs on.

An assertion is ``<intent>/<n>``: the n-th test of that intent in the contract (docs/semantics.md). It passes when it
was exercised and held; what a device declares absent is asked for all the same, and must answer not_supported at the
call, before it counts as skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import Env, Target
from accelctl.abi.runtime import Runtime, Stream
from accelctl.abi.runtime.collectives import Group, PortableGroup
from accelctl.abi.runtime.failure import NoKernel
from accelctl.abi.runtime.kernels import CERTAIN
from accelctl.abi.semantics.burn import Burner
from accelctl.abi.testbench import Check, Wrong, said
from accelctl.errors import AccelError

T = TypeVar("T")
OWN_PROCESS = frozenset({"error_sticky", "device_reset", "coll_errors", "fork_safety"})
"""Intents each of whose assertions may end what it runs in; beside them, one assertion makes a kernel fault."""
_POISONS = frozenset({"device_sync/2"})


class Absent(Exception):
    """The device does not have what the assertion is about; one line."""


class Place(NamedTuple):
    """Where assertions run. ``targets`` are devices that may be used together, the one that was asked for first.

    ``leave`` starts a process that initialises, computes and ends without a word; how it ended, if not well. ``make``
    is what makes a runtime: a test gives a broken one.
    """

    chip: Chip
    targets: tuple[Target, ...]
    env: Env
    leave: Callable[[], str] | None = None
    make: Callable[..., Runtime] = Runtime
    ranks: int = 4
    kept: list[Group] | None = None
    """Ranks that several assertions use, one after the other; whoever made the list closes them. None: each its own."""


class Bench:
    """What one assertion holds; given back at its end."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._runtimes: list[Runtime] = []
        self._groups: list[Group] = []
        self._burners: dict[int, Burner] = {}

    def raw(self) -> Runtime:
        """A runtime that nothing was called of."""
        made = self.place.make(self.place.chip, self.place.targets, self.place.env)
        self._runtimes.append(made)
        return made

    def runtime(self) -> Runtime:
        """Initialised, with the first device selected in this thread."""
        made = self.raw()
        made.init()
        made.set_device(0)
        return made

    def two_devices(self) -> Runtime:
        """The same; Absent where there is only one device."""
        if len(self.place.targets) < 2:
            raise Absent("it needs two devices, and this chip has one here")
        return self.runtime()

    def group(self, fresh: bool = False) -> Group:
        """Ranks: the chip's own, or made here of several sessions. ``fresh``: nobody else has used them, or will."""
        kept = None if fresh else self.place.kept
        if kept:
            return kept[0]
        made = self._group()
        (self._groups if kept is None else kept).append(made)
        return made

    def _group(self) -> Group:
        place, ops = self.place, self.place.chip.ops
        own = getattr(ops, "group", None)
        if own is not None:
            group: Group = own(place.targets[0], place.ranks)
            return group
        runtime = place.make(place.chip, place.targets[:1] * place.ranks, place.env)
        runtime.init()
        return PortableGroup(runtime, place.ranks)

    def burn(self, runtime: Runtime, stream: Stream, seconds: float) -> float:
        """Keep a stream busy for at least so long; by how many seconds of the device's clock it was measured to."""
        burner = self._burners.setdefault(id(runtime), Burner(runtime))
        return burner.burn(stream, seconds)

    def behind(self, runtime: Runtime, stream: Stream, seconds: float, call: Callable[[], T]) -> T:
        """What a call comes to while a stream is busy with work of so many seconds, which is then waited for. A busy
        machine may keep us until that work is over: the first of five tries counts that saw it go on. Wrong."""
        for _ in range(5):
            self.burn(runtime, stream, seconds)
            found = call()
            pending = stream.look() < stream.last
            runtime.sync(stream)
            if pending:
                return found
        raise Wrong(f"work of {seconds * 1e3:.0f} ms was over when the call behind it came back")

    def ready(self, runtime: Runtime) -> None:
        """What burns was measured, so that the next burn is put into its stream at once."""
        self._burners.setdefault(id(runtime), Burner(runtime)).measure()

    def took(self, runtime: Runtime, call: Callable[[], object]) -> float:
        """Seconds that a call kept its caller, by the clock of the host or of the device, whichever says more."""
        clock = runtime.device().clock
        host, device = time.monotonic(), clock()
        call()
        return max(time.monotonic() - host, clock() - device)

    def leave(self) -> None:
        """Give everything back."""
        for group in self._groups:
            with suppress(AccelError, OSError):
                group.close()
        for runtime in self._runtimes:
            with suppress(AccelError, OSError):
                runtime.fini()


Body = Callable[[Bench], "str | None"]


class Assertion(NamedTuple):
    """One of the contract's tests. ``body`` returns what was seen, in a few words; Wrong, Absent."""

    id: str
    intent: str
    what: str
    body: Body

    @property
    def own_process(self) -> bool:
        """Whether it leaves nothing behind that others could use."""
        return self.intent in OWN_PROCESS or self.id in _POISONS


ASSERTIONS: dict[str, Assertion] = {}
"""By id, in the order of the modules."""


def asserts(intent: str, number: int, what: str) -> Callable[[Body], Body]:
    """Put a function into the table."""

    def put(body: Body) -> Body:
        identity = f"{intent}/{number}"
        if identity in ASSERTIONS:
            raise ValueError(f"{identity} is there twice")
        ASSERTIONS[identity] = Assertion(identity, intent, what, body)
        return body

    return put


def carry_out(one: Assertion, place: Place) -> Check:
    """Run it, here and now."""
    bench = Bench(place)
    try:
        detail = one.body(bench)
    except Absent as error:
        return Check(one.id, "skip", str(error))
    except NoKernel as error:  # without copies there is no runtime
        return Check(one.id, "fail" if error.op == CERTAIN else "skip", str(error))
    except Wrong as error:
        return Check(one.id, "fail", str(error))
    except Exception as error:
        return Check(one.id, "fail", said(error))
    finally:
        bench.leave()
    return Check(one.id, "pass", detail or "")


# -- words of assertions --


def refused(kind: str | Iterable[str], call: Callable[[], object], what: str) -> str:
    """The call must fail with that kind (one of those); the kind. Wrong."""
    kinds = (kind,) if isinstance(kind, str) else tuple(kind)
    try:
        found = call()
    except AccelError as error:
        if error.kind in kinds:
            return error.kind
        raise Wrong(f"{what}: {error.kind} ({error.message}), it must be {' or '.join(kinds)}") from error
    raise Wrong(f"{what} is accepted ({found!r:.60}), it must be {' or '.join(kinds)}")


def kind_of(call: Callable[[], object]) -> str:
    """How a call ends: a kind."""
    try:
        call()
    except AccelError as error:
        return error.kind
    return "ok"


def absent(flag: str, *calls: Callable[[], object]) -> Absent:
    """What to raise for a capability that is declared absent, once each call has said so. Wrong."""
    for call in calls:
        refused("not_supported", call, f"{flag} is declared absent; its call")
    return Absent(f"{flag}: declared absent, and answers not_supported")


def told(rt: Runtime) -> Runtime:
    """A runtime whose device says how much memory it has. Absent, Wrong."""
    if rt.capabilities()["memory_info"] == "absent":
        raise absent("memory_info", rt.memory_info)
    return rt


def tells_free(rt: Runtime) -> Runtime:
    """And how much of it is free: where the runtime counts that itself, it would be compared with itself. Absent."""
    if told(rt).capabilities()["memory_info"] != "native":
        raise Absent("memory_info: the driver tells no free memory")
    return rt


def too_much(rt: Runtime) -> int:
    """More bytes than there are; where the device does not say how many those are, more than any has."""
    return 1 << 60 if rt.capabilities()["memory_info"] == "absent" else rt.memory_info().total + 1


def same(found: object, wanted: object, what: str) -> None:
    """Wrong where they differ."""
    if found != wanted:
        raise Wrong(f"{what}: {_short(found)}, it must be {_short(wanted)}")


def holds(condition: bool, what: str) -> None:
    """Wrong where it does not."""
    if not condition:
        raise Wrong(what)


def _short(value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes {bytes(value[:12]).hex()}" + ("..." if len(value) > 12 else "")
    return f"{value!r:.80}"


def pattern(size: int, salt: int = 0) -> bytes:
    """Bytes of which no two places look alike for a while."""
    block = bytes((at * 7 + (at >> 8) * 13 + salt * 31) & 0xFF for at in range(min(size, 4099)))
    return (block * (size // max(1, len(block)) + 1))[:size]


def download(runtime: Runtime, pointer: object, size: int) -> bytes:
    """What lies there now."""
    found = bytearray(size)
    runtime.memcpy(found, pointer, size)  # type: ignore[arg-type]
    return bytes(found)


def first_difference(found: Sequence[int], wanted: Sequence[int]) -> int:
    """Where they differ first."""
    return next(
        (at for at, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted))
    )


def whole(found: bytes, wanted: bytes, what: str) -> None:
    """Wrong with the first place where they differ."""
    if found != wanted:
        raise Wrong(f"{what}: wrong from byte {first_difference(found, wanted)} of {len(wanted)} on")
