"""What the dashboards say of what is not there: memory that nobody tells of, services that do not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelctl.model.snapshot import DeviceLevel, EngineLevel, Gone, ProcessLevel, QueueLevel, Snapshot, SourceLevel, key
from accelctl.render.snapshot import snapshot_text
from accelctl.render.term import Term
from accelctl.telemetry.history import History
from accelctl.tui import frame
from accelctl.tui.helping import helping
from accelctl.tui.lines import plain
from accelctl.tui.signs import signs_for
from accelctl.tui.state import DETAIL, VIEWS, State
from accelctl.tui.wanted import parse

MIB = 1 << 20
SECOND = 10**9
SILENT = Gone("not_offered", "its driver prints no drm- lines in fdinfo")


def shown(snapshots: list[Snapshot], screen: str, *, detail: bool = False, wanted: str = "") -> str:
    state = State(History(), signs_for(True), "test")
    for one in snapshots:
        state.take(one)
    state.screen = [view.title for view in VIEWS].index(screen)
    state.wanted = parse(wanted)
    if detail:
        state.turn(DETAIL)
    return "\n".join(plain(line).rstrip() for line in frame.draw(state, 120, 40))


def held(tick: int = 0) -> Snapshot:
    """One process that nobody knows the memory of, and one that holds something."""
    rows = (
        ProcessLevel(pid=10, started=1, name="cuda-train", devices=("gpu",), files=(("gpu", 3),)),
        ProcessLevel(pid=11, started=1, name="vulkan", devices=("gpu",), memory=(("gpu", "vram", 5 * MIB),)),
    )
    return Snapshot(
        taken_ns=10**18 + tick * SECOND,
        monotonic_ns=(tick + 1) * SECOND,
        devices=(DeviceLevel(id="gpu", memory_attributed_bytes=5 * MIB),),
        processes=rows,
        engines=(EngineLevel(id="gpu/gfx", device="gpu", busy_ratio=0.5),),
        absences={key("processes", "10@1", "memory"): SILENT} if tick == 0 else {},
    )


# -- memory that is not known --


def test_memory_that_is_not_known_is_no_zero() -> None:
    text = shown([held(tick) for tick in range(40)], "Processes")
    unknown, other = (
        next(line for line in text.splitlines()[2:] if name in line).partition("gpu")[2].split()
        for name in ("cuda-train", "vulkan")
    )
    assert (unknown[:2], other[:3]) == (["–", "–"], ["5", "MiB", "steady"])


def test_the_reason_can_be_opened() -> None:
    below = replace(held(), processes=held().processes[:1])
    for detail in (False, True):
        text = " ".join(shown([below], "Processes", detail=detail).split())
        assert "emory not known: its driver prints no drm- lines in fdinfo" in text


def test_the_sum_of_a_device_says_who_is_missing() -> None:
    assert "memory of 1 process not known; 5 MiB by processes" in shown([held()], "Overview")


def test_once_as_text_has_no_zero_either() -> None:
    text = snapshot_text(held(), Term(False, None, None, True))
    unknown, other = (
        next(line for line in text.splitlines() if name in line).partition(name)[2].split()
        for name in ("cuda-train", "vulkan")
    )
    assert (unknown[:2], other[:3]) == (["–", "–"], ["–", "5", "MiB"])
    assert SILENT.detail in text


def test_engines_have_their_own_name() -> None:
    text = shown([held()], "Overview")
    assert "gfx" in text
    assert "/gfx" not in text


def test_a_whole_device_is_said_to_be_whole_under_a_filter_of_one_process() -> None:
    assert "only pid=11: whole devices" in shown([held()], "Overview", wanted="pid=11")
    assert "whole devices" not in shown([held()], "Processes", wanted="pid=11")


# -- queues of a process --


def test_a_process_shows_what_its_queues_have_in_flight() -> None:
    """Several queues of one process add up; those of others, and of a pid that only begins alike, do not count."""
    queues = tuple(
        QueueLevel(id=f"gpu session {number}", device="gpu", process=process, depth=16, running=running)
        for number, process, running in ((1, "pid 11 vulkan", 3), (2, "pid 11 vulkan", 4), (3, "pid 110 other", 9))
    )
    text = shown([replace(held(), queues=queues)], "Processes")
    header, one, other = text.splitlines()[2:5]
    at = header.index("QUEUED"), header.index("QUEUED") + len("QUEUED")
    rows = {line.split()[1 + line.startswith("▸")]: line[slice(*at)].strip() for line in (one, other)}
    assert rows == {"vulkan": "7", "cuda-train": "–"}
    assert "Queues, in flight" in text
    assert "session 1" in text
    assert "session 3" not in text


# -- services --


def of_service(state: str, path: str = "", since_s: int = 0) -> Snapshot:
    row = SourceLevel(id="service unix:/s", state=state, path=path, since_ns=10**18 - since_s * SECOND)
    return Snapshot(taken_ns=10**18, monotonic_ns=SECOND, health=(row,))


def test_a_service_that_starts_is_not_said_to_be_missing() -> None:
    text = shown([of_service("starting")], "Overview")
    assert "the service unix:/s is starting" in text.splitlines()[2]
    assert "No accelerator is here" not in text


@pytest.mark.parametrize("screen", [view.title for view in VIEWS if view.title != "Events"])
def test_a_service_that_does_not_answer_is_told_on_every_screen(screen: str) -> None:
    text = shown([of_service("absent", "nobody answers there", 12)], screen)
    assert "service unix:/s has not answered for 12 s: nobody answers there" in text.splitlines()[2]
    assert "is here" not in text
    assert "is told by any" not in text


def test_beside_a_machine_both_are_told() -> None:
    found = of_service("absent", "nobody answers there")
    text = shown([replace(found, health=(SourceLevel(id="clients"), *found.health))], "Overview")
    assert "No accelerator is here." in text
    assert "Service unix:/s does not answer: nobody answers there." in " ".join(text.split())


def test_words_of_the_tables_are_explained() -> None:
    words = {plain(line)[:18].strip() for line in helping(100)}
    assert {"frag", "hits", "highest"} <= words
