"""Numbers for people: the same fact in a unit that needs no counting of digits.

Three significant digits at most. JSON never passes through here: there numbers stay numbers, in the unit their key
names.
"""

from __future__ import annotations

from collections.abc import Sequence

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("Hz", "kHz", "MHz", "GHz", "THz")

#: PCIe generation by rate in GT/s (PCI Express base specification).
GENERATIONS = {2.5: "1.0", 5.0: "2.0", 8.0: "3.0", 16.0: "4.0", 32.0: "5.0", 64.0: "6.0"}


def size(count: float) -> str:
    """Bytes with a binary unit: ``17163091968`` is ``16.0 GiB``."""
    number, unit = _scaled(count, _BINARY, 1024)
    return f"{number} {unit}"


def share(used: float, total: float) -> str:
    """Two sizes in the unit of the larger one: ``0.62 of 16.0 GiB``."""
    step = _step(total, 1024, len(_BINARY))
    return f"{_digits(used / 1024**step)} of {_digits(total / 1024**step)} {_BINARY[step]}"


def hertz(count: float) -> str:
    """A frequency: ``2499000000`` is ``2.5 GHz``."""
    number, unit = _scaled(count, _DECIMAL, 1000)
    return f"{number} {unit}"


def watts(milliwatts: float) -> str:
    """Power from milliwatts; below 10 W with one decimal."""
    value = milliwatts / 1000
    return f"{value:.1f} W" if 0 < abs(value) < 10 else f"{value:.0f} W"


def celsius(degrees: float, sign: str) -> str:
    """A temperature; ``sign`` is the degree sign or "" in ASCII."""
    return f"{degrees:.0f} {sign}C"


def link(speed_gts: object, width: object) -> str | None:
    """A PCIe link: ``4.0 x16``; None where speed or width is not known or zero, which means that there is no link."""
    if not isinstance(speed_gts, (int, float)) or not isinstance(width, int) or not speed_gts or not width:
        return None
    generation = GENERATIONS.get(float(speed_gts))
    return f"{generation} x{width}" if generation else f"{speed_gts:g} GT/s x{width}"


def seconds(count: float) -> str:
    """A duration: ``5 s``, ``2.5 s``, ``3 min``."""
    if count < 120:
        return f"{count:.1f} s" if count != int(count) else f"{count:.0f} s"
    return f"{count / 60:.0f} min" if count < 7200 else f"{count / 3600:.0f} h"


def latency(count: float) -> str:
    """A time that is mostly short: ``16.2 ms``, ``1.2 s``."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if count * factor < 999.5:
            return f"{_digits(count * factor)} {unit}"
    return f"{_digits(count)} s"


def counted(number: int, word: str, plural: str | None = None) -> str:
    """``1 device``, ``2 devices``."""
    return f"{number} {word if number == 1 else plural or word + 's'}"


def listed(words: Sequence[str], most: int = 4) -> str:
    """Words with commas, the rest beyond ``most`` as a number: ``a, b, c and 5 more``."""
    shown = ", ".join(words[:most])
    return shown if len(words) <= most else f"{shown} and {len(words) - most} more"


def _scaled(count: float, units: Sequence[str], base: int) -> tuple[str, str]:
    step = _step(count, base, len(units))
    return _digits(count / base**step), units[step]


def _step(count: float, base: int, most: int) -> int:
    """The unit in which the number has one to three digits; 1023.6 MiB is already 1.0 GiB."""
    step = 0
    while step < most - 1 and abs(count) / base**step >= base - 0.5:
        step += 1
    return step


def _digits(number: float) -> str:
    """Three significant digits, whole numbers without a point beyond 100."""
    if number == int(number) and abs(number) < 10:
        return f"{number:.0f}"
    if abs(number) >= 99.95:
        return f"{number:.0f}"
    return f"{number:.1f}" if abs(number) >= 0.95 else f"{number:.2g}"
