"""Made-up reports of `accelctl bench`: figures with noise as busy machines have it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from accelctl.accept.bench.statistics import spread
from accelctl.model.benchreport import SECONDS, BenchReport, Figure, Fingerprint

PLACE = Fingerprint(
    device="sim:0",
    title="simulated accelerator",
    driver="sim",
    simulated=True,
    cpu="some CPU",
    cpus=2,
    versions={"accelctl": "1.0", "kernel": "6.12"},
)


def figure(
    name: str,
    samples: Sequence[float],
    floor: Sequence[float] = (),
    *,
    part: str = "ops",
    unit: str = SECONDS,
    floor_name: str = "loop",
) -> Figure:
    """With spreads that belong to its samples."""
    return Figure(
        part=part,
        name=name,
        unit=unit,
        samples=tuple(samples),
        spread=spread(samples),
        floor=tuple(floor),
        floor_name=floor_name if floor else "",
        floor_spread=spread(floor) if floor else None,
        ratio=spread([a / b for a, b in zip(samples, floor, strict=True)]) if floor else None,
    )


def report(*figures: Figure, place: Fingerprint = PLACE, seconds: float = 20.0) -> BenchReport:
    """Of one run."""
    rounds = max((len(one.samples) for one in figures), default=0)
    return BenchReport(
        fingerprint=place,
        chip="sim",
        proven="nowhere",
        command="accelctl bench",
        seconds=seconds,
        rounds=rounds,
        figures=figures,
    )


def noisy(
    rng: random.Random, figures: int, rounds: int, *, sigma: float = 0.03, between: float = 0.01, slow: float = 1.0
) -> BenchReport:
    """A run as this happens: the machine's pace wanders from round to round and is the same for a figure and its floor;
    each sample has noise of its own, and one in twenty a pause; each run has its own luck with each figure
    (``between``). The first figure takes ``slow`` times as long."""
    pace, paces = rng.gauss(0, 0.15), []
    for _ in range(rounds):
        pace = 0.7 * pace + rng.gauss(0, 0.1)
        paces.append(2.718281828**pace)
    made = []
    for number in range(figures):
        luck = rng.lognormvariate(0, between) * (slow if number == 0 else 1.0)
        samples = [luck * one * _sample(rng, sigma) for one in paces]
        floor = [one * _sample(rng, sigma) for one in paces]
        made.append(figure(f"op {number}", samples, floor))
    return report(*made)


def _sample(rng: random.Random, sigma: float) -> float:
    return rng.lognormvariate(0, sigma) * (1 + rng.expovariate(2) if rng.random() < 0.05 else 1.0)
