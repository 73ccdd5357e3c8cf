"""What habanalabs tells in sysfs: its clock (the driver asks the firmware), resets and state (linux 7.3
accel/habanalabs/common/sysfs.c; rows of chip.toml). Memory in use and load are answers of an ioctl of the device node,
which nobody opens for looking: the last close can reset the device.
"""

from __future__ import annotations

from accelctl.abi.telemetry import Draft, Tick
from accelctl.abi.telemetryrows import Level, Steps, Table, TableGauge, files, megahertz
from accelctl.model.convert import to_text
from accelctl.model.snapshot import EventMark

STATE = "health/status"
GOOD = "operational"


class HabanaGauge(TableGauge):
    """The rows; resets by their counters, and the state when it changes."""

    state = ""

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Gauge."""
        super().sample(draft, tick)
        for path in files(self.device, STATE):
            now = str(self._read(draft, path, to_text).value or "")
            if now and self.state and now != self.state:
                level = "info" if now.lower() == GOOD else "error"
                draft.events.append(
                    EventMark(at_ns=tick.now_ns, kind="fault", device=self.device.id, level=level, text=f"state: {now}")
                )
            self.state = now or self.state


TELEMETRY = Table(
    Level("clock_hz", "clocks/cur_mhz", megahertz),
    steps=(
        Steps("reset/hard_count", "reset", "error", "hard reset"),
        Steps("reset/soft_count", "reset", "warn", "soft reset"),
    ),
    gauge=HabanaGauge,
)
