"""HTML that stands alone: no scripts, nothing fetched, and no text that could become markup.

:class:`Html` is text that is markup already; everything else that :func:`tag` is given is escaped, so that a name from
a device or a log cannot forget to be. The page forbids itself (Content-Security-Policy) what it does not need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from accelctl.render.layout import clean


class Html(str):
    """Markup. Only this module makes it of text."""

    __slots__ = ()


VOID = frozenset({"br", "meta", "rect", "line"})
"""Elements that hold nothing."""


def text(words: object) -> Html:
    """Text as it is to be read: markup escaped, control characters and line breaks out; a space at an end stays one."""
    if isinstance(words, Html):
        return words
    whole = str(words)
    ends = [" " if end.isspace() else "" for end in (whole[:1], whole[-1:])]
    inner = clean(whole)
    return Html(escape(f"{ends[0]}{inner}{ends[1]}" if inner else ends[0]))


def tag(name: str, /, *inner: object, **attributes: object) -> Html:
    """One element. ``class_`` is the attribute class; underscores in other names are hyphens."""
    words = "".join(
        f' {key.strip("_").replace("_", "-")}="{escape(clean(value))}"' for key, value in attributes.items()
    )
    if name in VOID:
        return Html(f"<{name}{words}>") if name in ("br", "meta") else Html(f"<{name}{words}/>")
    return Html(f"<{name}{words}>{''.join(map(text, inner))}</{name}>")


def joined(parts: Iterable[object], between: str = "") -> Html:
    """Several after each other."""
    return Html(text(between).join(map(text, parts)))


def table(head: Sequence[object], rows: Iterable[Sequence[object]], kind: str = "") -> Html:
    """A table that scrolls by itself where the window is narrower. ``kind`` is a class of the style sheet."""
    top = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head)))
    body = tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    return tag("div", tag("table", top, body, **({"class_": kind} if kind else {})), class_="scroll")


def details(summary: object, *inner: object, shown: bool = False) -> Html:
    """What most readers skip: folded on the screen, open on paper."""
    return tag("details", tag("summary", summary), *inner, **({"open": "open"} if shown else {}))


def page(title: str, *parts: object) -> str:
    """The whole document."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        Html(f"<style>{STYLE}</style>"),
    )
    body = tag("body", tag("main", Html("\n".join(text(part) for part in parts if part))))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


STYLE = """
:root{--paper:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d5dae0;--card:#f5f7f9;--bar:#3f7cac;--mark:#1b1f24;
--pass:#1a7f37;--fail:#c2242c;--skip:#57606a;--inconclusive:#8a5a00;--code:#eef1f4}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e4e7eb;--soft:#9aa4af;--line:#363c44;--card:#1c2127;
--bar:#6aa9d8;--mark:#e4e7eb;--pass:#56c271;--fail:#ff7b78;--skip:#9aa4af;--inconclusive:#e2b45a;--code:#242a31}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .25rem}
h2{font-size:1.15rem;margin:2.25rem 0 .5rem;padding-top:.25rem;border-top:2px solid var(--line)}
h3{font-size:1rem;margin:1.25rem 0 .35rem}
p{margin:.35rem 0}
ul{margin:.35rem 0;padding-left:1.25rem}
code,pre{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;font-size:.86em}
code{background:var(--code);padding:.05em .3em;border-radius:3px;overflow-wrap:anywhere}
pre{background:var(--code);padding:.5rem .7rem;border-radius:4px;margin:.35rem 0;white-space:pre-wrap;
overflow-wrap:anywhere}
.soft{color:var(--soft)}
.small{font-size:.85rem}
.verdict{border:1px solid var(--line);border-left:.5rem solid var(--skip);border-radius:4px;background:var(--card);
padding:.8rem 1rem;margin:1rem 0}
.verdict strong{font-size:1.3rem}
.verdict.pass{border-left-color:var(--pass)}.verdict.fail{border-left-color:var(--fail)}
.verdict.inconclusive{border-left-color:var(--inconclusive)}
.pass,.verdict.pass strong{color:var(--pass)}.fail,.verdict.fail strong{color:var(--fail)}
.inconclusive,.verdict.inconclusive strong{color:var(--inconclusive)}.skip{color:var(--skip)}
.verdict.pass,.verdict.fail,.verdict.inconclusive{color:var(--ink)}
.word{font-weight:600;white-space:nowrap}.whole{white-space:nowrap}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;margin:.35rem 0}
th,td{text-align:left;vertical-align:top;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line)}
th{font-size:.8rem;color:var(--soft);font-weight:600}
td{overflow-wrap:break-word}
.facts td{font-size:.82rem;line-height:1.35;overflow-wrap:anywhere}
.facts td:nth-child(1){width:30%}.facts td:nth-child(2){width:22%}
.facts td:nth-child(n+3){color:var(--soft);font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:.76rem}
.finding{border:1px solid var(--line);border-radius:4px;padding:.6rem .9rem;margin:.6rem 0;break-inside:avoid}
.finding h3{margin:.1rem 0 .3rem}
.chart{display:grid;grid-template-columns:minmax(5rem,max-content) 1fr minmax(4rem,max-content);gap:.2rem .8rem;
align-items:center;font-size:.88rem;margin:.4rem 0;break-inside:avoid}
.chart svg{width:100%;height:1rem;display:block}
.chart .value{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.track{fill:var(--card)}.bar{fill:var(--bar)}.bad{fill:var(--fail)}.limit{fill:var(--mark)}
details{margin:.5rem 0}summary{cursor:pointer;font-weight:600}
@media (max-width:34rem){main{padding:1rem .75rem 3rem}h1{font-size:1.25rem}
.chart{grid-template-columns:1fr max-content}.chart svg{grid-column:1/-1;grid-row:auto}
.chart .value{grid-column:2}.chart .label{grid-column:1}.facts td:nth-child(n){width:auto}
thead{display:none}tr{display:block;border-bottom:1px solid var(--line);padding:.35rem 0}
td{display:block;border:0;padding:0;overflow-wrap:anywhere}td:empty{display:none}}
@media print{:root{--paper:#fff;--ink:#000;--soft:#444;--line:#bbb;--card:#f3f3f3;--bar:#3f7cac;--mark:#000;
--code:#f3f3f3;
--pass:#1a7f37;--fail:#c2242c;--skip:#444;--inconclusive:#8a5a00}
body{font-size:10pt}main{max-width:none;padding:0}details::details-content{content-visibility:visible;height:auto}
summary{list-style:none}h2,h3{break-after:avoid}.verdict,.track,pre,code{print-color-adjust:exact}
.verdict{-webkit-print-color-adjust:exact}}
"""
