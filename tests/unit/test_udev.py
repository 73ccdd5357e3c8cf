"""hal.udev on made-up trees, and on this machine with pyudev as the judge. Events: tests/unit/test_monitor.py."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.hal.root import SysRoot
from accelctl.hal.tree import DirTree, LiveTree, MemoryTree, NodeStat
from accelctl.hal.udev import Context, Device, DeviceNotFoundError, Devices
from accelctl.hal.udevdb import Database
from tests.oracles import udev_oracle

PCI = "sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0"
CARD = f"{PCI}/drm/card0"

FILES = {
    "sys/devices/pci0000:00/uevent": "",
    "sys/devices/pci0000:00/0000:00:01.0/uevent": "DRIVER=pcieport\nPCI_CLASS=60400\nPCI_ID=1022:1453\n",
    f"{PCI}/uevent": "DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_ID=1002:744C\nPCI_SLOT_NAME=0000:03:00.0\n",
    f"{PCI}/vendor": "0x1002\n",
    f"{PCI}/revision": "0xc8\n",
    f"{PCI}/reset": "",
    f"{PCI}/current_link_speed": "16.0 GT/s PCIe\n",
    f"{PCI}/power/runtime_status": "suspended\n",
    f"{PCI}/power/control": "auto\n",
    f"{CARD}/uevent": "MAJOR=226\nMINOR=0\nDEVNAME=dri/card0\nDEVTYPE=drm_minor\n",
    f"{CARD}/dev": "226:0\n",
    f"{CARD}/card0-DP-1/uevent": "DEVTYPE=drm_connector\n",
    f"{CARD}/card0-DP-1/status": "connected\n",
    "sys/devices/virtual/misc/net!tun/uevent": "MAJOR=10\nMINOR=200\nDEVNAME=net/tun\nDEVMODE=0666\n",
    "sys/devices/virtual/net/eth10/uevent": "INTERFACE=eth10\nIFINDEX=3\n",
    "sys/devices/virtual/block/sda/uevent": "MAJOR=8\nMINOR=0\nDEVNAME=sda\nDEVTYPE=disk\n",
    "sys/devices/virtual/odd/7/uevent": "MAJOR=0\nMINOR=5\nIFINDEX=-1\nnot a line\n=x\nEMPTY=\nTWICE=1\nTWICE=a=b\n",
    "sys/bus/pci/drivers/amdgpu/module_name": "",
    "sys/module/amdgpu/version": "1",
    "run/udev/data/c226:0": "S:dri/by-path/pci-0000:03:00.0-card\nL:10\nI:5000000\nE:ID_PATH=pci-0000:03:00.0\n"
    "E:DEVTYPE=\nG:seat\nG:master-of-seat\nG:old\nQ:seat\nQ:master-of-seat\nV:1\nW:7\n?:x\nbroken\nG:bad:tag\n",
    "run/udev/data/+pci:0000:03:00.0": "I:4000000\nE:ID_VENDOR_FROM_DATABASE=AMD\nV:1\n",
    "run/udev/data/n3": "I:1\nE:ID_NET_NAME=eth10\n",
    "run/udev/data/b8:0": "E:ID_SERIAL=x\n",
    "run/udev/data/+drivers:pci:amdgpu": "E:OF_DRIVER=1\n",
}
LINKS = {
    "sys/bus/pci/devices/0000:00:01.0": "../../../devices/pci0000:00/0000:00:01.0",
    "sys/bus/pci/devices/0000:03:00.0": "../../../devices/pci0000:00/0000:00:01.0/0000:03:00.0",
    "sys/class/drm/card0": "../../devices/pci0000:00/0000:00:01.0/0000:03:00.0/drm/card0",
    "sys/class/drm/card0-DP-1": "../../devices/pci0000:00/0000:00:01.0/0000:03:00.0/drm/card0/card0-DP-1",
    "sys/class/misc/net!tun": "../../devices/virtual/misc/net!tun",
    "sys/class/net/eth10": "../../devices/virtual/net/eth10",
    "sys/class/block/sda": "../../devices/virtual/block/sda",
    "sys/class/odd/7": "../../devices/virtual/odd/7",
    "sys/class/odd/gone": "../../devices/virtual/odd/gone",
    "sys/class/odd/loop": "loop",
    "sys/class/odd/out": "../../../etc",
    "sys/dev/char/226:0": "../../devices/pci0000:00/0000:00:01.0/0000:03:00.0/drm/card0",
    "sys/dev/block/8:0": "../../devices/virtual/block/sda",
    "sys/devices/pci0000:00/0000:00:01.0/subsystem": "../../../bus/pci",
    f"{PCI}/subsystem": "../../../../bus/pci",
    f"{PCI}/driver": "../../../../bus/pci/drivers/amdgpu",
    f"{CARD}/subsystem": "../../../../../../class/drm",
    f"{CARD}/device": "../../../0000:03:00.0",
    f"{CARD}/card0-DP-1/subsystem": "../../../../../../../class/drm",
    "sys/devices/virtual/misc/net!tun/subsystem": "../../../../class/misc",
    "sys/devices/virtual/net/eth10/subsystem": "../../../../class/net",
    "sys/devices/virtual/block/sda/subsystem": "../../../../class/block",
    "sys/devices/virtual/odd/7/subsystem": "../../../../class/odd",
}


def memory(*, database: bool = True) -> SysRoot:
    tree = MemoryTree("test")
    for path, text in FILES.items():
        if database or not path.startswith("run/"):
            tree.add_file(path, text.encode())
    for path, target in LINKS.items():
        tree.add_link(path, target)
    tree.add_node("dev/dri/card0", NodeStat("c", 0o660, 0, 44, 226, 0))
    tree.add_file("etc/passwd", b"")
    return SysRoot(tree)


@pytest.fixture
def context() -> Context:
    return Context(memory())


def test_names_and_numbers(context: Context) -> None:
    card = Devices.from_path(context, "/class/drm/card0")
    assert card.sys_path == "/" + CARD
    assert card.device_path == "/" + CARD.removeprefix("sys/")
    assert (card.sys_name, card.sys_number, card.subsystem, card.device_type) == ("card0", "0", "drm", "drm_minor")
    assert (card.device_node, card.device_number, card.driver) == ("/dev/dri/card0", os.makedev(226, 0), None)
    assert card.action is None
    assert card.sequence_number == 0
    tun = Devices.from_name(context, "misc", "net/tun")
    assert (tun.sys_name, tun.sys_number) == ("net/tun", None)
    assert Devices.from_name(context, "net", "eth10").sys_number == "10"
    odd = Devices.from_name(context, "odd", "7")
    assert odd.sys_number is None  # a name of digits alone has no number, as in libudev
    assert odd.device_number == 0
    function = Devices.from_name(context, "pci", "0000:03:00.0")
    assert function.driver == "amdgpu"
    assert function.device_node is None


def test_properties_join_uevent_and_database(context: Context) -> None:
    card = Devices.from_path(context, "/sys/class/drm/card0")
    assert dict(card.properties) == {
        "DEVPATH": "/" + CARD.removeprefix("sys/"),
        "SUBSYSTEM": "drm",
        "MAJOR": "226",
        "MINOR": "0",
        "DEVNAME": "/dev/dri/card0",
        "USEC_INITIALIZED": "5000000",
        "ID_PATH": "pci-0000:03:00.0",
        "DEVLINKS": "/dev/dri/by-path/pci-0000:03:00.0-card",
        "TAGS": ":seat:master-of-seat:old:",
        "CURRENT_TAGS": ":seat:master-of-seat:",
    }  # DEVTYPE went: an empty E: line takes a property away
    assert card.tags == ("seat", "master-of-seat", "old")
    assert list(card.device_links) == ["/dev/dri/by-path/pci-0000:03:00.0-card"]
    assert card.is_initialized
    assert card.time_since_initialized > timedelta(0)
    assert card.properties.asint("MAJOR") == 226
    odd = Devices.from_name(context, "odd", "7")
    assert dict(odd.properties) == {
        "DEVPATH": "/devices/virtual/odd/7",
        "SUBSYSTEM": "odd",
        "EMPTY": "",
        "TWICE": "a=b",
    }
    assert not odd.is_initialized
    assert odd.time_since_initialized == timedelta(0)


@pytest.mark.parametrize(
    ("subsystem", "name", "entry"),
    [
        ("drm", "card0", "c226:0"),
        ("block", "sda", "b8:0"),
        ("net", "eth10", "n3"),
        ("pci", "0000:03:00.0", "+pci:0000:03:00.0"),
        ("drivers", "pci:amdgpu", "+drivers:pci:amdgpu"),
        ("module", "amdgpu", "+module:amdgpu"),
        ("subsystem", "pci", "+subsystem:pci"),
    ],
)
def test_database_names(context: Context, subsystem: str, name: str, entry: str) -> None:
    device = Devices.from_name(context, subsystem, name)
    assert device.subsystem == subsystem
    assert device.database_name == entry
    assert device.is_initialized == (f"run/udev/data/{entry}" in FILES)


def test_without_udevd_only_sysfs_speaks() -> None:
    context = Context(memory(database=False))
    assert not context.has_udevd
    card = Devices.from_path(context, "/class/drm/card0")
    assert card.device_type == "drm_minor"
    assert not card.is_initialized
    assert card.tags == ()
    assert "ID_PATH" not in card.properties


def test_relatives(context: Context) -> None:
    card = Devices.from_path(context, "/class/drm/card0")
    assert [one.sys_name for one in card.ancestors] == ["0000:03:00.0", "0000:00:01.0", "pci0000:00"]
    function = card.parent
    assert function is not None
    assert [one.sys_name for one in function.children] == ["card0", "card0-DP-1"]
    found = card.find_parent("pci")
    assert found is not None
    assert found == function
    assert found == "/devices/pci0000:00/0000:00:01.0/0000:03:00.0"
    assert hash(found) == hash(function)
    assert card.find_parent("pci", "no_such_type") is None
    assert card.find_parent("usb") is None
    top = list(card.ancestors)[-1]
    assert top.subsystem is None
    assert top.database_name is None
    assert top.parent is None


def test_lookups(context: Context) -> None:
    assert Devices.from_device_number(context, "char", os.makedev(226, 0)).sys_name == "card0"
    assert Devices.from_device_number(context, "block", os.makedev(8, 0)).sys_name == "sda"
    assert Devices.from_device_file(context, "/dev/dri/card0").sys_name == "card0"
    assert Devices.from_sys_path(context, "/sys/class/drm/card0").sys_name == "card0"


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("from_path", ("/class/drm/card9",)),
        ("from_path", ("/../etc",)),
        ("from_path", ("/class/odd/out",)),
        ("from_path", ("/class/odd/loop",)),
        ("from_path", ("/devices/virtual/odd",)),  # a folder without uevent is no device
        ("from_sys_path", ("/etc/passwd",)),
        ("from_name", ("drm", "card9")),
        ("from_name", ("drm", "../odd/7")),
        ("from_name", ("../class/drm", "card0")),
        ("from_device_number", ("char", os.makedev(1, 2))),
        ("from_device_number", ("", 0)),
        ("from_device_file", ("/etc/passwd",)),
        ("from_device_file", ("/dev/none",)),
    ],
)
def test_what_is_no_device_is_said_in_one_line(context: Context, method: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(DeviceNotFoundError) as caught:
        getattr(Devices, method)(context, *arguments)
    assert "\n" not in caught.value.message


def names(devices: object) -> list[str]:
    return [device.sys_name for device in devices]  # type: ignore[attr-defined]


def test_enumeration_is_sorted_and_filters_add_up(context: Context) -> None:
    everything = list(context.list_devices())
    assert [one.sys_path for one in everything] == sorted(one.sys_path for one in everything)
    assert names(everything) == [
        "0000:00:01.0", "0000:03:00.0", "card0", "card0-DP-1", "sda", "net/tun", "eth10", "7",
    ]  # fmt: skip
    assert names(context.list_devices(subsystem="drm")) == ["card0", "card0-DP-1"]
    assert names(context.list_devices().match_subsystem("drm").match_subsystem("net")) == [
        "card0",
        "card0-DP-1",
        "eth10",
    ]
    assert "card0" not in names(context.list_devices().match_subsystem("drm", nomatch=True))
    assert names(context.list_devices(sys_name="card0")) == ["card0"]
    assert names(context.list_devices(sys_name="card*")) == ["card0", "card0-DP-1"]
    assert names(context.list_devices(tag="seat")) == ["card0"]
    assert names(context.list_devices(tag="seat").match_tag("none")) == []
    assert names(context.list_devices(DEVTYPE="drm_connector", MAJOR=8)) == ["card0-DP-1", "sda"]
    assert names(context.list_devices(subsystem="drm", MAJOR=226)) == ["card0"]
    assert names(context.list_devices(subsystem=None, MAJOR=226)) == ["card0"]
    assert names(context.list_devices().match_attribute("dev", "226:*")) == ["card0"]
    assert names(context.list_devices().match_attribute("vendor", "0x1002").match_attribute("revision", "0xc8")) == [
        "0000:03:00.0"
    ]
    assert names(context.list_devices().match_attribute("vendor", "0x1002").match_attribute("revision", "0")) == []
    assert names(context.list_devices(subsystem="pci").match_attribute("vendor", "0x1002", nomatch=True)) == [
        "0000:00:01.0"
    ]
    assert "net/tun" not in names(context.list_devices().match_is_initialized())  # a node that udevd has not handled
    assert "0000:00:01.0" in names(context.list_devices().match_is_initialized())  # no node: it need not be
    parent = Devices.from_name(context, "pci", "0000:03:00.0")
    assert names(context.list_devices(parent=parent)) == ["0000:03:00.0", "card0", "card0-DP-1"]
    with pytest.raises(TypeError):
        context.list_devices(parent="0000:03:00.0")


def test_attributes_keep_to_the_list_of_files_that_may_be_opened(context: Context) -> None:
    function = Devices.from_name(context, "pci", "0000:03:00.0")
    attributes = function.attributes
    assert attributes.get("vendor") == b"0x1002"
    assert attributes.asstring("revision") == "0xc8"
    assert attributes.get("driver") == b"amdgpu"
    assert attributes.get("reset") is None  # writing it resets the device, and it is not opened at all
    assert attributes.get("../0000:03:00.0/vendor") is None
    assert attributes.get("/vendor", b"default") == b"default"
    assert attributes.get("nothing") is None
    assert sorted(attributes.available_attributes) == [
        "current_link_speed", "driver", "power/control", "power/runtime_status", "revision", "subsystem", "uevent",
        "vendor",
    ]  # fmt: skip
    with pytest.raises(KeyError):
        attributes.asint("nothing")
    with pytest.raises(ValueError, match="invalid literal"):
        attributes.asint("power/control")
    with pytest.raises(ValueError, match="not a flag"):
        attributes.asbool("vendor")


def test_a_sleeping_device_is_left_asleep() -> None:
    root = memory()
    root.live, root.allow_wake = True, False  # a running machine, in all but its files
    function = Devices.from_name(Context(root), "pci", "0000:03:00.0")
    assert function.attributes.get("current_link_speed") is None
    assert f"{PCI}/current_link_speed" not in root.opened
    assert function.attributes.get("vendor") == b"0x1002"
    root.allow_wake = True
    assert function.attributes.get("current_link_speed") == b"16.0 GT/s PCIe"


def test_a_folder_gives_the_same_answers(tmp_path: Path) -> None:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for path, target in LINKS.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).symlink_to(target)
    ours = {one.sys_path: dict(one.properties) for one in Context(SysRoot(DirTree(str(tmp_path)))).list_devices()}
    assert ours == {one.sys_path: dict(one.properties) for one in Context(memory()).list_devices()}


def test_a_device_that_vanishes_answers_with_nothing(context: Context) -> None:
    gone = Device(context, "/sys/devices/virtual/odd/gone")
    assert dict(gone.properties) == {"DEVPATH": "/devices/virtual/odd/gone"}
    assert (gone.subsystem, gone.driver, gone.device_node, gone.is_initialized) == (None, None, None, False)
    assert list(gone.attributes.available_attributes) == []


@settings(max_examples=300, deadline=None)
@given(st.text(), st.binary(max_size=200))
def test_any_database_entry_and_any_uevent_are_read(text: str, uevent: bytes) -> None:
    Database.parse(text).apply({})
    root = memory()
    assert isinstance(root.tree, MemoryTree)
    root.tree.files[f"{CARD}/uevent"] = uevent
    root.tree.files["run/udev/data/c226:0"] = text.encode("utf-8", "replace")
    for device in Context(root).list_devices(subsystem="drm"):
        assert device.properties["DEVPATH"] == device.device_path or "DEVPATH" in text or b"DEVPATH" in uevent
        assert device.device_number >= 0
        assert isinstance(device.is_initialized, bool)


def _judge() -> None:
    try:
        udev_oracle.pyudev_context()
    except ImportError as error:
        pytest.skip(f"no judge for hal.udev: pyudev needs libudev ({error})")


def test_equal_to_pyudev_on_this_machine() -> None:
    _judge()
    verdict = udev_oracle.compare()
    assert verdict.differences == []
    assert verdict.devices > 10
    assert verdict.properties > 2 * verdict.devices  # DEVPATH and SUBSYSTEM at least


def test_the_comparison_with_pyudev_can_fail() -> None:
    _judge()

    class Blind(LiveTree):
        """A machine on which mem devices have no links and null another name."""

        def readlink(self, path: str) -> str:
            if "/mem/" in path:
                raise FileNotFoundError(path)
            return super().readlink(path)

        def listdir(self, path: str) -> list[str]:
            return [name for name in super().listdir(path) if name != "null"]

    differences = "\n".join(udev_oracle.compare(SysRoot(Blind()), limit=10_000).differences)
    assert "missing: ours ['/sys/devices/virtual/mem/null']" in differences
    assert "/sys/devices/virtual/mem/zero: subsystem: ours None, pyudev 'mem'" in differences
    assert "/sys/devices/virtual/mem/zero: property SUBSYSTEM" in differences
