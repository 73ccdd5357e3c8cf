"""Lines, wrapped lists and tables for a terminal or a pipe, with styles by role.

Not rich: a report is drawn at every run, importing rich costs as much as scanning eight devices, and what is needed is
small: hanging indents on a terminal, natural width in a pipe, where nothing is ever wrapped or cut. What accelctl did
not write itself (names, file contents) passes through :func:`clean`, so that no device can send escape codes to the
terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accelctl.render.notes import one_line
from accelctl.render.term import Term

#: Role -> SGR codes of the 16 standard colours, which every theme keeps readable. Meaning always stands in words too.
STYLES = {
    "": "",
    "bold": "1",
    "dim": "2",
    "ok": "32",
    "info": "36",
    "warn": "33",
    "error": "31",
    "critical": "1;31",
    "command": "36",
}


class Span(NamedTuple):
    """A piece of text in one style (a key of STYLES)."""

    text: str
    style: str = ""


Line = Sequence[Span]


def clean(text: object) -> str:
    """Foreign text on one line: white space folded, control characters out."""
    return one_line(str(text))


def cells(text: str) -> int:
    """Columns a text takes on a terminal: wide letters two, combining marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def line_cells(line: Line) -> int:
    """Columns of a whole line."""
    return sum(cells(span.text) for span in line)


def sentence(groups: Sequence[Sequence[Line]]) -> list[Line]:
    """Items with commas inside a group and semicolons between groups, for :meth:`Page.flow` with ``comma=""``."""
    found: list[Line] = []
    for group in groups:
        if found:
            found[-1] = [*found[-1][:-1], Span(";")]
        found += [[*item, Span(",")] for item in group]
    if found:
        found[-1] = found[-1][:-1]
    return found


class Page:
    """Collects finished lines. ``width`` is None where nothing may be wrapped."""

    def __init__(self, term: Term) -> None:
        self.term = term
        self.width = None if term.width is None else max(term.width, 40)
        self._lines: list[str] = []

    def text(self) -> str:
        """All lines; in ASCII mode with ``?`` for letters that ASCII lacks, never failing for them."""
        whole = "\n".join(self._lines).rstrip("\n") + "\n"
        return whole if self.term.unicode else whole.encode("ascii", "replace").decode("ascii")

    def blank(self) -> None:
        """An empty line, but never two."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def line(self, *spans: Span, indent: int = 0) -> None:
        """One line as it is, however long: for what will be copied."""
        self._lines.append((" " * indent + self.styled(spans)).rstrip(" "))

    def styled(self, line: Line) -> str:
        """The line with escape codes, or without them where there is no colour.

        What reaches a terminal passes here, so here is the last place where foreign text loses its control characters.
        """
        shown = ((text if text.isprintable() else clean(text), style) for text, style in line)
        styled = (
            self.term.style(text, STYLES[style]) if STYLES[style] and text.strip() else text for text, style in shown
        )
        return "".join(styled)

    def flow(self, lead: Line, items: Sequence[Line], *, indent: int = 0, hang: int = 0, comma: str = ",") -> None:
        """``lead``, padded to ``hang`` columns, then items with commas; on a terminal wrapped between items, then
        between words."""
        row: list[Span] = [*lead, Span(" " * max(hang - line_cells(lead), 0))]
        used, fresh = line_cells(row), True
        room = None if self.width is None else self.width - indent
        for number, item in enumerate(items):
            piece = [*item, Span(comma)] if comma and number < len(items) - 1 else list(item)
            for part in self._fitted(piece, None if room is None else room - (used if fresh else hang)):
                need = line_cells(part) + (not fresh)
                if not fresh and room is not None and used + need > room:
                    self.line(*row, indent=indent)
                    row, used, fresh = [Span(" " * hang)], hang, True
                    need = line_cells(part)
                row += [*([] if fresh else [Span(" ")]), *part]
                used, fresh = used + need, False
        self.line(*row, indent=indent)

    @staticmethod
    def _fitted(piece: Line, room: int | None) -> list[list[Span]]:
        """The piece whole if a line can hold it, else word by word (a longer word is left to the terminal)."""
        if room is None or line_cells(piece) <= room:
            return [list(piece)]
        words: list[list[Span]] = []
        glued = False
        for text, style in piece:
            for number, word in enumerate(text.split(" ")):
                if number == 0 and glued and words:
                    words[-1].append(Span(word, style))
                elif word:
                    words.append([Span(word, style)])
            glued = not text.endswith(" ")
        return words

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Line]], *, indent: int = 0, keys: int = 1) -> None:
        """Columns as wide as they need to be; what does not fit beside each other follows below, with the key columns
        repeated."""
        wide = [max([cells(header[at]), *(line_cells(row[at]) for row in rows)]) for at in range(len(header))]
        for number, chunk in enumerate(self._chunks(wide, indent, keys)):
            if number:
                self.blank()
            columns = [*range(keys), *chunk]
            self._row([(Span(header[at], "dim"),) for at in columns], [wide[at] for at in columns], indent)
            for row in rows:
                self._row([row[at] for at in columns], [wide[at] for at in columns], indent)

    def _row(self, row: Sequence[Line], wide: Sequence[int], indent: int) -> None:
        spans: list[Span] = []
        for line, width in zip(row, wide, strict=True):
            spans += [*line, Span(" " * (width - line_cells(line) + 2))]
        self.line(*spans, indent=indent)

    def _chunks(self, wide: Sequence[int], indent: int, keys: int) -> list[list[int]]:
        """Column numbers that fit side by side; at least one in each chunk."""
        rest = list(range(keys, len(wide)))
        if self.width is None or not rest:
            return [rest]
        head = indent + sum(width + 2 for width in wide[:keys])
        chunks: list[list[int]] = [[]]
        used = head
        for at in rest:
            if chunks[-1] and used + wide[at] > self.width:
                chunks.append([])
                used = head
            chunks[-1].append(at)
            used += wide[at] + 2
        return chunks
