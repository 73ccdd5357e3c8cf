"""The one grammar of ``--device``: which devices a command is about.

    0000:03:00.0   pci:03:00.0            a PCI function (no domain means domain 0)
    renderD128     /dev/dri/renderD128    the device that has this node; drm:card0, accel:accel0, node:tenstorrent/0
    vendor=amd     vendor=0x1002          words of the vendor's name, or its PCI id
    driver=xe      chip=amdgpu            bound driver; chip family
    device=0x744c  class=0x12  kind=vf    PCI device id, prefix of the PCI class, kind of device
    platform:fd800000.gpu  id=ve:ve0      a device by its id, for buses without PCI addresses
    sim:0  opencl:0  torch:cpu            devices that only some commands know

A comma means "and", the option given several times means "or". Names, drivers and chips may be globs (``drm:card*``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol

from accelctl.errors import UsageError
from accelctl.model.device import KINDS
from accelctl.model.reading import Reading

LONGEST = 256  # characters: a filter is typed by hand; longer ones are a mistake

#: Without a domain "03:00.0" is meant in domain 0, as lspci prints it. A domain has 4 digits, behind VMD up to 8.
_ADDRESS = re.compile(r"^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])$", re.IGNORECASE)
_NAME = re.compile(r"^[A-Za-z0-9_.:!/*?\[\]-]+$")
_HEX = re.compile(r"^(?:0x)?([0-9a-f]{1,8})$", re.IGNORECASE)
_WORDS = re.compile(r"[a-z0-9]+")
_NODES_WITHOUT_NUMBER = frozenset({"kfd", "mkfd", "udmabuf", "iommu"})

#: Devices of the tool's own back-ends: what may stand after the colon.
VIRTUAL = {
    "sim": re.compile(r"^[0-9]{1,4}\Z"),
    "opencl": re.compile(r"^[0-9]{1,4}(:[0-9]{1,4})?\Z"),
    "torch": re.compile(r"^[a-z]{1,16}(:[0-9]{1,4})?\Z"),
}
_VIRTUAL_HINT = {"sim": "sim:0", "opencl": "opencl:0", "torch": "torch:cpu"}


class Facts(Protocol):
    """What a filter asks a device (accelctl.model.device.Device has it all)."""

    id: str
    kind: str
    chip: str | None
    facts: dict[str, Reading]

    def value(self, key: str) -> Any:
        """The value of a fact, None where it is absent."""


class Term(NamedTuple):
    """One condition: ``key`` of KEYS or a scheme, and the text it is compared with, checked and in normal form."""

    key: str
    value: str

    def __call__(self, device: Facts) -> bool:
        """True when the device meets it."""
        return _MATCH[self.key](device, self.value)


@dataclass(frozen=True)
class Filter:
    """Conditions that must all hold. ``text`` is what was typed."""

    text: str
    terms: tuple[Term, ...]

    def __call__(self, device: Facts) -> bool:
        """True when the device meets all conditions."""
        return all(term(device) for term in self.terms)

    @property
    def virtual(self) -> str | None:
        """The full name ("sim:0") when the filter names a device of the tool's own back-ends, else None."""
        return next((f"{term.key}:{term.value}" for term in self.terms if term.key in VIRTUAL), None)


@dataclass(frozen=True)
class AnyOf:
    """Filters of which one must hold; none at all means every device."""

    filters: tuple[Filter, ...]

    def __call__(self, device: Facts) -> bool:
        """True when the device meets one of the filters."""
        return not self.filters or any(one(device) for one in self.filters)

    @property
    def text(self) -> str:
        """The filters as typed, for messages."""
        return " or ".join(one.text for one in self.filters) or "every device"


def parse_filters(texts: Sequence[str] | None) -> AnyOf:
    """All ``--device`` options of a command line; UsageError for the first that is not a filter."""
    return AnyOf(tuple(parse_filter(text) for text in texts or ()))


def parse_filter(text: str) -> Filter:
    """One ``--device`` option; UsageError, one line, when it is not a filter."""
    if len(text) > LONGEST:
        raise UsageError(f"--device: a filter of {len(text)} characters; {LONGEST} is the most", _HINT)
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise UsageError("--device: the filter is empty", _HINT)
    if not all(parts):
        raise UsageError(f"--device {_shown(text)}: nothing between two commas", _HINT)
    return Filter(text.strip(), tuple(_term(part) for part in parts))


_HINT = "a PCI address (0000:03:00.0), a node (renderD128), vendor=amd, driver=xe"


