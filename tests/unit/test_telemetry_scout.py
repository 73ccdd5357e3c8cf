"""A look at the machine that never ends does not keep others from being made."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from accelctl.hal.root import open_root
from accelctl.telemetry import scout
from accelctl.telemetry.scout import Scout, Seen
from tests.telemetrykit import LIMIT_S, nothing_left


def test_a_rule_that_computes_for_ever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forever(scan: object) -> None:
        while True:
            pass

    (tmp_path / "sys").mkdir()
    monkeypatch.setattr(scout, "look", lambda root, rooms: SimpleNamespace(devices={}))
    monkeypatch.setattr(scout, "judge", forever)
    monkeypatch.setattr(scout, "SILENCE_S", 0.3, raising=False)
    with nothing_left():
        one, found = Scout(open_root(str(tmp_path)), (), 0.2), []
        end = time.monotonic() + LIMIT_S
        while not one.done and time.monotonic() < end:
            found.append(one.poll(0.05))
        one.close()
    told = [seen for seen in found if seen is not None]
    assert told == [Seen(devices=[]), Seen(problem="devices could not be listed: no end after 0.3 s")]
