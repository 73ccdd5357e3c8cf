"""What killed programs leave in shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accelctl.abi.rules import RuleContext, rule
from accelctl.hal.shm import Leftover, leftovers
from accelctl.model.finding import Evidence, Finding
from accelctl.probes.rules._common import in_container, size_words

_SHOWN = 5
_MUCH = 4
"""Where leftovers hold this part of /dev/shm, or more, the next job may not start."""


@rule("SHM-LEFTOVER")
def left_behind(ctx: RuleContext) -> Iterator[Finding]:
    """Not in a container: its /dev/shm may be the host's, whose processes cannot be seen from there."""
    if in_container(ctx):
        return
    found = leftovers(ctx.root)
    if found:
        yield told(found, ctx.report.value("shm/size_bytes"))


def told(found: Sequence[Leftover], whole: object) -> Finding:
    """All of them in one finding. ``whole``: bytes of the file system, where known."""
    total = sum(file.size_bytes for file in found)
    much = isinstance(whole, int) and total * _MUCH >= whole > 0
    files = "1 file that no process uses" if len(found) == 1 else f"{len(found)} files that no process uses"
    title = f"{files} hold{'s' if len(found) == 1 else ''} {size_words(total)} of /dev/shm, left by killed programs"
    shown = tuple(Evidence(file.path[1:], _words(file)) for file in found[:_SHOWN])
    first = found[0].path
    fix = (
        f"fuser -v {first}  # says nothing when nobody has it open",
        f"rm -r {first}  # as its owner; accelctl deletes nothing",
    )
    sure = all(file.sure and file.pid for file in found)
    return Finding(
        "SHM-LEFTOVER", "warn" if much else "info", title, None, shown, fix, "likely" if sure else "possible"
    )


def _words(file: Leftover) -> str:
    why = f"process {file.pid}, which made it, has ended" if file.pid else "no process has it mapped"
    return f"{size_words(file.size_bytes)} of user {file.uid}; {why}"
