"""A feed whose Snapshots are also written to a file, without what tells who and where."""

from __future__ import annotations

import os

from accelctl.accept.redact import Redactor
from accelctl.telemetry.feed import Feed
from accelctl.telemetry.record import RecordedFeed, Recorder


def recorded(feed: Feed, file: str) -> RecordedFeed:
    """``feed``, recorded to ``file``. UsageError where there is such a file, or none can be made."""
    host = os.uname().nodename
    people = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")]
    redactor = Redactor(os.urandom(32), [host, host.partition(".")[0], *people])
    return RecordedFeed(feed, Recorder(file, redactor.text))
