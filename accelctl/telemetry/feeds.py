"""Which feed answers to the options of `top` and `export`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accelctl.errors import UsageError
from accelctl.telemetry.cost import BUDGET, PERIOD_S
from accelctl.telemetry.feed import Feed

LEAST_PERIOD_S, MOST_PERIOD_S = 0.1, 3600.0


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What was asked for. Without any of the first three: the devices of this machine."""

    replay: str = ""
    """A recording."""
    demo: bool = False
    service: tuple[str, ...] = ()
    """Addresses of services, beside the machine's devices."""
    device: tuple[str, ...] = ()
    """Filters of ``--device``, for the machine's devices."""
    root: str = "/"
    period_s: float = PERIOD_S
    budget: float = BUDGET
    speed: float = 1.0
    """Of a recording."""


def open_feed(wish: Wish) -> Feed:
    """The feed; the caller closes it. UsageError for what does not go together, NoDeviceError for a demonstration
    without the packages that it needs. Fork before threads: call it before a screen is started."""
    if not LEAST_PERIOD_S <= wish.period_s <= MOST_PERIOD_S:
        raise UsageError(f"--period {wish.period_s:g}: {LEAST_PERIOD_S:g} to {MOST_PERIOD_S:g} seconds are possible")
    if not 0 <= wish.budget <= 1:
        raise UsageError(f"--budget {wish.budget:g}: a share of one core, 0 (no limit) to 1")
    given = [name for name, one in (("--replay", wish.replay), ("--demo", wish.demo)) if one]
    if len(given) > 1 or (given and wish.service):
        raise UsageError(f"{' and '.join([*given, *(['--service'] if wish.service else [])])} do not go together")
    if given and wish.device:
        raise UsageError(f"{given[0]} and --device do not go together: --device chooses devices of this machine")
    if wish.replay:
        from accelctl.telemetry.replay import ReplayFeed

        return ReplayFeed(wish.replay, speed=wish.speed)
    if wish.demo:
        from accelctl.telemetry.demo import DemoFeed

        return DemoFeed(period_s=wish.period_s, budget=wish.budget)
    return _machine(wish)


def _machine(wish: Wish) -> Feed:
    from accelctl.probes.filters import parse_filters
    from accelctl.telemetry.live import LiveFeed

    wanted = parse_filters(list(wish.device))
    made: list[Feed] = [LiveFeed(wish.root, wanted, period_s=wish.period_s, budget=wish.budget)]
    return _with_services(made, wish)


def _with_services(made: list[Feed], wish: Wish) -> Feed:
    if not wish.service:
        return made[0]
    from accelctl.telemetry.merge import MergedFeed
    from accelctl.telemetry.service import ServiceFeed, labels

    try:
        addresses = _addresses(wish.service)
        for address, label in zip(addresses, labels(addresses), strict=True):
            made.append(ServiceFeed(address, label=label, period_s=wish.period_s, budget=wish.budget))
    except BaseException:
        for feed in made:
            feed.close()
        raise
    return MergedFeed(made)


def _addresses(given: Sequence[str]) -> list[str]:
    """Each once, as a client is told them. UsageError for what is no address."""
    found = []
    for text in given:
        address = f"unix:{text}" if text.startswith("/") else text
        if not (address.startswith("unix:/") or address.rpartition(":")[2].isdecimal()):
            raise UsageError(f"--service {text}: an address is unix:/path, 127.0.0.1:port or [::1]:port")
        found.append(address)
    return list(dict.fromkeys(found))
