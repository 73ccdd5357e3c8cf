"""Lines of exactly so many columns, out of spans: what keeps a screen's columns under each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accelctl.render.layout import STYLES, Line, Span, cells, clean, line_cells

CURSOR = "cursor"
"""Style of the chosen row; beside it a sign stands, for terminals without styles."""
SGR = {**STYLES, CURSOR: "7", "title": "7;1", "tab": "1"}
"""Style -> escape code; the 16 standard colours only, which every theme keeps readable."""


def fit(line: Line, width: int, *, right: bool = False, more: str = "…") -> list[Span]:
    """The line cut or filled to ``width`` columns, its control characters out. ``more`` marks a cut."""
    safe = [span if span.text.isprintable() else Span(clean(span.text), span.style) for span in line if span.text]
    used = line_cells(safe)
    if used > width:
        return _cut(safe, width, more)
    fill = [Span(" " * (width - used))] if used < width else []
    return [*fill, *safe] if right else [*safe, *fill]


def _cut(line: Iterable[Span], width: int, more: str) -> list[Span]:
    room = width - cells(more)
    if room < 0:
        return [Span(" " * width)]
    kept: list[Span] = []
    style = ""
    for span in line:
        style = span.style
        piece = span.text if cells(span.text) <= room else _head(span.text, room)
        kept.append(Span(piece, style))
        room -= cells(piece)
        if piece != span.text:
            break
    return [*kept, Span(more, style), *([Span(" " * room)] if room else [])]


def _head(text: str, room: int) -> str:
    if text.isascii():
        return text[:room]
    end, used = 0, 0
    for letter in text:
        used += cells(letter)
        if used > room:
            break
        end += 1
    return text[:end]


def plain(line: Line) -> str:
    """Without styles and without blanks at the end."""
    return "".join(span.text for span in line).rstrip()


def beside(blocks: Sequence[Sequence[Line]], widths: Sequence[int], gap: int = 3) -> list[list[Span]]:
    """Blocks of lines next to each other, the shorter ones filled with blanks."""
    height = max((len(block) for block in blocks), default=0)
    found = []
    for at in range(height):
        line: list[Span] = []
        for number, (block, width) in enumerate(zip(blocks, widths, strict=True)):
            line += [Span(" " * gap)] if number else []
            line += fit(block[at] if at < len(block) else (), width)
        found.append(line)
    return found


def chosen(line: Line) -> list[Span]:
    """The line as the chosen row."""
    return [Span("".join(span.text for span in line), CURSOR)]


def wrapped(text: str, width: int) -> list[str]:
    """Words on lines of at most ``width`` columns; a longer word is broken, since nothing may be lost here."""
    found, line = [], ""
    for whole in clean(text).split(" "):
        word = whole
        while cells(word) > width:
            if line and cells(line) + 8 > width:
                found.append(line)
                line = ""
            head = _head(word, width - (cells(line) + 1 if line else 0))
            found.append(f"{line} {head}" if line else head)
            line, word = "", word[len(head) :]
        if line and cells(line) + 1 + cells(word) > width:
            found.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*found, line] if line or not found else found


def in_ascii(line: Line) -> list[Span]:
    """For terminals that know no other letters: as many columns as before, ``~`` for a cut, ``?`` for the rest."""
    return [span if span.text.isascii() else Span("".join(map(_ascii, span.text)), span.style) for span in line]


def _ascii(letter: str) -> str:
    return letter if letter.isascii() else "~" if letter == "…" else "?" * cells(letter)
