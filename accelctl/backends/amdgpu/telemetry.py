"""What amdgpu tells of itself in sysfs (names and formats: linux 7.3 amdgpu_vram_mgr.c, amdgpu_gtt_mgr.c, amd/pm/
amdgpu_pm.c; rows of chip.toml). Temperature, power, fan and shader clock are hwmon's.

VRAM of a device is what TTM counts, that of KFD and of the kernel itself included; on an APU it is the part that
firmware set aside. GTT is host memory that the device may reach: a pool of its own, never part of the device's memory.

What a process holds through KFD (ROCm) KFD counts itself, in sys/class/kfd/kfd/proc/PID/vram_GPUID (6.12
amdkfd/kfd_process.c, kfd_procfs_show: bytes, from memory), readable by everyone. It is a pool of that process, and its
memory. Whether fdinfo has it as well, no document says: KFD maps it into the address space of the render file that the
process gave it (kfd_process_device_init_vm), and what fdinfo adds up there differs between kernels. The two are never
added: of a process the larger one counts.
"""

from __future__ import annotations

from accelctl.abi.telemetry import Draft, Tick
from accelctl.abi.telemetryrows import Level, Pool, Table, TableGauge, files, percent, size
from accelctl.hal.allowlist import FREE
from accelctl.model.convert import is_index
from accelctl.model.snapshot import EngineLevel, PoolLevel, key

VIDEO = "busy/vcn_percent"
KFD = "sys/class/kfd/kfd"


class AmdGauge(TableGauge):
    """The rows; the video engine, which has a load of its own; and what processes hold through KFD."""

    _gpu: int | None = None
    """KFD's number of this device."""

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Gauge."""
        super().sample(draft, tick)
        self._video(draft)
        if self.device.value("kfd/node") is not None:
            self._processes(draft)

    def _processes(self, draft: Draft) -> None:
        if self._gpu is None:
            self.root.allow.add("kfd/kfd/proc/*/vram_*", FREE)
            node = self.device.value("kfd/node")
            self._gpu = self.root.read(f"{KFD}/topology/nodes/{node}/gpu_id", "int").value
        for pid in filter(is_index, self.root.listdir(f"{KFD}/proc")):
            path = f"{KFD}/proc/{pid}/vram_{self._gpu}"
            reading = self._read(draft, path, size)
            if reading.present:  # otherwise the process uses other devices, or has just ended
                identity = f"{self.device.id}/kfd {pid}"
                draft.pools.append(
                    PoolLevel(id=identity, device=self.device.id, owner=f"pid {pid}", in_use_bytes=reading.value)
                )
                draft.sources[key("pools", identity, "in_use_bytes")] = path
                draft.holds(self.device.id, int(pid), reading.value, path)

    def _video(self, draft: Draft) -> None:
        for path in files(self.device, VIDEO):
            reading = self._read(draft, path, percent)
            if reading.present:
                identity = f"{self.device.id}/vcn"
                draft.engines.append(EngineLevel(id=identity, device=self.device.id, busy_ratio=reading.value))
                draft.sources[key("engines", identity, "busy_ratio")] = path


TELEMETRY = Table(
    Level("memory_total_bytes", "memory/vram_total_bytes", size),
    Level("memory_used_bytes", "memory/vram_used_bytes", size),
    Level("busy_ratio", "busy/gpu_percent", percent),
    pools=(
        Pool("vram", "memory/vram_total_bytes", "memory/vram_used_bytes"),
        Pool("visible vram", "memory/visible_vram_total_bytes", "memory/visible_vram_used_bytes"),
        Pool("gtt", "memory/gtt_total_bytes", "memory/gtt_used_bytes"),
    ),
    gauge=AmdGauge,
)
