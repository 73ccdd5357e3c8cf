"""A recording as a feed: at the pace it was made, or faster, and to any moment of it.

The file may come from anybody and may be damaged. Opening looks at every line, so what is no recording, or breaks off
in the middle, is one UsageError before anything is shown; only the last line may be incomplete, because its writer may
have been killed. Lines stay on disk and become Snapshots one at a time: a long recording needs no more memory than a
short one, but for 24 bytes a line.
"""

from __future__ import annotations

import json
import tempfile
import time
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any, NoReturn

from accelctl.errors import UsageError
from accelctl.model import snapshotjson
from accelctl.model.snapshot import SCHEMA, EventMark, Snapshot
from accelctl.telemetry.known import Known
from accelctl.telemetry.record import RECORDING

LINE_MOST = 16 << 20
"""Bytes of a line. A Snapshot of 32 devices and 64 processes has 80 KB."""
WHOLE_MOST = 8 << 30
"""Bytes of all lines, unpacked: a small .gz may hold very much."""
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_GZIP_WITH_HEADER = 31
"""wbits of zlib."""
_SECOND_NS = 1_000_000_000
_GAP_S = 10.0
"""No wait between two Snapshots is played longer than this: a laptop may have slept in between."""


class ReplayFeed:
    """A Feed from a recording. ``speed`` is how much faster than it was recorded; UsageError for a file that is none.

    After its end ``poll`` gives None, until ``seek`` goes back.
    """

    def __init__(self, file: str, *, speed: float = 1.0) -> None:
        if not 0 < speed < float("inf"):
            raise UsageError(f"speed {speed:g}: a number above 0")
        self.file, self.speed = file, speed
        self.notes: tuple[str, ...] = ()
        """What was left out, for people."""
        self._due = 0.0
        self._next = 0
        self._lines = _lines_of(file)
        self._at, self._starts, self._taken = array("d"), array("Q"), array("Q")
        """Of each Snapshot: seconds since the first, where its line begins, its wall clock."""
        self._changes = array("Q")
        """Snapshots that bring sources and absences."""
        self._known, self._learned = Known(), 0
        try:
            self._index()
        except BaseException:
            self.close()
            raise

    # -- Feed --

    @property
    def title(self) -> str:
        """See Feed."""
        return f"recording {self.file}"

    @property
    def seekable(self) -> bool:
        """See Feed."""
        return True

    def __len__(self) -> int:
        return len(self._at)

    @property
    def duration_s(self) -> float:
        """From the first Snapshot to the last."""
        return self._at[-1]

    @property
    def position_s(self) -> float:
        """Of the Snapshot that was given last."""
        return self._at[max(0, self._next - 1)]

    @property
    def ended(self) -> bool:
        """Nothing comes any more."""
        return self._next >= len(self._at)

    def poll(self, timeout_s: float) -> Snapshot | None:
        """See Feed."""
        left = self._due - time.monotonic()
        if self.ended or left > timeout_s:
            time.sleep(max(0.0, timeout_s))
            return None
        if left > 0:
            time.sleep(left)
        return self._give(self._next)

    def seek(self, seconds: float) -> Snapshot | None:
        """See Feed; before the first one it is the first."""
        return self._give(max(0, bisect_right(self._at, seconds) - 1))

    def step(self, count: int) -> Snapshot | None:
        """So many Snapshots on, or (negative) back."""
        return self._give(min(max(0, self._next - 1 + count), len(self._at) - 1))

    def close(self) -> None:
        """See Feed."""
        self._lines.close()

    def _give(self, number: int) -> Snapshot:
        self._next = number + 1
        gap = self._at[number + 1] - self._at[number] if self._next < len(self._at) else 0.0
        self._due = time.monotonic() + min(gap, _GAP_S) / self.speed
        return self._decoded(number)

    def _decoded(self, number: int) -> Snapshot:
        """One Snapshot, with the sources and absences that hold there. Damage inside of a line becomes an event."""
        try:
            made = self._line(number)
        except UsageError as error:
            taken = self._taken[number]
            event = EventMark(at_ns=taken, kind="source", device="", level="error", text=f"damaged: {error.message}")
            made = Snapshot(taken_ns=taken, monotonic_ns=int(self._at[number] * _SECOND_NS), events=(event,))
        known = self._known_at(number)
        return replace(made, sources=dict(known.sources), absences=dict(known.absences))

    def _line(self, number: int) -> Snapshot:
        self._lines.seek(self._starts[number])
        return snapshotjson.read(_parsed(self._lines.readline()), f"{self.file}: Snapshot {number + 1}")

    def _known_at(self, number: int) -> Known:
        """Sources and absences that hold there: those of all changes up to it."""
        wanted = bisect_right(self._changes, number)
        if wanted < self._learned:
            self._known, self._learned = Known(), 0
        for at in range(self._learned, wanted):
            with suppress(UsageError):
                self._known.learn(self._line(self._changes[at]))
        self._learned = wanted
        return self._known

    # -- opening --

    def _index(self) -> None:
        first = -1
        _check_header(self.file, self._lines.readline(LINE_MOST))
        for start, line in _numbered(self._lines):
            value = self._value(line)
            if value is None:
                break
            taken, monotonic = _time(value, "taken_ns"), _time(value, "monotonic_ns")
            if taken is None or monotonic is None:
                self._wrong(f"line {len(self._at) + 2} has no time")
            first = monotonic if first < 0 else first
            seconds = (monotonic - first) / _SECOND_NS
            if self._at and seconds < self._at[-1]:
                self._wrong(f"line {len(self._at) + 2} is older than the one before it")
            if value.get("sources") or value.get("absences"):
                self._changes.append(len(self._at))
            self._at.append(seconds)
            self._starts.append(start)
            self._taken.append(taken)
        if not self._at:
            self._wrong("it holds no Snapshot")
        self._line(0)

    def _value(self, line: bytes) -> dict[str, Any] | None:
        """The JSON object of a line; None for a last line that breaks off."""
        try:
            if len(line) > LINE_MOST:
                raise ValueError
            value = _parsed(line)
            if not isinstance(value, dict):
                raise ValueError
        except ValueError:
            if line.endswith(b"\n"):
                self._wrong(f"line {len(self._at) + 2} is damaged")
            self.notes += ("the last line is incomplete and was left out",)
            return None
        return value

    def _wrong(self, why: str) -> NoReturn:
        raise UsageError(f"{self.file}: not a recording that can be replayed: {why}", "accelctl top --record FILE")


