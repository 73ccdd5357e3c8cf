"""DRM fdinfo: every line of the kernel's grammar, the drivers' own ones, and any bytes at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.hal import drmfdinfo, fdinfo
from accelctl.hal.drmfdinfo import DrmClient, Engine, Meter, Region, parse

SECOND = 1_000_000_000
HEAD = "drm-driver:\tx\ndrm-client-id:\t1\n"


def client(*lines: str) -> DrmClient:
    found = parse(HEAD + "".join(f"{line}\n" for line in lines))
    assert found is not None
    return found


def test_units_of_memory_lines() -> None:
    """MON-02."""
    found = client(
        "drm-total-vram0:        23992 KiB",
        "drm-shared-vram0:       16 MiB",
        "drm-resident-gtt:       192 KiB",
        "drm-total-system:       0",
        "drm-total-memory:       65536",
        "drm-total-vram1:1048576 KiB",
        "drm-engine-capacity-vcs:        2",
    )
    assert found.regions == {
        "vram0": Region(total=24567808, shared=16777216),
        "gtt": Region(resident=196608),
        "system": Region(total=0),
        "memory": Region(total=65536),
        "vram1": Region(total=1073741824),
    }
    assert found.engines == {}
    assert found.unknown == set()


@pytest.mark.parametrize("value", ["5 GiB", "5 kB", "5KiB", "-5", "٣", "", "5 KiB KiB", "18446744073709551615", "1e3"])
def test_what_is_not_understood_is_unknown_and_no_guess(value: str) -> None:
    """MON-02, MON-04: an unknown unit, and -1 as an unsigned number."""
    found = client(f"drm-resident-vram: {value}", "drm-total-vram: 7", f"drm-engine-gfx: {value} ns")
    assert found.regions["vram"] == Region(total=7)
    assert "drm-resident-vram" in found.unknown
    assert found.size("vram") is None, "total is another quantity: it does not stand in for it"
    assert "gfx" not in found.engines


def test_trap_1_the_same_key_changes_its_unit() -> None:
    sizes = [client(f"drm-resident-vram:\t{text}").size("vram") for text in ("0", "1023 KiB", "1 MiB", "1048577")]
    assert sizes == [0, 1047552, 1048576, 1048577]


def test_trap_2_keys_that_begin_alike() -> None:
    found = client(
        "drm-total-cycles-rcs:\t40",
        "drm-cycles-rcs:\t10",
        "drm-total-vram0:\t4 KiB",
        "drm-engine-video:\t5 ns",
        "drm-engine-video-enhance:\t6 ns",
        "drm-engine-capacity-video:\t2",
    )
    assert found.engines == {
        "rcs": Engine(cycles=10, total_cycles=40),
        "video": Engine(busy_ns=5, capacity=2),
        "video-enhance": Engine(busy_ns=6),
    }
    assert found.regions == {"vram0": Region(total=4096)}


def test_trap_3_the_old_name_of_resident_is_not_added_to_it() -> None:
    both = client("drm-memory-vram:\t4 KiB", "drm-resident-vram:\t4 KiB", "drm-total-vram:\t1 MiB")
    assert both.size("vram") == 4096
    assert client("drm-memory-vram:\t4 KiB").size("vram") == 4096


def test_a_capacity_of_nothing_is_one() -> None:
    assert client("drm-engine-e:\t1 ns", "drm-engine-capacity-e:\t0").engines["e"].capacity == 1


AMDGPU_5_15 = """pos:	0
flags:	02100002
mnt_id:	24
pdev:	0000:03:00.0
pasid:	32771
vram mem:	524288 kB
gtt mem:	2048 kB
cpu mem:	0 kB
gfx0:	12.5%
compute1:	100.0%
"""


def test_amdgpu_before_5_19() -> None:
    """kB of 1024 bytes, and hundredths without their zero: 12.5% is 12.05 %."""
    found = parse(AMDGPU_5_15)
    assert found is not None
    assert (found.driver, found.pdev, found.client_id) == ("amdgpu", "0000:03:00.0", "32771")
    assert {name: found.size(name) for name in found.regions} == {"vram": 536870912, "gtt": 2097152, "cpu": 0}
    assert found.shares == {"gfx0": pytest.approx(0.1205), "compute1": 1.0}
    assert Meter().ratios(found, 0, SECOND) == found.shares
    odd = parse("pdev:\t0000:03:00.0\nvram mem:\t1 MB\ngfx0:\t100.1%\ndma0:\t5%\n")
    assert odd is not None
    assert not odd.regions
    assert not odd.shares
    assert odd.unknown == {"vram mem", "gfx0", "dma0"}


PANTHOR = """drm-driver:     panthor
drm-client-id:  10
drm-engine-panthor:     111110952750 ns
drm-cycles-panthor:     94439687187
drm-maxfreq-panthor:    1000000000 Hz
drm-curfreq-panthor:    1000000000 Hz
panthor-resident-memory:        10396 KiB
panthor-active-memory:  10396 KiB
drm-total-memory:       16480 KiB
drm-shared-memory:      0
drm-active-memory:      16200 KiB
drm-resident-memory:    16480 KiB
drm-purgeable-memory:   0
"""
V3D = """drm-driver:     v3d
drm-client-id:  44
drm-engine-bin: 	1661076898 ns
v3d-jobs-bin: 	19576 jobs
drm-engine-cache_clean: 	27736024038 ns
v3d-jobs-cache_clean: 	250392 jobs
"""
MSM = """drm-driver:     msm
drm-client-id:  7
drm-engine-gpu: 1734371319 ns
drm-cycles-gpu: 1153645024
drm-maxfreq-gpu:        800000000 Hz
"""


def test_what_drivers_print_of_their_own() -> None:
    """From Documentation/gpu/panthor.rst and from the drivers' patches on the list (v3d, msm)."""
    panthor, v3d, msm = parse(PANTHOR), parse(V3D), parse(MSM)
    assert panthor is not None
    assert v3d is not None
    assert msm is not None
    assert panthor.private == {"panthor-resident-memory": 10645504, "panthor-active-memory": 10645504}
    assert panthor.regions == {"memory": Region(16875520, 0, 16875520, 0, 16588800)}
    assert panthor.engines["panthor"] == Engine(111110952750, 94439687187, None, 10**9, 10**9)
    assert v3d.private == {"v3d-jobs-bin": 19576, "v3d-jobs-cache_clean": 250392}
    assert v3d.engines == {"bin": Engine(busy_ns=1661076898), "cache_clean": Engine(busy_ns=27736024038)}
    assert msm.engines == {"gpu": Engine(1734371319, 1153645024, None, 800_000_000)}
    amd = client("amd-evicted-vram:\t4 KiB", "amd-requested-gtt:\t8 KiB", "pasid:\t5", "amd-odd:\t1", "xe-new-key: 1")
    assert amd.private == {"amd-evicted-vram": 4096, "amd-requested-gtt": 8192}
    assert amd.regions == {}


