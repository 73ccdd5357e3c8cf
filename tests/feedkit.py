"""Feeds for tests. Listed says what it was given. ProcessFeed is one in a process of its own, as it has one in real
life: with gRPC's threads beside it, as in a test process that speaks to services itself, its forked children cannot
speak to any."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from accelctl.model import snapshotjson
from accelctl.model.snapshot import Snapshot
from tests.helpers import ROOT, environment

CODE = """
import json, sys, threading
from accelctl.model import snapshotjson
from accelctl.telemetry.demo import DemoFeed
from accelctl.telemetry.service import ServiceFeed

feed = {make}
print(json.dumps({about}), flush=True)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
while not ended.is_set():
    found = feed.poll(0.1)
    if found is not None:
        print(json.dumps(snapshotjson.plain(found)), flush=True)
feed.close()
feed.close()
print(json.dumps(sorted({{"grpc", "google", "numpy"}} & set(sys.modules))), flush=True)
"""


class ProcessFeed:
    """``make`` is the feed, ``about`` what is to be told of it at the start: Python expressions."""

    def __init__(self, make: str, about: str = "None") -> None:
        code = CODE.format(make=make, about=about)
        self.child = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self.about: Any = json.loads(self._lines.get(timeout=60))
        self.loaded: list[str] = []
        """Of packages that belong into the feed's own child: those that its parent had in the end."""

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self._lines.put(line)

    def poll(self, timeout_s: float) -> Snapshot | None:
        """The next Snapshot."""
        try:
            return snapshotjson.read(json.loads(self._lines.get(timeout=timeout_s)))
        except queue.Empty:
            return None

    def close(self) -> None:
        """End it in order; safe to call twice."""
        if self.child.stdin is None or self.child.stdin.closed or self.child.stdout is None:
            return
        self.child.stdin.close()
        status = self.child.wait(60)
        self._thread.join()
        self.child.stdout.close()
        assert status == 0
        while not self._lines.empty():
            last = self._lines.get()
        self.loaded = json.loads(last)


class Listed:
    """A feed of these Snapshots, one a poll, and then of none."""

    title, seekable = "test", False

    def __init__(self, snapshots: Sequence[Snapshot | None]) -> None:
        self.left = list(reversed(snapshots))
        self.closed = 0

    def poll(self, timeout_s: float) -> Snapshot | None:
        return self.left.pop() if self.left else None

    def seek(self, seconds: float) -> Snapshot | None:
        return None

    def close(self) -> None:
        self.closed += 1
