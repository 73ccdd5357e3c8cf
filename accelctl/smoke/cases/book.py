"""How the catalogue's files note their cases: one line each, for several element types at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from accelctl.smoke.cases.record import Arg, Case, Made, Make, Maker, Refusal
from accelctl.smoke.numbers import Array

FLOATS = ("fp32", "fp16", "bf16")
HALVES = ("fp16", "bf16")
INTS = ("int8", "int32", "uint8")


class Book:
    """Cases of one op, in order."""

    def __init__(self, op: str) -> None:
        self.op, self.cases = op, list[Case]()

    def add(
        self,
        name: str,
        make: Make,
        dtypes: Iterable[str] = FLOATS,
        corner: str = "",
        *,
        long: bool = False,
        repeat: bool = False,
        sequence: str = "",
    ) -> None:
        """One case for each element type; its id is op/dtype/name."""
        for dtype in dtypes:
            case = Case(f"{self.op}/{dtype}/{name}", self.op, dtype, make, corner, long, repeat, sequence)
            self.cases.append(case)

    def refuse(
        self, name: str, why: str, make: Make, dtypes: Iterable[str] = ("fp32",), says: tuple[str, ...] = ()
    ) -> None:
        """A case that must be refused; ``make`` gives the operands without the refusal."""

        def refused(m: Maker) -> Made:
            return make(m)._replace(refusal=Refusal(why, says))

        self.add(f"refused-{name}", refused, dtypes, why)


def made(attrs: Mapping[str, str] | None = None, **inputs: Arg | Array | None) -> Made:
    """Operands by name, and attributes."""
    return Made(inputs, attrs or {})