def test_keys_that_nobody_knows_stay_out() -> None:
    found = client("drm-evicted-vram:\t5", "drm-:\t1", "drm-total-:\t1", "drm-engine-:\t1 ns", "drm-total-a b:\t1", "x")
    assert not any((found.regions, found.engines, found.private, found.unknown))


def test_a_clients_name_is_any_text() -> None:
    assert client("drm-client-name:\tmy: client, drm-total-vram: 5").name == "my: client, drm-total-vram: 5"
    assert client("drm-driver:\ty", "drm-client-id: 2").client_id == "1", "the first of two counts"
    assert parse("drm-driver:\tx\ndrm-client-id:\t1x\n") == parse("drm-driver:\tx\n")


def test_files_without_a_driver_say_nothing() -> None:
    assert parse("pos:\t0\nflags:\t02\ndrm-client-id:\t5\n") is None
    assert parse("") is None


PIECES = st.sampled_from(
    ["drm-", "total-", "cycles-", "engine-", "capacity-", "memory-", "vram", "rcs", ":", "\n", "\t", " ", "KiB", "ns",
     "%", "1", "99999999999999999999", "-", "drm-driver:x\n", "vram mem:", "pdev", "\0", "é", "."]
)  # fmt: skip


@given(st.one_of(st.binary(max_size=300), st.lists(PIECES, max_size=60).map(lambda parts: "".join(parts).encode())))
def test_any_bytes_are_taken(data: bytes) -> None:
    found = parse(data.decode("utf-8", "replace"))
    if found is None:
        return
    meter = Meter()
    for now in (SECOND, 2 * SECOND):
        assert all(0 <= ratio <= 1 for ratio in meter.ratios(found, now - SECOND, now).values())
    assert all(size is None or 0 <= size < 1 << 63 for name in found.regions for size in found.regions[name])
    assert all(engine.capacity > 0 for engine in found.engines.values())


