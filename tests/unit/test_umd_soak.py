"""The soak (tests/soak.py) at a size for every run; `make bench` has the whole."""

import pytest

from tests import soak


def test_sessions_at_once_mix_nothing_up_and_leave_nothing() -> None:
    found = soak.soak(8, 3.0)
    assert found.wrong == []
    assert found.ops > 8
    assert found.left_bytes == 0


@pytest.mark.parametrize("seed", [1])
def test_killed_clients_and_services_leave_nothing(seed: int) -> None:
    assert soak.kill(2, seed) == []
