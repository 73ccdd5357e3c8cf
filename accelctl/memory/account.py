"""The ledger's fast lane."""

from collections.abc import Callable, Iterable, Sequence

from accelctl.memory import in_bytes
from accelctl.memory.records import OURS, Holding, Key, Number

Event = tuple[Sequence[Number], "int | None"]
"""The numbers of a thing's parts, as far as there are any, and its size in bytes where it was acquired, None where it
was given back."""
STAYS: Number = ""
"""Instead of a number: this part could not be given back."""


class Account:
    """The fast lane of a ledger: one stage's numbers, each with exactly one owner (us) and one reference.

    A loop of a hundred thousand cycles books every stage of every cycle; most of these need none of storage, gates and
    sharing. What is held here counts in the ledger's balance, stages and outstanding like everything else.
    """

    __slots__ = ("_mistake", "chip", "domain", "kind", "live", "peak", "released", "stage", "stores")

    def __init__(
        self,
        mistake: Callable[[str, Key, str], object],
        domain: Number,
        chip: str,
        stage: str,
        kind: str,
        stores: bool = True,
    ) -> None:
        self._mistake, self.domain, self.chip, self.stage, self.kind = mistake, domain, chip, stage, kind
        self.stores = stores
        """These have storage of their own; else they only refer to another stage's."""
        self.live: dict[Number, int] = {}
        """Number -> its size in bytes."""
        self.released = self.peak = 0

    def take(self, number: Number, size: int = 0) -> None:
        """Acquired. A number that is alive here already is the mistake "taken"."""
        self.follow([([number], size)])

    def give(self, number: Number) -> None:
        """Given back; of a number that is not held: the mistake "double"."""
        self.follow([([number], None)])

    def follow(self, events: Iterable[Event], place: int = 0) -> None:
        """Many of both, in order, of things whose parts have theirs at this place."""
        live, released, peak = self.live, self.released, self.peak
        for numbers, size in events:
            try:
                number = numbers[place]
            except IndexError:
                continue
            if size is None:
                if number in live:
                    del live[number]
                    released += 1
                elif number != STAYS:
                    self._wrong("double", number, "release of {}, which is not held")
            elif number in live:
                self._wrong("taken", number, "{} was given out again while it is held (stage " + f"{self.stage})")
            else:
                live[number] = size
                if len(live) > peak:
                    peak += 1
        self.released, self.peak = released, peak

    def _wrong(self, what: str, number: Number, text: str) -> None:
        key = Key(self.domain, self.kind, number)
        self._mistake(what, key, text.format(key))

    @property
    def acquired(self) -> int:
        """How many there were ever."""
        return self.released + len(self.live)

    @property
    def held_bytes(self) -> int:
        """Storage that these keep."""
        return sum(self.live.values()) if self.stores else 0

    def holdings(self) -> list[Holding]:
        """What is outstanding, oldest first."""
        return [
            Holding(key, self.stage, self.chip, OURS, kept, (f"{in_bytes(kept)} held by " if kept else "") + text)
            for number, size in self.live.items()
            for key in [Key(self.domain, self.kind, number)]
            for text in [f"{key} is still open"]
            for kept in [size if self.stores else 0]
        ]
