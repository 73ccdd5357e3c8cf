"""`accelctl explain [ID]`: what a finding or an error code means, how it was seen, and what to do about it."""

from typing import Annotated

import typer

EXAMPLES = (
    ("accelctl explain", "everything that can be explained"),
    ("accelctl explain HANG-READ", "one finding"),
    ("accelctl explain asleep", "why a value is missing"),
    ("accelctl explain cuda:700", "an error code; also hip: acl: nvml: nv: xid: cl: ze: ..."),
    ("accelctl explain errno ENOSPC", "by name; without a stack, every stack that has it"),
    ("accelctl explain 705", "a bare number: it means different things in different stacks"),
    ("accelctl explain acl:507015 --log plog.txt", "a coarse code, with the log that tells more"),
    ("accelctl explain out_of_memory", "a kind of error, and the codes of that kind"),
)


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="a finding's id, a reason, an error code (STACK:CODE) or its name", metavar="ID"),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option("--log", help="a log that may say more than the code; - is standard input", metavar="FILE|-"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Explain a finding of `accelctl probe`, the reason why a value is missing, or an error code of any stack.

    Without an ID it lists all of them. Upper and lower case are the same. Before a negative number stands `--`.
    """
    from accelctl.accept import codes
    from accelctl.render import codes as code_view
    from accelctl.render import explain as view
    from accelctl.render import term
    from accelctl.render.document import dumps

    out = term.current()
    if not words:
        entries = codes.listed()
        term.emit(dumps(view.list_document(entries)) if as_json else view.list_text(entries, out))
        return
    found = codes.look(" ".join(words), log)
    if isinstance(found, str):
        term.emit(dumps(view.page_document(" ".join(words), found)) if as_json else view.page_text(found, out))
    else:
        term.emit(dumps(code_view.document(found)) if as_json else code_view.text(found, out))
