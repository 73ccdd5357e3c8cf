"""The documents as a whole: every command has a page that can be found, links lead somewhere, and code on pages works.
What the pages show of commands is compared in test_docs_examples.py."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest

from accelctl.abi.rules import rules_of
from accelctl.cli import COMMANDS
from accelctl.exits import EXIT_MEANINGS
from tests import docskit
from tests.docskit import DOCUMENTS
from tests.helpers import ROOT

INDEX = ROOT / "docs" / "README.md"
README = ROOT / "README.md"
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
MENTION = re.compile(r"`((?:docs|accelctl|tests)/[\w./-]+\.(?:md|py|svg))`")


def links(page: Path) -> list[Path]:
    """Files that a page links."""
    return [(page.parent / target).resolve() for target in LINK.findall(page.read_text(encoding="utf-8"))]


def page_of(command: str) -> Path:
    """The first page that the index names for a command."""
    row = re.search(rf"^\| `accelctl {command}` \| (.*) \|$", INDEX.read_text(encoding="utf-8"), re.M)
    assert row, f"docs/README.md has no row of {command}"
    target: str = LINK.findall(row[1])[0]
    return INDEX.parent / target


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_a_page_that_is_found(command: str) -> None:
    page = page_of(command)
    assert page.is_file()
    text = page.read_text(encoding="utf-8")
    assert f"accelctl {command}" in text.replace("\n", " ")
    assert page.resolve() in links(README), "the table of the README"
    assert docskit.blocks(page, "console"), "it shows no command"
    assert re.search(r"[Ee]xit status", text), "it does not say how it ends"
    assert re.search(r"\bnever\b", text, re.I), "it does not say what it never does"
    assert text.count("\n") <= 200, "nobody reads it in two minutes"


def test_the_index_names_every_page_and_every_command_once() -> None:
    pages = {page.resolve() for page in DOCUMENTS} - {INDEX, README}
    assert sorted(page.name for page in pages - set(links(INDEX))) == []
    named = re.findall(r"^\| `accelctl (\w+)`", INDEX.read_text(encoding="utf-8"), re.M)
    assert sorted(named) == sorted(COMMANDS)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    gone = [path.name for path in links(page) if not path.exists()]
    mentions = MENTION.findall(page.read_text(encoding="utf-8"))
    made_here = {block.file for block in docskit.blocks(page) if block.file}
    gone += [name for name in mentions if not (ROOT / name).exists() and name not in made_here and "ZORK" not in name]
    assert gone == []


def test_the_readme_is_for_the_first_ten_minutes() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.count("\n") <= 210
    first = text.partition("## Commands")[0]
    for word in (
        "make run",
        "probe",
        "explain",
        "--device sim:0",
        "simulated",
        "bringup",
        "stress",
        "top --demo",
        "capture",
    ):
        assert word in first, word
    told = {int(number) for number in re.findall(r"\b(\d+) \w", text.partition("Exit status:")[2].split("\n\n")[0])}
    assert told == {code for code in EXIT_MEANINGS if code < 128}


def test_the_rule_in_the_guide_is_a_rule() -> None:
    (block,) = docskit.blocks(ROOT / "docs" / "add-a-rule.md", "python")
    module = types.ModuleType("guide")
    exec(compile("\n".join(block.lines), "add-a-rule.md", "exec"), module.__dict__)
    from accelctl.model.device import Device
    from accelctl.model.reading import Reading
    from accelctl.model.report import Report

    (found,) = rules_of(module)
    assert found.ids == ("ZORK-HOT",)
    hot = Reading(95.5, "sys/devices/x/zork_temp", "95500")
    device = Device("0000:05:00.0", "physical", "sys/devices/x", chip="zork", facts={"zork/temperature_celsius": hot})

    class Context:
        report = Report("t", False, devices=[device])

        def devices(self, chip: str) -> list[Device]:
            return [one for one in self.report.devices if one.chip == chip]

    (finding,) = found.run(Context())  # type: ignore[arg-type]
    assert finding.device == "0000:05:00.0"
    assert finding.evidence[0].raw == "95500"


def test_every_absence_has_a_line_in_the_document() -> None:
    from accelctl.model.reading import ABSENCES

    text = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert [kind for kind in ABSENCES if f"`{kind}`" not in text] == []
