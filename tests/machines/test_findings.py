"""Health rules on real machines that were healthy: nothing above information, and each information is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelctl.hal.root import open_root
from accelctl.model.finding import rank
from accelctl.probes.scan import probe

#: What the rules of the bus may say of these machines, and why it is so.
TRUE = {
    ("rx580", "PCI-REBAR"): "mem_info_vis_vram_total is 256 MiB, vram_total 4 GiB",
    ("vega56", "PCI-REBAR"): "BAR 0 is 256 MiB, its resize mask 0x3f00 reaches 8 GiB, vram_total is just below 8 GiB",
}
BUS = ("PCI-", "LINK-", "COUNT-", "IOMMU-", "LIMIT-", "SHM-", "SENSOR-", "TASK-")
NAMES = (
    "32intel64-2p8co2t+8ve",
    "a380-i915",
    "b580",
    "cometlake",
    "hd7870",
    "nvidiagpunumanodes",
    "phoenix",
    "rtx4080",
    "rx580",
    "rx6600",
    "rx6900xt",
    "rx7900xtx",
    "topo-mi210-xgmi-pcie",
    "vega56",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_machine_has_no_alarm(name: str, shared: Path) -> None:
    report = probe(open_root(str(shared / "machines" / f"{name}.tar.xz")))
    for one in report.findings:
        print(f"{name}: {one.level} {one.id} {one.device}: {one.title}")
    assert report.devices
    assert not [(one.id, one.title) for one in report.findings if rank(one.level) > rank("info")]
    said = {(name, one.id) for one in report.findings if one.id.startswith(BUS)}
    assert said == {key for key in TRUE if key[0] == name}
    assert not report.stuck


def test_every_machine_of_the_collection_is_here(shared: Path) -> None:
    assert {path.name.removesuffix(".tar.xz") for path in (shared / "machines").glob("*.tar.xz")} == set(NAMES)
