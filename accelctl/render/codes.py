"""Error codes and kinds on a terminal and as JSON: ``accelctl explain cuda:700``, ``705``, ``out_of_memory``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelctl.abi.codes import STACKS, Code, table
from accelctl.accept.codes import Answer, may_be, mistakes_of, rules
from accelctl.errors import KINDS
from accelctl.exits import EXIT_MEANINGS
from accelctl.render.document import headed
from accelctl.render.explain import PROSE
from accelctl.render.layout import Line, Page, Span, cells
from accelctl.render.term import Term

WHEN = {
    "sync": "at the call itself",
    "async": "later: an earlier call is to blame, not the one that returned it",
    "sync_or_async": "at the call itself, or later: then an earlier call is to blame",
    "query_result": "as the normal answer of a query",
    "kernel_log": "in the kernel log; no call returns it",
}
LOST = {
    "no": "nothing; later calls work",
    "context": "the context: make a new one",
    "process": "the process: every later call fails, start a new process",
    "device": "the device, until it is reset",
    "capture": "the running capture: begin it again",
    "communicator": "the communicator: abort it and make a new one",
    "unknown": "not known: take the context for lost",
}
RETRY = {
    "no": "no: the same call fails again",
    "yes": "yes",
    "yes_poll": "yes: ask again until it is done",
    "yes_backoff": "yes: wait longer each time",
    "after_fix": "after the cause is mended",
    "after_free": "after something is freed",
    "after_reset": "after a reset of the device",
    "after_restart_of_capture": "after the capture was begun again",
    "depends": "it depends: see below",
    "unknown": "once, to see whether it returns",
    "n/a": "there is nothing to repeat",
}


# -- text --------------------------------------------------------------------------------------------------------------


def text(found: Answer, term: Term) -> str:
    """Everything about one code or kind, or the list of candidates."""
    page = Page(term._replace(width=term.width or PROSE))
    if found.kind:
        _kind(page, found.kind)
    elif found.one_thing:
        _code(page, found)
    else:
        _candidates(page, found)
    return page.text()


_HANG = 10


def _row(page: Page, label: str, words: str, style: str = "") -> None:
    if words:
        page.flow((Span(label, "dim"),), [(Span(words, style),)], indent=2, hang=_HANG, comma="")


def _code(page: Page, found: Answer) -> None:
    code = found.codes[0]
    names = " = ".join(dict.fromkeys(name for one in found.codes for name in (one.name, *one.aliases)))
    kind = KINDS[code.kind]
    page.flow((Span(code.address, "bold"),), [(Span(names, "bold"),)], hang=cells(code.address) + 2, comma="")
    page.line(Span(_types(found.codes), "dim"))
    page.blank()
    _row(page, "Says", code.meaning)
    _row(page, "Detail", code.detail)
    _row(page, "Kind", f"{code.kind}: {kind.meaning}")
    _refined(page, found)
    _row(page, "When", WHEN[code.when])
    _row(page, "Lost", _lost(code))
    _row(page, "Retry", RETRY.get(code.retry or kind.retryable, code.retry))
    for number, step in enumerate(_steps(code)):
        _row(page, "" if number else "Next", step)
    _row(page, "Note", code.note)
    _row(page, "Version", code.since, "warn")
    _blame(page, code)
    _mistakes(page, code)
    if notes := table(code.stack).head.get("notes"):
        page.blank()
        page.line(Span(f"About {STACKS[code.stack].title} errors", "bold"))
        for note in notes:
            _item(page, note)


def _types(codes: Sequence[Code]) -> str:
    return ", ".join(f"{STACKS[one.stack].title} ({table(one.stack).head['type']})" for one in codes)


def _lost(code: Code) -> str:
    own: dict[str, str] = table(code.stack).head.get("lost", {})
    return own.get(code.sticky, LOST[code.sticky])


def _steps(code: Code) -> list[str]:
    """What to do: the code's own step or that of its kind, and what the vendor advises."""
    actions = table(code.stack).head.get("vendor_actions", {})
    advice = [actions.get(word, word) for word in code.vendor.split("; ") if word]
    return [
        code.next or KINDS[code.kind].next_step,
        *([f"the vendor says: {'; then: '.join(advice)}"] if advice else []),
    ]


def _blame(page: Page, code: Code) -> None:
    calls = blamed(code)
    if not calls:
        return
    page.blank()
    page.line(Span("Which call is to blame", "bold"))
    _row(page, "Any of", calls["earlier"])
    _row(page, "Seen at", calls["seen_at"])
    _row(page, "Find it", calls["find"])


def _refined(page: Page, found: Answer) -> None:
    if found.refined is None:
        if others := may_be(found.codes[0]):
            _row(page, "", f"but it may stand for {' or '.join(others)}: see what can be wrong, below")
        if rules(found.codes[0]):
            _row(page, "", f"a log tells: accelctl explain {found.codes[0].address} --log PLOG")
    elif found.refined.kind:
        _row(page, "", f"here it is {found.refined.kind}: {KINDS[found.refined.kind].meaning}", "bold")
        _row(page, "Log", found.refined.line)
    else:
        _row(page, "", "the log holds nothing that says more")


