"""One end of a data channel's side socket: messages that wait, and the bell that says "look into the ring again".

The bell is rung once per several chunks. A ring that finds the peer's queue full is dropped: a full queue wakes it too.
Whoever waits looked into the ring before, and a ring is sent after the slot was finished, so none is missed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from accelctl.errors import TimeoutFailure
from accelctl.hal.sidesocket import Gone, SideSocket
from accelctl.umd.channel.messages import LIMIT, ChannelError, Kind, Message, Refused, unpack

SPIN_S = 1e-4
"""How long to look again before going to sleep: about two chunks. Waking up takes as long as copying one or two."""
PATIENCE_S = 5.0
"""How long the other side may do nothing in the middle of a transfer."""
_MAX_INBOX = 16
_MAX_DRAIN = 256
"""Messages taken at one time; a peer that sends more is only let wait."""


class Link:
    """Used by one thread. ``patience_s``: see PATIENCE_S."""

    def __init__(self, sock: SideSocket, patience_s: float = PATIENCE_S) -> None:
        self.sock = sock
        self.patience_s = patience_s
        self._inbox: deque[Message] = deque()
        self._wake = Message(Kind.WAKE).pack()
        self.rings = 0

    def send(self, message: Message) -> None:
        """Send a message. Raises Gone, TimeoutFailure."""
        self.sock.send(message.pack(), timeout_s=self.patience_s)

    def ring(self) -> None:
        """Wake the other side up. Raises Gone."""
        self.rings += 1
        self.sock.hint(self._wake)

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until the other side says anything. Raises Gone, ChannelError, TimeoutFailure."""
        self._file(unpack(self.sock.receive(LIMIT, timeout_s=timeout_s).data))
        for _ in range(_MAX_DRAIN):
            if not self.sock.pending():
                return
            try:
                self._file(unpack(self.sock.receive(LIMIT, timeout_s=0).data))
            except Gone:
                if self._inbox:  # its last words come first
                    return
                raise

    def _file(self, message: Message) -> None:
        if message.kind is Kind.WAKE:
            return
        if len(self._inbox) >= _MAX_INBOX:
            raise ChannelError("the other side sends messages without waiting for answers")
        self._inbox.append(message)

    def next(self, timeout_s: float | None) -> Message:
        """The next message that is not a bell; timeout_s None: however long it takes. Raises as :meth:`wait` does."""
        while not self._inbox:
            self.wait(timeout_s)
        return self._inbox.popleft()

    def progress(self, transfer: int, what: str, until: float, ready: Callable[[], bool]) -> None:
        """Wait in the middle of a transfer until ``ready`` or the other side says anything; to ``until``
        (time.monotonic) at the latest, so a peer that rings without doing anything gains nothing.

        Raises TimeoutFailure that says ``what`` has not happened; Refused or ChannelError when the other side gave the
        transfer up, before anything was written for it or in the middle; and what :meth:`wait` does.
        """
        failed = next((m for m in self._inbox if m.kind is Kind.FAIL and m.transfer == transfer), None)
        if failed is not None:
            self._inbox.remove(failed)
            raise (ChannelError if failed.a else Refused)(f"data channel: {failed.text}")
        now = time.monotonic()
        try:
            if now >= until:
                raise TimeoutFailure("")
            spun = now + SPIN_S
            while not ready():
                if time.monotonic() > spun:
                    self.wait(until - now)
                    return
                time.sleep(0)  # lets other threads of this process run
        except TimeoutFailure:
            raise TimeoutFailure(
                f"data channel, transfer {transfer}: {what} for {self.patience_s:g} s; it is closed"
            ) from None
