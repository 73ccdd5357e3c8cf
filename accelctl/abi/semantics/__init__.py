"""The semantics suite: what the contract of the portable runtime promises, one assertion each (docs/semantics.md)."""

from accelctl.abi.semantics import collectives, copies, devices, errors, events, launches, memory, streams
from accelctl.abi.semantics.suite import ASSERTIONS, Absent, Assertion, Bench, Place, carry_out

__all__ = [
    "ASSERTIONS",
    "Absent",
    "Assertion",
    "Bench",
    "Place",
    "carry_out",
    "collectives",
    "copies",
    "devices",
    "errors",
    "events",
    "launches",
    "memory",
    "streams",
]
