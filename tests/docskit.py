"""Documents that are run: console blocks of a page are taken apart, typed in order, and held to what the page shows.

In a block whose fence says ``console`` each line ``$ COMMAND`` is one command for bash, and what follows is its output,
standard error among it. A line ``...`` stands for any lines, ``...`` within a line for any text. After the word
``console``: ``numbers vary`` compares without numbers, bars and widths of columns, ``not run: REASON`` is for what
cannot be run everywhere. All blocks of a page share one folder, so that one command finds what another one wrote.

The person in documents is Ada: her home is /home/ada, and she types in its folder bench.

A block whose fence names a file (```` ```python accelctl/backends/zork/rules.py ````) is that file; with the language
``diff`` it is what changes in it. A page that has such blocks is run with a copy of the source that they were put into.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests import synthetic
from tests.helpers import ROOT

DOCUMENTS = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
COLUMNS = "100"
MOST_S = 180
"""Of one command. Those in documents are for people who try something, and take seconds."""

ANY = "..."
ADA = "/home/ada"
"""Whose home it is in documents; she types in the folder bench."""
FENCE = re.compile(r"^```(\w*) ?(.*)$")
_BAR = re.compile(r"[▁▂▃▄▅▆▇█]+")
_NUMBER = re.compile(r"\d[\d,.]*(?:e[+-]?\d+)?(?: ?(?:[num]?s|min|h|%|(?:[KMGT]i?)?B(?:/s)?|[KMG]?Hz)(?!\w))?")


class Step(NamedTuple):
    """One command, and the lines that the page shows below it."""

    line: int
    command: str
    shown: tuple[str, ...]


class Block(NamedTuple):
    """A fenced block: where it is, the words after its language, and its lines."""

    page: Path
    line: int
    language: str
    words: str
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        """For messages: page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def not_run(self) -> str:
        """Why nobody runs it; empty: it is run."""
        return self.words.partition("not run:")[2].strip()

    @property
    def varies(self) -> bool:
        """Whether only the words of its output are compared."""
        return "numbers vary" in self.words

    @property
    def file(self) -> str:
        """The file that it is, or changes, relative to the checkout; empty: none."""
        word = self.words.split(" ")[0]
        return word if self.language != "console" and re.fullmatch(r"[\w.-]+(/[\w.-]+)+", word) else ""

    def steps(self) -> list[Step]:
        """The commands of a console block. A line that ends in a backslash goes on in the next one."""
        found: list[Step] = []
        goes_on = False
        for number, text in enumerate(self.lines, self.line + 1):
            if goes_on:
                last = found.pop()
                found.append(Step(last.line, f"{last.command}\n{text}", ()))
            elif text.startswith("$ "):
                found.append(Step(number, text[2:], ()))
            else:
                assert found, f"{self.name}: output without a command"
                found[-1] = found[-1]._replace(shown=(*found[-1].shown, text))
            goes_on = text.endswith("\\") and not found[-1].shown
        return found


def blocks(page: Path, language: str = "") -> list[Block]:
    """The fenced blocks of a page, of one language or of all."""
    found: list[Block] = []
    start, words, lines = 0, ("", ""), list[str]()
    for number, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = FENCE.match(text)
        if match and not start:
            start, words, lines = number, (match[1], match[2]), []
        elif match:
            found.append(Block(page, start, *words, tuple(lines)))
            start = 0
        elif start:
            lines.append(text)
    assert not start, f"{page.name}:{start}: a fence is left open"
    return [one for one in found if language in ("", one.language)]


def applied(block: Block, checkout: Path) -> None:
    """Put a block into the copy of the source: a new file, or a change at the one place that its lines name."""
    path = checkout / block.file
    assert path.resolve().is_relative_to(checkout.resolve()), block.name
    if block.language != "diff":
        assert not path.exists(), f"{block.name}: {block.file} is there already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        return
    assert path.is_file(), f"{block.name}: no file {block.file}"
    text = f"\n{path.read_text(encoding='utf-8')}"
    before, after = ("".join(f"\n{one[1:]}" for one in block.lines if one[:1] not in sign) for sign in ("+", "-"))
    assert text.count(f"{before}\n") == 1, f"{block.name}: {text.count(before)} places in {block.file} fit"
    path.write_text(text.replace(f"{before}\n", f"{after}\n")[1:], encoding="utf-8")


PCI_IDS = """\
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t67df  Ellesmere [Radeon RX 470/480/570/570X/580/580X/590]
\t687f  Vega 10 XL/XT [Radeon RX Vega 56/64]
\t740f  Aldebaran/MI200 [Instinct MI210]
\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX]
10de  NVIDIA Corporation
8086  Intel Corporation
"""
"""Names that the pages show: they must not depend on the pci.ids of the machine that runs the tests."""

