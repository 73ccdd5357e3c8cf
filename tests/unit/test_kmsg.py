"""The kernel log: every form it is handed over in, and every way it can be missing."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.errors import PermissionDenied, UsageError
from accelctl.hal import kmsg
from accelctl.hal.kmsg import (
    LogLine,
    drain,
    follow,
    open_device,
    parse_line,
    parse_log,
    parse_record,
    plain,
    read_log,
    read_named,
)
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import LiveTree, MemoryTree
from accelctl.model.reading import Absence

XID = "NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def readable() -> bool:
    """Can the kernel log be opened? Its mode bits allow it to all, and the kernel then asks for CAP_SYSLOG."""
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


needs_kmsg = pytest.mark.skipif(not readable(), reason="/dev/kmsg cannot be opened here (needs root)")


def texts(data: bytes) -> list[str]:
    return [line.text for line in parse_log(data)[0]]


# -- records of /dev/kmsg --


def test_record() -> None:
    (line,) = parse_record(b"6,339,5140900,-;hello world\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n")
    assert line == LogLine("hello world", 5.1409, 6, 339)


def test_record_with_more_fields_and_a_semicolon() -> None:
    (line,) = parse_record(b"4,1,0,c,caller=T12;a;b\n")
    assert (line.text, line.priority) == ("a;b", 4)


def test_record_escapes() -> None:
    (line,) = parse_record(rb"4,1,0,-;caf\xc3\xa9 \x5cx41 \x1b[31mred\x1b[0m\x07 \xff")
    assert line.text == "caf\u00e9 \\x41 red \ufffd"


def test_record_of_several_lines() -> None:
    lines = parse_record(rb"4,9,2000000,-;first\x0a  second\x0a")
    assert lines == [LogLine("first", 2.0, 4, 9), LogLine("  second", 2.0, 4, 9)]


def test_record_of_user_space_is_not_the_kernels() -> None:
    assert parse_record(b"30,12,5,-;systemd[1]: NVRM: Xid (PCI:0000:44:00): 79") == []


@given(st.binary(max_size=200))
def test_any_bytes_are_lines_or_none(data: bytes) -> None:
    for line in parse_record(data):
        assert line.text.strip() != "" or line.text == ""
    for line in parse_log(data)[0]:
        assert "\x1b" not in line.text
        assert "\n" not in line.text


# -- lines of text --


@pytest.mark.parametrize(
    ("line", "seconds", "priority"),
    [
        (f"[   12.345678] {XID}", 12.345678, None),
        (f"[   12.345678][ T1234] {XID}", 12.345678, None),
        (f"[   12.345678] [    C3] {XID}", 12.345678, None),
        (f"<3>[   12.345678] {XID}", 12.345678, 3),
        (f"kern  :err   : [   12.345678] {XID}", 12.345678, 3),
        (f"[Mon Nov  3 01:58:00 2025] {XID}", None, None),
        (f"2025-11-03T01:58:00,123456+00:00 {XID}", None, None),
        (f"[Nov 3 01:58] {XID}", None, None),
        (f"[Nov13 01:58] {XID}", None, None),
        (f"[  +0.000102] {XID}", None, None),
        (f"[   12.345678 <    0.000102>] {XID}", None, None),
        (f"Nov  3 01:58:00 node-17 kernel: [   12.345678] {XID}", 12.345678, None),
        (f"Nov 13 01:58:00 node-17 kernel: {XID}", None, None),
        (f"Nov 13 01:58:00 node-17 kern.err kernel: [   12.345678] {XID}", 12.345678, None),
        (f"2025-11-03T01:58:00.123456+01:00 node-17 kernel: [   12.345678] {XID}", 12.345678, None),
        (f"2025-11-03T01:58:00+0100 node-17 kernel: {XID}", None, None),
        (f"[   12.345678] node-17 kernel: {XID}", 12.345678, None),
        (f"Nov  3 01:58:00 node-17 kernel: message repeated 3 times: [ [   12.345678] {XID}]", 12.345678, None),
        (f"\x1b[32m[   12.345678] \x1b[0m\x1b[31m{XID}\x1b[0m\r", 12.345678, None),
        (XID, None, None),
    ],
)
def test_line_in_every_form(line: str, seconds: float | None, priority: int | None) -> None:
    assert parse_line(line) == LogLine(XID, seconds, priority)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "   ",
        "\x00\x1b[0m",
        "-- Boot 0123456789abcdef --",
        f"Nov  3 01:58:00 node-17 myjob[17]: {XID}",
        f"2025-11-03T01:58:00.1+01:00 node-17 systemd: {XID}",
        f"<30>[   12.345678] {XID}",
        f"daemon:err   : [   12.345678] {XID}",
    ],
)
def test_line_that_is_not_the_kernels(line: str) -> None:
    assert parse_line(line) is None


def test_words_of_the_kernel_are_left_alone() -> None:
    for text in (
        "[drm] initialised",
        "amdgpu 0000:03:00.0: [drm] *ERROR* ring gfx timeout",
        "ACPI: RSDP 0x0 000024 (v02 BOCHS )",
        "Command line: console=ttyS0",
        "node 0: [mem 0x1000-0x2000]",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "BIOS-e820: [mem 0x0000-0x9fbff] usable",
    ):
        assert texts(f"[    1.000000] {text}\n".encode()) == [text]
        assert texts(f"2025-11-03T01:58:00,123456+00:00 {text}\n".encode()) == [text]


def test_long_lines_are_cut_and_control_characters_removed() -> None:
    assert len(plain("x" * 100_000)) == kmsg.MAX_TEXT
    assert plain("a\tb\x07\x9b\u2028c\x1b]0;title\x07d") == "a\tbcd"


def test_neighbours_stay_neighbours() -> None:
    log = (
        b"[ 1.0] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        b"[ 1.0]                NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        b"[ 1.0]                NVRM: fallen off the bus and is not responding to commands.\n"
    )
    assert [text.split()[-1] for text in texts(log)] == ["0000:b3:00.0", "has", "commands."]


def test_only_the_last_boot_counts() -> None:
    old = f"Nov  3 01:00:00 h kernel: [  900.0] {XID}\n"
    start = "Nov  3 02:00:00 h kernel: [    0.0] Linux version 6.12.1 (gcc)\n"
    assert texts((old + start + "Nov  3 02:00:01 h kernel: [    1.0] fine\n").encode()) == [
        "Linux version 6.12.1 (gcc)",
        "fine",
    ]
    assert texts((old + "Nov  3 02:00:01 h kernel: [    1.0] rotated away\n").encode()) == ["rotated away"]
    assert texts((old + "Nov  3 02:00:01 h kernel: [  899.9] out of order\n").encode()) == [XID, "out of order"]


def test_caps_keep_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmsg, "MAX_LINES", 10)
    lines, clipped = parse_log(b"".join(b"line %d\n" % number for number in range(100)))
    assert clipped
    assert [line.text for line in lines][-1] == "line 99"
    assert len(lines) <= 10
    monkeypatch.setattr(kmsg, "MAX_BYTES", 100)
    lines, clipped = parse_log(b"x" * 1000 + b"\nlast\n")
    assert clipped
    assert lines[-1].text == "last"


@pytest.mark.skipif(shutil.which("dmesg") is None, reason="needs dmesg (util-linux)")
@needs_kmsg
@pytest.mark.parametrize(
    "options", [[], ["-T"], ["-x"], ["-r"], ["-d"], ["-e"], ["-t"], ["--time-format", "iso"], ["--color=always"]]
)
def test_dmesg_in_all_its_formats_says_what_the_device_says(options: list[str]) -> None:
    """Oracle: util-linux's dmesg reads the same log. It indents further lines of one record (an out-of-memory report
    has such), each format by another width, so blanks at the start do not count."""
    for _ in range(5):  # a line that comes in between is no fault
        done = subprocess.run(["dmesg", "-k", *options], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"dmesg {options}: {done.stderr.decode()[:100]}")
        device = [line.text.strip() for line in read_log(SysRoot(LiveTree())).lines]
        told = [text.strip() for text in texts(done.stdout)]
        if told == device:
            return
    assert told == device


# -- sources --


@needs_kmsg
def test_log_of_this_machine() -> None:
    log = read_log(SysRoot(LiveTree()))
    assert (log.source, log.absence, log.clipped) == ("dev/kmsg", None, False)
    assert log.lines
    sequence = [line.seq for line in log.lines if line.seq is not None]
    assert sequence == sorted(sequence)


@needs_kmsg
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to write a line into the kernel log")
def test_following_sees_a_new_line() -> None:
    fd = open_device(newest=True)
    word = f"accelctl test {os.getpid()} {time.monotonic_ns()}"

    def write() -> None:
        time.sleep(0.2)
        Path("/dev/kmsg").write_text(f"<6>{word} by user space\n")

    writer = threading.Thread(target=write)
    try:
        assert drain(fd) == []
        writer.start()
        # The kernel marks what user space writes with facility 1 (user): it must not count as the kernel's own words.
        assert [line for line in follow(fd, 0.6) if word in line.text] == []
    finally:
        writer.join()
        os.close(fd)
    device = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        records = []
        while True:
            try:
                records.append(os.read(device, 8192))
            except BlockingIOError:
                break
        assert any(word.encode() in record and record.startswith(b"14,") for record in records)
    finally:
        os.close(device)


def test_following_ends_and_waits_without_spinning() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    try:
        os.write(write, b"4,7,1000000,-;from a pipe\n")
        cpu = time.process_time()
        assert [line.text for line in follow(read, 0.5)] == ["from a pipe"]
        assert time.process_time() - cpu < 0.3
    finally:
        os.close(read)
        os.close(write)


def test_overwritten_records_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[object] = [
        b"4,1,0,-;one\n",
        OSError(errno.EPIPE, "overwritten"),
        b"4,9,0,-;nine\n",
        BlockingIOError(),
    ]

    def read(_fd: int, _size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, bytes)
        return answer

    monkeypatch.setattr(os, "read", read)
    assert [(line.text, line.seq) for line in drain(0)] == [("one", 1), ("nine", 9)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EACCES, "no_permission"),
        (errno.EPERM, "no_permission"),
        (errno.ENOENT, "no_node"),
        (errno.ENODEV, "hidden_by_container"),
        (errno.EIO, "unreadable"),
    ],
)
def test_reason_and_advice_when_nothing_can_be_read(code: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(kmsg, "open_device", refuse)
    monkeypatch.setattr(kmsg, "_JOURNAL", ())
    monkeypatch.setattr(kmsg, "_FILES", ())
    log = read_log(SysRoot(LiveTree()))
    assert log.lines == []
    assert log.absence is not None
    assert (log.absence.kind, log.absence.errno) == (kind, errno.errorcode[code])
    assert "sudo dmesg" in str(log.absence.fix)
    assert "--kmsg" in str(log.absence.fix)


def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(kmsg, "open_device", refuse)


def script(folder: Path, text: str) -> str:
    path = folder / "journalctl"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_journal_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_device(monkeypatch)
    told = tmp_path / "told"
    line = f"[   12.345678] node-17 kernel: {XID}"
    program = script(tmp_path, f"echo \"$@\" > {told}\ncat <<'END'\n{line}\nEND")
    monkeypatch.setattr(kmsg, "_JOURNAL", ("/nonexistent/journalctl", program))
    log = read_log(SysRoot(LiveTree()))
    assert (log.source, log.lines) == ("journalctl -k -b", [LogLine(XID, 12.345678)])
    assert told.read_text().split()[:2] == ["-k", "-b"]


@pytest.mark.parametrize("text", ["sleep 60", "exit 1", "echo '-- No entries --'"])
def test_journal_that_does_not_answer_is_passed_over(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_device(monkeypatch)
    monkeypatch.setattr(kmsg, "_JOURNAL", (script(tmp_path, f"exec {text}" if "sleep" in text else text),))
    monkeypatch.setattr(kmsg, "_JOURNAL_S", 0.3)
    monkeypatch.setattr(kmsg, "_FILES", ())
    absence = read_log(SysRoot(LiveTree())).absence
    assert absence is not None
    assert absence.kind == "no_permission"


def test_log_file_of_an_earlier_boot_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_device(monkeypatch)
    monkeypatch.setattr(kmsg, "_JOURNAL", ())
    path = tmp_path / "kern.log"
    path.write_text(f"Nov  3 01:58:00 h kernel: [   12.3] {XID}\n")
    monkeypatch.setattr(kmsg, "_FILES", (str(path)[1:],))
    root = SysRoot(LiveTree())
    root.allow.add(str(path)[1:], "free")
    log = read_log(root)
    assert (log.source, [line.text for line in log.lines]) == (str(path)[1:], [XID])
    os.utime(path, (1e9, 1e9))
    assert read_log(root).lines == []


def test_captured_machine_answers_from_its_own_log() -> None:
    tree = MemoryTree("captured")
    assert read_log(SysRoot(tree)).absence == Absence("not_captured", None, kmsg._FIX)
    tree.add_file("var/log/kern.log", b"Nov  3 01:58:00 h kernel: [   12.3] old file\n")
    assert read_log(SysRoot(tree)).source == "var/log/kern.log"
    tree.add_file("accelctl-kmsg.txt", b"[   12.3] captured\n")
    log = read_log(SysRoot(tree))
    assert (log.source, [line.text for line in log.lines]) == ("accelctl-kmsg.txt", ["captured"])


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero"])
def test_another_device_under_the_name_is_not_opened(path: str) -> None:
    with pytest.raises(OSError, match="not the kernel's log device"):
        open_device(path)


# -- named on the command line --


def test_named_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"[ 1.0] one\n[ 2.0] tw\xffo\n")
    log = read_named(str(path))
    assert (log.source, log.absence) == (str(path), None)
    assert [line.text for line in log.lines] == ["one", "tw\ufffdo"]


def test_named_standard_input_and_pipe() -> None:
    assert read_named("-", io.BytesIO(b"[ 1.0] one\n")).source == "standard input"
    read, write = os.pipe()
    os.write(write, b"[ 1.0] through a pipe\n")
    os.close(write)
    assert [line.text for line in read_named(f"/proc/self/fd/{read}").lines] == ["through a pipe"]
    os.close(read)


def test_named_file_without_lines_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    absence = read_named(str(tmp_path / "empty")).absence
    assert absence is not None
    assert absence.kind == "empty"


@pytest.mark.parametrize("spec", ["/nonexistent/log", "/dev", "/dev/zero", "", "a\0b"])
def test_named_thing_that_is_no_log(spec: str) -> None:
    with pytest.raises(UsageError, match="cannot be read as a kernel log"):
        read_named(spec)


def test_named_stream_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmsg, "_ENDLESS", 4 << 20)
    monkeypatch.setattr(kmsg, "MAX_BYTES", 1 << 20)

    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return b"y\n" * (size // 2)

    with pytest.raises(UsageError, match="more than 4 MiB"):
        read_named("-", Endless())  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_named_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch(0o000)
    with pytest.raises(PermissionDenied, match="may not be read"):
        read_named(str(path))


@needs_kmsg
def test_named_device_is_read_to_its_end_not_for_ever() -> None:
    assert read_named("/dev/kmsg").lines
