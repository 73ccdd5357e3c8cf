"""The catalogue: every corner is there, data are what they claim, and an executor that is right passes all of it."""

import numpy as np
import pytest

from accelctl.abi.opset import OPS
from accelctl.abi.tensors import DTYPES, MOST_DIMS, is_dense, span
from accelctl.errors import UsageError
from accelctl.smoke.cases import Case, Trial, catalogue, select, sequences
from accelctl.smoke.cases.record import Maker, repeated, strided
from accelctl.smoke.compare import judge
from accelctl.smoke.numbers import NUMPY, floating, name_of
from tests.smokehost import execute

BY_OP = {op: select([op]) for op in OPS}


def trials(op: str, words: str = "") -> list[Trial]:
    return [case.load() for case in BY_OP[op] if words in case.id]


def test_ids_are_unique_and_say_what_they_are() -> None:
    ids = [case.id for case in catalogue()]
    assert len(ids) == len(set(ids))
    for case in catalogue():
        op, dtype, name = case.id.split("/")
        assert (op, dtype) == (case.op, case.dtype)
        assert name
        assert " " not in name


@pytest.mark.parametrize("op", OPS)
def test_every_element_type_of_the_first_operand_has_cases(op: str) -> None:
    ran = {case.dtype for case in BY_OP[op] if "/refused-" not in case.id}
    assert ran == OPS[op].inputs[0].dtypes
    assert any("/refused-" in case.id for case in BY_OP[op])


def test_published_cases_are_there_with_their_values() -> None:
    """OPS-01 to OPS-08; 07 is planned only (test_smoke_reference), 08 and views compare against the reference."""
    found = [trial for op in OPS for trial in trials(op, "ops-0")]
    held = {trial.case.id for trial in found if trial.want or trial.refusal}
    for name in (
        "softmax/fp16/ops-01",
        "softmax/fp16/ops-01-low",
        "layernorm/fp32/ops-02a",
        "layernorm/fp32/ops-02b",
        "layernorm/fp16/ops-02c",
        "matmul/bf16/ops-03a",
        "softmax/bf16/ops-03b",
        "matmul/fp16/ops-03c",
        "matmul/fp16/ops-03d",
        "matmul/fp16/ops-03d-fp32",
        "conv2d/fp32/ops-04-values",
        "conv2d/fp16/ops-04-kernel",
        "matmul/fp32/ops-05a",
        "matmul/bf16/ops-05b",
        "matmul/fp32/ops-05c",
        *(f"add/int32/ops-06{letter}" for letter in "abce"),
        "add/fp32/refused-ops-06d",
    ):
        assert name in held, name


def test_ops_04_geometry() -> None:
    right = {(4, 3, 2): 2, (5, 3, 2): 3, (6, 3, 2): 3, (224, 7, 2): 112, (4, 2, 1): 4, (32, 4, 1): 32, (3, 1, 3): 1}
    for (length, kernel, stride), out in right.items():
        for rule in ("upper", "lower"):
            (found,) = trials("conv2d", f"/ops-04-{length}-{kernel}-{stride}-same-{rule}")
            assert found.outputs["Y"].shape == (1, 1, out, out)


def test_ops_08_runs_in_one_session_in_order() -> None:
    ((name, cases),) = sequences(catalogue())
    assert name == "ops-08"
    assert [case.id.rpartition("-")[2] for case in cases] == [str(number) for number in range(1, 10)]
    shapes = [trial.outputs[next(iter(trial.outputs))].shape for trial in map(Case.load, cases)]
    assert shapes[:5] == [(512,), (4096,), (96,), (10, 10), (10, 10)]


