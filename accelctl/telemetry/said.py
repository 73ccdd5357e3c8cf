"""Where numbers come from and why some are missing: sent, all of it, when any of it changes."""

from __future__ import annotations

from dataclasses import replace

from accelctl.model.snapshot import Gone, Snapshot


class Said:
    """What was sent last."""

    def __init__(self) -> None:
        self._known: tuple[dict[str, str], dict[str, Gone]] = ({}, {})

    def news(self, found: Snapshot) -> Snapshot:
        """Without what was sent before."""
        told = found.sources, found.absences
        if told == self._known:
            return replace(found, sources={}, absences={})
        self._known = told
        return found
