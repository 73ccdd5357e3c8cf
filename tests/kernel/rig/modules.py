"""Which kernel modules to load and in which order, read from the modules themselves.

`depmod` is not used: a package unpacked without its scripts has no modules.dep, and the `.modinfo` section of
each module says the same (`depends=`, include/linux/module.h; written by scripts/mod/modpost.c).
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterable
from pathlib import Path

from .errors import RigError

_DEPENDS = re.compile(rb"(?:^|\0)depends=([^\0]*)\0")


def canonical(name: str) -> str:
    """Return the name as the kernel shows it: `virtio-gpu` and `virtio_gpu` are one module."""
    return name.replace("-", "_")


def index(root: Path) -> dict[str, Path]:
    """Return the module files below `root` by canonical name."""
    return {canonical(path.name.split(".ko", 1)[0]): path for path in sorted(root.rglob("*.ko*"))}


def builtin(root: Path) -> frozenset[str]:
    """Return what modules.builtin says is part of the kernel image already."""
    names: set[str] = set()
    for file in root.rglob("modules.builtin"):
        names.update(canonical(Path(line).stem) for line in file.read_text(encoding="utf-8").split())
    return frozenset(names)


def content(path: Path) -> bytes:
    """Return the module as the kernel wants it, decompressed."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".ko":
        return data
    raise RigError(f"{path.name}: only plain and xz-compressed modules are understood")


def depends(data: bytes) -> list[str]:
    """Return the modules that must be loaded before this one."""
    match = _DEPENDS.search(data)
    return [canonical(name.decode()) for name in match[1].split(b",") if name] if match else []


def load_order(wanted: Iterable[str], root: Path) -> list[tuple[str, bytes]]:
    """Return (file name, content) of the wanted modules and all they need, each after what it needs."""
    known, inside = index(root), builtin(root)
    order: list[tuple[str, bytes]] = []
    done: set[str] = set()

    def visit(name: str) -> None:
        if name in done or name in inside:
            return
        done.add(name)
        if name not in known:
            raise RigError(f"the kernel package holds no module {name}")
        data = content(known[name])
        for other in depends(data):
            visit(other)
        order.append((f"{name}.ko", data))

    for name in wanted:
        visit(canonical(name))
    return order