def _mistakes(page: Page, code: Code) -> None:
    found = mistakes_of(code)
    if not found:
        return
    page.blank()
    page.line(Span("What can be wrong", "bold"))
    for one in found:
        kind = f" [{one.kind}]" if one.kind != code.kind else ""
        _item(page, f"{one.text}{kind}{' ' if one.note else ''}{one.note}")


def _item(page: Page, words: str) -> None:
    page.flow((Span(page.term.glyphs.bullet),), [(Span(words),)], indent=2, hang=2, comma="")


def _candidates(page: Page, found: Answer) -> None:
    kinds = list(dict.fromkeys(code.kind for code in found.codes))
    stacks = len({code.stack for code in found.codes})
    verdict = f"of kind {kinds[0]} in all" if len(kinds) == 1 else f"{len(kinds)} different things"
    page.line(Span(f"{found.query}: {len(found.codes)} codes of {stacks} stacks, {verdict}", "bold"))
    page.blank()
    rows = [_candidate(code) for code in found.codes]
    page.table(("CODE", "KIND", "NAME"), rows, indent=2, keys=1)
    page.blank()
    for kind in kinds:
        _item(page, f"{kind}: {KINDS[kind].meaning}; {KINDS[kind].next_step}")
    page.blank()
    page.line(
        Span(f"accelctl explain {found.codes[0].address}", "command"),
        Span("   more about one: name the stack it is of"),
    )


def _candidate(code: Code) -> tuple[Line, ...]:
    return (Span(code.address, "command"),), (Span(code.kind),), (Span(code.name),)


def _kind(page: Page, name: str) -> None:
    kind = KINDS[name]
    page.flow((Span(name, "bold"),), [(Span(kind.meaning, "bold"),)], hang=cells(name) + 2, comma="")
    page.line(Span(f"a kind of error, of the group {kind.group}", "dim"))
    page.blank()
    _row(page, "Retry", RETRY[kind.retryable])
    _row(page, "Exit", f"{int(kind.exit_code)}: {EXIT_MEANINGS[kind.exit_code]}")
    _row(page, "Next", kind.next_step)
    page.blank()
    page.line(Span("Codes of this kind", "bold"))
    for stack, codes in codes_of(name).items():
        items = [(Span(f"{code.written} {code.name}"),) for code in codes]
        page.flow((Span(STACKS[stack].title, "dim"),), items, indent=2, hang=26)


def codes_of(kind: str) -> dict[str, list[Code]]:
    """Stack -> its codes of a kind, for the stacks that have any."""
    found = {stack: [code for code in table(stack).by_number.values() if code.kind == kind] for stack in STACKS}
    return {stack: codes for stack, codes in found.items() if codes}


def blamed(code: Code) -> dict[str, str]:
    """For codes that show up late: which calls may have caused them, where they are seen, and how to find the one."""
    calls: dict[str, str] = table(code.stack).head.get("async", {})
    return calls if code.when in ("async", "sync_or_async") else {}


# -- JSON --------------------------------------------------------------------------------------------------------------


def document(found: Answer) -> dict[str, Any]:
    """accelctl.explain/1 of a code or kind."""
    return headed(
        "accelctl.explain/1",
        id=found.query,
        ambiguous=bool(found.codes) and not found.one_thing,
        codes=[_as_json(code) for code in found.codes],
        kind=_kind_json(found.kind) if found.kind else None,
        refined=None if found.refined is None else found.refined._asdict(),
    )


def _kind_json(name: str) -> dict[str, Any]:
    kind = KINDS[name]
    codes = {stack: [code.address for code in codes] for stack, codes in codes_of(name).items()}
    return {"kind": name, **kind._asdict(), "exit_code": int(kind.exit_code), "codes": codes}


def _as_json(code: Code) -> dict[str, Any]:
    kind = KINDS[code.kind]
    return {
        "code": code.address,
        "stack": code.stack,
        "type": table(code.stack).head["type"],
        "name": code.name,
        "number": code.number,
        "aliases": list(code.aliases),
        "kind": code.kind,
        "may_be": list(may_be(code)),
        "detail": code.detail or None,
        "meaning": code.meaning,
        "when": code.when,
        "blame": blamed(code) or None,
        "sticky": code.sticky,
        "lost": _lost(code),
        "retryable": code.retry or kind.retryable,
        "exit_code": int(kind.exit_code),
        "next": _steps(code),
        "note": code.note or None,
        "version": code.since or None,
        "mistakes": [one._asdict() for one in mistakes_of(code)],
        "notes": table(code.stack).head.get("notes", []),
        "sources": table(code.stack).head["sources"],
    }
