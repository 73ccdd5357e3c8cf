"""The conformance suite itself: a right chip passes it, and each way to be wrong is named by the check for it."""

from __future__ import annotations

import errno
import os
import re
from typing import Any

import pytest

from accelctl.abi import gem
from accelctl.abi.lifecycle import (
    CPU_MAP,
    FD,
    HANDLE,
    VA,
    Block,
    Counter,
    Env,
    Lifecycle,
    NotOffered,
    Session,
    Sizes,
    Stage,
    Target,
)
from accelctl.errors import NoDeviceError
from accelctl.hal.devfile import DevFile, File, Syscalls, open_files
from tests.abikit import TARGET, check_toy, failed, space


class Toy(Session):
    """va -> object (a memfd) -> pair (two memfds) -> cpu_map of the object. Flaws are made by overriding."""

    early: tuple[str, ...] = ("pair",)

    def __init__(self, target: Target, env: Env) -> None:
        self.env, self.live = env, set[int]()
        files = self.open_all(target)
        self.space = env.space(1 << 20, 1 << 30, 4096)
        super().__init__(target, self.lives(), files)

    def open_all(self, target: Target) -> tuple[File, ...]:
        first = DevFile(target.node, syscalls=self.env.syscalls)
        try:
            return first, DevFile(target.others[0], syscalls=self.env.syscalls)
        except BaseException:
            first.close()
            raise

    def lives(self) -> tuple[Lifecycle, ...]:
        return (Lifecycle("plain", self.stages(), Sizes(4096, 1 << 20)),)

    def stages(self) -> tuple[Stage, ...]:
        cpu = gem.own_map_stage()
        return (
            Stage("va", VA, self.take, self.give),
            Stage("object", FD, self.create, self.destroy, early="object" in self.early),
            Stage("pair", HANDLE, self.pair, self.unpair, early="pair" in self.early),
            Stage("cpu_map", CPU_MAP, cpu.acquire, self.unmap),
        )

    def take(self, block: Block) -> int:
        block.address = self.space.alloc(block.size)
        return block.address

    def give(self, block: Block) -> None:
        self.space.free(block.address)

    def make(self, size: int) -> int:
        fd = self.env.syscalls.memfd("toy", size, 0)
        self.live.add(fd)
        return fd

    def drop(self, fd: int) -> None:
        self.env.syscalls.close(fd)
        self.live.discard(fd)

    def create(self, block: Block) -> int:
        block.file = File(self.make(block.size), "toy object", self.env.syscalls)
        return block.file.fd

    def destroy(self, block: Block) -> None:
        assert block.file is not None
        self.live.discard(block.file.fd)
        gem.close_own_file(block)

    def pair(self, block: Block) -> int:
        first = self.make(4096)
        try:
            block.extra = (first, self.make(4096))
        except OSError:
            self.drop(first)
            raise
        return first

    def unpair(self, block: Block) -> None:
        for fd in block.extra:
            self.drop(fd)

    def unmap(self, block: Block) -> None:
        assert block.file is not None
        assert block.map is not None
        block.file.unmap(block.map)
        block.map = None

    def counters(self) -> tuple[Counter, ...]:
        return (Counter("toys", "objects", "file", "its own table", lambda: len(self.live)),)

    def census(self) -> dict[str, int]:
        left, self.live = self.live, set()
        for fd in left:
            self.env.syscalls.close(fd)
        return {"toys": len(left)}

    @classmethod
    def open(cls, target: Target, env: Env) -> Session:
        return cls(target, env)


def test_a_right_chip_passes_every_check() -> None:
    before = (open_files(), sorted(os.listdir("/proc/self/fd")))
    checks = check_toy(Toy)
    assert {name: check for name, check in checks.items() if check.result == "fail"} == {}
    assert [name for name, check in checks.items() if check.result == "pass"] == [
        "open",
        "open fails",
        "counters",
        "plain: cycle",
        "plain: sizes",
        "plain: two at once",
        "plain: census",
        "plain: pair early",
        "plain: va fails",
        "plain: object fails",
        "plain: pair fails",
        "plain: cpu_map fails",
        "plain: cpu_map fails at release",
    ]
    assert (open_files(), sorted(os.listdir("/proc/self/fd"))) == before


