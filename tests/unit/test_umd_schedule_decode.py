"""A decode loop with pinned lists: the same logits, bit by bit, with a few messages for each token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

import numpy as np

from accelctl.backends.sim.memory import MEMORY
from accelctl.backends.sim.schedule import SCHEDULE
from accelctl.smoke.decode import PROMPTS, Loop
from accelctl.smoke.machine import ServiceMachine
from accelctl.smoke.numbers import Array
from accelctl.smoke.transformer import build
from accelctl.umd.chip import Chip
from accelctl.umd.client import Client
from accelctl.umd.server import serve
from accelctl.umd.service import Service
from tests.pinnedmachine import PinnedMachine
from tests.simkit import TARGET
from tests.umdkit import QUICK, Kernels

STEPS = 6


@pytest.fixture(params=["recorded", "one by one"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    chip = Chip(MEMORY, Kernels(), TARGET, {}, schedule=SCHEDULE if request.param == "recorded" else None)
    server = serve(Service(chip, limits=QUICK), f"unix:{tmp_path}/s")
    try:
        with Client(f"unix:{tmp_path}/s", deadline_s=20) as made:
            yield made
    finally:
        server.stop(0.5)


def decoded(machine: ServiceMachine) -> list[Array]:
    """Logits of each step; the tokens are always the same."""
    model = build("fp32", 3)
    loop = Loop(machine, model, [length + STEPS for length in PROMPTS], 3)
    for number, length in enumerate(PROMPTS):
        loop.prefill(number, list(range(length)))
    found = []
    for step in range(STEPS):
        if isinstance(machine, PinnedMachine):
            machine.begin()
        found.append(loop.step([step % 7, step % 5]))
    return found


def test_a_decode_loop_with_pinned_lists(client: Client) -> None:
    with client.session() as plain, client.session() as pinned:
        first = ServiceMachine(plain, lambda response: [])
        second = PinnedMachine(pinned, lambda response: [])
        wanted, found = decoded(first), decoded(second)
        assert all(np.array_equal(one, other) for one, other in zip(wanted, found, strict=True))
        sent = second.sent
        assert sent["replay"] == 3 * (STEPS - 1), "before, between and behind the copies into the caches of two layers"
        assert sent["batch"] == 1 + 2 * (STEPS - 1)
        assert sent["pin"] <= 4, "where the copies are is found by comparing two steps"
        telemetry = client.telemetry()
        levels = {one.session_id: one.lists for one in telemetry.sessions}
        assert levels[pinned.id].replays == sent["replay"]
        assert not levels[pinned.id].ended
        launches = {one.op: one.launches for one in telemetry.ops}
        assert launches["attention_decode"] == 2 * 2 * STEPS, "two layers, two sessions"
        first.close()
        second.close()
        (level,) = (one.lists for one in client.telemetry().sessions if one.session_id == pinned.id)
        assert (level.lists, dict(level.ended)) == (0, {"memory": sent["pin"]})
