"""``accelctl merge``: reports of many nodes, folded: equal nodes are one group, the others differ from the largest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from accelctl.accept.fleetread import Read, Reader, Rules, below, members
from accelctl.accept.fleetslow import SLACK, Figure, Slow, slow
from accelctl.accept.nodeset import expand, natural
from accelctl.errors import UsageError
from accelctl.exits import ExitCode
from accelctl.model.finding import LEVELS, rank

UNKNOWN = "unknown"
"""The level of a report that decides nothing: nothing ran, or it was stopped."""

CHANGED, MISSING, EXTRA = "changed", "missing", "extra"
_GOOD = ("pass", "accepted", "measured", "ok", "same", "faster", "equal", "match")
_BAD = ("fail", "reject", "differ", "slower", "broken", "refused", "leak", "not accepted")


class Difference(NamedTuple):
    """One place: what the largest group has there, and what this one; ``state``: changed, missing (only the largest
    has it) or extra."""

    pointer: str
    state: str
    expected: Any = None
    found: Any = None


class Group(NamedTuple):
    """Nodes whose reports are equal in what counts. ``level`` is their worst, ``words`` what they report in a line."""

    schema: str
    nodes: tuple[str, ...]
    level: str
    words: str
    differences: tuple[Difference, ...] = ()
    simulated: bool = False


class Fleet(NamedTuple):
    """``groups`` by schema, the largest of each first; ``bad``: what is no report; ``absent``: who sent nothing."""

    groups: tuple[Group, ...]
    bad: tuple[Read, ...] = ()
    absent: tuple[str, ...] = ()
    slow: tuple[Slow, ...] = ()

    @property
    def odd(self) -> tuple[Group, ...]:
        """Every group but the largest of its schema."""
        return tuple(one for one in self.groups if one.differences)

    @property
    def nodes(self) -> int:
        """Nodes with a report."""
        return len({node for group in self.groups for node in group.nodes})

    @property
    def equal(self) -> bool:
        """Do all nodes that were asked about report the same?"""
        return not self.odd and not self.bad and not self.absent and not self.slow

    @property
    def exit_code(self) -> int:
        """2 for what is no report, 1 for odd ones, 0 where all are equal."""
        if self.bad or not self.groups:
            return int(ExitCode.USAGE)
        return int(ExitCode.OK if self.equal else ExitCode.FINDINGS)

    @property
    def level(self) -> str:
        """The worst that a report says; an odd one out is a warning in itself."""
        levels = [one.level for one in self.groups] or [UNKNOWN]
        levels += [UNKNOWN] if self.bad else []
        levels += ["warn"] if self.odd or self.absent or self.slow else []
        return max(levels, key=badness)


def badness(level: str) -> float:
    """Position of a level in the order of badness; what decides nothing is worse than a remark."""
    return 1.5 if level == UNKNOWN else rank(level)


def merge(places: Sequence[str], rules: Rules, nodes: str = "", slack: float = SLACK) -> Fleet:
    """Read and fold. ``nodes`` is the set that should have reported; empty: nobody says. ``slack``: percent that a
    figure of bench may be worse than the fleet's median. UsageError."""
    if not 0 <= slack <= 100:
        raise UsageError(f"--slack {slack:g} is no share: 0 to 100 percent")
    wanted = expand(nodes) if nodes else []
    found: dict[tuple[str, bytes], tuple[Read, list[str]]] = {}
    first: dict[tuple[str, str], str] = {}
    measured: list[tuple[str, tuple[Figure, ...]]] = []
    bad: list[Read] = []
    for one in Reader(rules).all(places):
        if one.reason:
            bad.append(one)
        elif (one.schema, one.node) in first:
            bad.append(one._replace(reason=f"a second report of {one.node}, after {first[one.schema, one.node]}"))
        else:
            first[one.schema, one.node] = one.where
            found.setdefault((one.schema, one.digest), (one, []))[1].append(one.node)
            measured += [(one.node, one.figures)] if one.figures else []
    known = {node for _, node in first} | {one.node for one in bad}
    absent = [node for node in wanted if node not in known]
    return Fleet(tuple(_grouped(found.values())), tuple(bad), tuple(absent), slow(measured, slack))


def _grouped(found: Iterable[tuple[Read, list[str]]]) -> Iterator[Group]:
    """Schemas by name; of each, the largest group and what the others have otherwise."""
    by_schema: dict[str, list[tuple[Read, list[str]]]] = {}
    for one, nodes in found:
        by_schema.setdefault(one.schema, []).append((one, sorted(nodes, key=natural)))
    for schema in sorted(by_schema):
        own = sorted(by_schema[schema], key=lambda pair: (-len(pair[1]), natural(pair[1][0])))
        base = own[0][0].body
        for one, nodes in own:
            level, words = judged(one.whole)
            differs = () if one.body is base else tuple(differences(base, one.body)) or (_SAME,)
            yield Group(schema, tuple(nodes), level, words, differs, one.whole.get("simulated") is True)


_SAME = Difference("", CHANGED, "these facts", "the same facts in another order")


def differences(base: Any, other: Any, pointer: str = "") -> Iterator[Difference]:
    """Where two documents differ: the highest places at which one of them has nothing, and values."""
    if isinstance(base, list) and isinstance(other, list) and any(isinstance(one, dict) for one in (*base, *other)):
        base, other = members(base), members(other)
    if isinstance(base, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*base, *other)):
            place = below(pointer, key)
            if key not in other:
                yield Difference(place, MISSING, base[key])
            elif key not in base:
                yield Difference(place, EXTRA, None, other[key])
            else:
                yield from differences(base[key], other[key], place)
    elif base != other or isinstance(base, bool) != isinstance(other, bool):
        yield Difference(pointer, CHANGED, base, other)


# -- what a report says ------------------------------------------------------------------------------------------------


def judged(whole: dict[str, Any]) -> tuple[str, str]:
    """(level, words) of any report: its verdict, and the worst of its findings."""
    given = whole.get("findings")
    findings = [one for one in given if _is_finding(one)] if isinstance(given, list) else []
    worst = max(findings, key=lambda one: rank(one["level"]), default=None)
    verdict = next((whole[key] for key in ("verdict", "result") if isinstance(whole.get(key), str)), "")
    levels = [_level(verdict)] if verdict else []
    levels += [worst["level"]] if worst is not None else []
    level = max(levels, key=badness, default="ok")
    words = [one for one in (verdict, _tally(whole), _said(worst) if worst is not None else "") if one]
    return level, "; ".join(words) or "nothing found"


def _is_finding(one: Any) -> bool:
    return isinstance(one, dict) and one.get("level") in LEVELS


def _level(verdict: str) -> str:
    """Words of verdicts begin with how they end."""
    plain = verdict.lower()
    if plain.startswith("not accepted: incomplete"):
        return UNKNOWN
    if plain.startswith(_BAD):
        return "error"
    return "ok" if plain.startswith(_GOOD) else UNKNOWN


def _tally(whole: dict[str, Any]) -> str:
    """Of a report of probe: how many accelerators there are, and how they fare."""
    summary = whole.get("summary")
    count = summary.get("accelerators") if isinstance(summary, dict) else None
    if not isinstance(count, int):
        return ""
    health = summary.get("health") if isinstance(summary, dict) else None
    parts = [f"{number} {level}" for level, number in health.items() if number] if isinstance(health, dict) else []
    return f"{count} accelerator{'' if count == 1 else 's'}" + (f" ({', '.join(parts)})" if parts else "")


def _said(finding: dict[str, Any]) -> str:
    return " ".join(str(finding[key]) for key in ("id", "device", "title") if finding.get(key))
