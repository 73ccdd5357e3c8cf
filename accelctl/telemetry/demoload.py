"""The clients of `accelctl top --demo`: one that computes, one that allocates and frees, one that leaks.

`python -m accelctl.telemetry.demoload ROLE ADDRESS`; each is a process of its own under a name of its own, so that the
process table has something to tell apart. It ends when its standard input does: with whoever started it.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from itertools import cycle
from typing import TYPE_CHECKING, Any

from accelctl.hal.ownname import rename

if TYPE_CHECKING:
    from accelctl.umd.client import Client, ClientSession

LEAK_BYTES, LEAK_EVERY_S = 192 << 10, 0.3
LEAK_MOST = 160 << 20
"""What the leaking one loses before it begins anew: a demonstration may run for hours."""
HELD_MOST = 24 << 20
ROWS = 256
START_S = 120.0


def compute(session: ClientSession) -> None:
    """What a small network does all the time: a few ops on tensors that stay, and one that is allocated and freed."""
    x, y, w = (session.alloc((ROWS, ROWS), "fp32") for _ in range(3))
    for tensor in (x, y, w):
        session.write(tensor, bytes(tensor.byte_size))
    pause = cycle((0.02, 0.03, 0.05, 0.15))
    while True:
        made = session.alloc((ROWS, ROWS), "fp32")
        ops = [
            session.request("matmul", [x, w], [made], submit=True),
            session.request("softmax", [made], [y], submit=True),
            session.request("relu", [y], [made], submit=True),
            session.request("add", [made, x], [y], submit=True),
        ]
        session.wait(max(one.fence for one in session.batch(ops).responses))
        session.free(made)
        time.sleep(next(pause))


def churn(session: ClientSession) -> None:
    """What stress does: sizes of all classes, taken and given back in no order."""
    draw = random.Random(5)
    held: list[Any] = []
    total = 0
    while True:
        size = draw.choice((4, 12, 40, 160, 640, 2560)) << 10
        if held and (total + size > HELD_MOST or draw.random() < 0.45):
            total -= session.free(held.pop(draw.randrange(len(held))))
        else:
            held.append(session.alloc_bytes(size))
            total += size
        time.sleep(0.05)


def leak(session: ClientSession) -> None:
    """A tensor every few hundred milliseconds, and none is freed."""
    for _ in range(LEAK_MOST // LEAK_BYTES):
        session.alloc_bytes(LEAK_BYTES)
        time.sleep(LEAK_EVERY_S)


ROLES: dict[str, Callable[[ClientSession], None]] = {"compute": compute, "churn": churn, "leak": leak}


def main(role: str, address: str) -> None:
    """Play one role for ever. A service that is not there any more, or restarts, is waited for."""
    rename(f"demo-{role}")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from accelctl.umd.client import Client, ServiceError, wait_until_ready

    wait_until_ready(address, START_S)
    with Client(address, deadline_s=5.0, name=f"demo-{role}, pid {os.getpid()}") as client:
        while True:
            try:
                _play(ROLES[role], client)
            except ServiceError:
                time.sleep(1.0)


def _play(role: Callable[[ClientSession], None], client: Client) -> None:
    with client.session() as session:
        role(session)


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:3])
