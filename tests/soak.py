"""Many sessions at once, and processes killed at random moments: `python -m tests.soak [SESSIONS SECONDS KILLS]`.

Each session runs mixed ops on numbers of its own and knows the right results, so a mix-up between sessions shows. What
must be true afterwards: no wrong result, no fence that never passes, memory of the service back where it was.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from accelctl.hal import ownpython
from accelctl.smoke.ownservice import OwnService
from accelctl.umd.client import Client, ClientSession, ServiceError, wait_until_ready
from tests.helpers import ROOT

Array = Any


class Soaked(NamedTuple):
    """What came of it."""

    sessions: int
    seconds: float
    ops: int
    wrong: list[str]
    left_bytes: int
    """Of the device that the service still holds when all sessions are closed."""
    rss_growth_bytes: int


def soak(sessions: int, seconds: float) -> Soaked:
    """Run it against a service of its own."""
    wrong: list[str] = []
    counts = [0] * sessions
    with OwnService("sim:0") as service, Client(service.address, deadline_s=60) as client:
        _session(client, 0, time.monotonic() + 0.5, [], [0])  # what is only made once is made now
        before = _rss(service.pid)
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=_session, args=(client, number, end, wrong, counts)) for number in range(sessions)
        ]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent = time.monotonic() - begin
        left = client.telemetry().held_bytes
        return Soaked(sessions, spent, sum(counts), wrong, left, _rss(service.pid) - before)


def _rss(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _session(client: Client, number: int, end: float, wrong: list[str], counts: list[int]) -> None:
    rng = np.random.default_rng(number)
    try:
        with client.session(queue_depth=16) as session:
            while time.monotonic() < end and len(wrong) < 10:
                op = _OPS[int(rng.integers(len(_OPS)))]
                said = op(session, rng)
                counts[number] += 1
                if said:
                    wrong.append(f"session {number}: {said}")
    except ServiceError as error:
        wrong.append(f"session {number}: {error.message}")


def _put(session: ClientSession, array: Array) -> Any:
    tensor = session.alloc(array.shape, "fp32")
    session.write(tensor, array.tobytes())
    return tensor


def _run(session: ClientSession, op: str, inputs: list[Array], attrs: dict[str, str], right: Array) -> str:
    held = [_put(session, array.astype(np.float32)) for array in inputs]
    answer = session.translate(session.request(op, held, attrs=attrs, submit=True))
    if not session.wait(answer.fence, 60):
        return f"{op}: fence {answer.fence} is lost"
    got = np.frombuffer(session.read(answer.outputs[0]), np.float32).reshape(right.shape)
    for tensor in [*held, *answer.outputs]:
        session.free(tensor)
    off = float(np.abs(got - right).max(initial=0.0))
    return "" if off <= 1e-4 else f"{op} {[array.shape for array in inputs]}: off by {off:g}"


def _relu(session: ClientSession, rng: np.random.Generator) -> str:
    x = rng.normal(size=int(rng.integers(1, 3000))).astype(np.float32)
    return _run(session, "relu", [x], {}, np.maximum(x, 0))


def _add(session: ClientSession, rng: np.random.Generator) -> str:
    rows, columns = (int(n) for n in rng.integers(1, 40, 2))
    a, b = rng.normal(size=(rows, columns)).astype(np.float32), rng.normal(size=(1, columns)).astype(np.float32)
    return _run(session, "add", [a, b], {}, a + b)


def _matmul(session: ClientSession, rng: np.random.Generator) -> str:
    m, k, n = (int(n) for n in rng.integers(1, 40, 3))
    a, b = rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=(k, n)).astype(np.float32)
    return _run(session, "matmul", [a, b], {}, a @ b)


def _softmax(session: ClientSession, rng: np.random.Generator) -> str:
    x = rng.normal(size=(int(rng.integers(1, 20)), int(rng.integers(1, 60)))).astype(np.float32)
    power = np.exp(x - x.max(axis=-1, keepdims=True))
    return _run(session, "softmax", [x], {"axis": "-1"}, power / power.sum(axis=-1, keepdims=True))


_OPS: list[Callable[[ClientSession, np.random.Generator], str]] = [_relu, _add, _matmul, _softmax]

_CLIENT = """
import sys, time
import numpy as np
from accelctl.umd.client import Client
from tests import soak
with Client(sys.argv[1], deadline_s=60) as client:
    print("up", flush=True)
    soak._session(client, int(sys.argv[2]), time.monotonic() + 60, [], [0] * 1000)
