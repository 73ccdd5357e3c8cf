"""The client: threads, forks, restarts, deadlines, proxies, both ways for data."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from accelctl.abi import compute
from accelctl.errors import KINDS, UsageError
from accelctl.umd.channel.door import Door
from accelctl.umd.chip import Chip
from accelctl.umd.client import Client, ServiceError, SessionGone, desc, wait_until_ready
from accelctl.umd.server import serve
from accelctl.umd.service import Service
from tests.helpers import ROOT


@contextmanager
def serving(address: str, door: Door | None = None) -> Iterator[Service]:
    found = compute.named("sim:0")
    service = Service(Chip.registered(found.chip, found.device.target), door=door)
    server = serve(service, address)
    try:
        yield service
    finally:
        server.stop(1.0)
        if door is not None:
            door.close()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with serving(f"unix:{tmp_path}/s"):
        yield f"unix:{tmp_path}/s"


def relu(session: Any, value: bytes) -> bytes:
    """relu of one fp32 through everything."""
    x = session.alloc((1,), "fp32")
    session.write(x, value)
    answer = session.translate(session.request("relu", [x], submit=True))
    assert session.wait(answer.fence)
    found = bytes(session.read(answer.outputs[0]))
    session.free(answer.outputs[0])
    session.free(x)
    return found


ONE, MINUS = b"\x00\x00\x80\x3f", b"\x00\x00\x80\xbf"


def test_an_op_through_everything(address: str) -> None:
    with Client(address, deadline_s=10) as client, client.session() as session:
        assert session.transport == "grpc"
        assert relu(session, ONE) == ONE
        assert relu(session, MINUS) in (b"\0\0\0\0", b"\0\0\0\x80")


def test_data_go_through_shared_memory_where_that_is_offered(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    door = Door(f"{tmp_path}/s.data")
    with serving(address, door), Client(address, deadline_s=10) as client:
        with client.session() as session:
            assert session.transport == "shared memory"
            data = os.urandom(3 << 20)
            tensor = session.alloc_bytes(len(data))
            session.write(tensor, data)
            assert session.read(tensor) == data
            session.write(tensor, b"abc", 5)
            assert session.read(tensor, 4, 5) == data[4:5] + b"abc" + data[8:9]
            assert session.free(tensor) >= len(data)
        assert door.counters["opened"] == 1
        assert door.channels == 0


def test_eight_threads_share_one_channel(address: str) -> None:
    """RPC-03 a: 8 threads, all answers right, one connection, no growth."""
    wrong: list[BaseException] = []
    with Client(address, deadline_s=30) as client, client.session() as session:
        x = session.alloc((4,), "fp32")

        def work(number: int) -> None:
            try:
                for turn in range(50):
                    request = session.request("relu", [x], [x], request_id=number * 1000 + turn)
                    assert session.translate(request).request_id == number * 1000 + turn
            except BaseException as error:
                wrong.append(error)

        relu(session, ONE)
        before = len(os.listdir("/proc/self/fd"))
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_restarted_service_is_found_again_and_old_sessions_are_gone(tmp_path: Path) -> None:
    """RPC-06."""
    address = f"unix:{tmp_path}/s"
    with Client(address, deadline_s=10) as client:
        with serving(address):
            first = client.session()
            old = first.alloc((8,), "fp32")
        with serving(address) as service:
            service.registrar.ids._start += 1  # a restart within the same second has the next one
            wait_until_ready(address, 10)
            second = client.session()
            new = second.alloc((8,), "fp32")
            second.write(new, ONE * 8)
            with pytest.raises(SessionGone):
                first.free(old)
            with pytest.raises(SessionGone) as caught:
                first.write(old, MINUS * 8)
            assert "session" in caught.value.message
            assert second.read(new) == ONE * 8
            first.close()
            second.close()


def test_no_service_is_one_line_and_not_a_hang(tmp_path: Path) -> None:
    with Client(f"unix:{tmp_path}/nobody", deadline_s=0.5) as client, pytest.raises(ServiceError) as caught:
        client.handshake()
    assert caught.value.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
    assert "\n" not in caught.value.message


NOBODY = """
import os, sys
from accelctl.umd.client import Client
if not os.getuid():
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    Client(sys.argv[1], deadline_s=10).handshake()
except Exception as error:
    print(error.kind, int(error.exit_code), error.message, error.hint, sep="\\n")
