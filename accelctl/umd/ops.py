"""Where ops are taken: translated one by one or in batches, handed to the queue, counted.

The quick way: the bytes of a request behind its two numbers are looked up among those of before. If they are there, and
all memory that they name is still there, the answer is there too: the same instructions, addresses included.
"""

from __future__ import annotations

import logging
from collections import Counter
from time import perf_counter_ns as now

from google.protobuf.message import DecodeError

from accelctl.umd import wire
from accelctl.umd.observer import Observer
from accelctl.umd.pipeline.admit import admit
from accelctl.umd.pipeline.run import Made, op_name, translate
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import CANCELLED, Refusal, refusal_of
from accelctl.umd.registrar import Registrar
from accelctl.umd.session import Kept, Known, Session, keep

LOG = logging.getLogger("accelctl.umd")
_BATCHED_BYTES = 1024
"""Of a message, for each op that a batch may have: a quarter of it is enough to say that the op was not tried."""
MOST_STREAMED = 64
"""Ops in one message of a TranslateStream."""
_LONGEST_KEY = 4096
_LONGEST_OP = 1 << 20
"""Bytes of one op: many times what all of its tensors and attributes can take. What is longer is not even copied."""
LONGEST_LIST = 4 << 20
"""Bytes of a list of ops or instructions that is read as one message: some twenty thousand of them."""
_HIT = b"\x38\x01"
"""cache_hit of an OpResponse."""


