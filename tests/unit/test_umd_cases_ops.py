"""The cases OPS-05 to OPS-08 through the service, with their right values."""

import itertools
from collections.abc import Iterator

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

import numpy as np

from accelctl.umd.pipeline.infer import outputs_of
from accelctl.umd.pipeline.route import route
from accelctl.umd.pipeline.validate import ask_of, take_names
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal
from tests.umdkit import Array, Client, Kernels, client_of, view


@pytest.fixture
def client() -> Iterator[Client]:
    with client_of() as made:
        yield made


def test_ops_05a_a_transposed_operand_is_a_view(client: Client) -> None:
    a = client.put([[0, 1, 2], [3, 4, 5]], "fp32")
    b = view(a, (3, 2), (1, 3))
    assert client.run("matmul", [a, b])[0].tolist() == [[5, 14], [14, 50]]


def test_ops_05b_batch_strides(client: Client) -> None:
    x = view(client.put(range(8), "fp32"), (2, 2, 2, 1), (4, 1, 2, 1))
    found = client.run("matmul", [x, client.put([[1]], "fp32")])[0]
    assert found.reshape(4, 2).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.parametrize(("shape", "strides"), [((1, 3), (999, 1)), ((3, 1), (1, 7))])
def test_ops_05c_the_stride_of_a_length_1_axis(
    shape: tuple[int, ...], strides: tuple[int, ...], client: Client
) -> None:
    """No error, no copy, and no instruction of another form than the dense one."""
    x = client.put([1, -2, 3], "fp32")
    dense = client.translate(client.request("relu", [view(x, shape)]))
    found = client.translate(client.request("relu", [view(x, shape, strides)]))
    assert [one.kernel_id for one in found.instructions] == [one.kernel_id for one in dense.instructions]
    body = slice(36 + 16, None)
    assert found.instructions[0].instruction_blob[body] == dense.instructions[0].instruction_blob[body]
    assert client.run("relu", [view(x, shape, strides)])[0].reshape(-1).tolist() == [1, 0, 3]


def test_outputs_may_be_views(client: Client) -> None:
    room = client.put(np.full((3, 4), 7), "fp32")
    columns = view(room, (3, 2), (4, 1), offset=4)
    client.respond("add", [client.put([[1, 2]] * 3, "fp32"), client.put([[10, 10]], "fp32")], {}, [columns])
    assert client.get(room).tolist() == [[7, 11, 12, 7]] * 3


def test_ops_06_broadcasting(client: Client) -> None:
    channels = client.run("add", [client.put(np.zeros((1, 2, 2, 2)), "fp32"), client.put([[[[10]], [[20]]]], "fp32")])
    assert channels[0].reshape(-1).tolist() == [10, 10, 10, 10, 20, 20, 20, 20]
    both = client.run("add", [client.put([[0], [10], [20]], "fp32"), client.put([[1, 2, 3, 4]], "fp32")])
    assert both[0].tolist() == [[1, 2, 3, 4], [11, 12, 13, 14], [21, 22, 23, 24]]
    column = client.run("add", [client.put(np.ones((2, 2)), "fp32"), client.put(np.ones((2, 1)), "fp32")])
    assert column[0].tolist() == [[2, 2], [2, 2]]
    wide = client.run("add", [client.put([[10, 20]], "fp32"), client.put([[[1]], [[2]]], "fp32")])
    assert wide[0].shape == (2, 1, 2), "from both operands, not from the left one"
    with pytest.raises(Refusal, match=r"\(10,2\) and \(3,1\) do not broadcast"):
        client.run("add", [client.alloc((10, 2)), client.alloc((3, 1))])


def test_ops_06e_a_scalar_and_nothing(client: Client) -> None:
    answer = client.respond("add", [client.put(1, "fp32"), client.alloc((0, 3))])
    assert list(answer.outputs[0].shape) == [0, 3]
    assert not answer.instructions, "nothing is to be computed"


OPS_07: list[tuple[tuple[int, ...], pb.DataType, int, int]] = [
    ((65536, 32768), pb.FP32, 2147483648, 8589934592),
    ((40000, 40000), pb.FP32, 1600000000, 6400000000),
    ((65536, 32768), pb.INT8, 2147483648, 2147483648),
    ((65536, 16384), pb.FP16, 1073741824, 2147483648),
]


@pytest.mark.parametrize(("shape", "dtype", "elements", "size"), OPS_07)
def test_ops_07_sizes_beyond_32_bits(shape: tuple[int, ...], dtype: pb.DataType, elements: int, size: int) -> None:
    """Planned, not allocated: both with the size said, and in the answer. By kernels that know no limit: sim's do."""
    with client_of(Kernels(lambda one: one._replace(refuses=None))) as client:
        sizes_beyond_32_bits(client, shape, dtype, elements, size)


def sizes_beyond_32_bits(client: Client, shape: tuple[int, ...], dtype: pb.DataType, elements: int, size: int) -> None:
    one = pb.TensorDesc(shape=shape, data_type=dtype, byte_size=size)
    request = client.request("relu", [one])
    ask = ask_of(request, take_names(request))
    (made,) = outputs_of(ask, route(ask.op, client.service.chip))
    assert made is not None
    assert (made.elements, made.nbytes) == (elements, size)
    with pytest.raises(Refusal) as caught:
        client.translate(request)
    assert caught.value.field == "inputs[0]", "only a place is missing"
    one.byte_size = size & 0xFFFFFFFF or 1
    if one.byte_size != size:
        with pytest.raises(Refusal) as caught:
            client.translate(client.request("relu", [one]))
        assert caught.value.field == "inputs[0].byte_size"


