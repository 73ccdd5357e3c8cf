"""What the drivers of other accelerators say in their files and in the log, and that every id has its page."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accelctl.abi.rooms import in_tree
from accelctl.abi.rules import rules_of
from accelctl.model.finding import Finding
from accelctl.model.report import Report
from accelctl.probes import engine
from tests.cases import case, findings, function
from tests.helpers import ROOT


def device(
    vendor: str,
    number: str,
    driver: str,
    *lines: str,
    class_: str = "0x120000",
    links: dict[str, str] | None = None,
    **files: Any,
) -> Report:
    """One function with a driver and files of its own (``__`` stands for ``/``)."""
    found = {**function("0000:05:00.0", vendor, number, class_, **files), f"/sys/module/{driver}": None}
    all_links = {"$D(0000:05:00.0)/driver": f"../../../bus/pci/drivers/{driver}", **(links or {})}
    return case(files=found, links=all_links, dmesg=list(lines) or None)


def said(report: Report, *prefixes: str) -> list[Finding]:
    return [one for one in findings(report, at_least="info") if one.id.startswith(prefixes)]


@pytest.mark.parametrize(
    ("line", "identity", "level"),
    [
        ("ivpu_pm_trigger_recovery(): Recovery triggered by TDR", "IVPU-RECOVERY", "warn"),
        ("ivpu_pm_recovery_work(): Recovering the NPU (reset #3)", "IVPU-RECOVERY", "warn"),
        ("ivpu_rpm_get(): Failed to resume NPU: -110", "IVPU-RESUME", "error"),
        ("ivpu_resume(): Failed to resume the FW: -5", "IVPU-RESUME", "error"),
    ],
)
def test_intel_npu_lines(line: str, identity: str, level: str) -> None:
    report = device("0x8086", "0x643e", "intel_vpu", f"intel_vpu 0000:05:00.0: [drm] *ERROR* {line}")
    (found,) = said(report, "IVPU")
    assert (found.id, found.level, found.device) == (identity, level, "0000:05:00.0")


def test_an_npu_that_did_not_come_back_explains_its_recovery() -> None:
    lines = [
        "intel_vpu 0000:05:00.0: [drm] *ERROR* ivpu_pm_trigger_recovery(): Recovery triggered by TDR",
        "intel_vpu 0000:05:00.0: [drm] *ERROR* ivpu_pm_reset_complete(): Failed to resume NPU: -110",
    ]
    (found,) = said(device("0x8086", "0x643e", "intel_vpu", *lines), "IVPU")
    assert found.id == "IVPU-RESUME"
    assert len(found.consequences) == 1


@pytest.mark.parametrize(
    ("status", "level"),
    [
        ("Operational", None),
        ("operational", None),
        ("Malfunction", "critical"),
        ("disabled", "critical"),
        ("needs reset", "error"),
        ("in reset", "info"),
        ("In reset", "info"),
        ("in device creation", "info"),
    ],
)
def test_gaudi_status(status: str, level: str | None) -> None:
    found = said(device("0x1da3", "0x1020", "habanalabs", status=status, hard_reset_cnt="0"), "HABANA")
    assert [one.level for one in found] == ([level] if level else [])


def test_gaudi_resets_are_an_information() -> None:
    found = said(device("0x1da3", "0x1020", "habanalabs", status="operational", hard_reset_cnt="4"), "HABANA")
    assert [(one.id, one.level) for one in found] == [("HABANA-RESETS", "info")]


def test_gaudi_that_did_not_start() -> None:
    line = "habanalabs 0000:05:00.0: Failed to initialize hl2. Device is NOT usable !"
    (found,) = said(device("0x1da3", "0x1020", "habanalabs", line), "HABANA")
    assert (found.id, found.level, found.device) == ("HABANA-INIT", "error", "0000:05:00.0")


@pytest.mark.parametrize(
    ("files", "levels"),
    [
        ({"ue_count": "0", "ue_nonfatal_count": "0", "ce_count": "12"}, []),
        ({"ue_count": "1", "ue_nonfatal_count": "0"}, ["error"]),
        ({"ue_count": "0", "ue_nonfatal_count": "3"}, ["warn"]),
    ],
)
def test_cloud_ai_counters(files: dict[str, Any], levels: list[str]) -> None:
    found = said(device("0x17cb", "0xa100", "qaic", **files), "QAIC")
    assert [one.level for one in found] == levels


def neuron(**counts: str) -> Report:
    base = "sys/devices/virtual/neuron_device/neuron0"
    files: dict[str, Any] = {f"/{base}/dev": "240:0", "/sys/module/neuron/version": "2.21"}
    files |= {f"/{base}/stats/hardware/{name}": text for name, text in counts.items()}
    files |= function("0000:05:00.0", "0x1d0f", "0x7364")
    links = {"sys/class/neuron_device/neuron0": "../../devices/virtual/neuron_device/neuron0"}
    return case(files=files, links={**links, "$D(0000:05:00.0)/driver": "../../../bus/pci/drivers/neuron"})


@pytest.mark.parametrize(
    ("counts", "levels"),
    [
        ({"mem_ecc_uncorrected": "0", "sram_ecc_uncorrected": "0"}, []),
        ({"mem_ecc_uncorrected": "2", "sram_ecc_uncorrected": "0"}, ["error"]),
        ({"mem_ecc_uncorrected": "0", "mem_ecc_repairable_uncorrected": "3"}, ["warn"]),
    ],
)
def test_neuron_counters(counts: dict[str, str], levels: list[str]) -> None:
    assert [one.level for one in said(neuron(**counts), "NEURON")] == levels


def coral(**files: str) -> Report:
    base = "$D(0000:05:00.0)/apex/apex_0"
    own = {f"{base}/{name}": text for name, text in {"dev": "120:0", **files}.items()}
    links = {
        "sys/class/apex/apex_0": "../../devices/pci0000:05/0000:05:00.0/apex/apex_0",
        f"{base}/device": "../../../0000:05:00.0",
        "$D(0000:05:00.0)/driver": "../../../bus/pci/drivers/apex",
    }
    return case(files={**function("0000:05:00.0", "0x1ac1", "0x089a", "0x00ff00"), **own}, links=links)


@pytest.mark.parametrize(
    ("status", "levels"), [("ALIVE", []), ("DEAD", ["error"]), ("LAMED", ["warn"]), ("DRIVER_EXITING", [])]
)
def test_edge_tpu_status(status: str, levels: list[str]) -> None:
    assert [one.level for one in said(coral(status=status), "CORAL")] == levels


@pytest.mark.parametrize(("temp", "levels"), [("84000", []), ("85000", ["warn"]), ("91500", ["warn"])])
def test_edge_tpu_heat(temp: str, levels: list[str]) -> None:
    found = said(coral(status="ALIVE", temp=temp, trip_point0_temp="85000", trip_point1_temp="90000"), "CORAL")
    assert [one.level for one in found] == levels


@pytest.mark.parametrize(("count", "levels"), [("0", []), ("7", ["warn"])])
def test_tenstorrent_heat(count: str, levels: list[str]) -> None:
    base = "$D(0000:05:00.0)/tenstorrent/tenstorrent!0"
    files = {f"{base}/tt_therm_trip_count": count, f"{base}/dev": "241:0"}
    links = {
        "sys/class/tenstorrent/tenstorrent!0": "../../devices/pci0000:05/0000:05:00.0/tenstorrent/tenstorrent!0",
        f"{base}/device": "../../../0000:05:00.0",
        "$D(0000:05:00.0)/driver": "../../../bus/pci/drivers/tenstorrent",
    }
    report = case(files={**function("0000:05:00.0", "0x1e52", "0xb140"), **files}, links=links)
    assert [one.level for one in said(report, "TT-")] == levels


@pytest.mark.parametrize(
    ("state", "levels"), [("0", ["warn"]), ("1", []), ("2", ["warn"]), ("3", ["info"]), ("4", ["error"])]
)
def test_vector_engine_states(state: str, levels: list[str]) -> None:
    report = device(
        "0x1bcf", "0x001c", "ve_drv", class_="0x0b4000", ve__ve0__ve_state=state, ve__ve0__throttling_level="0"
    )
    assert [one.level for one in said(report, "VE-")] == levels


def test_vector_engine_throttling() -> None:
    report = device(
        "0x1bcf", "0x001c", "ve_drv", class_="0x0b4000", ve__ve0__ve_state="1", ve__ve0__throttling_level="2"
    )
    assert [(one.id, one.level) for one in said(report, "VE-")] == [("VE-THROTTLE", "info")]


# -- pages --


def pages() -> Iterator[tuple[str, Path]]:
    """(id, where its page belongs) of every rule of a chip, and of the bus-generic modules of these subjects."""
    generic = ROOT / "accelctl" / "data" / "explain"
    own = ("driver", "signature", "firmware", "nodes", "container", "libraries", "holders")
    for module in engine.generic_modules():
        if module.__name__.rpartition(".")[2] in own:
            yield from ((identity, generic) for entry in rules_of(module) for identity in entry.ids)
    for room in in_tree():
        module_of = engine.chip_module(room)
        for entry in rules_of(module_of) if module_of else ():
            yield from ((one, room.folder / "explain") for one in entry.ids if not (generic / f"{one}.md").exists())


PAGES = sorted({identity: folder for identity, folder in pages() if identity != "PCI-LOST"}.items())


@pytest.mark.parametrize(("identity", "folder"), PAGES, ids=[identity for identity, _ in PAGES])
def test_every_id_has_a_page(identity: str, folder: Path) -> None:
    text = (folder / f"{identity}.md").read_text(encoding="utf-8")
    assert re.match(rf"# {identity}: \S", text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["What it means", "How it was seen", "What to do"]
    assert 10 <= text.count("\n") <= 25
    assert max(map(len, text.splitlines())) <= 100
