"""Events as lines: aligned words for people, one JSON object a line for programs. Written and flushed one by one."""

from __future__ import annotations

import json
import sys

from accelctl.probes.events import Event
from accelctl.render import term

_COLORS = {"add": "32", "bind": "32", "online": "32", "remove": "33", "unbind": "33", "offline": "33"}
_LEVELS = {"info": "36", "warn": "33", "error": "31", "critical": "1;31"}


def _safe(text: str) -> str:
    """Names and log lines are someone else's text: no control characters to a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def line(event: Event, out: term.Term) -> str:
    """One event as text: time, action, device, subsystem, node or name, driver; a fault's words come last."""
    words = [event.time, out.style(f"{event.action:<7}", _COLORS.get(event.action, "0")), f"{event.device or '-':<12}"]
    if event.subsystem is not None:
        words += [f"{event.subsystem:<8}", event.node or (event.devpath or "").rpartition("/")[2]]
    if event.driver is not None:
        words.append(f"driver={event.driver}")
    words += [f"{key}={value}" for key, value in event.detail.items()]
    text = " ".join([*words[:2], *map(_safe, words[2:])]).rstrip()
    if event.fault is None:
        return text
    level = out.style(event.fault.level, _LEVELS.get(event.fault.level, "0"))
    said = "" if event.fault.line is None else f" [{event.fault.line}]"
    return f"{text} {level} {_safe(f'{event.fault.id}: {event.fault.title}{said}')}"


def emit(event: Event, *, as_json: bool) -> None:
    """Write one event and flush, so that a reader sees it now."""
    text = json.dumps(event.as_json(), ensure_ascii=False) if as_json else line(event, term.current())
    term.emit(text)
    sys.stdout.flush()
