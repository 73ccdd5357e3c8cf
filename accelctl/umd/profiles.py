"""What a profile means for a service: limits, and what is switched off."""

from __future__ import annotations

from typing import NamedTuple

from accelctl.abi.ops import Ops
from accelctl.abi.switches import kernels_off, ops_off
from accelctl.errors import UsageError
from accelctl.model.profile import InForce
from accelctl.umd.chip import Chip, Off
from accelctl.umd.registrar import Limits

_LIMITS = {
    "memory.limit": "memory_bytes",
    "memory.pool": "pool_bytes",
    "limits.sessions": "sessions",
    "limits.queue-depth": "most_depth",
    "limits.message": "message_bytes",
    "limits.batch": "batch",
    "limits.lists": "lists",
    "limits.list-bytes": "list_bytes",
}
"""Key of a profile -> field of Limits."""


class Switched(NamedTuple):
    """What is off: ops and general kernels, which the chip leaves out; special kernels, which dispatch leaves alone."""

    off: Off
    special: tuple[str, ...]


def switched(found: InForce, ops: Ops) -> Switched:
    """UsageError for a name that means no op, or no kernel of this chip."""
    said = found.get("ops.off")
    off_ops = ops_off(said.value, said.place) if said is not None and isinstance(said.value, list) else {}
    templates = {one.name: one for one in ops.templates()}
    said = found.get("kernels.off")
    kernels = {}
    if said is not None and isinstance(said.value, list):
        kernels = kernels_off(said.value, said.place, found.chip, templates)
    special = tuple(name for name in kernels if templates[name].fallback)
    return Switched(Off(off_ops, {name: place for name, place in kernels.items() if name not in special}), special)


def limited(found: InForce, limits: Limits, chip: Chip) -> Limits:
    """The limits, with what the profile says. UsageError for a fraction of what nobody knows; AccelError."""
    changes = {field: said.value for key, field in _LIMITS.items() if (said := found.get(key)) is not None}
    changed = limits._replace(**changes)  # type: ignore[arg-type]
    changed = changed._replace(depth=min(changed.depth, changed.most_depth))
    fraction = found.get("memory.fraction")
    if fraction is None:
        return changed
    total = chip.total_bytes()
    if not total:
        raise UsageError(f"{fraction.place}: {found.device} does not say how much memory it has", "memory.limit = ...")
    part = int(total * float(str(fraction.value)))
    return changed._replace(memory_bytes=min(part, changed.memory_bytes or part))
