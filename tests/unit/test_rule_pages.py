"""Every id a rule can emit has a page for ``accelctl explain``, and every page an id. Pages keep one form."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import accelctl
from accelctl.abi.rooms import in_tree
from accelctl.abi.rules import rules_of
from accelctl.probes.engine import chip_module, generic_modules
from tests.cases import log_rows as all_rows

PACKAGE = Path(accelctl.__file__).resolve().parent
PAGES = [*PACKAGE.glob("data/explain/*.md"), *PACKAGE.glob("backends/*/explain/*.md")]
IDENTITY = re.compile(r"[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)+")


def modules() -> list[Path]:
    return [*PACKAGE.glob("probes/rules/*.py"), *PACKAGE.glob("backends/*/rules.py")]


def registered() -> set[str]:
    """Ids by the registry: of @rule and of LOG_RULES."""
    loaded = [*generic_modules(), *filter(None, map(chip_module, in_tree()))]
    return {name for module in loaded for entry in rules_of(module) for name in entry.ids} | {
        row.id for row in all_rows()
    }


def written() -> Iterator[tuple[str, str]]:
    """(file, id) of every Finding(...) with its id written out: what a rule emits must be what it declares."""
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "Finding"
                and node.args
            ):
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield path.name, first.value


def elsewhere() -> set[str]:
    """Ids that the program itself emits (a rule that failed, a read that hung, an expectation)."""
    rules = set(modules())
    return {
        node.value
        for path in PACKAGE.rglob("*.py")
        if path not in rules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and IDENTITY.fullmatch(node.value)
    }


def test_every_id_has_a_page_and_every_page_an_id() -> None:
    pages = {path.stem for path in PAGES}
    assert len(PAGES) == len(pages), "two pages of one id"
    ids = registered()
    assert len(ids) > 30
    assert {"without a page": sorted(ids - pages), "without a rule": sorted(pages - ids - elsewhere())} == {
        "without a page": [],
        "without a rule": [],
    }


def test_what_is_emitted_is_declared() -> None:
    found = list(written())
    assert len(found) > 20
    ids = registered()
    assert [pair for pair in found if pair[1] not in ids] == []
    assert [name for name in ids if not IDENTITY.fullmatch(name)] == []


def test_a_consequence_names_an_id_that_exists() -> None:
    loaded = [*generic_modules(), *filter(None, map(chip_module, in_tree()))]
    ids = registered()
    wrong = [
        (module.__name__, name)
        for module in loaded
        for entry in rules_of(module)
        for name in entry.explains
        if name not in ids
    ]
    assert wrong == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_keeps_the_form(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert re.fullmatch(rf"# {re.escape(path.stem)}: \S.*", lines[0])
    assert [line for line in lines if line.startswith("## ")] == [
        "## What it means",
        "## How it was seen",
        "## What to do",
    ]
    assert 8 <= len([line for line in lines if line]) <= 30
    assert max(map(len, lines)) <= 126
    assert text.endswith("\n")
