"""A service of our own for one run: started on a Unix socket of its own, gone when the run is, however that ends."""

from __future__ import annotations

import secrets
import signal
import subprocess
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from accelctl.errors import AbiError, AccelError, DeviceUnusable, NoDeviceError, PermissionDenied, UsageError
from accelctl.hal import ownpython
from accelctl.hal.claim import private_folder
from accelctl.umd import listen
from accelctl.umd.client import ServiceError, wait_until_ready

START_S, STOP_S = 120.0, 10.0
"""A busy machine takes long to import things; a service that dies is noticed at once."""
LONGEST = 300
"""Characters of what a service said: of a compiler's log, its beginning and its end."""
_REFUSED = {int(kind("").exit_code): kind for kind in (UsageError, NoDeviceError, AbiError, PermissionDenied)}
"""Exit status of a service that did not start -> what that is for whoever started it; else it is DeviceUnusable."""


class Said(NamedTuple):
    """Last words of a service."""

    why: str = ""
    hint: str | None = None


def last_words(text: str) -> Said:
    """Why a service ended, of its standard error: its own line for that and what to type; of one that a library took
    down, the last lines there are."""
    lines = text.splitlines()
    told = [at for at, line in enumerate(lines) if line.startswith(_OWN) and not line.startswith(f"{_OWN}warning: ")]
    if not told:
        return Said(shortened(" ".join(lines[-3:])))
    after = lines[told[-1] + 1] if told[-1] + 1 < len(lines) else ""
    hint = after.removeprefix(_TRY) if after.startswith(_TRY) else None
    return Said(shortened(lines[told[-1]].removeprefix(_OWN)), hint)


def shortened(text: str) -> str:
    """On one line, and not longer than can be read."""
    line = " ".join(text.split())
    half = LONGEST // 2 - 2
    return line if len(line) <= LONGEST else f"{line[:half]} … {line[-half:]}"


_OWN, _TRY = "accelctl serve: ", "  try: "


class OwnService:
    """``accelctl serve`` as a child. It ends when our end of its standard input closes, so also when we are killed, and
    removes its sockets itself: nothing of a run is in a folder that only we would remove. In a session of its own it
    does not see the terminal's Ctrl-C, which is for us to answer."""

    def __init__(self, device: str, options: tuple[str, ...] = ()) -> None:
        self._place = listen.parse(f"{private_folder()}/smoke-{secrets.token_hex(4)}")
        self.address = self._place.grpc
        words = ["serve", "--device", device, "--listen", self._place.path, "--stop-on-eof", *options]
        self._log = tempfile.TemporaryFile(prefix="accelctl-serve-")  # noqa: SIM115  # until close
        self._child = subprocess.Popen(
            ownpython.command("accelctl", words),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            wait_until_ready(self.address, START_S, lambda: self._child.poll() is None)
        except ServiceError as error:
            late = self.alive()
            self._child.kill()
            self._child.wait(STOP_S)
            failed = self._not_started("" if not late else error.message)
            with suppress(AccelError):  # why it did not start is the better story
                self.close()
            raise failed from error
        except BaseException:
            self._child.kill()
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the service."""
        return self._child.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._child.poll() is None

    def _not_started(self, late: str) -> AccelError:
        """Why, by its own word and status. ``late``: it was alive, and did not answer."""
        said = self._said()
        kind = _REFUSED.get(self._child.returncode, DeviceUnusable) if not late else DeviceUnusable
        how = late or said.why or _ended(self._child.returncode)
        more = f" ({said.why})" if late and said.why else ""
        return kind(f"the service did not start: {how}{more}", said.hint)

    def _said(self) -> Said:
        """The last words of one that has ended."""
        self._log.seek(0)
        return last_words(self._log.read().decode("utf-8", "replace"))

    def close(self) -> None:
        """Ask it to stop; after a while, kill it. AccelError where it had to be killed or says that it failed."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            code = self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
            raise AccelError(f"the service did not stop within {STOP_S:g} s and was killed", kind="timeout") from None
        finally:
            said = self._said() if self._child.returncode else Said()
            self._log.close()
            if self._child.returncode:
                with suppress(AccelError):
                    listen.clear(self._place)
        if code not in (0, -9):
            why = f": {said.why}" if said.why else ""
            raise AccelError(f"the service {_ended(code)}{why}", said.hint, kind="internal")

    def __enter__(self) -> OwnService:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except AccelError:
            if error is None:
                raise


def _ended(code: int) -> str:
    """How, in words."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-code}"
