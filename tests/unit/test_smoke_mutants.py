"""One mistake at a time: the catalogue and the comparison together must notice each."""

from collections import Counter
from functools import cache, lru_cache
from importlib import import_module

import pytest

from accelctl.abi.opset import OPS
from accelctl.smoke.cases import Case, Trial, select
from accelctl.smoke.compare import judge
from tests.smokehost import execute
from tests.smokemutants import MUTANTS, Mutant, run

for other in ("norm", "attention"):
    import_module(f"tests.smokemutants{other}")  # where the others are noted

ORDER = sorted(MUTANTS, key=lambda one: (list(OPS).index(one.op), one.name))
"""By op: its trials are made once."""


@cache
def cases(op: str) -> tuple[Case, ...]:
    return tuple(case for case in select([op]) if "/refused-" not in case.id)


@lru_cache(maxsize=300)
def load(case: Case) -> Trial:
    """Most mistakes show early: what comes later is then never made."""
    return case.load()


def test_every_op_has_mutants() -> None:
    counts = Counter(one.op for one in MUTANTS)
    assert {op: counts[op] for op in OPS if counts[op] < 3} == {}
    assert len({(one.op, one.name) for one in MUTANTS}) == len(MUTANTS) > 90


@pytest.mark.parametrize("one", ORDER, ids=lambda one: f"{one.op}-{one.name}")
def test_smoke_notices(one: Mutant) -> None:
    """In one case at least, by a result that is judged wrong: an exception of the mutant does not count."""
    for trial in map(load, cases(one.op)):
        found = [result for result in judge(trial, run(one, trial)) if not result.passed]
        if found:
            assert all(result.detail for result in found)
            assert all(result.passed for result in judge(trial, execute(trial)))
            return
    pytest.fail(f"{one.op} with {one.name} passes all {len(cases(one.op))} cases")
