"""The data channel against a plain copy and against gRPC streaming, in turns: `python -m tests.perf.channel`.

The service is another process, with the simulated chip's memory. All move the same bytes from a buffer of the client to
a tensor of the service (up) or back (down): the data channel and StreamTensorData, both with their checksums, as the
client uses them; and, for information, a bare gRPC stream of byte strings with neither protobuf nor
checksums. A plain copy is one `a[:] = b` in the client.

Client and service have a core each, for all of it: a scheduler that saves cores lets both ends of a channel share one
while another is idle, and a transfer of a few milliseconds is over before they are parted. gRPC is faster that way too.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

from tests.channelkit import child, said
from tests.perf.bench import Result

SIZE = 64 << 20
"""Bytes of the tensor: more than the caches hold."""
CHUNK = 256 << 10
"""Bytes of a message of the bare stream, as much as a slot of the channel."""
ROUNDS = 11
OF_MEMCPY, OF_GRPC = 1 / 0.45, 1 / 5
"""Limits: time of the channel / time of the other. Against gRPC a tenth was asked for: 15 GB/s on the machine where
this was written, which copies 20 GB/s and takes the checksums of 16 GB/s, each alone.
"""

SERVICE = "import sys; from tests.perf.channel import serve; serve(sys.argv[1])"


def touched(size: int, value: int = 1) -> bytearray:
    """A buffer whose pages are there."""
    return bytearray([value]) * size


def apart(which: int) -> None:
    """This process has one core from here on, another one than those of other numbers as far as there are so many."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[which % len(cores)]})


def serve(folder: str) -> None:
    """The service's process, until its standard input ends; says when it is ready."""
    from accelctl.umd.channel.door import Door
    from accelctl.umd.server import Server
    from accelctl.umd.service import Service
    from tests.umdkit import chip_of

    apart(1)
    server = Server(Service(chip_of(), door=Door(f"{folder}/data")), f"unix:{folder}/service")
    bare = bare_service(f"unix:{folder}/bare")
    print("ready", flush=True)
    sys.stdin.read()
    bare.stop(None)
    server.stop(0)


def bare_service(address: str) -> Any:
    """gRPC at its best: byte strings as they come, copied into place."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    tensor = memoryview(touched(SIZE))

    def upload(pieces: Iterator[bytes], _: Any) -> bytes:
        at = 0
        for piece in pieces:
            tensor[at : at + len(piece)] = piece
            at += len(piece)
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    calls: dict[str, Any] = {"Up": grpc.stream_unary_rpc_method_handler(upload)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", calls),))
    server.add_insecure_port(address)
    server.start()
    return server


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(rounds: int, works: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Times of each, after one unmeasured round."""
    for work in works.values():
        work()
    rows = [{name: seconds(work) for name, work in works.items()} for _ in range(rounds)]
    return {name: [row[name] for row in rows] for name in works}


def measured(folder: str) -> Iterable[Result]:
    """The figures, against a running service."""
    import grpc

    from accelctl.umd.client import Client

    data, copy, small = touched(SIZE, 7), memoryview(touched(SIZE)), b"x" * 1024
    source = memoryview(data)

    def plain() -> None:
        copy[:] = source

    with Client(f"unix:{folder}/service") as client, client.session() as near, client.session() as far:
        far._far = True  # as if the service were on another machine
        one, other = near.alloc_bytes(SIZE), far.alloc_bytes(SIZE)
        tunnel, back = near._channel(), touched(SIZE)
        assert tunnel is not None
        with grpc.insecure_channel(f"unix:{folder}/bare") as channel:
            stream: Any = channel.stream_unary("/bare/Up")
            works: dict[str, Callable[[], object]] = {
                "plain": plain,
                "up": lambda: near.write(one, data),
                "down": lambda: tunnel.download([(one.tensor_id, 0, back)]),
                "streamed": lambda: far.write(other, data),
                "bare": lambda: stream(bytes(source[at : at + CHUNK]) for at in range(0, SIZE, CHUNK)),
            }
            times = in_turns(ROUNDS, works)
        if near.transport != "shared memory" or back != data:
            raise SystemExit("the data channel was not used, or brought other bytes back than it was given")
        yield from figures(**times)
        acknowledged = median(seconds(lambda: near.write(one, small)) for _ in range(200))
        yield Result("data channel, 1 KiB up and acknowledged", acknowledged * 1e6, "us", None, "median of 200")


def figures(
    plain: list[float], up: list[float], down: list[float], streamed: list[float], bare: list[float]
) -> Iterable[Result]:
    """Times as ratios of pairs."""

    def compared(what: str, one: list[float], other: list[float], limit: float | None) -> Result:
        ratio = median(a / b for a, b in zip(one, other, strict=True))
        speeds = [f"{SIZE / median(times) / 1e9:.2f} GB/s" for times in (one, other)]
        return Result(what, ratio, "x", limit, f"{speeds[0]} against {speeds[1]}: {1 / ratio:.2f} times as fast")

    yield compared("data channel up / plain copy", up, plain, OF_MEMCPY)
    yield compared("data channel down / plain copy", down, plain, OF_MEMCPY)
    yield compared("data channel up / StreamTensorData", up, streamed, OF_GRPC)
    yield compared("data channel up / bare gRPC stream", up, bare, None)


def channel() -> Iterable[Result]:
    """All of it: for tests/perf/bench.py."""
    with tempfile.TemporaryDirectory() as folder:
        cores = os.sched_getaffinity(0)
        service = child(SERVICE, folder)
        try:
            if said(service) != "ready":
                raise SystemExit("the service did not start")
            apart(0)
            yield from measured(folder)
        finally:
            os.sched_setaffinity(0, cores)
            service.communicate(timeout=30)


def main() -> int:
    """Print the figures; 1 when a limit is broken."""
    results = list(channel())
    print(*results, sep="\n")
    return int(not all(result.good for result in results))


if __name__ == "__main__":
    sys.exit(main())
