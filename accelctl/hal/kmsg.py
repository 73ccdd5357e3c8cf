"""The kernel log: from the kernel, from the journal, from a log file, or from what the user hands over.

Whatever the source, a line is the kernel's own words: time stamps, log prefixes, escapes and control characters are
taken off, order and neighbours are kept (some messages run over several lines). A log from a stranger is capped in
lines and bytes, and is text: nothing in it reaches a terminal as a control sequence.
"""

from __future__ import annotations

import errno
import os
import re
import select
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import BinaryIO, NamedTuple

from accelctl.errors import PermissionDenied, UsageError
from accelctl.hal.manifest import KMSG
from accelctl.hal.root import SysRoot
from accelctl.model.reading import Absence

MAX_LINES = 200_000
MAX_BYTES = 64 << 20
MAX_TEXT = 2000  # characters; the kernel's own limit for one record is about 1,000 (LOG_LINE_MAX)
_RECORD = 8192  # CONSOLE_EXT_LOG_MAX: no record of /dev/kmsg is longer
_ENDLESS = 1 << 30  # bytes; no kernel log is that long
_KMSG_DEVICE = (1, 11)  # Documentation/admin-guide/devices.txt
_JOURNAL = (
    "/usr/bin/journalctl",
    "/bin/journalctl",
)  # by full path: the search path of a user is not trusted under sudo
_JOURNAL_S = 5.0
_FILES = ("var/log/kern.log", "var/log/messages")
_FIX = "sudo dmesg > kernel.log; accelctl probe --kmsg kernel.log"


class LogLine(NamedTuple):
    """One line of the kernel: its words, seconds since boot, level 0 (emergency) to 7 (debug), and record number, if
    known."""

    text: str
    time_s: float | None = None
    priority: int | None = None
    seq: int | None = None


class KernelLog(NamedTuple):
    """Where the log came from, its lines in order, why there are none, and whether older lines were cut off at the
    caps."""

    source: str
    lines: list[LogLine]
    absence: Absence | None = None
    clipped: bool = False


# -- lines --

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


def plain(text: str) -> str:
    """Without colours and control characters, and of a bounded length; tabs stay."""
    if not text.isprintable():
        text = _CONTROL.sub("", _ANSI.sub("", text))
    return text[:MAX_TEXT].rstrip()


def parse_record(data: bytes) -> list[LogLine]:
    """One record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg): ``level,number,usec,flags[,...];text`` and key
    lines.

    A message with line breaks inside is several lines. Records written by user space (facility not 0) are not the
    kernel's: none.
    """
    head, semicolon, body = data.partition(b";")
    fields = head.split(b",")
    try:
        level, seq, micros = int(fields[0]), int(fields[1]), int(fields[2])
    except (ValueError, IndexError):
        return []
    if not semicolon or level >> 3:
        return []
    message = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), body.partition(b"\n")[0])
    texts = message.decode("utf-8", "replace").split("\n")
    return [LogLine(plain(text), micros / 1e6, level & 7, seq) for text in texts if text.strip()]


_LEVEL = re.compile(r"<(\d{1,4})>", re.ASCII)
_DECODED = re.compile(r"([a-z0-9]+) *:([a-z]+) *: ", re.ASCII)  # dmesg -x
_LEVELS = {"emerg": 0, "alert": 1, "crit": 2, "err": 3, "warn": 4, "notice": 5, "info": 6, "debug": 7}
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_ISO_DMESG = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d+[+-]\d\d:\d\d"  # dmesg writes a comma, and no host after it
_SYSLOG = re.compile(
    rf"(?:[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d|{_ISO}) (\S+) (?:[a-z0-9]+\.[a-z]+ )?([^\s:\[]+)(?:\[\d+\])?: ",
    re.ASCII,
)
_REPEATED = re.compile(
    r"message repeated \d+ times: \[ ?(.*)\]$", re.ASCII
)  # rsyslog's reduction, on by default in Ubuntu
_JOURNAL_LINE = re.compile(r"\[ *(\d+\.\d+)\] (\S+) kernel: ", re.ASCII)
_MONOTONIC = re.compile(r"\[ *(\d+\.\d+)\] ?", re.ASCII)
_DATES = re.compile(
    rf"(?:\[[A-Z][a-z]{{2}} [A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d \d{{4}}\]|{_ISO_DMESG}|"  # -T, --time-format iso
    r"\[[A-Z][a-z]{2}[ \d]\d \d\d:\d\d\]|\[ *\+\d+\.\d+\]|\[ *\d+\.\d+ <[ \d.]+>\]) ?",  # -e, -d
    re.ASCII,
)
_CALLER = re.compile(r"\[ *[TC]\d+\] ?", re.ASCII)  # CONFIG_PRINTK_CALLER
_JOURNAL_NOTE = re.compile(r"-- .* --$")


