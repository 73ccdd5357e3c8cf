"""``accelctl explain``: what a word means: a page, an error code of some stack, or a kind of error.

Names count before numbers, and a number without a stack is every stack's that has it: 705 is "peer access is not
enabled" in CUDA and "out of memory" on Kunlun.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from accelctl.abi.codes import STACKS, Code, find, mistakes, named, table
from accelctl.accept import pages
from accelctl.errors import KINDS, UsageError

MAX_LOG = 64 << 20
_NUMBER = re.compile(r"([+-]?)(?:0x([0-9a-f]{1,16})|([0-9]{1,20}))", re.I | re.A)
_OF_STACK = re.compile(r"([a-z][a-z0-9_]*)(?:\s*([:=])\s*|\s+)(\S.*)", re.I | re.A)
_SDMA = re.compile(r"sdma.{0,80}?(?:status|code)\D{0,3}(0x[0-9a-f]{1,8}|[0-9]{1,8})", re.I | re.A)
"""The DMA engine's own status in a line of plog, however it is put."""
_SHORTEST_PART = 4


class Mistake(NamedTuple):
    """What a program does wrong so that a code comes back; ``kind`` is that of the mistake, not of the code alone."""

    id: str
    kind: str
    text: str
    note: str


class Refined(NamedTuple):
    """What a log adds to a coarse code: the kind that it decides for, and the line; kind "" where it decides
    nothing."""

    kind: str
    line: str


class Answer(NamedTuple):
    """What was found: codes, or the name of a kind."""

    query: str
    codes: tuple[Code, ...]
    kind: str = ""
    refined: Refined | None = None

    @property
    def one_thing(self) -> bool:
        """Is one thing meant? Of CUDA both interfaces have the same numbers."""
        return len({STACKS[code.stack].prefix for code in self.codes}) == 1 and len({c.number for c in self.codes}) == 1


def look(text: str, log: str | None = None) -> str | Answer:
    """A page as Markdown, or what a code or kind means; UsageError with the nearest ones where there is nothing."""
    text = " ".join(text.split())
    entry = None if ":" in text or _NUMBER.fullmatch(text) else pages.find(text)
    if log is not None and entry is not None:
        raise UsageError("--log goes with an error code")
    if entry is not None:
        return pages.text_of(entry)
    found = answer(text)
    if log is None:
        return found
    if not any(table(code.stack).head.get("refine") for code in found.codes):
        raise UsageError(f"--log adds nothing to {text[:60]}: rules for logs are known of acl only")
    return found._replace(refined=refine(found.codes, _read(log)))


def listed() -> list[pages.Entry]:
    """Everything that can be explained: pages, reasons, kinds, and the stacks whose codes are known."""
    found = pages.entries()
    found += [pages.Entry(name, kind.meaning, "kinds of errors") for name, kind in KINDS.items()]
    titles: dict[str, list[str]] = {}
    for one in STACKS.values():
        titles.setdefault(one.prefix, []).append(one.title)
    return found + [pages.Entry(f"{word}:CODE", ", ".join(names), "error codes") for word, names in titles.items()]


def answer(text: str) -> Answer:
    """Codes or a kind. UsageError."""
    stacks, rest = _split(text)
    number = _NUMBER.fullmatch(rest)
    if number is not None:
        value = _value(number)
        if codes := [code for stack in stacks or STACKS if (code := find(stack, value))]:
            return Answer(text, tuple(codes))
        raise _no_number(rest, value, stacks)
    if codes := [code for stack in stacks or STACKS if (code := named(stack, rest))]:
        return Answer(text, tuple(codes))
    kind = rest.lower().replace(" ", "_").replace("-", "_")
    if not stacks and kind in KINDS:
        return Answer(text, (), kind)
    if codes := list(_ending(rest, stacks or tuple(STACKS))):
        return Answer(text, tuple(codes))
    raise _no_name(text, rest, stacks)


def _split(text: str) -> tuple[tuple[str, ...], str]:
    """The stacks that are named before a code, and the code; no stacks where none is named."""
    match = _OF_STACK.fullmatch(text)
    if match is None:
        return (), text
    word = match[1].lower()
    stacks = tuple(name for name, one in STACKS.items() if word in (name, one.prefix, *one.also))
    if stacks:
        own = tuple(name for name in stacks if word == name or word in STACKS[name].also)
        return own or stacks, match[3]
    if match[2] != ":":
        return (), text
    known = list(dict.fromkeys(one.prefix for one in STACKS.values()))
    near = get_close_matches(word, known, 1, 0.5)
    raise UsageError(
        f"no stack is called {match[1][:30]!r}" + (f" (did you mean {near[0]}?)" if near else ""),
        f"accelctl explain STACK:CODE, with one of {' '.join(known)}",
    )


