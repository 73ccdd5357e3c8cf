"""Sources and absences as they are known so far: Snapshots bring only those that changed."""

from __future__ import annotations

from accelctl.model.snapshot import Gone, Snapshot

MOST = 1 << 14
"""Keys that are kept. Rows of devices stay far below it; processes come and go for as long as it runs."""


class Known:
    """What all Snapshots together have said. Of one key there is a source or an absence, whichever came last."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        self.absences: dict[str, Gone] = {}

    def learn(self, snapshot: Snapshot) -> tuple[dict[str, str], dict[str, Gone]]:
        """Take in one Snapshot; what of it is new."""
        sources = {name: text for name, text in snapshot.sources.items() if self.sources.get(name) != text}
        absences = {name: why for name, why in snapshot.absences.items() if self.absences.get(name) != why}
        for name in sources:
            self.absences.pop(name, None)
        for name in absences:
            self.sources.pop(name, None)
        self.sources |= sources
        self.absences |= absences
        self._forget(self.sources)
        self._forget(self.absences)
        return sources, absences

    @staticmethod
    def _forget(kept: dict[str, str] | dict[str, Gone]) -> None:
        """The oldest keys of processes go first."""
        if len(kept) > MOST:
            for name in [name for name in kept if name.startswith("processes/")][: MOST // 2]:
                del kept[name]
