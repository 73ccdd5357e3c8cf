"""hwmon folders of a device: temperatures, power, fans, voltages, clocks, energy, with the unit in the key.

Units of the files: Documentation/hwmon/sysfs-interface.rst (milli-degrees, micro-watts, millivolts, micro-joules,
hertz).
"""

from __future__ import annotations

import re

from accelctl.hal.root import Converter
from accelctl.model.convert import scaled
from accelctl.model.device import Device
from accelctl.model.reading import STABLE, VOLATILE
from accelctl.probes.context import Scan

_FILE = re.compile(r"(temp|power|fan|in|freq|energy|curr|pwm)([0-9]{1,9})(?:_([a-z][a-z0-9_]{0,40}))?\Z")
#: type -> (unit suffix of the key, unit, converter)
_UNITS: dict[str, tuple[str, str, str | Converter]] = {
    "temp": ("_celsius", "celsius", scaled(0.001)),
    "power": ("_mw", "mW", scaled(0.001)),
    "fan": ("_rpm", "rpm", "int"),
    "in": ("_mv", "mV", "int"),
    "freq": ("_hz", "Hz", "int"),
    "energy": ("_uj", "uJ", "int"),
    "curr": ("_ma", "mA", "int"),
}
_MEASURED = frozenset({"input", "average", "highest", "lowest", "input_highest", "input_lowest", "target"})
_PLAIN = frozenset({"enable", "fault", "alarm", "crit_alarm", "max_alarm", "min_alarm", "beep"})


def folders(scan: Scan, path: str) -> list[str]:
    """hwmon folders below a device folder, by name."""
    return [f"{path}/hwmon/{name}" for name in scan.root.listdir(f"{path}/hwmon") if name.startswith("hwmon")]


def describe(scan: Scan, device: Device) -> None:
    """Add ``sensors/<chip>/<channel>/<attribute>_<unit>``.

    The chip is the hwmon folder's own name (amdgpu, i915, xe): the folder's number depends on the order of loading and
    would make equal machines differ. A second folder of the same name gets its number behind it.
    """
    for folder in folders(scan, device.path):
        name = scan.root.read(f"{folder}/name")
        word = re.sub(r"[^A-Za-z0-9_.-]+", "_", str(name.value or folder.rpartition("/")[2]))[:64]
        base = f"sensors/{word}"
        if f"{base}/name" in device.facts:
            base = f"{base}_{sum(key.startswith(base) and key.endswith('/name') for key in device.facts) + 1}"
        device.facts[f"{base}/name"] = name
        for entry in scan.root.listdir(folder):
            if match := _FILE.match(entry):
                _channel(scan, device, folder, base, match)


def _channel(scan: Scan, device: Device, folder: str, base: str, match: re.Match[str]) -> None:
    kind, number, attribute = match.group(1), match.group(2), match.group(3)
    path = f"{folder}/{match.group(0)}"
    key = f"{base}/{kind}{number}"
    if attribute == "label":
        device.facts[f"{key}/label"] = scan.root.read(path)
    elif kind == "pwm" or attribute in _PLAIN or attribute is None:
        device.facts[f"{key}/{attribute or 'value'}"] = scan.root.read(path, "int", scope=VOLATILE)
    elif attribute.endswith("interval"):
        device.facts[f"{key}/{attribute}_ms"] = scan.root.read(path, "int", unit="ms")
    else:
        suffix, unit, conv = _UNITS[kind]
        scope = VOLATILE if attribute in _MEASURED else STABLE
        device.facts[f"{key}/{attribute}{suffix}"] = scan.root.read(path, conv, unit=unit, scope=scope)