def _time(value: dict[str, Any], name: str) -> int | None:
    found = value.get(name, 0)
    return found if type(found) is int and 0 <= found < 1 << 63 else None


def _parsed(line: bytes) -> Any:
    """JSON of a line. ValueError: none, or with numbers that JSON does not have."""
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_no_number)
    except RecursionError:
        raise ValueError("nested without end") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _numbered(lines: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each line, and where it begins."""
    while True:
        start = lines.tell()
        line = lines.readline(LINE_MOST + 1)
        if not line:
            return
        yield start, line


def _check_header(file: str, line: bytes) -> None:
    """UsageError unless the first line announces a recording that is understood here."""
    try:
        head = _parsed(line)
    except ValueError:
        head = None
    schema = head.get("schema") if isinstance(head, dict) else None
    if not isinstance(schema, str) or not schema.startswith("accelctl."):
        raise UsageError(f"{file}: not a recording of accelctl", "accelctl top --record FILE makes one")
    if schema != RECORDING or head.get("snapshot") != SCHEMA:
        inner = head.get("snapshot", "")
        raise UsageError(
            f"{file}: {schema[:40]} of {str(inner)[:40]!r} is unknown; {RECORDING} of {SCHEMA} is read here"
        )


def _lines_of(file: str) -> IO[bytes]:
    """The lines, unpacked; the caller closes it. UsageError where the file cannot be read."""
    try:
        lines: IO[bytes] = open(file, "rb")  # noqa: SIM115 - the caller closes it
        if not lines.seekable():
            lines = _copied(file, lines, packed=False)
        packed = lines.read(2) == _GZIP
        lines.seek(0)
        return _copied(file, lines, packed=True) if packed else lines
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({(error.strerror or str(error)).lower()})") from None


def _copied(file: str, source: IO[bytes], *, packed: bool) -> IO[bytes]:
    """All of it in a file of our own."""
    lines = tempfile.TemporaryFile(prefix="accelctl-replay-")  # noqa: SIM115 - the caller closes it
    with source:
        for piece in _unpacked(source) if packed else iter(lambda: source.read(_CHUNK), b""):
            if lines.tell() + len(piece) > WHOLE_MOST:
                lines.close()
                raise UsageError(f"{file}: more than {WHOLE_MOST >> 30} GiB are in it")
            lines.write(piece)
    lines.seek(0)
    return lines


def _unpacked(source: IO[bytes]) -> Iterator[bytes]:
    """As far as it goes: a killed writer leaves a gzip file without an end, of which GzipFile gives less."""
    unpacker = zlib.decompressobj(_GZIP_WITH_HEADER)
    with suppress(zlib.error):
        while chunk := source.read(_CHUNK):
            while chunk and not unpacker.eof:
                yield unpacker.decompress(chunk, _CHUNK)
                chunk = unpacker.unconsumed_tail
