"""The table of log rules, and the generic rows: folding, ownership, wordings, and lines that mean nothing."""

from __future__ import annotations

import re

import pytest

from accelctl.abi.logrules import LogRule, address, ids, owner
from accelctl.abi.rooms import in_tree
from accelctl.probes.engine import generic_modules
from accelctl.probes.watch import log_classifier
from tests.cases import case, findings, function, machine
from tests.cases import log_rows as all_rows

GPU, ROOT, PORT2 = "0000:01:00.0", "0000:00:01.0", "0000:00:02.0"
FILES = function(GPU, "0x1002", "0x744c") | function(ROOT, "0x8086", "0x1901", "0x060400")
PARENTS = {GPU: [ROOT]}


def classify(*lines: str) -> tuple[str, str | None, str, str] | None:
    """What watch makes of the last of these lines."""
    found = None
    classifier = log_classifier(machine(files=FILES, parents=PARENTS), in_tree())
    for line in lines:
        found = classifier(line)
    return found


def hits(identity: str, lines: list[str]) -> list[tuple[str | None, str, str]]:
    report = case(files=FILES, parents=PARENTS, dmesg=lines)
    return [(one.device, one.level, one.title) for one in findings(report, identity)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("PCI:0000:44:00", "0000:44:00.0"),
        ("0000:44:00", "0000:44:00.0"),
        ("01:00.1", "0000:01:00.1"),
        ("0000:0B:00.0", "0000:0b:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("fd800000.gpu", "fd800000.gpu"),
    ],
)
def test_addresses_in_any_spelling(text: str, value: str) -> None:
    assert address(text) == value


def test_a_storm_is_one_finding_with_first_and_last_line() -> None:
    lines = [f"pcieport {ROOT}: pciehp: Slot({number}): Link Down" for number in range(50)]
    report = case(files=FILES, parents=PARENTS, dmesg=lines)
    (found,) = findings(report, "PCI-LINK-DOWN")
    assert "50 times" in found.title
    assert [entry.raw for entry in found.evidence] == [lines[0], lines[-1]]
    assert found.device == GPU


def test_a_port_speaks_for_the_card_below_it_and_no_other() -> None:
    assert hits("PCI-LINK-DOWN", [f"pcieport {ROOT}: pciehp: Slot(8): Link Down"])[0][0] == GPU
    assert hits("PCI-LINK-DOWN", [f"pcieport {ROOT}: pciehp: Slot(8): Card not present"])
    assert hits("PCI-LINK-DOWN", [f"pcieport {PORT2}: pciehp: Slot(8): Link Down"]) == []
    assert hits("PCI-LINK-DOWN", [f"pcieport {ROOT}: pciehp: Slot(8): Link Down/Up ignored (recovered by DPC)"]) == []
    assert hits("PCI-LINK-DOWN", [f"pcieport {ROOT}: pciehp: Slot(8): Link Up"]) == []


@pytest.mark.parametrize(
    ("identity", "level", "line"),
    [
        ("PCI-RESET-FAILED", "error", f"amdgpu {GPU}: not ready 65535ms after bus reset; giving up"),
        ("PCI-RESET-FAILED", "error", f"vfio-pci {GPU}: not ready 1023ms after FLR; giving up"),
        (
            "PCI-LINK-RETRAIN",
            "warn",
            f"pcieport {ROOT}: broken device, retraining non-functional downstream link at 2.5GT/s",
        ),
        ("PCI-DPC", "error", f"pcieport {ROOT}: DPC: containment event, status:0x1f01 source:0x0000"),
        ("PCI-RECOVERY-FAILED", "error", f"pcieport {ROOT}: AER: device recovery failed"),
        (
            "PCI-AER-NONFATAL",
            "error",
            f"pcieport {ROOT}: AER: Uncorrectable (Non-Fatal) error message received from {GPU}",
        ),
        ("PCI-AER-NONFATAL", "error", f"pcieport {ROOT}: AER: Uncorrected (Non-Fatal) error received: {GPU}"),
        ("PCI-AER-FATAL", "critical", f"pcieport {ROOT}: AER: Multiple Uncorrected (Fatal) error received: {GPU}"),
        (
            "PCI-AER-FATAL",
            "critical",
            f"pcieport {ROOT}: AER: Uncorrectable (Fatal) error message received from {ROOT} (no details found)",
        ),
    ],
)
def test_wordings(identity: str, level: str, line: str) -> None:
    assert [(device, grade) for device, grade, _ in hits(identity, [line])] == [(GPU, level)]
    foreign = line.replace(GPU, "0000:99:00.0").replace(ROOT, PORT2)
    assert hits(identity, [foreign]) == []
    event = classify(line)
    assert event is not None
    assert (event[0], event[1], event[2]) == (identity, GPU, level)


@pytest.mark.parametrize(
    "line",
    [
        f"pci {GPU}: not ready 1023ms after bus reset; waiting",
        f"pcieport {ROOT}: AER: device recovery successful",
        f"pcieport {ROOT}: AER: enabled with IRQ 122",
        f"pcieport {ROOT}: DPC: enabled with IRQ 30",
        f"pci {GPU}: BAR 1 [mem 0x4000000000-0x43ffffffff 64bit pref]: assigned",
        "usb 1-1: new high-speed USB device number 2 using xhci_hcd",
        "",
    ],
)
def test_ordinary_lines_mean_nothing(line: str) -> None:
    assert classify(line) is None
    assert not case(files=FILES, parents=PARENTS, dmesg=[line]).findings or not findings(
        case(files=FILES, parents=PARENTS, dmesg=[line]), at_least="warn"
    )


