"""How often a noisy counter alone finds a leak, or calls a clean run one: `python -m tests.perf.noise LEAKY CLEAN`.

The simulated chip, ledger off, every exact book off: only `vram_used`, with AR(1) noise, steps, a sawtooth and a
neighbour that grows, 20,000 cycles. 1 object in 1,000 is lost in the leaky runs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

from accelctl.stress import run, targets
from accelctl.stress.plan import MIB, Plan
from accelctl.stress.run import Options

NOISE = "ar1:32768,0.5+steps:1048576,70000+sawtooth:1048576,3000"
"""Bytes: sigma of eight objects of a page, correlated by half from one reading to the next; steps and a sawtooth of
256 objects."""
FOREIGN = "20000"
"""Bytes per 1,000 ticks that somebody else adds: some forty times the leak."""
LEAK = "object:1000"


def verdict_of(seed: int, *, leak: str = "", foreign: str = FOREIGN, noise: str = NOISE) -> str:
    """The word for one run."""
    options = {"seed": str(seed), "books": "noisy", "noise": noise}
    options |= {"foreign": foreign} if foreign else {}
    options |= {"leak": leak} if leak else {}
    plan = Plan(seed=seed, cycles=20_000, hold=1, partial=0, sizes="page", touch="none", bytes_limit=MIB)
    told = Options(lifecycles=("vram",), ledger=False, books="none", sim=options, forked=False)
    outcome = next(o for o in run.run(targets.simulated(), plan, told).outcomes if o.lifecycle == "vram")
    assert outcome.verdict is not None
    return outcome.verdict.overall


def count(seeds: range, judge: Callable[[int], str]) -> Counter[str]:
    """Words of many runs."""
    return Counter(judge(seed) for seed in seeds)


def main(words: list[str]) -> None:
    """Print the three counts."""
    leaky, clean = (int(word) for word in words or ("100", "200"))
    print("1 leak in 1,000 cycles:", dict(count(range(leaky), lambda seed: verdict_of(seed, leak=LEAK))), flush=True)
    print("clean, with noise:     ", dict(count(range(clean), lambda seed: verdict_of(seed, foreign=""))), flush=True)
    fast = lambda seed: verdict_of(seed, foreign="200000")  # noqa: E731
    print("foreign growth alone:  ", dict(count(range(clean // 4), fast)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
