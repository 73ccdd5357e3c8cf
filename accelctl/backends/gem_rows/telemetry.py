"""Chips without code of their own whose drivers tell something in sysfs (rows of their chip.toml).

ivpu: busy time, memory of its buffers, clock (linux 7.3 ABI sysfs-driver-ivpu). qaic: counts of memory errors (ABI
sysfs-driver-qaic). amdxdna, panfrost, panthor, v3d, msm, etnaviv and rocket tell nothing there but what they are: their
load is in fdinfo.
"""

from __future__ import annotations

from accelctl.abi.telemetry import Draft, Tick
from accelctl.abi.telemetryrows import Level, Steps, Table, TableGauge, count, files, megahertz, size
from accelctl.model.snapshot import Gone

BUSY = "busy/npu_us"
AT_LEAST_NS = 1_000_000_000
"""The driver's own wish: busy time is read no oftener than once a second."""


class IvpuGauge(TableGauge):
    """The rows, and the load: busy microseconds over those that passed between two readings."""

    _before: tuple[int, int] | None = None
    _ratio: float | None = None

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Gauge."""
        super().sample(draft, tick)
        for path in files(self.device, BUSY):
            self._busy(draft, tick, path)

    def _busy(self, draft: Draft, tick: Tick, path: str) -> None:
        before = self._before
        if before is None or tick.monotonic_ns - before[1] >= AT_LEAST_NS:
            reading = self._read(draft, path, count)
            if not reading.present:
                self._before = self._ratio = None
                draft.take(self.device.id, "busy_ratio", reading)
                return
            self._before = reading.value, tick.monotonic_ns
            self._ratio = None
            if before is not None and reading.value >= before[0]:
                self._ratio = _ratio((reading.value - before[0]) * 1000 / (tick.monotonic_ns - before[1]))
        if self._ratio is not None:
            draft.level(self.device.id, "busy_ratio", self._ratio, f"computed: difference of {path}")
        else:
            draft.gone(self.device.id, "busy_ratio", Gone("empty", f"made of two readings of {path}"))


def _ratio(ratio: float) -> float | None:
    """Two clocks make it, so a busy device may be a little above 1; what is far above is no load."""
    return min(1.0, ratio) if ratio <= 1.1 else None


IVPU = Table(
    Level("memory_used_bytes", "memory/used_bytes", size),
    Level("clock_hz", "clocks/npu_mhz", megahertz),
    Level("clock_hz", "clocks/current_mhz", megahertz),
    gauge=IvpuGauge,
)
QAIC = Table(
    steps=(
        Steps("ras/correctable", "fault", "info", "corrected memory error"),
        Steps("ras/uncorrectable_nonfatal", "fault", "error", "uncorrected memory error, not fatal"),
        Steps("ras/uncorrectable", "fault", "critical", "uncorrected memory error"),
    ),
)
TELEMETRY = {"ivpu": IVPU, "qaic": QAIC}
