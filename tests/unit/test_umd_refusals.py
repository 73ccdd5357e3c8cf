"""Every refusal names the field of the request that it is about, and has the right status."""

from collections.abc import Callable, Iterator, Sequence

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED, Refusal
from tests.umdkit import PATIENCE_S, Client, client_of


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with client_of() as made:
        yield made


def refused(client: Client, request: pb.OpRequest) -> Refusal:
    allocated = client.session.tensors
    with pytest.raises(Refusal) as caught:
        client.translate(request)
    assert client.session.tensors == allocated, "something stayed allocated"
    return caught.value


@pytest.fixture(scope="module")
def add(client: Client) -> pb.OpRequest:
    """C = A + B, all three fp32 (4,3)."""
    return client.request("add", [client.alloc((4, 3)), client.alloc((4, 3))], {}, [client.alloc((4, 3))])


def of(request: pb.OpRequest, change: Callable[[pb.OpRequest], object]) -> pb.OpRequest:
    made = pb.OpRequest()
    made.CopyFrom(request)
    change(made)
    return made


def set_(name: str, value: object, index: int = 0, where: str = "inputs") -> Callable[[pb.OpRequest], object]:
    def change(request: pb.OpRequest) -> None:
        tensor = getattr(request, where)[index]
        if isinstance(value, list):
            getattr(tensor, name)[:] = value
        else:
            setattr(tensor, name, value)

    return change


OTHER = 1 << 60
DESCRIPTIONS: list[tuple[Callable[[pb.OpRequest], object], str, int]] = [
    (lambda r: setattr(r, "op_type", 0), "op_type", INVALID_ARGUMENT),
    (lambda r: setattr(r, "op_type", 99), "op_type", UNIMPLEMENTED),
    (lambda r: r.inputs.add(), "inputs", INVALID_ARGUMENT),
    (lambda r: r.inputs.pop(), "inputs[1]", INVALID_ARGUMENT),
    (lambda r: r.inputs[1].Clear(), "inputs[1]", INVALID_ARGUMENT),
    (lambda r: r.outputs.add(), "outputs", INVALID_ARGUMENT),
    (set_("data_type", 0), "inputs[0].data_type", INVALID_ARGUMENT),
    (set_("data_type", 7, 1), "inputs[1].data_type", INVALID_ARGUMENT),
    (set_("data_type", 77, 0, "outputs"), "outputs[0].data_type", INVALID_ARGUMENT),
    (set_("shape", [4, 4], 1), "inputs[1].byte_size", INVALID_ARGUMENT),
    (set_("byte_size", 47), "inputs[0].byte_size", INVALID_ARGUMENT),
    (set_("byte_size", 47, 0, "outputs"), "outputs[0].byte_size", INVALID_ARGUMENT),
    (set_("strides", [3]), "inputs[0].strides", INVALID_ARGUMENT),
    (set_("strides", [1 << 62, 1 << 62]), "inputs[0].strides", INVALID_ARGUMENT),
    (set_("strides", [1, 1], 0, "outputs"), "outputs[0].strides", INVALID_ARGUMENT),
    (set_("strides", [0, 1], 0, "outputs"), "outputs[0].strides", INVALID_ARGUMENT),
    (set_("strides", [100, 1]), "inputs[0].device_addr", INVALID_ARGUMENT),
    (set_("strides", [100, 1], 0, "outputs"), "outputs[0].device_addr", INVALID_ARGUMENT),
    (set_("tensor_id", OTHER), "inputs[0].tensor_id", NOT_FOUND),
    (set_("tensor_id", 5, 0, "outputs"), "outputs[0].tensor_id", NOT_FOUND),
    (set_("device_addr", 1), "inputs[0].device_addr", INVALID_ARGUMENT),
    (set_("device_addr", (1 << 64) - 1), "inputs[0].device_addr", INVALID_ARGUMENT),
    (lambda r: r.attrs.update({"beta": "1"}), "attrs['beta']", INVALID_ARGUMENT),
    (lambda r: r.attrs.update({"alpha": "one"}), "attrs['alpha']", INVALID_ARGUMENT),
    (lambda r: r.attrs.update({"alpha": "inf"}), "attrs['alpha']", INVALID_ARGUMENT),
    (lambda r: r.attrs.update({str(n): "" for n in range(65)}), "attrs", INVALID_ARGUMENT),
]


