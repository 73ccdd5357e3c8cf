"""The Telemetry contract: the handshake, the suite and what it finds, and the chips of the tree."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from accelctl.abi import registry
from accelctl.abi.conformance import check_telemetry
from accelctl.abi.handshake import Chip, Given, check
from accelctl.abi.lifecycle import Block, Env, NotOffered, Target
from accelctl.abi.manifest import Manifest
from accelctl.abi.rooms import all_rooms
from accelctl.abi.telemetry import Draft, Gauge, Seat, Tick
from accelctl.abi.telemetryrows import Level, Table, size
from accelctl.abi.version import ABI
from accelctl.backends.sim.driver import NODE
from accelctl.backends.sim.telemetry import joined
from accelctl.errors import AbiError
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import MemoryTree
from accelctl.model.device import Device
from accelctl.model.reading import VOLATILE, Absence, Reading
from accelctl.model.snapshot import EventMark, PoolLevel, ProcessLevel, Snapshot
from accelctl.telemetry import source
from tests.abikit import space
from tests.telemetrykit import tick

BASE = "sys/devices/pci0000:00/0000:03:00.0"
MANIFEST = Manifest(name="zork", title="Zork", features=frozenset({"telemetry"}))


class Zork:
    """A chip with one file; ``flaw`` breaks a rule."""

    def __init__(self, flaw: Callable[[Seat, Draft], None] | None = None, *, eager: bool = False) -> None:
        self.flaw, self.eager = flaw, eager

    def open(self, seat: Seat) -> Gauge:
        if self.eager and seat.root is not None:
            seat.root.read(f"{BASE}/vendor")
        return ZorkGauge(seat, self.flaw)


class ZorkGauge:
    def __init__(self, seat: Seat, flaw: Callable[[Seat, Draft], None] | None) -> None:
        self.seat, self.flaw = seat, flaw

    def sample(self, draft: Draft, tick: Tick) -> None:
        assert self.seat.root is not None
        reading = self.seat.root.read(f"{self.seat.device.path}/vendor", size)
        draft.take(self.seat.device.id, "memory_used_bytes", reading)
        if self.flaw is not None:
            self.flaw(self.seat, draft)

    def close(self) -> None:
        pass


def seat() -> Seat:
    tree = MemoryTree("test")
    tree.add_file(f"{BASE}/vendor", b"4096\n")
    return Seat(Device("0000:03:00.0", "physical", BASE), SysRoot(tree))


def checks(chip: object) -> dict[str, str]:
    """Name -> why, of the checks that fail."""
    given = Chip(MANIFEST, None, None, None, "test", chip)  # type: ignore[arg-type]
    found = check_telemetry(given, seat())
    assert len(found) >= 9
    return {one.name.removeprefix("telemetry: "): one.detail for one in found if one.result != "pass"}


def test_a_good_chip_passes() -> None:
    assert checks(Zork()) == {}


def other(seat: Seat, draft: Draft) -> None:
    draft.level("0000:04:00.0", "power_mw", 1.0, "x")


def stranger(seat: Seat, draft: Draft) -> None:
    draft.level(seat.device.id, "smell", 1, "x")


def bare(seat: Seat, draft: Draft) -> None:
    draft.devices[seat.device.id]["power_mw"] = 1.0


def twice(seat: Seat, draft: Draft) -> None:
    draft.pools += [PoolLevel(id=f"{seat.device.id}/vram", device=seat.device.id)] * 2


def nameless(seat: Seat, draft: Draft) -> None:
    draft.pools.append(PoolLevel(id="vram", device=seat.device.id))


def made_up(seat: Seat, draft: Draft) -> None:
    if draft.devices.get(seat.device.id, {}).get("memory_used_bytes") is None:
        draft.level(seat.device.id, "memory_used_bytes", 0, "nothing")


def noisy(seat: Seat, draft: Draft) -> None:
    draft.events.append(EventMark(at_ns=1, kind="fault", device=seat.device.id, level="error", text="boo"))


def raising(seat: Seat, draft: Draft) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    ("flaw", "where", "words"),
    [
        (other, "rows", "rows of other devices: 0000:04:00.0"),
        (stranger, "rows", "no fields of a device: smell"),
        (bare, "rows", "power_mw has no source"),
        (twice, "rows", "two rows with one id"),
        (nameless, "rows", "begins with that and a slash"),
        (made_up, "files gone", "memory_used_bytes is 0 where no file says a number"),
        (made_up, "files say '[N/A]'", "memory_used_bytes is 0"),
        (noisy, "files gone", "an event where nothing is told: boo"),
        (raising, "close", "Input/output error"),
    ],
)
def test_the_suite_finds(flaw: Callable[[Seat, Draft], None], where: str, words: str) -> None:
    assert words in checks(Zork(flaw))[where]


def test_the_suite_finds_reading_too_early() -> None:
    assert "that is for the first sample" in checks(Zork(eager=True))["open"]


def test_the_suite_finds_a_clamped_text() -> None:
    def clamped(text: str) -> float:
        return min(100, int(text)) / 100 if text.isdigit() else 0.0

    device = Device("0000:03:00.0", "physical", BASE)
    device.facts["busy"] = Reading(0, f"{BASE}/vendor", "0", None, None, VOLATILE)
    chip = Chip(MANIFEST, None, None, None, "test", Table(Level("busy_ratio", "busy", clamped)))
    failed = {one.name for one in check_telemetry(chip, seat()._replace(device=device)) if one.result == "fail"}
    assert "telemetry: files say '4294967295'" in failed


def test_the_handshake() -> None:
    given = Given(MANIFEST, {"telemetry": Zork()})
    assert check(given, "chip zork", "in-tree", ABI).telemetry is given.contracts["telemetry"]
    with pytest.raises(AbiError, match="claims telemetry and registers no object for it"):
        check(Given(MANIFEST, {}), "chip zork", "in-tree", ABI)
    with pytest.raises(AbiError, match=r"its telemetry has no method open\(seat\)"):
        check(Given(MANIFEST, {"telemetry": object()}), "chip zork", "in-tree", ABI)
    plain = Manifest(name="zork", title="Zork", features=frozenset())
    with pytest.raises(AbiError, match="registers telemetry, which is not among the features"):
        check(Given(plain, {"telemetry": Zork()}), "chip zork", "in-tree", ABI)


def test_one_draft_for_chips_and_for_sources() -> None:
    assert (source.Draft, source.Tick) == (Draft, Tick)


# -- chips of the tree --

FACTS: dict[str, dict[str, tuple[str, str, str]]] = {
    "amdgpu": {
        "memory/vram_total_bytes": ("mem_info_vram_total", "17163091968", "stable"),
        "memory/vram_used_bytes": ("mem_info_vram_used", "1073741824", "volatile"),
        "memory/gtt_total_bytes": ("mem_info_gtt_total", "8589934592", "stable"),
        "memory/gtt_used_bytes": ("mem_info_gtt_used", "4096", "volatile"),
        "busy/gpu_percent": ("gpu_busy_percent", "37", "volatile"),
        "busy/vcn_percent": ("vcn_busy_percent", "5", "volatile"),
    },
    "intel_gpu": {
        "clocks/gt0/act_mhz": ("drm/card0/gt/gt0/rps_act_freq_mhz", "1100", "volatile"),
        "clocks/gt1/act_mhz": ("drm/card0/gt/gt1/rps_act_freq_mhz", "1300", "volatile"),
        "clocks/gt/act_mhz": ("drm/card0/gt_act_freq_mhz", "1100", "volatile"),
        "memory/local_total_bytes": ("drm/card0/lmem_total_bytes", "6425673728", "stable"),
    },
    "ivpu": {
        "busy/npu_us": ("npu_busy_time_us", "1000000", "volatile"),
        "memory/used_bytes": ("npu_memory_utilization", "8192", "volatile"),
        "clocks/npu_mhz": ("npu_current_frequency_mhz", "1400", "volatile"),
    },
    "habanalabs": {
        "clocks/cur_mhz": ("clk_cur_freq_mhz", "1650", "volatile"),
        "reset/hard_count": ("hard_reset_cnt", "2", "volatile"),
        "reset/soft_count": ("soft_reset_cnt", "0", "volatile"),
        "health/status": ("status", "Operational", "volatile"),
    },
    "qaic": {
        "ras/correctable": ("ce_count", "0", "volatile"),
        "ras/uncorrectable_nonfatal": ("ue_nonfatal_count", "0", "volatile"),
        "ras/uncorrectable": ("ue_count", "0", "volatile"),
    },
}
"""Chip -> fact of probe -> file, text, scope: as chip.toml has them."""


class Board:
    """One device of a chip with these files."""

    def __init__(self, chip: str) -> None:
        self.tree = MemoryTree("test")
        self.root = SysRoot(self.tree, allow_wake=True)
        self.device = Device("0000:03:00.0", "physical", BASE, chip=chip)
        for fact, (file, text, scope) in FACTS[chip].items():
            path = f"{BASE}/{file}"
            self.tree.add_file(path, f"{text}\n".encode())
            self.device.facts[fact] = Reading(text, path, text, scope=scope)
        for row in next(room for room in all_rooms() if room.name == chip).table("attr"):
            self.root.allow.add(row["path"], row["effect"])
        self.chip = registry.load(chip)
        assert self.chip.telemetry is not None
        self.gauge = self.chip.telemetry.open(Seat(self.device, self.root))
        self.ticks = 0

    def write(self, fact: str, text: str) -> None:
        self.tree.add_file(self.device.facts[fact].source, f"{text}\n".encode())

    def sample(self) -> Snapshot:
        draft, now = Draft(), tick(self.ticks)
        self.ticks += 1
        self.gauge.sample(draft, now)
        return draft.snapshot(now)


@pytest.mark.parametrize("chip", FACTS)
def test_the_facts_are_those_of_the_room(chip: str) -> None:
    rows = next(room for room in all_rooms() if room.name == chip).table("attr")
    known = {(row["key"].replace("gt*", "gt"), row["path"].rpartition("/")[2], row["scope"]) for row in rows}
    for fact, (file, _, scope) in FACTS[chip].items():
        assert (fact.replace("gt0", "gt").replace("gt1", "gt"), file.rpartition("/")[2], scope) in known


@pytest.mark.parametrize("chip", FACTS)
def test_conformance(chip: str) -> None:
    board = Board(chip)
    found = check_telemetry(board.chip, Seat(board.device, board.root))
    assert [one for one in found if one.result != "pass"] == []


@pytest.mark.parametrize("chip", FACTS)
def test_needs_a_root(chip: str) -> None:
    telemetry = registry.load(chip).telemetry
    assert telemetry is not None
    with pytest.raises(NotOffered):
        telemetry.open(Seat(Device("0000:03:00.0", "physical", BASE)))


def test_amdgpu() -> None:
    board = Board("amdgpu")
    found = board.sample()
    (one,) = found.devices
    assert (one.memory_total_bytes, one.memory_used_bytes, one.busy_ratio) == (17163091968, 1073741824, 0.37)
    pools = {pool.id: (pool.capacity_bytes, pool.in_use_bytes) for pool in found.pools}
    assert pools == {
        "0000:03:00.0/vram": (17163091968, 1073741824),
        "0000:03:00.0/gtt": (8589934592, 4096),
    }
    assert [(engine.id, engine.busy_ratio) for engine in found.engines] == [("0000:03:00.0/vcn", 0.05)]
    assert found.sources["pools/0000:03:00.0/gtt/in_use_bytes"] == f"{BASE}/mem_info_gtt_used"
    board.write("memory/vram_used_bytes", "0")
    assert board.sample().devices[0].memory_used_bytes == 0
    reads = {path.rpartition("/")[2]: count for path, count in board.root.opened.items()}
    assert reads == {
        "mem_info_vram_total": 1,  # what does not change is read once
        "mem_info_gtt_total": 1,
        "mem_info_vram_used": 2,
        "mem_info_gtt_used": 2,
        "gpu_busy_percent": 2,
        "vcn_busy_percent": 2,
    }


def test_amdgpu_memory_of_kfd_processes() -> None:
    board = Board("amdgpu")
    board.device.facts["kfd/node"] = Reading(1, "computed: location_id", "1")
    kfd = "sys/class/kfd/kfd"
    board.tree.add_file(f"{kfd}/topology/nodes/1/gpu_id", b"51103\n")
    for pid, gpu, used in ((77, 51103, 8192), (77, 4711, 1), (78, 4711, 2), (79, 51103, 0)):
        board.tree.add_file(f"{kfd}/proc/{pid}/vram_{gpu}", f"{used}\n".encode())
    draft = Draft()
    board.gauge.sample(draft, tick(0))
    assert draft.held == {
        ("0000:03:00.0", pid): (used, f"{kfd}/proc/{pid}/vram_51103") for pid, used in ((77, 8192), (79, 0))
    }
    draft.processes.append(ProcessLevel(pid=77, started=1, name="rocm-train"))
    assert [pool.process for pool in draft.snapshot(tick(0)).pools if pool.owner] == ["pid 77 rocm-train", ""]
    pools = {pool.owner: (pool.id, pool.in_use_bytes) for pool in board.sample().pools if pool.owner}
    assert pools == {"pid 77": ("0000:03:00.0/kfd 77", 8192), "pid 79": ("0000:03:00.0/kfd 79", 0)}
    found = check_telemetry(board.chip, Seat(board.device, board.root))
    assert [one for one in found if one.result != "pass"] == []


def test_a_file_that_the_driver_does_not_have_is_not_looked_for() -> None:
    board = Board("amdgpu")
    gone = Absence("not_offered", "ENOENT")
    board.device.facts["busy/gpu_percent"] = Reading(None, f"{BASE}/gpu_busy_percent", absence=gone)
    board.device.facts["memory/gtt_used_bytes"] = Reading(None, f"{BASE}/mem_info_gtt_used", absence=gone)
    assert board.chip.telemetry is not None
    board.gauge = board.chip.telemetry.open(Seat(board.device, board.root))
    found = board.sample()
    assert found.devices[0].busy_ratio is None
    assert found.absences["devices/0000:03:00.0/busy_ratio"].kind == "not_offered"
    assert found.absences["pools/0000:03:00.0/gtt/in_use_bytes"].kind == "not_offered"
    assert [(pool.capacity_bytes, pool.in_use_bytes) for pool in found.pools if pool.id.endswith("gtt")] == [
        (8589934592, None)
    ]
    assert not {f"{BASE}/gpu_busy_percent", f"{BASE}/mem_info_gtt_used"} & board.root.opened.keys()


def test_intel_gpu_takes_the_fastest_unit() -> None:
    board = Board("intel_gpu")
    (one,) = board.sample().devices
    assert (one.clock_hz, one.memory_total_bytes) == (1_300_000_000, 6425673728)
    del board.device.facts["clocks/gt0/act_mhz"], board.device.facts["clocks/gt1/act_mhz"]
    assert board.chip.telemetry is not None
    board.gauge = board.chip.telemetry.open(Seat(board.device, board.root))
    assert board.sample().devices[0].clock_hz == 1_100_000_000


def test_ivpu_load_is_made_of_two_readings() -> None:
    board = Board("ivpu")
    found = board.sample()
    assert (found.devices[0].busy_ratio, found.devices[0].memory_used_bytes) == (None, 8192)
    assert found.absences["devices/0000:03:00.0/busy_ratio"].kind == "empty"
    board.write("busy/npu_us", "1250000")
    assert board.sample().devices[0].busy_ratio == 0.25
    board.write("busy/npu_us", "9000000")
    assert board.sample().devices[0].busy_ratio is None  # 7.75 s in one: no load
    board.write("busy/npu_us", "0")
    assert board.sample().devices[0].busy_ratio is None  # it began again
    board.write("busy/npu_us", "1000900")
    assert board.sample().devices[0].busy_ratio == 1.0


def test_ivpu_is_not_asked_oftener_than_once_a_second() -> None:
    board, path = Board("ivpu"), f"{BASE}/npu_busy_time_us"
    board.sample()
    for _ in range(3):
        draft = Draft()
        board.gauge.sample(draft, tick(0, monotonic_ns=1_999_999_999))
    assert board.root.opened[path] == 1


def test_habanalabs_tells_resets_and_states() -> None:
    board = Board("habanalabs")
    found = board.sample()
    assert (found.devices[0].clock_hz, found.events) == (1_650_000_000, ())
    board.write("reset/hard_count", "4")
    board.write("health/status", "In reset")
    events = board.sample().events
    assert [(one.kind, one.level, one.text) for one in events] == [
        ("reset", "error", "hard reset, 2 times"),
        ("fault", "error", "state: In reset"),
    ]
    board.write("health/status", "Operational")
    assert [(one.level, one.text) for one in board.sample().events] == [("info", "state: Operational")]
    assert board.sample().events == ()


def test_qaic_tells_memory_errors() -> None:
    board = Board("qaic")
    assert board.sample().events == ()
    board.write("ras/uncorrectable", "1")
    (one,) = board.sample().events
    assert (one.kind, one.level, one.text) == ("fault", "critical", "uncorrected memory error")
    board.write("ras/uncorrectable", "0")
    assert board.sample().events == ()  # the driver was loaded anew


# -- sim --


def test_sim() -> None:
    chip = registry.load("sim")
    assert chip.telemetry is not None
    assert chip.memory is not None
    device = Device("sim:0", "virtual", "")
    with pytest.raises(NotOffered):
        chip.telemetry.open(Seat(device))
    session = chip.memory.open(Target("sim:0", "sim", "sim", NODE), Env(space=space))
    try:
        life = next(one for one in session.lifecycles if one.name == "queue")
        block = Block(serial=1, size=8192)
        for stage in life.stages:
            stage.acquire(block)
        found = check_telemetry(chip, Seat(device, session=session))
        assert [one for one in found if one.result != "pass"] == []
        draft = Draft()
        chip.telemetry.open(Seat(device, session=session)).sample(draft, tick())
        seen = draft.snapshot(tick())
    finally:
        session.close()
    (one,), (pool,), (queue,), (vm,) = seen.devices, seen.pools, seen.queues, seen.spaces
    assert (one.id, one.simulated, one.memory_used_bytes, one.handles, one.open_files) == ("sim:0", True, 8192, 1, 1)
    assert seen.simulated
    assert (pool.in_use_bytes, pool.capacity_bytes) == (8192, one.memory_total_bytes)
    assert (queue.submitted, queue.running, queue.finished, queue.depth, queue.state) == (1, 1, 0, 4, "busy")
    assert (vm.mapped_bytes, [span[1:] for span in vm.ranges]) == (8192, [(8192, "mapped")])
    assert vm.size_bytes is not None
    assert vm.free_bytes == vm.size_bytes - 8192
    with pytest.raises(NotOffered):
        chip.telemetry.open(Seat(device))


def test_neighbours_are_joined() -> None:
    assert joined([(0, 4), (4, 4), (12, 4)]) == [(0, 8), (12, 4)]
    assert joined([]) == []
