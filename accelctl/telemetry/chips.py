"""Chips tell what only they know of their devices: gauges of the Telemetry contract, one source for each family."""

from __future__ import annotations

from collections.abc import Iterable

from accelctl.abi import registry
from accelctl.abi.lifecycle import NotOffered
from accelctl.abi.telemetry import Gauge, Seat
from accelctl.hal.root import SysRoot
from accelctl.model.device import Device
from accelctl.telemetry.source import Draft, Tick


class Chip:
    """All devices of one family. Its code is imported in the child, at the first tick: a plug-in that never returns
    from its import stops nobody else."""

    def __init__(self, name: str, root: SysRoot, devices: Iterable[Device]) -> None:
        self.name = f"chip {name}"
        self._chip, self._root, self._devices = name, root, list(devices)
        self._gauges: list[tuple[Device, Gauge]] | None = None

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Source. A gauge that fails does not keep the others from being asked."""
        if self._gauges is None:
            self._gauges = list(self._open())
        wrong: Exception | None = None
        for device, gauge in self._gauges:
            if device.id in tick.asleep:
                continue
            try:
                gauge.sample(draft, tick)
            except Exception as error:
                wrong = wrong or error
        if wrong is not None:
            raise wrong

    def _open(self) -> Iterable[tuple[Device, Gauge]]:
        telemetry = registry.load(self._chip).telemetry
        for device in self._devices if telemetry is not None else ():
            try:
                yield device, telemetry.open(Seat(device, self._root))  # type: ignore[union-attr]
            except NotOffered:
                continue

    def close(self) -> None:
        """Close the gauges."""
        for _, gauge in self._gauges or ():
            gauge.close()
        self._gauges = None


def chips(root: SysRoot, devices: Iterable[Device]) -> list[Chip]:
    """A source for each family that is here and has code."""
    families: dict[str, list[Device]] = {}
    for device in devices:
        if device.chip:
            families.setdefault(device.chip, []).append(device)
    known = registry.names()
    return [Chip(name, root, family) for name, family in families.items() if name in known]
