"""What a call of the service costs, against gRPC with nothing behind it: single ops, batches, streams, the cache, and
the data channel against messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from accelctl.accept.bench.rounds import Task, clock
from accelctl.accept.bench.subject import KIB, MIB, Subject
from accelctl.model.benchreport import BYTES_PER_S, SECONDS

BATCH, STREAMED, MESSAGES = 50, 64, 4
"""Ops in a batch, ops in a message of a stream, messages of a stream."""
ELEMENTS = 256
"""Of the ops that are translated; some of a batch have a few more."""
PIECE = 256 * KIB
"""Bytes of a message of the bare stream, as many as a slot of the channel has."""
ECHO, LOOP = "empty gRPC call", "loop of Python"
Group = Callable[[], list[Task]]


def roundtrip(subject: Subject) -> Iterator[Group]:
    """One op, translated before: with and without running it; and the service's emptiest call."""
    yield partial(_roundtrip, subject)


def _roundtrip(subject: Subject) -> list[Task]:
    session, one = subject.session, copy_request(subject, ELEMENTS)
    answer = [session.translate(one) for _ in range(2)][-1]
    echo = subject.echo.like(one, answer)
    run = copy_request(subject, ELEMENTS, submit=True)

    def through() -> None:
        session.wait(session.translate(run).fence)

    def twice() -> None:
        echo()
        echo()

    return [
        _call("roundtrip", "TranslateOp, translated before", lambda: session.translate(one), echo),
        _call("roundtrip", "TranslateOp, run and waited for", through, twice, floor_name=f"two of an {ECHO}"),
        _call("roundtrip", "Handshake", subject.client.handshake, echo),
    ]


def _call(part: str, name: str, call: Callable[[], object], echo: Callable[[], object], **more: Any) -> Task:
    return Task(part, name, SECONDS, call, floor=echo, **{"floor_name": ECHO, **more})


def batch(subject: Subject) -> Iterator[Group]:
    """Per op of a batch."""
    yield partial(_batch, subject)


def _batch(subject: Subject) -> list[Task]:
    requests, echo = _several(subject, BATCH)
    call = lambda: subject.session.batch(requests)  # noqa: E731
    return [_call("batch", f"an op of {BATCH} in a batch", call, echo, amount=BATCH, floor_amount=1)]


def stream(subject: Subject) -> Iterator[Group]:
    """Per op of a stream."""
    yield partial(_stream, subject)


def _stream(subject: Subject) -> list[Task]:
    requests, echo = _several(subject, STREAMED)
    count = STREAMED * MESSAGES

    def call() -> None:
        for answer in subject.session.stream([requests] * MESSAGES, 60.0):
            assert answer.status.code == 0

    return [_call("stream", f"an op of {count} in a stream", call, echo, amount=count, floor_amount=1)]


def _several(subject: Subject, count: int) -> tuple[list[Any], Callable[[], object]]:
    """Different ops, all translated before, and an empty call as large as one of them."""
    requests = [copy_request(subject, ELEMENTS + number) for number in range(count)]
    answer = [subject.session.batch(requests) for _ in range(2)][-1]
    assert answer.status.code == 0
    return requests, subject.echo.like(requests[0], answer.responses[0])


def cache(subject: Subject) -> Iterator[Group]:
    """An op that was never seen, against one that was translated before; in the service by its own clock."""
    yield partial(_cache, subject)


def _cache(subject: Subject) -> list[Task]:
    session, known = subject.session, copy_request(subject, ELEMENTS)
    echo = subject.echo.like(known, session.translate(known))
    lengths = itertools.cycle(range(ELEMENTS * 8, subject.largest // 4))

    def cold(inside: bool) -> float:
        request = copy_request(subject, next(lengths))
        start = clock()
        answer = session.translate(request)
        spent = clock() - start
        return _in_service(answer) if inside else spent

    hit = lambda: _in_service(session.translate(known))  # noqa: E731
    more: dict[str, Any] = {"own_clock": True, "floor_name": LOOP}
    return [
        _call("cache", "cold, asked over gRPC", lambda: cold(False), echo, own_clock=True),
        _call("cache", "cold, within the service", lambda: cold(True), loop, **more),
        _call("cache", "hit, within the service", hit, loop, **more),
    ]


def _in_service(answer: Any) -> float:
    """Seconds in all stages of the pipeline."""
    return float(sum(answer.stage_ns)) / 1e9


def loop() -> int:
    """What the interpreter does in some microseconds: how fast this CPU is now."""
    return sum(range(200))


def channel(subject: Subject) -> Iterator[Group]:
    """The data channel, messages of the service, and messages to nobody, against a plain copy."""
    yield partial(_channel, subject)


def _channel(subject: Subject) -> list[Task]:
    size = min(4 * MIB, subject.largest)
    (near, _), session, (data, into) = subject.tensors, subject.session, subject.host
    up, down, small = data[:size], into[:size], bytes(data[:KIB])
    far = subject.held.enter_context(subject.client.session()).by_messages()
    other = far.alloc_bytes(size)
    echo = subject.echo.like(copy_request(subject, ELEMENTS), session.translate(copy_request(subject, ELEMENTS)))
    plain: dict[str, Any] = {"amount": size, "floor": subject.plain_copy(size), "floor_name": "plain copy"}

    def bare() -> None:
        subject.echo.upload(bytes(up[at : at + PIECE]) for at in range(0, size, PIECE))

    name = f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"
    calls: dict[str, Callable[[], object]] = {
        f"up, data channel, {name}": lambda: session.write(near, up),
        f"down, data channel, {name}": lambda: session.read_into(near, down),
        f"up, gRPC messages, {name}": lambda: far.write(other, up),
        f"down, gRPC messages, {name}": lambda: far.read_into(other, down),
        f"up, bare gRPC stream, {name}": bare,
    }
    found = [Task("channel", name, BYTES_PER_S, call, **plain) for name, call in calls.items()]
    return [*found, _call("channel", "1 KiB up and acknowledged", lambda: session.write(near, small), echo)]


def copy_request(subject: Subject, elements: int, *, submit: bool = False) -> Any:
    """A copy of so many fp32 numbers between the two tensors: the one op that every chip with kernels has."""
    from accelctl.abi.tensors import FP32
    from accelctl.umd.client import desc

    sides = [desc((elements,), FP32, tensor_id=one.tensor_id) for one in subject.tensors]
    return subject.session.request("copy", sides[:1], sides[1:], submit=submit)
