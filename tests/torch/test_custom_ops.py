"""The pair of products as custom ops of PyTorch: its own checker passes them, and eager, traced and compiled they give
what PyTorch's own product gives."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

try:
    import torch
except ImportError:
    pytest.skip("PyTorch is not installed: its custom ops are not tried", allow_module_level=True)

from accelctl.abi.framework import semantics_of
from accelctl.backends.torch.ops import custom
from accelctl.errors import UsageError

SHAPES = [((4, 8), (8, 1)), ((4, 8), (8,)), ((8,), (8, 1)), ((8,), (8,)), ((0, 8), (8, 1)), ((4, 0), (0, 1))]
WIDE = [((4, 8), (8, 3)), ((2, 4, 8), (8, 3)), ((2, 1, 4, 8), (3, 8, 1)), ((8,), (3, 8, 2))]
EVERY = [("matvec", *pair) for pair in SHAPES] + [("matmul", *pair) for pair in SHAPES + WIDE]


def operands(a: tuple[int, ...], b: tuple[int, ...], dtype: Any = None) -> tuple[Any, Any]:
    torch.manual_seed(3)
    return tuple(torch.randn(shape).to(dtype or torch.float32) for shape in (a, b))


@pytest.mark.parametrize(("kernel", "a", "b"), EVERY)
def test_pytorchs_own_checker_passes_it(kernel: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    op = custom.register(kernel)
    found = torch.library.opcheck(op, operands(a, b, torch.float16), {"tf32": False})
    assert set(found.values()) == {"SUCCESS"}
    assert {"test_schema", "test_faketensor", "test_aot_dispatch_dynamic"} <= set(found)


@pytest.mark.parametrize(("kernel", "a", "b"), EVERY)
def test_eager_it_gives_what_a_product_is(kernel: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = operands(a, b)
    custom.register(kernel)
    got = getattr(torch.ops.accelctl, kernel)(x, y)
    torch.testing.assert_close(got, (x.double() @ y.double()).float(), rtol=1e-5, atol=1e-5)
    assert got.is_contiguous()


def test_views_and_halves_and_whole_numbers() -> None:
    op = custom.register("matmul")
    x, y = operands((8, 4), (1, 8))
    torch.testing.assert_close(custom.register("matvec")(x.T, y.T), x.T @ y.T)
    half = op(x.T.half(), y.T.half())
    assert half.dtype == torch.float16
    ones = torch.ones(2, 300, dtype=torch.int8)
    assert op(ones, ones.T).tolist() == [[300, 300], [300, 300]]


@pytest.mark.parametrize(
    ("kernel", "backend"), [("matvec", "aot_eager"), ("matmul", "aot_eager"), ("matvec", "inductor")]
)
def test_compiled_it_is_one_graph_and_gives_the_same(kernel: str, backend: str) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")
    op = custom.register(kernel)

    def model(x: Any, y: Any) -> Any:
        return torch.relu(op(x, y)) + 1

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for rows in (4, 7):
        x, y = operands((rows, 8), (8, 1))
        torch.testing.assert_close(compiled(x, y), torch.relu(x @ y) + 1, rtol=1e-5, atol=1e-5)


def test_a_trace_has_it_as_one_node() -> None:
    custom.register("matvec")
    x, y = operands((4, 8), (8, 1))

    class Model(torch.nn.Module):  # type: ignore[misc]
        def forward(self, a: Any, b: Any) -> Any:
            return torch.ops.accelctl.matvec(a, b)

    graph = torch.export.export(Model(), (x, y)).graph
    assert [str(node.target) for node in graph.nodes if node.op == "call_function"] == ["accelctl.matvec.default"]


def test_the_schema_is_the_one_of_the_record() -> None:
    custom.register("matmul")
    said = semantics_of("matmul")["torch"].schema
    assert str(torch.ops.accelctl.matmul.default._schema) == said
    assert not torch.ops.accelctl.matmul.default._schema.is_mutable


@pytest.mark.parametrize(
    ("kernel", "a", "b", "said"),
    [
        ("matmul", (2, 3), (4, 2), "matmul: 3 columns by 4 rows"),
        ("matmul", (), (4, 2), "a scalar is no operand"),
        ("matvec", (2, 3), (3, 2), "N == 1 is what it is for"),
        ("matvec", (2, 2, 3), (3, 1), "batch == 1 is what it is for"),
    ],
)
def test_what_does_not_fit_is_refused_with_data_and_without(
    kernel: str, a: tuple[int, ...], b: tuple[int, ...], said: str
) -> None:
    op = custom.register(kernel)
    x, y = operands(a, b)
    with pytest.raises(RuntimeError, match=said):
        op(x, y)
    with pytest.raises(RuntimeError, match=said):
        op(x.to("meta"), y.to("meta"))


def test_types_that_do_not_fit() -> None:
    op = custom.register("matmul")
    x, y = operands((2, 3), (3, 2))
    with pytest.raises(TypeError, match=r"torch\.float32 by torch\.float16"):
        op(x, y.half())
    with pytest.raises(TypeError, match="element type is bf16 or fp16 or fp32"):
        custom.register("matvec")(torch.ones(2, 3, dtype=torch.int8), torch.ones(3, 1, dtype=torch.int8))


def test_it_is_registered_once_and_unknown_names_are_told() -> None:
    assert custom.register("matvec") is custom.register("matvec")
    with pytest.raises(UsageError, match=r"torch has no custom op 'gelu' \(there are: matmul, matvec\)"):
        custom.register("gelu")
