"""Group PCI of the case collection, error counters, NUMA and virtual functions: restated as data, with variations.

Public threads behind the cases: correctable errors pop-os/pop 3363, ellyq/coreboot 4, qualcomm-linux/kernel 1118; NUMA
tensorflow/tensorflow 58428, jaypipes/ghw 65; virtual functions strongtz/i915-sriov-dkms 271.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from accelctl.model.report import Report
from tests.cases import advice, alarms, case, findings, function, only, words

A100 = {"vendor": "0x10de", "device": "0x20b0"}
GPU, OTHER = "0000:01:00.0", "0000:41:00.0"

# -- PCI-04: correctable errors --

STORM = (
    "RxErr 0\nBadTLP 120\nBadDLLP 0\nRollover 0\nTimeout 80\nNonFatalErr 3\nCorrIntErr 0\nHeaderOF 0\nTOTAL_ERR_COR 203"
)
QUIET = "Undefined 0\nDLP 0\nTLP 0\nTOTAL_ERR_FATAL 0"
SPELLINGS = (
    "pcieport 0000:00:01.0: AER: Correctable error message received from 0000:01:00.0",
    "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
    "pcieport 0000:00:01.0: AER: Multiple Corrected error received: 0000:01:00.0",
    "pcieport 0000:00:01.0: AER: Multiple Correctable error message received from 0000:01:00.0",
)
ROOT = "0000:00:01.0"


def aer_case(
    correctable: str | None, dmesg: list[str] | None, port: dict[str, str] | None = None, **more: str
) -> Report:
    files = function(GPU, **A100, **more)
    if correctable is not None:
        files[f"$D({GPU})/aer_dev_correctable"] = correctable
        files.setdefault(f"$D({GPU})/aer_dev_fatal", QUIET)
    files |= function(ROOT, "0x8086", "0x1901", "0x060400", **(port or {}))
    return case(files=files, parents={GPU: [ROOT]}, dmesg=dmesg)


@pytest.mark.parametrize("dmesg", [None, [], [SPELLINGS[0]] * 200 + [SPELLINGS[1]] * 3])
def test_pci_04_one_warning_with_the_counts(dmesg: list[str] | None) -> None:
    report = aer_case(STORM, dmesg)
    found = only(report, "PCI-AER-CORRECTABLE", GPU)
    assert found.level == "warn"
    for word in ("203", "BadTLP 120", "Timeout 80", "NonFatalErr 3", "no fatal", "signal"):
        assert word in found.title, word
    assert "RxErr" not in found.title
    assert any(word in advice(found) for word in ("riser", "reseat", "aspm"))
    assert alarms(report, "PCI-AER") == ["PCI-AER-CORRECTABLE"]
    assert not findings(report, at_least="error")


@pytest.mark.parametrize("line", SPELLINGS)
def test_pci_04_by_the_log_where_there_are_no_counters(line: str) -> None:
    found = only(aer_case(None, [line] * 150), "PCI-AER-CORRECTABLE", GPU)
    assert found.level == "warn"
    assert "150" in found.title


def test_pci_04_both_spellings_are_one_class() -> None:
    lines = [SPELLINGS[number % 2] for number in range(203)]
    assert "203" in only(aer_case(None, lines), "PCI-AER-CORRECTABLE", GPU).title


def test_pci_04_the_oldest_spelling_has_a_requester_id() -> None:
    found = only(
        aer_case(None, ["pcieport 0000:00:01.0: AER: Corrected error received: id=0100"] * 120), "PCI-AER-CORRECTABLE"
    )
    assert found.device == GPU


@pytest.mark.parametrize(
    ("count", "level"), [(0, None), (3, None), (9, None), (10, "info"), (99, "info"), (100, "warn")]
)
def test_pci_04_a_handful_is_no_alarm(count: int, level: str | None) -> None:
    found = findings(aer_case(f"RxErr {count}\nTOTAL_ERR_COR {count}", None), "PCI-AER-CORRECTABLE")
    assert [one.level for one in found] == ([] if level is None else [level])


def test_pci_04_the_total_may_differ_from_the_sum() -> None:
    assert "250" in only(aer_case("BadTLP 120\nTOTAL_ERR_COR 250", None), "PCI-AER-CORRECTABLE").title
    assert "320" in only(aer_case("BadTLP 320\nTOTAL_ERR_COR 0", None), "PCI-AER-CORRECTABLE").title


@pytest.mark.parametrize(
    "port",
    [
        {"aer_dev_correctable": STORM},
        {"aer_rootport_total_err_cor": "203"},
        {"aer_dev_correctable": STORM, "aer_rootport_total_err_cor": "203"},
    ],
)
def test_pci_04_counted_at_the_other_end_only(port: dict[str, str]) -> None:
    clean = re.sub(r"\d+", "0", STORM)
    found = only(aer_case(clean, None, port), "PCI-AER-CORRECTABLE", GPU)
    assert "203" in found.title
    assert ROOT in found.title


def test_pci_04_both_ends_count_the_same_errors_once() -> None:
    report = aer_case(STORM, None, {"aer_dev_correctable": STORM, "aer_rootport_total_err_cor": "203"})
    found = only(report, "PCI-AER-CORRECTABLE", GPU)
    assert "203" in found.title
    assert "406" not in found.title


def test_pci_04_a_port_above_several_cards_is_one_finding_of_the_machine() -> None:
    second = "0000:01:00.1"
    files: dict[str, Any] = function(GPU, **A100) | function(second, **A100)
    files |= function(ROOT, "0x8086", "0x1901", "0x060400", aer_dev_correctable=STORM)
    found = only(case(files=files, parents={GPU: [ROOT], second: [ROOT]}), "PCI-AER-CORRECTABLE")
    assert found.device is None
    assert ROOT in found.title
    assert GPU in found.title
    assert second in found.title
    assert len(found.evidence) == len(set(found.evidence)) == 1


@pytest.mark.parametrize("text", ["", "garbage", "BadTLP x\n", "BadTLP -5\nTOTAL_ERR_COR -5", "TOTAL_ERR_COR"])
def test_pci_04_counters_that_hold_no_counts(text: str) -> None:
    assert not findings(aer_case(text, []), "PCI-AER-CORRECTABLE")


def test_pci_04_somebody_else_s_errors_are_not_ours() -> None:
    assert not findings(aer_case(None, [SPELLINGS[0].replace("01:00.0", "02:00.0")] * 300), "PCI-AER-CORRECTABLE")


def test_pci_04_worse_classes_have_their_own_level_and_hold_the_lesser_ones() -> None:
    report = aer_case(STORM, None, aer_dev_nonfatal="CmpltTO 2\nTOTAL_ERR_NONFATAL 2")
    found = only(report, "PCI-AER-NONFATAL", GPU)
    assert found.level == "error"
    assert not findings(report, "PCI-AER-CORRECTABLE")
    assert any("203" in entry for entry in found.consequences)
    report = aer_case(STORM, None, aer_dev_fatal="DLP 1\nTOTAL_ERR_FATAL 1")
    assert only(report, "PCI-AER-FATAL", GPU).level == "critical"
    assert (
        only(aer_case(None, None, aer_dev_nonfatal="UnsupReq 4\nTOTAL_ERR_NONFATAL 4"), "PCI-AER-NONFATAL").level
        == "warn"
    )


# -- PCI-05: NUMA node -1 --


def numa_case(node: str | None, online: str | None, **more: str) -> Report:
    files: dict[str, Any] = function(GPU, **A100, **({} if node is None else {"numa_node": node}), **more)
    if online is not None:
        files["sys/devices/system/node/online"] = online
    return case(files=files)


def assert_no_wrapped_number(report: Report) -> None:
    for device in report.devices:
        for key, reading in device.facts.items():
            assert reading.value not in (4294967295, 18446744073709551615, 255), key


@pytest.mark.parametrize("online", ["0", None, ""])
def test_pci_05_a_one_node_is_no_finding(online: str | None) -> None:
    report = numa_case("-1", online)
    assert not report.findings or not findings(report, "PCI-NUMA-UNKNOWN")
    device = report.device(GPU)
    assert device is not None
    assert device.value("numa/node") == -1
    assert_no_wrapped_number(report)


@pytest.mark.parametrize("online", ["0-1", "0,8", "0-7", "1-2"])
def test_pci_05_b_affinity_unknown(online: str) -> None:
    report = numa_case("-1", online, local_cpulist="0-63")
    found = only(report, "PCI-NUMA-UNKNOWN", GPU)
    assert found.level in ("info", "warn")
    assert "unknown" in found.title
    assert "firmware" in found.title
    assert "0-63" not in words(found)
    assert "pin" not in advice(found)
    assert "taskset" not in advice(found)
    assert_no_wrapped_number(report)


@pytest.mark.parametrize(
    ("node", "online"), [("0", "0-1"), ("1", "0-1"), (None, "0-1"), (None, "0"), ("", "0-1"), ("x", "0-1")]
)
def test_pci_05_c_known_or_absent_is_no_finding(node: str | None, online: str) -> None:
    report = numa_case(node, online)
    assert not findings(report, "PCI-NUMA-UNKNOWN")
    assert report.device(GPU) is not None


def test_pci_05_memory_of_a_gpu_is_no_node_to_run_on() -> None:
    files: dict[str, Any] = function(GPU, **A100, numa_node="-1")
    base = "sys/devices/system/node"
    files |= {f"{base}/online": "0,250-255", f"{base}/node0/cpulist": "0-63"}
    files |= {f"{base}/node{number}/cpulist": "" for number in range(250, 256)}
    assert not findings(case(files=files), "PCI-NUMA-UNKNOWN")


def test_pci_05_many_cards_are_one_cause() -> None:
    files: dict[str, Any] = {"sys/devices/system/node/online": "0-1"}
    for bus in range(0x10, 0x18):
        files |= function(f"0000:{bus:02x}:00.0", **A100, numa_node="-1")
    found = only(case(files=files), "PCI-NUMA-UNKNOWN")
    assert found.device is None


# -- PCI-06: virtual functions --

PF = "0000:00:02.0"


def vf_case(second_has_physfn: bool, numvfs: str = "2") -> Report:
    files: dict[str, Any] = function(PF, "0x8086", "0xa7a0", sriov_totalvfs="7", sriov_numvfs=numvfs)
    files |= function("0000:00:02.1", "0x8086", "0xa7a0")
    files |= function("0000:00:02.2", "0x8086", "0xa7a0", current_link_speed="Unknown", current_link_width="0")
    files |= function(OTHER, **A100)
    links = {
        f"$D({PF})/virtfn0": "../0000:00:02.1",
        f"$D({PF})/virtfn1": "../0000:00:02.2",
        "$D(0000:00:02.1)/physfn": "../0000:00:02.0",
        f"$D({PF})/driver": "../../../bus/pci/drivers/i915",
        "$D(0000:00:02.1)/driver": "../../../bus/pci/drivers/i915",
        f"$D({OTHER})/driver": "../../../../bus/pci/drivers/nvidia",
    }
    if second_has_physfn:
        links["$D(0000:00:02.2)/physfn"] = "../0000:00:02.0"
    for minor, address in enumerate((PF, "0000:00:02.1")):
        files[f"$D({address})/drm/card{minor}/dev"] = f"226:{minor}"
        links[f"sys/class/drm/card{minor}"] = f"../../devices/pci0000:00/{address}/drm/card{minor}"
        links[f"$D({address})/drm/card{minor}/device"] = f"../../../{address}"
    dmesg = ["i915 0000:00:02.1: [drm] PMU not supported for this GPU."]
    return case(files=files, links=links, dmesg=dmesg)


@pytest.mark.parametrize("second_has_physfn", [True, False])
def test_pci_06_virtual_functions_are_not_broken(second_has_physfn: bool) -> None:
    report = vf_case(second_has_physfn)
    for address in ("0000:00:02.1", "0000:00:02.2"):
        device = report.device(address)
        assert device is not None
        assert (device.kind, device.parent) == ("vf", PF)
        for key in ("link/current_speed_gts", "link/current_width", "sensors"):
            reading = device.reading(key)
            assert reading is not None, key
            assert reading.absence is not None, key
            assert reading.absence.kind == "not_applicable", key
            assert "VF" in (reading.absence.detail or ""), key
        assert not findings(report, device=address)
    parent, plain = report.device(PF), report.device(OTHER)
    assert parent is not None
    assert (parent.value("sriov/active_vfs"), parent.value("sriov/total_vfs")) == (2, 7)
    assert parent.value("sriov/virtual_functions") == ["0000:00:02.1", "0000:00:02.2"]
    assert not findings(report, device=PF)
    assert plain is not None
    assert not plain.under("sriov")
    kinds = [device.kind for device in report.devices]
    assert (kinds.count("physical"), kinds.count("vf")) == (2, 2)


def test_pci_06_a_count_that_the_bus_contradicts_is_a_finding() -> None:
    assert only(vf_case(True, numvfs="3"), "COUNT-VF", PF).level == "warn"
