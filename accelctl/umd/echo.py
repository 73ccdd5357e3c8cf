"""gRPC and nothing behind it: what a round trip costs on this machine whatever a service does.

A server in a process of its own, with the service's own options, that gives back bytes it was handed before. A call of
the service is compared with it in turns, so that what gRPC, the kernel and the other load of the machine add falls out.
Run as ``python -m accelctl.umd.echo ADDRESS`` it serves until its standard input ends.
"""

from __future__ import annotations

import itertools
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc

from accelctl.errors import DeviceUnusable
from accelctl.hal import ownpython
from accelctl.hal.claim import private_folder
from accelctl.umd import listen
from accelctl.umd.connect import MESSAGE_LIMIT, connect
from accelctl.umd.server import OPTIONS, WORKERS, sizes

NAME = "accelctl.Echo"
START_S, STOP_S = 60.0, 5.0


class _Methods(grpc.GenericRpcHandler):
    """``Set/N`` keeps what it is given, ``Give/N`` gives that back, ``Upload`` takes bytes and forgets them."""

    def __init__(self) -> None:
        self._answers: dict[str, bytes] = {}

    def service(self, handler_call_details: Any) -> Any:
        """The method of that name; None: there is none."""
        kind, _, number = handler_call_details.method.removeprefix(f"/{NAME}/").partition("/")
        if kind == "Upload":
            return grpc.stream_unary_rpc_method_handler(_upload)
        if kind == "Give":
            return grpc.unary_unary_rpc_method_handler(lambda _, __: self._answers.get(number, b""))
        if kind == "Set":
            return grpc.unary_unary_rpc_method_handler(lambda data, _: self._keep(number, data))
        return None

    def _keep(self, number: str, data: bytes) -> bytes:
        self._answers[number] = data
        return b""


def _upload(pieces: Iterator[bytes], _: Any) -> bytes:
    """Bytes as they come, to nowhere."""
    for _piece in pieces:
        pass
    return b""


def serve(address: str) -> grpc.Server:
    """Listening at a Unix socket."""
    options = (*sizes(MESSAGE_LIMIT), *OPTIONS)
    server = grpc.server(ThreadPoolExecutor(WORKERS), options=options, maximum_concurrent_rpcs=WORKERS)
    server.add_generic_rpc_handlers((_Methods(),))
    server.add_insecure_port(address)
    server.start()
    return server


class Echo:
    """Such a server as a child, and a connection to it. It ends when our end of its standard input closes."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._place = listen.parse(f"{private_folder()}/echo-{secrets.token_hex(4)}")
        command = ownpython.command("accelctl.umd.echo", [self._place.grpc])
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._child = subprocess.Popen(command, stdin=pipe, stdout=nothing, stderr=nothing, start_new_session=True)
        self._channel = connect(self._place.grpc)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        self._upload: Any = self._channel.stream_unary(f"/{NAME}/Upload")

    def _wait(self) -> None:
        ready, end = grpc.channel_ready_future(self._channel), time.monotonic() + START_S
        while True:
            try:
                ready.result(timeout=0.2)
                return
            except grpc.FutureTimeoutError:
                if self._child.poll() is not None or time.monotonic() > end:
                    raise DeviceUnusable(
                        "the empty gRPC server, which calls are compared with, did not start"
                    ) from None

    def like(self, request: Any, answer: Any) -> Callable[[], Any]:
        """A call that sends as many bytes as that request has, and gets as many as that answer has, parsed as such."""
        number = next(self._numbers)
        self._channel.unary_unary(f"/{NAME}/Set/{number}")(answer.SerializeToString(), timeout=START_S)
        give: Any = self._channel.unary_unary(
            f"/{NAME}/Give/{number}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=type(answer).FromString,
        )
        return lambda: give(request, timeout=START_S)

    def upload(self, pieces: Iterable[bytes]) -> None:
        """Stream bytes to where nobody looks at them."""
        self._upload(iter(pieces), timeout=START_S)

    def close(self) -> None:
        """Connection and child; safe to call twice."""
        self._channel.close()
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def __enter__(self) -> Echo:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


if __name__ == "__main__":
    running = serve(sys.argv[1])
    sys.stdin.read()
    running.stop(None).wait()
