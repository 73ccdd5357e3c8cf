"""What a machine type must have: the TOML file behind ``--expect``, read and checked, and written by ``--save-expect``.

    schema = "accelctl.expect/1"

    [machine]                           # machine facts by key (accelctl probe --why machine)
    "iommu/active" = true

    [kernel_parameters]                 # must stand on the kernel command line
    iommu = "pt"

    [tolerance]                         # numbers of facts whose key fits may differ that much
    "memory/*" = "1%"

    [[device]]
    match = { kind = "physical", vendor_id = "0x1002", device_id = "0x740f" }
    count = 8
    nodes = ["dri/card*", "dri/renderD*"]
    facts = { driver = "amdgpu", "link/max_width" = 16, driver_version = "6.*" }

An expected value is a number, a flag or a text (``*`` and ``?`` are wildcards), a list (one of these), or a table:
``{ min = 1, max = 4 }``, ``{ equals = [1, 2] }`` for facts that are lists, ``{ present = false }``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from accelctl.errors import UsageError
from accelctl.model.toml import loads

SCHEMA = "accelctl.expect/1"
MAX_BYTES = 4 << 20

MATCH_KEYS = (
    "kind", "chip", "id", "vendor_id", "device_id", "subsystem_vendor_id", "subsystem_device_id", "class",
)  # fmt: skip
"""What may tell devices apart: ``kind``, ``chip`` and ``id`` of the device, the others are facts below ``pci/``."""

_TOP = ("schema", "machine", "kernel_parameters", "tolerance", "device")
_DEVICE = ("match", "count", "addresses", "nodes", "facts", "name")
_TABLE = ("min", "max", "equals", "present")
_Scalar = (bool, int, float, str)


class Tolerance(NamedTuple):
    """How far a number may be off: a share of the expected value, or an amount in its unit."""

    share: float
    amount: float

    def allows(self, expected: float, found: float) -> bool:
        """True when the difference is small enough."""
        return abs(found - expected) <= abs(expected) * self.share + self.amount


EXACT = Tolerance(0.0, 0.0)


@dataclass(frozen=True)
class Wanted:
    """One ``[[device]]`` entry."""

    match: dict[str, str]
    least: int
    most: int | None
    addresses: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True)
class Expectation:
    """A whole manifest."""

    file: str
    machine: dict[str, Any]
    parameters: dict[str, Any]
    devices: tuple[Wanted, ...]
    tolerances: tuple[tuple[str, Tolerance], ...] = ()

    def tolerance(self, key: str) -> Tolerance:
        """The tolerance of a fact: of the first pattern that fits."""
        return next((one for pattern, one in self.tolerances if fnmatchcase(key, pattern)), EXACT)


def fits(expected: Any, found: Any, tolerance: Tolerance = EXACT) -> bool:
    """Is a value what was expected? Flags and numbers are different things; only text knows wildcards."""
    if isinstance(expected, list):
        return any(fits(one, found, tolerance) for one in expected)
    if isinstance(expected, dict):
        return _in_table(expected, found, tolerance)
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if isinstance(expected, (int, float)):
        return isinstance(found, (int, float)) and (expected == found or tolerance.allows(expected, found))
    return isinstance(found, str) and (expected == found or fnmatchcase(found, expected))


def _in_table(table: dict[str, Any], found: Any, tolerance: Tolerance) -> bool:
    if "present" in table:
        return bool(table["present"]) is (found is not None)
    if "equals" in table:
        return bool(table["equals"] == found)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return False
    low, high = table.get("min"), table.get("max")
    above = low is None or found >= low or tolerance.allows(low, found)
    return above and (high is None or found <= high or tolerance.allows(high, found))


def load(file: str) -> Expectation:
    """Read a manifest; UsageError with one line when it cannot be read or is not one."""
    try:
        with open(file, "rb") as source:
            data = source.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror or error})", _HINT) from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{file}: larger than {MAX_BYTES >> 20} MiB, so not a manifest", _HINT)
    return parse(data, file)


_HINT = "accelctl probe --save-expect FILE writes one"


def parse(data: bytes, file: str) -> Expectation:
    """Parse and check; whatever the bytes are, a bad manifest is one clear line."""
    try:
        document = loads(data.decode("utf-8"))
        return _Checker(file).whole(document)
    except RecursionError:
        reason = "nested too deeply"
    except UnicodeDecodeError:
        reason = "not UTF-8 text"
    except ValueError as error:
        reason = str(error)
    except OverflowError:
        reason = "a number is too large"
    raise UsageError(f"{file}: {reason[:200]}", _HINT)


class _Checker:
    """Checks shapes; complaints are ValueErrors that say where."""

    def __init__(self, file: str) -> None:
        self.file = file

    def whole(self, document: dict[str, Any]) -> Expectation:
        self.known(document, _TOP, "the manifest")
        if document.get("schema") != SCHEMA:
            raise ValueError(f"schema is {str(document.get('schema'))[:40]!r}, this version reads {SCHEMA!r}")
        entries = document.get("device", [])
        if not isinstance(entries, list):
            raise ValueError("device must be an array of tables ([[device]])")
        return Expectation(
            self.file,
            self.values(document.get("machine", {}), "[machine]"),
            self.values(document.get("kernel_parameters", {}), "[kernel_parameters]"),
            tuple(self.device(entry, f"[[device]] {number}") for number, entry in enumerate(entries, 1)),
            tuple(self.tolerances(document.get("tolerance", {}))),
        )

    def known(self, table: Any, keys: Iterable[str], where: str) -> None:
        if not isinstance(table, dict):
            raise ValueError(f"{where} must be a table")
        for key in table:
            if key not in keys:
                from difflib import get_close_matches

                near = get_close_matches(key, tuple(keys), 1)
                raise ValueError(
                    f"unknown key {key[:40]!r} in {where}" + (f" (did you mean {near[0]!r}?)" if near else "")
                )

    def values(self, table: Any, where: str) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise ValueError(f"{where} must be a table")
        for key, value in table.items():
            self.value(value, f"{where} {key[:60]!r}")
        return dict(table)

    def value(self, value: Any, where: str) -> None:
        """A scalar, a list of scalars, or one of the known tables."""
        if isinstance(value, _Scalar):
            return
        if isinstance(value, list) and value and all(isinstance(one, _Scalar) for one in value):
            return
        if isinstance(value, dict) and value:
            self.known(value, _TABLE, where)
            self.table(value, where)
            return
        raise ValueError(f"{where} must be a number, text, flag, a list of them, or a table of {', '.join(_TABLE)}")

    def table(self, table: dict[str, Any], where: str) -> None:
        for key in ("min", "max"):
            if key in table and (isinstance(table[key], bool) or not isinstance(table[key], (int, float))):
                raise ValueError(f"{where}: {key} must be a number")
        if "present" in table and not isinstance(table["present"], bool):
            raise ValueError(f"{where}: present must be true or false")
        if "min" in table and "max" in table and table["min"] > table["max"]:
            raise ValueError(f"{where}: min is larger than max")

    def device(self, entry: Any, where: str) -> Wanted:
        self.known(entry, _DEVICE, where)
        match = entry.get("match", {})
        self.known(match, MATCH_KEYS, f"{where} match")
        if not match or not all(isinstance(value, str) for value in match.values()):
            raise ValueError(f"{where}: match must name texts for some of {', '.join(MATCH_KEYS)}")
        least, most = self.count(entry.get("count", {"min": 1}), where)
        name = entry.get("name", "")
        if not isinstance(name, str):
            raise ValueError(f"{where}: name must be text")
        return Wanted(
            match,
            least,
            most,
            self.texts(entry.get("addresses", []), f"{where} addresses"),
            self.texts(entry.get("nodes", []), f"{where} nodes"),
            self.values(entry.get("facts", {}), f"{where} facts"),
            name,
        )

    def count(self, value: Any, where: str) -> tuple[int, int | None]:
        whole: Callable[[Any], bool] = lambda one: isinstance(one, int) and not isinstance(one, bool) and one >= 0  # noqa: E731
        if whole(value):
            return value, value
        if isinstance(value, dict) and value and set(value) <= {"min", "max"} and all(map(whole, value.values())):
            return value.get("min", 0), value.get("max")
        raise ValueError(f"{where}: count must be a number, or a table of min and max")

    def texts(self, value: Any, where: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f"{where} must be a list of texts")
        return tuple(value)

    def tolerances(self, table: Any) -> Iterable[tuple[str, Tolerance]]:
        if not isinstance(table, dict):
            raise ValueError("[tolerance] must be a table")
        for key, value in table.items():
            yield key, self.tolerance(value, f"[tolerance] {key[:60]!r}")

    def tolerance(self, value: Any, where: str) -> Tolerance:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
            return Tolerance(0.0, float(value))
        if isinstance(value, str) and value.endswith("%"):
            try:
                share = float(value[:-1])
            except ValueError:
                share = -1.0
            if 0 <= share < float("inf"):
                return Tolerance(share / 100, 0.0)
        raise ValueError(f'{where} must be a share ("1%") or an amount (a number that is not negative)')