def test_a_sentence_over_three_lines_is_complete_with_its_last() -> None:
    lines = [
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    assert classify(lines[0]) is None
    assert classify(*lines[:2]) is None
    event = classify("something older", *lines)
    assert event is not None
    assert (event[0], event[1]) == ("PCI-LOST", "0000:b3:00.0")
    assert classify(*lines, "next line") is None
    assert classify(lines[2]) is None


def test_rows_are_well_formed() -> None:
    rows = all_rows()
    assert rows
    for row in rows:
        pattern = re.compile(row.pattern, re.MULTILINE)
        assert row.literal, row.id
        assert row.source, f"{row.id}: a wording without a source"
        assert not isinstance(row.device, str) or row.device == "device" or row.device in pattern.groupindex, row.id
        assert isinstance(row.level, str) is False or row.level in ("info", "warn", "error", "critical"), row.id


def test_generic_rows_say_what_to_do() -> None:
    rows = [row for module in generic_modules() for row in getattr(module, "LOG_RULES", ())]
    assert len(rows) > 10
    assert not [row.id for row in rows if not row.fix]
    assert not [row.id for row in rows if row.lines != 1 + row.pattern.count(r"\n")]


def test_ids_are_each_once() -> None:
    row = LogRule("A", "warn", "x", "x", "x")
    assert ids((row, row._replace(id="B"), row)) == ("A", "B")


def test_an_owner_is_the_only_card_below() -> None:
    two = FILES | function("0000:01:00.1", "0x1002", "0x744c")
    report = case(files=two, parents={**PARENTS, "0000:01:00.1": [ROOT]})
    assert owner(report, ROOT) is None
    assert owner(report, GPU) == GPU
    assert owner(case(files=FILES, parents=PARENTS), ROOT) == GPU


# -- gone from the bus --

BOOT = [
    f"pci {ROOT}: PCI bridge to [bus 03-05]",
    "pci 0000:04:00.0: [10de:20b0] type 00 class 0x030200 PCIe Endpoint",
]
DOWN = f"pcieport {ROOT}: pciehp: Slot(8): Link Down"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([*BOOT, DOWN], 1),
        ([*BOOT, f"pcieport {ROOT}: pciehp: Slot(8): Card not present"], 1),
        (BOOT, 0),  # it may have been removed on purpose
        ([DOWN, *BOOT], 0),  # it came after that
        ([*BOOT, DOWN.replace(ROOT, PORT2)], 0),  # another slot
        ([BOOT[0], BOOT[1].replace("0x030200", "0x020000"), DOWN], 0),  # a network card
        ([BOOT[0], BOOT[1].replace("0000:04:00.0", GPU), DOWN], 0),  # it is there
    ],
)
def test_an_accelerator_that_left_the_bus(lines: list[str], found: int) -> None:
    assert [device for device, _, _ in hits("PCI-GONE", lines)] == ["0000:04:00.0"] * found


# -- hung tasks --


def dump(frame: str, task: str = "python3:4711") -> list[str]:
    return [
        f"INFO: task {task} blocked for more than 122 seconds.",
        "      Tainted: G           OE      6.8.0-50-generic #51-Ubuntu",
        "task:python3         state:D stack:0     pid:4711  tgid:4711  ppid:1      flags:0x00000002",
        "Call Trace:",
        " <TASK>",
        " __schedule+0x2cb/0x760",
        f" {frame}",
        " </TASK>",
    ]


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        ("amdgpu_ctx_mgr_entity_flush+0xb7/0xe0 [amdgpu]", 1),
        ("amdgpu_ctx_mgr_entity_flush+0xb7/0xe0 [amdgpu 0123456789abcdef0123456789abcdef01234567]", 1),
        ("? amdgpu_ctx_mgr_entity_flush+0xb7/0xe0 [amdgpu]", 1),
        ("nfs_wait_bit_killable+0x1c/0xa0 [nfs]", 0),
        ("rwsem_down_write_slowpath+0x2ab/0x6f0", 0),
    ],
)
def test_a_task_that_hangs_in_the_driver(frame: str, found: int) -> None:
    got = hits("TASK-HUNG", dump(frame))
    assert [device for device, _, _ in got] == [GPU] * found
    assert all("python3" in title and "amdgpu" in title for _, _, title in got)


def test_the_dump_of_the_next_task_is_not_this_one_s() -> None:
    other = dump("nfs_wait_bit_killable+0x1c/0xa0 [nfs]", "ls:12")
    (got,) = hits("TASK-HUNG", other + dump("amdgpu_fence_wait+0x1/0x2 [amdgpu]"))
    assert "python3" in got[2]
    (twice,) = hits("TASK-HUNG", dump("amdgpu_fence_wait+0x1/0x2 [amdgpu]") * 2)
    assert "2 such reports" in twice[2]
