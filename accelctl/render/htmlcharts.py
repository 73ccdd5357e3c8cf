"""Bars for HTML reports: words as HTML, so that they wrap, print and can be copied; only the bar itself is drawn."""

from __future__ import annotations

from math import isfinite, log10

from accelctl.model.bringupreport import Bar, Chart
from accelctl.render.html import Html, joined, tag

WIDE, HIGH = 1000, 16
MARK = 6
"""Width of a limit's mark, in thousandths of the chart."""
DECADES = 0.5
"""Below the smallest value of a logarithmic chart, so that its bar is seen."""


def chart(one: Chart, about: str = "") -> Html:
    """A heading (``about``: what it is of), the bars, and where their numbers are from."""
    if not one.bars:
        return Html("")
    low, high = _range(one)
    rows = [_row(bar, low, high, one.logarithmic) for bar in one.bars]
    notes = [one.note]
    if any(bar.limit is not None for bar in one.bars):
        notes.append(f"the mark is {one.limit or 'the limit'}")
    if one.logarithmic:
        notes.append("logarithmic scale")
    return joined(
        [
            tag("h3", one.title, " ", tag("span", about, class_="soft")),
            tag("div", *rows, class_="chart"),
            tag("p", "; ".join(note for note in notes if note), class_="soft small"),
        ]
    )


def _range(one: Chart) -> tuple[float, float]:
    """Least and largest of what is drawn, limits included; logarithms of them where the chart asks for that."""
    drawn = [bar.value for bar in one.bars] + [bar.limit for bar in one.bars if bar.limit is not None]
    values = [value for value in drawn if isfinite(value) and value > 0]
    if not values:
        return 0.0, 1.0
    if one.logarithmic:
        return log10(min(values)) - DECADES, log10(max(values))
    return 0.0, max(values)


def _at(value: float, low: float, high: float, logarithmic: bool) -> float:
    """Where a value lies, from 0 to WIDE; what cannot be drawn lies at an end."""
    if not isfinite(value):
        return WIDE if value > 0 else 0
    if logarithmic:
        if value <= 0:
            return 0
        value = log10(value)
    share = (value - low) / (high - low) if high > low else 1.0
    return WIDE * min(1.0, max(0.0, share))


def _row(bar: Bar, low: float, high: float, logarithmic: bool) -> Html:
    end = _at(bar.value, low, high, logarithmic)
    parts = [
        tag("rect", width=WIDE, height=HIGH, class_="track"),
        tag("rect", y=2, width=f"{end:.1f}", height=HIGH - 4, class_="bad" if bar.bad else "bar"),
    ]
    if bar.limit is not None:
        left = min(max(_at(bar.limit, low, high, logarithmic) - MARK / 2, 0), WIDE - MARK)
        parts.append(tag("rect", x=f"{left:.1f}", width=MARK, height=HIGH, class_="limit"))
    said = f"{bar.label}: {bar.text}"
    drawing = tag("svg", *parts, viewBox=f"0 0 {WIDE} {HIGH}", preserveAspectRatio="none", role="img", aria_label=said)
    value = tag("span", f"{bar.text} ✗" if bar.bad else bar.text, class_="value fail" if bar.bad else "value")
    return joined([tag("span", bar.label, class_="label"), drawing, value])
