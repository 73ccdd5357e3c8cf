"""The shortcuts around protobuf say what protobuf says."""

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from accelctl.umd import wire
from accelctl.umd.proto import umd_pb2 as pb

U64 = st.integers(0, (1 << 64) - 1)
EDGES = [0, 1, 127, 128, 16383, 16384, (1 << 28) - 1, 1 << 28, (1 << 63), (1 << 64) - 1]


@pytest.mark.parametrize("value", EDGES)
def test_a_number_is_written_as_protobuf_writes_it(value: int) -> None:
    assert wire.number(5, value) == pb.TensorDesc(device_addr=value).SerializeToString()
    assert wire.read_varint(wire.varint(value) + b"x", 0) == (value, len(wire.varint(value)))


@given(st.lists(U64, max_size=9), st.binary(max_size=300))
def test_repeated_numbers_and_bytes(values: list[int], data: bytes) -> None:
    assert wire.packed(4, values) == pb.HardwareInstruction(param_addrs=values).SerializeToString()
    assert wire.chunk(2, data) == pb.HardwareInstruction(instruction_blob=data).SerializeToString() or not data


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xff" * 9, b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x7f"])
def test_a_number_that_is_none(raw: bytes) -> None:
    with pytest.raises((IndexError, ValueError)):
        wire.read_varint(raw, 0)


@given(U64, U64, st.binary(max_size=40))
@example(0, 0, b"")
@example(1, 0, b"")
@example(0, 1, b"\x08\x02")
def test_the_head_of_a_request(session: int, request: int, tail: bytes) -> None:
    front = pb.OpRequest(session_id=session, request_id=request).SerializeToString()
    head = wire.head_of(front + tail)
    assert front + tail == wire.number(1, head.session_id) + wire.number(2, head.request_id) + head.rest or not (
        session and request
    )
    if session and request:
        assert head == (session, request, tail)


@given(st.binary(max_size=60))
def test_the_head_of_anything(raw: bytes) -> None:
    """Whatever protobuf reads out of bytes, head and rest together say as well."""
    head = wire.head_of(raw)
    try:
        whole = pb.OpRequest.FromString(raw)
    except DecodeError:
        return
    rest = pb.OpRequest.FromString(head.rest)
    if not rest.session_id and not rest.request_id and b"\x08\x00" not in head.rest and b"\x10\x00" not in head.rest:
        assert (head.session_id, head.request_id) == (whole.session_id, whole.request_id)
    whole.session_id = whole.request_id = rest.session_id = rest.request_id = 0
    assert rest == whole


@given(U64, st.binary(max_size=20))
@example(0, b"")
@example(5, b"\x10")
def test_what_follows_a_known_session(request: int, tail: bytes) -> None:
    front = b"x" * wire.NAMED
    assert wire.request_of(front + wire.number(2, request) + tail, wire.NAMED) == (request, tail) or not request
    assert wire.request_of(front + b"\x10\xff", wire.NAMED) == (0, b"\x10\xff")


def test_how_long_the_number_of_a_session_is() -> None:
    for year in (2005, 2026, 2037):
        start = (year - 1970) * 31_556_952
        assert len(wire.number(1, start << 32)) == wire.NAMED


OPS = st.lists(
    st.builds(
        pb.OpRequest,
        session_id=U64,
        request_id=U64,
        op_type=st.integers(0, 20),
        attrs=st.dictionaries(st.text(), st.text()),
    ),
    max_size=5,
)


@given(U64, OPS)
def test_a_batch(session: int, ops: list[pb.OpRequest]) -> None:
    raw = pb.BatchOpRequest(session_id=session, ops=ops).SerializeToString()
    found = wire.batch_of(raw, 64)
    assert found is not None
    assert found[0] == session
    assert [pb.OpRequest.FromString(one) for one in found[1]] == ops


@given(st.binary(max_size=60))
def test_a_batch_of_anything(raw: bytes) -> None:
    """Either it is left to protobuf, or it says the same."""
    found = wire.batch_of(raw, 64)
    if found is None:
        return
    try:
        whole = pb.BatchOpRequest.FromString(raw)
    except DecodeError:
        return  # one of the ops is none; that is found when it is read
    assert found[0] == whole.session_id
    assert [pb.OpRequest.FromString(one) for one in found[1]] == list(whole.ops)


def test_a_batch_that_ends_too_early() -> None:
    raw = pb.BatchOpRequest(session_id=1, ops=[pb.OpRequest(request_id=5)]).SerializeToString()
    assert wire.batch_of(raw[:-1], 64) is None
    assert wire.batch_of(raw + b"\x12\x85", 64) is None
    assert wire.batch_of(raw + b"\x18\x01", 64) is None
