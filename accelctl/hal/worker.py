"""A fresh interpreter that does one job for us and tells how it goes, in messages.

Forking is no way to a clean process once a vendor's runtime has been used in this one: its threads and its connection
to the driver do not come along. A worker starts from nothing, imports what we can import (the same ``sys.path``), and
talks over pipes of its own, JSON values one a line; its standard output is nobody's. It ends when our end of its
standard input closes, so also when we are killed.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from accelctl.hal.ownpython import script

_GRACE_S = 5.0
_CHUNK = 1 << 16


class Gone(Exception):
    """The worker has ended; how, in a few words."""


class Worker:
    """One worker. ``module`` has ``main(wire, arguments)``."""

    def __init__(self, module: str, arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._read, write = os.pipe()
        self._log = tempfile.TemporaryFile(prefix="accelctl-worker-")  # noqa: SIM115  # until end
        code = f"from accelctl.hal.worker import begin; begin({module!r}, {write}, {list(arguments)!r})"
        try:
            self._process = subprocess.Popen(
                script(code),
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(write,),
                env={**os.environ, **(environ or {})},
                start_new_session=True,
            )
        except BaseException:
            os.close(self._read)
            self._log.close()
            raise
        finally:
            os.close(write)
        self._buffer = bytearray()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def tell(self, message: Any) -> None:
        """Hand over a message. Gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Gone(self.end()) from error

    def hear(self, timeout_s: float) -> Any:
        """The next message; None where none came in that time. Gone."""
        end = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if not select.select([self._read], [], [], max(0.0, left))[0]:
                return None
            data = os.read(self._read, _CHUNK)
            if not data:  # it is on its way out, and has something to say about it
                raise Gone(self.end(_GRACE_S))
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def wait(self, timeout_s: float) -> int | None:
        """Let it end by itself: its exit status, None where it did not."""
        assert self._process.stdin is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self, patience_s: float = 0.2) -> str:
        """Kill it if it still runs, and give everything back; how it ended, in words. Safe to call twice. One that
        hangs in the kernel is left behind."""
        if self._read >= 0:
            os.close(self._read)
            self._read = -1
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        code = self._process.poll()
        if code is None:
            with suppress(subprocess.TimeoutExpired):  # the end of the pipe is seen by itself where it is well
                code = self._process.wait(patience_s)
        if code is None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_GRACE_S)
        words = self._ending(code)
        self._log.close()
        return words

    def _ending(self, code: int | None) -> str:
        if self._log.closed:
            return "it has ended"
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        said = f": {lines[-1][:200]}" if lines else ""
        if code is None:
            return "it cannot be killed"
        if code >= 0:
            return f"exit status {code}{said}"
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}{said}"
        return f"killed by signal {-code}{said}"


class Wire:
    """The worker's end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="accelctl-wire", daemon=True).start()

    def _listen(self) -> None:
        left = b""
        while data := os.read(0, _CHUNK):
            *lines, left = (left + data).split(b"\n")
            for line in lines:
                self._messages.put(json.loads(line))
        os._exit(1)  # nobody is interested any more, whatever the other threads are waiting for

    def send(self, message: Any) -> None:
        """Tell."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(self._fd, data) :]

    def receive(self) -> Any:
        """The next message; waits."""
        return self._messages.get()


def begin(module: str, fd: int, arguments: Sequence[str]) -> None:
    """What the interpreter does first."""
    import importlib

    importlib.import_module(module).main(Wire(fd), list(arguments))