@pytest.mark.parametrize(("change", "field", "code"), DESCRIPTIONS, ids=lambda one: one if isinstance(one, str) else "")
def test_descriptions(
    change: Callable[[pb.OpRequest], object], field: str, code: int, client: Client, add: pb.OpRequest
) -> None:
    refusal = refused(client, of(add, change))
    assert (refusal.field, refusal.code) == (field, code), refusal.message
    assert str(refusal).startswith(f"{field}: ")
    assert client.translate(add).instructions, "the session goes on"


def test_too_many_dimensions(client: Client, add: pb.OpRequest) -> None:
    def change(request: pb.OpRequest) -> None:
        request.inputs[0].shape[:] = [1] * 7 + [4, 3]
        request.inputs[0].byte_size = 0

    assert refused(client, of(add, change)).field == "inputs[0].shape"


def test_an_input_without_a_place(client: Client, add: pb.OpRequest) -> None:
    def change(request: pb.OpRequest) -> None:
        request.inputs[0].tensor_id = request.inputs[0].device_addr = 0

    assert refused(client, of(add, change)).field == "inputs[0]"


def test_an_address_that_is_not_aligned(client: Client) -> None:
    room = client.alloc((64,))
    room.shape[:], room.byte_size, room.device_addr = [4], 0, room.device_addr + 2
    refusal = refused(client, client.request("relu", [room]))
    assert (refusal.field, refusal.kind) == ("inputs[0].device_addr", "misaligned_access")


def test_two_outputs_that_overlap(client: Client) -> None:
    gating, room = client.alloc((2, 4)), client.alloc((16,))
    ids = pb.TensorDesc(tensor_id=room.tensor_id, device_addr=room.device_addr + 12)
    attrs = {"k": "2", "renormalize": "true"}
    refusal = refused(client, client.request("topk_softmax", [gating], attrs, [_bare(room), ids]))
    assert refusal.field == "outputs[1].device_addr"
    ids.device_addr += 4
    assert client.translate(client.request("topk_softmax", [gating], attrs, [_bare(room), ids])).instructions


def _bare(tensor: pb.TensorDesc) -> pb.TensorDesc:
    return pb.TensorDesc(tensor_id=tensor.tensor_id, device_addr=tensor.device_addr)


