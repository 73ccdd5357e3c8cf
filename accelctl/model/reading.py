"""A fact together with its evidence, or an absence together with its reason.

Tools that print a bare N/A leave their user to guess between eight causes. A :class:`Reading` cannot be built without
saying where its value was read, or why there is none; everything downstream (text, JSON, ``--why``, rules) renders the
same record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from accelctl import errors

#: Stable facts are equal on equal machines and at every run; volatile ones change by themselves; identities tell equal
#: machines apart.
STABLE, VOLATILE, IDENTITY = "stable", "volatile", "identity"
SCOPES = (STABLE, VOLATILE, IDENTITY)

#: The vocabulary of absences: why a fact is missing, in words. The table itself stands with the error kinds.
ABSENCES: dict[str, str] = {reason: meaning for reason, (_, meaning) in errors.ABSENCES.items()}


class Absence(NamedTuple):
    """Why a value is missing: a key of :data:`ABSENCES`, the kernel's errno name if it gave one, and what to type to
    get it.
    """

    kind: str
    errno: str | None = None
    fix: str | None = None
    detail: str | None = None


class Reading(NamedTuple):
    """One fact: a JSON value with unit, the file it came from (path below the root) and the text that stood there.

    ``value`` is None exactly when ``absence`` is set. ``raw`` is the text without NUL bytes and outer white space.
    """

    value: Any
    source: str
    raw: str | None = None
    unit: str | None = None
    absence: Absence | None = None
    scope: str = STABLE

    @property
    def present(self) -> bool:
        """True when there is a value."""
        return self.absence is None


Packed = tuple[Any, ...]
"""A Reading as a plain tuple, its Absence as well."""


def pack(reading: Reading) -> Packed:
    """Without the classes."""
    gone = reading.absence
    return tuple(reading) if gone is None else (*reading[:4], tuple(gone), reading.scope)


def unpack(packed: Packed) -> Reading:
    """What :func:`pack` was given."""
    gone = packed[4]
    return Reading(*packed) if gone is None else Reading._make((*packed[:4], Absence(*gone), packed[5]))


def absent(
    source: str, kind: str, *, errno: str | None = None, fix: str | None = None, detail: str | None = None, **rest: Any
) -> Reading:
    """Build an absence; ``rest`` are fields of :class:`Reading` (raw, unit, scope)."""
    return Reading(None, source, absence=Absence(kind, errno, fix, detail), **rest)


def computed(value: Any, how: str, *, unit: str | None = None, scope: str = STABLE, raw: str | None = None) -> Reading:
    """Build a fact that follows from others; ``how`` names them in words, so that the chain can be followed by hand."""
    return Reading(value, f"computed: {how}", raw, unit, None, scope)
