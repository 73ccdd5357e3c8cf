"""The fake driver told to misbehave: failures before and after a call, interrupts, releases that are not done."""

from __future__ import annotations

import errno
import struct
import subprocess
import sys

import pytest

from tests.fake import FakeError, FakeMachine
from tests.fakekit import FLAGS, GEM_CREATE, GEM_MMAP, GTT, MAP, PAGE, RENDER, UNMAP, Device, device, m, refused
from tests.helpers import ROOT, environment

__all__ = ["device", "m"]  # fixtures


def test_fail_is_before_and_lose_reply_is_after(m: FakeMachine, device: Device) -> None:
    m.fail("GEM_CREATE", nth=2, error=errno.ENOSPC)
    m.lose_reply("AMDGPU_GEM_CREATE", nth=3)
    assert device.create() == 1
    refused(errno.ENOSPC, device.create)
    argument = bytearray(struct.pack("<4Q", PAGE, PAGE, GTT, 1))
    before = bytes(argument)
    refused(errno.EFAULT, m.ioctl, device.fd, GEM_CREATE, argument)
    assert bytes(argument) == before
    assert device.create() == 3  # 2 lives, and nobody was told
    assert m.census()["object"] == 3
    for handle in (1, 2, 3):
        device.close(handle)


def test_a_failure_copies_the_structure_back(device: Device) -> None:
    argument = bytearray(struct.pack("<II", 5, 0))
    refused(errno.ENOENT, device.m.ioctl, device.fd, GEM_MMAP, argument)
    assert argument == struct.pack("<II", 5, 0)


def test_orders_by_operation(m: FakeMachine, device: Device) -> None:
    handle = device.create()
    m.fail("GEM_VA:UNMAP")
    device.bind(MAP, handle)
    refused(errno.ENOMEM, device.bind, UNMAP, handle)
    device.bind(UNMAP, handle)
    device.close(handle)
    assert list(m.calls)[-4:-1] == [f"DRM_IOCTL_AMDGPU_GEM_VA:{name}" for name in ("MAP", "UNMAP", "UNMAP")]


def test_interrupts_do_nothing_and_pass(m: FakeMachine, device: Device) -> None:
    m.interrupt(2, "GEM_CREATE")
    m.interrupt(1, "GEM_CLOSE", errno.EAGAIN)
    for _ in range(2):
        refused(errno.EINTR, device.create)
    assert device.create() == 1
    refused(errno.EAGAIN, device.close, 1)
    device.close(1)


def test_every_release_that_is_swallowed_is_found() -> None:
    m = FakeMachine("amdgpu")
    m.swallow("GEM_CLOSE", every=10)
    m.swallow("munmap", every=25)
    device = Device(m)
    for _ in range(100):
        handle = device.create()
        m.unmap(m.map(device.fd, PAGE, device.offset(handle)))
        device.close(handle)
    assert m.census() == {"object": 12, "mapping": 4, "descriptor": 1}  # two have lost both
    m.calm()
    m.close(device.fd)
    assert len(m.leftovers()) == 16  # each mapping holds its file, and that all of its handles
    m.finish()
    assert not m.leftovers()


def test_system_calls_can_fail_too(m: FakeMachine) -> None:
    for name, call in {
        "open": lambda: m.open(RENDER, FLAGS),
        "memfd": lambda: m.memfd("x", PAGE, 2),
        "mmap": lambda: m.map(-1, PAGE, 0),
    }.items():
        m.fail(name, error=errno.EMFILE)
        refused(errno.EMFILE, call)
    fd = m.memfd("x", PAGE, 2)
    mapping = m.map(fd, PAGE, 0)
    assert "fd" in m.leftovers()[0]
    m.unmap(mapping)
    m.close(fd)


def test_an_order_for_a_call_that_is_not_there_is_refused(m: FakeMachine) -> None:
    with pytest.raises(FakeError, match="named GEM_CRAETE"):
        m.fail("GEM_CRAETE")
    with pytest.raises(FakeError, match="no such drivers"):
        FakeMachine("voodoo")


def test_a_limit_on_descriptors_hits_the_fake(device: Device) -> None:
    """In a child, since the limit is the whole process's."""
    code = """
import errno, os, resource
from tests.fake import FakeMachine
from tests.fakekit import Device, device, m
with FakeMachine("amdgpu") as m:
    device = Device(m)
    handle = device.create()
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 1, 4096))
    fds = []
    try:
        while True:
            fds.append(device.export(handle))
    except OSError as error:
        assert error.errno == errno.EMFILE, error
    assert 0 < len(fds) < 9, fds
    for fd in fds:
        m.close(fd)
    device.close(handle)
    assert not m.alive
    m.close(device.fd)
"""
    subprocess.run([sys.executable, "-c", code], env=environment(), cwd=ROOT, check=True)
