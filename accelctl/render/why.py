"""``--why``: a fact with everything that is known about it, or the chain of reasons for its absence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from accelctl.model.reading import ABSENCES, Reading
from accelctl.render.document import headed, plain
from accelctl.render.layout import Line, Page, Span, clean
from accelctl.render.term import Term

SCHEMA = "accelctl.why/1"
LABEL = 9


def why_text(owner: str, facts: Mapping[str, Reading], term: Term) -> str:
    """One paragraph per fact."""
    page = Page(term)
    for key, reading in facts.items():
        page.blank()
        page.line(Span(f"{owner}  ", "dim"), Span(clean(key), "bold"))
        _value(page, reading)
        _row(page, "source", reading.source)
        if reading.raw is not None:
            _raw(page, reading.raw)
        if reading.scope != "stable":
            words = {"volatile": "changes by itself", "identity": "tells equal machines apart"}
            _row(page, "scope", f"{reading.scope} ({words.get(reading.scope, '')})")
        if reading.absence is not None:
            page.line(_label("more"), Span(f"accelctl explain {reading.absence.kind}", "command"), indent=2)
    return page.text()


def _value(page: Page, reading: Reading) -> None:
    if reading.absence is None:
        unit = f" {reading.unit}" if reading.unit else ""
        value = reading.value if isinstance(reading.value, str) else json.dumps(plain(reading.value))
        _row(page, "value", f"{clean(value)}{unit}", "ok")
        return
    gone = reading.absence
    _row(page, "value", "none", "warn")
    _row(page, "because", f"{gone.kind.replace('_', ' ')}: {ABSENCES.get(gone.kind, 'no reason is known')}")
    if gone.errno:
        _row(page, "errno", gone.errno)
    if gone.detail:
        _row(page, "detail", gone.detail)
    if gone.fix:
        page.line(_label("do"), Span(clean(gone.fix), "command"), indent=2)


def _row(page: Page, label: str, text: str, style: str = "") -> None:
    item: Line = (Span(clean(text), style),)
    page.flow((Span(label, "dim"),), [item], indent=2, hang=LABEL)


def _raw(page: Page, raw: str) -> None:
    """The text as it stood there, line by line."""
    for number, line in enumerate(raw.splitlines() or [""]):
        page.line(_label("" if number else "raw"), Span(clean_line(line)), indent=2)


def _label(word: str) -> Span:
    return Span(f"{word:<{LABEL}}", "dim")


def clean_line(line: str) -> str:
    """Without control characters, blanks kept."""
    return "".join(letter if letter.isprintable() else "?" for letter in line.expandtabs())


def why_document(owner: str, facts: Mapping[str, Reading]) -> dict[str, Any]:
    """The same as JSON values (schema accelctl.why/1)."""
    return headed(SCHEMA, owner=owner, facts={key: _entry(one) for key, one in facts.items()})


def _entry(reading: Reading) -> dict[str, Any]:
    gone = reading.absence
    return {
        "value": plain(reading.value),
        "unit": reading.unit,
        "source": reading.source,
        "raw": reading.raw,
        "scope": reading.scope,
        "absence": None if gone is None else gone._asdict(),
    }
