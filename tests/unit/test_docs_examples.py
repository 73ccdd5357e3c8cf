"""What the documents show is what happens: every console block is typed, and its output compared (tests/docskit.py).

``ACCELCTL_UPDATE_DOCS=1 python -m pytest tests/unit/test_docs_examples.py -k PAGE`` writes what is printed into the
pages; a line that holds only ``?`` is a place to write to.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests import docskit
from tests.conftest import shared_folder
from tests.docskit import DOCUMENTS, Block, Desk
from tests.helpers import ROOT

MOST_NOT_RUN = 18
"""Blocks that are not run. Each says why; this number only goes down."""

UPDATE = bool(os.environ.get("ACCELCTL_UPDATE_DOCS"))
PAGES = [page for page in DOCUMENTS if docskit.blocks(page, "console")]
ALL = [block for page in DOCUMENTS for block in docskit.blocks(page, "console")]


def short(page: Path) -> str:
    return page.relative_to(ROOT).as_posix().removeprefix("docs/").removesuffix(".md")


def desk_for(page: Path, folder: Path) -> Desk:
    """A desk with the captured machines that the page names, where they are here."""
    made, captures = Desk(folder, page), shared_folder() / "machines"
    for name in named(page.read_text(encoding="utf-8")):
        if (captures / name).is_file():
            docskit.packed(made.here / name, captures / name)
    return made


def named(text: str) -> set[str]:
    """Captures that are read; the others are made by a command of the page."""
    read = set(re.findall(r"(?:--root|--diff|--diff \S+) (\w\S*\.tar\.xz)", text))
    return read - {"machine.tar.xz", docskit.SLOW_SLOT}


def missing(block: Block) -> str:
    """What a block needs and this machine has not; empty: nothing."""
    typed = "\n".join(step.command for step in block.steps())
    captures = shared_folder() / "machines"
    if gone := [one for one in named(typed) if not (captures / one).is_file()]:
        return f"no {', '.join(gone)} in the folder with captured machines (ACCELCTL_SHARED)"
    if re.search(r"accelctl (smoke|serve|bench|bringup)|--demo", typed):
        for name in ("grpc", "numpy"):
            if not _importable(name):
                return f"{name} is not installed (extra umd)"
    if re.search(r"opencl:\d", typed) and not _importable("pyopencl"):
        return "pyopencl is not installed (extra opencl)"
    program = next((one for one in ("jq",) if re.search(rf"\| {one}\b", typed) and shutil.which(one) is None), "")
    return f"no {program} on this machine" if program else ""


def _importable(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_a_page_shows_what_happens(page: Path, tmp_path: Path) -> None:
    desk = desk_for(page, tmp_path)
    wrong: list[str] = []
    left_out: list[str] = []
    printed: dict[int, list[str]] = {}
    for block in docskit.blocks(page, "console"):
        if block.not_run:
            continue
        if why := missing(block):
            left_out.append(f"{block.name}: {why}")
            continue
        wrong += run_block(desk, block, printed)
    if UPDATE and printed:
        docskit.rewritten(page, printed)
    assert wrong == [], "\n\n".join(wrong)
    if left_out:
        pytest.skip("; ".join(left_out) + "; the rest of the page was run")


def run_block(desk: Desk, block: Block, printed: dict[int, list[str]]) -> list[str]:
    """Type a block's commands. What is wrong; into `printed`, what other lines the page should have shown."""
    wrong = []
    steps = block.steps()
    for index, step in enumerate(steps):
        got = docskit.trimmed(desk.type(step.command).splitlines())
        shown = docskit.trimmed(step.shown)
        where = f"{short(block.page)}:{step.line}: {step.command}"
        if shown and (why := docskit.differs(shown, got, varies=block.varies)):
            wrong.append(f"{where}\n{why}")
            printed |= {step.line: got} if not any("internal error" in line for line in got) else {}
        if any("Traceback (most recent call last)" in line for line in got):
            wrong.append(f"{where}\na traceback")
        told = steps[index + 1].command.startswith("echo $?") if index + 1 < len(steps) else False
        if desk.status and not told:
            wrong.append(f"{where}\nstatus {desk.status}, which the page does not tell (echo $?)\n" + "\n".join(got))
    return wrong


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    unrun = [block for block in ALL if block.not_run or "not run" in block.words]
    assert [block.name for block in unrun if len(block.not_run.split()) < 3] == []
    assert len(unrun) <= MOST_NOT_RUN, [f"{block.name}: {block.not_run}" for block in unrun]
    assert len(ALL) - len(unrun) >= 40