@pytest.mark.parametrize(
    ("op", "names"),
    [
        ("matmul", "k8192 no-sum no-rows no-columns zero-times-inf small-integers transposed-b rows-apart m129 k4097"),
        (
            "conv2d",
            "pointwise depthwise large-dilation same-upper-even pads-at-one-end empty-batch valid-unbatched nhwc",
        ),
        (
            "layernorm",
            "constant-row one no-columns no-rows inf-and-nan eps-negative-bare mean-1000 small-variance n8193",
        ),
        ("rmsnorm", "zero-row no-weights gemma rows-apart in-place 7x769 7x5125-residual small"),
        ("relu", "special in-place offset n1048577 scalar n0"),
        ("add", "repeated subnormal empty-broadcast scalars overflow alpha-2"),
        ("softmax", "all-masked plus-inf nan one-masked 1e30 empty-axis scalar n128256 70000-columns"),
        ("rope", "neox-identity interleaved-far neox-padded neox-80-32 interleaved-batch neox-offset-99"),
        ("silu_and_mul", "special gate-first 7x27648 large-gate"),
        ("attention_prefill", "masked-row masked-row-float no-keys no-queries softcap-2 wide-values negative-scores"),
        ("attention_prefill", "3d-upper_left 3d-lower_right grouped-lower_right more-rows-lower_right large-scores"),
        ("attention_decode", "partial-block block-5 one-token shared-block tail-minus-1 large-ids kv-2048 dim-80"),
        ("grouped_gemm", "empty-group no-rows one-takes-all unused-rows weights-transposed k511"),
        ("topk_softmax", "ties-softmax not-finite-sigmoid k-0 k-all bias-sigmoid renormalized-halves"),
        ("moe_align", "map padded one-expert 256x2-of-257-by-128 0x2-of-4-by-4"),
        ("copy", "to-int8 bf16-ties fp16-ties cache-write to-transposed broadcast saturated-uint8"),
    ],
)
def test_corners_of_the_collected_facts(op: str, names: str) -> None:
    there = {case.id.rpartition("/")[2] for case in BY_OP[op]}
    for name in names.split():
        assert name in there, f"{op}: {name}"


def test_refusals_of_the_collected_facts() -> None:
    there = {case.id for case in catalogue()}
    for name in (
        "conv2d/fp32/refused-large-kernel",
        "conv2d/fp32/refused-groups",
        "conv2d/fp32/refused-no-channels",
        "conv2d/fp32/refused-stride-negative",
        "rope/fp32/refused-odd",
        "rope/fp32/refused-no-style",
        "attention_prefill/bf16/refused-heads",
        "attention_decode/fp16/refused-heads",
        "matmul/fp32/refused-mixed",
        "topk_softmax/fp16/refused-k-above",
        "add/int32/refused-float-alpha",
        "grouped_gemm/fp32/refused-decreasing",
        "rmsnorm/bf16/refused-no-eps",
        "layernorm/fp32/refused-no-eps",
    ):
        assert name in there, name


# -- data --


@pytest.mark.parametrize("op", OPS)
def test_every_case_of(op: str) -> None:
    """A right executor passes, values from elsewhere agree with the reference, operands and results lie in memory as
    they say, and the data are few enough for a run in numpy within a minute."""
    total = 0
    for trial in trials(op):
        size = sum(arg.storage.nbytes for arg in trial.inputs.values())
        assert size < 17e6, trial.case.id
        total += size
        check_inputs(trial)
        if trial.refusal is None:
            assert [one.detail for one in judge(trial, execute(trial)) if not one.passed] == [], trial.case.id
            check_outputs(trial)
            for name, want in trial.want.items():
                np.testing.assert_allclose(trial.expected[name], want, rtol=3e-5, atol=1e-7, err_msg=trial.case.id)
    assert total < 100e6


def check_inputs(trial: Trial) -> None:
    for name, arg in trial.inputs.items():
        where = (trial.case.id, name)
        reach = arg.offset * arg.storage.itemsize + span(arg.shape, arg.strides, DTYPES[arg.dtype])
        assert arg.storage.ndim == 1, where
        assert arg.offset >= 0, where
        assert len(arg.shape) <= MOST_DIMS, where
        if 0 not in arg.shape and 1 not in arg.shape:  # the stride of an axis of length 1 has no meaning
            assert reach <= arg.storage.nbytes, where
    if trial.refusal is None:
        assert name_of(next(iter(trial.inputs.values())).storage) == trial.case.dtype, trial.case.id


