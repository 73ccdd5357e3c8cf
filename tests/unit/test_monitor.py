"""hal.netlink and hal.monitor: both kinds of message, who is believed, lost events, polling; real events where root."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.hal import monitor, netlink
from accelctl.hal.monitor import Monitor, MonitorPoll
from accelctl.hal.netlink import Message, Overflow, Sender, UeventSocket
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import LiveTree, MemoryTree
from accelctl.hal.udev import Context
from tests.eventkit import LOOP_ADD, LOOP_REMOVE, NULL, Losing, kernel_message, loop_devices, poke, udev_message

ADD = {
    "ACTION": "add",
    "DEVPATH": "/devices/virtual/drm/card7",
    "SUBSYSTEM": "drm",
    "DEVNAME": "dri/card7",
    "SEQNUM": "9",
}


def test_a_kernel_message() -> None:
    assert netlink.parse(kernel_message(**ADD)) == Message("kernel", ADD)


@pytest.mark.parametrize(("size", "gap"), [(40, 0), (24, 0), (48, 0), (40, 8), (64, 3)])
def test_a_udev_message_is_read_at_the_offset_its_header_names(size: int, gap: int) -> None:
    texts = {"UDEV_DATABASE_VERSION": "1", **ADD}
    assert netlink.parse(udev_message(texts, size, gap)) == Message("udev", texts)
    assert netlink.parse(udev_message(ADD, size, gap)) == Message("udev", ADD)  # umockdev starts with ACTION


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"add",
        b"add@/devices/x",  # no NUL: cut off
        b"add@devices/x\0ACTION=add\0DEVPATH=/devices/x\0",
        b"@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0",
        kernel_message(ACTION="add"),
        kernel_message(DEVPATH="/devices/x"),
        kernel_message(ACTION="add", DEVPATH="/devices/../../etc"),
        b"libudev\0",
        udev_message(ADD)[:-1],
        udev_message(ADD, magic=0xCAFEFEED),
        udev_message({"ACTION": "add"}),
        b"libudev\0" + struct.pack(">I", netlink.MAGIC) + struct.pack("=III", 40, 0, 40) + b"\0" * 40,
        b"libudev\0" + struct.pack(">I", netlink.MAGIC) + struct.pack("=III", 40, 40, 1 << 31) + b"\0" * 40,
        b"udev-147\0" + b"\0" * 60,
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        netlink.parse(data)


@settings(max_examples=2000)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=200).map(lambda rest: b"libudev\0" + struct.pack(">I", netlink.MAGIC) + rest),
        st.tuples(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 200)).map(
            lambda parts: (udev_message(ADD)[: parts[1]] + parts[0] + kernel_message(**ADD))[: parts[2]]
        ),
    )
)
def test_random_bytes_never_raise_anything_but_valueerror(data: bytes) -> None:
    try:
        message = netlink.parse(data)
    except ValueError:
        return
    assert message.properties["DEVPATH"].startswith("/")


@pytest.mark.parametrize(
    ("sender", "believed"),
    [
        (Sender(0, 0, 0, 1), True),  # the kernel
        (Sender(712, 0, 712, 2), True),  # udevd
        (Sender(None, None, 0, 1), False),  # no credentials attached
        (Sender(0, 1000, 0, 1), False),
        (Sender(4711, 0, 4711, 1), False),  # root, but not the kernel, in the kernel's group
        (Sender(4711, 0, 0, 1), False),
        (Sender(0, 0, 55, 1), False),
        (Sender(712, 1000, 712, 2), False),  # a user in udevd's group
        (Sender(712, 65534, 712, 2), False),  # root of another user namespace
        (Sender(0, 0, 0, 0), False),  # unicast
        (Sender(0, 0, 0, 3), False),
    ],
)
def test_who_is_believed(sender: Sender, believed: bool) -> None:
    assert netlink.trusted(sender) is believed


class Machine:
    """A tree that changes, as sysfs does."""

    def __init__(self) -> None:
        self.tree = MemoryTree("test")
        self.context = Context(SysRoot(self.tree))
        self.tree.add_folder("sys/class")
        self.tree.add_folder("sys/bus")

    def plug(self, name: str, subsystem: str = "drm", driver: str | None = None) -> None:
        path = f"sys/devices/virtual/{subsystem}/{name}"
        self.tree.add_file(f"{path}/uevent", f"DEVNAME=dri/{name}\n".encode())
        self.tree.add_link(f"{path}/subsystem", f"/sys/class/{subsystem}")
        self.tree.add_link(f"sys/class/{subsystem}/{name}", f"/{path}")
        self.bind(name, subsystem, driver)

    def bind(self, name: str, subsystem: str, driver: str | None) -> None:
        path = f"sys/devices/virtual/{subsystem}/{name}/driver"
        self.tree.links.pop(path, None)
        if driver is not None:
            self.tree.add_link(path, f"/sys/bus/pci/drivers/{driver}")

    def unplug(self, name: str, subsystem: str = "drm") -> None:
        path = f"sys/devices/virtual/{subsystem}/{name}"
        self.tree.folders[f"sys/class/{subsystem}"].discard(name)
        for table in (self.tree.files, self.tree.links, self.tree.folders):
            for known in [one for one in table if one == path or one.startswith(path + "/")]:
                table.pop(known)


@pytest.fixture
def machine() -> Machine:
    made = Machine()
    made.plug("card0")
    return made


Feed = Callable[..., None]


@pytest.fixture
def fed(machine: Machine) -> Iterator[tuple[Monitor, Feed]]:
    """A monitor at one end of a socket pair, and a function that sends messages into the other end."""
    far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    watching = Monitor(machine.context, UeventSocket(near, lambda _sender: True))

    def feed(data: bytes | None = None, **texts: str) -> None:
        far.send(kernel_message(**texts) if data is None else data)

    with far, watching:
        yield watching, feed


def test_messages_become_devices(fed: tuple[Monitor, Feed]) -> None:
    watching, feed = fed
    assert watching.poll(0) is None
    feed(**ADD)
    device = watching.poll(1)
    assert device is not None
    assert (device.action, device.sys_name, device.subsystem, device.origin) == ("add", "card7", "drm", "kernel")
    assert (device.device_node, device.sequence_number, device.is_initialized) == ("/dev/dri/card7", 9, False)
    extra = {"TAGS": ":seat:", "DEVLINKS": "/dev/a /dev/b", "USEC_INITIALIZED": "5", "MAJOR": "226", "MINOR": "7"}
    feed(udev_message({**ADD, **extra}))
    device = watching.poll(1)
    assert device is not None
    assert device.origin == "udev"
    assert device.is_initialized
    assert device.tags == ("seat",)
    assert list(device.device_links) == ["/dev/a", "/dev/b"]
    assert device.device_number == os.makedev(226, 7)
    assert watching.poll(0) is None
    assert watching.counters.accepted == 2


def test_rubbish_is_counted_and_passed_over(fed: tuple[Monitor, Feed]) -> None:
    watching, feed = fed
    feed(b"rubbish")
    feed(b"")
    feed(b"x" * (netlink.LARGEST + 1))
    feed(**ADD)
    device = watching.poll(1)
    assert device is not None
    assert device.sys_name == "card7"
    assert watching.counters.malformed == 3
    assert watching.poll(0) is None


def test_an_ordinary_process_is_not_believed(machine: Machine) -> None:
    far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with far, Monitor(machine.context, UeventSocket(near)) as watching:  # with the real rule
        far.send(kernel_message(**ADD))
        assert watching.poll(0) is None
        assert isinstance(watching, Monitor)
        assert watching.counters.untrusted == 1


def test_filters(fed: tuple[Monitor, Feed]) -> None:
    watching, feed = fed
    watching.filter_by("drm", "drm_minor")
    watching.filter_by("accel")
    for name, subsystem, kind in (("a", "drm", "x"), ("b", "drm", "drm_minor"), ("c", "accel", "y"), ("d", "net", "z")):
        feed(ACTION="add", DEVPATH=f"/devices/virtual/{subsystem}/{name}", SUBSYSTEM=subsystem, DEVTYPE=kind)
    assert [device.sys_name for device in iter(lambda: watching.poll(0), None)] == ["b", "c"]
    watching.remove_filter()
    watching.filter_by_tag("seat")
    feed(**ADD)
    feed(TAGS=":seat:", **ADD)
    device = watching.poll(0)
    assert device is not None
    assert device.tags == ("seat",)
    assert watching.poll(0) is None


def test_poll_waits_no_longer_than_asked(fed: tuple[Monitor, Feed]) -> None:
    watching, _ = fed
    start = time.monotonic()
    assert watching.poll(0.1) is None
    assert 0.09 < time.monotonic() - start < 5


def test_a_wrong_source_is_refused(machine: Machine) -> None:
    with pytest.raises(ValueError, match="kernel, udev"):
        Monitor.from_netlink(machine.context, "dbus")


def test_lost_events_are_made_up_for(machine: Machine) -> None:
    far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock = Losing(near)
    machine.plug("card1", driver="old")
    with far, Monitor(machine.context, sock) as watching:
        machine.plug("card2")
        far.send(kernel_message(ACTION="add", DEVPATH="/devices/virtual/drm/card2", SUBSYSTEM="drm"))
        machine.plug("card3", driver="xe")
        machine.unplug("card0")
        machine.bind("card1", "drm", "new")
        sock.lose = 2
        events = [
            (device.action, device.sys_name, device.driver, device.origin)
            for device in iter(lambda: watching.poll(0), None)
        ]
    # What still waited comes first and is not told a second time; then what the listing shows.
    assert events == [
        ("add", "card2", None, "kernel"),
        ("remove", "card0", None, "poll"),
        ("unbind", "card1", "old", "poll"),
        ("bind", "card1", "new", "poll"),
        ("add", "card3", "xe", "poll"),
    ]
    assert sock.counters.overflows == 2


def test_what_no_list_shows_is_not_taken_for_gone(machine: Machine) -> None:
    far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock = Losing(near)
    with far, Monitor(machine.context, sock) as watching:
        far.send(kernel_message(ACTION="add", DEVPATH="/module/xe", SUBSYSTEM="module"))
        assert watching.poll(0) is not None
        sock.lose = 1
        assert watching.poll(0) is None


def test_the_kernels_word_for_a_full_buffer(machine: Machine) -> None:
    class Full:
        def recvmsg(self, *_sizes: int) -> Any:
            raise OSError(errno.ENOBUFS, "No buffer space available")

    far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with far, near:
        sock = UeventSocket(near)
        sock.sock = Full()  # type: ignore[assignment]
        with pytest.raises(Overflow):
            sock.receive()
        assert sock.counters.overflows == 1


def polled(machine: Machine, *subsystems: str) -> MonitorPoll:
    made = MonitorPoll(machine.context, interval=0.0)
    for subsystem in subsystems:
        made.filter_by(subsystem)
    made.start()
    return made


def test_polling_sees_what_comes_goes_and_is_bound(machine: Machine) -> None:
    watching = polled(machine, "drm")
    watching.interval = 0.05
    assert watching.poll(0) is None
    machine.plug("card1", driver="xe")
    machine.plug("null", "mem")
    device = watching.poll(1)
    assert device is not None
    assert (device.action, device.sys_name, device.driver, device.origin) == ("add", "card1", "xe", "poll")
    assert (device.device_node, device.sequence_number) == ("/dev/dri/card1", 0)
    machine.bind("card1", "drm", None)
    device = watching.poll(1)
    assert device is not None
    assert (device.action, device.sys_name, device.properties.get("DRIVER")) == ("unbind", "card1", "xe")
    machine.bind("card1", "drm", "xe")
    device = watching.poll(1)
    assert device is not None
    assert (device.action, device.driver) == ("bind", "xe")
    machine.unplug("card1")
    device = watching.poll(1)
    assert device is not None
    assert (device.action, device.device_node) == ("remove", "/dev/dri/card1")  # still known after it has gone
    assert watching.poll(0.1) is None


def test_polling_sees_a_device_that_was_replaced_between_two_looks(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 1
    monkeypatch.setattr(monitor.Registry, "_generation", lambda self, device: number)
    watching = polled(machine)
    watching.interval = 0.05
    assert watching.poll(0) is None
    number = 2
    events = [watching.poll(1), watching.poll(1)]
    assert [device and device.action for device in events] == ["remove", "add"]
    assert watching.poll(0.1) is None


def test_polling_does_not_look_before_its_time(machine: Machine) -> None:
    watching = polled(machine)
    watching.interval = 60
    watching.poll(0)  # the look that was due
    machine.plug("card1")
    assert watching.poll(0.05) is None
    assert 50 < watching.due_in <= 60
    with pytest.raises(OSError, match="no file descriptor"):
        watching.fileno()


# -- real events -------------------------------------------------------------------------------------------------------


@pytest.fixture
def live() -> Context:
    """This machine, where a test may make real events."""
    poke()
    return Context(SysRoot(LiveTree()))


@pytest.fixture
def loop() -> Iterator[Callable[[int, int], None]]:
    with loop_devices() as act:
        yield act


def mine(watching: Monitor, name: str, seconds: float = 5.0) -> Any:
    """The next event of one device: others may happen meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        device = watching.poll(end - time.monotonic())
        if device is not None and device.sys_name == name:
            return device
    pytest.fail(f"no event of {name} within {seconds} s; counters {watching.counters}")


