"""The pages of ``accelctl explain``: Markdown files beside the rules that give the ids, found without importing any.

A page begins with ``# ID: title``; its sections are ``## What it means``, ``## How it was seen``, ``## What to do``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from accelctl.abi.rooms import BACKENDS
from accelctl.errors import ABSENCES as KINDS_OF_ABSENCE
from accelctl.errors import KINDS, UsageError
from accelctl.model.reading import ABSENCES

PAGES = Path(__file__).resolve().parent.parent / "data" / "explain"
_ABSENCES = "why a value is missing"
SECTIONS = ("What it means", "How it was seen", "What to do")


class Entry(NamedTuple):
    """One id: what it is about in a line, and where its page lies (None for reasons of absence, which are a table)."""

    id: str
    title: str
    group: str
    path: Path | None = None


def entries() -> list[Entry]:
    """Every id that can be explained, by group and name."""
    found = [_entry(path, group) for path, group in _files()]
    found += [Entry(kind, meaning, _ABSENCES) for kind, meaning in ABSENCES.items()]
    return found


def ids() -> list[str]:
    """The ids of all of them; opens none."""
    return [path.stem for path, _ in _files()] + list(ABSENCES)


def _files() -> Iterator[tuple[Path, str]]:
    for path in sorted(PAGES.glob("*.md")):
        yield path, "findings"
    for folder in sorted(BACKENDS.iterdir()):
        for path in sorted((folder / "explain").glob("*.md")):
            yield path, f"findings of {folder.name}"


def _entry(path: Path, group: str) -> Entry:
    with path.open(encoding="utf-8") as page:
        head = page.readline().strip()
    return Entry(path.stem, head.partition(":")[2].strip() or head.lstrip("# "), group, path)


def find(identity: str) -> Entry | None:
    """The entry of an id; case does not count. Opens its page and no other."""
    wanted = identity.strip().lower()
    kind = wanted.replace(" ", "_")
    if kind in ABSENCES:
        return Entry(kind, ABSENCES[kind], _ABSENCES)
    for path, group in _files():
        if path.stem.lower() == wanted:
            return _entry(path, group)
    return None


def page(identity: str) -> str:
    """The page of an id as Markdown; UsageError with the nearest ids where there is none."""
    entry = find(identity)
    if entry is not None:
        return text_of(entry)
    raise nothing(identity, identity, {one.lower(): one for one in ids()})


def nothing(text: str, wanted: str, known: Mapping[str, str]) -> UsageError:
    """There is nothing under ``text``; names the nearest of what is known (in lower case -> as it is written)."""
    word = wanted.strip().lower()[:80]
    begun = [name for name in known if len(word) > 3 and name.startswith(word)]
    near = [known[name] for name in begun[:3] or get_close_matches(word, known, 3, 0.65)]
    words = f" (did you mean {' or '.join(near)}?)" if near else ""
    return UsageError(f"nothing to explain under {text.strip()[:60]!r}{words}", "accelctl explain")


def text_of(entry: Entry) -> str:
    """The page of an entry as Markdown."""
    return entry.path.read_text(encoding="utf-8") if entry.path is not None else _absence(entry)


def _absence(entry: Entry) -> str:
    """A page made of the tables: what the reason means, which kind of error it is, and what gets the value."""
    kind = KINDS_OF_ABSENCE.get(entry.id)
    lines = [f"# {entry.id}: {entry.title}", "", "## What it means", "", f"There is no value because {entry.title}."]
    if kind is not None:
        lines += ["", f"As an error it is of the kind `{kind[0]}`: {KINDS[kind[0]].meaning}."]
    lines += ["", "## How it was seen", "", "`accelctl probe --why DEVICE.FIELD` shows the file that was asked,"]
    lines += ["what the kernel answered, and what would help for this very value.", ""]
    return "\n".join([*lines, "## What to do", "", ADVICE[entry.id]]) + "\n"


ADVICE = {
    "no_node": "Load the driver (`sudo modprobe DRIVER`) and let udev make the node; in a container, pass the node in.",
    "no_driver": "See what the device needs: `accelctl probe` names the driver and what to install.",
    "no_permission": "Join the group or use the capability that `--why` names, or: `sudo $(command -v accelctl) probe`",
    "hidden_by_container": "Start the container with the device passed in (`--device`, CDI, the vendor's runtime).",
    "asleep": "Nothing is wrong. `accelctl probe --allow-wake` wakes the device and reads it.",
    "costly": "`accelctl probe --allow-wake` reads it anyway; it takes up to a second for each such file.",
    "kernel_too_old": "A newer kernel, or the vendor's own driver package, offers it.",
    "not_offered": "Nothing: this driver does not have it. The vendor's own tool may ask another way.",
    "not_captured": "Look at the machine itself, or take a new capture there: `accelctl capture`",
    "empty": "Nothing: the driver has the file but no value for this device (often a firmware or board that lacks it).",
    "timed_out": "The driver hangs: see `accelctl explain HANG-READ`.",
    "unreadable": "Read errno in `--why` and the kernel log: `sudo dmesg | tail`",
    "malformed": "The text is not in the format that the kernel's documentation gives; report it with `--why` output.",
    "not_applicable": "Nothing: it has no meaning for this kind of device.",
    "not_allowed": "Nothing: reading it could act on the device, so accelctl never does.",
}
"""Reason -> what gets the value, or why nothing will."""
