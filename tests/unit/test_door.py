"""Faults at the door: how they are ordered, that they strike the call they name, and what stays after a lost reply."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.lifecycle import Env
from accelctl.abi.testbench import descriptors
from accelctl.errors import UsageError
from accelctl.hal.devfile import SYSCALLS, File, Mapped, Syscalls
from accelctl.stress.door import Door, Fault, check_stages, parse_fault
from accelctl.stress.engine import Engine
from accelctl.stress.plan import Plan, Step
from tests.stresskit import TARGET, ToyMemory

CALL = 0xC0084000
"""An ioctl number of 8 bytes."""


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() == before


class Calls(Syscalls):
    """Ioctls that answer 1, 2, 3, ... and are written down; real memfds."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        self.made.append(number)
        if isinstance(argument, bytearray):
            argument[0] = len(self.made)
        return 0

    def close(self, fd: int) -> None:
        self.made.append(-fd)
        super().close(fd)


# -- the words --


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("object:3=ENOMEM@before", Fault("object", 3, errno.ENOMEM, False)),
        ("-gpu_map:1=5@after", Fault("-gpu_map", 1, errno.EIO, True)),
        ("cpu_map:12=ENOTSUP@after", Fault("cpu_map", 12, errno.EOPNOTSUPP, True)),
    ],
)
def test_parse(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    "text",
    [
        "", "object", "object:1", "object:1=ENOMEM", "object:0=ENOMEM@before", "object:-1=ENOMEM@before",
        "object:1=ENOSUCH@before", "object:1=errorcode@after", "object:1=0@after", "object:1=4096@after",
        "object:1=ENOMEM@during", "object:1=ENOMEM@before ", ":1=ENOMEM@before", "a b:1=EIO@after",
        "object:1=EIO@after\n", "object:\u0661=EIO@after",
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fault(text)
    assert "\n" not in caught.value.message


@given(st.text(max_size=40) | st.from_regex(r"-?\w+:\d+=(E[A-Z]{2,6}|\d+)@(before|after)", fullmatch=True))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        fault = parse_fault(text)
    except UsageError:
        return
    assert parse_fault(str(fault)) == fault


# -- what strikes --


def test_a_stage_that_is_not_there_is_refused() -> None:
    check_stages([parse_fault("-object:1=EIO@after")], ("object", "offset"))
    with pytest.raises(UsageError, match="no such stage; the lifecycle has object, offset"):
        check_stages([parse_fault("cpu_map:1=EIO@after")], ("object", "offset"))


def test_the_nth_call_of_the_stage_and_no_other() -> None:
    inner, fault = Calls(), parse_fault("object:2=ENOMEM@before")
    door = Door(inner, [fault])
    door.ioctl(0, 1, 0)  # before any stage: counts for none
    door.at("object")
    door.ioctl(0, 2, 0)
    door.at("offset")
    door.ioctl(0, 3, 0)
    door.at("object")
    with pytest.raises(OSError, match=r"Cannot allocate memory \(fault object:2=ENOMEM@before\)"):
        door.ioctl(0, 4, 0)
    door.ioctl(0, 5, 0)
    assert inner.made == [1, 2, 3, 5]
    assert door.counts == {"object": 3, "offset": 1}
    assert door.fired == [fault]


def test_a_lost_reply_leaves_the_structure_as_it_was() -> None:
    inner = Calls()
    door = Door(inner)
    door.at("object")
    door.arm(Fault("object", 1, errno.EFAULT, True))
    argument = bytearray(b"\x07question")
    with pytest.raises(OSError, match="Bad address"):
        door.ioctl(0, 9, argument)
    assert inner.made == [9]
    assert argument == b"\x07question"
    assert door.ioctl(0, 9, argument) == 0
    assert argument[0] == 2


def test_descriptors_of_lost_replies_stay_open_until_they_are_given_back() -> None:
    inner = Calls()
    door, before = Door(inner), descriptors()
    door.at("export")
    calls: list[Callable[[], int]] = [lambda: door.memfd("x", 4096, 0), lambda: door.open("/dev/null", 2)]
    for call in calls:
        door.arm(Fault("export", 1, errno.EFAULT, True))
        with pytest.raises(OSError, match="Bad address"):
            call()
    assert descriptors() - before == set(door.lost)
    assert door.recover() == 2
    assert len(inner.made) == 2, "through the inner calls, which keep books too"
    assert descriptors() == before


def test_a_lost_mapping_stays_mapped() -> None:
    door = Door(SYSCALLS)
    fd = door.memfd("x", 4096, 0)
    door.at("cpu_map")
    door.arm(Fault("cpu_map", 1, errno.ENOMEM, True))
    with pytest.raises(OSError, match="Cannot allocate"):
        door.map(fd, 4096, 0)
    (mapping,) = door.lost
    assert isinstance(mapping, Mapped)
    assert mapping[:2] == b"\0\0"
    assert door.recover() == 1
    assert mapping.closed
    door.at("")
    door.close(fd)


def test_unmap_before_leaves_it_mapped_and_after_does_not() -> None:
    door = Door(SYSCALLS)
    fd = door.memfd("x", 4096, 0)
    mapping = door.map(fd, 4096, 0)
    door.at("-cpu_map")
    for after in (False, True):
        door.arm(Fault("-cpu_map", 1, errno.EIO, after))
        with pytest.raises(OSError, match="fault -cpu_map:1"):
            door.unmap(mapping)
        assert bool(mapping.closed) is after
    door.at("")
    door.close(fd)


@pytest.mark.parametrize("after", [False, True])
def test_close_always_closes(after: bool) -> None:
    """Linux gives the descriptor back whatever close answers."""
    door, before = Door(SYSCALLS), descriptors()
    door.at("-export")
    door.arm(Fault("-export", 1, errno.EIO, after))
    fd = os.dup(0)
    with pytest.raises(OSError, match="fault -export:1"):
        door.close(fd)
    assert descriptors() == before


def test_arming_counts_anew_and_disarming_takes_it_back() -> None:
    door = Door(Calls(), [parse_fault("a:2=EIO@before")])
    door.at("a")
    door.ioctl(0, 1, 0)
    door.arm(Fault("a", 2, errno.EIO, False))
    door.ioctl(0, 1, 0)
    door.disarm()
    assert door.ioctl(0, 1, 0) == 0
    assert (door.counts, door.fired) == ({"a": 2}, [])


@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN])
@pytest.mark.parametrize("after", [False, True])
def test_interrupted_ioctls_are_restarted(code: int, after: bool) -> None:
    """As libdrm does: the caller sees nothing of it; after a lost reply the call has been made twice."""
    inner = Calls()
    door = Door(inner)
    with File(os.dup(0), "x", door) as file:
        door.at("object")
        door.arm(Fault("object", 1, code, after))
        assert file.ioctl(CALL, bytearray(8)) == 0
        door.at("")
    assert len(door.fired) == 1
    assert inner.made[:-1] == [CALL] * (2 if after else 1)
    assert door.counts == {"object": 2}


def test_the_engine_rolls_back_what_the_door_refuses() -> None:
    door = Door(SYSCALLS, [parse_fault("cpu_map:2=ENOMEM@before")])
    session = ToyMemory().open(TARGET, Env(door))
    engine = Engine(session, session.lifecycles[0], Plan(hold=1), at=door.at, steps=[Step(0, 4096, 3, False)] * 3)
    assert engine.run(3) == 3
    engine.drain()
    assert engine.failures == {("cpu_map", "ENOMEM"): 1}
    assert session.toy.objects == {}