Shapes = tuple[int, ...]
FP32 = "fp32"
Operands = Sequence[tuple[Shapes, str] | None]
NORM = {"epsilon": "1e-5"}
ROPE = {"style": "neox"}
MOE = {"num_experts": "4", "block_size": "2"}
TOPK = {"k": "2", "renormalize": "true"}
OPERANDS: list[tuple[str, Operands, dict[str, str], str]] = [
    ("matmul", [((), FP32), ((3,), FP32)], {}, "inputs[0].shape"),
    ("matmul", [((2, 3), FP32), ((2, 3), FP32)], {}, "inputs[1].shape"),
    ("matmul", [((2, 2, 3), FP32), ((3, 3, 2), FP32)], {}, "inputs[1].shape"),
    ("matmul", [((2, 3), FP32), ((3, 2), "fp16")], {}, "inputs[1].data_type"),
    ("conv2d", [((4, 4), FP32), ((1, 1, 1, 1), FP32)], {}, "inputs[0].shape"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((2, 2, 3), FP32)], {}, "inputs[1].shape"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((2, 3, 3, 3), FP32)], {}, "inputs[1].shape"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((3, 1, 3, 3), FP32)], {"group": "2"}, "inputs[1].shape"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((2, 2, 5, 3), FP32)], {}, "inputs[1].shape"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((2, 2, 0, 3), FP32)], {}, "inputs[1].shape"),
    ("conv2d", [((1, 0, 4, 4), FP32), ((2, 0, 3, 3), FP32)], {}, "inputs[0].shape"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((2, 2, 3, 3), FP32), ((3,), FP32)], {}, "inputs[2].shape"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((2, 2, 3, 3), "fp16")], {}, "inputs[1].data_type"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((2, 2, 3, 3), FP32)], {"group": "0"}, "attrs['group']"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((2, 2, 3, 3), FP32)], {"strides": "0,1"}, "attrs['strides']"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((2, 2, 3, 3), FP32)], {"strides": "1"}, "attrs['strides']"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((2, 2, 3, 3), FP32)], {"pads": "0,0,-1,0"}, "attrs['pads']"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((2, 2, 3, 3), FP32)], {"dilations": "1,0"}, "attrs['dilations']"),
    ("conv2d", [((1, 2, 4, 4), FP32), ((2, 2, 3, 3), FP32)], {"auto_pad": "half"}, "attrs['auto_pad']"),
    (
        "conv2d",
        [((1, 2, 4, 4), FP32), ((2, 2, 3, 3), FP32)],
        {"auto_pad": "same_upper", "pads": "1,0,0,0"},
        "attrs['pads']",
    ),
    ("layernorm", [((), FP32)], NORM, "inputs[0].shape"),
    ("layernorm", [((2, 4), FP32)], {}, "attrs['epsilon']"),
    ("layernorm", [((2, 4), FP32)], {"axis": "2", **NORM}, "attrs['axis']"),
    ("layernorm", [((2, 4), FP32), ((2,), FP32)], NORM, "inputs[1].shape"),
    ("layernorm", [((2, 4), FP32), None, ((2, 4), FP32)], NORM, "inputs[2].shape"),
    ("layernorm", [((2, 4), "int8")], NORM, "inputs[0].data_type"),
    ("rmsnorm", [((), FP32)], NORM, "inputs[0].shape"),
    ("rmsnorm", [((2, 4), FP32), ((2,), FP32)], NORM, "inputs[1].shape"),
    ("rmsnorm", [((2, 4), FP32)], {"variant": "fused_add", **NORM}, "inputs[2]"),
    ("rmsnorm", [((2, 4), FP32), None, ((2, 4), FP32)], NORM, "attrs['variant']"),
    ("rmsnorm", [((2, 4), FP32), None, ((4,), FP32)], {"variant": "fused_add", **NORM}, "inputs[2].shape"),
    ("rmsnorm", [((2, 4), FP32), None, ((2, 4), "fp16")], {"variant": "fused_add", **NORM}, "inputs[2].data_type"),
    ("softmax", [((2, 4), FP32)], {"axis": "-3"}, "attrs['axis']"),
    ("softmax", [((2, 4), "int32")], {}, "inputs[0].data_type"),
    ("add", [((10, 1), FP32), ((3, 2), FP32)], {}, "inputs[1].shape"),
    ("add", [((2,), "int8"), ((2,), "int32")], {}, "inputs[1].data_type"),
    ("add", [((2,), "int32"), ((2,), "int32")], {"alpha": "0.5"}, "attrs['alpha']"),
    ("add", [((2,), "int32"), ((2,), "int32")], {"alpha": "1e12"}, "attrs['alpha']"),
    ("silu_and_mul", [((2, 3), FP32)], {}, "inputs[0].shape"),
    ("silu_and_mul", [((), FP32)], {}, "inputs[0].shape"),
    ("rope", [((5, 2, 8), FP32), ((5,), "int32")], {}, "attrs['style']"),
    ("rope", [((5, 8), FP32), ((5,), "int32")], ROPE, "inputs[0].shape"),
    ("rope", [((5, 2, 7), FP32), ((5,), "int32")], ROPE, "inputs[0].shape"),
    ("rope", [((5, 2, 8), FP32), ((4,), "int32")], ROPE, "inputs[1].shape"),
    ("rope", [((5, 2, 8), FP32), ((5,), FP32)], ROPE, "inputs[1].data_type"),
    ("rope", [((5, 2, 8), FP32), ((5,), "int32")], {"rotary_dim": "10", **ROPE}, "attrs['rotary_dim']"),
    ("rope", [((5, 2, 8), FP32), ((5,), "int32")], {"rotary_dim": "3", **ROPE}, "attrs['rotary_dim']"),
    ("rope", [((5, 2, 8), FP32), ((5,), "int32")], {"base": "0", **ROPE}, "attrs['base']"),
    ("attention_prefill", [((2, 3, 4), FP32), ((2, 5, 4), FP32), ((2, 5), FP32)], {}, "inputs[2].shape"),
    ("attention_prefill", [((2, 3, 4), FP32), ((1, 2, 5, 4), FP32), ((2, 5, 4), FP32)], {}, "inputs[1].shape"),
    ("attention_prefill", [((2, 3, 4), FP32), ((2, 5, 3), FP32), ((2, 5, 4), FP32)], {}, "inputs[1].shape"),
    ("attention_prefill", [((2, 3, 4), FP32), ((2, 5, 4), FP32), ((2, 6, 4), FP32)], {}, "inputs[2].shape"),
    ("attention_prefill", [((3, 3, 4), FP32), ((2, 5, 4), FP32), ((2, 5, 4), FP32)], {}, "inputs[1].shape"),
    ("attention_prefill", [((2, 3, 4), FP32)] + [((2, 5, 4), "fp16")] * 2, {}, "inputs[1].data_type"),
    ("attention_prefill", [((2, 3, 4), FP32)] + [((2, 5, 4), FP32)] * 2 + [((3, 4), FP32)], {}, "inputs[3].shape"),
    (
        "attention_prefill",
        [((2, 3, 4), FP32)] + [((2, 5, 4), FP32)] * 2 + [((9, 2, 3, 5), FP32)],
        {},
        "inputs[3].shape",
    ),
    ("attention_prefill", [((2, 3, 4), FP32)] + [((2, 5, 4), FP32)] * 2, {"window": "-1"}, "attrs['window']"),
    ("attention_prefill", [((2, 3, 4), FP32)] + [((2, 5, 4), FP32)] * 2, {"softcap": "-1"}, "attrs['softcap']"),
    ("attention_prefill", [((2, 3, 4), FP32)] + [((2, 5, 4), FP32)] * 2, {"causal": "yes"}, "attrs['causal']"),
    ("grouped_gemm", [((5, 3), FP32), ((2, 4, 2), FP32), ((2,), "int32")], {}, "inputs[1].shape"),
    ("grouped_gemm", [((5, 3), FP32), ((2, 3, 2), FP32), ((3,), "int32")], {}, "inputs[2].shape"),
    ("grouped_gemm", [((5, 3), FP32), ((3, 2), FP32), ((3,), "int32")], {}, "inputs[1].shape"),
    ("topk_softmax", [((3, 4), FP32)], {"k": "5", "renormalize": "true"}, "attrs['k']"),
    ("topk_softmax", [((3, 4), FP32)], {"k": "2"}, "attrs['renormalize']"),
    ("topk_softmax", [((3, 4), FP32), ((3,), FP32)], TOPK, "inputs[1].shape"),
    ("topk_softmax", [((4,), FP32)], TOPK, "inputs[0].shape"),
    ("moe_align", [((3, 2), "int32")], {"num_experts": "0", "block_size": "2"}, "attrs['num_experts']"),
    ("moe_align", [((3, 2), "int32")], {"num_experts": "4", "block_size": "0"}, "attrs['block_size']"),
    ("moe_align", [((3, 2), "int32")], {"num_experts": "1000000", "block_size": "1000000"}, "inputs[0].shape"),
    ("moe_align", [((3, 2), "int32"), ((3,), "int32")], MOE, "inputs[1].shape"),
    ("moe_align", [((3, 2), FP32)], MOE, "inputs[0].data_type"),
]
DECODE: list[tuple[Shapes, str] | None] = [
    ((3, 4, 8), FP32),
    ((9, 2, 2, 8), FP32),
    ((9, 2, 2, 8), FP32),
    ((3, 5), "int32"),
    ((3,), "int32"),
]
PAGED = {"block_size": "2"}


