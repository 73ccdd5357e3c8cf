"""Instructions to the byte: golden blobs written out by hand, and a decoder that takes nothing else."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accelctl.abi import blob, call, launch
from accelctl.abi.call import Call
from accelctl.abi.launch import Launch, LaunchError
from accelctl.abi.opset import BY_CODE, OPS, Op
from accelctl.abi.tensors import BF16, DTYPES, FP16, FP32, INT32, UINT8, Tensor, tensor
from accelctl.errors import UsageError

# -- golden bytes --

MATMUL = bytes.fromhex(
    "5a5a5a5a"  # 0 magic
    "0700000000000000"  # 4 kernel_id 7
    "8100000000000000"  # 12 instruction_size 129 = 16 + 4 + 3 * 36 + 1
    "0300000000000000"  # 20 param_count 3
    "0200000300004004"  # 28 launch: grid 3 x 4 as 2 (bits 0-23), 3 (24-39); 16 x 16 threads as 4 (52-55), 4 (56-59)
    "0000010000000000"  # 36 A at 0x10000
    "0000020000000000"  # 44 B at 0x20000
    "0000000001000000"  # 52 Y at 0x100000000
    "02000000"  # 60 M
    "03000000"  # 64 K
    "04000000"  # 68 N
    "01000000"  # 72 tensor cores
    "01030100"  # 76 version 1, 3 operands, op 1
    "01020000"  # A: fp32, rank 2
    "02000000000000000300000000000000"  # (2, 3)
    "03000000000000000100000000000000"  # dense
    "01020000"  # B: fp32, rank 2
    "03000000000000000400000000000000"  # (3, 4)
    "01000000000000000300000000000000"  # transposed
    "01020000"  # Y: fp32, rank 2
    "02000000000000000400000000000000"  # (2, 4)
    "04000000000000000100000000000000"  # dense
    "01"  # tf32
)
MATMUL_CALL = Call(
    OPS["matmul"],
    (tensor((2, 3), FP32, 0x10000), tensor((3, 4), FP32, 0x20000, (1, 3))),
    (tensor((2, 4), FP32, 1 << 32),),
    {"tf32": True},
)


def test_a_matmul_to_the_byte() -> None:
    made = blob.encode(7, 0x0440000003000002, [0x10000, 0x20000, 1 << 32], call.encode(MATMUL_CALL))
    assert made.hex() == MATMUL.hex()
    assert len(MATMUL) == 36 + 3 * 8 + 129


def test_a_matmul_read_back() -> None:
    found = blob.decode(MATMUL)
    assert found[:3] == (7, Launch((3, 4, 1), (16, 16, 1)), (0x10000, 0x20000, 1 << 32))
    assert call.decode(OPS["matmul"], found.body, found.params) == MATMUL_CALL
    for other in (bytearray(MATMUL), memoryview(MATMUL)):
        assert blob.decode(other) == found


def body(op: int, operands: list[Any], attrs: bytes) -> bytes:
    """As the documentation of abi.call says, by struct and nothing of ours: op number, (dtype, shape, strides)."""
    parts = [struct.pack("<BBH", 1, len(operands), op)]
    for dtype, shape, strides in operands:
        parts.append(struct.pack("<BBH", dtype, len(shape), 0))
        parts += [struct.pack("<Q", number) for number in (*shape, *strides)]
    return b"".join(parts) + attrs


ABSENT: Any = (0, (), ())
GOLDEN: list[tuple[Call, bytes]] = [
    (
        Call(OPS["relu"], (tensor((), BF16),), (tensor((), BF16),), {}),
        bytes.fromhex("01020400" + "03000000" * 2),
    ),
    (
        Call(
            OPS["conv2d"],
            (tensor((1, 2, 4, 4), FP16), tensor((2, 2, 3, 3), FP16), None),
            (tensor((1, 2, 2, 2), FP16),),
            OPS["conv2d"].parse({"strides": "2,2", "pads": "0,1,2,3", "auto_pad": "same_lower", "layout": "nhwc"}),
        ),
        body(
            2,
            [
                (2, (1, 2, 4, 4), (32, 16, 4, 1)),
                (2, (2, 2, 3, 3), (18, 9, 3, 1)),
                ABSENT,
                (2, (1, 2, 2, 2), (8, 4, 2, 1)),
            ],
            b"\2" + struct.pack("<2q", 2, 2)  # strides
            + b"\4" + struct.pack("<4q", 0, 1, 2, 3)  # pads
            + b"\2" + struct.pack("<2q", 1, 1)  # dilations
            + struct.pack("<q", 1)  # group
            + b"\2"  # auto_pad: notset, same_upper, same_lower
            + b"\1",  # layout: nchw, nhwc
        ),
    ),
    (
        Call(
            OPS["rope"],
            (tensor((5, 2, 8), BF16), tensor((5,), INT32)),
            (tensor((5, 2, 8), BF16),),
            OPS["rope"].parse({"style": "interleaved", "base": "500000", "rotary_dim": "4"}),
        ),
        body(
            8,
            [(3, (5, 2, 8), (16, 8, 1)), (5, (5,), (1,)), (3, (5, 2, 8), (16, 8, 1))],
            struct.pack("<d", 500000.0) + b"\1" + struct.pack("<q", 4),
        ),
    ),
    (
        Call(
            OPS["attention_prefill"],
            (tensor((2, 3, 4), FP32), tensor((1, 3, 4), FP32), tensor((1, 3, 4), FP32), tensor((3, 3), UINT8)),
            (tensor((2, 3, 4), FP32), None),
            OPS["attention_prefill"].parse({"causal": "lower_right", "softcap": "2.5", "window": "7"}),
        ),
        body(
            10,
            [
                (1, (2, 3, 4), (12, 4, 1)),
                (1, (1, 3, 4), (12, 4, 1)),
                (1, (1, 3, 4), (12, 4, 1)),
                (6, (3, 3), (3, 1)),
                (1, (2, 3, 4), (12, 4, 1)),
                ABSENT,
            ],
            b"\2" + struct.pack("<ddq", 0.0, 2.5, 7),
        ),
    ),
    (
        Call(
            OPS["topk_softmax"],
            (tensor((3, 4), FP32), None),
            (tensor((3, 2), FP32), tensor((3, 2), INT32)),
            OPS["topk_softmax"].parse({"k": "2", "renormalize": "true", "scoring": "sigmoid"}),
        ),
        body(
            13,
            [(1, (3, 4), (4, 1)), ABSENT, (1, (3, 2), (2, 1)), (5, (3, 2), (2, 1))],
            struct.pack("<q", 2) + b"\1" + b"\1",
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("made", "expected"), GOLDEN, ids=[row[0].op.name for row in GOLDEN])
def test_bodies_to_the_byte(made: Call, expected: bytes) -> None:
    assert call.encode(made).hex() == expected.hex()
    assert call.decode(made.op, expected, [0] * len(made.tensors)) == made


def test_what_a_matmul_says_first() -> None:
    """int32 M, K, N and a flag; a vector on the left has M 1, one on the right N 1."""
    heads = {((5,), (5, 7)): (1, 5, 7), ((2, 5), (5,)): (2, 5, 1), ((5,), (5,)): (1, 5, 1)}
    heads |= {((9, 1, 2, 3), (4, 3, 6)): (2, 3, 6), ((2, 0), (0, 2)): (2, 0, 2)}
    for (a, b), dims in heads.items():
        made = Call(OPS["matmul"], (tensor(a, FP32), tensor(b, FP32)), (tensor((), FP32),), {"tf32": False})
        assert call.encode(made)[:16] == struct.pack("<iiii", *dims, 0)


# -- what the fields do not hold --


def test_what_cannot_be_encoded_is_refused() -> None:
    for a, b, said in (
        ((1 << 31, 1), (1, 1), "M = 2147483648 does not fit the 32 bits"),
        ((1, 1 << 31), (1 << 31, 1), "K = 2147483648 does not fit"),
        ((1, 1), (1, 1 << 31), "N = 2147483648 does not fit"),
        ((), (1,), "a scalar is no operand"),
        ((1,), (), "a scalar is no operand"),
    ):
        made = Call(OPS["matmul"], (tensor(a, FP32), tensor(b, FP32)), (tensor((1, 1), FP32),), {"tf32": False})
        with pytest.raises(UsageError, match=said):
            call.encode(made)
    for bad in (
        tensor((1,) * 9, FP32),
        tensor((1 << 64,), FP32),
        Tensor((2,), FP32, (-1,)),
        Tensor((2, 2), FP32, (1,)),
    ):
        with pytest.raises(UsageError):
            call.encode(Call(OPS["relu"], (bad,), (bad,), {}))
    for name, value in (("strides", (1 << 63, 1)), ("group", 1 << 63), ("pads", (0,) * 256)):
        attrs = OPS["conv2d"].parse({}) | {name: value}
        image = tensor((1, 1, 1, 1), FP32)
        with pytest.raises(UsageError, match="conv2d: a number does not fit"):
            call.encode(Call(OPS["conv2d"], (image, image, None), (image,), attrs))


def test_what_a_blob_does_not_hold() -> None:
    assert len(blob.encode((1 << 64) - 1, 0, [(1 << 64) - 1] * 16, bytes(1 << 16))) == 36 + 128 + 65536
    for kernel, word, params, size, said in (
        (1 << 64, 0, [], 0, "does not fit its 64 bits"),
        (-1, 0, [], 0, "does not fit its 64 bits"),
        (1, 1 << 64, [], 0, "does not fit its 64 bits"),
        (1, 0, [1 << 64], 0, "does not fit its 64 bits"),
        (1, 0, [0] * 17, 0, "17 parameters and 0 bytes"),
        (1, 0, [], 65537, "0 parameters and 65537 bytes"),
    ):
        with pytest.raises(UsageError, match=said):
            blob.encode(kernel, word, params, bytes(size))


# -- the strict decoder --


def patched(at: int, layout: str, value: int, data: bytes = MATMUL) -> bytes:
    made = bytearray(data)
    struct.pack_into(layout, made, at, value)
    return bytes(made)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b"", "0 bytes, the header alone has 36"),
        (MATMUL[:35], "35 bytes, the header alone has 36"),
        (MATMUL[:-1], "188 bytes, its header says 189"),
        (MATMUL + b"\0", "190 bytes, its header says 189"),
        (MATMUL[1:] + b"\0", "it begins with 0x075a5a5a, not 0x5a5a5a5a"),
        (b"\0" + MATMUL[1:], "it begins with 0x5a5a5a00"),
        (patched(12, "<Q", 128), "189 bytes, its header says 188"),
        (patched(12, "<Q", 65537), "3 parameters and 65537 bytes of body are more"),
        (patched(12, "<Q", (1 << 64) - 1), "are more than any op needs"),
        (patched(20, "<Q", 2), "189 bytes, its header says 181"),
        (patched(20, "<Q", 17), "17 parameters"),
        (patched(20, "<Q", 1 << 61), "are more than any op needs"),
        (patched(28, "<Q", 0xFF << 52), "launch_config 0xff0000000000000 says a block of more than 1024 threads"),
    ],
)
def test_a_blob_that_is_not_one(wrong: bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        blob.decode(wrong)


def read(data: bytes, op: Op = OPS["matmul"]) -> Call:
    found = blob.decode(data)
    return call.decode(op, found.body, found.params)


@pytest.mark.parametrize(
    ("at", "layout", "value", "said"),
    [
        (60, "<i", 5, "not in the one form"),  # M says something else than A
        (60, "<i", -2, "not in the one form"),
        (68, "<i", 9, "not in the one form"),
        (72, "<i", 0, "not in the one form"),  # the flag and the attribute differ
        (72, "<i", 2, "not in the one form"),
        (76, "<B", 2, "not version 1 of matmul"),
        (77, "<B", 4, "not version 1 of matmul"),
        (78, "<H", 2, "not version 1 of matmul"),
        (80, "<B", 0, "A is not described"),
        (80, "<B", 7, "A is not described"),
        (81, "<B", 9, "A is not described"),
        (81, "<B", 0, "."),  # everything after it shifts
        (82, "<H", 1, "not in the one form"),
        (84, "<Q", 1 << 63, "more than 64 bits"),
        (188, "<B", 2, "not in the one form"),  # a bool is 0 or 1
    ],
)
def test_a_body_that_is_not_one(at: int, layout: str, value: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(patched(at, layout, value))


def test_addresses_must_be_as_many_as_operands() -> None:
    found = blob.decode(MATMUL)
    for params, said in ((found.params[:2], "Y is not described"), ((*found.params, 1), "1 addresses more")):
        with pytest.raises(UsageError, match=said):
            call.decode(OPS["matmul"], found.body, params)


def test_attributes_that_no_request_can_have() -> None:
    made, right = GOLDEN[2]
    for at, value in ((-17, struct.pack("<d", float("nan"))), (-17, struct.pack("<d", float("inf"))), (-9, b"\2")):
        wrong = bytearray(right)
        wrong[len(wrong) + at : len(wrong) + at + len(value)] = value
        with pytest.raises(UsageError, match=r"is not finite|word 2 of style"):
            call.decode(made.op, bytes(wrong), [0, 0, 0])


def test_every_prefix_is_refused() -> None:
    for made, right in [(MATMUL_CALL, call.encode(MATMUL_CALL)), *GOLDEN]:
        for end in range(len(right)):
            with pytest.raises(UsageError):
                call.decode(made.op, right[:end], [0] * len(made.tensors))
        with pytest.raises(UsageError, match="not in the one form"):
            call.decode(made.op, right + b"\0", [0] * len(made.tensors))


# -- every op, at random --

addresses = st.integers(0, (1 << 64) - 1)


axes = st.lists(st.tuples(st.integers(0, 9) | st.just(1 << 20), st.integers(0, 1 << 20)), max_size=3)
some = st.builds(
    lambda axes, dtype, address: Tensor(tuple(a for a, _ in axes), dtype, tuple(b for _, b in axes), address),
    axes,
    st.sampled_from(list(DTYPES.values())),
    addresses,
)
some_matrix = some.filter(lambda found: found.shape != ())


ATTRS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "ints": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=16).map(tuple),
}


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Whatever an instruction can say, whether it makes sense or not."""
    op = draw(st.sampled_from(list(OPS.values())))

    def operands(rows: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        one = some_matrix if op.name == "matmul" else some
        return tuple(None if row.optional and draw(st.booleans()) else draw(one) for row in rows)

    attrs = {
        attr.name: draw(st.sampled_from(attr.words) if attr.kind == "word" else ATTRS[attr.kind]) for attr in op.attrs
    }
    return Call(op, operands(op.inputs), operands(op.outputs), attrs)


def encoded(made: Call) -> bytes:
    """A blob whose kernel is the op's number."""
    return blob.encode(made.op.code, 0, [one.address for one in made.tensors], call.encode(made))


def reread(data: bytes) -> tuple[blob.Instruction, Call]:
    """As a device does: the kernel says the op."""
    found = blob.decode(data)
    if found.kernel_id not in BY_CODE:
        raise UsageError(f"no kernel {found.kernel_id}")
    return found, call.decode(BY_CODE[found.kernel_id], found.body, found.params)


@given(calls())
def test_what_is_encoded_is_read_back(made: Call) -> None:
    assert reread(encoded(made))[1] == made


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A blob with a few bytes changed, cut out, put in or cut off."""
    data = bytearray(encoded(draw(calls())))
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["change", "flip", "cut", "insert", "end"]))
        at = draw(st.integers(0, max(0, len(data) - 1)))
        if kind == "change" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 8))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        else:
            del data[at:]
    return bytes(data)


@given(mutated())
@example(MATMUL[:36] + MATMUL[37:])
def test_a_mutated_blob_is_refused_or_is_what_it_says(data: bytes) -> None:
    """No other error, nothing that two blobs could mean: what is taken encodes to itself."""
    try:
        found, meant = reread(data)
    except UsageError:
        return
    assert len(meant.tensors) == len(found.params)
    again = blob.encode(found.kernel_id, found.launch.encode(), found.params, call.encode(meant))
    assert again == data


# -- launch configurations --


@pytest.mark.parametrize(
    ("shape", "word"),
    [
        (Launch(), 0),
        (Launch((2, 1, 1)), 1),
        (Launch((1, 2, 1)), 1 << 24),
        (Launch((1, 1, 2)), 1 << 40),
        (Launch((1 << 24, 1 << 16, 1 << 12)), (1 << 52) - 1),
        (Launch(block=(1024, 1, 1)), 10 << 52),
        (Launch(block=(1, 1024, 1)), 10 << 56),
        (Launch(block=(1, 1, 1024)), 10 << 60),
        (Launch((5, 3, 2), (32, 8, 4)), 4 | 2 << 24 | 1 << 40 | 5 << 52 | 3 << 56 | 2 << 60),
    ],
)
def test_a_launch_to_the_bit(shape: Launch, word: int) -> None:
    assert shape.encode() == word
    assert launch.decode(word) == shape


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (Launch((0, 1, 1)), "grid x of 0 blocks: 1 to 16777216 are possible"),
        (Launch(((1 << 24) + 1, 1, 1)), "grid x of 16777217 blocks"),
        (Launch((1, (1 << 16) + 1, 1)), "grid y of 65537 blocks"),
        (Launch((1, 1, (1 << 12) + 1)), "grid z of 4097 blocks"),
        (Launch(block=(2048, 1, 1)), "powers of two, at most 1024 together"),
        (Launch(block=(64, 32, 1)), "powers of two, at most 1024 together"),
        (Launch(block=(3, 1, 1)), "powers of two"),
        (Launch(block=(0, 1, 1)), "powers of two"),
        (Launch(block=(-1, -1, 1)), "powers of two"),
    ],
)
def test_a_launch_that_can_never_run(shape: Launch, said: str) -> None:
    with pytest.raises(LaunchError, match=said) as caught:
        shape.encode()
    assert caught.value.kind == "launch_config"


logs = st.lists(st.integers(0, 10), min_size=3, max_size=3).filter(lambda found: sum(found) <= 10)


@given(st.integers(1, 1 << 24), st.integers(1, 1 << 16), st.integers(1, 1 << 12), logs)
def test_launches_are_read_back(x: int, y: int, z: int, threads: list[int]) -> None:
    made = Launch((x, y, z), (1 << threads[0], 1 << threads[1], 1 << threads[2]))
    assert 0 <= made.encode() < 1 << 64
    assert launch.decode(made.encode()) == made


@given(st.integers(0, (1 << 64) - 1))
@example(0xAB << 56)
def test_any_word_is_one_launch_or_none(word: int) -> None:
    try:
        found = launch.decode(word)
    except LaunchError:
        assert sum(word >> shift & 15 for shift in (52, 56, 60)) > 10
        return
    assert found.encode() == word


def test_a_word_of_more_than_64_bits_is_no_launch() -> None:
    with pytest.raises(LaunchError):
        launch.decode(1 << 64)
