"""Which special kernel takes a call: one that is proven on this device as it is now, and all of whose conditions hold.

A special kernel is faster for some calls and wrong or slower for others. It is only taken with a record
(abi.capability) of this very kernel, device and toolchain, with evidence up to a rung; everything else goes to the
general kernel behind it, and is counted by the condition that failed. What can be known before any call (no record,
stale, switched off, too little evidence) is worked out once, and what was decided for a call is kept with its
translation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import NamedTuple

from accelctl.abi.call import Call
from accelctl.abi.capability import RUNGS, Capability
from accelctl.abi.compute import Found
from accelctl.abi.condition import ALWAYS, Check, Conditions
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
    was. ``said``: all of these hold where it is taken. ``never``: why it is not, whatever the call."""

    __slots__ = ("_checks", "counted", "said", "template")

    def __init__(self, template: Template, said: Sequence[Conditions] = (), never: str = "") -> None:
        self.template, self.said = template, said
        self.counted: dict[str, int] = {}
        self._checks = (lambda call: never,) if never else tuple(_asked(template, said))

    def failed(self, call: Call) -> str:
        """Why it does not take this call; empty: it does."""
        for check in self._checks:
            words = check(call)
            if words:
                return words
        return ""


def _asked(template: Template, said: Sequence[Conditions]) -> Iterator[Check]:
    """Conditions first, then the kernel and its own table, of which is left out what the conditions say already."""
    for one in said:
        yield from one.checks
    typed = any(one.dtypes and one.dtypes <= template.dtypes for one in said)
    dense = template.strided or any(one.dense for one in said)
    refuses = template.refuses if typed and dense else partial(refused_by, template)
    if refuses is not None:
        yield lambda call: REFUSES if refuses(call) else ""


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
        self._by_op: dict[str, tuple[Rule, tuple[Rule, ...]]] = {}
        """The first one of an op, and the others."""
        for op in {rule.template.op for rule in self.rules}:
            first, *others = (rule for rule in self.rules if rule.template.op == op)
            self._by_op[op] = first, tuple(others)
        self._lock = Lock()

    def judge(self, call: Call) -> Verdicts:
        """What each special kernel says to a call, up to the first that takes it; nothing is counted yet."""
        found = self._by_op.get(call.op.name)
        if found is None:
            return NONE
        rule, others = found
        verdicts: Verdicts = ((rule, rule.failed(call)),)
        for rule in others:
            if not verdicts[-1][1]:
                break
            verdicts = (*verdicts, (rule, rule.failed(call)))
        return verdicts

    def why_not(self, template: Template, call: Call) -> str:
        """Why a kernel may not run a call that somebody wants it for; empty: it may, or it is a general one."""
        if not template.fallback:
            return ""
        rule = next((one for one in self.rules if one.template.kernel_id == template.kernel_id), None)
        return NO_RECORD if rule is None else rule.failed(call)

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


def refused_by(template: Template, call: Call) -> str:
    """Why a kernel cannot take a call; empty: it can."""
    first = call.inputs[0]
    if first is not None and first.dtype.name not in template.dtypes:
        return f"it does not take {first.dtype.name}"
    if not template.strided and not all(one.dense for one in call.tensors):
        return "it takes dense operands only"
    return template.refuses(call) if template.refuses is not None else ""


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
    own, offers = template.conditions or ALWAYS, offers_of(found)
    lacking = own.lacking(offers)
    if off or lacking:
        return Rule(template, (), OFF if off else lacking)
    if not RUNGS[rung]:
        return Rule(template, (own,))
    mine = [one for one in known if (one.kernel, one.op) == (template.name, template.op)]
    now = platform_of(found, template)
    fresh = next((one for one in mine if not one.stale(now)), None)
    if fresh is None:
        return Rule(template, (), f"stale: {mine[0].stale(now)}" if mine else NO_RECORD)
    if not fresh.proves(RUNGS[rung]):
        return Rule(template, (), f"evidence only up to: {fresh.reached or 'nothing'}")
    said = fresh.preconditions
    return Rule(template, (said,) if said == own else (said, own), said.lacking(offers))
