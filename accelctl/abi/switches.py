"""Names of ops that are to be switched off: which ops they mean."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from accelctl.abi.opset import OPS
from accelctl.errors import UsageError
from accelctl.model.configtext import near

NEEDED = "copy"
"""The op that the service puts around others."""


def ops_off(names: Iterable[str], where: str) -> dict[str, str]:
    """Op -> where that is said. A name may hold ``*``. UsageError for one that means no op, and for copy."""
    found: dict[str, str] = {}
    for name in names:
        meant = [op for op in OPS if fnmatchcase(op, name)]
        if not meant:
            raise UsageError(f"{where}: there is no op {name}{near(name, OPS)}", "docs/ops.md")
        if NEEDED in meant:
            raise UsageError(f"{where}: {name}: {NEEDED} cannot be switched off, other ops are made with it")
        found.update(dict.fromkeys(meant, where))
    return found


def kernels_off(names: Iterable[str], where: str, chip: str, known: Collection[str]) -> dict[str, str]:
    """Kernel -> where that is said. UsageError for a name that is no kernel of this chip."""
    found = dict.fromkeys(names, where)
    for name in found:
        if name not in known:
            raise UsageError(f"{where}: {chip} has no kernel {name}{near(name, known)}")
    return found
