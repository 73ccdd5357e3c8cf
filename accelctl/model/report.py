"""The result of one probe: what the machine is, what is in it, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from accelctl.model.device import Device
from accelctl.model.finding import Finding
from accelctl.model.reading import Reading

SCHEMA = "accelctl.probe/1"


@dataclass
class Report:
    """Everything probe found. Machine facts are keyed like device facts; ``looked_for`` says what was searched when
    nothing was found.
    """

    root: str
    live: bool
    machine: dict[str, Reading] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    rules_run: int = 0
    rules_not_run: list[str] = field(default_factory=list)
    log_source: str | None = None
    looked_for: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)

    def device(self, identity: str) -> Device | None:
        """The device with this id."""
        return next((device for device in self.devices if device.id == identity), None)

    def value(self, key: str) -> Any:
        """The value of a machine fact, None where it is absent."""
        reading = self.machine.get(key)
        return None if reading is None else reading.value

    @property
    def accelerators(self) -> list[Device]:
        """Devices that compute: not display-only functions."""
        return [device for device in self.devices if device.kind != "display"]