class Desk:
    """Takes requests as bytes and gives answers as bytes."""

    def __init__(self, registrar: Registrar, observer: Observer) -> None:
        self._registrar, self._observer = registrar, observer
        self.most_answered = registrar.limits.message_bytes // 4 * 3
        """Bytes of answers after which no more op of a batch is tried: with the answers to the rest they still fit into
        one message, so nothing is ever carried out whose answer cannot be sent."""
        self.most_batched = min(registrar.limits.batch, registrar.limits.message_bytes // _BATCHED_BYTES)

    def translate(self, raw: bytes, patience_s: float) -> bytes:
        """An OpRequest; its OpResponse. Refusal."""
        start = now()
        _check_length(raw)
        session = self._registrar.by_wire.get(raw[: wire.NAMED])
        if session is not None:
            request_id, rest = wire.request_of(raw, wire.NAMED)
        else:
            number, request_id, rest = wire.head_of(raw)
            if not number:
                number, request_id, rest = _numbers(raw)
            session = self._registrar.get(number)
        return self._op(session, request_id, rest, patience_s, start)

    def batch(self, raw: bytes, patience_s: float, most: int = 0) -> bytes:
        """A BatchOpRequest; its BatchOpResponse. ``most``: so many ops and at least one; 0: what the limits say.
        Refusal."""
        limit = min(most, self.most_batched) if most else self.most_batched
        number, ops = wire.batch_of(raw, limit) or _batch(raw)
        if len(ops) > limit or (most and not ops):
            raise Refusal("ops", f"1 to {limit} in one message are possible")
        session = self._registrar.get(number)
        answers: list[bytes] = []
        size = 0
        for index, one in enumerate(ops):
            try:
                if size > self.most_answered:
                    raise Refusal("", "the answers have no more room in one message", "out_of_resources")
                answers.append(wire.chunk(2, self._member(session, one, patience_s)))
                size += len(answers[-1])
            except Exception as error:  # whatever it is, those before it stand, and their answers are due
                refusal = self._refused(session, error)
                if session.closed:
                    raise refusal from None
                return _cut(refusal, index, answers, ops)
        return b"".join(answers)

    def _refused(self, session: Session, error: Exception) -> Refusal:
        if isinstance(error, Refusal):
            return error
        LOG.error("an op of a batch failed", exc_info=error)
        refusal = refusal_of(error)
        self._failed(session, refusal, "")
        return refusal

    def _member(self, session: Session, raw: bytes, patience_s: float) -> bytes:
        """One op of a batch. Refusal."""
        start = now()
        _check_length(raw)
        if raw[: wire.NAMED] == session.wire:
            request_id, rest = wire.request_of(raw, wire.NAMED)
        else:
            number, request_id, rest = wire.head_of(raw)
            if number and number != session.number:
                raise _other_session()
        return self._op(session, request_id, rest, patience_s, start)

    def _op(self, session: Session, request_id: int, rest: bytes, patience_s: float, start: int) -> bytes:
        kept = session.answers.get(rest)
        if kept is not None:
            with session.lock:
                session.touch()
                good = kept.alive()
                if not good:
                    session.answers.pop(rest, None)
            if good:
                return self._again(session, kept, request_id, patience_s, start)
        return self._anew(session, request_id, rest, patience_s, start)

    def _again(self, session: Session, kept: Kept, request_id: int, patience_s: float, start: int) -> bytes:
        """The answer of before."""
        with session.lock:
            session.counts.translated[kept.op] += 1
            session.counts.hits[kept.op] += 1
        stages = [now() - start, 0, 0, 0, 0, 0]
        fence = 0
        if kept.submit:
            try:
                fence = self._launch(session, kept, patience_s, stages)
            except Refusal as refusal:
                self._failed(session, refusal, kept.op)
                raise
        self._observer.translated(kept.op, stages, True, session.number)
        return _answer(kept.static, request_id, fence, stages, start, True)

    def _anew(self, session: Session, request_id: int, rest: bytes, patience_s: float, start: int) -> bytes:
        """Through the pipeline."""
        request = pb.OpRequest()
        try:
            request.MergeFromString(rest)
        except DecodeError:
            refusal = Refusal("", "the bytes are not an OpRequest")
            self._failed(session, refusal, "")
            raise refusal from None
        if request.session_id not in (0, session.number):
            self._failed(session, refusal := _other_session(), "")
            raise refusal
        request.DiscardUnknownFields()  # what a plan is found by is kept, and there is no limit to them
        plain = not request.session_id and not request.request_id
        if not plain:
            request_id = request.request_id or request_id
            request.session_id = request.request_id = 0
        submit = request.submit
        name = op_name(request)
        try:
            with session.lock:
                session.touch()
                made = translate(session, request)
                session.counts.translated[name] += 1
                session.counts.hits[name] += made.hit
                if plain and not made.fresh and len(rest) <= _LONGEST_KEY:
                    keep(session.answers, rest, made.kept)
            fence = self._submit_made(session, made, patience_s) if submit else 0
        except Refusal as refusal:
            self._failed(session, refusal, name)
            raise
        self._observer.translated(name, made.stage_ns, made.hit, session.number)
        return _answer(made.kept.static, request_id, fence, made.stage_ns, start, made.hit)

    def _submit_made(self, session: Session, made: Made, patience_s: float) -> int:
        try:
            return self._launch(session, made.kept, patience_s, made.stage_ns)
        except BaseException:
            with session.lock:
                for one in made.fresh:
                    if one.alive:
                        session.free(one.number)
            raise

    def _launch(self, session: Session, kept: Kept, patience_s: float, stages: list[int]) -> int:
        start = now()
        fence = session.line.send(kept.blobs, kept.allocations, patience_s)
        self.launched(session, kept.launches)
        stages[5] = now() - start
        return fence

    def launched(self, session: Session, launches: tuple[tuple[str, int], ...]) -> None:
        """Count instructions that went to the queue, by op."""
        with session.lock:
            for op, count in launches:
                session.counts.launches[op] += count
        for op, count in launches:
            self._observer.launched(op, count)

    def _failed(self, session: Session, refusal: Refusal, op: str) -> None:
        with session.lock:
            session.counts.errors[op or "unknown"] += 1
        refusal.told = True
        self._observer.failed(refusal.kind, op)

    # -- instructions that come back

    def submit(self, request: pb.SubmitRequest, patience_s: float) -> pb.SubmitResponse:
        """Hand over instructions of before, or ops. Refusal; of instructions nothing was handed over then, but where
        they are more than the queue holds and it says how many were."""
        session = self._registrar.get(request.session_id)
        if request.instructions and request.ops:
            raise Refusal("ops", "instructions and ops in one call: say one of them")
        if request.ops:
            return self._submit_ops(session, request, patience_s)
        with session.lock:
            session.touch()
            known = [admit(session, one, f"instructions[{n}]") for n, one in enumerate(request.instructions)]
        blobs = [one.instruction_blob for one in request.instructions]
        return self._send(session, blobs, known, patience_s)

    def _send(self, session: Session, blobs: list[bytes], known: list[Known], patience_s: float) -> pb.SubmitResponse:
        used = [one for each in known for one in each.allocations]
        fence = session.line.send(blobs, used, patience_s)
        self.launched(session, tuple(Counter(one.op for one in known).items()))
        first = fence - len(blobs) + 1
        return pb.SubmitResponse(fence=fence, fences=range(first, fence + 1) if blobs else ())

    def _submit_ops(self, session: Session, request: pb.SubmitRequest, patience_s: float) -> pb.SubmitResponse:
        batch = pb.BatchOpRequest(session_id=session.number, ops=request.ops)
        for one in batch.ops:
            one.submit = True
        answer = pb.BatchOpResponse.FromString(self.batch(batch.SerializeToString(), patience_s))
        done = [one.fence for one in answer.responses if not one.status.code]
        return pb.SubmitResponse(
            status=answer.status, fence=done[-1] if done else 0, fences=done, responses=answer.responses
        )


def _check_length(raw: bytes) -> None:
    if len(raw) > _LONGEST_OP:
        raise Refusal("", f"{len(raw)} bytes: one op has at most {_LONGEST_OP}")


def _other_session() -> Refusal:
    return Refusal("session_id", "another session than the one that it was sent to")


def _numbers(raw: bytes) -> wire.Head:
    """session_id and request_id of a request that does not begin with them. Refusal for what is no request."""
    try:
        request = pb.OpRequest.FromString(raw)
    except DecodeError:
        raise Refusal("", "the bytes are not an OpRequest") from None
    return wire.Head(request.session_id, request.request_id, raw)


def _batch(raw: bytes) -> tuple[int, list[bytes]]:
    """A BatchOpRequest that is written in an unusual way. Refusal for what is none."""
    if len(raw) > LONGEST_LIST:  # read as a whole, while those written as usual are read op by op
        raise Refusal("", f"{len(raw)} bytes of a batch that does not begin with session_id and ops, or has too many")
    try:
        request = pb.BatchOpRequest.FromString(raw)
    except DecodeError:
        raise Refusal("", "the bytes are not a BatchOpRequest") from None
    return request.session_id, [one.SerializeToString() for one in request.ops]


def _answer(static: bytes, request_id: int, fence: int, stages: list[int], start: int, hit: bool) -> bytes:
    took = now() - start
    return b"".join(
        (
            static,
            wire.number(3, (took + 999) // 1000),
            wire.number(4, request_id),
            wire.number(6, fence),
            _HIT if hit else b"",
            wire.packed(8, stages),
        )
    )


def _cut(refusal: Refusal, index: int, answers: list[bytes], ops: list[bytes]) -> bytes:
    """A batch whose op ``index`` was refused: what stands, its status, and that the rest was not tried."""
    status = refusal.status(f"ops[{index}].")
    own = pb.OpResponse(status=refusal.status(), request_id=wire.head_of(ops[index]).request_id)
    found = [wire.chunk(1, status.SerializeToString()), *answers, wire.chunk(2, own.SerializeToString())]
    text = f"not tried: ops[{index}] was refused"
    later = pb.OpResponse(status=pb.Status(code=CANCELLED, kind="cancelled", message=text)).SerializeToString()
    for one in ops[index + 1 :]:
        found.append(wire.chunk(2, later + wire.number(4, wire.head_of(one).request_id)))
    return b"".join(found)