def test_a_real_change_event(live: Context) -> None:
    with Monitor.from_netlink(live, "kernel") as watching:
        assert isinstance(watching, Monitor)
        watching.filter_by("mem")
        poke()
        device = mine(watching, "null")
        assert device.action == "change"
        assert device.sys_path == NULL
        assert device.device_node == "/dev/null"
        assert device.device_number == os.makedev(1, 3)
        assert device.properties["SYNTH_UUID"] == "0"
        assert device.sequence_number > 0
        assert watching.counters.malformed == 0


def test_real_add_and_remove_events_by_netlink_and_by_polling(live: Context, loop: Callable[[int, int], None]) -> None:
    polling = MonitorPoll(live, interval=0.05)
    polling.filter_by("block")
    polling.start()
    with Monitor.from_netlink(live, "kernel") as watching:
        assert isinstance(watching, Monitor)
        watching.filter_by("block")
        for request, action in ((LOOP_ADD, "add"), (LOOP_REMOVE, "remove")):
            loop(request, 77)
            device = mine(watching, "loop77")
            assert (device.action, device.device_node, device.device_type) == (action, "/dev/loop77", "disk")
            found = polling.poll(5)
            assert found is not None
            assert (found.action, found.sys_path, found.device_node) == (action, device.sys_path, device.device_node)


