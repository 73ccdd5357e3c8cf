"""udev's view of devices, in pyudev's vocabulary, without libudev.

Three plain sources: sysfs (``uevent`` files and links), udevd's database in /run/udev/data, and netlink for changes
(hal/monitor.py). Without udevd the database is missing and everything else still works. The rules here are those of
systemd's sd-device (src/libsystemd/sd-device/), and tests compare the outcome with pyudev device by device. Two
differences are meant: attributes are read through the list of files that may be opened, and nothing raises for a device
that vanishes while it is looked at.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property

from accelctl.errors import NoDeviceError
from accelctl.hal.root import SysRoot
from accelctl.hal.udevattr import Attributes, Properties
from accelctl.hal.udevdb import FOLDER, Database, normalise, number_of, pairs_of

CONTROL = "run/udev/control"  # udevd's own socket: libudev takes its absence as "no udevd runs"

_SUBSYSTEM_FOLDERS = ("sys/class/", "sys/bus/", "sys/subsystem/")
_TRAILING_DIGITS = re.compile(r"[0-9]+$")


class DeviceNotFoundError(NoDeviceError):
    """There is no such device (any more)."""


class Context:
    """One machine's devices: the running one, or a captured one."""

    sys_path = "/sys"
    device_path = "/dev"
    run_path = "/run/udev"

    def __init__(self, root: SysRoot) -> None:
        self.root = root

    @property
    def has_udevd(self) -> bool:
        """True while udevd listens on its control socket."""
        return self.root.exists(CONTROL)

    def list_devices(self, **match: object) -> Enumerator:
        """All devices, or those that fit; keywords as for :meth:`Enumerator.match`."""
        return Enumerator(self).match(**match)

    def at(self, path: str) -> Device | None:
        """The device whose folder is ``path`` (below the root, links followed), None where there is none."""
        real = self.root.resolve(path)
        if not real.startswith("sys/") or ".." in real.split("/"):
            return None
        if (real + "/").startswith("sys/devices/"):
            is_device = self.root.exists(real + "/uevent")
        else:
            stat = self.root.stat(real)
            is_device = stat is not None and stat.kind == "d"
        return Device(self, "/" + real) if is_device else None


class Devices:
    """Find one device; DeviceNotFoundError where there is none."""

    @staticmethod
    def _found(device: Device | None, what: str) -> Device:
        if device is None:
            raise DeviceNotFoundError(f"no device {what}")
        return device

    @classmethod
    def from_path(cls, context: Context, path: str) -> Device:
        """By sysfs folder, with or without the leading /sys."""
        if path != context.sys_path and not path.startswith(context.sys_path + "/"):
            path = f"{context.sys_path}/{path.lstrip('/')}"
        return cls.from_sys_path(context, path)

    @classmethod
    def from_sys_path(cls, context: Context, sys_path: str) -> Device:
        """By sysfs folder, /sys included."""
        return cls._found(context.at(sys_path.lstrip("/")), f"at {sys_path}")

    @classmethod
    def from_name(cls, context: Context, subsystem: str, sys_name: str) -> Device:
        """By subsystem and name; the pseudo-subsystems subsystem, module and drivers as sd-device has them."""
        if "/" in subsystem or ".." in sys_name.split("/"):
            raise DeviceNotFoundError(f"no device {sys_name} in {subsystem}")
        name = sys_name.replace("/", "!")
        places = [f"sys/bus/{subsystem}/devices/{name}", f"sys/class/{subsystem}/{name}"]
        if subsystem == "subsystem":
            places[:0] = [f"sys/bus/{sys_name}", f"sys/class/{sys_name}"]
        elif subsystem == "module":
            places.insert(0, f"sys/module/{sys_name}")
        elif subsystem == "drivers":
            bus, _, driver = sys_name.partition(":")
            places.insert(0, f"sys/bus/{bus}/drivers/{driver}")
        found = next((device for device in map(context.at, places) if device is not None), None)
        return cls._found(found, f"{sys_name} in {subsystem}")

    @classmethod
    def from_device_number(cls, context: Context, typ: str, number: int) -> Device:
        """By device number (os.makedev) of a "char" or "block" node."""
        kind = {"c": "char", "b": "block"}.get(typ[:1])
        pair = f"{os.major(number)}:{os.minor(number)}"
        return cls._found(context.at(f"sys/dev/{kind}/{pair}") if kind else None, f"with {typ} number {pair}")

    @classmethod
    def from_device_file(cls, context: Context, filename: str) -> Device:
        """By node; the node is looked at, never opened."""
        node = context.root.stat(filename.lstrip("/"))
        if node is None or node.kind not in ("c", "b"):
            raise DeviceNotFoundError(f"{filename} is not a device node")
        return cls.from_device_number(context, node.kind, os.makedev(node.major, node.minor))


