"""pyudev (that is, libudev) as the judge of accelctl.hal.udev, on whatever machine this runs.

Only the standard library, accelctl and pyudev are used, so that the same function runs in the guest. A difference is
one line that names device, field and both answers; an empty list means equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from accelctl.hal.root import SysRoot
from accelctl.hal.tree import LiveTree
from accelctl.hal.udev import Context, Device, DeviceNotFoundError, Devices

#: These change between two reads of one device.
MOVING = frozenset({"USEC_INITIALIZED"})
#: Sets that libudev prints in the order of its hash table.
UNORDERED = {"DEVLINKS": " ", "TAGS": ":", "CURRENT_TAGS": ":"}
#: Attributes that cannot change between two reads and that every kernel has somewhere.
STEADY = ("dev", "vendor", "device", "class", "revision", "uevent", "driver", "subsystem", "modalias", "type", "nope")
PROPERTIES = (
    "sys_path", "sys_name", "sys_number", "device_path", "subsystem", "driver", "device_node", "device_number",
    "device_type", "is_initialized",
)  # fmt: skip


class Verdict(NamedTuple):
    """How many devices, properties and attributes were compared, and what differed."""

    devices: int
    properties: int
    attributes: int
    differences: list[str]


def pyudev_context() -> Any:
    """pyudev's Context; ImportError with the reason when pyudev or libudev is missing."""
    return _pyudev().Context()


def compare(root: SysRoot | None = None, *, limit: int = 40) -> Verdict:
    """Every device of the running machine, by every question that both sides answer."""
    theirs = pyudev_context()
    ours = Context(root or SysRoot(LiveTree()))
    return _Comparison(ours, theirs, limit).run()


