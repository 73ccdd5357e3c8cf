"""`python -m tools.pyz [FILE]`: one file (default dist/accelctl.pyz) that runs on a machine without a network.

It holds accelctl, its data files and everything it depends on, packed by shiv, and needs only a Python of 3.10 or newer
for this architecture. The first run unpacks it below $SHIV_ROOT (default ~/.shiv), because psutil is compiled.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = ROOT / "dist" / "accelctl.pyz"


def build(target: Path = DEFAULT) -> Path:
    """Build the file and return its path. Raises CalledProcessError when pip (which needs a network) or shiv fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        _pip("--target", str(site), str(ROOT))
        _pip("--target", str(site), "--upgrade", "--no-deps", *_ANY_PYTHON, "tomli>=2.0")
        _tidy(site)
        packed = Path(folder) / "packed.pyz"
        _shiv(site, packed)
        _with_own_start(packed, target)
    return target


_ANY_PYTHON = ("--only-binary", ":all:", "--platform", "any", "--python-version", "3.10", "--implementation", "py")
"""A pure-Python wheel: tomli is needed on 3.10 only, and its compiled wheels fit one release each."""


def _pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *words], check=True)


def _tidy(site: Path) -> None:
    """Leave out what nothing runs: caches, console scripts, and shared data that is inside the package as well."""
    for name in ("bin", "share"):
        shutil.rmtree(site / name, ignore_errors=True)
    for cache in site.rglob("__pycache__"):
        shutil.rmtree(cache)


def _shiv(site: Path, target: Path) -> None:
    """SOURCE_DATE_EPOCH makes the archive depend on nothing but its content."""
    words = ["--site-packages", str(site), "--reproducible", "--compressed", "-e", "accelctl.cli:main"]
    subprocess.run(
        [sys.executable, "-m", "shiv.cli", *words, "-p", "/usr/bin/env python3", "-o", str(target)],
        check=True,
        env={"SOURCE_DATE_EPOCH": "1577836800", **os.environ},
    )


def _with_own_start(packed: Path, target: Path) -> None:
    """Replace shiv's two-line start by pyz_main.py; everything else stays byte for byte."""
    with zipfile.ZipFile(packed) as old, target.open("wb") as out:
        out.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
            for entry in old.infolist():
                own = entry.filename == "__main__.py"
                new.writestr(entry, (ROOT / "tools" / "pyz_main.py").read_bytes() if own else old.read(entry))
    target.chmod(0o755)


def main() -> int:
    """Build and say where it is and how large."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    try:
        build(target)
    except subprocess.CalledProcessError as error:
        print(f"cannot build {target}: {error.cmd[2]} failed (see above)", file=sys.stderr)
        return 1
    print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB; copy it and run: python3 {target.name} probe")
    return 0


if __name__ == "__main__":
    sys.exit(main())
