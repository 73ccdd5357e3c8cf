"""What installed plug-ins cost a process that asks which chips there are: 50 of them against none, in turns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.helpers import ROOT, environment
from tests.perf.bench import Result

COUNT, ROUNDS = 50, 11
LIMIT_MS = 10.0
HEAD = "Metadata-Version: 2.1\n"

ASK = """
import sys, time
import accelctl.abi.registry as registry
start = time.process_time()
names = registry.names()
spent = time.process_time() - start
print(spent * 1000, len(names), sum(name.startswith("plug_") for name in sys.modules))
"""


def write(folder: Path, count: int = COUNT) -> None:
    """So many distributions with one chip each, as pip lays them out; importing one would end the process."""
    for number in range(count):
        package = folder / f"plug_{number}"
        package.mkdir()
        (package / "__init__.py").write_text("raise SystemExit('imported')\n")
        info = folder / f"plug_{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: plug-{number}\nVersion: 1.0\n" + "Classifier: x\n" * 20
        )
        (info / "entry_points.txt").write_text(f"[accelctl.backends]\nplug{number} = plug_{number}\n")


def asked(folder: Path) -> tuple[float, int, int]:
    """Milliseconds of a processor for the question, chips that are known, and plug-ins that were imported."""
    env = environment({"PYTHONPATH": f"{folder}:{ROOT}", "ACCELCTL_PLUGINS": None})
    done = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, check=True)
    spent, names, imported = done.stdout.split()
    return float(spent), int(names), int(imported)


def report() -> list[Result]:
    """One line: the median of the differences."""
    with TemporaryDirectory(prefix="accelctl-plugins-") as base:
        empty, full = Path(base) / "none", Path(base) / "fifty"
        empty.mkdir()
        full.mkdir()
        write(full)
        asked(full)  # byte code, and the files' pages
        pairs = [(asked(empty), asked(full)) for _ in range(ROUNDS)]
    more = median(full[0] - empty[0] for empty, full in pairs)
    imported = max(full[2] for _, full in pairs)
    alone = median(empty[0] for empty, _ in pairs)
    detail = f"{pairs[0][1][1] - pairs[0][0][1]} chips more, {imported} imported; without any {alone:.1f} ms"
    return [Result(f"{COUNT} installed plug-ins", more, "ms", LIMIT_MS, detail)]


if __name__ == "__main__":
    results = report()
    print("\n".join(map(str, results)))
    raise SystemExit(not all(one.good for one in results))
