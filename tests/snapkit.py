"""Snapshots out of nothing: for tests of what shows, stores and counts them.

Every number follows from (seed, row, tick) alone, so two calls agree and a test may name the number it expects. Device
0 is awake and complete; device 1 sleeps; device 2 has a driver that tells neither power nor fan; device 3 is complete
but one of its sources hung; then it repeats. Pid 1000 + n holds something of one or two devices. Session 7 belongs to
a service on a simulated device when ``simulated`` is set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from accelctl.model.snapshot import (
    DeviceLevel,
    EngineLevel,
    EventMark,
    Gone,
    PoolLevel,
    ProcessLevel,
    QueueLevel,
    SelfCost,
    Snapshot,
    SourceLevel,
    SpaceLevel,
    key,
)

START_NS = 1_790_000_000_000_000_000
"""Wall clock of tick 0."""
UPTIME_NS = 5_000_000_000_000
"""Monotonic clock of tick 0."""
SECOND_NS = 1_000_000_000
MIB = 1 << 20
GIB = 1 << 30
DRIVERS = (("amdgpu", "Radeon Pro W7900"), ("xe", "Arc A770"), ("habanalabs", "HL-205"), ("nvidia", "RTX A2000"))
AWAKE, ASLEEP, TERSE, HUNG = range(4)
"""Kinds of device, in turn."""
FIRST_PID = 1000


def device_id(index: int) -> str:
    """The id of the device with that number."""
    return f"0000:{index + 3:02x}:00.0"


def kind_of(index: int) -> int:
    """AWAKE, ASLEEP, TERSE or HUNG."""
    return index % 4


def wave(seed: int, row: int, tick: int) -> float:
    """Between 0 and 1, smooth over ticks."""
    return 0.5 + 0.5 * math.sin(tick / 7 + row * 1.7 + seed * 0.37)


def snapshot(
    seed: int = 0,
    devices: int = 2,
    processes: int = 8,
    tick: int = 0,
    *,
    leak_pid: int = 0,
    leak_bytes: int = MIB,
    simulated: bool = False,
) -> Snapshot:
    """One moment. ``leak_pid`` holds ``leak_bytes`` more after every tick."""
    found = _Made(seed, tick)
    for index in range(devices):
        found.device(index)
    for index in range(processes):
        found.process(index, devices, leak_bytes * tick if FIRST_PID + index == leak_pid else 0)
    if simulated:
        found.service()
    first = tick == 0
    return Snapshot(
        taken_ns=START_NS + tick * SECOND_NS,
        monotonic_ns=UPTIME_NS + tick * SECOND_NS,
        devices=tuple(found.devices),
        pools=tuple(found.pools),
        queues=tuple(found.queues),
        spaces=tuple(found.spaces),
        processes=tuple(found.processes),
        engines=tuple(found.engines),
        events=_events(devices, tick),
        health=_health(devices, tick),
        hidden_processes=2 if processes else 0,
        cost=SelfCost(
            cpu_ratio=0.011,
            reads=14 * devices + processes,
            tick_ns=7_000_000,
            period_ns=SECOND_NS,
            memory_bytes=61 * MIB,
        ),
        sources=found.sources if first else {},
        absences=found.absences if first else {},
    )


def recording(
    ticks: int = 60,
    leak_pid: int = 0,
    *,
    seed: int = 0,
    devices: int = 2,
    processes: int = 8,
    leak_bytes: int = MIB,
    simulated: bool = False,
) -> Iterator[Snapshot]:
    """So many moments, a second apart. Sources and absences stand in the first, as the sampler sends them."""
    for tick in range(ticks):
        yield snapshot(seed, devices, processes, tick, leak_pid=leak_pid, leak_bytes=leak_bytes, simulated=simulated)


def _events(devices: int, tick: int) -> tuple[EventMark, ...]:
    at = START_NS + tick * SECOND_NS
    if not devices:
        return ()
    if tick % 20 == 5:
        return (EventMark(at_ns=at, kind="uevent", device=device_id(0), level="info", text="change: HOTPLUG=1"),)
    if tick % 20 == 12:
        text = "ring gfx_0.0.0 timeout, signaled seq=41, emitted seq=43"
        return (EventMark(at_ns=at, kind="fault", device=device_id(0), level="error", text=text),)
    return ()


def _health(devices: int, tick: int) -> tuple[SourceLevel, ...]:
    found = [SourceLevel(id="devices"), SourceLevel(id="fdinfo")]
    for index in range(devices):
        if kind_of(index) == HUNG:
            path = f"/sys/devices/pci0000:00/{device_id(index)}/hwmon/hwmon3/power1_input"
            since = START_NS + (tick - tick % 30) * SECOND_NS
            found.append(
                SourceLevel(
                    id=f"hwmon {device_id(index)}",
                    state="quarantined",
                    path=path,
                    since_ns=since,
                    wchan="wait_for_completion",
                    retry_ns=since + 30 * SECOND_NS,
                )
            )
    return tuple(found)


class _Made:
    """Rows as they are made."""

    def __init__(self, seed: int, tick: int) -> None:
        self.seed, self.tick = seed, tick
        self.devices: list[DeviceLevel] = []
        self.pools: list[PoolLevel] = []
        self.queues: list[QueueLevel] = []
        self.spaces: list[SpaceLevel] = []
        self.processes: list[ProcessLevel] = []
        self.engines: list[EngineLevel] = []
        self.sources: dict[str, str] = {}
        self.absences: dict[str, Gone] = {}

    def _from(self, table: str, row: str, source: str, *names: str) -> None:
        self.sources.update({key(table, row, name): source for name in names})

    def _gone(self, row: str, why: Gone, *names: str) -> None:
        self.absences.update({key("devices", row, name): why for name in names})

    def device(self, index: int) -> None:
        """One device with its pool, engines and queue."""
        name = device_id(index)
        driver, model = DRIVERS[index % len(DRIVERS)]
        base = DeviceLevel(id=name, name=model, driver=driver, chip=driver, power_state="active")
        below = f"/sys/devices/pci0000:00/{name}"
        self._from("devices", name, f"{below}/power/runtime_status", "power_state")
        if kind_of(index) == ASLEEP:
            self.devices.append(replace(base, power_state="suspended", asleep=True))
            gone = Gone("asleep", "runtime_status is suspended", f"echo on > {below}/power/control")
            self._gone(name, gone, "busy_ratio", "temperature_celsius", "power_mw", "fan_rpm", "clock_hz")
            self._gone(name, gone, "memory_total_bytes", "memory_used_bytes")
            return
        busy = wave(self.seed, index, self.tick)
        total, used = 16 * GIB, 2 * GIB + int(busy * 6 * GIB) // 4096 * 4096
        attributed = used - 300 * MIB
        sensors = below + "/hwmon/hwmon3"
        full = replace(
            base,
            busy_ratio=busy,
            temperature_celsius=40 + round(busy * 40, 1),
            power_mw=30_000 + int(busy * 200_000),
            fan_rpm=1200 + int(busy * 1500),
            clock_hz=2.4e9,
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_attributed_bytes=attributed,
            memory_unattributed_bytes=used - attributed,
            open_files=4 + index,
            mapped_bytes=96 * MIB,
            handles=120 + self.tick % 5,
            clients=2,
            findings=(("warn", "PCI-LINK-WIDTH"),) if index == 0 else (),
        )
        self._from("devices", name, f"{below}/mem_info_vram_total", "memory_total_bytes")
        self._from("devices", name, f"{below}/mem_info_vram_used", "memory_used_bytes")
        self._from("devices", name, "/proc/*/fdinfo", "memory_attributed_bytes", "open_files", "mapped_bytes")
        self._from("devices", name, "computed: used - attributed", "memory_unattributed_bytes")
        self._from("devices", name, f"{sensors}/temp1_input", "temperature_celsius")
        if kind_of(index) == TERSE:
            full = replace(full, power_mw=None, fan_rpm=None)
            self._gone(name, Gone("not_offered", "the driver has no such file"), "power_mw", "fan_rpm")
        elif kind_of(index) == HUNG:
            full = replace(full, power_mw=None)
            self._gone(name, Gone("timed_out", f"{sensors}/power1_input", "sudo dmesg | tail"), "power_mw")
        else:
            self._from("devices", name, f"{sensors}/power1_input", "power_mw")
        self.devices.append(full)
        self._device_rows(name, index, busy, total, used, attributed)

    def _device_rows(self, name: str, index: int, busy: float, total: int, used: int, attributed: int) -> None:
        self.pools.append(
            PoolLevel(
                id=f"{name} vram",
                device=name,
                capacity_bytes=total,
                in_use_bytes=used,
                high_water_bytes=9 * GIB,
                unattributed_bytes=used - attributed,
            )
        )
        for number, engine in enumerate(("render", "copy", "video")):
            ratio = busy if number == 0 else busy / (number + 3)
            capacity = 2 if engine == "video" else 1
            self.engines.append(
                EngineLevel(id=f"{name} {engine}", device=name, busy_ratio=ratio, capacity=capacity, clock_hz=2.4e9)
            )
        done = 1000 * self.tick + 10 * index
        self.queues.append(
            QueueLevel(
                id=f"{name} ring 0",
                device=name,
                kind="engine",
                state="running",
                depth=64,
                submitted=done + 3,
                running=3,
                finished=done,
                wait_ns=180_000.0,
                busy_ratio=busy,
                stalled_ns=0 if kind_of(index) != HUNG else self.tick % 30 * SECOND_NS,
            )
        )

    def process(self, index: int, devices: int, extra: int) -> None:
        """One process on one device, every third on two."""
        pid = FIRST_PID + index
        homes = [number for number in range(devices) if kind_of(number) != ASLEEP]
        if not homes:
            return
        mine = [homes[index % len(homes)]]
        if index % 3 == 2 and len(homes) > 1:
            mine.append(homes[(index + 1) % len(homes)])
        names = tuple(device_id(number) for number in mine)
        held = (64 + 32 * index) * MIB + extra
        started = 40_000 + 17 * index
        self.processes.append(
            ProcessLevel(
                pid=pid,
                started=started,
                name=("python3", "trainer", "ollama", "Xorg")[index % 4],
                uid=1000 if index % 4 != 3 else 0,
                state="D" if index == 5 else "S",
                wchan="dma_fence_default_wait" if index == 5 else "",
                container=index % 4 == 2,
                devices=names,
                memory=(*((name, "vram", held) for name in names), (names[0], "gtt", 8 * MIB)),
                engines=tuple((name, "render", wave(self.seed, index, self.tick) / 8) for name in names),
                files=tuple((name, 2) for name in names),
                mapped=tuple((name, 12 * MIB) for name in names),
                shared_with=(FIRST_PID + 1,) if index == 0 else (FIRST_PID,) if index == 1 else (),
            )
        )
        self._from("processes", f"{pid}@{started}", f"/proc/{pid}/fdinfo", "memory", "engines")
        used = held + 8 * MIB
        self.spaces.append(
            SpaceLevel(
                id=f"{names[0]} pid {pid}",
                device=names[0],
                owner=f"pid {pid}",
                base=0x8000_0000_0000,
                size_bytes=64 * GIB,
                mapped_bytes=used,
                reserved_bytes=GIB,
                free_bytes=64 * GIB - GIB - used,
                largest_hole_bytes=60 * GIB - used,
                ranges=((0x8000_0000_0000, GIB, "reserved"), (0x8000_4000_0000, used, "mapped")),
            )
        )

    def service(self) -> None:
        """A service on a simulated device, with one session."""
        name, owner = "sim:0", "session 7"
        used = (16 + self.tick) * MIB
        self.devices.append(
            DeviceLevel(
                id=name,
                name="Simulated accelerator",
                chip="sim",
                simulated=True,
                clients=1,
                memory_total_bytes=GIB,
                memory_used_bytes=used,
                memory_attributed_bytes=used,
                memory_unattributed_bytes=0,
            )
        )
        self.pools.append(
            PoolLevel(
                id=f"{name} {owner}",
                device=name,
                owner=owner,
                capacity_bytes=GIB,
                in_use_bytes=used,
                cached_bytes=4 * MIB,
                reserved_bytes=used + 4 * MIB,
                asked_bytes=used - 512 * 1024,
                high_water_bytes=used,
                fragmentation_ratio=512 * 1024 / used,
                hits=100 * self.tick,
                misses=16 + self.tick,
                size_classes=((65536, 40 * self.tick, 40 * self.tick), (MIB, 16 + self.tick, 0)),
                ops=(("client", 16 + self.tick, 0), ("matmul", 40 * self.tick, 40 * self.tick)),
            )
        )
        done = 400 * self.tick
        self.queues.append(
            QueueLevel(
                id=f"{name} {owner}", device=name, owner=owner, kind="session", state="running", depth=64,
                submitted=done + 2, running=2, finished=done, wait_ns=90_000.0, busy_ratio=0.4, stalled_ns=0,
            )
        )  # fmt: skip
        self.spaces.append(
            SpaceLevel(
                id=f"{name} {owner}", device=name, owner=owner, base=1 << 32, size_bytes=GIB, reserved_bytes=4 * MIB,
                mapped_bytes=used, free_bytes=GIB - used - 4 * MIB, largest_hole_bytes=GIB - used - 4 * MIB,
                ranges=((1 << 32, used, "mapped"), ((1 << 32) + used, 4 * MIB, "reserved")),
            )
        )  # fmt: skip
        source = "service unix:/run/user/1000/accelctl/serve.sock: Telemetry"
        self._from("devices", name, source, "memory_total_bytes", "memory_used_bytes", "clients")
        self._from("pools", f"{name} {owner}", source, "in_use_bytes", "cached_bytes", "asked_bytes")
        for field in ("temperature_celsius", "power_mw", "fan_rpm", "clock_hz", "busy_ratio"):
            self._gone(name, Gone("not_applicable", "a simulated device has none"), field)
