"""A detail is about the row that was opened, whatever the others do, and says so when that one is gone."""

from __future__ import annotations

import dataclasses

import pytest
from textual.pilot import Pilot

from accelctl.model.snapshot import DeviceLevel, ProcessLevel, Snapshot
from accelctl.telemetry.history import History
from accelctl.tui.app import Top
from accelctl.tui.detail import detail
from accelctl.tui.lines import plain
from accelctl.tui.moment import Moment
from accelctl.tui.signs import signs_for
from tests.tui.test_keys import by_memory, drive, text


def ticked(app: Top, pids: list[int]) -> None:
    """One more tick, in which these processes stand in this order."""
    assert app.state.newest is not None
    rows = {one.pid: one for one in app.state.newest.processes}
    sizes = range(len(pids) << 30, 0, -(1 << 30))
    changed = [
        dataclasses.replace(rows[pid], memory=(("g", "vram", size),)) for pid, size in zip(pids, sizes, strict=True)
    ]
    app.state.take(dataclasses.replace(app.state.newest, processes=tuple(changed)))
    app.redraw()


@pytest.mark.parametrize("keys", [("5",), ("5", "down", "up")])
def test_enter_opens_the_row_that_the_cursor_stood_on_and_it_stays(keys: tuple[str, ...]) -> None:
    """Whether somebody chose it or not, and whichever is first by then."""

    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press(*keys)
        pids = by_memory(app)
        shown = f"▸    {pids[0]}"
        assert shown in text(app)
        ticked(app, pids[::-1])
        assert shown in text(app)
        await pilot.press("enter")
        assert f"processes/{pids[0]}@" in text(app)
        ticked(app, pids)
        ticked(app, pids[1:] + pids[:1])
        assert f"processes/{pids[0]}@" in text(app)
        assert f"processes/{pids[0]}@" in app._text_of_row()
        await pilot.press("escape")
        assert shown in text(app)

    drive(steps, size=(100, 40))


def test_the_cursor_that_nobody_moved_scrolls_nothing_away() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("5")
        pids = by_memory(app)
        ticked(app, pids[::-1])
        assert f"▸    {pids[-1]}" in text(app)
        await pilot.press("enter")
        assert f"processes/{pids[-1]}@" in text(app)

    drive(steps, size=(80, 24), processes=64)


def test_a_detail_of_what_is_gone_says_so_and_shows_no_other_row() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("5", "enter")
        pids = by_memory(app)
        assert "Not there now" not in text(app)
        for left in (pids[1:], []):
            ticked(app, left)
            assert "Not there now. These are its last numbers, of" in text(app)
            assert f"processes/{pids[0]}@" in text(app)
            assert f"processes/{pids[0]}@" in app._text_of_row()
            assert not [pid for pid in pids[1:] if f"processes/{pid}@" in text(app)]

    drive(steps, size=(100, 40))


def test_a_detail_that_is_gone_and_comes_again_is_as_before() -> None:
    """In a recording somebody may go back."""

    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("5", "enter")
        before = app.state.newest
        assert before is not None
        shown = by_memory(app)[0]
        ticked(app, by_memory(app)[1:])
        app.state.take(before)
        app.redraw()
        assert "Not there now" not in text(app)
        assert f"processes/{shown}@" in text(app)
        await pilot.press("slash", *"driver=none", "enter")  # the filter is about the table
        assert f"processes/{shown}@" in text(app)
        await pilot.press("escape")
        assert "Nothing here is driver=none" in text(app)
        await pilot.press("enter")
        assert "nothing to open" in text(app)

    drive(steps, size=(100, 40))


def test_no_label_touches_its_value_and_a_start_has_a_unit() -> None:
    moment = Moment(Snapshot(taken_ns=1), History(), signs_for(True), {}, {}, ())
    device = DeviceLevel(id="x", memory_unattributed_bytes=0)
    lines = [plain(line) for line in detail(moment, "devices", device, 120)]
    assert any(line.startswith("memory unattributed  0 bytes") for line in lines), lines
    process = ProcessLevel(pid=1, started=392607)
    shown = "\n".join(plain(line) for line in detail(moment, "processes", process, 120))
    assert "392607 clock ticks after boot (1 h 5 min)" in shown
