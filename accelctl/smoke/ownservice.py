"""A service of our own for one run: started on a Unix socket of its own, gone when the run is, however that ends."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
from contextlib import suppress
from types import TracebackType

from accelctl.errors import AccelError, DeviceUnusable
from accelctl.hal import ownpython
from accelctl.hal.claim import private_folder
from accelctl.umd import listen
from accelctl.umd.client import ServiceError, wait_until_ready

START_S, STOP_S = 120.0, 10.0
"""A busy machine takes long to import things; a service that dies is noticed at once."""


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
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            wait_until_ready(self.address, START_S, lambda: self._child.poll() is None)
        except ServiceError as error:
            self._child.kill()
            said = self._said()
            self.close()
            raise DeviceUnusable(f"the service did not start: {said or error.message}") from error
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

    def _said(self) -> str:
        """The last line that it printed."""
        self._child.wait(STOP_S)
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

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
            self._log.close()
            if self._child.returncode:
                with suppress(AccelError):
                    listen.clear(self._place)
        if code not in (0, -9):
            raise AccelError(f"the service ended with status {code}", kind="internal")

    def __enter__(self) -> OwnService:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except AccelError:
            if error is None:
                raise