def test_a_real_overflow_is_said_and_made_up_for(live: Context, loop: Callable[[int, int], None]) -> None:
    sock = UeventSocket.open("kernel")
    sock.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel's smallest buffer: some events
    with Monitor(live, sock) as watching:
        assert isinstance(watching, Monitor)
        watching.filter_by("block")
        poke(40)
        loop(LOOP_ADD, 78)
        device = mine(watching, "loop78")
        assert device.action == "add"
        assert device.origin == "poll"  # its own message was lost
        assert watching.counters.overflows >= 1
        assert [one.sys_name for one in iter(lambda: watching.poll(0), None)] == []


def test_a_root_process_cannot_play_the_kernel(live: Context) -> None:
    """Multicast to the kernel's group is possible for root; the credentials still tell."""
    with Monitor.from_netlink(live, "kernel") as watching:
        assert isinstance(watching, Monitor)
        sender = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.NETLINK_KOBJECT_UEVENT)
        with sender:
            try:
                sender.sendto(kernel_message(**ADD), (0, netlink.GROUPS["kernel"]))
            except PermissionError:
                pytest.skip("this root lacks CAP_NET_ADMIN: it cannot even try")
        watching.filter_by("drm")  # what the message claims to be about
        end = time.monotonic() + 5
        while not watching.counters.untrusted and time.monotonic() < end:
            assert watching.poll(0.1) is None
        assert watching.counters.untrusted == 1


def test_the_receive_buffer_can_grow(live: Context) -> None:
    with Monitor.from_netlink(live, "kernel") as watching:
        assert isinstance(watching, Monitor)
        assert watching.set_receive_buffer_size(1 << 20) >= 4096
