"""The data channel against a plain copy and against gRPC streaming, in turns: `python -m tests.perf.channel`.

The service is another process. All three move the same bytes from a buffer of the client to a buffer of the service
(upload) or back, the channel with its checksums, gRPC without any: its messages are raw bytes of CHUNK with no protobuf
around them, over a Unix socket, and are copied into place as they come. A plain copy is one `a[:] = b` in the client.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tests.channelkit import child, said
from tests.perf.bench import Result

SIZE = 64 << 20
"""Bytes of the tensor: more than the caches hold."""
CHUNK = 256 << 10
"""Bytes of a gRPC message, as much as a slot of the channel."""
ROUNDS = 15
OF_MEMCPY, OF_GRPC = 1 / 0.45, 1 / 10
"""Limits: time of the channel / time of the other."""

SERVICE = "import sys; from tests.perf.channel import serve; serve(*sys.argv[1:])"


def touched(size: int, value: int = 1) -> bytearray:
    """A buffer whose pages are there."""
    return bytearray([value]) * size


def serve(path: str, address: str) -> None:
    """The service's process, until its standard input ends. Prints the token."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    from accelctl.umd.channel.door import Door, Guest

    tensor = memoryview(touched(SIZE))
    door = Door(path)
    server = grpc.server(ThreadPoolExecutor(2))

    def upload(pieces: Iterator[bytes], _: Any) -> bytes:
        at = 0
        for piece in pieces:
            tensor[at : at + len(piece)] = piece
            at += len(piece)
        return b""

    calls = {"Up": grpc.stream_unary_rpc_method_handler(upload)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("perf", calls),))
    server.add_insecure_port(address)
    server.start()
    print(door.offer(Guest(1, lambda _: (tensor, SIZE))).hex(), flush=True)
    sys.stdin.read()
    server.stop(None)
    door.close()


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(rounds: int, *works: Callable[[], object]) -> list[list[float]]:
    """Times of each, after one unmeasured round."""
    for work in works:
        work()
    times = [[seconds(work) for work in works] for _ in range(rounds)]
    return [list(column) for column in zip(*times, strict=True)]


def measured(path: str, address: str, token: bytes) -> Iterable[Result]:
    """The figures, against a running service."""
    import grpc

    from accelctl.umd.channel.tunnel import Tunnel

    data, back, copy = touched(SIZE, 7), touched(SIZE), touched(SIZE)
    source, target = memoryview(data), memoryview(copy)

    def plain() -> None:
        target[:] = source

    with Tunnel(path, token) as tunnel, grpc.insecure_channel(address) as channel:
        stream = channel.stream_unary("/perf/Up")
        times = in_turns(
            ROUNDS,
            plain,
            lambda: tunnel.upload([(1, 0, data)]),
            lambda: tunnel.download([(1, 0, back)]),
            lambda: stream(bytes(source[at : at + CHUNK]) for at in range(0, SIZE, CHUNK)),
        )
        small = median(seconds(lambda: tunnel.upload([(1, 0, b"x" * 1024)])) for _ in range(200))
    if back != data:
        raise SystemExit("the channel brought back other bytes than it was given")
    yield from figures(*times)
    yield Result("data channel, 1 KiB up and acknowledged", small * 1e6, "us", None, "median of 200")


def figures(plain: list[float], up: list[float], down: list[float], streamed: list[float]) -> Iterable[Result]:
    """Times as ratios of pairs."""

    def gbs(times: list[float]) -> str:
        return f"{SIZE / median(times) / 1e9:.2f} GB/s"

    def ratio(one: list[float], other: list[float]) -> float:
        return median(a / b for a, b in zip(one, other, strict=True))

    for name, times in (("up", up), ("down", down)):
        detail = f"{gbs(times)} against {gbs(plain)}: {1 / ratio(times, plain):.2f} of a plain copy"
        yield Result(f"data channel {name} / plain copy", ratio(times, plain), "x", OF_MEMCPY, detail)
    detail = f"{gbs(up)} against {gbs(streamed)}: {1 / ratio(up, streamed):.1f} times as fast"
    yield Result("data channel up / gRPC stream", ratio(up, streamed), "x", OF_GRPC, detail)


def channel() -> Iterable[Result]:
    """All of it: for tests/perf/bench.py."""
    with tempfile.TemporaryDirectory() as folder:
        path, address = str(Path(folder, "data")), f"unix:{folder}/grpc"
        service = child(SERVICE, path, address)
        try:
            yield from measured(path, address, bytes.fromhex(said(service)))
        finally:
            service.communicate(timeout=30)


def main() -> int:
    """Print the figures; 1 when a limit is broken."""
    results = list(channel())
    print(*results, sep="\n")
    return int(not all(result.good for result in results))


if __name__ == "__main__":
    sys.exit(main())
