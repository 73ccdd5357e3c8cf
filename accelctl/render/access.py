"""What this process may do with a device node, in words."""

from __future__ import annotations

from typing import Any, NamedTuple

from accelctl.model.reading import Reading
from accelctl.render.layout import Span, clean
from accelctl.render.reasons import reason


def node_names(facts: dict[str, Reading]) -> list[str]:
    """Names below /dev of the nodes among facts ``nodes/NAME/path``."""
    return [key[6:-5] for key in facts if key.startswith("nodes/") and key.endswith("/path")]


class Access(NamedTuple):
    """What this process may do with a node: in words, in one word, and how bad that is."""

    words: str
    word: str
    style: str


def node_access(facts: dict[str, Reading], name: str) -> Access:
    """Read and write, or what is missing."""
    path = facts[f"nodes/{name}/path"]
    if not path.present:
        return Access(reason(path), reason(path), "dim")
    computed, kernel, needs = (_fact(facts, f"nodes/{name}/access/{key}") for key in ("computed", "kernel", "needs"))
    if computed is None and kernel is None:
        return Access("access not captured", "access not captured", "dim")
    if computed and kernel is False:
        return Access("denied, though its mode bits allow it", "denied", "error")
    if kernel or computed:
        return Access("rw", "rw", "ok")
    return Access(f"no access, needs {clean(needs)}" if needs else "no access", "no access", "warn")


def access_span(facts: dict[str, Reading], name: str) -> Span:
    """The same as a piece of a line."""
    access = node_access(facts, name)
    return Span(access.words, access.style)


def _fact(facts: dict[str, Reading], key: str) -> Any:
    reading = facts.get(key)
    return None if reading is None else reading.value