def test_no_command_is_shown_outside_of_a_console_block() -> None:
    wrong = [
        f"{short(page)}:{number}"
        for page in DOCUMENTS
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if re.match(r"\s*\$ \S", line) and not any(in_block(number, block) for block in docskit.blocks(page, "console"))
    ]
    assert wrong == []


def in_block(number: int, block: Block) -> bool:
    return block.line < number <= block.line + len(block.lines)


CODE = re.compile(r"`+([^`]+)`+")
COMMAND = re.compile(r"(?:^|[ /;(])accelctl((?: +[^\s|;)&>]+)*)")


def mentioned() -> dict[tuple[str, ...], list[str]]:
    """Words after `accelctl` in every code block and code span -> where."""
    found: dict[tuple[str, ...], list[str]] = {}
    for page in DOCUMENTS:
        blocks = docskit.blocks(page)
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            fenced = line.startswith("    ") or any(in_block(number, block) for block in blocks)
            for text in [line] if fenced else CODE.findall(line):
                for part in COMMAND.findall(re.sub(r"  +\S.*| #.*", "", text.strip())):
                    found.setdefault(tuple(part.split()), []).append(f"{short(page)}:{number}")
    return found


def test_every_command_and_option_that_is_named_exists() -> None:
    from tools import tree

    known = {}
    for top in tree.load():
        below = [option for one in top.walk() for option in one.options]
        known[top.path[0]] = {"--root"} | {name for option in [*below, *tree.GLOBAL_OPTIONS] for name in option.names}
    wrong = []
    for words, where in mentioned().items():
        if not words or not re.fullmatch(r"[a-z]+", words[0]) or words[0] == "help":
            continue
        options = {word.partition("=")[0] for word in words[1:] if re.match(r"--[a-z]", word)} - {"--help"}
        unknown = sorted(options - known.get(words[0], set()))
        if words[0] not in known or unknown:
            wrong.append(f"{', '.join(where)}: accelctl {' '.join(words)}: {unknown or 'no such command'}")
    assert wrong == []


@pytest.mark.parametrize(
    ("shown", "printed", "varies", "same"),
    [
        (["a 1"], ["a 1"], False, True),
        (["a 1"], ["a 2"], False, False),
        (["a 1.5 s ▁▂"], ["a  20 ms ▇"], True, True),
        (["a 1 s"], ["b 1 s"], True, False),
        (["a", "...", "d"], ["a", "b", "c", "d"], False, True),
        (["a", "...", "d"], ["a", "b"], False, False),
        (["a ... z"], ["a b.c z"], False, True),
        (["a.c"], ["abc"], False, False),
        (["a"], ["a", "b"], False, False),
        (["a", "b"], ["b", "a"], False, False),
    ],
)
def test_the_comparison_itself(shown: list[str], printed: list[str], varies: bool, same: bool) -> None:
    assert (docskit.differs(shown, printed, varies=varies) == "") is same


def test_a_page_that_shows_something_else_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one\ntwo\n$ false\n$ echo three\nthree\n```\n", encoding="utf-8")
    (block,) = docskit.blocks(page)
    block = block._replace(page=ROOT / "docs/page.md")
    first, second = run_block(Desk(tmp_path, page), block, {})
    assert "not as shown, first at: two" in first
    assert "status 1, which the page does not tell" in second


def test_a_change_needs_its_one_place(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").write_text("x\ny\nx\n", encoding="utf-8")
    page = ROOT / "docs/page.md"
    docskit.applied(Block(page, 1, "diff", "a/b", (" y", "+z")), tmp_path)
    assert (tmp_path / "a/b").read_text(encoding="utf-8") == "x\ny\nz\nx\n"
    with pytest.raises(AssertionError, match="2 places"):
        docskit.applied(Block(page, 1, "diff", "a/b", (" x", "+z")), tmp_path)
