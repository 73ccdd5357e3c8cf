"""Group PCI of the case collection, links, windows and lost devices: restated as data, with variations.

Public threads behind the cases: link state Syllo/nvtop 6, NVIDIA/open-gpu-kernel-modules 1010, open-mpi/hwloc 653,
NVIDIA/NVSentinel 890; windows raspberrypi/linux 6621, xCuri0/ReBarUEFI 119; lost devices NVIDIA/NVSentinel 155,
NVIDIA/open-gpu-kernel-modules 507.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from accelctl.model.report import Report
from tests.cases import advice, alarms, case, findings, function, only

GIB = 1 << 30
A100 = {"vendor": "0x10de", "device": "0x20b0"}
CARD, PORT = "0000:41:00.0", "0000:40:01.0"


# -- PCI-01: slow link, asleep or really narrower --


def link_case(current: tuple[str, str], most: tuple[str, str], port: tuple[str, str] | None, **more: str) -> Report:
    """A card with its link as (rate, width) now and at most, and what its port can do."""
    card = function(
        CARD,
        **A100,
        current_link_speed=current[0],
        current_link_width=current[1],
        max_link_speed=most[0],
        max_link_width=most[1],
        **more,
    )
    files: dict[str, Any] = dict(card)
    if port is not None:
        files |= function(
            PORT,
            "0x8086",
            "0x347a",
            "0x060400",
            max_link_speed=port[0],
            max_link_width=port[1],
            current_link_speed=current[0],
            current_link_width=current[1],
        )
    return case(files=files, parents={CARD: [PORT]})


GEN1, GEN4 = "2.5 GT/s PCIe", "16.0 GT/s PCIe"


@pytest.mark.parametrize("busy", [None, "0", "5", "79"])
@pytest.mark.parametrize("speed", [GEN1, "5.0 GT/s PCIe", "8 GT/s", GEN4])
def test_pci_01_a_low_rate_at_rest_is_no_alarm(speed: str, busy: str | None) -> None:
    more = {} if busy is None else {"gpu_busy_percent": busy}
    report = link_case((speed, "16"), (GEN4, "16"), (GEN4, "16"), **more)
    assert not alarms(report, "PCI-LINK")
    assert not findings(report, "PCI-LINK-WIDTH", "LINK-BRIDGE")


@pytest.mark.parametrize("speed", [GEN1, "8.0 GT/s PCIe", GEN4])
@pytest.mark.parametrize("port", [(GEN4, "16"), ("32.0 GT/s PCIe", "16")])
def test_pci_01_b_fewer_lanes_than_both_ends_have(speed: str, port: tuple[str, str]) -> None:
    report = link_case((speed, "8"), (GEN4, "16"), port)
    found = only(report, "PCI-LINK-WIDTH", CARD)
    assert found.level == "warn"
    assert "x8" in found.title
    assert "x16" in found.title
    assert "15.75" in found.title
    assert "31.51" in found.title
    assert re.search("reseat", advice(found))
    assert re.search("slot|bifurcation", advice(found))
    assert any(entry.source.endswith("current_link_width") and entry.raw == "8" for entry in found.evidence)
    assert not findings(report, "PCI-LINK-SPEED")


@pytest.mark.parametrize(
    ("now", "most", "rates"),
    [("4", "16", ("7.88", "31.51")), ("1", "8", ("1.97", "15.75")), ("1", "4", ("1.97", "7.88"))],
)
def test_pci_01_b_rates_are_computed_at_the_rate_both_ends_can_do(now: str, most: str, rates: tuple[str, str]) -> None:
    found = only(link_case((GEN1, now), (GEN4, most), (GEN4, most)), "PCI-LINK-WIDTH")
    assert rates[0] in found.title
    assert rates[1] in found.title


def test_pci_01_b_a_slot_with_fewer_lanes_is_not_a_fault() -> None:
    report = link_case((GEN4, "8"), (GEN4, "16"), (GEN4, "8"))
    assert not alarms(report)
    assert "slot" in only(report, "PCI-LINK-SLOT", CARD).title


def test_pci_01_b_without_the_port_nothing_is_certain() -> None:
    found = only(link_case((GEN4, "8"), (GEN4, "16"), None), "PCI-LINK-WIDTH")
    assert (found.level, found.certainty) == ("info", "possible")


@pytest.mark.parametrize(
    ("speed", "width"), [("Unknown", "0"), ("Unknown speed", "0"), ("Unknown", "255"), ("", ""), ("2.5 GT/s PCIe", "0")]
)
@pytest.mark.parametrize("most", [(GEN4, "16"), ("Unknown", "0"), ("", "")])
def test_pci_01_c_unknown_is_no_alarm(speed: str, width: str, most: tuple[str, str]) -> None:
    for port in (None, (GEN4, "16"), ("Unknown", "0")):
        report = link_case((speed, width), most, port)
        assert not alarms(report)
        assert report.device(CARD) is not None


def test_pci_01_low_rate_under_load_is_a_finding() -> None:
    radeon = {"vendor": "0x1002", "device": "0x744c", "class": "0x030000", "gpu_busy_percent": "97"}
    link = {"current_link_speed": GEN1, "current_link_width": "16", "max_link_speed": GEN4, "max_link_width": "16"}
    files = {f"$D({CARD})/{name}": text for name, text in (radeon | link).items()}
    files |= {f"$D({PORT})/{name}": text for name, text in (link | {"vendor": "0x8086", "class": "0x060400"}).items()}
    found = only(case(files=files, parents={CARD: [PORT]}), "PCI-LINK-SPEED", CARD)
    assert (found.level, found.certainty) == ("warn", "likely")
    idle = files | {f"$D({CARD})/gpu_busy_percent": "0"}
    assert not findings(case(files=idle, parents={CARD: [PORT]}), "PCI-LINK-SPEED")


# -- PCI-02: BAR without an address, or only a small window --

ZERO = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
BAR0 = "0x00000000f6000000 0x00000000f6ffffff 0x0000000000040200"
GPU = "0000:01:00.0"
NEW = ["pci 0000:01:00.0: BAR 1 [mem size 0x400000000 64bit pref]: can't assign; no space"]
NEW_BOTH = [*NEW, "pci 0000:01:00.0: BAR 1 [mem size 0x400000000 64bit pref]: failed to assign"]
OLD = [
    "pci 0000:01:00.0: BAR 1: no space for [mem size 0x400000000 64bit pref]",
    "pci 0000:01:00.0: BAR 1: failed to assign [mem size 0x400000000 64bit pref]",
]


def bar_case(resource: list[str], dmesg: list[str] | None, **more: str) -> Report:
    """A card with these lines in ``resource``."""
    files = function(GPU, **A100, resource="\n".join(resource + [ZERO] * (13 - len(resource))), **more)
    return case(files=files, dmesg=dmesg)


@pytest.mark.parametrize("lines", [NEW, NEW_BOTH, OLD, OLD[:1], OLD[1:], OLD + OLD, NEW_BOTH * 3])
@pytest.mark.parametrize("with_resource", [True, False])
def test_pci_02_a_b_one_error_per_bar_whatever_the_wording(lines: list[str], with_resource: bool) -> None:
    report = bar_case([BAR0, ZERO], lines) if with_resource else case(files=function(GPU, **A100), dmesg=lines)
    found = only(report, "PCI-BAR-UNASSIGNED", GPU)
    assert found.level == "error"
    assert "BAR 1" in found.title
    assert "16 GiB" in found.title
    assert GPU in found.title
    assert "4g" in advice(found)
    assert "pci=realloc" in advice(found)
    assert any("0x400000000" in entry.raw for entry in found.evidence)
    if with_resource:
        assert any(entry.source.endswith("/resource") and entry.raw == ZERO for entry in found.evidence)


def test_pci_02_two_bars_are_two_findings() -> None:
    more = [line.replace("BAR 1", "BAR 3").replace("0x400000000", "0x02000000") for line in NEW_BOTH]
    report = bar_case([BAR0], NEW_BOTH + more)
    titles = [one.title for one in findings(report, "PCI-BAR-UNASSIGNED")]
    assert len(titles) == 2
    assert any("BAR 3" in title and "32 MiB" in title for title in titles)


@pytest.mark.parametrize(
    "later",
    [
        "pci 0000:01:00.0: BAR 1 [mem 0x4000000000-0x43ffffffff 64bit pref]: assigned",
        "pci 0000:01:00.0: BAR 1: assigned [mem 0x4000000000-0x43ffffffff 64bit pref]",
    ],
)
def test_pci_02_a_second_try_that_worked_is_no_finding(later: str) -> None:
    assert not findings(bar_case([BAR0], [*NEW_BOTH, later]), "PCI-BAR-UNASSIGNED")
    assert findings(bar_case([BAR0], [later, *NEW_BOTH]), "PCI-BAR-UNASSIGNED")


def test_pci_02_a_window_that_could_not_grow_is_no_error() -> None:
    """The driver asks for the whole memory, gets no space, and takes the small window back."""
    small = "0x0000004000000000 0x000000400fffffff 0x000000000014220c"
    assert not findings(bar_case([BAR0, small], OLD), "PCI-BAR-UNASSIGNED")


@pytest.mark.parametrize(
    "line",
    [
        "pci 0000:01:00.0: BAR 5 [io  size 0x0080]: failed to assign",
        "pci 0000:01:00.0: BAR 5: no space for [io  size 0x0080]",
        "pci 0000:01:00.0: BAR 6: failed to assign [mem size 0x00080000 pref]",
        "pci 0000:01:00.0: ROM [mem size 0x00080000 pref]: can't assign; no space",
        "pci 0000:01:00.0: VF BAR 0 [mem size 0x400000000 64bit pref]: can't assign; no space",
        "pci 0000:01:00.0: bridge window [mem size 0x400000000 64bit pref]: can't assign; no space",
        "pci 0000:02:00.0: BAR 0 [mem size 0x00100000 64bit]: can't assign; no space",
    ],
)
def test_pci_02_what_is_missing_is_not_the_card_s_memory(line: str) -> None:
    assert not findings(bar_case([BAR0], [line]), "PCI-BAR-UNASSIGNED")


def test_pci_02_the_unset_flag_alone_is_enough() -> None:
    unset = "0x0000000000000000 0x00000003ffffffff 0x000000002014220c"
    found = only(bar_case([BAR0, unset], None), "PCI-BAR-UNASSIGNED", GPU)
    assert "16 GiB" in found.title
    assert len(findings(bar_case([BAR0, unset], NEW_BOTH), "PCI-BAR-UNASSIGNED")) == 1


def rebar_case(window: int, mask: str | None, memory: int | None) -> Report:
    start = 0x4000000000
    line = f"{start:#018x} {start + window - 1:#018x} 0x000000000014220c"
    files: dict[str, Any] = function(GPU, "0x1002", "0x744c", resource="\n".join([BAR0, line] + [ZERO] * 11))
    if mask is not None:
        files[f"$D({GPU})/resource1_resize"] = mask
    if memory is not None:
        files[f"$D({GPU})/mem_info_vram_total"] = str(memory)
    return case(files=files, links={f"$D({GPU})/driver": "../../../../bus/pci/drivers/amdgpu"})


def test_pci_02_c_small_window_is_information() -> None:
    report = rebar_case(GIB // 4, "0000000000007fc0", 16 * GIB)
    found = only(report, "PCI-REBAR", GPU)
    assert found.level == "info"
    for word in ("BAR 1", "256 MiB", "16 GiB", "64 MiB to 16 GiB", "healthy"):
        assert word in found.title, word
    assert "re-size" in advice(found) or "resizable" in advice(found)
    assert not alarms(report, "PCI-")


@pytest.mark.parametrize(
    ("window", "mask", "memory"),
    [
        (16 * GIB, "0000000000007fc0", 16 * GIB),  # it is on
        (16 * GIB, "0000000000007fc0", None),
        (8 * GIB, "0000000000007fc0", 8 * GIB),  # larger sizes are possible, but there is no more memory
        (GIB // 4, None, None),  # nothing says that it could grow
        (GIB // 4, "0000000000000100", 16 * GIB),  # the only size it can have
        (GIB // 4, "", None),
        (GIB // 4, "zzz", None),
    ],
)
def test_pci_02_c_no_window_finding_where_none_is_due(window: int, mask: str | None, memory: int | None) -> None:
    report = rebar_case(window, mask, memory)
    assert not findings(report, "PCI-REBAR")


# -- PCI-03: lost from the bus --

OTHER = "0000:41:00.0"
XID = "NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SENTENCE = [
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "               NVRM: fallen off the bus and is not responding to commands.",
]
ALIVE = bytes.fromhex("de10b020 06041000 a1000203 00000000") + bytes(48)


def lost_case(address: str, dmesg: list[str] | None, *, config: bytes | None = None, **more: str) -> Report:
    """Two GPUs, the second of which has this in its log and configuration space."""
    healthy = {"current_link_speed": GEN4, "current_link_width": "16", "max_link_speed": GEN4, "max_link_width": "16"}
    files: dict[str, Any] = function(OTHER, **A100, config=ALIVE, **healthy)
    files |= function(address, "0x10de", "0x26b5", **more)
    if config is not None:
        files[f"$D({address})/config"] = config
    return case(files=files, dmesg=dmesg)


def assert_lost(report: Report, address: str) -> None:
    assert len(findings(report, at_least="critical")) == 1, [(one.id, one.title) for one in report.findings]
    found = only(report, "PCI-LOST", address)
    assert found.level == "critical"
    assert "lost from the pcie bus" in advice(found)
    assert address in found.title
    for word in ("power", "temperature", "reseat", "firmware"):
        assert word in advice(found), word
    assert "cold" in advice(found) or "mains" in advice(found)
    assert "driver" not in advice(found)
    device, other = report.device(address), report.device(OTHER)
    assert device is not None
    assert device.value("state") == "lost"
    assert other is not None
    assert other.value("link/current_width") == 16
    assert other.value("state") is None
    assert not findings(report, device=OTHER, at_least="warn")


@pytest.mark.parametrize("config", [b"\xff" * 64, b"\xff" * 256, b"\xff" * 4096, None])
@pytest.mark.parametrize(
    "line",
    [
        XID,
        "NVRM: Xid (PCI:0000:44:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
        "NVRM: Xid (0000:44:00): 79, GPU has fallen off the bus.",
        "NVRM: GPU 0000:44:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at PCI:0000:44:00: GPU has fallen off the bus.",
    ],
)
def test_pci_03_a_with_an_xid(line: str, config: bytes | None) -> None:
    assert_lost(lost_case("0000:44:00.0", [line], config=config), "0000:44:00.0")
    assert_lost(lost_case("0000:44:00.0", [line, line, "unrelated", line], config=config), "0000:44:00.0")


def test_pci_03_b_a_sentence_over_three_lines() -> None:
    assert_lost(lost_case("0000:b3:00.0", SENTENCE), "0000:b3:00.0")
    # Its pieces alone mean nothing.
    for part in (SENTENCE[:1], SENTENCE[1:], [SENTENCE[0], "something else", *SENTENCE[1:]]):
        assert not findings(lost_case("0000:b3:00.0", part), "PCI-LOST")


@pytest.mark.parametrize("dmesg", [None, []])
def test_pci_03_without_any_log_the_bus_itself_says_it(dmesg: list[str] | None) -> None:
    garbage = {
        "current_link_speed": "Unknown",
        "current_link_width": "63",
        "max_link_speed": "Unknown",
        "max_link_width": "63",
    }
    report = lost_case("0000:44:00.0", dmesg, config=b"\xff" * 64, **garbage)
    assert_lost(report, "0000:44:00.0")
    device = report.device("0000:44:00.0")
    assert device is not None
    shown = [reading.value for key, reading in device.facts.items() if key.startswith(("link/", "capabilities/"))]
    assert not [value for value in shown if value not in (None, "0000:44:00.0")], shown
    assert not findings(report, "PCI-LINK-WIDTH", "PCI-LINK-SPEED", "LINK-BRIDGE")


@pytest.mark.parametrize(
    "config",
    [
        ALIVE,
        b"\xff" * 4 + bytes(60),  # a VF's vendor and device read as ones
        b"\xff" * 8,  # cut off: too little to say
        b"",
    ],
)
def test_pci_03_a_device_that_answers_is_not_lost(config: bytes) -> None:
    assert not findings(lost_case("0000:44:00.0", [], config=config), "PCI-LOST")


def test_pci_03_a_sleeping_card_reads_as_ones_and_is_not_lost() -> None:
    for state in ("D3cold", "D3hot"):
        report = lost_case("0000:44:00.0", [], config=b"\xff" * 64, power_state=state)
        assert not findings(report, "PCI-LOST")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:44:00): 43, pid=1234, name=python, Ch 00000010",
        "NVRM: Xid (PCI:0000:44:00): 790, pid=1234",
        "NVRM: Xid (PCI:0000:44:00): 31, pid=79, name=python, MMU Fault",
    ],
)
def test_pci_03_other_codes_are_not_this_cause(line: str) -> None:
    assert not findings(lost_case("0000:44:00.0", [line]), "PCI-LOST")


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:44:00.0: amdgpu: device lost from bus!",
        "xe 0000:44:00.0: Unable to change power state from D3cold to D0, device inaccessible",
        "pci 0000:44:00.0: Unable to change power state from D3hot to D0, device inaccessible",
    ],
)
def test_pci_03_other_drivers_say_it_otherwise(line: str) -> None:
    assert_lost(lost_case("0000:44:00.0", [line]), "0000:44:00.0")


def test_pci_03_somebody_else_s_device_is_not_ours() -> None:
    line = "nvme 0000:99:00.0: Unable to change power state from D3cold to D0, device inaccessible"
    assert not findings(lost_case("0000:44:00.0", [line]), "PCI-LOST")


def test_pci_03_a_device_that_is_gone_from_sysfs_is_still_named() -> None:
    report = case(files=function(OTHER, **A100), dmesg=[XID])
    assert only(report, "PCI-LOST").device == "0000:44:00.0"
