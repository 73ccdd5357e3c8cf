"""Pages of ``accelctl explain`` on a terminal: the little Markdown they use, drawn plainly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from accelctl.accept.pages import Entry
from accelctl.render.document import headed
from accelctl.render.layout import Line, Page, Span, cells
from accelctl.render.term import Term

PROSE = 80
"""Columns of a page in a pipe: it is prose, nothing in it is data."""

_INLINE = re.compile(r"(`[^`]+`|\*\*[^*]+\*\*)")


def page_text(markdown: str, term: Term) -> str:
    """Headings bold, paragraphs and lists wrapped, code lines as they are, ready to be copied."""
    page = Page(term._replace(width=term.width or PROSE))
    paragraph: list[str] = []
    code = False
    for line in markdown.splitlines():
        if line.startswith("```"):
            _flush(page, paragraph)
            code = not code
        elif code or line.startswith("    "):
            _flush(page, paragraph)
            page.line(Span(line if code else line[4:], "command"), indent=4)
        elif line.startswith("#"):
            _flush(page, paragraph)
            page.blank()
            page.line(Span(line.lstrip("# "), "bold"))
        elif re.match(r"\s*([-*]|\d+\.) ", line):
            _flush(page, paragraph)
            paragraph.append(line)
        elif line.strip():
            paragraph.append(line)
        else:
            _flush(page, paragraph)
            page.blank()
    _flush(page, paragraph)
    return page.text()


def _flush(page: Page, paragraph: list[str]) -> None:
    if not paragraph:
        return
    text = " ".join(line.strip() for line in paragraph)
    item = re.match(r"([-*]|\d+\.) ", text)
    lead: list[Span] = []
    if item:
        mark = page.term.glyphs.bullet if item.group(1) in "-*" else item.group(1)
        lead, text = [Span(f"{mark} ")], text[item.end() :]
    page.flow(lead, [_spans(text, page.term)], indent=2, hang=cells(lead[0].text) if lead else 0, comma="")
    paragraph.clear()


def _spans(text: str, term: Term) -> Line:
    """`code` and **bold**, marks kept where there is no colour to stand for them; links keep text and address."""
    text = re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r"\1 (\2)", text)
    spans = []
    for part in _INLINE.split(text):
        if part.startswith("`") and len(part) > 2:
            spans.append(Span(part[1:-1], "command") if term.colors else Span(part))
        elif part.startswith("**") and len(part) > 4:
            spans.append(Span(part[2:-2], "bold"))
        elif part:
            spans.append(Span(part))
    return spans


def list_text(entries: Sequence[Entry], term: Term) -> str:
    """All ids with their titles, by group."""
    page = Page(term)
    wide = max((cells(entry.id) for entry in entries), default=0) + 2
    for group, own in groupby(entries, key=lambda entry: entry.group):
        page.blank()
        page.line(Span(group[:1].upper() + group[1:], "bold"))
        for entry in own:
            page.flow((Span(entry.id, "command"),), [(Span(entry.title),)], indent=2, hang=wide)
    return page.text()


def list_document(entries: Sequence[Entry]) -> dict[str, Any]:
    """accelctl.explain/1 of the list."""
    return headed("accelctl.explain/1", entries=[{"id": e.id, "title": e.title, "group": e.group} for e in entries])


def page_document(identity: str, markdown: str) -> dict[str, Any]:
    """accelctl.explain/1 of a page."""
    return headed("accelctl.explain/1", id=identity, markdown=markdown)
