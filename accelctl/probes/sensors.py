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
    """Add ``sensors/<hwmonN>/<channel>/<attribute>_<unit>``."""
    for folder in folders(scan, device.path):
        base = f"sensors/{folder.rpartition('/')[2]}"
        for name in scan.root.listdir(folder):
            if name == "name":
                device.facts[f"{base}/name"] = scan.root.read(f"{folder}/name")
            elif match := _FILE.match(name):
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
