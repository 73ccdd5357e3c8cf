"""One byte out of place is noticed: every reserved or padding byte of every call that back-ends make, set in turn.

It is what makes a lifecycle that passes on the fake say something about its layouts.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest

from accelctl.abi import registry
from accelctl.abi.lifecycle import Block, Env, Session
from accelctl.errors import AccelError
from accelctl.hal.devfile import Mapped, Syscalls
from accelctl.memory.va import GoodFit
from tests.fake import FakeError, FakeMachine
from tests.fake.tables import Call
from tests.fakekit import UNPROVEN

CHIPS = {"vgem": "vgem", "qxl": "qxl", "virtio_gpu": "virtio_gpu", **UNPROVEN, "iommufd": "iommufd"}
OUTPUTS = {"NV_ESC_CARD_INFO"}
"""Calls whose structure the kernel fills, whatever came in."""
RESERVED = re.compile(r"(^|[._])(_*pad\d?|padding|_*reserved\d?|rsvd\d?)$")


def reserved(call: Call) -> list[int]:
    """Offsets of bytes that are nobody's."""
    named = [field for field in call.layout.fields.values() if RESERVED.search(field.name)]
    used = {
        place
        for field in call.layout.fields.values()
        if field not in named
        for place in range(field.offset, field.offset + field.size)
    }
    inputs = {
        place
        for field in call.layout.fields.values()
        if field in named
        for place in range(field.offset, field.offset + field.size)
    }
    return sorted((set(range(call.layout.size)) - used) | (inputs - used))


class Spoiler(Syscalls):
    """Between product and fake: notes calls, and sets one byte of the first one of a name."""

    def __init__(self, machine: FakeMachine, name: str = "", place: int = 0) -> None:
        self.m, self.name, self.place = machine, name, place
        self.met: dict[str, Call] = {}
        self.answer: Exception | None = None
        """What the fake said to it."""

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        for call in self.m.files[fd].driver.known():
            if number in call.numbers and isinstance(argument, bytearray) and len(argument) >= call.layout.size:
                self.met.setdefault(call.name, call)
                if call.name == self.name:
                    return self._spoiled(fd, number, argument)
        return self.m.ioctl(fd, number, argument)

    def _spoiled(self, fd: int, number: int, argument: bytearray) -> int:
        self.name = ""
        argument[self.place] ^= 1
        try:
            return self.m.ioctl(fd, number, argument)
        except (OSError, FakeError) as error:
            self.answer = error
            raise

    def stat(self, path: str) -> object:  # type: ignore[override]
        return self.m.stat(path)

    def fstat(self, fd: int) -> object:  # type: ignore[override]
        return self.m.fstat(fd)

    def open(self, path: str, flags: int) -> int:
        return self.m.open(path, flags)

    def map(self, fd: int, size: int, offset: int) -> Mapped:
        return self.m.map(fd, size, offset)

    def unmap(self, mapping: Mapped) -> None:
        self.m.unmap(mapping)

    def close(self, fd: int) -> None:
        self.m.close(fd)


def run(driver: str, spoiler: Spoiler) -> None:
    """A session, and a cycle of each of its lifecycles."""
    chip = registry.load(CHIPS[driver])
    assert chip.memory is not None
    space = lambda base, size, granule: GoodFit(base, size, granule=granule)  # noqa: E731
    session = chip.memory.open(spoiler.m.target(CHIPS[driver], driver), Env(spoiler, space))
    for life in session.lifecycles:
        block = Block(life.sizes.granule)
        for stage in life.stages:
            stage.acquire(block)
            block.held.append(stage)
        while block.held:
            if (release := block.held.pop().release) is not None:
                release(block)
    _counters(session)
    session.close()


def _counters(session: Session) -> None:
    for counter in session.counters():
        try:
            counter.read()
        except ValueError:
            continue


def spoiled(driver: str) -> Iterator[tuple[str, int]]:
    """Every call and byte."""
    spoiler = Spoiler(FakeMachine(driver))
    run(driver, spoiler)
    spoiler.m.new_process()
    spoiler.m.finish()
    for name, call in spoiler.met.items():
        if name not in OUTPUTS and call.number >> 30 != 2:  # what only comes out, nobody reads
            yield from ((name, place) for place in reserved(call))


@pytest.mark.parametrize("driver", CHIPS)
def test_a_byte_where_none_belongs_is_noticed(driver: str) -> None:
    count = 0
    for name, place in spoiled(driver):
        machine = FakeMachine(driver)
        spoiler = Spoiler(machine, name, place)
        count += 1
        with suppress(OSError, AccelError, FakeError):  # the product may take it for "not supported"
            run(driver, spoiler)
        assert spoiler.answer is not None, f"{name}: byte {place} ({spoiler.met[name].layout.at(place)}) is ignored"
        code = getattr(spoiler.answer, "errno", errno.EINVAL)
        assert code in (errno.EINVAL, errno.EOPNOTSUPP), f"{name} byte {place}: {spoiler.answer}"
        machine.new_process()
        machine.finish()
    assert count, "no call with a reserved byte"