def _value(match: re.Match[str]) -> int:
    value = int(match[2], 16) if match[2] else int(match[3])
    return -value if match[1] == "-" else value


def _ending(text: str, stacks: Iterable[str]) -> Iterator[Code]:
    """Codes whose name ends so: ILLEGAL_ADDRESS, DeviceLost."""
    wanted = _plain(text)
    if len(wanted) >= _SHORTEST_PART and re.fullmatch(r"\w+", text):
        for stack in stacks:
            yield from (code for code in table(stack).by_number.values() if _plain(code.name).endswith(wanted))


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


# -- nothing found -----------------------------------------------------------------------------------------------------


def _no_number(text: str, value: int, stacks: Sequence[str]) -> UsageError:
    """Names the range that a number lies in, and its neighbours."""
    places = [place for stack in stacks or STACKS if (place := _range(stack, value))]
    if not stacks:
        around = f"; {'; '.join(places[:3])}" if places else ""
        return UsageError(f"{text[:30]}: no stack has this number{around}", "accelctl explain STACK:NUMBER")
    codes = {code.number: code for stack in stacks for code in table(stack).by_number.values()}
    near = sorted(codes.values(), key=lambda code: (code.number != -value, abs(code.number - value)))[:2]
    words = " and ".join(f"{code.written} {code.name}" for code in near)
    where = f"{places[0]}; " if places else ""
    return UsageError(
        f"{STACKS[stacks[0]].prefix}:{text[:30]} is not in the table: {where}nearest: {words}",
        f"accelctl explain {near[0].address}",
    )


def _range(stack: str, value: int) -> str:
    value = abs(value) if STACKS[stack].negated else value
    for low, high, words in table(stack).head.get("ranges", ()):
        if low <= value <= high:
            first, last = (Code(stack, "", edge, "", "").written for edge in (low, high))
            return f"in {STACKS[stack].prefix}, {first} to {last} are about {words}"
    return ""


def _no_name(text: str, rest: str, stacks: Sequence[str]) -> UsageError:
    """Names the nearest names."""
    known = {name: code.name for stack in stacks or STACKS for name, code in table(stack).by_name.items()}
    if not stacks:
        known |= {one.lower(): one for one in (*KINDS, *pages.ids())}
    return pages.nothing(text, rest, known)


# -- more than the code says -------------------------------------------------------------------------------------------


def mistakes_of(code: Code) -> list[Mistake]:
    """Known mistakes that this code answers, of the code's own kind first."""
    found = [
        Mistake(identity, kind, text, note)
        for identity, kind, text, note, numbers in mistakes()
        if numbers.get(code.stack) == code.number
    ]
    return sorted(found, key=lambda one: one.kind != code.kind)


def may_be(code: Code) -> tuple[str, ...]:
    """Other kinds that this code may stand for, where the stack has no finer one."""
    kinds = [str(rule["kind"]) for rule in rules(code)] + [one.kind for one in mistakes_of(code)]
    return tuple(kind for kind in dict.fromkeys(kinds) if kind != code.kind)


def rules(code: Code) -> list[dict[str, object]]:
    """How a log tells what this code stands for."""
    return [rule for rule in table(code.stack).head.get("refine", ()) if code.number in rule["codes"]]


def refine(codes: Iterable[Code], log: str) -> Refined:
    """The first rule of these codes that a line of the log fits; only lines of errors count where a log has such."""
    lines = log.splitlines()
    lines = [line for line in lines if "[ERROR]" in line] or lines
    for code in codes:
        for rule in rules(code):
            for line in lines:
                if _fits(rule, line):
                    return Refined(str(rule["kind"]), line)
    return Refined("", "")


def _fits(rule: dict[str, object], line: str) -> bool:
    phrases, statuses = rule.get("if_log_has"), rule.get("if_sdma_status")
    if isinstance(phrases, list) and any(_says(line, phrase) for phrase in phrases):
        return True
    return isinstance(statuses, list) and any(int(one, 0) in statuses for one in _SDMA.findall(line))


def _says(line: str, phrase: str) -> bool:
    """Abbreviations as whole words, so that ECC is not found in a name."""
    if phrase.isupper():
        return re.search(rf"\b{re.escape(phrase)}\b", line) is not None
    return phrase in line.lower()


def _read(path: str) -> str:
    """A log, or standard input for "-"; what is not text in it does not matter."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_LOG + 1)
        else:
            with Path(path).open("rb") as source:
                data = source.read(MAX_LOG + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > MAX_LOG:
        raise UsageError(f"{path}: more than {MAX_LOG >> 20} MiB", "tail -n 100000 LOG | accelctl explain CODE --log -")
    return data.decode("utf-8", "replace")