SLOW_SLOT = "slow-slot.tar.xz"
"""The one machine that is invented (tests/synthetic.py): its slot gives the card half its lanes. It is in no folder:
whoever reads types ``python3 -m tests.docskit slow-slot.tar.xz`` in a checkout, and pages that use it do the same."""


def slow_slot(target: Path) -> None:
    """Make that machine, as an archive."""
    with TemporaryDirectory() as made:
        root = synthetic.make_machine(Path(made), 1)
        for place in ("", "0000:01:00.0/"):
            (root / f"sys/devices/pci0000:00/0000:00:00.0/{place}current_link_width").write_text(
                "8\n", encoding="ascii"
            )
        packed(target, root)


def packed(target: Path, source: Path) -> None:
    """A captured machine (an archive, or a folder) as an archive that has these names with it."""
    with tarfile.open(target, "w:xz", preset=0) as new:
        if source.is_dir():
            new.add(source, ".")
        else:
            with tarfile.open(source) as old:
                for member in old:
                    new.addfile(member, old.extractfile(member) if member.isreg() else None)
        names = tarfile.TarInfo("usr/share/misc/pci.ids")
        names.size = len(PCI_IDS)
        new.addfile(names, io.BytesIO(PCI_IDS.encode()))


class Desk:
    """Where commands are typed: an empty folder (or, for a page that changes it, a copy of the source), a clean home,
    and `accelctl` on the path."""

    def __init__(self, folder: Path, page: Path) -> None:
        self.here, programs, home = folder / "here", folder / "bin", folder / "home"
        for one in (self.here, programs, home):
            one.mkdir()
        changes = [one for one in blocks(page) if one.file]
        if changes:
            for name in ("accelctl", "docs", "tests"):
                shutil.copytree(ROOT / name, self.here / name, ignore=shutil.ignore_patterns("__pycache__"))
        for change in changes:
            applied(change, self.here)
        source = self.here if changes else ROOT
        for called, words in (("accelctl", "-m accelctl "), ("python3", "")):
            program = programs / called
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n', encoding="utf-8")
            program.chmod(0o755)
        kept = {name: text for name, text in os.environ.items() if name in ("TMPDIR", "OPENBLAS_NUM_THREADS")}
        self.environment = {
            **kept,
            "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "COLUMNS": COLUMNS,
            "PYTHONPATH": str(source),
            "PYTHONUNBUFFERED": "1",
        }
        self.status = 0

    def type(self, command: str) -> str:
        """Run one line, and give what a terminal would show. `$?` is what the line before ended with."""
        done = subprocess.run(
            ["bash", "-c", f"(exit {self.status})\n{command}"],
            env=self.environment,
            cwd=self.here,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
            timeout=MOST_S,
        )
        self.status = done.returncode
        return done.stdout.replace(str(self.here), f"{ADA}/bench").replace(self.environment["HOME"], ADA)


def trimmed(lines: tuple[str, ...] | list[str]) -> list[str]:
    """Without white space at ends of lines, and without empty lines before and behind."""
    return "\n".join(line.rstrip() for line in lines).strip("\n").splitlines()


def masked(text: str) -> str:
    """Without what is different each time: numbers with their units, bars, and how wide they make a column."""
    return re.sub(r"[ \t]+", " ", _NUMBER.sub("#", _BAR.sub("~", text))).strip()


def differs(shown: list[str], printed: list[str], *, varies: bool) -> str:
    """Why the output is not what the page shows; empty: it is."""
    if varies:
        shown, printed = [masked(one) for one in shown], [masked(one) for one in printed]
    wanted = "".join(r"(?:.*\n)*" if one.strip() == ANY else _any_text(one) + r"\n" for one in shown)
    if re.fullmatch(wanted, "".join(f"{one}\n" for one in printed)):
        return ""
    at = next((one for one in shown if one.strip() != ANY and not _some(one, printed)), "the order of lines")
    return f"not as shown, first at: {at}\nprinted:\n" + "\n".join(printed)


def _any_text(line: str) -> str:
    return ".*".join(map(re.escape, line.split(ANY)))


def _some(line: str, printed: list[str]) -> bool:
    return any(re.fullmatch(_any_text(line), one) for one in printed)


def rewritten(page: Path, printed: dict[int, list[str]]) -> None:
    """Put what was printed (by line of the command) where the page shows something else; not where it shows ``...``."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in reversed(blocks(page, "console")):
        for step in reversed(block.steps()):
            below = step.line + step.command.count("\n")
            wild = any(ANY in one for one in step.shown)
            if step.line in printed and not wild:
                lines[below : below + len(step.shown)] = printed[step.line]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != [SLOW_SLOT]:
        sys.exit(f"python3 -m tests.docskit {SLOW_SLOT}   makes the invented machine of the pages")
    slow_slot(Path(SLOW_SLOT))