"""


def kill(times: int, seed: int = 0) -> list[str]:
    """Kill clients and services at random moments; what was wrong afterwards."""
    rng = random.Random(seed)
    wrong: list[str] = []
    for turn in range(times):
        with_service = turn % 2 == 1
        with OwnService("sim:0", ("--keepalive", "10")) as service:
            wrong += _one_kill(service, turn, rng.uniform(0.0, 0.4), with_service)
    return wrong


def _one_kill(service: OwnService, turn: int, after_s: float, with_service: bool) -> list[str]:
    words = [sys.executable, "-c", _CLIENT, service.address, str(turn)]
    child = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    try:
        child.stdout.readline()
        time.sleep(after_s)
        if with_service:
            os.kill(service.pid, signal.SIGKILL)
            child.wait(70)
            return _after_service(service, turn)
        child.kill()
        child.wait()
        return _after_client(service, turn)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def _after_client(service: OwnService, turn: int) -> list[str]:
    """The session goes by itself, and the next one works."""
    with Client(service.address, deadline_s=20) as client:
        end = time.monotonic() + 60
        while client.telemetry().sessions and time.monotonic() < end:
            time.sleep(0.1)
        sample = client.telemetry()
        wrong = []
        if sample.sessions or sample.held_bytes:
            wrong = [f"turn {turn}: {len(sample.sessions)} sessions and {sample.held_bytes} bytes of a killed client"]
        if rings := _rings(service.pid):
            wrong.append(f"turn {turn}: {rings} rings of a killed client are still mapped")
        return wrong + _works(client, turn)


def _after_service(service: OwnService, turn: int) -> list[str]:
    """The next one takes the same address over, with all that the killed one left there."""
    path = service.address.removeprefix("unix:")
    words = ["serve", "--device", "sim:0", "--listen", path, "--stop-on-eof"]
    command = ownpython.command("accelctl", words)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as heir:
        assert heir.stdin is not None
        try:
            wait_until_ready(service.address, 60, lambda: heir.poll() is None)
            with Client(service.address, deadline_s=20) as client:
                wrong = _works(client, turn)
            heir.stdin.close()
            code = heir.wait(30)
            return wrong + ([f"turn {turn}: the next service ended with status {code}"] if code else [])
        finally:
            heir.kill()


def _works(client: Client, turn: int) -> list[str]:
    with client.session() as session:
        said = _relu(session, np.random.default_rng(turn))
    return [f"turn {turn}: {said}"] if said else []


def _rings(pid: int) -> int:
    """Data channels' memory that a service has mapped."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        return file.read().count("memfd:accelctl")


def main(words: list[str]) -> int:
    """Print what came of it; 1 where something was wrong."""
    sessions, seconds, kills = (int(word) for word in words or ("64", "60", "50"))
    found = soak(sessions, seconds)
    print(
        f"{found.sessions} sessions, {found.seconds:.0f} s, {found.ops} ops: {len(found.wrong)} wrong, "
        f"{found.left_bytes} bytes left in pools, RSS {found.rss_growth_bytes / 2**20:+.1f} MiB",
        flush=True,
    )
    wrong = [*found.wrong, *kill(kills)]
    print(f"{kills} kills: {len(wrong) - len(found.wrong)} wrong")
    print("\n".join(wrong))
    return int(bool(wrong) or found.left_bytes > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
