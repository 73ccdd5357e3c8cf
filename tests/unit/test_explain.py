"""accelctl explain: pages of findings and of reasons, drawn plainly."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from accelctl.accept import expect, pages, watched
from accelctl.accept.pages import ADVICE, PAGES, SECTIONS, entries, page
from accelctl.errors import UsageError
from accelctl.model.reading import ABSENCES
from accelctl.render.explain import list_text, page_text
from accelctl.render.layout import cells
from accelctl.render.term import Term
from tests.helpers import run_cli

PIPE = Term(False, None, None, True)


@pytest.mark.parametrize("identity", [*expect.IDS, *watched.IDS])
def test_findings_of_this_layer_have_a_page_in_the_common_form(identity: str) -> None:
    lines = page(identity).splitlines()
    assert re.match(rf"# {identity}: \S", lines[0])
    assert tuple(line[3:] for line in lines if line.startswith("## ")) == SECTIONS


@pytest.mark.parametrize("reason", ABSENCES)
def test_every_reason_can_be_explained_with_advice(reason: str) -> None:
    text = page(reason)
    assert text.startswith(f"# {reason}: {ABSENCES[reason]}")
    assert tuple(line[3:] for line in text.splitlines() if line.startswith("## ")) == SECTIONS
    assert ADVICE[reason] in text


def test_entries_are_unique_and_titled() -> None:
    found = entries()
    assert len({entry.id for entry in found}) == len(found)
    assert all(entry.title and not entry.title.startswith("#") for entry in found)
    assert {path.stem for path in PAGES.glob("*.md")} <= {entry.id for entry in found}


def test_case_and_blanks_do_not_count() -> None:
    assert page("hang-read") == page("HANG-READ")
    assert page(" no driver ") == page("no_driver")


def test_unknown_id_names_near_ones() -> None:
    with pytest.raises(UsageError, match="did you mean EXPECT-DIFFERS"):
        page("EXPECT-DIFERS")
    with pytest.raises(UsageError) as caught:
        page("zzz\n\x1b[2J")
    assert "\n" not in caught.value.message
    assert caught.value.hint == "accelctl explain"


def test_pages_of_chips_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "madeup" / "explain"
    folder.mkdir(parents=True)
    (folder / "MU-TEST.md").write_text("# MU-TEST: made up\n\n## What it means\n\nNothing.\n", encoding="utf-8")
    monkeypatch.setattr(pages, "BACKENDS", tmp_path)
    assert "Nothing." in page("MU-TEST")
    assert [entry.group for entry in entries() if entry.id == "MU-TEST"] == ["findings of madeup"]


MARKDOWN = """# X-Y: title

## What it means

A paragraph with `code` and **bold** and a [link](https://example.org/x), long enough
to be wrapped at the width of a terminal, whatever that is.

- first item
- second item,
  continued

1. one
2. two

```
sudo command --that-must-not-be-wrapped-even-if-it-is-longer-than-the-terminal | cat
```

    indented code
"""


def test_markdown_is_drawn_plainly() -> None:
    lines = page_text(MARKDOWN, Term(True, 60, None, True)).splitlines()
    assert lines[:3] == ["X-Y: title", "", "What it means"]
    assert "  A paragraph with `code` and bold and a link" in lines
    assert "  • second item, continued" in lines
    assert "  1. one" in lines
    assert "    sudo command --that-must-not-be-wrapped-even-if-it-is-longer-than-the-terminal | cat" in lines
    assert "    indented code" in lines
    assert all(cells(line) <= 60 or line.startswith("    ") for line in lines)
    assert not any(line.startswith("#") or "**" in line or "```" in line for line in lines)


def test_prose_is_wrapped_in_a_pipe_too() -> None:
    lines = page_text(page("HANG-READ"), PIPE).splitlines()
    assert max(map(cells, lines)) <= 80
    assert "\x1b" not in "".join(lines)


def test_colour_stands_for_code_marks() -> None:
    text = page_text("Type `x` now.", Term(True, 60, "standard", True))
    assert "\x1b[36mx\x1b[0m" in text
    assert "`" not in text


def test_list_names_every_id_once_by_group() -> None:
    text = list_text(entries(), PIPE)
    assert text.startswith("Findings\n")
    for entry in entries():
        assert re.search(rf"^  {re.escape(entry.id)} ", text, re.MULTILINE), entry.id


def test_command() -> None:
    assert run_cli("explain", "HANG-READ", code=0).stdout.startswith("HANG-READ: ")
    assert "asleep" in run_cli("explain", code=0).stdout
    done = run_cli("explain", "HANG-RED", code=2)
    assert done.stdout == ""
    assert "did you mean HANG-READ" in done.stderr
    assert json.loads(run_cli("explain", "asleep", "--json", code=0).stdout)["schema"] == "accelctl.explain/1"
    ids = {entry["id"] for entry in json.loads(run_cli("explain", "--json", code=0).stdout)["entries"]}
    assert {"HANG-READ", "EXPECT-DIFFERS", "asleep"} <= ids