@lru_cache(maxsize=64)  # a log of 100,000 lines is one that repeats itself, and 1 s is too long for it
def parse_line(line: str) -> LogLine | None:
    """One line of a log in text form; None for an empty line and for one that is not the kernel's (another program in
    syslog)."""
    line = plain(line)
    seconds: float | None = None
    priority: int | None = None
    match = _SYSLOG.match(line)
    if match is not None:
        if match[2] != "kernel":
            return None
        line = _REPEATED.sub(r"\1", line[match.end() :])
    match = _JOURNAL_LINE.match(line)
    if match is not None:
        seconds, line = float(match[1]), line[match.end() :]
    match = _LEVEL.match(line)
    if match is not None:
        if int(match[1]) >> 3:
            return None
        priority, line = int(match[1]) & 7, line[match.end() :]
    match = _DECODED.match(line)
    if match is not None and match[2] in _LEVELS:
        if match[1] != "kern":
            return None
        priority, line = _LEVELS[match[2]], line[match.end() :]
    match = _MONOTONIC.match(line)
    if match is not None:
        seconds, line = float(match[1]), line[match.end() :]
    else:
        match = _DATES.match(line)
        line = line[match.end() :] if match is not None else line
    match = _CALLER.match(line)
    line = line[match.end() :] if match is not None else line
    if not line.strip() or _JOURNAL_NOTE.match(line):
        return None
    return LogLine(line, seconds, priority)


def parse_log(data: bytes) -> tuple[list[LogLine], bool]:
    """A whole log in text form: the lines of its last boot, and whether the caps cut it. The newest lines are the
    ones kept."""
    clipped = len(data) > MAX_BYTES
    texts = data[-MAX_BYTES:].decode("utf-8", "replace").replace("\0", "").split("\n")
    lines = [line for line in map(parse_line, texts[-MAX_LINES:]) if line is not None]
    return _last_boot(lines), clipped or len(texts) > MAX_LINES


def _last_boot(lines: list[LogLine]) -> list[LogLine]:
    """From the last "Linux version" line on, or where the clock last went back to the start of a boot."""
    start, before = 0, 0.0
    for index, line in enumerate(lines):
        restarted = line.time_s is not None and line.time_s < 60 < before - line.time_s
        if restarted or line.text.startswith("Linux version "):
            start = index
        before = line.time_s if line.time_s is not None else before
    return lines[start:]


# -- sources --


def read_log(root: SysRoot) -> KernelLog:
    """The kernel log of the machine below ``root``: /dev/kmsg, else the journal, else a log file; of a captured
    machine, its own.

    Never raises: without any source the result says why and what to type.
    """
    if not root.live:
        return _first(root, (KMSG, *_FILES)) or KernelLog("", [], Absence("not_captured", None, _FIX))
    log = _from_device(root)
    if log.lines:
        return log
    return _from_journal(root) or _first(root, _FILES) or log


def read_named(spec: str, stdin: BinaryIO | None = None) -> KernelLog:
    """The log named on the command line: a file, a pipe, or "-" for standard input.

    Read it before forking a reader child: its standard input is /dev/null. Raises UsageError (no such file, a folder,
    a device, no end) or PermissionDenied.
    """
    try:
        if spec == "-":
            return _named("standard input", _capped(stdin or sys.stdin.buffer))
        info = os.stat(spec)
        if stat.S_ISCHR(info.st_mode) and (os.major(info.st_rdev), os.minor(info.st_rdev)) != _KMSG_DEVICE:
            raise ValueError("a device")
        if stat.S_ISCHR(info.st_mode):
            return _whole_device(spec)
        with open(spec, "rb") as file:
            return _named(spec, _capped(file))
    except PermissionError:
        hint = f"sudo cat {spec} | accelctl probe --kmsg -"
        raise PermissionDenied(f"{spec}: this log may not be read", hint) from None
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{spec}: cannot be read as a kernel log ({words})", hint=_FIX) from None


def _named(source: str, data: bytes) -> KernelLog:
    lines, clipped = parse_log(data)
    return KernelLog(source, lines, None if lines else Absence("empty", None, _FIX), clipped)


