"""Lines as an SVG picture that looks the same everywhere: bars and maps are drawn as rectangles, so that no font can
put gaps between them, and nothing is fetched from anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from accelctl.render.layout import Line, Span, cells

WIDE, HIGH, SIZE = 8, 18, 13.3
"""Pixels of a cell (whole ones, so that rectangles meet without seams) and of the letters in it: monospaced fonts
advance 0.6 of their size."""
MARGIN = 12
PAPER, INK = "#1c1f24", "#d4d7dd"
COLOURS = {
    "dim": "#8a9099",
    "ok": "#8fbf6f",
    "info": "#62b8c8",
    "warn": "#e2b45a",
    "error": "#ee6a62",
    "critical": "#ff5550",
    "command": "#62b8c8",
}
BOLD = ("bold", "title", "tab", "critical")
REVERSED = ("cursor", "title")
LOWER, SHADES = "▁▂▃▄▅▆▇█", {"░": 0.3, "▒": 0.6}
RULES = {"━": (1.0, 6), "╸": (0.5, 6), "─": (1.0, 1)}
"""Sign -> how much of its cell is drawn, from the left, and how many pixels high."""


def svg(lines: Sequence[Line], columns: int) -> str:
    """The whole picture."""
    width, height = columns * WIDE + 2 * MARGIN, len(lines) * HIGH + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(width)} {_n(height)}" '
        f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{SIZE}">',
        "<style>text{white-space:pre}rect{shape-rendering:crispEdges}.b{font-weight:bold}</style>",
        f'<rect width="{_n(width)}" height="{_n(height)}" rx="6" fill="{PAPER}"/>',
    ]
    for row, line in enumerate(lines):
        parts += _line(line, MARGIN + row * HIGH)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _n(number: float) -> str:
    """A coordinate, short."""
    return f"{number:.1f}".removesuffix(".0")


def _line(line: Line, top: float) -> Iterator[str]:
    column = 0
    for span in line:
        left = MARGIN + column * WIDE
        reverse = span.style in REVERSED
        if reverse:
            yield _rect(left, top, cells(span.text) * WIDE, HIGH, INK)
        ink = PAPER if reverse else COLOURS.get(span.style, INK)
        yield from _run(span, column, top, ink)
        column += cells(span.text)


def _run(span: Span, column: int, top: float, ink: str) -> Iterator[str]:
    """Words as text, each at its own place; signs of bars and maps as rectangles."""
    at, text = 0, span.text
    while at < len(text):
        end = at + 1
        drawn = _drawn(text[at])
        if drawn:
            while end < len(text) and text[end] == text[at]:
                end += 1
            yield from _blocks(text[at], end - at, MARGIN + (column + at) * WIDE, top, ink)
        else:
            while end < len(text) and not _drawn(text[end]) and text[end - 1 : end + 1] != "  ":
                end += 1
            word = text[at:end].rstrip()
            lead = len(word) - len(word.lstrip())
            if word.strip():
                yield _text(word.strip(), MARGIN + (column + cells(text[:at]) + lead) * WIDE, top, ink, span.style)
        at = end


def _drawn(letter: str) -> bool:
    return letter in LOWER or letter in SHADES or letter in RULES


def _blocks(sign: str, count: int, left: float, top: float, ink: str) -> Iterator[str]:
    if sign in RULES:
        part, thick = RULES[sign]
        yield _rect(left, top + (HIGH - thick) // 2, (count - 1 + part) * WIDE, thick, ink)
    elif sign in SHADES:
        yield _rect(left, top, count * WIDE, HIGH, ink, SHADES[sign])
    else:
        part = (LOWER.index(sign) + 1) / len(LOWER)
        yield _rect(left, top + HIGH * (1 - part), count * WIDE, HIGH * part, ink)


def _rect(left: float, top: float, width: float, height: float, fill: str, opacity: float = 1.0) -> str:
    faint = f' opacity="{opacity}"' if opacity < 1 else ""
    return f'<rect x="{_n(left)}" y="{_n(top)}" width="{_n(width)}" height="{_n(height)}" fill="{fill}"{faint}/>'


def _text(words: str, left: float, top: float, ink: str, style: str) -> str:
    bold = ' class="b"' if style in BOLD else ""
    return (
        f'<text x="{_n(left)}" y="{_n(top + HIGH - 5)}" fill="{ink}"{bold} '
        f'textLength="{_n(cells(words) * WIDE)}">{escape(words)}</text>'
    )
