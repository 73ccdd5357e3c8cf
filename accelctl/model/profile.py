"""Profiles: what is switched off and limited for a model of chip. They stand in the configuration files:

    [profile.sim]                         # the chip's name; or any name, and what it is for:
    chip = "opencl"                       #   chip, device ("opencl:*") and title ("*MI300*") are patterns, all must fit
    ops.off = ["attention_*"]             # refused, with this place as the reason
    kernels.off = ["matvec"]              # not used, the next kernel takes the call
    memory.fraction = 0.5                 # of the device's memory, for all sessions together
    limits.sessions = 8

Reading is strict: what is not understood is one line that names file, table and key. Keys are looked up one by one: the
upper file wins, and within a file the profile that says more about what it is for (device before title before chip).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from accelctl.errors import UsageError
from accelctl.model import quantity
from accelctl.model.configtext import NUMBER, TEXT, WHOLE, near, value_for
from accelctl.model.setting import Value

TABLE = "profile"
"""Of a configuration file: the table that holds all profiles."""
MOST_NAME, MOST_LISTED, MOST_PROFILES = 64, 256, 256
LIST, SIZE = "a list", "a size"


class Key(NamedTuple):
    """What may be said. ``least`` and ``most`` of numbers and sizes (bytes), both included."""

    kind: str
    default: str
    """What is in force where nothing is said, for people."""
    text: str
    least: float = 0
    most: float = 0


KEYS: dict[str, Key] = {
    "ops.off": Key(LIST, "none", "ops that are refused; * stands for any letters"),
    "kernels.off": Key(LIST, "none", "kernels that are not used"),
    "memory.fraction": Key(NUMBER, "all", "of the device's memory, for all sessions together", 0.001, 1),
    "memory.limit": Key(SIZE, "all", "device memory of all sessions together", 1 << 20, 1 << 62),
    "memory.pool": Key(SIZE, "all", "device memory of one session", 1 << 16, 1 << 62),
    "limits.sessions": Key(WHOLE, "256", "sessions at one time", 1, 4096),
    "limits.queue-depth": Key(WHOLE, "1024", "instructions in flight, of one session", 1, 65536),
    "limits.message": Key(SIZE, "64MiB", "one message, either way", 8 << 20, 64 << 20),
    "limits.batch": Key(WHOLE, "65536", "ops in one message", 1, 65536),
    "limits.lists": Key(WHOLE, "64", "pinned lists of one session", 1, 4096),
    "limits.list-bytes": Key(SIZE, "16MiB", "what the pinned lists of one session may take", 1 << 10, 1 << 30),
}
MATCHES = {
    "chip": "the chip's name",
    "device": "the device as --device names it",
    "title": "the device's own name; capitals do not matter",
}
_RANK = {"device": 4, "title": 2, "chip": 1}


class Profile(NamedTuple):
    """One table. ``layer``: 0 is the highest file."""

    name: str
    path: str
    layer: int
    match: Mapping[str, str]
    values: Mapping[str, Value]

    @property
    def rank(self) -> int:
        """How much it says about what it is for."""
        return sum(_RANK[key] for key in self.match)

    def fits(self, chip: str, device: str, title: str) -> bool:
        """Whether it is for this device."""
        asked = {"chip": chip, "device": device, "title": title.lower()}
        return all(
            fnmatchcase(asked[key], text.lower() if key == "title" else text) for key, text in self.match.items()
        )

    def place(self, key: str) -> str:
        """Where it says something."""
        return f"{self.path}: {table(self.name)} {key}"


class Said(NamedTuple):
    """A value and who says it."""

    value: Value
    profile: Profile
    key: str

    @property
    def place(self) -> str:
        """File, table and key."""
        return self.profile.place(self.key)


class InForce(NamedTuple):
    """What applies to one device: key -> who says it, the one that counts first."""

    chip: str
    device: str
    title: str
    profiles: tuple[Profile, ...]
    said: Mapping[str, tuple[Said, ...]]

    def get(self, key: str) -> Said | None:
        """What counts; None: nothing is said."""
        return self.said[key][0] if key in self.said else None


NOTHING = InForce("", "", "", (), {})


def table(name: str) -> str:
    """A profile's head, as it stands in a file."""
    bare = name.replace("-", "").replace("_", "")
    return f"[{TABLE}.{name}]" if bare.isascii() and bare.isalnum() else f'[{TABLE}."{name}"]'


