"""One accelerator: its identity and a flat tree of Readings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from accelctl.model.reading import Packed, Reading, pack, unpack

#: What a Device is. ``display`` are functions of a display class that compute nothing (BMC and emulator cards).
KINDS = ("physical", "vf", "partition", "virtual", "display")


@dataclass
class Device:
    """A device with facts keyed by "/"-separated pointers (``link/current_speed_gts``), which are JSON pointers below
    the device.

    ``id`` is the PCI address for PCI functions, else ``platform:NAME`` or ``drm:NODE``: stable across boots, unlike
    node numbers. ``parent`` is the physical function of a VF or the whole of a partition. ``chip`` is the room in
    backends/ that knows it.
    """

    id: str
    kind: str
    path: str
    parent: str | None = None
    chip: str | None = None
    facts: dict[str, Reading] = field(default_factory=dict)
    _keys: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _groups: dict[str, list[str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> tuple[str, str, str, str | None, str | None, dict[str, Packed]]:
        """For pickle, by which reports cross the pipe from the reader child: facts as plain tuples take a third of the
        time that named ones take."""
        facts = {key: pack(reading) for key, reading in self.facts.items()}
        return self.id, self.kind, self.path, self.parent, self.chip, facts

    def __setstate__(self, state: tuple[str, str, str, str | None, str | None, dict[str, Packed]]) -> None:
        self.id, self.kind, self.path, self.parent, self.chip, facts = state
        self.facts = {key: unpack(packed) for key, packed in facts.items()}
        self._keys, self._groups = [], {}

    def value(self, key: str) -> Any:
        """The value of a fact, None where it is absent or was never asked for."""
        reading = self.facts.get(key)
        return None if reading is None else reading.value

    def reading(self, key: str) -> Reading | None:
        """The fact with its evidence."""
        return self.facts.get(key)

    def under(self, prefix: str) -> dict[str, Reading]:
        """All facts below a pointer prefix, by full key, in key order of insertion."""
        prefix = prefix.rstrip("/") + "/"
        group, _, deeper = prefix.partition("/")
        keys = self._grouped().get(group, ())
        return {key: self.facts[key] for key in keys if not deeper or key.startswith(prefix)}

    def _grouped(self) -> dict[str, list[str]]:
        """Keys by what stands before their first "/". There are a hundred, and a dozen readers that want a few of them:
        kept, and only added to where facts were."""
        keys = list(self.facts)
        if keys == self._keys:
            return self._groups
        if keys[: len(self._keys)] != self._keys:
            self._keys, self._groups = [], {}
        for key in keys[len(self._keys) :]:
            group, slash, _ = key.partition("/")
            if slash:
                self._groups.setdefault(group, []).append(key)
        self._keys = keys
        return self._groups
