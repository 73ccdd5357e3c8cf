"""What a link could carry: against numbers that are known elsewhere, and from facts as the probe gives them."""

from __future__ import annotations

import pytest

from accelctl.accept.bench import ceilings
from accelctl.accept.bench.ceilings import Link
from accelctl.model.device import Device
from accelctl.model.report import Report
from tests.unit.test_rules_link import CARD, G3, G4, full, path


@pytest.mark.parametrize(
    ("gts", "lanes", "gigabytes"),
    [
        (2.5, 1, 0.25),
        (2.5, 16, 4.0),
        (5.0, 8, 4.0),
        (8.0, 16, 15.754),
        (16.0, 4, 7.877),
        (16.0, 16, 31.508),
        (32.0, 16, 63.015),
        (64.0, 16, 118.0),
    ],
)
def test_line_rates_are_those_of_the_tables(gts: float, lanes: int, gigabytes: float) -> None:
    """A payload without end has no overhead: what is left is the line rate after encoding, one way."""
    assert ceilings.payload_rate(Link(gts, lanes), 1 << 40) / 1e9 == pytest.approx(gigabytes, rel=1e-3)


def test_packets_cost_what_their_heads_have() -> None:
    assert ceilings.payload_rate(Link(16.0, 16), 256) == pytest.approx(31.508e9 * 256 / 276, rel=1e-3)
    assert ceilings.payload_rate(Link(16.0, 16), 128) < ceilings.payload_rate(Link(16.0, 16), 256)
    assert ceilings.payload_rate(Link(64.0, 16), 256) == pytest.approx(118.0e9 * 256 / 268, rel=1e-3)


@pytest.mark.parametrize("gts", list(ceilings.ENCODING))
def test_the_formula_that_is_shown_gives_the_number(gts: float) -> None:
    link = Link(gts, 8)
    shown = ceilings.how(link).split(" (")[0].replace("GT/s x", "* 1e9 *").replace(" x ", " * ")
    assert set(shown) <= set("0123456789.e*/ ")
    assert eval(shown) == pytest.approx(ceilings.payload_rate(link))


def card(report: Report) -> Device:
    return next(one for one in report.devices if one.id == CARD)


def test_a_card_whose_link_is_the_narrowest() -> None:
    links = ceilings.links_of(card(path((G3, 8, G4, 16), full(), full(), full())))
    assert links.now == (G3, 8)
    assert links.best == (G4, 16)
    found = ceilings.ceiling(links)
    assert found is not None
    assert found.name == "PCIe 3.0 x8"
    assert found.computed
    said = ceilings.said(links)
    assert "now PCIe 3.0 x8" in said
    assert "at most PCIe 4.0 x16" in said


def test_a_narrower_link_on_the_way_is_the_ceiling() -> None:
    links = ceilings.links_of(card(path(full(), full(), full(width=4), full(width=4))))
    found = ceilings.ceiling(links)
    assert found is not None
    assert found.value < ceilings.payload_rate(Link(G4, 16)) / 3
    assert "narrowest" in found.name


def test_no_link_is_no_ceiling() -> None:
    links = ceilings.links_of(Device("sim:0", "virtual", ""))
    assert ceilings.ceiling(links) is None
    assert "not known" in ceilings.said(links)


def test_an_idle_card_is_looked_at_again() -> None:
    idle = ceilings.links_of(card(path((2.5, 16, G4, 16), full(), full(), full())))
    busy = ceilings.links_of(card(path(full(), full(), full(), full())))
    assert ceilings.faster(idle, busy).now == (G4, 16)
    assert ceilings.faster(busy, idle).now == (G4, 16)