@given(st.dictionaries(st.sampled_from(["vram", "gtt", "system0"]), st.integers(0, 2**53), min_size=1))
def test_sizes_come_back_as_the_kernel_prints_them(sizes: dict[str, int]) -> None:
    """Divided by 1024 while that leaves nothing over, at most twice."""
    lines = []
    for region, size in sizes.items():
        number, unit = size, 0
        while unit < 2 and number and number % 1024 == 0:
            number, unit = number // 1024, unit + 1
        lines.append(f"drm-total-{region}:\t{number}{('', ' KiB', ' MiB')[unit]}")
    found = client(*lines)
    assert {region: found.size(region) for region in found.regions} == sizes


# -- load --


def ratios(before: list[str], after: list[str], elapsed: int = SECOND) -> dict[str, float]:
    meter = Meter()
    assert meter.ratios(client(*before), 0, SECOND) == {}
    return meter.ratios(client(*after), SECOND, SECOND + elapsed)


def test_two_ways_to_report_load() -> None:
    """MON-03 A and B: cycles against the engine's clock, time against ours; both by capacity."""
    before = ["drm-cycles-rcs: 7", "drm-total-cycles-rcs: 9", "drm-cycles-vcs: 5", "drm-total-cycles-vcs: 9"]
    after = [
        "drm-cycles-rcs: 10000007",
        "drm-total-cycles-rcs: 40000009",
        "drm-cycles-vcs: 60000005",
        "drm-total-cycles-vcs: 40000009",
    ]
    capacity = ["drm-engine-capacity-vcs: 2"]
    assert ratios(before + capacity, after + capacity, elapsed=5) == {"rcs": 0.25, "vcs": 0.75}
    before = ["drm-engine-render: 1 ns", "drm-engine-video: 1 ns", "drm-engine-capacity-video: 2"]
    after = ["drm-engine-render: 500000001 ns", "drm-engine-video: 1500000001 ns", "drm-engine-capacity-video: 2"]
    assert ratios(before, after) == {"render": 0.5, "video": 0.75}


def test_a_device_is_as_busy_as_its_busiest_engine() -> None:
    """MON-03 C."""
    assert drmfdinfo.busiest({"render": 0.6, "compute": 0.55, "copy": 0.1}) == 0.6
    assert drmfdinfo.busiest({}) is None
    assert drmfdinfo.join([{"render": 0.25}, {"render": 0.5, "copy": 0.1}]) == {"render": 0.75, "copy": 0.1}
    assert drmfdinfo.join([{"gfx": 0.8}, {"gfx": 0.8}]) == {"gfx": 1.0}


def test_cycles_against_the_highest_frequency_where_there_is_no_time() -> None:
    lines = ["drm-cycles-gpu: {}", "drm-maxfreq-gpu: 800 MHz"]
    assert ratios([lines[0].format(0), lines[1]], [lines[0].format(200_000_000), lines[1]]) == {"gpu": 0.25}
    assert ratios(["drm-cycles-gpu: 0"], ["drm-cycles-gpu: 5"]) == {}


def test_trap_8_a_counter_that_falls_keeps_its_largest_value() -> None:
    meter = Meter()
    values = [1000, 1500, 1200, 1400, 1600]
    texts = [client(f"drm-engine-e: {value} ns") for value in values]
    found = [meter.ratios(one, 1000 * n, 1000 * (n + 1)).get("e") for n, one in enumerate(texts)]
    assert found == [None, 0.5, 0.0, 0.0, 0.1]


def test_trap_8_an_engine_that_vanishes_and_comes_back() -> None:
    """No ratio while it is away; then one over all that time, and none of its old work a second time."""
    meter = Meter()
    texts: list[list[str]] = [["drm-engine-e: 500 ns"], ["drm-engine-e: 1000 ns"], [], [], ["drm-engine-e: 1600 ns"]]
    found = [meter.ratios(client(*lines), 1000 * n, 1000 * (n + 1)).get("e") for n, lines in enumerate(texts)]
    assert found == [None, 0.5, None, None, pytest.approx(0.2)]