def changed(index: int, shape: Shapes, dtype: str = FP32) -> list[tuple[Shapes, str] | None]:
    return [*DECODE[:index], (shape, dtype), *DECODE[index + 1 :]]


OPERANDS += [
    ("attention_decode", DECODE, {"block_size": "3"}, "attrs['block_size']"),
    ("attention_decode", DECODE, {}, "attrs['block_size']"),
    ("attention_decode", changed(1, (9, 2, 2, 7)), PAGED, "inputs[1].shape"),
    ("attention_decode", changed(1, (9, 2, 2, 8), "fp16"), PAGED, "inputs[1].data_type"),
    ("attention_decode", changed(2, (8, 2, 2, 8)), PAGED, "inputs[2].shape"),
    ("attention_decode", changed(0, (3, 5, 8)), PAGED, "inputs[1].shape"),
    ("attention_decode", changed(3, (2, 5), "int32"), PAGED, "inputs[3].shape"),
    ("attention_decode", changed(3, (3, 5)), PAGED, "inputs[3].data_type"),
    ("attention_decode", changed(4, (2,), "int32"), PAGED, "inputs[4].shape"),
]


@pytest.mark.parametrize(("op", "operands", "attrs", "field"), OPERANDS)
def test_operands_that_do_not_fit_together(
    op: str, operands: Operands, attrs: dict[str, str], field: str, client: Client
) -> None:
    given = [None if one is None else client.alloc(*one) for one in operands]
    try:
        refusal = refused(client, client.request(op, given, attrs))
        assert refusal.field == field, refusal.message
        assert refusal.code in (INVALID_ARGUMENT, UNIMPLEMENTED)
    finally:
        for one in given:
            if one is not None:
                client.free(one.tensor_id)


