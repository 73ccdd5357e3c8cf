"""Clients and fork, as gRPC is outside the tests: in a process of its own, and the service in another."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from tests.helpers import ROOT

START = """
import multiprocessing, os
from accelctl.hal.reader import Finished, WatchedChild
from accelctl.smoke.ownservice import OwnService
from accelctl.umd.client import Client

def sockets():
    paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum(os.readlink(path).startswith("socket:") for path in paths if os.path.lexists(path))

def right(session, calls):
    x = session.alloc((1,), "fp32")
    session.write(x, b"\\0\\0\\x80\\xbf")
    y = session.alloc((1,), "fp32")
    session.wait(session.translate(session.request("relu", [x], [y], submit=True)).fence)
    assert session.read(y) == b"\\0\\0\\0\\0"
    request = session.request("relu", [x], [y])
    return all(session.translate(request).instructions for _ in range(calls))
"""

WATCHED = """
with OwnService("sim:0") as service, Client(service.address, deadline_s=30) as client:
    for _ in range(30):
        assert client.handshake().device == "sim:0"
        with WatchedChild(lambda watch: sum(range(300_000))) as child:
            child.start()
            event = child.poll(20)
            assert isinstance(event, Finished), event
print("all came back")
"""

WORKERS = """
def work(client, pipe):
    with client.session() as session:
        pipe.send(right(session, 100))
    pipe.close()
    os._exit(0)

with OwnService("sim:0") as service, Client(service.address, deadline_s=30) as client, client.session() as session:
    assert right(session, 1)
    fork = multiprocessing.get_context("fork")
    pipes = []
    for _ in range(4):
        ours, theirs = fork.Pipe()
        child = fork.Process(target=work, args=(client, theirs))
        child.start()
        pipes.append((ours, child))
    for ours, child in pipes:
        assert ours.poll(60), "a forked worker hangs"
        assert ours.recv()
        child.join(10)
    assert right(session, 1)
print("all came back")
"""

CHANNELS = """
before = sockets()  # the connection that asked whether the service is ready may still be there, and is used again
with OwnService("sim:0") as service:
    clients = [Client(service.address, deadline_s=30) for _ in range(8)]
    for client in clients:
        with client.session() as session:
            assert right(session, 10)
    print(f"{sockets() - before} sockets")
    for client in clients:
        client.close()
"""


def run(script: str) -> str:
    """What it printed. Nothing is said to gRPC, unlike in this process."""
    plain = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-W", "ignore", "-c", START + script]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200, cwd=ROOT, env=plain)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_watched_child_forked_beside_a_client_comes_back() -> None:
    """gRPC starts its threads again in every child; its poller aborts where /dev/null stands in place of its epoll."""
    assert run(WATCHED) == "all came back\n"


def test_forked_workers_get_channels_of_their_own() -> None:
    """RPC-03 b: the parent makes a call, then forks; nobody hangs."""
    assert run(WORKERS) == "all came back\n"


def test_eight_clients_of_one_process() -> None:
    """RPC-03 c: all answer; gRPC gives their channels one connection between them."""
    assert run(CHANNELS) == "1 sockets\n"
