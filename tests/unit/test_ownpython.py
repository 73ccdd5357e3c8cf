"""A child of ours runs our code, whatever lies in the current folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from accelctl.hal import ownpython
from tests.helpers import ROOT, environment

TRAPS = ("accelctl/__init__.py", "json.py", "typer/__init__.py", "runpy.py")


def test_what_lies_in_the_current_folder_is_not_run(tmp_path: Path) -> None:
    for name in TRAPS:
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_text("raise SystemExit('the current folder ran')")
    command = ownpython.command("accelctl", ["backends", "--json"])
    env = environment({"PYTHONPATH": str(tmp_path)})  # of whoever starts us; what we import is what we found
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("{")


def test_words_and_path_come_along_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "told.py").write_text("import sys\nif __name__ == '__main__':\n    print(sys.argv[1:], sys.path)\n")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    ownpython.join(str(tmp_path / "shelf"))
    assert sys.path[-1] == str(tmp_path / "shelf")
    done = subprocess.run(ownpython.command("told", ["a b", "--c"]), capture_output=True, text=True, check=True)
    expected = [place for place in sys.path[1:-1] if place != "."]
    assert done.stdout == f"{['a b', '--c']} {expected}\n"


def test_a_hook_that_only_we_have_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if Path(place).resolve() != ROOT])
    assert ownpython.search_path()[-1] == str(ROOT)


def test_no_child_is_started_in_another_way() -> None:
    for path in (ROOT / "accelctl").rglob("*.py"):
        if path.name not in ("ownpython.py", "worker.py"):
            assert not re.search(r"\[\s*sys\.executable", path.read_text(encoding="utf-8")), path