def read(layers: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[Profile, ...]:
    """Of files (path, document), the highest one first. UsageError, one line, for what is not understood."""
    found: list[Profile] = []
    for layer, (path, document) in enumerate(layers):
        tables = document.get(TABLE, {})
        if len(tables) > MOST_PROFILES:
            raise UsageError(f"{path}: [{TABLE}]: {len(tables)} profiles: at most {MOST_PROFILES}")
        found += [_profile(path, layer, name, one) for name, one in tables.items()]
    return tuple(found)


def _profile(path: str, layer: int, name: str, content: Any) -> Profile:
    if not 0 < len(name) <= MOST_NAME or not name.isprintable() or '"' in name or "\\" in name:
        raise UsageError(f"{path}: [{TABLE}]: a profile's name is 1 to {MOST_NAME} printable characters")
    if not isinstance(content, dict):
        raise UsageError(f"{path}: [{TABLE}] {name}: a profile is a table, as in {table(name)}")
    match: dict[str, str] = {}
    values: dict[str, Value] = {}
    for key, value in _flat(content):
        where = f"{path}: {table(name)} {key}"
        if key in MATCHES:
            match[key] = _pattern(value, where)
        elif key in KEYS:
            values[key] = _value(KEYS[key], value, where)
        else:
            raise UsageError(f"{where}: no such key{near(key, [*KEYS, *MATCHES])}", "accelctl config profile --keys")
    return Profile(name, path, layer, match or {"chip": name}, values)


def _flat(content: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Keys of tables in tables, joined by points; a table that holds nothing is a key as well, which nobody knows."""
    for key, value in content.items():
        if isinstance(value, dict) and value and depth < 2:
            yield from _flat(value, f"{before}{key}.", depth + 1)
        else:
            yield "".join(letter if letter.isprintable() else "?" for letter in f"{before}{key}"[:80]), value


def _pattern(value: Any, where: str) -> str:
    text = str(value_for(TEXT, 1, value, where))
    if not 0 < len(text) <= 200:
        raise UsageError(f"{where}: 1 to 200 characters are expected")
    return text


def _value(key: Key, value: Any, where: str) -> Value:
    if key.kind == LIST:
        return _names(value, where)
    if key.kind == SIZE:
        text = str(value_for(TEXT, 1, value, where))
        size = quantity.size_bytes(where, text)
        _within(key, size, text, where)
        return size
    number = value_for(key.kind, 1, value, where)
    _within(key, number, str(number), where)
    return int(number) if key.kind == WHOLE else float(number)


def _within(key: Key, value: float, shown: str, where: str) -> None:
    if not key.least <= value <= key.most:  # NaN is not
        least, most = (_size(key.least), _size(key.most)) if key.kind == SIZE else (f"{key.least:g}", f"{key.most:g}")
        raise UsageError(f"{where}: {least} to {most} is possible, not {shown[:40]}")


def _size(count: float) -> str:
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{int(count) >> shift}{unit}"
    return str(int(count))


def _names(value: Any, where: str) -> list[str]:
    names = [str(one) for one in value_for(TEXT, -1, value, where)]
    if len(names) > MOST_LISTED:
        raise UsageError(f"{where}: {len(names)} names: at most {MOST_LISTED}")
    if not all(0 < len(one) <= 80 for one in names):
        raise UsageError(f"{where}: names of 1 to 80 characters are expected")
    return names


def for_device(profiles: Sequence[Profile], chip: str, device: str, title: str) -> InForce:
    """What applies to a device. UsageError where two profiles of one file fit equally well and say different things."""
    fitting = sorted((one for one in profiles if one.fits(chip, device, title)), key=lambda one: (one.layer, -one.rank))
    said: dict[str, list[Said]] = {}
    for one in fitting:
        for key, value in one.values.items():
            said.setdefault(key, []).append(Said(value, one, key))
    for first, *others in said.values():
        for other in others:
            same = (other.profile.layer, other.profile.rank) == (first.profile.layer, first.profile.rank)
            if same and other.value != first.value:
                raise UsageError(
                    f"{first.place}: {table(other.profile.name)} fits {device or chip} equally well and says otherwise",
                    "say in one of them more about what it is for",
                )
    return InForce(chip, device, title, tuple(fitting), {key: tuple(said[key]) for key in KEYS if key in said})
