"""Power states first, then temperatures, power, fans and clocks of the devices that are awake.

hwmon folders are numbered in the order of loading, so a sensor is found by the device it belongs to and never by a
number: probe has listed the folders below each device, and a driver that registers its sensors twice
(tenstorrent/tt-kmd#25) gives one row. Reading a sensor asks the chip, which wakes it where it sleeps
(aristocratos/btop#738, amdgpu_top#90): of a suspended device nothing is read but its power state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from accelctl.abi.telemetryrows import hertz, microwatts, milli_celsius, rpm
from accelctl.hal.root import Converter, SysRoot
from accelctl.model.convert import whole
from accelctl.model.device import Device
from accelctl.model.snapshot import Gone
from accelctl.telemetry.source import Draft, Tick

ASLEEP = ("suspended", "suspending")
"""Words of runtime_status (Documentation/ABI/testing/sysfs-devices-power)."""
WHEN_AWAKE = (
    "busy_ratio", "temperature_celsius", "power_mw", "fan_rpm", "clock_hz", "memory_total_bytes", "memory_used_bytes",
)  # fmt: skip
"""Numbers whose source is the device or its driver."""


def folder(device: Device) -> str:
    """How the files of a device are recognised among paths, in /sys and in /proc."""
    return f"/{device.path.rpartition('/')[2]}/"


class Devices:
    """A row for each device: what it is, and whether it sleeps. The first source of a tick: the others ask it."""

    name = "power states"

    def __init__(self, root: SysRoot, devices: Iterable[Device]) -> None:
        self._root, self._devices = root, list(devices)

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Source."""
        asleep = []
        for device in self._devices:
            state = self._state(draft, device)
            draft.devices.setdefault(device.id, {}).update(_identity(device), power_state=state, asleep=False)
            if state in ASLEEP or self._idle(draft, device):
                asleep.append(folder(device))
            if state in ASLEEP:
                draft.devices[device.id]["asleep"] = True
                for name in WHEN_AWAKE:
                    draft.gone(device.id, name, Gone("asleep"))
        self._root.asleep = asleep

    def _state(self, draft: Draft, device: Device) -> str:
        known = device.reading("power/runtime_status")
        if known is None or (known.absence is not None and known.absence.kind in ("not_offered", "not_captured")):
            return ""
        draft.reads += 1
        reading = self._root.read(known.source)
        if reading.present:
            draft.sources[f"devices/{device.id}/power_state"] = known.source
        return str(reading.value or "")

    def _idle(self, draft: Draft, device: Device) -> bool:
        """Awake, used by nobody, and allowed to sleep: it will in a moment, unless somebody keeps asking its chip
        (each read of an amdgpu sensor starts the time to autosuspend again). So files that wake are left alone then;
        runtime_usage is told by kernels with CONFIG_PM_ADVANCED_DEBUG, which distributions have."""
        usage = device.reading("power/runtime_usage")
        if device.value("power/control") != "auto" or usage is None or not usage.present:
            return False
        draft.reads += 1
        return bool(self._root.read(usage.source, "int").value == 0)

    def close(self) -> None:
        """The root keeps the files."""


def _identity(device: Device) -> dict[str, str]:
    facts = {"name": device.value("name"), "driver": device.value("driver_of_minor") or device.value("driver")}
    return {key: str(value or "") for key, value in (*facts.items(), ("chip", device.chip))}


class Sensor(NamedTuple):
    """One number of a hwmon folder: a field of DeviceLevel, the fact of probe it is, and what to make of its text."""

    field: str
    fact: re.Pattern[str]
    convert: Converter


