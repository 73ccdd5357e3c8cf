"""What a trace file holds, on devices that every Linux has."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from accelctl.errors import AccelError, UsageError
from accelctl.hal.devfile import File, Syscalls
from accelctl.hal.root import open_root
from accelctl.hal.trace import LIMIT, Trace, TracedSyscalls, calls_of, span
from accelctl.hal.tracedtree import TracedTree
from accelctl.hal.uapi import drm
from accelctl.probes.scan import probe
from tests.helpers import run_cli
from tests.synthetic import make_machine


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


def test_a_full_disk_ends_the_trace_and_not_what_is_traced(tmp_path: Path) -> None:
    trace = Trace(str(tmp_path / "t"))
    os.close(trace._fd)
    trace._fd = os.open("/dev/full", os.O_WRONLY)  # every write there gives ENOSPC (full(4))
    told = [trace.put([span("x", 0, 1, {})]) for _ in range(3)]
    assert told == [False, True, True]
    assert trace.lost == f"{tmp_path}/t: cannot be written (no space left on device)"
    with pytest.raises(AccelError, match="no space left") as caught:
        trace.close()
    assert caught.value.exit_code == 7


def test_a_trace_that_cannot_even_begin_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(AccelError, match="no space left") as caught:
            Trace(str(tmp_path / "t"))
        assert caught.value.exit_code == 7
    assert list(tmp_path.iterdir()) == []


# -- reads, of `probe --trace` --


def test_reads_are_traced_one_for_one(tmp_path: Path) -> None:
    """The root counts what it opened by itself: both books agree, path by path."""
    make_machine(tmp_path / "root", 2)
    root = open_root(str(tmp_path / "root"))
    trace = Trace(str(tmp_path / "trace.json"))
    root.tree = TracedTree(root.tree, trace)
    probe(root)
    trace.close()
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    reads = Counter(one["args"]["path"] for one in events if one["name"].startswith("read "))
    assert reads == Counter(root.opened)
    sizes = {one["args"]["path"]: one["args"].get("bytes") for one in events if one["name"].startswith("read ")}
    vendor = next(path for path in sizes if path.endswith("/vendor"))
    assert sizes[vendor] == (tmp_path / "root" / vendor).stat().st_size
    assert any(one["args"].get("error") == "ENOENT" for one in events[:-1])


def test_probe_writes_a_trace_and_the_same_report(tmp_path: Path) -> None:
    make_machine(tmp_path / "root", 2)
    words = ("probe", "--root", "root", "--brief")
    plain = run_cli(*words, cwd=tmp_path, code=0)
    done = run_cli(*words, "--trace", "trace.json", cwd=tmp_path, code=0)
    assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert {one["name"].split()[0] for one in events} == {"read", "listdir", "readlink", "resolve", "stat", "end"}
    assert all(one["dur"] >= 0 and one["args"]["path"] for one in events[:-1])
    again = run_cli(*words, "--trace", "trace.json", cwd=tmp_path, code=2)
    assert again.stderr == "accelctl probe: trace.json: there is such a file already\n"
    both = run_cli("probe", "--diff", "root", "root", "--trace", "other.json", cwd=tmp_path, code=2)
    assert "--trace and --diff exclude each other" in both.stderr
    assert not (tmp_path / "other.json").exists()
