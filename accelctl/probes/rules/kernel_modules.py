"""Which kernel modules are loaded, and which lie on the disk for this kernel: names only, no file is opened.

Where modules lie: Documentation/kbuild/modules.rst (updates/, extra/, kernel/), dkms(8) (updates/dkms, /var/lib/dkms),
and the folder of Ubuntu's prebuilt modules (kernel/nvidia-*). In containers and plain captures there is no lib/modules:
then nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from accelctl.abi.rooms import Room
from accelctl.hal.root import SysRoot

_BASES = ("lib/modules", "usr/lib/modules")
_OUT_OF_TREE = ("updates", "extra", "weak-updates", "misc")
_DRIVERS = ("gpu", "accel", "misc", "char", "video", "staging", "fpga", "dma", "soc", "platform")
_USUAL = {
    "arch",
    "block",
    "certs",
    "crypto",
    "drivers",
    "fs",
    "init",
    "ipc",
    "kernel",
    "lib",
    "mm",
    "net",
    "security",
    "sound",
}
_FILE = re.compile(r"(?P<name>.+)\.ko(?:\.(?:gz|xz|zst))?$")
_MAX_FOLDERS = 2000


def loaded(root: SysRoot, name: str) -> bool:
    """Is the module in the kernel, loaded or built in? A built-in driver without parameters shows only on its bus."""
    return root.exists(f"sys/module/{name}") or root.exists(f"sys/bus/pci/drivers/{name}")


def modules(room: Room, *roles: str) -> list[str]:
    """Module names of a room by role ("kernel", "open", "helper")."""
    return [row["name"] for row in room.table("module") if row.get("role") in roles]


class Disk:
    """Module files below lib/modules of the running kernel, by module name (dashes are underscores there)."""

    def __init__(self, root: SysRoot, release: str | None) -> None:
        self.root, self.release = root, release
        self.base = next((f"{base}/{release}" for base in _BASES if release and root.exists(f"{base}/{release}")), "")

    @property
    def known(self) -> bool:
        """False where the files of the running kernel cannot be seen."""
        return bool(self.base)

    @cached_property
    def out_of_tree(self) -> dict[str, str]:
        """Modules that somebody built for this kernel: name -> path."""
        return dict(self._walk(self.base, _OUT_OF_TREE)) if self.base else {}

    @cached_property
    def _in_tree(self) -> dict[str, str]:
        kernel = f"{self.base}/kernel"
        extra = [name for name in self.root.listdir(kernel) if name not in _USUAL]
        return dict(self._walk(kernel, [*(f"drivers/{name}" for name in _DRIVERS), *extra])) if self.base else {}

    def find(self, name: str) -> str | None:
        """Path of a module's file. Debian names its builds nvidia-current.ko and the like."""
        pattern = re.compile(rf"{re.escape(name)}(_(current|legacy|tesla)\w*)?")
        for table in (self.out_of_tree, self._in_tree):
            for known, path in table.items():
                if pattern.fullmatch(known):
                    return path
        return None

    def other_kernels(self, name: str) -> list[str]:
        """Releases of other kernels for which the module was built out of tree."""
        above = self.base.rpartition("/")[0]
        found = []
        for release in self.root.listdir(above) if above else []:
            if release != self.release and any(
                known == name for known, _ in self._walk(f"{above}/{release}", _OUT_OF_TREE)
            ):
                found.append(release)
        return found

    def _walk(self, base: str, folders: tuple[str, ...] | list[str]) -> Iterator[tuple[str, str]]:
        todo = [f"{base}/{name}" for name in folders]
        for _ in range(_MAX_FOLDERS):
            if not todo:
                return
            folder = todo.pop()
            for name in self.root.listdir(folder):
                match = _FILE.match(name)
                if match:
                    yield match["name"].replace("-", "_"), f"{folder}/{name}"
                elif "." not in name and folder.count("/") < 12:
                    todo.append(f"{folder}/{name}")


def dkms_versions(root: SysRoot, name: str) -> list[str]:
    """Versions of a module that dkms knows, from folder names (/var/lib/dkms/NAME/VERSION, dkms(8))."""
    return [entry for entry in root.listdir(f"var/lib/dkms/{name}") if entry[:1].isdigit()]
