"""Pinned lists, from the client's side.

    with session.record("decode") as recording:
        (hidden,) = recording.op("matmul", [x, weights])
        (y,) = recording.op("relu", [hidden])
    fence = recording.pinned.replay()           one message, and on chips with lists one submission

Everything in a list is fixed: shapes, types, attributes, places. What is read from memory is not: write other numbers
to ``x`` and replay. A list whose tensors are freed, or whose kernels are switched, is refused with the reason: it is
never run on what it was not made for, and only translated again for who asks for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

from accelctl.abi.opset import Value
from accelctl.umd.client import PER_OP_S, ClientSession, ServiceError, checked
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.slots import place_results


class Pinned:
    """A list of a session."""

    def __init__(self, session: ClientSession, name: str, answer: pb.PinResponse) -> None:
        self._session, self.name, self.id = session, name, answer.list_id
        self.instructions, self.recorded, self.hit = answer.instructions, answer.recorded, answer.cache_hit
        self.outputs: tuple[Sequence[pb.TensorDesc], ...] = tuple(one.outputs for one in answer.responses)
        """Of each op, in order."""

    def replay(self, *, retranslate: bool = False) -> int:
        """Run all of it; the fence that is passed when it is done. ServiceError with the reason where the list is not
        valid any more; ``retranslate`` asks for its ops to be translated again then."""
        request = pb.ReplayRequest(session_id=self._session.id, list_id=self.id, retranslate=retranslate)
        client = self._session.client
        return checked(client.call("ReplayList", request, extra_s=PER_OP_S * self.instructions)).fence  # type: ignore[no-any-return]

    def close(self) -> None:
        """Forget it; safe to call twice, and after it has ended by itself."""
        try:
            checked(
                self._session.client.call("UnpinList", pb.UnpinRequest(session_id=self._session.id, list_id=self.id))
            )
        except ServiceError as error:
            if error.field != "list_id":
                raise


class Recording:
    """Ops that become a list. Each is translated at once, so that what is wrong with it is said where it stands, and
    its results have places; nothing is run. ``pinned`` is there after the end of the block."""

    pinned: Pinned

    def __init__(self, session: ClientSession, name: str) -> None:
        self._session, self._name = session, name
        self._requests: list[pb.OpRequest] = []
        self._made: list[pb.TensorDesc] = []

    def op(
        self,
        op: str,
        inputs: Iterable[pb.TensorDesc | None],
        outputs: Iterable[pb.TensorDesc | None] = (),
        attrs: Mapping[str, Value] | None = None,
    ) -> Sequence[pb.TensorDesc]:
        """One more; its results. ServiceError for one that cannot be translated."""
        request = self._session.request(op, inputs, outputs, attrs)
        given = {one.tensor_id for one in request.outputs}
        answer = self._session.translate(request)
        self._made += [one for one in answer.outputs if one.tensor_id and one.tensor_id not in given]
        place_results(request, answer)
        self._requests.append(request)
        return answer.outputs

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            try:
                self.pinned = self._session.pin(self._requests, self._name)
                return
            except ServiceError:
                self._undo()
                raise
        self._undo()

    def _undo(self) -> None:
        """Results that nobody will ever have go back."""
        while self._made:
            try:
                self._session.free(self._made.pop())
            except ServiceError:
                continue
