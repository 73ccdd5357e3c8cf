"""A fact together with its evidence, or an absence together with its reason.

Tools that print a bare N/A leave their user to guess between eight causes. A :class:`Reading` cannot be built without
saying where its value was read, or why there is none; everything downstream (text, JSON, ``--why``, rules) renders the
same record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

#: Stable facts are equal on equal machines and at every run; volatile ones change by themselves; identities tell equal
#: machines apart.
STABLE, VOLATILE, IDENTITY = "stable", "volatile", "identity"
SCOPES = (STABLE, VOLATILE, IDENTITY)

#: The vocabulary of absences: why a fact is missing. ``accelctl.errors`` maps each to an error kind.
ABSENCES: dict[str, str] = {
    "no_node": "the device node does not exist",
    "no_driver": "no driver is bound that would provide it",
    "no_permission": "this process may not read it",
    "hidden_by_container": "the container does not show it",
    "asleep": "reading it would wake a sleeping device",
    "costly": "reading it blocks for a noticeable time, so it is only read when asked for",
    "kernel_too_old": "this kernel does not provide it yet",
    "not_offered": "the driver does not provide it",
    "not_captured": "the captured machine does not contain it",
    "empty": "the file is there but holds no value",
    "timed_out": "reading it did not come back within the deadline",
    "unreadable": "reading it failed",
    "malformed": "the text read is not what this file should hold",
    "not_applicable": "it has no meaning for this device",
    "not_allowed": "it is not on the list of files that may be opened",
}


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


def absent(
    source: str, kind: str, *, errno: str | None = None, fix: str | None = None, detail: str | None = None, **rest: Any
) -> Reading:
    """Build an absence; ``rest`` are fields of :class:`Reading` (raw, unit, scope)."""
    return Reading(None, source, absence=Absence(kind, errno, fix, detail), **rest)


def computed(value: Any, how: str, *, unit: str | None = None, scope: str = STABLE, raw: str | None = None) -> Reading:
    """Build a fact that follows from others; ``how`` names them in words, so that the chain can be followed by hand."""
    return Reading(value, f"computed: {how}", raw, unit, None, scope)
