"""HTML that stands alone, and in which nothing from a device can become markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accelctl.model.bringupreport import Bar, BringupReport, Chart, Fact, Subject
from accelctl.model.finding import Evidence, Finding
from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP
from accelctl.render import html
from accelctl.render.htmlcharts import WIDE, chart
from accelctl.render.htmlreport import html as document
from accelctl.render.layout import clean
from tests.bringupkit import SIM, done, report

VOID = {"br", "meta"}
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;\x1b[31m\u202e</style></title>"


class Checked(HTMLParser):
    """Every element is closed by the one that it was opened with; collects elements, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def full(words: str = "plain") -> BringupReport:
    """A report in which every text is the same."""
    found = Finding(words, "error", words, words, (Evidence(words, words),), (words,), "likely", (words,))
    charts = (Chart(words, (Bar(words, 1.0, words, 2.0, True),), words, words),)
    facts = (Fact(words, words, words, words, words, words), Fact(words, None, words, words))
    one = Subject(words, words, words, True, proven=words)
    steps = [
        done(words, result, words, reason=words, findings=(found,), facts=facts, charts=charts, command=words)
        for result in (PASS, FAIL, SKIP, INCONCLUSIVE)
    ]
    return report(*steps, found=(one,), notes=[words])


@given(st.text())
@example(EVIL)
def test_no_text_becomes_markup(words: str) -> None:
    plain, found = Checked(document(full())), Checked(document(full(f"x{words}")))
    assert found.seen == plain.seen
    assert [name for name, _ in found.attributes] == [name for name, _ in plain.attributes]


@given(st.text(), st.text())
def test_a_tag_escapes_what_it_holds(words: str, value: str) -> None:
    found = Checked(html.tag("p", words, title=value))
    assert found.seen == ["p"]
    assert "".join(found.words).strip() == clean(words)
    assert found.attributes == [("title", clean(value))]


def test_a_space_at_an_end_stays() -> None:
    assert html.joined(["a", " ", "b ", " c"]) == "a b  c"


def test_markup_is_not_escaped_twice() -> None:
    assert html.tag("p", html.tag("b", "a & b")) == "<p><b>a &amp; b</b></p>"
    assert html.joined(["<", html.tag("br")], ",") == "&lt;,<br>"


def test_it_loads_nothing_and_runs_nothing() -> None:
    text = document(full("see https://example.org/x.png"))
    found = Checked(text)
    assert {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a"} & set(found.seen) == set()
    assert {name for name, _ in found.attributes if name.startswith("on") or name in ("src", "href")} == set()
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src &#x27;none&#x27;" in text


def test_the_first_page_has_verdict_gaps_and_findings_in_that_order() -> None:
    text = document(full())
    places = [
        text.index(word)
        for word in (
            "rejected (simulated)",
            "Not done, and why",
            "Devices (1)",
            "Findings (1)",
            "Steps",
            "Charts",
            "Facts, each",
        )
    ]
    assert places == sorted(places)
    assert "Nothing real was tested" in text


def test_every_fact_stands_beside_its_source() -> None:
    facts = tuple(Fact(f"name{n}", n, f"sys/file{n}", f"raw{n}") for n in range(100))
    text = document(report(done("probe", PASS, "", facts=facts)))
    for n in range(100):
        row = re.search(rf"<tr><td>name{n}</td>.*?</tr>", text)
        assert row is not None
        assert re.findall("<td>(.*?)</td>", row[0]) == [f"name{n}", str(n), f"sys/file{n}", f"raw{n}"]


def test_a_missing_value_is_not_an_empty_cell() -> None:
    text = document(report(done("probe", PASS, "", facts=(Fact("serial", None, "sys/x", "no permission (EACCES)"),))))
    assert "not known" in text
    assert "no permission (EACCES)" in text


@pytest.mark.parametrize("dark", ["prefers-color-scheme:dark", "@media print", "max-width"])
def test_styles_for_dark_paper_and_phones(dark: str) -> None:
    assert dark in html.STYLE


# -- charts ------------------------------------------------------------------------------------------------------------


def widths(found: Chart) -> list[float]:
    return [float(text) for text in re.findall(r'<rect y="2" width="([\d.]+)"', chart(found))]


def test_bars_share_a_scale_with_their_limits() -> None:
    found = Chart("t", (Bar("a", 1, "1"), Bar("b", 2, "2"), Bar("c", 1, "1", limit=4.0)), "n", "ceiling")
    assert widths(found) == [WIDE / 4, WIDE / 2, WIDE / 4]
    assert "the mark is ceiling" in chart(found)


def test_a_logarithmic_scale() -> None:
    found = widths(Chart("t", (Bar("a", 1, "1"), Bar("b", 10, "2"), Bar("c", 100, "3")), "n", logarithmic=True))
    assert found[2] == WIDE
    assert found[1] - found[0] == pytest.approx(found[2] - found[1], abs=0.2)
    assert found[0] > 0


@given(st.lists(st.floats() | st.integers(-(10**9), 10**9), min_size=1, max_size=5), st.booleans())
def test_whatever_the_numbers_a_bar_stays_in_its_row(values: list[float], logarithmic: bool) -> None:
    bars = tuple(Bar("x", value, "?", limit=value) for value in values)
    for width in widths(Chart("t", bars, "n", logarithmic=logarithmic)):
        assert 0 <= width <= WIDE


def test_what_failed_is_not_told_by_colour_alone() -> None:
    assert "✗" in chart(Chart("t", (Bar("a", 1, "1", bad=True),), "n"))
    assert SIM.simulated
