"""Links of a whole path: which pairs of functions are one link, which of them limits, and what is nobody's fault."""

from __future__ import annotations

from typing import Any

import pytest

from accelctl.model.report import Report
from tests.cases import case, findings, function

Speeds = tuple[float, int, float, int]
ROOT, UP, DOWN = "0000:00:01.0", "0000:01:00.0", "0000:02:01.0"
CARD, CARD2 = "0000:03:00.0", "0000:04:00.0"
G1, G3, G4, G5 = 2.5, 8.0, 16.0, 32.0


def link(now: Speeds) -> dict[str, str]:
    """Link files: rate and width now, rate and width at most."""
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    return {
        name: f"{value} GT/s PCIe" if "speed" in name else str(value) for name, value in zip(names, now, strict=True)
    }


def path(
    card: Speeds,
    down: Speeds,
    up: Speeds,
    root: Speeds,
    *,
    vendors: str = "0x10b5",
    cards: tuple[str, ...] = (CARD,),
    ids: tuple[str, str] = ("0x10de", "0x20b0"),
) -> Report:
    """Cards below a switch (downstream port, upstream port) below a root port."""
    files: dict[str, Any] = {}
    for address in cards:
        files |= function(address, *ids, "0x030000", **link(card))
    files |= function(DOWN, vendors, "0x8748", "0x060400", **link(down))
    files |= function(UP, vendors, "0x8748", "0x060400", **link(up))
    files |= function(ROOT, "0x8086", "0x347a", "0x060400", **link(root))
    return case(files=files, parents={address: [ROOT, UP, DOWN] for address in cards})


def full(speed: float = G4, width: int = 16) -> Speeds:
    return speed, width, speed, width


def linkish(report: Report) -> list[tuple[str, str, str | None]]:
    return [(one.id, one.level, one.device) for one in report.findings if "LINK" in one.id]


def test_a_path_that_runs_in_full_says_nothing() -> None:
    assert linkish(path(full(), full(), full(), full())) == []


def test_a_switch_has_no_link_between_its_own_two_ports() -> None:
    """Upstream port x8, downstream port x16: two different links, no contradiction."""
    report = path(full(), full(), full(width=8), full(width=8))
    assert [one for one in linkish(report) if one[0] in ("LINK-BRIDGE", "PCI-LINK-WIDTH")] == []


def test_an_uplink_that_can_do_less_is_information() -> None:
    report = path(full(), full(), full(width=8), (G4, 8, G4, 16))
    assert linkish(report) == [("PCI-LINK-UPSTREAM", "info", CARD)]
    title = findings(report, "PCI-LINK-UPSTREAM")[0].title
    assert "15.75" in title
    assert "31.51" in title


def test_a_shared_uplink_is_one_finding_of_the_machine() -> None:
    report = path(full(), full(), (G4, 4, G4, 16), (G4, 4, G4, 16), cards=(CARD, CARD2))
    assert linkish(report) == [("PCI-LINK-WIDTH", "warn", None)]
    title = findings(report, "PCI-LINK-WIDTH")[0].title
    assert CARD in title
    assert CARD2 in title
    assert UP in title


@pytest.mark.parametrize(
    ("ids", "vendors"),
    [
        (("0x8086", "0xe20b"), "0x8086"),
        (("0x8086", "0x56a5"), "0x8086"),
        (("0x1002", "0x744c"), "0x1002"),
        (("0x1002", "0x687f"), "0x1022"),
    ],
)
def test_a_card_with_a_switch_of_its_own(ids: tuple[str, str], vendors: str) -> None:
    """Intel Arc shows x1 at 2.5 GT/s on its function, Radeon x16: links inside the card. The slot is further up."""
    inner = full(G1, 1) if ids[0] == "0x8086" else full()
    assert linkish(path(inner, inner, full(), full(), vendors=vendors, ids=ids)) == []
    # An x8 card in an x16 slot is as it should be.
    assert linkish(path(inner, inner, full(width=8), (G4, 8, G5, 16), vendors=vendors, ids=ids)) == []
    # The slot limits: information, on the card's outward link.
    report = path(inner, inner, (G3, 16, G4, 16), full(G3), vendors=vendors, ids=ids)
    assert linkish(report) == [("PCI-LINK-SLOT", "info", CARD)]
    assert "15.75 of 31.51" in findings(report, "PCI-LINK-SLOT")[0].title
    # The outward link lost lanes: that is the alarm, and it belongs to the card.
    report = path(inner, inner, (G4, 4, G4, 8), (G4, 4, G5, 16), vendors=vendors, ids=ids)
    assert linkish(report) == [("PCI-LINK-WIDTH", "warn", CARD)]
    assert "x4 of x8" in findings(report, "PCI-LINK-WIDTH")[0].title
    # A slower rate there at rest is no alarm.
    assert linkish(path(inner, inner, (G1, 16, G4, 16), (G1, 16, G4, 16), vendors=vendors, ids=ids)) == []


