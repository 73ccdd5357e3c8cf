"""Which kernel takes a call: a special one where its record is fresh and proven and every condition holds, the general
one everywhere else, and each of the two is counted with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelctl.abi import capabilityfile, compute, opscheck
from accelctl.abi.call import Call
from accelctl.abi.capability import LADDER, RUNGS, Capability
from accelctl.abi.condition import ALWAYS, Conditions, Offers
from accelctl.abi.framework import schema_of, semantics_of
from accelctl.abi.launch import Launch
from accelctl.abi.ops import Template
from accelctl.abi.opset import OPS
from accelctl.abi.platforms import platform_of, templates_of
from accelctl.abi.tensors import DTYPES, FP32, INT32, Tensor, tensor
from accelctl.abi.testbench import Wrong
from accelctl.backends.sim.ops.contract import SimOps
from accelctl.backends.sim.ops.kernels import TEMPLATES
from accelctl.errors import AbiError, AccelError, UsageError
from accelctl.model.smokereport import Evidence
from accelctl.umd import metrics, serving
from accelctl.umd.dispatch import FALLBACK, HIT, NO_RECORD, OFF, REFUSES, Count, Dispatch, Rule, dispatch_of
from accelctl.umd.refusal import Refusal
from tests.helpers import run_cli
from tests.umdkit import Client, Kernels, chip_of, service_of

FOUND = compute.named("sim:0")
MATVEC = templates_of(FOUND)["matvec"]
SERVICE = tuple(LADDER)[:3]


def record(*rungs: str, **more: Any) -> Capability:
    facts = {
        "kernel": "matvec",
        "op": "matmul",
        "platform": platform_of(FOUND, MATVEC),
        "preconditions": MATVEC.conditions,
        "evidence": tuple(Evidence(rung, "2026-03-01", {"cases": 1}) for rung in rungs or SERVICE),
        "fallback": "matmul_f",
        "simulated": True,
    }
    return Capability(**{**facts, **more})


def matmul(a: tuple[int, ...], b: tuple[int, ...], dtype: str = "fp32", result: str = "") -> Call:
    batch = a[:-2] if len(a) >= len(b) else b[:-2]
    y = (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))
    tensors = [tensor(shape, DTYPES[dtype]) for shape in (a, b)]
    return Call(OPS["matmul"], tuple(tensors), (tensor(y, DTYPES[result or dtype]),), {"tf32": False})


# -- conditions


@pytest.mark.parametrize(
    ("a", "b", "failed"),
    [
        ((4, 8), (8, 1), ""),
        ((4, 8), (8,), ""),
        ((8,), (8,), ""),
        ((8,), (8, 1), ""),
        ((4, 8), (8, 2), "N == 1"),
        ((4, 8), (8, 0), "N == 1"),
        ((4, 0), (0, 1), "K >= 1"),
        ((1, 4, 8), (8, 1), ""),
        ((2, 4, 8), (8, 1), "batch == 1"),
        ((4, 8), (3, 8, 1), "batch == 1"),
        ((0, 4, 8), (8, 1), "batch == 1"),
    ],
)
def test_the_named_lengths_of_a_product(a: tuple[int, ...], b: tuple[int, ...], failed: str) -> None:
    assert MATVEC.conditions is not None
    assert MATVEC.conditions.failed(matmul(a, b)) == failed


def relu(x: Tensor, y: Tensor) -> Call:
    return Call(OPS["relu"], (x,), (y,), {})


@pytest.mark.parametrize(
    ("conditions", "failed"),
    [
        (ALWAYS, ""),
        (Conditions(dtypes=frozenset({"fp32"})), ""),
        (Conditions(dtypes=frozenset({"fp16", "bf16"})), "element type is bf16 or fp16"),
        (Conditions(results=frozenset({"fp16"})), "result is fp16"),
        (Conditions(dense=True), "operands are dense"),
        (Conditions(dims={"X.0": (3, 3), "X.-1": (5, 5), "X.rank": (2, 2), "Y.1": (1, 5)}), ""),
        (Conditions(dims={"X.0": (0, 2)}), "X.0 <= 2"),
        (Conditions(dims={"X.1": (1, 4)}), "1 <= X.1 <= 4"),
        (Conditions(dims={"X.2": (0, 9)}), "X.2 <= 9"),
        (Conditions(words=("only on Sundays",)), "only on Sundays"),
    ],
)
def test_each_condition_of_any_op(conditions: Conditions, failed: str) -> None:
    conditions.check(OPS["relu"])
    assert conditions.failed(relu(tensor((3, 5), FP32, 0, (1, 3)), tensor((3, 5), FP32))) == failed


def test_operands_and_attributes() -> None:
    op, x = OPS["layernorm"], tensor((2, 3), FP32)
    call = Call(op, (x, None, x), (x,), op.parse({"epsilon": "1e-5"}))
    for conditions, failed in (
        (Conditions(absent=frozenset({"B"})), "no B"),
        (Conditions(absent=frozenset({"scale"})), ""),
        (Conditions(present=frozenset({"scale"})), "scale is there"),
        (Conditions(present=frozenset({"B"})), ""),
        (Conditions(attrs={"axis": "-1", "epsilon": "1e-05"}), ""),
        (Conditions(attrs={"axis": "0"}), "axis is 0"),
        (Conditions(dims={"scale.0": (0, 9)}), "scale.0 <= 9"),
    ):
        conditions.check(op)
        assert conditions.failed(call) == failed


def test_what_the_device_lacks() -> None:
    needs = Conditions(needs={"local_memory_bytes": 1024, "threads": 64}, instructions=("dot4",))
    assert needs.lacking(Offers({"local_memory_bytes": 1024, "threads": 64}, frozenset({"dot4"}))) == ""
    assert needs.lacking(Offers({"threads": 64})) == "the device has local_memory_bytes >= 1024"
    assert needs.lacking(Offers({"local_memory_bytes": 4096, "threads": 64})) == "the device has dot4"
    assert needs.texts() == (
        "the device has local_memory_bytes >= 1024", "the device has threads >= 64", "the device has dot4",
    )  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"dims": {"X.9x": (0, 1)}},
        {"dims": {"Z.0": (0, 1)}},
        {"dims": {"M": (0, 1)}},
        {"dims": {"X.0": (-1, 1)}},
        {"dims": {"X.0": (0, 1 << 63)}},
        {"absent": frozenset({"X"})},
        {"attrs": {"axis": "0"}},
        {"needs": {"threads": -1}},
    ],
)
def test_conditions_that_no_relu_can_be_asked(wrong: dict[str, Any]) -> None:
    with pytest.raises(AbiError, match=r"^conditions: .+"):
        Conditions(**wrong).check(OPS["relu"])


def test_every_op_has_a_schema_from_its_own_table() -> None:
    assert schema_of(OPS["matmul"]) == "accelctl::matmul(Tensor A, Tensor B, *, bool tf32=False) -> Tensor"
    assert schema_of(OPS["rope"]) == (
        "accelctl::rope(Tensor X, Tensor positions, *, float base=10000.0, str style, int rotary_dim=0) -> Tensor"
    )
    assert "int[] pads=[0,0,0,0]" in schema_of(OPS["conv2d"])
    assert all(semantics_of(op)["torch"].meta for op in OPS)


# -- choosing


def chosen(dispatch: Dispatch, call: Call) -> str:
    """The special kernel that takes a call."""
    verdicts = dispatch.judge(call)
    dispatch.count(verdicts)
    return verdicts[-1][0].template.name if verdicts and not verdicts[-1][1] else ""


HERE, WIDE = matmul((4, 8), (8, 1)), matmul((4, 8), (8, 3))


@pytest.mark.parametrize(
    ("records", "options", "reason"),
    [
        ([record()], {}, ""),
        ([], {}, NO_RECORD),
        ([], {"rung": "none"}, ""),
        ([record()], {"off": ["matvec"]}, OFF),
        ([], {"rung": "none", "off": ["matvec"]}, OFF),
        ([record(*SERVICE[:2])], {}, "evidence only up to: kernel alone"),
        ([record(*SERVICE[1:])], {}, "evidence only up to: nothing"),
        ([record(*SERVICE[:2])], {"rung": "alone"}, ""),
        ([record()], {"rung": "model"}, "evidence only up to: through the service"),
        ([record(*LADDER)], {"rung": "model"}, ""),
        ([record(kernel="matmul_f")], {}, NO_RECORD),
        ([record(platform=platform_of(FOUND, MATVEC)._replace(device="sim:1"))], {}, NO_RECORD),
        ([record(preconditions=Conditions(words=("small",)))], {}, "small"),
        ([record(preconditions=Conditions(dims={"M": (1, 3)}))], {}, "1 <= M <= 3"),
        ([record(preconditions=ALWAYS)], {}, ""),
    ],
)
def test_when_a_special_kernel_is_taken(records: list[Capability], options: dict[str, Any], reason: str) -> None:
    dispatch = dispatch_of(FOUND, records, **options)
    assert chosen(dispatch, HERE) == ("" if reason else "matvec")
    assert dispatch.counts() == [Count("matvec", FALLBACK if reason else HIT, reason, 1)]


def test_a_stale_record_is_never_used_and_only_that_one() -> None:
    old = platform_of(FOUND, MATVEC)._replace(versions=(("numpy", "1.0"),))
    dispatch = dispatch_of(FOUND, [record(platform=old)])
    assert chosen(dispatch, HERE) == ""
    assert dispatch.counts()[0].reason.startswith("stale: numpy: 1.0, now ")
    assert chosen(dispatch_of(FOUND, [record(platform=old), record()]), HERE) == "matvec"
    assert chosen(dispatch_of(FOUND, [record(recorded="0" * 16)]), HERE) == ""


def test_of_several_special_kernels_the_first_that_takes_a_call_is_used() -> None:
    narrow, wide = (Conditions(dims={"M": (1, most)}) for most in (2, 8))
    first, second, third = (
        Rule(MATVEC._replace(name=name), (one,)) for name, one in (("a", narrow), ("b", wide), ("c", ALWAYS))
    )
    dispatch = Dispatch([first, second, third])
    assert [chosen(dispatch, matmul((rows, 8), (8, 1))) for rows in (2, 4, 9)] == ["a", "b", "c"]
    assert [(one.kernel, one.result, one.reason) for one in dispatch.counts()] == [
        ("a", HIT, ""), ("a", FALLBACK, "1 <= M <= 2"), ("b", HIT, ""), ("b", FALLBACK, "1 <= M <= 8"), ("c", HIT, ""),
    ]  # fmt: skip


def test_a_wider_record_does_not_widen_the_kernel() -> None:
    dispatch = dispatch_of(FOUND, [record(preconditions=ALWAYS)])
    assert chosen(dispatch, WIDE) == ""
    assert dispatch.counts()[0].reason == "N == 1"


def test_hits_and_fallbacks_are_counted_by_the_condition_that_failed() -> None:
    dispatch = dispatch_of(FOUND, [record()])
    for call in (HERE, HERE, WIDE, matmul((2, 4, 8), (8, 1)), matmul((4, 8), (8, 1), "int8", "int32"), WIDE):
        chosen(dispatch, call)
    assert dispatch.counts() == [
        Count("matvec", HIT, "", 2),
        Count("matvec", FALLBACK, "N == 1", 2),
        Count("matvec", FALLBACK, "batch == 1", 1),
        Count("matvec", FALLBACK, "element type is bf16 or fp16 or fp32", 1),
    ]


def test_other_ops_are_not_looked_at() -> None:
    dispatch = dispatch_of(FOUND, [record()])
    x = tensor((3,), FP32)
    assert chosen(dispatch, relu(x, x)) == ""
    assert dispatch.counts() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"off": ["matvek"]},
            r"kernel 'matvek' cannot be switched off: it is no kernel of this chip \(special .* matvec",
        ),
        ({"off": ["matmul_f"]}, r"'matmul_f' cannot be switched off: it is a general kernel"),
        ({"rung": "moon"}, r"evidence 'moon': it is one of none, blob, alone, service, counted, cached, model"),
    ],
)
def test_names_that_nothing_has(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        dispatch_of(FOUND, [], **options)


def test_a_device_without_what_a_kernel_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimOps, "offers", lambda self, target: Offers({"threads": 128}))
    dispatch = dispatch_of(FOUND, [record()])
    assert chosen(dispatch, HERE) == ""
    assert dispatch.counts()[0].reason == "the device has threads >= 256"


@pytest.mark.parametrize("method", ["versions", "offers"])
def test_a_chip_that_fails_when_it_is_asked_is_one_line(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def fail(*words: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(SimOps, method, fail)
    with pytest.raises(AccelError, match=r"chip sim: asked for its .+, it failed: boom"):
        dispatch_of(FOUND, [record()])


# -- in the pipeline


@contextmanager
def client(*records: Capability, **options: Any) -> Iterator[Client]:
    with service_of() as service:
        service.chip.dispatch = dispatch_of(FOUND, records, **options)
        yield Client(service)


def names(client: Client, *arrays: Any, **attrs: str) -> list[str]:
    """Kernels of one translation, and that its result is right."""
    response = client.respond("matmul", [client.put(array) for array in arrays], attrs)
    want = np.matmul(*(np.asarray(array, np.float64) for array in arrays))
    assert np.allclose(client.get(response.outputs[0]).astype(np.float64), want, rtol=1e-3)
    return [client.service.chip.by_number[one.kernel_id].name for one in response.instructions]


RNG = np.random.default_rng(5)
A, B, C = (RNG.normal(size=shape).astype(np.float32) for shape in ((6, 33), (33, 1), (33, 4)))


def test_the_pair_is_chosen_by_shape_and_both_are_right() -> None:
    with client(record()) as one:
        assert names(one, A, B) == ["matvec"]
        assert names(one, A, B[:, 0]) == ["matvec"]
        assert names(one, A[0], B) == ["matvec"]
        assert names(one, A, C) == ["matmul_f"]
        assert names(one, np.stack([A, A]), B) == ["matmul_f"]
        assert names(one, A.astype(np.float16), B.astype(np.float16)) == ["matvec"]
    with client() as one:
        assert names(one, A, B) == ["matmul_f"]
    with client(record(), off=["matvec"]) as one:
        assert names(one, A, B) == ["matmul_f"]


def test_what_was_decided_is_kept_with_the_translation() -> None:
    with client(record()) as one:
        for _ in range(5):
            names(one, A, B)
            names(one, A, C)
        counted = one.service.chip.dispatch.counts()
        assert [(count.result, count.translations) for count in counted] == [(HIT, 1), (FALLBACK, 1)]


def test_what_goes_through_scratch_memory_is_decided_for_what_the_kernel_gets() -> None:
    with client(record()) as one:
        x = one.put(RNG.normal(size=(1, 1)).astype(np.float32))
        response = one.respond("matmul", [x, x], {}, [x])
        kernels = [one.service.chip.by_number[step.kernel_id].name for step in response.instructions]
        assert kernels == ["matvec", "copy"]


def test_metrics_tell_hits_and_fallbacks() -> None:
    with client(record()) as one:
        names(one, A, B)
        names(one, A, C)
        chip, service = one.service.chip, one.service
        text = metrics.text(metrics.Metrics(), service.telemetry, chip.dispatch.counts).decode()
    assert 'umd_dispatch_total{kernel="matvec",reason="",result="hit"} 1.0' in text
    assert 'umd_dispatch_total{kernel="matvec",reason="N == 1",result="fallback"} 1.0' in text


def test_a_special_kernel_stands_behind_its_fallback() -> None:
    def lost(template: Template) -> Template | None:
        return template._replace(fallback="nothing") if template.fallback else template

    with pytest.raises(AbiError, match="kernel matvec falls back to 'nothing', which is no earlier kernel of its op"):
        chip_of(Kernels(lost))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fallback": "nothing"}, "kernel 'matvec': its fallback 'nothing' is no earlier kernel of matmul"),
        (
            {"conditions": Conditions(dims={"X.0": (0, 1)})},
            "kernel 'matvec': conditions: matmul has no dimension 'X.0'",
        ),
    ],
)
def test_the_conformance_suite_looks_at_special_kernels(change: dict[str, Any], said: str) -> None:
    made = [one._replace(**change) if one.fallback else one for one in TEMPLATES]
    opscheck._kernels(TEMPLATES)
    with pytest.raises(Wrong) as caught:
        opscheck._kernels(made)
    assert str(caught.value) == said


def test_a_rule_asks_the_kernel_itself_last() -> None:
    asked: list[Call] = []

    def refuses(call: Call) -> str:
        asked.append(call)
        return "no"

    template = Template(9, "k", "matmul", frozenset({"fp32"}), lambda call: Launch(), refuses=refuses)
    rule = Rule(template, (Conditions(dims={"N": (1, 1)}),))
    assert rule.failed(WIDE) == "N == 1"
    assert asked == []
    assert rule.failed(HERE) == "the kernel refuses the call"


def test_what_the_table_of_a_kernel_says_holds_without_conditions_too() -> None:
    template = MATVEC._replace(conditions=None, refuses=None, dtypes=frozenset({"fp32"}), strided=False)
    rule = Rule(template)
    assert rule.failed(HERE) == ""
    assert rule.failed(matmul((4, 8), (8, 1), "fp16")) == REFUSES
    a, b = HERE.inputs
    assert a is not None
    assert rule.failed(HERE._replace(inputs=(a._replace(strides=(16, 1)), b))) == REFUSES


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"needs": {"threads": 1 << 40}}, f"the device has threads >= {1 << 40}"),
        ({"instructions": ("dot4",)}, "the device has dot4"),
    ],
)
def test_a_record_can_need_more_of_the_device_than_the_kernel(more: dict[str, Any], reason: str) -> None:
    assert MATVEC.conditions is not None
    dispatch = dispatch_of(FOUND, [record(preconditions=replace(MATVEC.conditions, **more))])
    assert chosen(dispatch, HERE) == ""
    assert dispatch.counts()[0].reason == reason


@pytest.mark.parametrize(
    ("records", "options", "said"),
    [
        ([], {}, NO_RECORD),
        ([record(SERVICE[0])], {}, "evidence only up to: blob golden"),
        ([], {"rung": "none", "off": ["matvec"]}, OFF),
        ([record(preconditions=Conditions(dims={"M": (1, 3)}))], {}, "1 <= M <= 3"),
    ],
)
def test_an_instruction_that_comes_back_is_decided_as_a_request_is(
    records: list[Capability], options: dict[str, Any], said: str
) -> None:
    """Made while the kernel was used, handed over by a client that kept it."""
    with client(record()) as one:
        made = one.respond("matmul", [one.put(A), one.put(B)]).instructions
        assert one.submit(made).fence
        one.service.chip.dispatch = dispatch_of(FOUND, records, **options)
        one.service.chip.changed("a test")
        with pytest.raises(Refusal, match=f"kernel matvec: {said}") as caught:
            one.submit(made)
        assert caught.value.kind == "not_supported"
        one.service.chip.dispatch = dispatch_of(FOUND, [record()])
        one.service.chip.changed("a test")
        assert one.submit(made).fence


# -- serve


def test_where_serve_finds_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(serving, "distrusted", lambda path: "")  # root trusts nothing below /tmp

    def says(**more: Any) -> str:
        dispatch = serving.dispatching(serving.Request(**more), FOUND)
        return chosen(dispatch, HERE)

    assert says() == ""
    assert says(evidence="none") == "matvec"
    path = str(tmp_path / "some.toml")
    capabilityfile.save(path, [record()])
    assert says(capabilities=path) == "matvec"
    assert says(capabilities=path, kernels_off=("matvec",)) == ""
    capabilityfile.update(capabilityfile.default_path(), lambda known: [record()])
    assert says() == "matvec"
    assert says(evidence="cached") == ""
    with pytest.raises(UsageError, match="there is no such file"):
        says(capabilities=str(tmp_path / "none"))


def test_records_that_somebody_else_may_have_written_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    capabilityfile.update(capabilityfile.default_path(), lambda known: [record()])
    Path(capabilityfile.default_path()).chmod(0o666)
    assert chosen(serving.dispatching(serving.Request(), FOUND), HERE) == ""
    assert "capabilities.toml: not taken: " in caplog.text
    assert "can be written by everybody" in caplog.text
    named = serving.Request(capabilities=capabilityfile.default_path())
    assert chosen(serving.dispatching(named, FOUND), HERE) == "matvec"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--capabilities", "none.toml"), "none.toml: there is no such file"),
        (("--capabilities", "bad.toml"), "bad.toml: no capabilities of accelctl: "),
        (("--kernel-off", "relu"), "kernel 'relu' cannot be switched off: it is a general kernel"),
        (("--evidence", "much"), "evidence 'much': it is one of none, blob"),
    ],
)
def test_serve_says_in_one_line_what_is_wrong(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "bad.toml").write_text("= 1", encoding="utf-8")
    done = run_cli("serve", "--device", "sim:0", "--listen", "127.0.0.1:0", *words, cwd=tmp_path, code=2)
    assert done.stderr.startswith(f"accelctl serve: {said}")
    assert len([line for line in done.stderr.splitlines() if not line.startswith("  ")]) == 1


def test_replacing_a_record_keeps_what_it_was_written_on() -> None:
    """The trap: a copy for another platform is not that platform's evidence."""
    moved = replace(record(), platform=platform_of(FOUND, MATVEC)._replace(driver="another"))
    assert moved.stale(platform_of(FOUND, MATVEC)._replace(driver="another")) != ""


def test_int32_has_no_special_kernel() -> None:
    y = tensor((4, 1), INT32)
    call = Call(OPS["matmul"], (tensor((4, 8), INT32), tensor((8, 1), INT32)), (y,), {"tf32": False})
    assert chosen(dispatch_of(FOUND, [], rung="none"), call) == ""
    assert list(RUNGS) == ["none", "blob", "alone", "service", "counted", "cached", "model"]
