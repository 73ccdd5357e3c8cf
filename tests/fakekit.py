"""The fake driver called by hand: an amdgpu whose structures are written out byte by byte."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest

from accelctl.abi.lifecycle import Env, Memory, Session, Target
from tests.fake import FakeMachine

RENDER, CARD, FLAGS = "/dev/dri/renderD128", "/dev/dri/card0", os.O_RDWR | os.O_CLOEXEC
GEM_CREATE, GEM_MMAP, GEM_VA, GEM_CLOSE = 0xC0206440, 0xC0086441, 0x40406448, 0x40086409
EXPORT, IMPORT, VERSION, CREATE_DUMB, MAP_DUMB = 0xC00C642D, 0xC00C642E, 0xC0406400, 0xC02064B2, 0xC01064B3
GTT, VRAM, MAP, UNMAP, PAGE = 2, 4, 1, 2, 4096
VA = 1 << 20
UNPROVEN = {
    "amdgpu": "amdgpu",
    "kfd": "amdgpu",
    "i915": "intel_gpu",
    "xe": "intel_gpu",
    "nvidia": "nvidia",
    "nouveau": "nvidia",
    "habanalabs": "habanalabs",
    "panfrost": "mali",
    "panthor": "mali",
    "lima": "mali",
    "msm": "adreno",
    "v3d": "v3d",
    "etnaviv": "vivante",
    "ivpu": "ivpu",
    "amdxdna": "amdxdna",
    "qaic": "qaic",
    "rocket": "rockchip_npu",
}
"""Driver of the fake -> chip, of those that no guest has."""


class Device:
    """An open amdgpu, and its calls by hand."""

    def __init__(self, machine: FakeMachine, path: str = RENDER) -> None:
        self.m, self.fd = machine, machine.open(path, FLAGS)

    def call(self, number: int, form: str, *values: int) -> bytearray:
        argument = bytearray(struct.pack(form, *values))
        self.m.ioctl(self.fd, number, argument)
        return argument

    def create(self, size: int = PAGE, domain: int = GTT) -> int:
        handle: int = struct.unpack_from("<I", self.call(GEM_CREATE, "<4Q", size, PAGE, domain, 1))[0]
        return handle

    def offset(self, handle: int) -> int:
        where: int = struct.unpack("<Q", self.call(GEM_MMAP, "<II", handle, 0))[0]
        return where

    def bind(self, operation: int, handle: int, address: int = VA, size: int = PAGE) -> None:
        self.call(GEM_VA, "<IIIIQQQQIIQ", handle, 0, operation, 6, address, 0, size, 0, 0, 0, 0)

    def close(self, handle: int) -> None:
        self.call(GEM_CLOSE, "<II", handle, 0)

    def export(self, handle: int) -> int:
        fd: int = struct.unpack_from("<i", self.call(EXPORT, "<IIi", handle, 0x80002, 0), 8)[0]
        return fd

    def take(self, fd: int) -> int:
        handle: int = struct.unpack_from("<I", self.call(IMPORT, "<IIi", 0, 0, fd))[0]
        return handle


def refused(code: int, call: object, *arguments: object) -> None:
    assert callable(call)
    with pytest.raises(OSError, match=r"\[fake:") as caught:
        call(*arguments)
    assert caught.value.errno == code


@pytest.fixture
def m() -> Iterator[FakeMachine]:
    with FakeMachine("amdgpu") as machine:
        yield machine


@pytest.fixture
def device(m: FakeMachine) -> Iterator[Device]:
    made = Device(m)
    yield made
    if made.fd in m.files:
        m.close(made.fd)


class Processes(Memory):
    """Each session in a process of its own, which is what KFD's memory belongs to."""

    def __init__(self, inner: Memory, machine: FakeMachine) -> None:
        self._inner, self._machine = inner, machine

    def open(self, target: Target, env: Env) -> Session:
        self._machine.new_process()
        return self._inner.open(target, env)
