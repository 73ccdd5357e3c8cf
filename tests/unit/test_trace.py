"""What a trace file holds, on devices that every Linux has."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from accelctl.errors import UsageError
from accelctl.hal.devfile import File, Syscalls
from accelctl.hal.trace import LIMIT, Trace, TracedSyscalls, calls_of
from accelctl.hal.uapi import drm


class Answering(Syscalls):
    """A driver that gives out handle 7, and refuses to close it."""

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        assert isinstance(argument, bytearray)
        if number == drm.GEM_CLOSE.number:
            raise OSError(errno.EINVAL, "Invalid argument")
        drm.MODE_CREATE_DUMB.layout.field("handle").put(argument, 7)
        return 0


def traced(path: Path) -> list[dict[str, Any]]:
    trace = Trace(str(path))
    calls = TracedSyscalls(Answering(), trace, calls_of([drm]))
    with File(calls.memfd("x", 4096, 0), "memfd", calls) as file:
        file.ioctl(drm.MODE_CREATE_DUMB.number, drm.MODE_CREATE_DUMB.layout.pack(width=16, height=1, bpp=32))
        with pytest.raises(OSError, match="Invalid"):
            file.ioctl(drm.GEM_CLOSE.number, drm.GEM_CLOSE.layout.pack(handle=7))
        file.unmap(file.map(4096))
    trace.close()
    events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return events


def test_calls_are_decoded(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json")
    assert [event["name"] for event in events] == [
        "memfd_create", "DRM_IOCTL_MODE_CREATE_DUMB", "DRM_IOCTL_GEM_CLOSE", "mmap", "munmap", "close", "end",
    ]  # fmt: skip
    create, close = events[1]["args"], events[2]["args"]
    assert (create["in"]["width"], create["in"]["handle"], create["out"]["handle"]) == (16, 0, 7)
    assert (close["in"]["handle"], close["error"]) == (7, "EINVAL")
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events[:-1])


def test_an_unfinished_file_is_still_an_array_to_the_viewers(tmp_path: Path) -> None:
    trace = Trace(str(tmp_path / "t"))
    trace.event("x", 0, {})
    text = (tmp_path / "t").read_text(encoding="utf-8")
    assert json.loads(text.rstrip(",\n") + "]")[0]["name"] == "x"
    trace.close()


def test_a_trace_ends_before_no_viewer_opens_it(tmp_path: Path) -> None:
    trace = Trace(str(tmp_path / "t"))
    trace._count = LIMIT - 2
    for name in ("last", "cut", "never"):
        trace.event(name, 0, {})
    trace.close()
    names = [event["name"] for event in json.loads((tmp_path / "t").read_text(encoding="utf-8"))]
    assert names == ["last", "trace cut: too many events", "end"]


def test_no_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="such a file already"):
        Trace(str(tmp_path / "t"))
    with pytest.raises(UsageError, match="cannot be written"):
        Trace(str(tmp_path / "none" / "t"))
    assert (tmp_path / "t").read_text(encoding="utf-8") == "mine"