class Enumerator:
    """A filtered list of devices.

    Filters of one kind are alternatives, except that tags and attributes must all fit; kinds add up. Texts are globs.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self._subsystems: list[str] = []
        self._not_subsystems: list[str] = []
        self._names: list[str] = []
        self._properties: list[tuple[str, str]] = []
        self._attributes: list[tuple[str, str]] = []
        self._not_attributes: list[tuple[str, str]] = []
        self._tags: list[str] = []
        self._parents: list[str] = []
        self._initialized = False

    def match(self, **wanted: object) -> Enumerator:
        """Keywords subsystem, sys_name, tag and parent; every other one is a property."""
        for name, value in wanted.items():
            if value is None:
                continue
            if name == "parent":
                if not isinstance(value, Device):
                    raise TypeError("parent must be a Device")
                self.match_parent(value)
            elif name in ("subsystem", "sys_name", "tag"):
                getattr(self, "match_" + name)(str(value))
            else:
                self.match_property(name, value)
        return self

    def match_subsystem(self, subsystem: str, nomatch: bool = False) -> Enumerator:
        """Devices of this subsystem, or with ``nomatch`` of any other."""
        (self._not_subsystems if nomatch else self._subsystems).append(subsystem)
        return self

    def match_sys_name(self, sys_name: str) -> Enumerator:
        """Devices of this name, as it stands in sysfs."""
        self._names.append(sys_name)
        return self

    def match_property(self, prop: str, value: object) -> Enumerator:
        """Devices with this property; True and False stand for "1" and "0"."""
        self._properties.append((prop, _text(value)))
        return self

    def match_attribute(self, attribute: str, value: object, nomatch: bool = False) -> Enumerator:
        """Devices with this attribute; one that may not be opened counts as absent."""
        (self._not_attributes if nomatch else self._attributes).append((attribute, _text(value)))
        return self

    def match_tag(self, tag: str) -> Enumerator:
        """Devices with this tag."""
        self._tags.append(tag)
        return self

    def match_is_initialized(self) -> Enumerator:
        """Leave out devices with a node or an interface that udevd has not handled yet."""
        self._initialized = True
        return self

    def match_parent(self, parent: Device) -> Enumerator:
        """The parent and everything below it."""
        self._parents.append(parent.sys_path)
        return self

    def __iter__(self) -> Iterator[Device]:
        """Devices in the order of their paths, each once although many are in a class and on a bus."""
        found: dict[str, Device] = {}
        for path in self._candidates():
            device = self.context.at(path)
            if device is not None and device.sys_path not in found and self._fits(device):
                found[device.sys_path] = device
        return iter([found[path] for path in sorted(found)])

    def _candidates(self) -> Iterator[str]:
        for base, below in (("sys/bus", "/devices"), ("sys/class", "")):
            for subsystem in self.context.root.listdir(base):
                if not self._wants(subsystem):
                    continue
                folder = f"{base}/{subsystem}{below}"
                for name in self.context.root.listdir(folder):
                    if not self._names or _any(name, self._names):
                        yield f"{folder}/{name}"

    def _wants(self, subsystem: str) -> bool:
        if _any(subsystem, self._not_subsystems):
            return False
        return not self._subsystems or _any(subsystem, self._subsystems)

    def _fits(self, device: Device) -> bool:
        path = device.sys_path + "/"
        return (
            (not self._parents or any(path.startswith(parent + "/") for parent in self._parents))
            and (not self._initialized or device.is_initialized or not device.needs_udevd)
            and all(tag in device.tags for tag in self._tags)
            and (not self._properties or any(_has(device.properties, *wanted) for wanted in self._properties))
            and all(_shows(device, *wanted) for wanted in self._attributes)
            and not any(_shows(device, *wanted) for wanted in self._not_attributes)
        )


def _any(text: str, globs: list[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _has(properties: Mapping[str, str], name: str, value: str) -> bool:
    return any(fnmatchcase(key, name) and fnmatchcase(text, value) for key, text in properties.items())


def _shows(device: Device, attribute: str, value: str) -> bool:
    data = device.attributes.get(attribute)
    return data is not None and fnmatchcase(data.decode("utf-8", "replace"), value)


class Device:
    """One device, equal by :attr:`device_path` as in pyudev. ``event``: the texts of the event that it came with.

    ``origin`` is "sysfs" for a device that was looked up, else the source of the event: kernel, udev or poll.
    """

    def __init__(
        self, context: Context, sys_path: str, event: Mapping[str, str] | None = None, *, origin: str = "sysfs"
    ) -> None:
        self.context = context
        self.sys_path = sys_path
        self.origin = origin
        self._event = event
        self._path = sys_path.lstrip("/")

    @classmethod
    def from_event(cls, context: Context, properties: Mapping[str, str], origin: str) -> Device:
        """The device of an event, described by the event alone: by now it may have gone. DEVPATH must be there."""
        return cls(context, context.sys_path + properties["DEVPATH"], properties, origin=origin)

    # -- names ---------------------------------------------------------------------------------------------------------

    @property
    def device_path(self) -> str:
        """The path below /sys, as events name it."""
        return self.sys_path[len(self.context.sys_path) :]

    @property
    def sys_name(self) -> str:
        """The last component; the kernel writes "!" for "/"."""
        return self.sys_path.rpartition("/")[2].replace("!", "/")

    @property
    def sys_number(self) -> str | None:
        """The digits at the end of the name."""
        match = _TRAILING_DIGITS.search(self.sys_name)
        return match.group() if match and match.start() > 0 else None

    @cached_property
    def subsystem(self) -> str | None:
        """The class or bus it belongs to; None for the few plain folders of the device tree (pci0000:00)."""
        if self._event is not None and "SUBSYSTEM" in self._event:
            return self._event["SUBSYSTEM"]
        link = self._link("subsystem")
        if link is not None:
            return link
        if self._path.startswith("sys/module/"):
            return "module"
        if "/drivers/" in self._path:
            return "drivers"
        return "subsystem" if self._path.startswith(_SUBSYSTEM_FOLDERS) else None

    @cached_property
    def driver(self) -> str | None:
        """The driver bound to it."""
        named = self._event.get("DRIVER") if self._event is not None else None
        return named or self._link("driver")

    def _link(self, name: str) -> str | None:
        target = self.context.root.link(f"{self._path}/{name}").value
        return target if isinstance(target, str) and target else None

    # -- properties ----------------------------------------------------------------------------------------------------

    @cached_property
    def _uevent(self) -> dict[str, str]:
        """The kernel's own properties: its ``uevent`` file, or the event."""
        if self._event is not None:
            pairs = dict(self._event)
        else:
            data = self.context.root.data(self._path + "/uevent") or b""
            pairs = dict(pairs_of(data.decode("utf-8", "replace")))
        normalise(pairs)
        return pairs

    @cached_property
    def _database(self) -> Database:
        if self._event is not None:
            return Database.from_event(self._event, self.origin == "udev")
        name = self.database_name
        data = self.context.root.data(f"{FOLDER}/{name}") if name else None
        return Database() if data is None else Database.parse(data.decode("utf-8", "replace"))

    @property
    def database_name(self) -> str | None:
        """The file below /run/udev/data: c226:0, b8:0, n3, +pci:0000:03:00.0."""
        if self.subsystem is None:
            return None
        number = self.device_number
        if number:
            return f"{'b' if self.subsystem == 'block' else 'c'}{os.major(number)}:{os.minor(number)}"
        if "IFINDEX" in self._uevent:
            return "n" + self._uevent["IFINDEX"]
        name = self._path.rpartition("/")[2]
        if self.subsystem == "drivers":  # the bus too, or two buses' drivers of one name would share an entry
            name = f"{self._path.partition('/drivers/')[0].rpartition('/')[2]}:{name}"
        return f"+{self.subsystem}:{name}"

    @cached_property
    def properties(self) -> Properties:
        """All properties: the kernel's, then those that udev's rules added or changed."""
        if self._event is not None:
            return Properties(self._uevent)
        pairs = {"DEVPATH": self.device_path}
        if self.subsystem is not None:
            pairs["SUBSYSTEM"] = self.subsystem
        pairs.update(self._uevent)
        self._database.apply(pairs)
        return Properties(pairs)

    @property
    def device_node(self) -> str | None:
        """The node, as /dev/..."""
        return self._uevent.get("DEVNAME")

    @property
    def device_number(self) -> int:
        """As of os.makedev; 0 where there is no node."""
        major = number_of(self._uevent.get("MAJOR"))
        return os.makedev(major, number_of(self._uevent.get("MINOR"))) if major else 0

    @property
    def device_type(self) -> str | None:
        """DEVTYPE: drm_minor, disk, partition, ..."""
        return self._uevent.get("DEVTYPE")

    @property
    def device_links(self) -> Iterator[str]:
        """The links in /dev that udev's rules made."""
        return iter(self._database.links)

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags that rules attached, ever."""
        return tuple(self._database.tags)

    @property
    def is_initialized(self) -> bool:
        """True when udevd has handled it: it has an entry in the database."""
        return self._database.present

    @property
    def needs_udevd(self) -> bool:
        """True for devices that udevd may still rename or give other permissions: those with a node or an interface."""
        return bool(self.device_number) or "IFINDEX" in self._uevent

    @property
    def time_since_initialized(self) -> timedelta:
        """Since udevd first handled it; zero where it never did."""
        when = self._database.initialized_usec
        elapsed = time.monotonic_ns() // 1000 - when if when else 0
        return timedelta(microseconds=max(elapsed, 0))

    @property
    def action(self) -> str | None:
        """add, remove, change, bind, unbind, move, online, offline; None for a device that was looked up."""
        return self._event.get("ACTION") if self._event is not None else None

    @property
    def sequence_number(self) -> int:
        """The kernel's number of the event; 0 for a device that was looked up or found by polling."""
        return number_of(self._event.get("SEQNUM")) if self._event is not None else 0

    # -- relatives -----------------------------------------------------------------------------------------------------

    @property
    def parent(self) -> Device | None:
        """The next device up the path."""
        path = self._path
        while path.count("/") > 1:
            path = path.rpartition("/")[0]
            found = self.context.at(path)
            if found is not None:
                return found
        return None

    @property
    def ancestors(self) -> Iterator[Device]:
        """Parent, its parent, and so on."""
        device = self.parent
        while device is not None:
            yield device
            device = device.parent

    @property
    def children(self) -> Iterator[Device]:
        """All devices below, direct or not."""
        return (device for device in self.context.list_devices().match_parent(self) if device != self)

    def find_parent(self, subsystem: str, device_type: str | None = None) -> Device | None:
        """The nearest ancestor of that subsystem (and type)."""
        for device in self.ancestors:
            if device.subsystem == subsystem and device_type in (None, device.device_type):
                return device
        return None

    @property
    def attributes(self) -> Attributes:
        """Files in the device's folder, as far as they may be opened."""
        return Attributes(self)

    def __eq__(self, other: object) -> bool:
        return self.device_path == (other.device_path if isinstance(other, Device) else other)

    def __hash__(self) -> int:
        return hash(self.device_path)

    def __repr__(self) -> str:
        return f"Device({self.sys_path!r})"
