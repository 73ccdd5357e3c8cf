"""What the NVIDIA driver says in the log, line by line, and how it folds."""

import json
from pathlib import Path

import pytest

import accelctl.backends.nvidia.rules as nvidia
from accelctl.model.finding import LEVELS, Finding, rank
from accelctl.model.report import Report
from tests.cases import case, findings, function

FILES = {**function("0000:44:00.0", "0x10de", "0x2330", "0x030200"), "/sys/module/nvidia/version": "550.90.07"}
LINKS = {"$D(0000:44:00.0)/driver": "../../../bus/pci/drivers/nvidia"}


def log(*lines: str, bound: bool = True) -> Report:
    return case(files=FILES, links=LINKS if bound else {}, dmesg=list(lines))


def said(report: Report) -> list[Finding]:
    return [one for one in findings(report, at_least="info") if one.id.startswith(("NV-", "DRV-", "PCI-LOST", "NODE-"))]


def xid(number: int, tail: str = "pid=4711, name=python3, Ch 00000008", head: str = "PCI:0000:44:00") -> str:
    return f"NVRM: Xid ({head}): {number}, {tail}"


@pytest.mark.parametrize(
    ("number", "level", "word"),
    [
        (13, "warn", "exception"),
        (31, "warn", "not mapped"),
        (43, "info", "its own program"),
        (45, "info", "torn down"),
        (48, "error", "beyond repair"),
        (63, "info", "put aside"),
        (64, "error", "could not be put aside"),
        (74, "error", "NVLink"),
        (94, "error", "contained"),
        (95, "error", "not contained"),
        (119, "error", "system processor"),
        (140, "error", "ECC"),
        (999, "warn", "does not explain"),
    ],
)
def test_an_xid_has_meaning_and_level(number: int, level: str, word: str) -> None:
    (found,) = said(log(xid(number)))
    assert (found.id, found.level, found.device) == ("NV-XID", level, "0000:44:00.0")
    assert f"Xid {number}:" in found.title
    assert word in found.title


@pytest.mark.parametrize(
    "head", ["PCI:0000:44:00", "0000:44:00", "PCI:0000:44:00.0", "PCI:0000:44:00 GPU-I:05", "PCI:00000000:44:00"]
)
def test_every_way_to_name_the_gpu(head: str) -> None:
    (found,) = said(log(xid(31, head=head)))
    assert found.id == "NV-XID"


def test_equal_lines_are_counted_and_different_numbers_are_not_mixed() -> None:
    lines = [xid(31)] * 200 + [xid(43), xid(43)]
    found = {one.title.split(":")[0]: one for one in said(log(*lines))}
    assert set(found) == {"Xid 31", "Xid 43"}
    assert "200 times" in found["Xid 31"].title
    assert len(found["Xid 31"].evidence) <= 2


def test_what_follows_a_lost_gpu_folds_under_it() -> None:
    lost = xid(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    (found,) = said(
        log(lost, xid(45), xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"))
    )
    assert (found.id, found.level) == ("PCI-LOST", "critical")
    assert len([one for one in found.consequences if one.startswith("NV-XID")]) == 2
    assert not any("reinstall" in step for step in found.fix)


@pytest.mark.parametrize(
    ("tail", "level"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "error"),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "info"),
    ],
)
def test_154_is_as_bad_as_the_action_it_names(tail: str, level: str) -> None:
    (found,) = said(log(xid(154, tail)))
    assert found.level == level
    assert tail.rpartition(" to ")[2] in found.title


@pytest.mark.parametrize(("severity", "level"), [("Nonfatal", "warn"), ("Fatal", "error")])
def test_nvlink_5_lines_carry_their_severity(severity: str, level: str) -> None:
    (found,) = said(log(xid(145, f"RLW_SRC_TRACK {severity} XC0 i0 Link -1 (0x00000101 0x80000000)")))
    assert found.level == level


