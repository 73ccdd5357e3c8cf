"""Golden pictures: every screen at three sizes from one recording, byte for byte.

``ACCELCTL_UPDATE_GOLDEN=1 pytest tests/tui/test_pictures.py`` writes them anew; look at them before they are committed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from xml.etree import ElementTree

import pytest

from accelctl.model.snapshot import Snapshot
from accelctl.telemetry.record import Recorder
from accelctl.telemetry.replay import ReplayFeed
from accelctl.tui import frame
from accelctl.tui.screens import NAMES
from accelctl.tui.state import DETAIL, HELP, State, state_for
from accelctl.tui.svg import svg
from tests import snapkit

GOLDEN = Path(__file__).parent / "golden"
UPDATE = bool(os.environ.get("ACCELCTL_UPDATE_GOLDEN"))
"""Read here: a fixture takes the variable away."""
SIZES = ((80, 24), (120, 40), (200, 60))


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("golden") / "one.jsonl"
    recorder = Recorder(str(file), str)
    for snapshot in snapkit.recording(60, 1002, devices=4, processes=8, simulated=True):
        recorder.add(snapshot)
    recorder.close()
    return file


def replayed(file: Path) -> State:
    feed = ReplayFeed(str(file), speed=1e6)
    state = state_for(feed)
    state.title = "recording one.jsonl"
    while not feed.ended:
        found = feed.poll(0.1)
        assert isinstance(found, Snapshot)
        state.take(found)
    feed.close()
    return state


def compare(name: str, shown: str) -> None:
    file = GOLDEN / name
    if UPDATE:
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(shown)
    wanted = file.read_text()
    difference = "\n".join(list(unified_diff(wanted.split("\n"), shown.split("\n"), lineterm="", n=0))[:20])
    assert shown == wanted, f"{name}\n{difference}"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", [*NAMES, HELP, DETAIL])
def test_every_screen(screen: str, size: tuple[int, int], recording: Path) -> None:
    from accelctl.tui.signs import RICH

    state = replayed(recording)
    state.signs = RICH
    if screen in NAMES:
        state.screen = NAMES.index(screen)
    else:
        state.over = screen
    picture = svg(frame.draw(state, *size), size[0])
    ElementTree.fromstring(picture)
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")
    compare(f"{screen}-{size[0]}x{size[1]}.svg", picture)


def test_in_ascii(recording: Path) -> None:
    from accelctl.tui.lines import plain
    from accelctl.tui.signs import PLAIN

    state = replayed(recording)
    state.signs = PLAIN
    pages = []
    for number in range(len(NAMES)):
        state.screen = number
        pages += [plain(line) for line in frame.draw(state, 80, 24)]
    shown = "\n".join(pages) + "\n"
    assert shown.isascii()
    compare("ascii-80x24.txt", shown)


def test_foreign_text_cannot_break_out_of_a_picture() -> None:
    from accelctl.render.layout import Span

    picture = svg([[Span('</text><script>alert("x")</script>&')]], 40)
    assert "<script" not in picture
    assert ElementTree.fromstring(picture).tag.endswith("svg")