"""


def test_a_socket_of_another_user_is_a_right_that_is_missing(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    with serving(address):
        os.chmod(f"{tmp_path}/s", 0)
        done = subprocess.run(
            [sys.executable, "-c", NOBODY, address], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
        )
    assert done.stdout.splitlines() == [
        "permission", "5", f"permission denied: {tmp_path}/s is the socket of a service of another user",
        f"ls -l {tmp_path}/s",
    ]  # fmt: skip


GOAWAY = """
import socket, sys, threading
from accelctl.umd.client import Client

def goes_away(listener):
    while True:
        there, _ = listener.accept()
        there.recv(4096)
        there.sendall(bytes.fromhex("000000040000000000" "000008070000000000" "0000000000000002"))

with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    threading.Thread(target=goes_away, args=(listener,), daemon=True).start()
    try:
        Client(f"unix:{sys.argv[1]}", deadline_s=1).handshake()
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize(("wish", "logs"), [({}, False), ({"GRPC_VERBOSITY": "info"}, True)])
def test_grpc_writes_to_no_terminal_unless_it_is_told_to(wish: dict[str, str], logs: bool, tmp_path: Path) -> None:
    """A connection that the other side ends (SETTINGS, GOAWAY with an error) is worth a line at level INFO to it."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", GOAWAY, f"{tmp_path}/s"],
        env=plain | wish, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == "ServiceError\n"
    assert ("goaway" in done.stderr.lower()) == logs
    assert logs or done.stderr == ""


def test_an_op_that_there_is_not_names_the_nearest(address: str) -> None:
    with Client(address, deadline_s=10) as client, client.session() as session:
        with pytest.raises(UsageError, match=r"no op 'matmull' \(did you mean matmul\?\)"):
            session.request("matmull", [])
        with pytest.raises(UsageError, match="no op 'foo'"):
            session.request("foo", [])
        with pytest.raises(UsageError, match="no element type 'fp33'"):
            session.alloc((1,), "fp33")


def test_a_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:9")
    found = compute.named("sim:0")
    server = serve(Service(Chip.registered(found.chip, found.device.target)), "127.0.0.1:0")
    try:
        with Client(f"127.0.0.1:{server.port}", deadline_s=10) as client:
            assert client.handshake().device == "sim:0"
    finally:
        server.stop(1.0)


def test_a_refusal_names_the_field_and_its_kind(address: str) -> None:
    with Client(address, deadline_s=10) as client, client.session() as session:
        x = session.alloc((4,), "fp32")
        from accelctl.abi.tensors import DTYPES

        wrong = desc((5,), DTYPES["fp32"], tensor_id=x.tensor_id)
        with pytest.raises(ServiceError) as caught:
            session.translate(session.request("relu", [wrong]))
        assert caught.value.field.startswith("inputs[0]")
        assert caught.value.kind in KINDS


class _Lost:
    """A stub whose service is gone until the second call."""

    def __init__(self, failures: int) -> None:
        self.calls, self.failures = 0, failures

    def __getattr__(self, name: str) -> Any:
        def call(request: Any, timeout: float) -> str:
            self.calls += 1
            if self.calls <= self.failures:
                raise _Unavailable
            return "answer"

        return call


class _Unavailable(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "gone"

    def trailing_metadata(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize(("safe", "calls"), [(True, 2), (False, 1)])
def test_only_what_is_safe_is_asked_again(safe: bool, calls: int) -> None:
    client = Client("unix:/nowhere", deadline_s=5)
    stub = _Lost(1)
    client._stub, client._pid = stub, os.getpid()  # type: ignore[assignment]
    if safe:
        assert client.call("KeepAlive", None, safe=True) == "answer"
    else:
        with pytest.raises(ServiceError):
            client.call("AllocTensor", None)
    assert stub.calls == calls
