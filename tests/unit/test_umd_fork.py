"""A process that serves, and children forked in it."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from tests.helpers import ROOT

FORKED_BESIDE = """
import accelctl.umd.server  # as every process that serves does, before gRPC itself
import grpc
from concurrent.futures import ThreadPoolExecutor
from accelctl.hal.reader import Finished, WatchedChild

server = grpc.server(ThreadPoolExecutor(2))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    grpc.channel_ready_future(channel).result(10)
    for _ in range(20):
        with WatchedChild(lambda watch: sum(range(100_000))) as child:
            child.start()
            event = child.poll(20)
            assert isinstance(event, Finished), event
server.stop(None)
print("all came back")
"""


def test_a_child_forked_beside_a_running_server_is_left_alone() -> None:
    """gRPC's own fork handler restarts its poller in the child, which aborts on the descriptors it no longer has."""
    plain = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-c", FORKED_BESIDE]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd=ROOT, env=plain)
    assert ended.stdout == "all came back\n", ended.stderr
