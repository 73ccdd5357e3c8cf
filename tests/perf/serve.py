"""What the service must reach, measured in pairs within one run: a translation against an empty gRPC call of the same
sizes, a batch and a stream against single calls. The service and the echo are one server in a process of its own.

`python -m tests.perf.serve` prints the figures; with an address it is that server.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import grpc

from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.proto import umd_pb2_grpc
from accelctl.umd.server import Server
from accelctl.umd.service import Service
from tests.perf.bench import Result
from tests.umdkit import chip_of, client_of

ECHO = "umd.Echo"
ROUNDS, CALLS = 15, 200
BATCH = 50
STREAMED = 64


class Answer:
    """Gives back the same bytes, whatever comes."""

    def __init__(self) -> None:
        self.data = b""

    def set(self, data: bytes, _: object) -> bytes:
        self.data = data
        return b""

    def give(self, _: bytes, __: object) -> bytes:
        return self.data


class EchoServer(Server):
    """The service's server, options and all, with one more method that does nothing."""

    def listen(self) -> None:
        answer = Answer()
        handlers: dict[str, Any] = {
            "Set": grpc.unary_unary_rpc_method_handler(answer.set),
            "Give": grpc.unary_unary_rpc_method_handler(answer.give),
        }
        self._grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ECHO, handlers),))
        super().listen()


def child(address: str) -> None:
    """Serve until stdin ends."""
    server = EchoServer(Service(chip_of()), address)
    print("ready", flush=True)
    sys.stdin.read()
    server.stop(0)


class Bench:
    """A client of that server, with one op that is in its cache."""

    def __init__(self, channel: grpc.Channel) -> None:
        made: Any = umd_pb2_grpc
        self.stub = made.InstructionTranslatorStub(channel)
        self.session = self.stub.CreateSession(pb.CreateSessionRequest(client="bench")).session_id
        self.ops = [self.matmul(16 * (n + 1)) for n in range(STREAMED)]
        self.request = self.ops[0]
        answer = [self.stub.TranslateOp(self.request) for _ in range(2)][-1]
        assert answer.cache_hit
        channel.unary_unary(f"/{ECHO}/Set")(answer.SerializeToString())
        self.echo = channel.unary_unary(
            f"/{ECHO}/Give",
            request_serializer=pb.OpRequest.SerializeToString,
            response_deserializer=pb.OpResponse.FromString,
        )

    def alloc(self, *shape: int) -> pb.TensorDesc:
        wanted = pb.TensorDesc(shape=shape, data_type=pb.FP32)
        tensor: pb.TensorDesc = self.stub.AllocTensor(
            pb.AllocTensorRequest(session_id=self.session, tensor=wanted)
        ).tensor
        return tensor

    def matmul(self, size: int) -> pb.OpRequest:
        tensors = [self.alloc(size, size) for _ in range(3)]
        return pb.OpRequest(
            session_id=self.session, request_id=7, op_type=pb.MATMUL, inputs=tensors[:2], outputs=tensors[2:]
        )

    def messages(self, count: int, size: int) -> Iterator[pb.BatchOpRequest]:
        message = pb.BatchOpRequest(session_id=self.session, ops=self.ops[:size])
        return (message for _ in range(count))


@contextmanager
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/s"
        command = [sys.executable, "-m", "tests.perf.serve", address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == b"ready\n"
            with grpc.insecure_channel(address) as channel:
                yield Bench(channel)
            process.stdin.close()


ROOT = Path(__file__).resolve().parents[2]


def each(calls: int, call: Callable[[], object]) -> float:
    """Seconds a call takes, the median of many: one that met a pause of the machine says nothing."""
    found = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return median(found)


def in_turns(*calls: tuple[int, Callable[[], object]]) -> list[list[float]]:
    """Per call its times, round by round."""
    for count, call in calls:
        each(count, call)
    return [list(times) for times in zip(*([each(n, call) for n, call in calls] for _ in range(ROUNDS)), strict=True)]


def ratio(what: str, ours: list[float], theirs: list[float], limit: float, per: int = 1) -> Result:
    """Median of ours / theirs over the rounds."""
    value = median(a / per / b for a, b in zip(ours, theirs, strict=True))
    detail = f"{median(ours) / per * 1e6:.0f} us / {median(theirs) * 1e6:.0f} us, {len(ours)} rounds"
    return Result(what, value, "x", limit, detail)


def results() -> Iterable[Result]:
    """All of it."""
    with bench() as one:
        batch = pb.BatchOpRequest(session_id=one.session, ops=one.ops[:BATCH])
        single, echo, batched, stream = in_turns(
            (CALLS, lambda: one.stub.TranslateOp(one.request)),
            (CALLS, lambda: one.echo(one.request)),
            (20, lambda: one.stub.TranslateOpsBatch(batch)),
            (1, lambda: list(one.stub.TranslateStream(one.messages(20, STREAMED)))),
        )
        yield ratio("TranslateOp (hit) / gRPC echo of the same sizes", single, echo, 1.25)
        yield ratio("per op in a batch of 50 / TranslateOp", batched, single, 0.1, BATCH)
        yield ratio("per op in a TranslateStream / TranslateOp", stream, single, 1 / 3, 20 * STREAMED)
    yield from server_side()


COLD = (
    ("cold, new to its session", 60, ("plans", "answers", "known"), False),
    ("cold, new to the chip", 60, ("plans", "answers", "known"), True),
    ("hit, other addresses", 20, ("answers",), False),
    ("hit", 20, (), False),
)
"""What of a session is emptied before, and whether what the chip's sessions share is emptied as well."""


def server_side() -> Iterable[Result]:
    """Microseconds from the bytes of a request to those of its answer, in process. The figure is that of the best
    tenth: what a machine with other work adds says nothing about the service."""
    with client_of() as client:
        tensors = [client.alloc((16, 16)) for _ in range(3)]
        raw = client.request("matmul", tensors[:2], {}, tensors[2:]).SerializeToString()
        for name, limit, kept, shared in COLD:
            found = []
            for _ in range(3000):
                for each_kept in kept:
                    getattr(client.session, each_kept).clear()
                if shared:
                    client.service.chip.plans.clear()
                start = time.perf_counter()
                client.service.translate(raw, 1.0)
                found.append((time.perf_counter() - start) * 1e6)
            found.sort()
            detail = f"median {median(found):.0f} us, 9 of 10 below {found[2700]:.0f} us"
            yield Result(f"server-side translation, {name}", found[300], "us", limit, detail)


def main() -> int:
    """Print a line per figure."""
    bad = 0
    for result in results():
        print(result, flush=True)
        bad += not result.good
    return 1 if bad else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1])
    else:
        sys.exit(main())
