"""docs/ops.md against the table that everybody reads."""

import re

import pytest

from accelctl.abi.opset import OPS, REQUIRED, Op, text_of
from tests.helpers import ROOT

TEXT = (ROOT / "docs/ops.md").read_text(encoding="utf-8")


def section(op: Op) -> str:
    found = re.search(rf"^## {op.name} \({op.code}\)$(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
    assert found, f"docs/ops.md has no section of {op.name}"
    return " ".join(found[1].split())


@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_operands_stand_in_their_order(op: Op) -> None:
    text = section(op)
    for what, operands in (("Input", op.inputs), ("utput", op.outputs)):
        names = ", ".join(f"[{one.name}]" if one.optional else one.name for one in operands)
        assert f"{what}{'s' if len(operands) > 1 else ''} {names}" in text


@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_attributes_stand_with_their_defaults(op: Op) -> None:
    text = section(op)
    for attr in op.attrs:
        assert f"`{attr.name}`" in text, attr.name
        for word in attr.words:
            assert f"{word}" in text, (attr.name, word)
        if attr.default is not REQUIRED and attr.name not in ("scale", "softcap", "window"):
            assert f"`{attr.name}` ({text_of(attr.default)}" in text, attr.name


def test_no_section_without_an_op() -> None:
    assert re.findall(r"^## (\w+) \(\d+\)$", TEXT, re.M) == list(OPS)
