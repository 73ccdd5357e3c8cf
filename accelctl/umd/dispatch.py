"""Which special kernel takes a call: one that is proven on this device as it is now, and all of whose conditions hold.

A special kernel is faster for some calls and wrong or slower for others. It is only taken with a record
(abi.capability) of this very kernel, device and toolchain, with evidence up to a rung; everything else goes to the
general kernel behind it, and is counted by the condition that failed. What can be known before any call (no record,
stale, switched off, too little evidence) is worked out once, and what was decided for a call is kept with its
translation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from threading import Lock
from typing import NamedTuple

from accelctl.abi.call import Call
from accelctl.abi.capability import RUNGS, Capability
from accelctl.abi.compute import Found
from accelctl.abi.condition import ALWAYS, Check
from accelctl.abi.ops import Template
from accelctl.abi.platforms import offers_of, platform_of, templates_of
from accelctl.errors import UsageError

HIT, FALLBACK = "hit", "fallback"
DEFAULT_RUNG = "service"
"""Of abi.capability.RUNGS."""
OFF, NO_RECORD = "switched off", "no record"
REFUSES = "the kernel refuses the call"
"""Reasons that are no condition."""


class Rule:
    """A special kernel, when it is taken, and how often that was so: reason -> translations, the empty one where it
    was. ``never``: why it is not taken whatever the call; empty: the checks say it."""

    __slots__ = ("checks", "counted", "never", "template")

    def __init__(self, template: Template, checks: tuple[Check, ...], never: str = "") -> None:
        self.template, self.checks, self.never = template, checks, never
        self.counted: dict[str, int] = {}

    def failed(self, call: Call) -> str:
        """Why it does not take this call, where it takes any; empty: it does."""
        for check in self.checks:
            words = check(call)
            if words:
                return words
        refuses = self.template.refuses
        return REFUSES if refuses is not None and refuses(call) else ""


class Count(NamedTuple):
    """How many translations a kernel made, or left to its fallback, and for which reason."""

    kernel: str
    result: str
    reason: str
    translations: int


Verdicts = Sequence[tuple[Rule, str]]
"""Special kernels that were looked at for a call, and why not; the last one has no reason where it takes it."""
NONE: Verdicts = ()


class Dispatch:
    """Of one device. Calls may come from any thread."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = tuple(rules)
        self._by_op: dict[str, list[Rule]] = {}
        for rule in self.rules:
            self._by_op.setdefault(rule.template.op, []).append(rule)
        self._lock = Lock()

    def judge(self, call: Call) -> Verdicts:
        """What each special kernel says to a call, up to the first that takes it; nothing is counted yet."""
        rules = self._by_op.get(call.op.name)
        if rules is None:
            return NONE
        rule = rules[0]
        verdicts: Verdicts = ((rule, rule.never or rule.failed(call)),)
        for rule in rules[1:] if len(rules) > 1 else ():
            if not verdicts[-1][1]:
                break
            verdicts = (*verdicts, (rule, rule.never or rule.failed(call)))
        return verdicts

    def count(self, verdicts: Verdicts) -> None:
        """The call that was judged is translated so."""
        with self._lock:
            for rule, reason in verdicts:
                counted = rule.counted
                counted[reason] = counted.get(reason, 0) + 1

    def counts(self) -> list[Count]:
        """All so far, by kernel, hits first."""
        with self._lock:
            found = sorted((rule.template.name, *item) for rule in self.rules for item in rule.counted.items())
        return [Count(kernel, FALLBACK if reason else HIT, reason, count) for kernel, reason, count in found]


def taken(verdicts: Verdicts) -> Template | None:
    """The special kernel that takes the call."""
    return verdicts[-1][0].template if verdicts and not verdicts[-1][1] else None


def dispatch_of(
    found: Found, records: Iterable[Capability], *, rung: str = DEFAULT_RUNG, off: Collection[str] = ()
) -> Dispatch:
    """For a device that is here. ``rung``: the least evidence (a key of RUNGS); ``none`` asks for no record at all, to
    gather evidence. ``off``: kernels that are not used. UsageError for a name that the chip does not have."""
    if rung not in RUNGS:
        raise UsageError(f"evidence {rung!r}: it is one of {', '.join(RUNGS)}")
    templates = templates_of(found)
    special = {name: one for name, one in templates.items() if one.fallback}
    for name in off:
        if name not in special:
            there = ", ".join(special) or "none"
            why = "a general kernel, and nothing stands behind it" if name in templates else "no kernel of this chip"
            raise UsageError(f"kernel {name!r} cannot be switched off: it is {why} (special kernels: {there})")
    if not special:
        return Dispatch()
    known = [one for one in records if one.platform.device == found.device.target.id]
    return Dispatch(_rule(found, one, known, rung, one.name in off) for one in special.values())


def _rule(found: Found, template: Template, known: Sequence[Capability], rung: str, off: bool) -> Rule:
    own = template.conditions or ALWAYS
    lacking = own.lacking(offers_of(found))
    if off or lacking:
        return Rule(template, (), OFF if off else lacking)
    if not RUNGS[rung]:
        return Rule(template, own.checks)
    mine = [one for one in known if (one.kernel, one.op) == (template.name, template.op)]
    now = platform_of(found, template)
    fresh = next((one for one in mine if not one.stale(now)), None)
    if fresh is None:
        return Rule(template, (), f"stale: {mine[0].stale(now)}" if mine else NO_RECORD)
    if not fresh.proves(RUNGS[rung]):
        return Rule(template, (), f"evidence only up to: {fresh.reached or 'nothing'}")
    said = fresh.preconditions
    return Rule(template, said.checks if said == own else (*said.checks, *own.checks))
