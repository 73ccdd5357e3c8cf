"""The report for people and the lines for grep: on any terminal, in a pipe, in ASCII, whatever devices call
themselves."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.model.device import Device
from accelctl.model.finding import Evidence
from accelctl.model.reading import VOLATILE, Reading, absent
from accelctl.model.report import Report
from accelctl.render import units
from accelctl.render.brief import HEADER, brief_text
from accelctl.render.layout import Page, Span, cells
from accelctl.render.term import Term
from accelctl.render.text import report_text
from tests.reports import asleep, finding, full_machine, gpu, node, read, report, volatile

PIPE = Term(False, None, None, True)
TTY = Term(True, 80, "standard", True)
PLAIN = Term(True, 80, None, True)
ASCII = Term(False, None, None, False)


def line_with(text: str, *words: str) -> str:
    """The one line that holds all the words."""
    found = [line for line in text.splitlines() if all(word in line for word in words)]
    assert len(found) == 1, f"{len(found)} lines with {words} in:\n{text}"
    return found[0]


# -- terminals and pipes --


def test_pipe_has_no_escape_codes_and_nothing_is_cut() -> None:
    long = "x" * 400
    made = report(gpu(0), findings=(finding(device="0000:01:00.0", evidence=(Evidence("log", long),)),))
    text = report_text(made, PIPE)
    assert "\x1b" not in text
    assert long in text
    assert long not in report_text(made, PLAIN)


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_terminal_lines_fit_except_what_is_there_to_be_copied(width: int) -> None:
    for line in report_text(full_machine(), Term(True, width, None, True)).splitlines():
        assert cells(line) <= width or line.strip().startswith(("do ", "sudo ", "accelctl ")), line


def test_without_colour_there_are_no_codes_and_the_words_stay() -> None:
    coloured, plain = report_text(full_machine(), TTY), report_text(full_machine(), PLAIN)
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    for word in ("ok", "warn", "critical", "asleep", "denied"):
        assert word in plain


def test_ascii_output_is_ascii_and_says_the_same_words() -> None:
    device = gpu(0)
    device.facts["name"] = read("Gerät µ")
    text = report_text(report(device, findings=(finding(device=device.id),)), ASCII)
    assert text.isascii()
    assert "Ger?t ?" in text
    assert "41 C" in text
    assert "x error" in text
    assert report_text(full_machine(), ASCII).isascii()
    assert brief_text(full_machine(), ASCII).isascii()


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31mred\nsecond\tline\r\u202e"


def test_no_device_sends_codes_to_the_terminal() -> None:
    device = gpu(0)
    for key in ("name", "driver", "vbios/version", "numa/local_cpulist", "power/runtime_status"):
        device.facts[key] = read(HOSTILE)
    bad = finding(device=device.id, title=HOSTILE, evidence=(Evidence(HOSTILE, HOSTILE),), fix=(HOSTILE,))
    made = report(device, findings=(bad,), os__name=read(HOSTILE), system__product=read(HOSTILE))
    made.stuck = [HOSTILE]
    for text in (report_text(made, PIPE), report_text(made, PLAIN), brief_text(made, PIPE)):
        assert set(re.findall(r"[^\x20-\x7e°×→▲✗‼✓•…]", text)) <= {"\n"}


def test_two_runs_are_equal() -> None:
    assert report_text(full_machine(), PIPE) == report_text(full_machine(), PIPE)


@given(st.text(max_size=60), st.sampled_from([None, 40, 80]), st.booleans())
def test_any_text_is_drawn(text: str, width: int | None, unicode: bool) -> None:
    device = gpu(0)
    for key in list(device.facts):
        if isinstance(device.value(key), str) and not key.startswith("nodes/"):
            device.facts[key] = device.facts[key]._replace(value=text, raw=text)
    made = report(device, findings=(finding(device=device.id, title=text),))
    drawn = report_text(made, Term(width is not None, width, None, unicode))
    assert drawn.endswith("\n")
    assert unicode or drawn.isascii()


# -- what stands there --


def test_header_names_machine_kernel_and_what_was_read() -> None:
    made = report(gpu(0), system__product=read("Server 9000"), system__vendor=read("Maker"))
    assert report_text(made, PIPE).splitlines()[0] == "Maker Server 9000, Linux 6.12.0, read live"
    assert (
        report_text(report(live=False), PIPE).splitlines()[0] == "Captured machine, Linux 6.12.0, from machine.tar.xz"
    )


def test_block_of_one_device() -> None:
    text = report_text(report(gpu(0)), PIPE)
    assert line_with(text, "0000:01:00.0") == "✓ ok  0  0000:01:00.0  AMD/ATI Navi 31 [Radeon RX 7900 XTX]  1002:744c"
    assert line_with(text, "  link ") == "  link      PCIe 1.0 x16 now, 4.0 x16 (31.5 GB/s) at most"
    assert line_with(text, "  memory ") == "  memory    0.026 of 24.0 GiB VRAM used"
    assert line_with(text, "  sensors ") == "  sensors   edge 41 °C, 18 of 303 W"
    assert line_with(text, "  place ") == "  place     NUMA node 0, the only one"
    assert line_with(text, "renderD128") == (
        "  nodes     /dev/dri/renderD128 rw, /dev/dri/card0 no access, needs group video (44)"
    )
    assert text.splitlines()[-1] == "1 accelerator: ok"


def test_missing_values_have_a_reason_and_never_na() -> None:
    device = gpu(0)
    device.facts["memory/vram_total_bytes"] = absent("x", "no_permission")
    device.facts["numa/node"] = absent("x", "not_captured")
    del device.facts["sensors/hwmon0/power1/average_mw"], device.facts["sensors/hwmon0/power1/cap_mw"]
    text = report_text(report(device), PIPE)
    assert "  no value  memory: no permission" in text
    assert "  no value  power: not offered" in text
    assert "  no value  NUMA: not captured" in text
    assert not re.search(r"\bN/?A\b|None|null", report_text(full_machine(), PIPE), re.I)


def test_asleep_is_shown_as_asleep() -> None:
    text = report_text(report(asleep(gpu(0))), PIPE)
    assert line_with(text, "  state ").startswith("  state     asleep")
    assert line_with(text, "  link ") == "  link      PCIe 4.0 x16 (31.5 GB/s) at most, now: asleep"
    assert "no value  temperature: asleep" in text


def test_a_slower_bridge_on_the_way_is_named() -> None:
    device = gpu(0)
    device.facts.update({"link/narrowest": read("0000:00:01.0"), "link/narrowest_gbs": read(3.94)})
    device.facts.update({"upstream/0000:00:01.0/max_speed_gts": read(8.0), "upstream/0000:00:01.0/max_width": read(4)})
    text = report_text(report(device), PIPE)
    assert "held to 3.0 x4 (3.94 GB/s) by the bridge 0000:00:01.0" in line_with(text, "  link ")


@pytest.mark.parametrize("fact", ["max", "current"])
def test_inner_link_of_an_intel_card_is_no_slow_link(fact: str) -> None:
    device = Device("0000:03:00.0", "physical", "sys/x", None, "intel_gpu", {"pci/vendor_id": read("0x8086")})
    device.facts.update({"link/max_speed_gts": absent("x", "empty"), "link/max_width": absent("x", "empty")})
    device.facts.update({f"link/{fact}_speed_gts": read(2.5), f"link/{fact}_width": read(1)})
    assert line_with(report_text(report(device), PIPE), "  link ").endswith("the slot's link stands at its bridge")
    for name, values in (("0000:02:01.0", (2.5, 1)), ("0000:01:00.0", (16.0, 8)), ("0000:00:01.0", (32.0, 16))):
        for word, value in (("speed_gts", values[0]), ("width", values[1])):
            device.facts |= {f"upstream/{name}/{kind}_{word}": read(value) for kind in ("max", "current")}
    assert "4.0 x8 (15.8 GB/s) at most, at the card's own bridge 0000:01:00.0" in report_text(report(device), PIPE)


def test_unknown_link_is_no_alarm_and_no_division_by_zero() -> None:
    device = gpu(0)
    device.facts.update({"link/current_width": volatile(0), "link/current_speed_gts": absent("x", "empty")})
    assert "at most" in line_with(report_text(report(device), PIPE), "  link ")
    device.facts.update({"link/max_width": read(0), "link/max_speed_gts": absent("x", "empty")})
    assert "no PCIe link" in line_with(report_text(report(device), PIPE), "  link ")


def test_numa_minus_one_with_several_nodes() -> None:
    text = report_text(report(gpu(0), numa__online=read("0-1")), PIPE)
    assert line_with(text, "  place ") == "  place     NUMA node not told by the firmware"


def test_equal_devices_become_a_table_of_what_differs() -> None:
    text = report_text(report(*(gpu(n) for n in range(4))), PIPE)
    assert "4 × AMD/ATI Navi 31 [Radeon RX 7900 XTX]" in text
    assert text.count("amdgpu") == 1
    header, *rows = text[text.index("  #  device") :].splitlines()[:5]
    assert header.split() == ["#", "device", "health", "node"]
    assert [row.split()[:4] for row in rows] == [[str(n), f"0000:{n + 1:02x}:00.0", "✓", "ok"] for n in range(4)]


def test_a_table_too_wide_continues_below_with_the_same_keys() -> None:
    narrow = report_text(full_machine(), Term(True, 60, None, True))
    wide = report_text(full_machine(), Term(True, 200, None, True))
    assert narrow.count("  #  device") > wide.count("  #  device")
    for word in ("health", "link", "temperature", "node"):
        assert word in narrow


def test_virtual_functions_stand_below_their_device() -> None:
    text = report_text(full_machine(), PIPE)
    assert "2 of 31 virtual functions active" in text
    assert line_with(text, "├─").startswith("  ├─ 0000:e1:00.1  ✓ ok  virtual function")
    assert line_with(text, "└─").startswith("  └─ 0000:e1:00.2")
    assert "/dev/dri/renderD140 denied, though its mode bits allow it" in line_with(text, "├─")
    assert "sensors and link are not available on a virtual function" in text


def test_many_partitions_are_listed_not_one_line_each() -> None:
    whole = gpu(0)
    parts = [Device(f"platform:amdgpu_xcp_{n}", "partition", f"sys/x{n}", whole.id, "amdgpu") for n in range(9)]
    text = report_text(report(whole, *parts, findings=(finding(device=parts[4].id),)), PIPE)
    assert line_with(text, "9 partitions of", "amdgpu_xcp_0", "amdgpu_xcp_8")
    assert "└─ platform:amdgpu_xcp_4  ✗ error" in text
    assert "1 accelerator: ok; 9 partitions" in text


def test_a_part_whose_whole_is_out_of_sight_stands_alone() -> None:
    device = gpu(0)
    device.kind, device.parent = "vf", "0000:00:00.0"
    assert "a virtual function" in line_with(report_text(report(device), PIPE), "Navi 31")


def test_display_and_virtual_devices_have_a_section_of_their_own() -> None:
    text = report_text(full_machine(), PIPE)
    assert line_with(text, "ASPEED").endswith("ASPEED Graphics Family, display only, ast")
    assert line_with(text, "drm:card9").endswith("virtual, no driver")
    assert text.splitlines().index("Not accelerators") < text.splitlines().index("How they reach each other")


def test_holders_and_those_stuck_in_the_kernel() -> None:
    text = report_text(report(full_machine().devices[0]), PIPE)
    assert line_with(text, "  in use ") == "  in use    by python3 (4711, someone) stuck in the kernel"


def test_ordinals_and_what_a_mask_leaves() -> None:
    text = report_text(full_machine(), PIPE)
    assert "0 → 0000:01:00.0, 1 → 0000:02:00.0, 2 → 0000:03:00.0, 3 → 0000:04:00.0" in text
    assert "with HIP_VISIBLE_DEVICES=2,0: 0 → 0000:03:00.0, 1 → 0000:01:00.0" in text
    one = report(gpu(0), ordinals__amdgpu__order=read(["a"]), ordinals__amdgpu__visible=read(["a"]))
    assert "Numbers that frameworks use" not in report_text(one, PIPE)


def test_matrix_is_left_out_when_only_some_devices_are_shown() -> None:
    made = full_machine()
    assert "SYS across NUMA nodes" in report_text(made, PIPE)
    made.devices = made.devices[:3]
    assert "How they reach each other" not in report_text(made, PIPE)


def test_machine_facts_and_taint_letters() -> None:
    text = report_text(report(gpu(0), kernel__tainted=read(12288), secure_boot=read(True)), PIPE)
    assert line_with(text, "iommu=pt").endswith("iommu=pt, tainted 12288 (OE)")
    assert "Secure Boot on" in text
    assert line_with(text, "/dev/shm ") == "  /dev/shm  64.0 MiB, 63.9 MiB free"


# -- findings and the end --


def test_finding_says_level_id_device_cause_evidence_fix_and_what_follows() -> None:
    text = report_text(full_machine(), PIPE)
    lines = text[text.index("Findings") :].splitlines()
    assert lines[1:6] == [
        "  ‼ critical  PCI-LOST  0000:04:00.0",
        "    device lost from the bus",
        "    seen  sys/x/current_link_width: 8",
        "    do    reseat the card",
        "    then  X-Y: no node",
    ]


def test_equal_findings_of_several_devices_are_one() -> None:
    cards = [gpu(n) for n in range(3)]
    text = report_text(report(*cards, findings=tuple(finding(device=card.id) for card in cards)), PIPE)
    assert text.count("PCI-LINK-WIDTH") == 2  # the finding and the command that explains it
    assert line_with(text, "✗ error  PCI-LINK-WIDTH").endswith("0000:01:00.0, 0000:02:00.0, 0000:03:00.0")
    assert "alike on the other 2" in text


def test_doubt_is_said() -> None:
    text = report_text(report(findings=(finding(certainty="likely"),)), PIPE)
    assert line_with(text, "✗ error").endswith("PCI-LINK-WIDTH  machine  (likely)")


def test_closing_line_and_what_was_not_evaluated() -> None:
    lines = report_text(full_machine(), PIPE).splitlines()
    assert lines[-8:] == [
        "5 accelerators: 3 ok, 1 warn, 1 critical; 2 virtual functions, 1 virtual device",
        "2 checks of the kernel log not made: this user may not read it",
        "  sudo dmesg > kernel.log",
        "41 processes not visible: some users of a device may be missing",
        "  sudo $(command -v accelctl) probe",
        "did not answer and was left out: sys/devices/x/gpu_metrics",
        "  accelctl explain HANG-READ",
        "accelctl explain PCI-LOST   what a finding means and what to do",
    ]


def test_without_accelerators_it_says_what_was_looked_for() -> None:
    lines = report_text(report(), PIPE).splitlines()
    assert lines[2:5] == ["No accelerator found.", "Looked for", "  • PCI functions"]
    assert "accelerators" not in lines[-1]


def test_only_virtual_devices_are_no_accelerators() -> None:
    soft = Device("drm:card9", "virtual", "sys/x", None, "vgem")
    lines = report_text(report(soft), PIPE).splitlines()
    assert "No accelerator found." in lines
    assert lines[-1] == "no accelerator: 1 virtual device"


# -- one line per device --


def test_brief_has_one_line_per_device_and_always_the_same_columns() -> None:
    lines = brief_text(full_machine(), PIPE).splitlines()
    assert len(lines) == len(full_machine().devices)
    for line in lines:
        assert len(line.split(maxsplit=len(HEADER) - 1)) == len(HEADER), line
    first = lines[0].split(maxsplit=len(HEADER) - 1)
    assert first == [
        "0000:01:00.0", "physical", "ok", "amdgpu", "1.0/4.0x16", "0.026/24.0GiB", "41°C", "18/303W", "0",
        "renderD128:rw", "AMD/ATI Navi 31 [Radeon RX 7900 XTX]",
    ]  # fmt: skip
    assert {line.split()[2] for line in lines} == {"ok", "warn", "critical"}
    assert "asleep" in lines[3]


def test_brief_has_its_heading_on_a_terminal_only() -> None:
    assert brief_text(report(gpu(0)), PLAIN).splitlines()[0].split() == list(HEADER)
    assert brief_text(report(gpu(0)), PIPE).splitlines()[0].startswith("0000:01:00.0")
    assert brief_text(Report("/", True), PIPE) == ""


# -- numbers and lines --


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (units.size(0), "0 B"),
        (units.size(1023), "1023 B"),
        (units.size(17163091968), "16.0 GiB"),
        (units.size(1023.7 * 2**20), "1.0 GiB"),
        (units.size(268435456), "256 MiB"),
        (units.share(668274688, 17163091968), "0.62 of 16.0 GiB"),
        (units.share(0, 2**30), "0 of 1 GiB"),
        (units.hertz(2_499_000_000), "2.5 GHz"),
        (units.watts(8200), "8.2 W"),
        (units.watts(303000), "303 W"),
        (units.celsius(40.6, "°"), "41 °C"),
        (units.link(16.0, 16), "4.0 x16"),
        (units.link(99.0, 2), "99 GT/s x2"),
        (units.link(16.0, 0), None),
        (units.link(None, 16), None),
        (units.seconds(5), "5 s"),
        (units.seconds(2.5), "2.5 s"),
        (units.seconds(180), "3 min"),
        (units.latency(0.0000151), "15.1 us"),
        (units.latency(0.0162), "16.2 ms"),
        (units.latency(0.9996), "1.0 s"),
        (units.latency(12.3), "12.3 s"),
        (units.counted(1, "process", "processes"), "1 process"),
        (units.listed(list("abcdef"), 4), "a, b, c, d and 2 more"),
    ],
)  # fmt: skip
def test_units(shown: object, expected: object) -> None:
    assert shown == expected


def test_a_wide_letter_takes_two_columns_and_a_mark_none() -> None:
    assert (cells("ab"), cells("加速"), cells("e\u0301")) == (2, 4, 1)


def test_flow_wraps_between_items_then_between_words() -> None:
    page = Page(Term(True, 40, None, True))
    page.flow((Span("label"),), [(Span("one two"),), (Span("x" * 20),), (Span("three"),)], indent=2, hang=8)
    page.flow((Span("label"),), [(Span(" ".join(["word"] * 10)),)], indent=2, hang=8)
    assert page.text().splitlines() == [
        "  label   one two, xxxxxxxxxxxxxxxxxxxx,",
        "          three",
        "  label   word word word word word word",
        "          word word word word",
    ]


def test_a_node_that_is_not_there_says_why() -> None:
    device = gpu(0)
    device.facts["nodes/dri/renderD128/path"] = Reading(
        None, "dev/dri/renderD128", None, None, absent("x", "hidden_by_container").absence, VOLATILE
    )
    node(device, "kfd", "509:0", False)
    text = report_text(report(device), PIPE)
    assert "/dev/dri/renderD128 hidden by container" in text
    assert "/dev/kfd no access, needs group video (44)" in text
