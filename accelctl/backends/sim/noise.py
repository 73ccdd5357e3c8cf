"""What others do to a counter that the whole device shares: noise, steps, a sawtooth, growth.

All of it is a function of the seed and of the device clock, never of how often somebody looks: a run can be repeated,
and reading twice at one tick gives one value.
"""

from __future__ import annotations

import math
import random
from typing import Protocol

from accelctl.backends.sim.options import NoiseSpec, SimOptions


class Source(Protocol):
    """One kind of noise."""

    def at(self, tick: int) -> float:
        """Bytes at that tick, which never goes back."""


class Ar1:
    """Mean-reverting noise: standard deviation ``sigma``, correlation ``phi`` over ``step`` ticks.

    Sampled exactly at any distance, as the Ornstein-Uhlenbeck process that such an AR(1) is a sample of.
    """

    def __init__(self, rng: random.Random, sigma: float, phi: float, step: int) -> None:
        self._rng, self._sigma, self._phi, self._step = rng, sigma, phi, step
        self._value = sigma * rng.gauss(0.0, 1.0)
        self._last = 0

    def at(self, tick: int) -> float:
        """See Source."""
        passed = tick - self._last
        if passed:
            self._last = tick
            kept = self._phi ** (passed / self._step)
            self._value = kept * self._value + self._sigma * math.sqrt(1 - kept * kept) * self._rng.gauss(0.0, 1.0)
        return self._value


class Steps:
    """Jumps up or down that stay, at random times, one in ``every`` ticks on average, of a fifth of ``size`` to all of
    it. Never below ``floor``: nobody gives back more than he has."""

    def __init__(self, rng: random.Random, size: float, every: float, floor: float) -> None:
        self._rng, self._size, self._every, self._floor = rng, size, every, floor
        self._value = 0.0
        self._next = rng.expovariate(1 / every)

    def at(self, tick: int) -> float:
        """See Source."""
        while self._next <= tick:
            step = self._size * self._rng.uniform(0.2, 1.0)
            down = self._rng.random() < 0.5 and self._value - step >= self._floor
            self._value += -step if down else step
            self._next += self._rng.expovariate(1 / self._every)
        return self._value


class Sawtooth:
    """Rises to ``height`` in ``period`` ticks and falls back at once: a pool that fills and is emptied."""

    def __init__(self, rng: random.Random, height: float, period: float) -> None:
        self._height, self._period = height, period
        self._phase = rng.random()

    def at(self, tick: int) -> float:
        """See Source."""
        return self._height * ((tick / self._period + self._phase) % 1.0)


class Others:
    """Everything in the device-wide counter that is not ours."""

    def __init__(self, options: SimOptions) -> None:
        self._start, self._rate, self._steps = options.others, options.foreign, options.foreign_step
        self._moves = bool(self._rate or self._steps)
        self._noise = [self._source(options, number, spec) for number, spec in enumerate(options.noise)]

    @staticmethod
    def _source(options: SimOptions, number: int, spec: NoiseSpec) -> Source:
        rng = random.Random(f"{options.seed}/{number}/{spec.kind}")
        if spec.kind == "ar1":
            return Ar1(rng, spec.size, spec.other, options.noise_ticks)
        if spec.kind == "steps":
            return Steps(rng, spec.size, spec.other, -options.others / 2)
        return Sawtooth(rng, spec.size, spec.other)

    def taken(self, tick: int) -> int:
        """Bytes that others really have, and we cannot."""
        if not self._moves:
            return self._start
        steps = sum(size for size, at in self._steps if at <= tick)
        return max(0, self._start + int(self._rate * tick / 1000) + steps)

    def shown(self, tick: int) -> int:
        """Bytes by which the counter shows more than is ours."""
        return self.taken(tick) + round(sum(source.at(tick) for source in self._noise))