#: Of several that fit, the one with the lowest number is the device's own: temp1 is the edge or package, power1 the
#: card (Documentation/gpu/amdgpu/thermal.rst, ABI sysfs-driver-intel-xe-hwmon). ``average`` goes before ``input``,
#: which amdgpu's APUs and newest GPUs have instead.
SENSORS = (
    Sensor("temperature_celsius", re.compile(r"temp([0-9]+)/input_celsius"), milli_celsius),
    Sensor("power_mw", re.compile(r"power([0-9]+)/average_mw"), microwatts),
    Sensor("power_mw", re.compile(r"power([0-9]+)/input_mw"), microwatts),
    Sensor("fan_rpm", re.compile(r"fan([0-9]+)/input_rpm"), rpm),
    Sensor("clock_hz", re.compile(r"freq([0-9]+)/input_hz"), hertz),
)
_ENERGY = re.compile(r"energy([0-9]+)/input_uj")
_FIELDS = tuple(dict.fromkeys(sensor.field for sensor in SENSORS))


@dataclass
class Meter:
    """An energy counter, from which power is made: i915 and xe have no file of their own for it."""

    path: str
    before: tuple[int, int] | None = None
    """Microjoules, and when."""


class Sensors:
    """hwmon of every device that is awake."""

    name = "sensors"

    def __init__(self, root: SysRoot, devices: Iterable[Device]) -> None:
        self._root = root
        self._sensors = [(device, list(_sensors(device)), _meter(device)) for device in devices]

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Source."""
        for device, sensors, meter in self._sensors:
            if device.id in tick.asleep:
                if meter is not None:
                    meter.before = None
                continue
            self._sample(draft, device, sensors)
            if meter is not None and "power_mw" not in draft.devices.get(device.id, {}):
                self._power(draft, tick, device, meter)

    def _sample(self, draft: Draft, device: Device, sensors: list[tuple[Sensor, str]]) -> None:
        done: set[str] = set()
        for sensor, path in sensors:
            if sensor.field not in done:
                draft.reads += 1
                reading = self._root.read(path, sensor.convert)
                draft.take(device.id, sensor.field, reading)
                if reading.present:
                    done.add(sensor.field)
        offered = {sensor.field for sensor, _ in sensors}
        for name in _FIELDS:
            if name not in offered:
                draft.gone(device.id, name, _none(self._root, device))

    def _power(self, draft: Draft, tick: Tick, device: Device, meter: Meter) -> None:
        """Microjoules per second. The counter may start again, or stand still (in a captured machine): then
        there is no power in this tick, for nothing that is on draws none."""
        draft.reads += 1
        reading = self._root.read(meter.path, whole)
        before, meter.before = meter.before, None
        if not reading.present:
            draft.take(device.id, "power_mw", reading)
            return
        meter.before = reading.value, tick.monotonic_ns
        if before is None or reading.value <= before[0] or tick.monotonic_ns <= before[1]:
            draft.gone(device.id, "power_mw", Gone("empty", "made of two readings of a rising energy counter"))
            return
        watts = (reading.value - before[0]) * 1000 / (tick.monotonic_ns - before[1])
        draft.level(device.id, "power_mw", round(watts * 1000, 1), f"computed: difference of {meter.path}")

    def close(self) -> None:
        """The root keeps the files."""


def _none(root: SysRoot, device: Device) -> Gone:
    known = device.reading("sensors")
    if known is not None and known.absence is not None:
        return Gone(known.absence.kind, known.absence.detail or "", known.absence.fix or "")
    return Gone(root.why_missing, "no sensor of this kind in its hwmon folders")


def _by_number(device: Device, pattern: re.Pattern[str]) -> Iterator[str]:
    """Files that fit, lowest channel first, the first folder's before those of others."""
    folders: dict[str, list[tuple[int, str]]] = {}
    for key, reading in device.under("sensors").items():
        _, chip, rest = key.split("/", 2)
        if match := pattern.fullmatch(rest):
            folders.setdefault(chip, []).append((int(match.group(1)), reading.source))
    for found in folders.values():
        yield from (path for _, path in sorted(found))


def _sensors(device: Device) -> Iterator[tuple[Sensor, str]]:
    for sensor in SENSORS:
        for path in _by_number(device, sensor.fact):
            yield sensor, path
            break


def _meter(device: Device) -> Meter | None:
    path = next(_by_number(device, _ENERGY), None)
    return None if path is None else Meter(path)
