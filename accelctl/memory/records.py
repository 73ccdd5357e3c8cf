"""What the ledger says: keys, holdings, mistakes, outcomes, balances."""

from typing import NamedTuple

Number = int | str
"""A handle, address, descriptor or name: what the driver calls the thing."""

OURS, BORROWED, HOST = "ours", "borrowed", "host"


class Key(NamedTuple):
    """What identifies an entry. Equal numbers of two domains are two things."""

    domain: Number
    """What the number is valid in: an open file of a device ("card0#3"), or "process" for descriptors and mappings,
    which outlive the file they came from."""
    kind: str
    """handle, cpu_map, gpu_map, va, dmabuf, host_pages, queue, ..."""
    number: Number

    def __str__(self) -> str:
        number = f"{self.number:#x}" if isinstance(self.number, int) and self.number > 0xFFFF else str(self.number)
        return f"{self.kind} {number} of {self.domain}"


class Gate(NamedTuple):
    """A point that a queue has not passed yet."""

    queue: str
    point: int


class Mistake(NamedTuple):
    """Something that the caller must not do; the ledger did not follow it."""

    what: str
    """double, unknown, foreign (lent, or of another domain), taken, held."""
    key: Key
    text: str
    operation: int
    """Serial number of the operation."""


class Outcome(NamedTuple):
    """What a release came to."""

    gone: bool
    """The entry is closed: call the driver's release now. False: a reference is left, it waits, or a mistake."""
    returned: int
    """Bytes of storage whose last reference this was."""
    waits: tuple[Gate, ...]
    mistake: Mistake | None


class Holding(NamedTuple):
    """One thing outstanding, as a person needs it."""

    key: Key
    stage: str
    chip: str
    ownership: str
    bytes: int
    """Storage that it keeps; of several holders of one storage only the first counts it, so sums are true."""
    why: str


class StageCount(NamedTuple):
    """One stage's account: acquired == released + held."""

    held: int
    acquired: int
    released: int
    peak: int


class Balance(NamedTuple):
    """The verdict of this book."""

    clean: bool
    """Nothing of ours outstanding, no bytes held, no mistake."""
    outstanding: tuple[Holding, ...]
    bytes: dict[str, int]
    """Home ("host" or a chip) -> bytes held there; those at 0 are left out."""
    mistakes: tuple[Mistake, ...]
    """The first MISTAKES of them."""
    mistake_count: int