# -- flaws --


class LeaksOnFailure(Toy):
    def pair(self, block: Block) -> int:
        first = self.make(4096)
        block.extra = (first, self.make(4096))
        return first


class UndoesTooMuch(Toy):
    def pair(self, block: Block) -> int:
        try:
            return super().pair(block)
        except OSError:
            self.destroy(block)  # the engine does that
            raise


class ReleasesTwice(Toy):
    def unmap(self, block: Block) -> None:
        super().unmap(block)
        self.destroy(block)


class ForgetsToClose(Toy):
    def close(self) -> None:
        self.files[0].close()


class ClosesOnce(Toy):
    def close(self) -> None:
        super().close()
        os.fstat(self.files[0].fd if self.live else -1 if hasattr(self, "closed") else 0)
        self.closed = True


class WrongOrder(Toy):
    def stages(self) -> tuple[Stage, ...]:
        va, made, pair, cpu = super().stages()
        return va, cpu, made, pair


class NotReallyEarly(Toy):
    early = ("pair", "object")


class KeepsAddresses(Toy):
    def give(self, block: Block) -> None:
        pass


class SaysNothing(Toy):
    def unmap(self, block: Block) -> None:
        try:
            super().unmap(block)
        except OSError:
            pass


class CallsItNotOffered(Toy):
    def create(self, block: Block) -> int:
        try:
            return super().create(block)
        except OSError as error:
            raise NotOffered("no objects here") from error


class RemembersOne(Toy):
    def create(self, block: Block) -> int:
        self.mine = super().create(block)
        return self.mine

    def destroy(self, block: Block) -> None:
        assert block.file is not None
        block.file.fd = self.mine
        super().destroy(block)


class SamePages(Toy):
    def create(self, block: Block) -> int:
        if self.live:
            fd = os.dup(min(self.live))
            self.live.add(fd)
            block.file = File(fd, "the same again", self.env.syscalls)
            return fd
        return super().create(block)


class SmallMap(Toy):
    def stages(self) -> tuple[Stage, ...]:
        *others, cpu = super().stages()
        return *others, cpu._replace(acquire=self.map)

    def map(self, block: Block) -> int:
        assert block.file is not None
        block.map = block.file.map(4096)
        return 0


class MovingCounter(Toy):
    reads = 0

    def counters(self) -> tuple[Counter, ...]:
        def read() -> int:
            self.reads += 1
            return self.reads

        return (Counter("moving", "things", "device", "nowhere", read),)


class BlindCensus(Toy):
    def census(self) -> dict[str, int]:
        super().census()
        return {"toys": 0}


class LeavesFirstNode(Toy):
    def open_all(self, target: Target) -> tuple[File, ...]:
        return tuple(DevFile(node, syscalls=self.env.syscalls) for node in (target.node, *target.others))


class RawError(Toy):
    def open_all(self, target: Target) -> tuple[File, ...]:
        self.env.syscalls.stat(target.node)
        return super().open_all(target)


class OddKind(Toy):
    def stages(self) -> tuple[Stage, ...]:
        return tuple(stage._replace(kind="thing") for stage in super().stages())


class SameNames(Toy):
    def stages(self) -> tuple[Stage, ...]:
        return tuple(stage._replace(name="step") for stage in super().stages())


class NoRelease(Toy):
    def stages(self) -> tuple[Stage, ...]:
        return tuple(stage._replace(release=None) for stage in super().stages())


class NoNumber(Toy):
    def create(self, block: Block) -> Any:
        super().create(block)


class Raises(Toy):
    def unmap(self, block: Block) -> None:
        super().unmap(block)
        raise KeyError("map")