class _Comparison:
    def __init__(self, ours: Context, theirs: Any, limit: int) -> None:
        self.ours, self.theirs, self.limit = ours, theirs, limit
        self.differences: list[str] = []
        self.properties = self.attributes = 0

    def run(self) -> Verdict:
        before = {device.sys_path for device in self.theirs.list_devices()}
        mine = {device.sys_path: device for device in self.ours.list_devices()}
        after = {device.sys_path: device for device in self.theirs.list_devices()}
        # A device that came or went meanwhile is nobody's mistake.
        self._equal("all devices", "missing", sorted((before & after.keys()) - mine.keys()), [])
        self._equal("all devices", "invented", sorted(mine.keys() - (before | after.keys())), [])
        self._equal("all devices", "order", list(mine), sorted(mine))
        common = [path for path in mine if path in before and path in after]
        for path in common:
            self._device(mine[path], after[path])
        self._lookups([mine[path] for path in common])
        self._pseudo()
        self._filters(common)
        return Verdict(len(common), self.properties, self.attributes, self.differences[: self.limit])

    def _equal(self, device: str, field: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            self.differences.append(f"{device}: {field}: ours {ours!r}, pyudev {theirs!r}")

    def _device(self, ours: Device, theirs: Any) -> None:
        for name in PROPERTIES:
            self._equal(ours.sys_path, name, getattr(ours, name), getattr(theirs, name))
        self._equal(ours.sys_path, "device_links", sorted(ours.device_links), sorted(theirs.device_links))
        self._equal(ours.sys_path, "tags", sorted(ours.tags), sorted(theirs.tags))
        self._relatives(ours, theirs)
        # Of fresh objects: sd-device adds DRIVER to the properties when it was once asked for the driver.
        fresh = Devices.from_sys_path(self.ours, ours.sys_path)
        self._properties(fresh, dict(_fresh(self.theirs, ours.sys_path).properties))
        for name in STEADY:
            self.attributes += 1
            self._equal(ours.sys_path, f"attribute {name}", ours.attributes.get(name), theirs.attributes.get(name))
        extra = set(ours.attributes.available_attributes) - set(theirs.attributes.available_attributes)
        self._equal(ours.sys_path, "available_attributes only ours", sorted(extra), [])

    def _relatives(self, ours: Device, theirs: Any) -> None:
        parent = theirs.parent
        self._equal(ours.sys_path, "parent", _path(ours.parent), _path(parent))
        self._equal(ours.sys_path, "ancestors", _paths(ours.ancestors), _paths(theirs.ancestors))
        for subsystem in ("pci", "platform", "block"):
            found = _path(theirs.find_parent(subsystem))
            self._equal(ours.sys_path, f"find_parent({subsystem})", _path(ours.find_parent(subsystem)), found)

    def _properties(self, ours: Device, theirs: dict[str, str]) -> None:
        mine = dict(ours.properties)
        for pairs in (mine, theirs):
            for name in MOVING:
                if name in pairs:
                    pairs[name] = "present"
            for name, separator in UNORDERED.items():
                if name in pairs:
                    pairs[name] = " ".join(sorted(pairs[name].split(separator)))
        self.properties += len(theirs)
        for name in sorted(mine.keys() | theirs.keys()):
            self._equal(ours.sys_path, f"property {name}", mine.get(name), theirs.get(name))

    def _lookups(self, devices: Iterable[Device]) -> None:
        pyudev = _pyudev()
        for device in devices:
            pairs: list[tuple[str, tuple[Any, ...]]] = [("from_path", (device.device_path,))]
            if device.subsystem is not None:
                pairs.append(("from_name", (device.subsystem, device.sys_name)))
            if device.device_number:
                kind = "block" if device.subsystem == "block" else "char"
                pairs.append(("from_device_number", (kind, device.device_number)))
            for method, arguments in pairs:
                try:
                    theirs = getattr(pyudev.Devices, method)(self.theirs, *arguments).sys_path
                except pyudev.DeviceNotFoundError:
                    theirs = None
                try:
                    ours = getattr(Devices, method)(self.ours, *arguments).sys_path
                except DeviceNotFoundError:
                    ours = None
                self._equal(device.sys_path, f"{method}{arguments}", ours, theirs)

    def _pseudo(self) -> None:
        """Modules, drivers and subsystems are devices too, by name only."""
        root = self.ours.root
        names = [("module", name) for name in root.listdir("sys/module")[:5]]
        names += [("subsystem", name) for name in ("pci", "mem", "tty", "nothing")]
        for bus in ("pci", "platform"):
            names += [("drivers", f"{bus}:{name}") for name in root.listdir(f"sys/bus/{bus}/drivers")[:5]]
        for subsystem, name in names:
            answers: list[object] = []
            sides: tuple[tuple[Any, Any, Any], ...] = (
                (self.ours, Devices, DeviceNotFoundError),
                (self.theirs, _pyudev().Devices, _pyudev().DeviceNotFoundError),
            )
            for context, devices, missing in sides:
                try:
                    found = devices.from_name(context, subsystem, name)
                except missing:
                    answers.append(None)
                else:
                    answers.append((found.sys_path, found.sys_name, found.subsystem, dict(found.properties)))
            self._equal(f"{subsystem} {name}", "from_name", *answers)

    def _filters(self, common: list[str]) -> None:
        known = set(common)
        pci = next((path for path in common if "/pci0000:00/" in path), None)
        parents = [(self.ours.at(pci.lstrip("/")), _fresh(self.theirs, pci))] if pci else []
        questions: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        for keywords in (
            {"subsystem": "drm"}, {"subsystem": "mem"}, {"subsystem": "n*"}, {"sys_name": "null"},
            {"sys_name": "tty1*"}, {"DEVNAME": "/dev/*"}, {"MAJOR": "1"}, {"MAJOR": 1, "subsystem": "mem"},
            {"tag": "systemd"}, {"tag": "seat"}, {"subsystem": "nothing"},
        ):  # fmt: skip
            questions.append((str(keywords), dict(keywords), dict(keywords)))
        for ours, theirs in parents:
            questions.append((f"parent={pci}", {"parent": ours}, {"parent": theirs}))
        for label, mine, his in questions:
            answer = [path for path in _paths(self.ours.list_devices(**mine)) if path in known]
            judge = sorted(path for path in _paths(self.theirs.list_devices(**his)) if path in known)
            self._equal("filter", label, answer, judge)
        self._matchers(known)

    def _matchers(self, known: set[str]) -> None:
        steps: tuple[tuple[str, tuple[Any, ...]], ...] = (
            ("match_subsystem", ("tty", True)),
            ("match_attribute", ("dev", "1:3")),
            ("match_attribute", ("dev", "1:*", True)),
            ("match_is_initialized", ()),
        )
        for method, arguments in steps:
            answer = [p for p in _paths(getattr(self.ours.list_devices(), method)(*arguments)) if p in known]
            judge = sorted(p for p in _paths(getattr(self.theirs.list_devices(), method)(*arguments)) if p in known)
            self._equal("filter", f"{method}{arguments}", answer, judge)


def _pyudev() -> Any:
    import pyudev

    return pyudev


def _fresh(context: Any, sys_path: str) -> Any:
    return _pyudev().Devices.from_sys_path(context, sys_path)


def _path(device: Any) -> str | None:
    return None if device is None else str(device.sys_path)


def _paths(devices: Iterable[Any]) -> list[str]:
    return [device.sys_path for device in devices]
