"""What the tests of events share: messages as the kernel and udevd send them, a made-up chip, real events."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accelctl.abi.rooms import Directory, parse_room
from accelctl.hal import netlink
from accelctl.hal.netlink import Message, Overflow, UeventSocket
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import MemoryTree
from accelctl.hal.udev import Context, Device
from accelctl.probes.events import Interest

NULL = "/sys/devices/virtual/mem/null"
LOOP_ADD, LOOP_REMOVE = 0x4C80, 0x4C81  # include/uapi/linux/loop.h

CHIP = """
schema = "accelctl.chip/1"
name = "testchip"
title = "Test chip"
vendor = "Testing"
kind = "npu"
proven = "unproven"
pci = [
  { vendor = "0x1e52", device = "0xfaca", source = "test" },
  { vendor = "0x1d0f", source = "test" },
]
module = [
  { name = "testdrv", role = "kernel", source = "test" },
  { name = "helperdrv", role = "helper", source = "test" },
]
node = [{ glob = "dev/testacc*", per_device = true, role = "device", source = "test" }]
platform = [{ driver = "testsoc", source = "test" }, { device = "softacc*", source = "test" }]
sysclass = [{ dir = "sys/class/testclass", source = "test" }]
"""
ROOM = parse_room(CHIP, Path("backends/testchip"), "in-tree")
INTEREST = Interest(Directory([ROOM]))

BDF = "/devices/pci0000:00/0000:00:01.0/0000:03:00.0"
GPU = {"PCI_ID": "1002:744C", "PCI_CLASS": "30000", "PCI_SLOT_NAME": "0000:03:00.0"}


def kernel_message(**texts: str) -> bytes:
    head = f"{texts.get('ACTION', '')}@{texts.get('DEVPATH', '')}"
    return b"\0".join([head.encode(), *(f"{key}={value}".encode() for key, value in texts.items())]) + b"\0"


def udev_message(texts: dict[str, str], header_size: int = 40, gap: int = 0, magic: int = netlink.MAGIC) -> bytes:
    """As udevd sends it: prefix, magic in network order, three native numbers, the filter hashes, the properties."""
    body = b"".join(f"{key}={value}\0".encode() for key, value in texts.items())
    head = b"libudev\0" + struct.pack(">I", magic) + struct.pack("=III", header_size, header_size + gap, len(body))
    return head.ljust(header_size, b"\x11") + b"\xff" * gap + body


class Losing(UeventSocket):
    """A socket that reports lost events at chosen moments."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, lambda _sender: True)
        self.lose = 0

    def receive(self) -> Message | None:
        if self.lose:
            self.lose -= 1
            self.counters.overflows += 1
            raise Overflow
        return super().receive()


def poke(times: int = 1) -> None:
    """Make the kernel send a harmless event, "change" of /dev/null; a loud skip where that is not possible."""
    if os.geteuid() != 0 or not os.access(NULL + "/uevent", os.W_OK):
        pytest.skip(f"a real change event is made by writing to {NULL}/uevent: needs root and a writable sysfs")
    for _ in range(times):
        with open(NULL + "/uevent", "w") as file:
            file.write("change")


@contextmanager
def loop_devices() -> Iterator[Callable[[int, int], None]]:
    """A function that adds (LOOP_ADD) and removes (LOOP_REMOVE) an unused loop device: real add and remove events."""
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"real add and remove events are made with /dev/loop-control (root): {error.strerror}")
    added: set[int] = set()

    def act(request: int, number: int) -> None:
        fcntl.ioctl(control, request, number)
        (added.add if request == LOOP_ADD else added.discard)(number)

    try:
        yield act
    finally:
        for number in list(added):
            act(LOOP_REMOVE, number)
        os.close(control)


def machine() -> Context:
    tree = MemoryTree("test")
    for path in ("sys/class", "sys/bus/pci/devices", "run"):
        tree.add_folder(path)
    return Context(SysRoot(tree))


def plugged() -> Context:
    """A machine with the card still in, so that watch learns what it is."""
    context = machine()
    tree = context.root.tree
    assert isinstance(tree, MemoryTree)
    base = "sys" + BDF
    tree.add_file(f"{base}/uevent", "".join(f"{k}={v}\n" for k, v in {"DRIVER": "amdgpu", **GPU}.items()).encode())
    tree.add_link(f"{base}/subsystem", "/sys/bus/pci")
    tree.add_link(f"{base}/driver", "/sys/bus/pci/drivers/amdgpu")
    tree.add_link("sys/bus/pci/devices/0000:03:00.0", "/" + base)
    for name in ("card0", "renderD128"):
        tree.add_file(f"{base}/drm/{name}/uevent", f"DEVNAME=dri/{name}\n".encode())
        tree.add_link(f"{base}/drm/{name}/subsystem", "/sys/class/drm")
        tree.add_link(f"sys/class/drm/{name}", f"/{base}/drm/{name}")
    return context


class Script:
    """A source that tells prepared events, then ends the watch by having none."""

    name = "script"

    def __init__(self, *devices: Device) -> None:
        self.devices = list(devices)

    def descriptors(self) -> list[int]:
        return []

    def due_in(self) -> float | None:
        return 0.01

    def events(self) -> list[Device]:
        told, self.devices = self.devices, []
        return told

    def close(self) -> None:
        pass