@pytest.mark.parametrize("op", ["relu", "add", "softmax", "matmul"])
@pytest.mark.parametrize(
    ("said", "field"),
    [
        (pb.TensorDesc(shape=[3, 4], data_type=pb.FP32), "outputs[0].shape"),
        (pb.TensorDesc(shape=[4, 4], data_type=pb.FP16), "outputs[0].data_type"),
        (pb.TensorDesc(data_type=pb.INT8), "outputs[0].data_type"),
        (pb.TensorDesc(byte_size=65), "outputs[0].byte_size"),
        (pb.TensorDesc(data_type=pb.FP32, strides=[1]), "outputs[0].strides"),
    ],
)
def test_outputs_are_what_the_op_makes(op: str, said: pb.TensorDesc, field: str, client: Client) -> None:
    square = [client.alloc((4, 4))] * (2 if op in ("add", "matmul") else 1)
    assert refused(client, client.request(op, square, {}, [said])).field == field


def test_shapes_are_named_on_both_sides(client: Client) -> None:
    """OPS-06 d."""
    with pytest.raises(Refusal, match=r"\(10,2\) and \(3,1\)"):
        client.translate(client.request("add", [client.alloc((10, 2)), client.alloc((3, 1))]))


@pytest.mark.parametrize(
    ("tensor", "field"),
    [
        (pb.TensorDesc(), "tensor.byte_size"),
        (pb.TensorDesc(shape=[2]), "tensor.data_type"),
        (pb.TensorDesc(shape=[2], data_type=44), "tensor.data_type"),  # type: ignore[arg-type]
        (pb.TensorDesc(shape=[2], data_type=pb.FP32, byte_size=9), "tensor.byte_size"),
        (pb.TensorDesc(shape=[2], data_type=pb.FP32, strides=[2]), "tensor.strides"),
        (pb.TensorDesc(shape=[2], data_type=pb.FP32, tensor_id=4), "tensor.tensor_id"),
        (pb.TensorDesc(shape=[2], data_type=pb.FP32, device_addr=4), "tensor.device_addr"),
        (pb.TensorDesc(shape=[1] * 9, data_type=pb.FP32), "tensor.shape"),
        (pb.TensorDesc(shape=[1 << 33, 1 << 33], data_type=pb.FP32), "tensor.shape"),
        (pb.TensorDesc(shape=[1 << 40], data_type=pb.FP32), "byte_size"),
    ],
)
def test_allocations(tensor: pb.TensorDesc, field: str, client: Client) -> None:
    with pytest.raises(Refusal) as caught:
        client.service.alloc_tensor(pb.AllocTensorRequest(session_id=client.number, tensor=tensor))
    assert caught.value.field == field


def test_bytes_that_are_no_request(client: Client) -> None:
    for raw in (b"\xff", b"\x08\x01\xff", b"\x22\x7f"):
        with pytest.raises(Refusal) as caught:
            client.service.translate(raw, PATIENCE_S)
        assert caught.value.code in (INVALID_ARGUMENT, NOT_FOUND)
    with pytest.raises(Refusal, match="not a BatchOpRequest"):
        client.service.batch(b"\x0a\xff", PATIENCE_S)
