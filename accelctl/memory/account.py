"""The ledger's fast lane."""

from collections.abc import Callable

from accelctl.memory import in_bytes
from accelctl.memory.records import OURS, Holding, Key, Number


class Account:
    """The fast lane of a ledger: one stage's numbers, each with exactly one owner (us) and one reference.

    A loop of a hundred thousand cycles books every stage of every cycle; most of these need none of storage, gates and
    sharing. What is held here counts in the ledger's balance, stages and outstanding like everything else.
    """

    __slots__ = ("_mistake", "acquired", "chip", "domain", "kind", "live", "peak", "released", "stage")

    def __init__(
        self, mistake: Callable[[str, Key, str], object], domain: Number, chip: str, stage: str, kind: str
    ) -> None:
        self._mistake, self.domain, self.chip, self.stage, self.kind = mistake, domain, chip, stage, kind
        self.live: dict[Number, int] = {}
        """Number -> bytes of storage that it keeps (0: none of its own)."""
        self.acquired = self.released = self.peak = 0

    def take(self, number: Number, size: int = 0) -> None:
        """Acquired. A number that is alive here already is the mistake "taken"."""
        live = self.live
        if number in live:
            key = Key(self.domain, self.kind, number)
            self._mistake("taken", key, f"{key} was given out again while it is held (stage {self.stage})")
            return
        live[number] = size
        self.acquired += 1
        self.peak = max(self.peak, len(live))

    def give(self, number: Number) -> None:
        """Given back; of a number that is not held: the mistake "double"."""
        if self.live.pop(number, None) is None:
            key = Key(self.domain, self.kind, number)
            self._mistake("double", key, f"release of {key}, which is not held")
            return
        self.released += 1

    def holdings(self) -> list[Holding]:
        """What is outstanding, oldest first."""
        return [
            Holding(key, self.stage, self.chip, OURS, size, (f"{in_bytes(size)} held by " if size else "") + text)
            for number, size in self.live.items()
            for key in [Key(self.domain, self.kind, number)]
            for text in [f"{key} is still open"]
        ]