@pytest.mark.parametrize(
    ("table", "level"),
    [
        ("0: 2.5GT/s, x8 \n1: 8.0GT/s, x16 *", None),  # Polaris and Vega lower the width at rest
        ("0: 8.0GT/s, x16 \n1: 8.0GT/s, x16 *", "warn"),
        ("", "warn"),
    ],
)
def test_a_width_that_the_driver_itself_lowers(table: str, level: str | None) -> None:
    card = function(CARD, "0x1002", "0x67df", **link((G1, 8, G3, 16)), pp_dpm_pcie=table)
    port = function(ROOT, "0x8086", "0x347a", "0x060400", **link((G1, 8, G3, 16)))
    links = {f"$D({CARD})/driver": "../../../../bus/pci/drivers/amdgpu"}
    report = case(files={**card, **port}, links=links, parents={CARD: [ROOT]})
    assert [one.level for one in findings(report, "PCI-LINK-WIDTH")] == ([] if level is None else [level])


def test_an_integrated_gpu_reports_nothing() -> None:
    ghost = {
        "current_link_speed": "Unknown",
        "current_link_width": "0",
        "max_link_speed": "Unknown",
        "max_link_width": "0",
    }
    assert linkish(case(files=function("0000:00:02.0", "0x8086", "0x9b41", **ghost))) == []


def test_an_old_card_without_max_files_is_not_judged() -> None:
    files = function("0000:01:00.0", "0x1002", "0x6818", current_link_speed="8.0 GT/s PCIe", current_link_width="1")
    assert linkish(case(files=files)) == []


@pytest.mark.parametrize(
    ("vendor", "product", "found"),
    [
        ("", "", True),
        ("Supermicro", "AS-4125GS", True),
        ("QEMU", "Standard PC (Q35)", False),
        ("Microsoft Corporation", "Virtual Machine", False),
    ],
)
def test_two_ends_that_tell_two_widths(vendor: str, product: str, found: bool) -> None:
    card = function(CARD, "0x10de", "0x20b0", **link((G4, 16, G4, 16)))
    port = function(ROOT, "0x8086", "0x347a", "0x060400", **link((G4, 8, G4, 16)))
    dmi = {"sys/class/dmi/id/sys_vendor": vendor, "sys/class/dmi/id/product_name": product}
    report = case(files={**card, **port, **dmi}, parents={CARD: [ROOT]})
    assert bool(findings(report, "LINK-BRIDGE", at_least="warn")) is found


@pytest.mark.parametrize("width", ["63", "255", "0", "-1", "3"])
def test_widths_that_no_link_has_are_not_compared(width: str) -> None:
    card = function(CARD, "0x10de", "0x20b0", **(link(full()) | {"current_link_width": width}))
    port = function(ROOT, "0x8086", "0x347a", "0x060400", **link(full()))
    assert linkish(case(files={**card, **port}, parents={CARD: [ROOT]})) == []


def test_a_virtual_function_has_no_link_to_judge() -> None:
    files = function(CARD, "0x10de", "0x20b0", **link((G1, 1, G4, 16)))
    assert linkish(case(files=files, links={f"$D({CARD})/physfn": "../0000:03:00.1"})) == []
