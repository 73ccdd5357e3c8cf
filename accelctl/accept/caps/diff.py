"""`accelctl caps diff A B`: what two files say differently about the same kernels. The day on which something was shown
is no difference; that it was shown on another platform is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from accelctl.abi import capabilityfile
from accelctl.abi.capability import Capability

NEW, GONE, CHANGED = "new", "gone", "changed"
_DERIVED = frozenset({"reached", "missing", "preconditions.text", "platform.fingerprint"})


class Change(NamedTuple):
    """A fact before and after; None: it is not there."""

    fact: str
    before: Any
    after: Any


class Delta(NamedTuple):
    """One kernel on one device."""

    state: str
    kernel: str
    op: str
    device: str
    changes: tuple[Change, ...] = ()


def diff(a: str, b: str) -> list[Delta]:
    """Of two files, in the order of the first. UsageError for one that is none, or is not there."""
    before, after = (capabilityfile.present(path) for path in (a, b))
    pairs, gone, new = _paired(before, after)
    found = [_delta(CHANGED, one, other) for one, other in pairs]
    return [
        *(one for one in found if one.changes),
        *(_delta(GONE, one, one) for one in gone),
        *(_delta(NEW, one, one) for one in new),
    ]


def _paired(
    before: Sequence[Capability], after: Sequence[Capability]
) -> tuple[list[tuple[Capability, Capability]], list[Capability], list[Capability]]:
    """First records of one platform, then of what is left those of one kernel and device: it was proven anew."""
    left, pairs, gone = {one.key: one for one in after}, [], []
    for one in before:
        other = left.pop(one.key, None)
        pairs += [(one, other)] if other is not None else []
        gone += [one] if other is None else []
    for one in list(gone):
        other = next((new for new in left.values() if new.key[:3] == one.key[:3]), None)
        if other is not None:
            gone.remove(one)
            pairs.append((one, left.pop(other.key)))
    return pairs, gone, list(left.values())


def _delta(state: str, one: Capability, other: Capability) -> Delta:
    before, after = (dict(_facts(record)) for record in (one, other))
    changes = tuple(
        Change(fact, before.get(fact), after.get(fact))
        for fact in (*before, *(fact for fact in after if fact not in before))
        if before.get(fact) != after.get(fact)
    )
    return Delta(state, one.kernel, one.op, one.platform.device, changes if state == CHANGED else ())


def _facts(record: Capability) -> Iterator[tuple[str, Any]]:
    document = record.document()
    evidence = document.pop("evidence")
    yield from ((fact, value) for fact, value in _flat(document, "") if fact not in _DERIVED)
    for one in evidence:
        yield f"evidence.{one['rung']}", "shown"
        yield from _flat(one["figures"], f"evidence.{one['rung']}.")


def _flat(table: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
