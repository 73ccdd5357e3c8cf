"""`accelctl explain [ID]`: what a finding means, how it was seen, and what to do about it."""

from typing import Annotated

import typer

from accelctl.render import term

EXAMPLES = (
    ("accelctl explain", "everything that can be explained"),
    ("accelctl explain HANG-READ", "one finding"),
    ("accelctl explain asleep", "why a value is missing"),
)


def explain(
    identity: Annotated[
        str | None, typer.Argument(help="a finding's id, or a reason for a missing value", metavar="ID")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Explain a finding of `accelctl probe`, or the reason why a value is missing.

    Without an ID it lists all of them. Upper and lower case are the same.
    """
    from accelctl.accept import pages
    from accelctl.render import document
    from accelctl.render import explain as view

    out = term.current()
    if identity is None:
        entries = pages.entries()
        if as_json:
            rows = [{"id": one.id, "title": one.title, "group": one.group} for one in entries]
            term.emit(document.dumps(document.headed("accelctl.explain/1", entries=rows)))
        else:
            term.emit(view.list_text(entries, out))
        return
    text = pages.page(identity)
    if as_json:
        term.emit(document.dumps(document.headed("accelctl.explain/1", id=identity, markdown=text)))
    else:
        term.emit(view.page_text(text, out))