@pytest.mark.parametrize(
    "line",
    [
        "usb 1-3: Product: NVRM: Xid (PCI:0000:44:00): 48, no such thing",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 234",
        "NVRM: GPU at PCI:0000:44:00: GPU-e9a1d3b4-0000-0000-0000-000000000000",
    ],
)
def test_other_lines_are_quiet(line: str) -> None:
    assert said(log(line)) == []


def test_a_failed_start_explains_the_missing_driver() -> None:
    report = log(
        "NVRM: GPU 0000:44:00.0: RmInitAdapter failed! (0x26:0x56:1474)",
        "nvidia 0000:44:00.0: probe with driver nvidia failed with error -1",
        bound=False,
    )
    (found,) = said(report)
    assert (found.id, found.level) == ("NV-INIT", "error")
    assert any(one.startswith("DRV-UNBOUND") for one in found.consequences)


GSP = [
    "NVRM: The NVIDIA GPU 0000:44:00.0 (PCI ID: 10de:1db1)",
    "NVRM: installed in this system is not supported by open",
    "NVRM: nvidia.ko because it does not include the required GPU",
    "NVRM: System Processor (GSP).",
]


@pytest.mark.parametrize("lines", [GSP, [GSP[0], GSP[2]]], ids=["whole", "rate-limited"])
def test_the_open_module_and_an_old_gpu(lines: list[str]) -> None:
    report = log(*lines, "nvidia 0000:44:00.0: probe with driver nvidia failed with error -1", bound=False)
    (found,) = said(report)
    assert (found.id, found.device) == ("NV-UNSUPPORTED", "0000:44:00.0")
    assert "10de:1db1" in found.title
    assert any(one.startswith("DRV-UNBOUND") for one in found.consequences)


def test_a_legacy_gpu() -> None:
    line = "NVRM: The NVIDIA GeForce GTX 1050 GPU installed in this system is"
    rest = "NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please"
    found = findings(log(line, rest, bound=False), "NV-UNSUPPORTED")
    assert len(found) == 1
    assert "580.xx" in found[0].title
    assert "GeForce GTX 1050" in found[0].title


@pytest.mark.parametrize(("severity", "level"), [("Non-fatal", "warn"), ("Fatal", "error")])
def test_switch_errors(severity: str, level: str) -> None:
    (found,) = said(log(f"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, {severity}, Link 30 LTSSM Fault Up"))
    assert (found.id, found.level, found.device) == ("NV-SXID", level, "0000:c1:00.0")


def test_an_excluded_gpu() -> None:
    information = "Model: \t\t NVIDIA H100\nDevice Minor: \t 0\nGPU Excluded:\t {}\n"
    path = "/proc/driver/nvidia/gpus/0000:44:00.0/information"
    excluded = case(files={**FILES, path: information.format("Yes")}, links=LINKS)
    assert [one.id for one in findings(excluded, "NV-EXCLUDED")] == ["NV-EXCLUDED"]
    assert findings(case(files={**FILES, path: information.format("No")}, links=LINKS), "NV-EXCLUDED") == []


def test_the_table_is_whole() -> None:
    path = Path(nvidia.__file__).parent / "codes.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    assert table["source"]
    assert len(table["codes"]) >= 40
    for number, entry in table["codes"].items():
        assert number.isdecimal()
        assert entry["level"] in LEVELS
        assert entry["meaning"]
        assert entry["next"]
        assert set(entry) == {"meaning", "level", "next"}


def test_the_table_agrees_with_the_shared_facts(shared: Path) -> None:
    """A code that costs the device is never told as a mere information, one to be ignored never as an error."""
    facts = {entry["number"]: entry for entry in json.loads((shared / "errors" / "xid.json").read_text())["entries"]}
    for number, entry in nvidia.codes().items():
        fact = facts[int(number)]
        assert not fact.get("documented_unused"), number
        if fact["sticky"] == "device" and int(number) not in (156, 160):
            assert rank(entry["level"]) >= rank("error"), number
        if fact["kind"] == "notice":
            assert rank(entry["level"]) <= rank("warn"), number
