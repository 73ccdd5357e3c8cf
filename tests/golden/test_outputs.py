"""Whole outputs for captured machines, compared with the committed ones.

``ACCELCTL_UPDATE_GOLDEN=1 python -m pytest tests/golden`` writes them anew; read the difference before committing it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from accelctl.hal.archive import read_archive
from accelctl.hal.root import SysRoot
from accelctl.model.report import Report
from accelctl.probes.scan import probe
from accelctl.render.brief import brief_text
from accelctl.render.term import Term
from accelctl.render.text import report_text

UPDATE = bool(os.environ.get("ACCELCTL_UPDATE_GOLDEN"))  # read at import: a fixture clears ACCELCTL_ variables
FOLDER = Path(__file__).parent

MACHINES = ("phoenix", "rx6900xt", "topo-mi210-xgmi-pcie", "32intel64-2p8co2t+8ve")

OUTPUTS: dict[str, Callable[[Report], str]] = {
    "pipe": lambda made: report_text(made, Term(False, None, None, True)),
    "80": lambda made: report_text(made, Term(True, 80, None, True)),
    "ascii": lambda made: report_text(made, Term(False, None, None, False)),
    "brief": lambda made: brief_text(made, Term(False, None, None, True)),
}
"""Name of the file's middle part -> what is written there."""

PCI_IDS = """\
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t15bf  Phoenix1
\t73bf  Navi 21 [Radeon RX 6800/6800 XT / 6900 XT]
\t740f  Aldebaran/MI200 [Instinct MI210]
1bcf  NEC Corporation
\t001c  Vector Engine 1.0
"""
"""The few names needed, so that the outputs do not depend on the pci.ids of the machine that runs the tests."""


@pytest.fixture(scope="module")
def reports(shared: Path) -> dict[str, Report]:
    """One scan per machine for all its outputs."""
    made = {}
    for name in MACHINES:
        tree = read_archive(str(shared / "machines" / f"{name}.tar.xz"))
        tree.add_file("usr/share/misc/pci.ids", PCI_IDS.encode())
        tree.name = f"{name}.tar.xz"
        made[name] = probe(SysRoot(tree))
    return made


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", MACHINES)
def test_output_is_the_committed_one(reports: dict[str, Report], name: str, output: str) -> None:
    text = OUTPUTS[output](reports[name])
    file = FOLDER / f"{name}.{output}.txt"
    if UPDATE:
        file.write_text(text, encoding="utf-8")
        pytest.skip(f"{file.name} written, not compared (ACCELCTL_UPDATE_GOLDEN is set)")
    assert text == file.read_text(encoding="utf-8")