def test_ops_07e_a_view_that_spans_more_than_32_bits(client: Client) -> None:
    """It needs 4294967308 bytes; a 32-bit number would say 12, and that would fit."""
    room = client.alloc((64,))
    with pytest.raises(Refusal, match="4294967308 bytes") as caught:
        client.translate(client.request("relu", [view(room, (2, 3), (1073741824, 1))]))
    assert caught.value.field == "inputs[0].device_addr"


def test_ops_07f_more_than_64_bits(client: Client) -> None:
    one = pb.TensorDesc(shape=[65536, 65536, 65536, 65536, 16], data_type=pb.FP32, device_addr=1 << 21)
    with pytest.raises(Refusal, match="64 bits") as caught:
        client.translate(client.request("relu", [one]))
    assert caught.value.field == "inputs[0].shape"


class Steps:
    """OPS-08: every step knows its right result."""

    def __init__(self, client: Client) -> None:
        self.client = client
        square = np.array([[1, 2], [3, 4]])
        self.square = client.put(square, "fp32")
        self.other = client.put([[0, 1], [2, 3]], "fp32")

    def add(self, first: Array, second: Array) -> None:
        found = self.client.run("add", [self.client.put(first, "fp32"), self.client.put(second, "fp32")])[0]
        assert found.shape == (first + second).shape
        assert (found == first + second).all()

    def relu(self, dtype: str) -> None:
        found = self.client.run("relu", [self.client.put([-1, 2] * 4, dtype)])[0]
        assert found.tolist() == [0, 2] * 4

    def matmul(self, strides: tuple[int, ...]) -> None:
        found = self.client.run("matmul", [self.square, view(self.other, (2, 2), strides)])[0]
        assert found.tolist() == ([[4, 7], [8, 15]] if strides == (2, 1) else [[2, 8], [4, 18]])

    def all(self) -> list[object]:
        def line(count: int) -> Array:
            return np.arange(1.0, count + 1)

        ten = line(10)
        return [
            lambda: self.add(line(512), line(512)),
            lambda: self.add(line(4096), line(4096)),
            lambda: self.add(line(96), line(96)),
            lambda: self.add(ten[:, None], ten[None, :]),
            lambda: self.add(np.ones((10, 10)), ten[:, None] * ten),
            lambda: self.relu("fp32"),
            lambda: self.relu("fp16"),
            lambda: self.matmul((2, 1)),
            lambda: self.matmul((1, 2)),
        ]


@pytest.mark.parametrize("order", ["forward", "backward", "twice"])
def test_ops_08_a_cached_kernel_serves_only_what_it_was_made_for(order: str, client: Client) -> None:
    steps = Steps(client).all()
    for step in {"forward": steps, "backward": steps[::-1], "twice": [s for s in steps for _ in range(2)]}[order]:
        step()  # type: ignore[operator]


def test_what_is_in_the_key_and_what_is_not(client: Client) -> None:
    """Addresses and the caller's number are not; attributes, types, shapes and strides of all operands are."""
    a, b = client.alloc((4, 4)), client.alloc((4, 4))
    assert not client.translate(client.request("softmax", [a])).cache_hit
    assert client.translate(client.request("softmax", [b], request_id=9)).cache_hit
    variants = [
        client.request("softmax", [a], {"axis": "0"}),
        client.request("softmax", [view(a, (4, 4), (1, 4))]),
        client.request("softmax", [view(a, (4, 2), (4, 1))]),
        client.request("softmax", [a], {}, [pb.TensorDesc(data_type=pb.FP32, shape=[4, 4], strides=[1, 4])]),
    ]
    for request in variants:
        assert not client.translate(request).cache_hit
        assert client.translate(request).cache_hit
    bodies = {client.translate(one).instructions[0].instruction_blob[36 + 16 :] for one in variants}
    assert len(bodies) == len(variants)


def test_attributes_in_any_order_are_the_same_request(client: Client) -> None:
    x = client.alloc((1, 2, 5, 5))
    w = client.alloc((2, 2, 3, 3))
    attrs = {"strides": "2,2", "pads": "1,1,1,1", "dilations": "1,1"}
    hits = []
    for names in itertools.permutations(attrs):
        hits.append(client.translate(client.request("conv2d", [x, w], {name: attrs[name] for name in names})).cache_hit)
    assert hits == [False] + [True] * 5


def test_a_kept_answer_is_not_used_for_memory_that_is_gone(client: Client) -> None:
    x, y = client.put([-1, 2], "fp32"), client.alloc((2,))
    request = client.request("relu", [x], {}, [y])
    for _ in range(3):
        assert client.translate(request).instructions
    client.free(x.tensor_id)
    with pytest.raises(Refusal, match="freed") as caught:
        client.translate(request)
    assert caught.value.field == "inputs[0].tensor_id"
    again = client.put([-3, 4], "fp32")
    assert again.device_addr == x.device_addr, "the pool gave the same block again"
    with pytest.raises(Refusal, match="freed"):
        client.translate(request)
    request.inputs[0].CopyFrom(again)
    assert client.translate(request).cache_hit


def test_a_kept_answer_says_whose_it_is(client: Client) -> None:
    x, y = client.alloc((8,)), client.alloc((8,))
    first = client.translate(client.request("relu", [x], {}, [y], request_id=1))
    again = client.translate(client.request("relu", [x], {}, [y], request_id=300))
    assert (first.request_id, again.request_id) == (1, 300)
    assert (first.cache_hit, again.cache_hit) == (False, True)
    assert first.instructions == again.instructions
    assert first.outputs == again.outputs
    assert len(first.stage_ns) == len(again.stage_ns) == 6
    assert all(first.stage_ns[:5])
    assert list(again.stage_ns[1:]) == [0] * 5
