"""An apt that shares nothing with the machine's: its own lists, cache, sources and no hooks.

Nothing is installed through it. It only downloads package files, which are then unpacked into a folder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .errors import RigError
from .sources import Source

_CLEARED = (
    "APT::Update::Pre-Invoke",
    "APT::Update::Post-Invoke",
    "APT::Update::Post-Invoke-Success",
    "APT::Architectures",
    "Acquire::IndexTargets::deb::DEP-11",
    "Acquire::IndexTargets::deb::DEP-11-icons",
    "Acquire::IndexTargets::deb::DEP-11-icons-small",
    "Acquire::IndexTargets::deb::DEP-11-icons-large",
    "Acquire::IndexTargets::deb::DEP-11-icons-hidpi",
    "Acquire::IndexTargets::deb::DEP-11-icons-large-hidpi",
    "Acquire::IndexTargets::deb::Contents-deb",
)
"""Settings of apt.conf(5) that run commands on the real machine, or fetch indexes that nobody reads here."""

_CONFIG = """\
{clear}
APT::Architectures {{ "amd64"; }};
Acquire::Languages "none";
Acquire::Retries "3";
APT::Sandbox::User "root";
Dir::State "{home}/state";
Dir::State::lists "lists/";
Dir::State::status "{home}/status";
Dir::Cache "{home}/cache";
Dir::Etc::sourcelist "{home}/none";
Dir::Etc::sourceparts "{home}/sources";
Dir::Etc::preferences "{home}/none";
Dir::Etc::preferencesparts "{home}/none.d";
"""


class PrivateApt:
    """One private apt state in a folder; the folder is thrown away after use."""

    def __init__(self, home: Path) -> None:
        """Lay the state out under `home`, which must be on a disk with room for what is downloaded."""
        self.home = home
        for name in ("state/lists/partial", "cache/archives/partial", "sources", "none.d"):
            (home / name).mkdir(parents=True, exist_ok=True)
        (home / "status").touch()
        clear = "\n".join(f"#clear {name};" for name in _CLEARED)
        self.config = home / "apt.conf"
        self.config.write_text(_CONFIG.format(clear=clear, home=home), encoding="utf-8")

    def _run(self, command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        tool, *arguments = command
        if shutil.which(tool) is None:
            raise RigError(f"{tool} is not here: the kernels are fetched as Debian packages, so a Debian is needed")
        words = [tool, "-c", str(self.config), *arguments]
        return subprocess.run(words, cwd=cwd, text=True, capture_output=True, check=False, stdin=subprocess.DEVNULL)

    def use(self, sources: Sequence[Source]) -> str:
        """Read the indexes of `sources`; return apt's complaint, which is not fatal while any source answers."""
        file = self.home / "sources" / "rig.sources"
        file.write_text("\n".join(source.render() for source in sources), encoding="utf-8")
        done = self._run(["apt-get", "update"])
        complaint = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("E:", "W:", "Err"))]
        return complaint[0] if complaint else ""

    def names(self, prefix: str) -> list[str]:
        """Return the names of packages that begin with `prefix`."""
        return self._run(["apt-cache", "pkgnames", prefix]).stdout.split()

    def versions(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Return the versions on offer of each package, newest first as apt orders them."""
        found: dict[str, list[str]] = {}
        if names:
            for line in self._run(["apt-cache", "madison", *names]).stdout.splitlines():
                columns = [column.strip() for column in line.split("|")]
                if len(columns) == 3 and columns[2].endswith("Packages"):
                    found.setdefault(columns[0], []).append(columns[1])
        return found

    def unpack(self, package: str, version: str, folder: Path) -> None:
        """Download one package and unpack its files into `folder`; none of its scripts is run."""
        place = self.home / "debs" / re.sub(r"\W", "_", package)
        place.mkdir(parents=True, exist_ok=True)
        done = self._run(["apt-get", "-q", "download", f"{package}={version}"], cwd=place)
        files = list(place.glob("*.deb"))
        if done.returncode or len(files) != 1:
            detail = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise RigError(f"cannot download {package} {version}: {detail}")
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg-deb", "-x", str(files[0]), str(folder)], check=True)
        shutil.rmtree(place)