FLAWS: list[tuple[type[Toy], dict[str, str]]] = [
    (LeaksOnFailure, {"plain: pair fails": "call 2: not given back: +1 descriptors, +1 toys"}),
    (UndoesTooMuch, {"plain: pair fails": "call 1: after memfd_create failed: release of object: AssertionError"}),
    (ReleasesTwice, {"plain: cycle": "release of object: AssertionError"}),
    (ForgetsToClose, {"open": "left open after close(): descriptor "}),
    (ClosesOnce, {"open": "close() again: OSError: [Errno 9] Bad file descriptor"}),
    (WrongOrder, {"plain: cycle": "acquire of cpu_map: AssertionError"}),
    (
        NotReallyEarly,
        {
            "plain: object early": "release of cpu_map: AssertionError",
            "plain: object and pair early": "release of cpu_map: AssertionError",
        },
    ),
    (KeepsAddresses, {"plain: cycle": "not given back: +1 device addresses"}),
    (
        SaysNothing,
        {"plain: cpu_map fails at release": "release of cpu_map says nothing of its munmap that failed"},
    ),
    (
        CallsItNotOffered,
        {"plain: object fails": "call 1: it calls a failure (memfd_create) not offered: no objects here"},
    ),
    (RemembersOne, {"plain: two at once": "release of "}),
    (SamePages, {"plain: two at once": "its memory holds "}),
    (SmallMap, {"plain: sizes": "8192 bytes: a mapping of 4096 bytes of a block of 8192"}),
    (BlindCensus, {"plain: census": "it counts {'toys': 0} while pair is held"}),
    (LeavesFirstNode, {"open fails": "left open when its call 3 failed: descriptor "}),
    (RawError, {"open fails": "call 1 (stat): OSError: [Errno 5] stat fails, as ordered, which is no AccelError"}),
    (OddKind, {"open": "plain: va holds a 'thing', which is no kind"}),
    (SameNames, {"open": "plain: names of stages: step, step, step, step"}),
    (NoRelease, {"open": "plain: va holds a va and has no release"}),
    (NoNumber, {"plain: cycle": "acquire of object returned None, not a number"}),
    (Raises, {"plain: cycle": "release of cpu_map: KeyError: 'map'"}),
]


@pytest.mark.parametrize(("flawed", "expected"), FLAWS, ids=[row[0].__name__ for row in FLAWS])
def test_a_flaw_is_named_by_its_check(flawed: type[Toy], expected: dict[str, str]) -> None:
    checks = check_toy(flawed)
    found = failed(checks)
    if "open" in expected:
        found = {"open": found["open"]}  # nothing that follows can be right
    assert found.keys() == expected.keys(), found
    for name, start in expected.items():
        assert found[name].startswith(start), found[name]
    if "plain: cycle" in expected:
        assert checks["plain: the rest"].result == "skip"


def test_a_counter_that_moves_by_itself_is_no_exact_one() -> None:
    detail = failed(check_toy(MovingCounter))["counters"]
    assert re.fullmatch(r"moving: \d+ is no exact number: it moves by itself", detail)


class Dark(Toy):
    def counters(self) -> tuple[Counter, ...]:
        def read() -> int:
            raise PermissionError(errno.EACCES, "Permission denied")

        return (Counter("dark", "bytes", "device", "debugfs", read),)


class Part(Toy):
    def lives(self) -> tuple[Lifecycle, ...]:
        refusing = self.stages()[0]._replace(acquire=self.refuse)
        return (
            *super().lives(),
            Lifecycle("never", (), unsupported="the card has none")._replace(stages=self.stages()),
            Lifecycle("asked", (refusing,)),
        )

    def refuse(self, block: Block) -> int:
        raise NotOffered("the driver does not know it")


def test_what_cannot_be_judged_is_skipped_with_its_reason() -> None:
    dark = check_toy(Dark)
    assert failed(dark) == {}
    assert dark["counters"] == (
        "counters",
        "skip",
        "cannot be read here: dark (PermissionError: [Errno 13] Permission denied)",
    )
    part = check_toy(Part)
    assert failed(part) == {}
    assert part["never: cycle"].detail == "the card has none"
    assert part["asked: cycle"] == ("asked: cycle", "skip", "the driver does not know it")


def test_a_device_that_is_not_there_is_one_failed_check() -> None:
    class Absent(Syscalls):
        def stat(self, path: str) -> os.stat_result:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    checks = check_toy(Toy, Env(syscalls=Absent(), space=space))
    assert failed(checks) == {"open": "/dev/null: No such file or directory"}
    assert list(checks) == ["open"]
    with pytest.raises(NoDeviceError):
        Toy(TARGET, Env(syscalls=Absent(), space=space))