def _shown(text: str) -> str:
    """The text for a one-line message, whatever is in it."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _term(part: str) -> Term:
    if _ADDRESS.match(part):
        return Term("pci", _address(part))
    key, equals, value = part.partition("=")
    if equals:
        return _assignment(part, key.strip().lower(), value.strip())
    scheme, colon, name = part.partition(":")
    if colon:
        return _named(part, scheme.strip().lower(), name.strip())
    return Term("node", _node(part))


def _assignment(part: str, key: str, value: str) -> Term:
    check = KEYS.get(key)
    if check is None:
        raise UsageError(f"--device {_shown(part)}: unknown key; the keys are {', '.join(KEYS)}")
    if not value:
        raise UsageError(f"--device {_shown(part)}: nothing after the equals sign")
    return Term(key, check(part, value))


def _named(part: str, scheme: str, name: str) -> Term:
    if scheme == "pci":
        return Term("pci", _address(name, part))
    if scheme in VIRTUAL:
        if not VIRTUAL[scheme].match(name):
            raise UsageError(f"--device {_shown(part)}: not a {scheme} device", _VIRTUAL_HINT[scheme])
        return Term(scheme, name)
    if scheme not in SCHEMES:
        raise UsageError(f"--device {_shown(part)}: unknown prefix; the prefixes are {', '.join(SCHEMES)}")
    if not _NAME.match(name):
        raise UsageError(f"--device {_shown(part)}: no device name after the colon")
    return Term(scheme, name)


def _address(text: str, part: str | None = None) -> str:
    match = _ADDRESS.match(text)
    if match is None:
        raise UsageError(f"--device {_shown(part or text)}: not a PCI address", "pci:0000:03:00.0")
    domain, bus, slot, function = match.groups()
    return f"{domain or '0000'}:{bus}:{slot}.{function}".lower()


def _node(part: str) -> str:
    name = part.removeprefix("/dev/")
    if not name or not _NAME.match(name):
        raise UsageError(f"--device {_shown(part)}: neither a PCI address, a node nor key=value", _HINT)
    if part == name and name not in _NODES_WITHOUT_NUMBER and not any(letter.isdigit() for letter in name):
        raise UsageError(f"--device {_shown(part)}: a bare word must be a node name", f"driver={name} or vendor={name}")
    return name


def _hex(part: str, value: str) -> str:
    match = _HEX.match(value)
    if match is None:
        raise UsageError(f"--device {_shown(part)}: not a hexadecimal number", "device=0x744c")
    return match.group(1).lower()


def _word(part: str, value: str) -> str:
    if not _NAME.match(value):
        raise UsageError(f"--device {_shown(part)}: letters, digits and _.:- only, * and ? as wildcards")
    return value


def _kind(part: str, value: str) -> str:
    if value not in KINDS:
        raise UsageError(f"--device {_shown(part)}: unknown kind of device; the kinds are {', '.join(KINDS)}")
    return value


def _vendor(part: str, value: str) -> str:
    words = " ".join(_WORDS.findall(value.lower()))
    if not words:
        raise UsageError(f"--device {_shown(part)}: neither a name nor a PCI vendor id", "vendor=amd or vendor=0x1002")
    return words


# -- matching ----------------------------------------------------------------------------------------------------------


def _is_address(device: Facts, value: str) -> bool:
    return device.id.lower() == value


def _nodes(device: Facts) -> Iterable[str]:
    """Nodes of a device, as /dev/...: facts nodes/NAME/path, and drm/NAME/node of machines without a /dev."""
    for key, reading in device.facts.items():
        if key.startswith(("nodes/", "drm/")) and key.endswith(("/path", "/node")) and isinstance(reading.value, str):
            yield "/" + reading.value.lstrip("/")


def _has_node(device: Facts, value: str) -> bool:
    """By the whole path below /dev, or by its last component."""
    wanted = (f"/dev/{value}", f"*/{value}") if "/" not in value else (f"/dev/{value}",)
    return any(fnmatchcase(node, glob) for node in _nodes(device) for glob in wanted)


def _has_id(scheme: str) -> Callable[[Facts, str], bool]:
    """By id, or by node: drm:card0 is the id of a device without a bus, and a node of others."""
    by_node = scheme in ("drm", "accel", "kfd")

    def match(device: Facts, value: str) -> bool:
        return fnmatchcase(device.id, f"{scheme}:{value}") or (by_node and _has_node(device, value))

    return match


def _has_vendor(device: Facts, value: str) -> bool:
    """By id where the filter looks like one, and by whole words of the name: "ati" is not in "corporation"."""
    identity = device.value("pci/vendor_id") or device.value("identity/vendor_id")
    number = _HEX.match(value)
    if number and isinstance(identity, str) and _same_number(identity, number.group(1)):
        return True
    words = " ".join(_WORDS.findall(str(device.value("vendor") or "").lower()))
    return f" {value} " in f" {words} "


def _same_number(text: str, digits: str) -> bool:
    match = _HEX.match(text)
    return match is not None and int(match.group(1), 16) == int(digits, 16)


def _has_device(device: Facts, value: str) -> bool:
    identity = device.value("pci/device_id")
    return isinstance(identity, str) and _same_number(identity, value)


def _has_class(device: Facts, value: str) -> bool:
    """The class is six digits in sysfs; a shorter text is a prefix: 03 is every display function."""
    text = device.value("pci/class")
    match = _HEX.match(text) if isinstance(text, str) else None
    return match is not None and match.group(1).lower().zfill(6).startswith(value)


def _has_driver(device: Facts, value: str) -> bool:
    return any(fnmatchcase(str(device.value(key) or ""), value) for key in ("driver", "driver_of_minor"))


#: What may stand before an equals sign, and the check that brings its value into normal form.
KEYS: dict[str, Callable[[str, str], str]] = {
    "vendor": _vendor, "driver": _word, "chip": _word, "device": _hex, "class": _hex, "kind": _kind, "id": _word,
}  # fmt: skip
#: What may stand before a colon.
SCHEMES = ("pci", "drm", "accel", "kfd", "node", "platform", "faux", "virtual", "sim", "opencl", "torch")

_MATCH: dict[str, Callable[[Facts, str], bool]] = {
    "pci": _is_address,
    "node": lambda device, value: _has_node(device, value) or device.id == f"node:{value}",
    "vendor": _has_vendor,
    "driver": _has_driver,
    "chip": lambda device, value: fnmatchcase(device.chip or "", value),
    "device": _has_device,
    "class": _has_class,
    "kind": lambda device, value: device.kind == value,
    "id": lambda device, value: fnmatchcase(device.id, value),
}
for _scheme in ("drm", "accel", "kfd", "platform", "faux", "virtual", "sim", "opencl", "torch"):
    _MATCH[_scheme] = _has_id(_scheme)
