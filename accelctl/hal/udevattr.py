"""Properties and attributes of a udev device: the read-only mappings with pyudev's conversions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from accelctl.hal.allowlist import WAKES

if TYPE_CHECKING:
    from accelctl.hal.udev import Device

_CORE_LINKS = ("driver", "subsystem", "module")  # the links that sd-device shows as attributes, by their last component
_SUSPENDED = ("suspended", "suspending")
_DEPTH = 3  # folders below a device that hold attributes (power/, queue/iosched/); deeper ones are not for matching


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"not a flag: {text[:40]!r}")
    return text == "1"


class Properties(Mapping[str, str]):
    """Read-only properties of a device."""

    def __init__(self, pairs: Mapping[str, str]) -> None:
        self._pairs = dict(pairs)

    def __getitem__(self, name: str) -> str:
        return self._pairs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def asint(self, name: str) -> int:
        """KeyError when absent, ValueError when it is no number."""
        return int(self[name])

    def asbool(self, name: str) -> bool:
        """KeyError when absent, ValueError unless "0" or "1"."""
        return _flag(self[name])


class Attributes:
    """Files of a device's folder.

    What is not on the list of files that may be opened is absent here, and a sleeping device is left asleep.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._root = device.context.root
        self._base = device.sys_path.lstrip("/")

    @property
    def available_attributes(self) -> Iterator[str]:
        """Names, relative to the device's folder, that may be read."""
        return self._walk("", _DEPTH)

    def _walk(self, folder: str, depth: int) -> Iterator[str]:
        for name in self._root.listdir(self._base + folder):
            path = f"{folder}/{name}"
            if self._root.link(self._base + path).present:
                if name in _CORE_LINKS:
                    yield path[1:]
                continue
            stat = self._root.stat(self._base + path)
            if stat is None:
                continue
            if stat.kind == "f" and stat.mode & 0o400 and self._root.allow.effect(self._base + path) is not None:
                yield path[1:]
            elif stat.kind == "d" and depth and not self._root.exists(f"{self._base}{path}/uevent"):
                yield from self._walk(path, depth - 1)

    def _get(self, name: str) -> bytes:
        if name.startswith("/") or ".." in name.split("/"):
            raise KeyError(name)
        path = f"{self._base}/{name}"
        link = self._root.link(path)
        if link.present:
            if name not in _CORE_LINKS:
                raise KeyError(name)
            return str(link.value).encode()
        if self._root.live and self._root.allow.effect(path) == WAKES:
            self._note_sleep()
        data = self._root.data(path)
        if data is None:
            raise KeyError(name)
        return data.rstrip(b"\r\n")

    def _note_sleep(self) -> None:
        """Tell the root that this device sleeps, before a read that would wake it."""
        for device in (self.device, *self.device.ancestors):
            path = device.sys_path.lstrip("/")
            if self._root.text(path + "/power/runtime_status") in _SUSPENDED and path + "/" not in self._root.asleep:
                self._root.asleep.append(path + "/")

    def get(self, name: str, default: bytes | None = None) -> bytes | None:
        """The bytes without the line end; ``default`` where it is absent or may not be read."""
        try:
            return self._get(name)
        except KeyError:
            return default

    def asstring(self, name: str) -> str:
        """KeyError when absent, UnicodeDecodeError when it is not text."""
        return self._get(name).decode("utf-8")

    def asint(self, name: str) -> int:
        """KeyError when absent, ValueError when it is no number."""
        return int(self.asstring(name))

    def asbool(self, name: str) -> bool:
        """KeyError when absent, ValueError unless "0" or "1"."""
        return _flag(self.asstring(name))
