"""Pinned lists as the service's methods: ops are translated once, in one place, and handed over as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from accelctl.abi.schedule import Recorded
from accelctl.errors import AccelError
from accelctl.umd.lists import Ended, Key, Pinned, Translated
from accelctl.umd.memory import Allocation
from accelctl.umd.observer import Observer
from accelctl.umd.pipeline.run import Made, op_name, translate
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal, refusal_of
from accelctl.umd.registrar import Registrar
from accelctl.umd.session import Session
from accelctl.umd.slots import place_results

MOST_NAME = 80
Launched = Callable[[Session, tuple[tuple[str, int], ...]], None]


class Press:
    """``launched`` counts instructions that went to the queue."""

    def __init__(self, registrar: Registrar, observer: Observer, launched: Launched) -> None:
        self._registrar, self._observer, self._launched = registrar, observer, launched

    def pin(self, request: pb.PinRequest) -> pb.PinResponse:
        """A list of these ops. Refusal naming the op that cannot be translated; nothing stays of the others then."""
        session = self._registrar.get(request.session_id)
        most = self._registrar.limits.batch
        if not 1 <= len(request.ops) <= most:
            raise Refusal("ops", f"{len(request.ops)}: a list has 1 to {most}")
        if len(request.name) > MOST_NAME or not request.name.isprintable():
            raise Refusal("name", f"at most {MOST_NAME} printable characters")
        key = _key(session, request.ops)
        with session.lock:
            session.touch()
            found = session.lists.find(request.name, key)
            hit = found is not None
            if found is None:
                found = self._added(session, request.name, key)
            session.lists.counts["pinned"] += 1
            return _answer(found, hit)

    def replay(self, request: pb.ReplayRequest, patience_s: float) -> pb.ReplayResponse:
        """Hand a list over; the fence that is passed when all of it is done. Refusal with the reason for one that is
        not valid any more, unless it is to be translated again."""
        session = self._registrar.get(request.session_id)
        with session.lock:
            session.touch()
            found, again = session.lists.use(request.list_id), ""
            if isinstance(found, Ended):
                again = f"{found.reason}: {found.text}"
                found = self._again(session, request, found)
            session.lists.counts["replays"] += 1
        made = found.made
        try:
            fence = session.line.run(made.recorded, made.blobs, made.allocations, patience_s)
        except Refusal as refusal:
            self._lost(session, refusal)
            raise
        self._launched(session, made.launches)
        return pb.ReplayResponse(fence=fence, retranslated=again)

    def _again(self, session: Session, request: pb.ReplayRequest, ended: Ended) -> Pinned:
        """An ended list, translated again under its number. Refusal."""
        called = f"{request.list_id} ({ended.name})" if ended.name else f"{request.list_id}"
        text = f"list {called} is not valid any more: {ended.reason}: {ended.text}"
        if not request.retranslate:
            hint = "replay it with retranslate" if ended.placed else "pin the ops again"
            raise Refusal("list_id", text, "invalid_state", hint)
        if not ended.placed:
            raise Refusal("list_id", f"{text}; its ops cannot be translated again", "invalid_state", "pin other ops")
        return self._added(session, ended.name, ended.placed, request.list_id)

    def _lost(self, session: Session, refusal: Refusal) -> None:
        if session.line.ring.state == "lost":
            with session.lock:
                session.lists.end_all("device", refusal.message)

    def unpin(self, request: pb.UnpinRequest) -> pb.UnpinResponse:
        """Forget a list. One that is not valid any more is no mistake. Refusal."""
        session = self._registrar.get(request.session_id)
        with session.lock:
            session.touch()
            found = session.lists.use(request.list_id)
            if isinstance(found, Pinned):
                session.lists.end(found, "client", "it was unpinned")
        return pb.UnpinResponse()

    def _added(self, session: Session, name: str, key: Key, number: int = 0) -> Pinned:
        """A list of these ops, all or none. ``session.lock`` is held. Refusal; nothing stays allocated then."""
        made: list[Made] = []
        try:
            return session.lists.add(name, key, self._translated(session, key, made), number)
        except BaseException:
            for fresh in (allocation for one in made for allocation in one.fresh):
                session.free(fresh.number)
            raise

    def _translated(self, session: Session, key: Key, made: list[Made]) -> Translated:
        """Of all ops, each of which is put into ``made`` as soon as it is. Refusal."""
        placed: list[bytes] = []
        answers: list[pb.OpResponse] = []
        for at, one in enumerate(key):
            made.append(self._op(session, at, one))
            answers.append(pb.OpResponse.FromString(made[-1].kept.static))
            del answers[-1].instructions[:]
            placed.append(_placed(one, answers[-1]))
        blobs = tuple(blob for one in made for blob in one.kept.blobs)
        recorded = _recorded(session, blobs)
        used: dict[Allocation, None] = dict.fromkeys(used for one in made for used in one.kept.allocations)
        launches: Counter[str] = Counter()
        for each in made:
            launches.update(dict(each.kept.launches))
        return Translated(blobs, tuple(used), tuple(launches.items()), tuple(answers), tuple(placed), recorded)

    def _op(self, session: Session, at: int, raw: bytes) -> Made:
        request = pb.OpRequest.FromString(raw)
        name = op_name(request)
        try:
            made = translate(session, request)
        except Refusal as refusal:
            session.counts.errors[name or "unknown"] += 1
            self._observer.failed(refusal.kind, name)
            field = f"ops[{at}].{refusal.field}" if refusal.field else f"ops[{at}]"
            told = Refusal(field, refusal.message, refusal.kind, refusal.hint)
            told.told = True
            raise told from None
        session.counts.translated[name] += 1
        session.counts.hits[name] += made.hit
        self._observer.translated(name, made.stage_ns, made.hit, session.number)
        return made


def _key(session: Session, ops: Sequence[pb.OpRequest]) -> Key:
    """What a list is found by: its ops without who asks. Refusal for ops that make no sense in a list."""
    found = []
    for at, one in enumerate(ops):
        if one.session_id not in (0, session.number):
            raise Refusal(f"ops[{at}].session_id", "another session than the one that it was sent to")
        if one.submit:
            raise Refusal(f"ops[{at}].submit", "a list is run by ReplayList")
        plain = pb.OpRequest()
        plain.CopyFrom(one)
        plain.DiscardUnknownFields()
        plain.session_id = plain.request_id = 0
        found.append(plain.SerializeToString(deterministic=True))
    return tuple(found)


def _placed(raw: bytes, answer: pb.OpResponse) -> bytes:
    """An op whose results lie where they were put: translated again, they lie there again."""
    request = pb.OpRequest.FromString(raw)
    place_results(request, answer)
    return request.SerializeToString(deterministic=True)


def _recorded(session: Session, blobs: Sequence[bytes]) -> Recorded | None:
    """On the chip, where it has lists and room for one more. Refusal."""
    schedule = session.chip.schedule
    if schedule is None or not blobs:
        return None
    try:
        return schedule.record(session.line.ring, blobs)
    except AccelError as error:
        if error.kind == "out_of_resources":
            return None
        raise refusal_of(error, "ops") from None


def _answer(found: Pinned, hit: bool) -> pb.PinResponse:
    made = found.made
    return pb.PinResponse(
        list_id=found.number,
        responses=made.answers,
        instructions=len(made.blobs),
        recorded=made.recorded is not None,
        cache_hit=hit,
    )