def _capped(file: BinaryIO) -> bytes:
    """All of a file, or its newest part; memory stays bounded, and a stream without end is refused."""
    data = bytearray()
    total = 0
    while chunk := file.read(1 << 20):
        data += chunk
        total += len(chunk)
        if total > _ENDLESS:
            raise ValueError(f"more than {_ENDLESS >> 20} MiB")
        if len(data) > 2 * MAX_BYTES:
            del data[: -MAX_BYTES - 1]
    return bytes(data)


def _whole_device(path: str) -> KernelLog:
    fd = open_device(path)
    try:
        lines = drain(fd, MAX_LINES + 1)
    finally:
        os.close(fd)
    return KernelLog(path.lstrip("/"), lines[-MAX_LINES:], clipped=len(lines) > MAX_LINES)


def _first(root: SysRoot, paths: Iterable[str]) -> KernelLog | None:
    for path in paths:
        if root.live and not _of_this_boot(root, path):
            continue
        data = root.data(path, limit=MAX_BYTES)
        if data is not None:
            lines, clipped = parse_log(data)
            if lines:
                return KernelLog(path, lines, clipped=clipped)
    return None


def _of_this_boot(root: SysRoot, path: str) -> bool:
    """Was a log file written since this machine started? A logger that was switched off leaves an old boot's faults
    behind."""
    if root.slot is not None:
        root.slot.enter(path)
    try:
        written = os.stat("/" + path).st_mtime
    except OSError:
        return False
    return written >= time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def open_device(path: str = "/dev/kmsg", *, newest: bool = False) -> int:
    """Open the kernel's log device; ``newest`` starts after what is there already. Raises OSError; ENODEV when it is
    another thing.

    In containers the name may stand for a console or for /dev/null.
    """
    info = os.stat(path)
    if not stat.S_ISCHR(info.st_mode) or (os.major(info.st_rdev), os.minor(info.st_rdev)) != _KMSG_DEVICE:
        raise OSError(errno.ENODEV, "not the kernel's log device", path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if newest:
        os.lseek(fd, 0, os.SEEK_END)
    return fd


def drain(fd: int, limit: int = MAX_LINES) -> list[LogLine]:
    """What the log device holds now, up to about ``limit`` lines. EPIPE means that older records were overwritten: go
    on with the next."""
    lines: list[LogLine] = []
    while len(lines) < limit:
        try:
            data = os.read(fd, _RECORD)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno == errno.EPIPE:
                continue
            raise
        if not data:
            break
        lines.extend(parse_record(data))
    return lines


def follow(fd: int, timeout_s: float) -> Iterator[LogLine]:
    """New lines of the log device as they come, for ``timeout_s`` seconds (without end: math.inf)."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    end = time.monotonic() + timeout_s
    while True:
        yield from drain(fd, 1000)
        left = end - time.monotonic()
        if left <= 0:
            return
        poller.poll(min(left, 3600.0) * 1000)


def _from_device(root: SysRoot) -> KernelLog:
    if root.slot is not None:
        root.slot.enter("dev/kmsg")
    if "dev/kmsg" in root.quarantine:
        return KernelLog("", [], Absence("timed_out", "ETIMEDOUT", _FIX))
    try:
        log = _whole_device("/dev/kmsg")
    except OSError as error:
        return KernelLog("", [], _why(error))
    return log if log.lines else KernelLog("", [], Absence("empty", None, _FIX))


def _why(error: OSError) -> Absence:
    name = errno.errorcode.get(error.errno or 0, "")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Absence("no_permission", name, _FIX)
    if error.errno == errno.ENODEV:
        return Absence("hidden_by_container", name, _FIX, error.strerror)
    if error.errno == errno.ENOENT:
        return Absence("no_node", name, _FIX)
    return Absence("unreadable", name, _FIX, error.strerror)


def _from_journal(root: SysRoot) -> KernelLog | None:
    """What the journal holds of this boot; None where there is no journal, it may not be read, or it does not
    answer."""
    program = next((path for path in _JOURNAL if os.access(path, os.X_OK)), None)
    if program is None or program[1:] in root.quarantine:
        return None
    if root.slot is not None:
        root.slot.enter(program[1:])
    import subprocess

    command = [program, "-k", "-b", "-q", "-o", "short-monotonic", "--no-pager", "-n", str(MAX_LINES)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_JOURNAL_S, check=False, env={"LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines, clipped = parse_log(done.stdout)
    return KernelLog("journalctl -k -b", lines, clipped=clipped) if lines else None
