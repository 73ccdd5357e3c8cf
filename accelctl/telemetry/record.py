"""Snapshots into a file: one JSON line each, behind a line that says what the file is.

A recording is what people attach to a bug report, so it holds no command lines, and free texts (events, paths, hints)
pass through ``redact`` first; names of processes stay. The file is complete after every line: whoever kills the writer
loses at most the line it was writing.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import IO, Any

from accelctl import __version__
from accelctl.errors import AccelError, UsageError, unwritable
from accelctl.model import snapshotjson
from accelctl.model.snapshot import SCHEMA, EventMark, Gone, Snapshot
from accelctl.telemetry.feed import Feed
from accelctl.telemetry.known import Known

RECORDING = "accelctl.recording/1"
GZ = ".gz"
_KEPT_TEXTS = 4096
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def header() -> dict[str, Any]:
    """What the first line says."""
    return {"schema": RECORDING, "snapshot": SCHEMA, "tool": {"name": "accelctl", "version": __version__}}


class Recorder:
    """A recording that grows. Sources and absences are written when they change."""

    def __init__(self, file: str, redact: Callable[[str], str]) -> None:
        """A new file; gzip where its name ends in .gz. UsageError where there is one already, or none can be made."""
        self.file = file
        self.count = 0
        self._redact = lru_cache(_KEPT_TEXTS)(redact)
        self._known = Known()
        try:
            self._raw: IO[bytes] = open(file, "xb")  # noqa: SIM115 - until close
        except FileExistsError:
            raise UsageError(f"{file}: there is such a file already", "name another one, or remove it") from None
        except OSError as error:
            raise unwritable(file, error) from None
        # Without name and time, which gzip would put into its own header.
        self._packed = gzip.GzipFile("", "wb", 6, self._raw, mtime=0) if file.endswith(GZ) else None
        self._line(header())

    def add(self, snapshot: Snapshot) -> None:
        """Write one. AccelError where that is impossible; the recording ends there."""
        self._line(snapshotjson.plain(self._redacted(snapshot), sparse=True))
        self.count += 1

    def close(self) -> None:
        """End the file; safe to call twice."""
        with suppress(OSError, ValueError):
            if self._packed is not None:
                self._packed.close()
        with suppress(OSError):
            self._raw.close()

    def _line(self, value: Mapping[str, Any]) -> None:
        line = _ENCODE(value).encode("ascii") + b"\n"
        try:
            if self._packed is None:
                self._raw.write(line)
            else:
                self._packed.write(line)
                self._packed.flush(zlib.Z_SYNC_FLUSH)
            self._raw.flush()
        except (OSError, ValueError) as error:
            self.close()
            why = (getattr(error, "strerror", None) or str(error)).lower()
            raise AccelError(f"{self.file}: recording ended ({why})", kind="os_error") from None

    def _redacted(self, snapshot: Snapshot) -> Snapshot:
        clean = self._redact
        return replace(
            snapshot,
            events=tuple(replace(one, text=clean(one.text)) for one in snapshot.events),
            health=tuple(replace(one, id=clean(one.id), path=clean(one.path)) for one in snapshot.health),
            **self._changed(snapshot),
        )

    def _changed(self, snapshot: Snapshot) -> dict[str, Any]:
        sources, absences = self._known.learn(snapshot)
        clean = self._redact
        return {
            "sources": {name: clean(text) for name, text in sources.items()},
            "absences": {name: Gone(why.kind, clean(why.detail), clean(why.fix)) for name, why in absences.items()},
        }


class RecordedFeed:
    """Another feed, whose Snapshots are written down as they pass. When that ends (a full disk) it is an event, and the
    Snapshots go on."""

    def __init__(self, feed: Feed, recorder: Recorder) -> None:
        self._feed, self.recorder = feed, recorder
        self.failed = ""
        """Why nothing is recorded any more."""

    @property
    def title(self) -> str:
        """Of what is recorded."""
        return f"{self._feed.title}, recording to {self.recorder.file}"

    @property
    def seekable(self) -> bool:
        """As the other one."""
        return self._feed.seekable

    def poll(self, timeout_s: float) -> Snapshot | None:
        """See Feed."""
        found = self._feed.poll(timeout_s)
        if found is None or self.failed:
            return found
        try:
            self.recorder.add(found)
        except AccelError as error:
            self.failed = error.message
            event = EventMark(at_ns=found.taken_ns, kind="source", device="", level="error", text=error.message)
            return replace(found, events=(*found.events, event))
        return found

    def seek(self, seconds: float) -> Snapshot | None:
        """See Feed; what is looked at again is not recorded again."""
        return self._feed.seek(seconds)

    def close(self) -> None:
        """See Feed."""
        self._feed.close()
        self.recorder.close()
