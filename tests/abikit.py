"""Chips for tests: distributions in a folder that is on sys.path while a test runs, and toys for the suite."""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accelctl.abi.conformance import check_memory
from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import AddressSpace, Env, Target
from accelctl.abi.manifest import Manifest
from accelctl.abi.testbench import Check
from accelctl.memory.va import GoodFit
from tests.helpers import ROOT

GUIDE = ROOT / "docs" / "add-a-chip.md"


def guide(number: int) -> str:
    """A Python example of the guide: 0 is the chip, 1 how it is checked."""
    return str(re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[number])


HEAD = """
from accelctl.abi.manifest import Manifest

class Memory:
    def open(self, target, env):
        raise NotImplementedError

class Queue:
    def nop(self):
        return b""
    def open(self, session, depth):
        raise NotImplementedError

def manifest(name="zork", abi=1, **more):
    return Manifest(name=name, title="Zork", abi=abi, **more)
"""


def loads(*lines: str, head: str = HEAD) -> str:
    """A module whose load_backend does this."""
    return head + "\ndef load_backend(registry):\n" + textwrap.indent("\n".join(lines), "    ") + "\n"


class Plugins:
    """Writes distributions into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        code: str | None,
        *,
        names: tuple[str, ...] = ("zork",),
        module: str = "zork_chip",
        dist: str = "zork-chip",
        function: str = "",
    ) -> Path:
        """Install one; the folder of its package. ``code`` None: the package is missing."""
        info = self.folder / f"{dist.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n", encoding="utf-8")
        lines = [f"{name} = {module}{function}" for name in names]
        text = "[accelctl.backends]\n" + "\n".join(lines) + "\n"
        (info / "entry_points.txt").write_text(text, encoding="utf-8")
        package = self.folder / module
        if code is not None:
            package.mkdir(exist_ok=True)
            (package / "__init__.py").write_text(code, encoding="utf-8")
        importlib.invalidate_caches()
        return package


@pytest.fixture
def plug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugins]:
    """Installs third-party chips for one test."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv("ACCELCTL_PLUGINS", raising=False)
    before = set(sys.modules)
    yield Plugins(folder)
    for name in set(sys.modules) - before:
        if (folder / name.partition(".")[0]).exists():
            del sys.modules[name]


TARGET = Target("toy:0", "toy", "toy", "/dev/null", ("/dev/zero",))


def space(base: int, size: int, granule: int) -> AddressSpace:
    return GoodFit(base, size, granule=granule)


def check_toy(memory: Any, env: Env | None = None) -> dict[str, Check]:
    chip = Chip(Manifest(name="toy", title="Toy"), memory, None, None, "test")
    return {check.name: check for check in check_memory(chip, TARGET, env or Env(space=space))}


def failed(checks: dict[str, Check]) -> dict[str, str]:
    return {name: check.detail for name, check in checks.items() if check.result == "fail"}
