"""The conformance suite on the stages that DRM drivers share, over a fake driver: what a lost answer leaves."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from accelctl.abi import dumb
from accelctl.abi.lifecycle import Counter, Env, Session, Target
from accelctl.abi.testbench import Check
from accelctl.hal.devfile import Mapped, Syscalls
from accelctl.hal.uapi import drm
from tests.abikit import check_toy, failed


class Gem(Syscalls):
    """A driver of dumb buffers behind the null device; handles are lowest-free, and live until the file is closed."""

    def __init__(self, flaw: str = "") -> None:
        self.handles: dict[int, int] = {}
        self.node = -1
        self.flaw = flaw

    def open(self, path: str, flags: int) -> int:
        self.node = super().open(path, flags)
        return self.node

    def close(self, fd: int) -> None:
        super().close(fd)
        if fd == self.node:
            self.handles = {1: 4096} if self.flaw == "keeps" and self.handles else {}

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        calls: dict[int, Callable[[Any], None]] = {
            drm.VERSION.number: lambda a: drm.VERSION.layout.field("name_len").put(a, 0),
            drm.GET_CAP.number: lambda a: drm.GET_CAP.layout.field("value").put(a, 1),
            drm.MODE_CREATE_DUMB.number: self.create,
            drm.MODE_MAP_DUMB.number: self.where,
            drm.GEM_CLOSE.number: self.gone,
        }
        if number not in calls:
            raise OSError(errno.ENOTTY, "no such ioctl")
        calls[number](argument)
        return 0

    def create(self, argument: bytearray) -> None:
        layout = drm.MODE_CREATE_DUMB.layout
        handle = next(number for number in range(1, 1 << 16) if number not in self.handles)
        size = layout.field("width").get(argument) * layout.field("height").get(argument) * 4
        self.handles[handle] = size
        layout.field("handle").put(argument, handle)
        layout.field("size").put(argument, size)

    def where(self, argument: bytearray) -> None:
        layout = drm.MODE_MAP_DUMB.layout
        if layout.field("handle").get(argument) not in self.handles:
            raise OSError(errno.ENOENT, "no such handle")
        layout.field("offset").put(argument, layout.field("handle").get(argument) << 20)

    def gone(self, argument: bytearray) -> None:
        if self.handles.pop(drm.GEM_CLOSE.layout.field("handle").get(argument), None) is None:
            raise OSError(errno.EINVAL, "no such handle")

    def map(self, fd: int, size: int, offset: int) -> Mapped:
        return super().map(-1, size, 0)


class Dumb(dumb.DumbMemory):
    """The shared back-end, with a name that Gem answers to, and a counter of the whole device."""

    def __init__(self, system: Gem) -> None:
        super().__init__("", 1 << 20)
        self.system = system

    def open(self, target: Target, env: Env) -> Session:
        session = super().open(target, env)
        inner = session.counters
        whole = Counter("device-bytes", "bytes", "device", "the fake", lambda: sum(self.system.handles.values()))
        session.counters = lambda: (*inner(), whole)  # type: ignore[method-assign]
        return session


def drm_checks(flaw: str = "") -> dict[str, Check]:
    system = Gem(flaw)
    return check_toy(Dumb(system), Env(syscalls=system))


def test_the_shared_stages_of_drm_pass() -> None:
    checks = drm_checks()
    assert failed(checks) == {}
    passed = {name for name, check in checks.items() if check.result == "pass"}
    assert {"dumb: object loses its answer", "dumb: object early", "dumb: object fails at release"} <= passed


def test_what_a_lost_answer_leaves_after_close_is_a_leak() -> None:
    found = failed(drm_checks("keeps"))
    assert found["dumb: object loses its answer"] == "call 1: not given back: +4096 device-bytes"
    assert "dumb: object fails" not in found
