"""Clocks of Intel GPUs, from sysfs (linux 7.3 i915/gt/intel_gt_sysfs_pm.c, xe/xe_gt_freq.c; rows of chip.toml).

Of several graphics units the fastest one's clock is the device's. i915 says 0 while the unit sleeps, which is true.
Memory in use is in no file of either driver (their query ioctl needs CAP_PERFMON and answers "0 used" without), nor is
load: fdinfo has both. Power is made of hwmon's energy counter.
"""

from __future__ import annotations

from accelctl.abi.telemetryrows import Level, Table, megahertz, size

TELEMETRY = Table(
    Level("clock_hz", "clocks/tile*/gt*/act_mhz", megahertz),
    Level("clock_hz", "clocks/gt*/act_mhz", megahertz),
    Level("clock_hz", "clocks/gt/act_mhz", megahertz),
    Level("memory_total_bytes", "memory/local_total_bytes", size),
)
