"""Mutated requests: the right status each, the service healthy, nothing leaked.

ACCELCTL_FUZZ_REQUESTS is how many of each kind (200; a release is tried with 5000).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelctl.abi import blob
from accelctl.abi.call import decode
from accelctl.abi.opset import OPS
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import (
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    Refusal,
)
from tests.umdkit import PATIENCE_S, Client, client_of

COUNT = int(os.environ.get("ACCELCTL_FUZZ_REQUESTS", "200"))
MANY = settings(max_examples=COUNT, suppress_health_check=list(HealthCheck))
NORM = {"epsilon": "1e-5"}
FP32, INT32 = "fp32", "int32"
VALID: list[tuple[str, list[tuple[tuple[int, ...], str]], dict[str, str]]] = [
    ("matmul", [((4, 3), FP32), ((3, 5), FP32)], {}),
    ("matmul", [((4, 3), "int8"), ((3, 5), "int8")], {}),
    ("conv2d", [((1, 4, 6, 6), "fp16"), ((4, 2, 3, 3), "fp16"), ((4,), "fp16")], {"group": "2", "pads": "1,1,1,1"}),
    ("conv2d", [((1, 6, 6, 4), FP32), ((2, 4, 3, 3), FP32)], {"layout": "nhwc"}),
    ("layernorm", [((4, 8), "bf16"), ((8,), "bf16"), ((8,), "bf16")], NORM),
    ("rmsnorm", [((4, 8), FP32), ((8,), FP32), ((4, 8), FP32)], {"variant": "fused_add", **NORM}),
    ("softmax", [((4, 8), FP32)], {"axis": "0"}),
    ("relu", [((4, 8), "uint8")], {}),
    ("add", [((4, 1), FP32), ((1, 8), "fp16")], {"alpha": "2"}),
    ("silu_and_mul", [((4, 8), FP32)], {}),
    ("rope", [((4, 2, 8), FP32), ((4,), INT32)], {"style": "neox"}),
    ("attention_prefill", [((4, 3, 8), FP32), ((2, 5, 8), FP32), ((2, 5, 8), FP32)], {"causal": "lower_right"}),
    (
        "attention_decode",
        [((2, 4, 8), FP32), ((6, 2, 2, 8), FP32), ((6, 2, 2, 8), FP32), ((2, 3), INT32), ((2,), INT32)],
        {"block_size": "2"},
    ),
    ("grouped_gemm", [((6, 3), FP32), ((2, 3, 4), FP32), ((2,), INT32)], {}),
    ("topk_softmax", [((4, 6), FP32)], {"k": "2", "renormalize": "true"}),
    ("moe_align", [((3, 2), INT32)], {"num_experts": "4", "block_size": "2"}),
]


class Wrong(NamedTuple):
    """What a mutation must be answered with."""

    code: int
    field: str


_STATE: list[tuple[Client, list[pb.OpRequest]]] = []


@pytest.fixture(autouse=True, scope="module")
def state() -> Iterator[None]:
    with client_of() as client:
        requests = [
            client.request(op, [client.alloc(*one) for one in operands], attrs) for op, operands, attrs in VALID
        ]
        _STATE.append((client, requests))
        yield
        _STATE.clear()


def valid(data: st.DataObject) -> tuple[Client, pb.OpRequest]:
    client, requests = _STATE[0]
    made = pb.OpRequest()
    made.CopyFrom(data.draw(st.sampled_from(requests)))
    made.submit = data.draw(st.booleans())
    return client, made


Mutation = Callable[[st.DataObject, pb.OpRequest], Wrong]


def unknown_op(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    request.op_type = data.draw(st.sampled_from([0, 16, 99, 2**31 - 1, -1]))  # type: ignore[assignment]
    return Wrong(UNIMPLEMENTED if request.op_type else INVALID_ARGUMENT, "op_type")


def unknown_attribute(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    known = {attr.name for op in OPS.values() for attr in op.attrs}
    request.attrs[data.draw(st.text(max_size=8).filter(lambda text: text not in known))] = "1"
    return Wrong(INVALID_ARGUMENT, "attrs[")


def too_many_inputs(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    for _ in range(data.draw(st.integers(5, 30))):
        request.inputs.add().CopyFrom(request.inputs[0])
    return Wrong(INVALID_ARGUMENT, "inputs")


def an_input(data: st.DataObject, request: pb.OpRequest) -> tuple[pb.TensorDesc, str]:
    index = data.draw(st.integers(0, min(1, len(request.inputs) - 1)))
    return request.inputs[index], f"inputs[{index}]"


def byte_size(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    one, field = an_input(data, request)
    one.byte_size = data.draw(st.integers(1, 2**64 - 1).filter(lambda size: size != one.byte_size))
    return Wrong(INVALID_ARGUMENT, field)


def huge_shape(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    one, field = an_input(data, request)
    one.shape[:] = [2 ** data.draw(st.integers(33, 63)) for _ in range(2)]
    return Wrong(INVALID_ARGUMENT, field)


def many_dimensions(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    one, field = an_input(data, request)
    one.shape[:] = [1] * data.draw(st.integers(9, 200))
    return Wrong(UNIMPLEMENTED, field)


def no_type(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    one, field = an_input(data, request)
    one.data_type = data.draw(st.sampled_from([0, 7, 100, -5]))  # type: ignore[assignment]
    return Wrong(INVALID_ARGUMENT, field)


def no_such_tensor(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    one, field = an_input(data, request)
    one.tensor_id = data.draw(st.integers(1, 2**64 - 1).filter(lambda number: number >> 48 != one.tensor_id >> 48))
    return Wrong(NOT_FOUND, field)


def outside(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    one, field = an_input(data, request)
    far = st.one_of(st.integers(1, 1000), st.integers(2**40, 2**64 - 1), st.just(one.device_addr + 4096 * 500))
    one.device_addr = data.draw(far)
    return Wrong(INVALID_ARGUMENT, field)


def strides(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    one, field = an_input(data, request)
    one.strides[:] = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=9, max_size=12))
    return Wrong(INVALID_ARGUMENT, field)


def wide_strides(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    one, field = an_input(data, request)
    one.strides[:] = [data.draw(st.integers(10_000, 2**64 - 1)) for _ in one.shape]
    return Wrong(INVALID_ARGUMENT, field)


def wrong_output(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    request.outputs.add(data_type=data.draw(st.sampled_from([9, 50])))
    return Wrong(INVALID_ARGUMENT, "outputs")


def missing_input(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    request.inputs[0].Clear()
    return Wrong(INVALID_ARGUMENT, "inputs[0]")


def no_session(data: st.DataObject, request: pb.OpRequest) -> Wrong:
    request.session_id = data.draw(st.sampled_from([0, 1, 2**64 - 1]))
    return Wrong(NOT_FOUND, "session_id")


MUTATIONS: list[Mutation] = [
    unknown_op,
    unknown_attribute,
    too_many_inputs,
    byte_size,
    huge_shape,
    many_dimensions,
    no_type,
    no_such_tensor,
    outside,
    strides,
    wide_strides,
    wrong_output,
    missing_input,
    no_session,
]


def healthy(client: Client, tensors: int) -> None:
    """It works, and nothing more is held than before."""
    answer = client.respond("relu", [_STATE[0][1][6].inputs[0]])
    client.wait(answer.fence)
    client.free(answer.outputs[0].tensor_id)
    assert client.session.tensors == tensors
    client.session.memory.pool.check()


def translated(client: Client, raw: bytes) -> Refusal | pb.OpResponse:
    try:
        return pb.OpResponse.FromString(client.service.translate(raw, PATIENCE_S))
    except Refusal as refusal:
        return refusal


@given(st.data())
@MANY
def test_a_mutated_request_is_refused_for_its_mutation(data: st.DataObject) -> None:
    client, request = valid(data)
    tensors = client.session.tensors
    chosen = data.draw(st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=2, unique=True))
    expected = [mutate(data, request) for mutate in chosen]
    found = translated(client, request.SerializeToString())
    assert isinstance(found, Refusal), f"it was taken: {[one.__name__ for one in chosen]}"
    assert any(found.code == one.code and found.field.startswith(one.field) for one in expected), (
        f"{found.code} {found} instead of {expected}"
    )
    healthy(client, tensors)


@given(st.data())
@MANY
def test_a_valid_request_is_taken_and_what_comes_of_it_is_inside_the_session(data: st.DataObject) -> None:
    """Views, places, described outputs and unknown fields at random: whatever is taken is possible."""
    client, request = valid(data)
    tensors = client.session.tensors
    for one in request.inputs:
        if data.draw(st.booleans()):
            one.tensor_id = 0
        elif data.draw(st.booleans()):
            one.device_addr = 0
        if data.draw(st.booleans()):
            one.byte_size = 0
    request.request_id = data.draw(st.integers(0, 2**64 - 1))
    found = translated(client, request.SerializeToString() + data.draw(st.sampled_from([b"", b"\x78\x05"])))
    assert isinstance(found, pb.OpResponse), str(found)
    assert found.request_id == request.request_id
    inside(client, found)
    for made in found.outputs:
        client.free(made.tensor_id)
    healthy(client, tensors)


def inside(client: Client, answer: pb.OpResponse) -> None:
    memory = client.session.memory
    for one in answer.instructions:
        taken = blob.decode(one.instruction_blob)
        template = client.service.chip.by_number[taken.kernel_id]
        call = decode(OPS[template.op], taken.body, taken.params)
        for tensor in call.tensors:
            memory.place(0, tensor.address, tensor.nbytes if tensor.dense else 1, tensor.dtype.itemsize, "x")


@given(st.data())
@MANY
def test_bytes_at_random_positions(data: st.DataObject) -> None:
    """Whatever comes of it, it is no failure of the service."""
    client, request = valid(data)
    tensors = client.session.tensors
    raw = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    found = translated(client, bytes(raw))
    if isinstance(found, Refusal):
        allowed = [INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED, RESOURCE_EXHAUSTED]
        allowed += [FAILED_PRECONDITION] * (found.message == "the service was restarted, this session is gone")
        assert found.code in allowed, str(found)
    else:
        inside(client, found)
        for made in found.outputs:
            if client.session.memory._by_number.get(made.tensor_id) and client.session.tensors > tensors:
                client.free(made.tensor_id)
    healthy(client, tensors)


@given(st.data())
@settings(max_examples=max(20, COUNT // 10), suppress_health_check=list(HealthCheck))
def test_a_batch_stands_up_to_the_first_wrong_op(data: st.DataObject) -> None:
    client, _ = _STATE[0]
    tensors = client.session.tensors
    ops, first = [], -1
    for index in range(data.draw(st.integers(1, 6))):
        _, request = valid(data)
        if data.draw(st.booleans()):
            data.draw(st.sampled_from(MUTATIONS[:-1]))(data, request)
            first = index if first < 0 else first
        ops.append(request)
    answer = client.batch(ops)
    codes = [one.status.code for one in answer.responses]
    assert len(codes) == len(ops)
    if first < 0:
        assert not any(codes)
        assert answer.status.code == 0
    else:
        assert codes == [0] * first + [answer.status.code] + [1] * (len(ops) - first - 1)
        assert answer.status.field.startswith(f"ops[{first}].")
    for one in answer.responses:
        for made in one.outputs:
            client.free(made.tensor_id)
    healthy(client, tensors)