def test_an_engines_clock_that_begins_anew() -> None:
    """The device slept and its timestamp is small again: one tick without a ratio, not hours."""
    meter = Meter()
    pairs = [(10, 100), (20, 200), (1, 10), (51, 110)]
    texts = [(f"drm-cycles-rcs: {busy}", f"drm-total-cycles-rcs: {total}") for busy, total in pairs]
    found = [meter.ratios(client(*lines), n, n + 1).get("rcs") for n, lines in enumerate(texts)]
    assert found == [None, 0.1, None, 0.5]


MOVING = st.sampled_from(["drm-engine-gfx", "drm-engine-capacity-gfx", "drm-cycles-rcs", "drm-total-cycles-rcs",
                          "drm-total-vram", "drm-resident-vram", "drm-memory-vram", "drm-client-id", "drm-pdev",
                          "drm-maxfreq-rcs", "pasid", "drm-client-name", "amd-evicted-vram"])  # fmt: skip
VALUES = st.sampled_from(["1 ns", "2 ns", "3", "4 KiB", "5 MiB", "x", "", "drm-engine-gfx:\t9 ns"])


@given(st.lists(st.tuples(MOVING, VALUES, VALUES), max_size=12), st.integers(0, 2))
def test_to_parse_what_moved_is_to_parse_it_all(lines: list[tuple[str, str, str]], shorter: int) -> None:
    head = b"drm-driver:\tx\n"
    before = head + "".join(f"{key}:\t{one}\n" for key, one, _ in lines).encode()
    after = head + "".join(f"{key}:\t{other}\n" for key, _, other in lines[shorter:]).encode()
    old = parse(before.decode())
    assert old is not None
    assert drmfdinfo.parse_again(old, before, after) == parse(after.decode())
    assert drmfdinfo.parse_again(old, before, b"pos:\t0\n") is None


def test_two_texts_of_one_client() -> None:
    text = "drm-driver:\tx\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t{}\ndrm-total-vram:\t{}\n"

    def same(one: str, other: str) -> bool:
        return drmfdinfo.whose(one.encode()) == drmfdinfo.whose(other.encode())

    assert same(text.format(7, 1), text.format(7, 2))
    assert not same(text.format(7, 1), text.format(8, 1))
    assert not same(text.format(7, 1), text.format(77, 1))
    assert not same(text.format(7, 1), text.format(7, 1).replace("03:", "04:"))
    assert drmfdinfo.whose(b"drm-driver:\tx\n") == b"", "without a number each file is its own client"
    assert drmfdinfo.whose(b"pos:\t0\n") == b""


# -- mappings --


def test_mappings_of_devices_are_summed_by_name_and_inode() -> None:
    text = (
        "7f00-7f10 rw-s 100000000 00:06 391                        /dev/dri/renderD128\n"
        "7f20-7f22 rw-s 100010000 00:06 391                        /dev/dri/renderD128\n"
        "7f30-7f40 rw-s 0 00:0a 77                                 /dmabuf:\n"
        "7f50-7f60 rw-s 0 00:01 12                                 /drm mm object (deleted)\n"
        "7f60-7f70 r-xp 0 08:01 5                                  /usr/lib/libc.so.6\n"
        "7f70-7f80 rw-p 0 00:00 0 \n"
    )
    assert fdinfo.mappings(text) == {
        ("/dev/dri/renderD128", 391): 0x12,
        ("/dmabuf:", 77): 0x10,
        ("/drm mm object (deleted)", 12): 0x10,
    }


def test_the_maker_of_a_buffer() -> None:
    assert fdinfo.exporter("size:\t1\ncount:\t1\nexp_name:\tsystem\nname:\texp_name:\tx\n") == "system"
    assert fdinfo.exporter("size:\t1\n") == ""


@given(st.text(alphabet="0123456789abcdef- \n/devrip:mbuf\t", max_size=200))
def test_any_text_of_mappings(text: str) -> None:
    try:
        assert all(isinstance(size, int) for size in fdinfo.mappings(text).values())
    except ValueError:
        pass