def check_outputs(trial: Trial) -> None:
    for name, out in trial.outputs.items():
        where = (trial.case.id, name)
        assert trial.expected[name].shape == out.shape, where
        if not is_dense(out.shape, out.strides):
            places = np.zeros(1, np.int64)
            for length, stride in zip(out.shape, out.strides, strict=True):
                places = (places[:, None] + np.arange(length) * stride).reshape(-1)
            assert len(np.unique(places)) == len(places), where
        if out.alias:
            source = trial.inputs[out.alias]
            assert (source.shape, source.strides, source.dtype) == (out.shape, out.strides, out.dtype), where


def test_caches_hold_nan_where_nobody_looks() -> None:
    checked = 0
    for trial in trials("attention_decode"):
        if trial.refusal is not None or trial.case.id.endswith(("large-ids", "window-nan")):
            continue
        table, lengths = (trial.values[name] for name in ("block_table", "seq_lens"))
        assert table is not None
        assert lengths is not None
        for name in ("k_cache", "v_cache"):
            cache = trial.values[name]
            assert cache is not None
            used = np.zeros(cache.shape[:2], bool)
            for row, length in zip(table, lengths.tolist(), strict=True):
                for token in range(length):
                    used[row[token // cache.shape[1]], token % cache.shape[1]] = True
            assert np.isfinite(cache[used].astype(np.float32)).all(), trial.case.id
            if not trial.case.id.endswith("shared-block"):
                assert np.isnan(cache[~used].astype(np.float32)).all(), trial.case.id
                assert (~used).any()
            checked += 1
    assert checked > 100


def test_gaps_hold_nan() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    arg = strided(array, (1, 0), gap=2)
    assert (arg.value == array).all()
    assert np.isnan(arg.storage).sum() == 8
    assert arg.strides == (1, 5)
    assert (repeated(array[:1], (3, 4)).value == array[0]).all()


def test_the_seed_decides_and_nothing_else() -> None:
    (case,) = (case for case in BY_OP["matmul"] if case.id == "matmul/fp16/m17")
    one, same, other = case.load(3), case.load(3), case.load(4)
    assert (one.inputs["A"].storage == same.inputs["A"].storage).all()
    assert (one.inputs["A"].storage != other.inputs["A"].storage).any()
    assert (one.inputs["A"].storage[:429] != one.inputs["B"].storage).any()


def test_integers_come_from_the_whole_range() -> None:
    values = Maker(np.random.default_rng(0), "int8").normal(4000)
    assert (values.min(), values.max()) == (-128, 127)


# -- choosing --


def test_filters() -> None:
    found = select(["relu", "softmax"], ["bf16"])
    assert {case.op for case in found} == {"relu", "softmax"}
    assert {case.dtype for case in found} == {"bf16"}
    with pytest.raises(UsageError, match="no op 'conv3d'; there are: matmul, conv2d"):
        select(["conv3d"])
    with pytest.raises(UsageError, match="no element type 'fp8'; there are: fp32"):
        select([], ["fp8"])


def test_long_cases_are_left_out_unless_asked_for() -> None:
    assert not any(case.long for case in select())
    extra = set(select(long=True)) - set(select())
    assert {case.id for case in extra} == {case.id for case in catalogue() if case.long}
    assert len(extra) == 10


def test_every_numpy_type_has_a_name() -> None:
    for name, dtype in NUMPY.items():
        assert name_of(np.zeros(1, dtype)) == name
        assert dtype.itemsize == DTYPES[name].itemsize
        assert floating(name) == DTYPES[name].floating
