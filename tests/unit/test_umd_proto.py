"""The protocol: the numbers that the base has, and generated code that is what protoc makes of it."""

from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")
from google.protobuf.descriptor import Descriptor

from accelctl.abi.opset import OPS
from accelctl.abi.tensors import DTYPES
from accelctl.umd.proto import umd_pb2 as pb
from tools import protoc

BASE = {
    "TensorDesc": ["tensor_id", "shape", "data_type", "byte_size", "device_addr"],
    "OpRequest": ["session_id", "request_id", "op_type", "inputs", "outputs", "attrs"],
    "HardwareInstruction": ["kernel_id", "instruction_blob", "launch_config", "param_addrs"],
    "OpResponse": ["status", "instructions", "translate_latency_us"],
    "BatchOpRequest": ["session_id", "ops"],
    "BatchOpResponse": ["status", "responses"],
}


@pytest.mark.parametrize("name", list(BASE))
def test_base_messages_have_their_numbers(name: str) -> None:
    message = pb.DESCRIPTOR.message_types_by_name[name]
    assert isinstance(message, Descriptor)
    found = {field.number: field.name for field in message.fields}
    assert [found[number] for number in range(1, len(BASE[name]) + 1)] == BASE[name]


def test_types_of_the_base() -> None:
    desc = pb.TensorDesc.DESCRIPTOR.fields_by_name
    assert all(desc[name].cpp_type == desc[name].CPPTYPE_UINT64 for name in ("tensor_id", "byte_size", "device_addr"))
    attrs = pb.OpRequest.DESCRIPTOR.fields_by_name["attrs"].message_type
    assert attrs is not None
    assert attrs.GetOptions().map_entry


def test_ops_and_types_have_the_numbers_of_the_instruction() -> None:
    ops = {value.name.lower(): value.number for value in pb.OpType.DESCRIPTOR.values}
    assert ops.pop("op_type_unknown") == 0
    assert ops == {op.name: op.code for op in OPS.values()}
    types = {value.name.lower(): value.number for value in pb.DataType.DESCRIPTOR.values}
    assert types.pop("data_type_unknown") == 0
    assert types == {dtype.name: dtype.code for dtype in DTYPES.values()}


def test_package_service_and_methods() -> None:
    assert pb.DESCRIPTOR.package == "umd"
    service = pb.DESCRIPTOR.services_by_name["InstructionTranslator"]
    assert [method.name for method in service.methods] == [
        "CreateSession",
        "DestroySession",
        "TranslateOp",
        "TranslateOpsBatch",
        "KeepAlive",
        "StreamTensorData",
        "Handshake",
        "AllocTensor",
        "FreeTensor",
        "ReadTensor",
        "Submit",
        "Wait",
        "TranslateStream",
        "OpenDataChannel",
        "Telemetry",
        "PinList",
        "ReplayList",
        "UnpinList",
    ]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    pytest.importorskip("grpc_tools", reason="the generator is not installed: pip install 'accelctl[dev]'")
    import sys

    return protoc.generate(sys.executable, tmp_path_factory.mktemp("protoc"))


@pytest.mark.parametrize("name", protoc.FILES)
def test_committed_code_is_what_protoc_makes(name: str, fresh: dict[str, str]) -> None:
    assert protoc.meaning(protoc.committed()[name]) == protoc.meaning(fresh[name]), "run: python -m tools.protoc"


def test_the_comparison_sees_a_difference() -> None:
    text = protoc.committed()["umd_pb2.py"]
    assert protoc.meaning(text.replace("ensor_id", "ensor_no")) != protoc.meaning(text)


def test_committed_code_runs_on_the_whole_range_of_protobuf() -> None:
    """pyproject.toml begins where the generator that made it was."""
    text = protoc.committed()["umd_pb2.py"]
    assert "# Protobuf Python Version: 6.31.1\n" in text
    assert f"GRPC_GENERATED_VERSION = '{protoc.TOOL}'" in protoc.committed()["umd_pb2_grpc.py"]
    project = (Path(protoc.ROOT) / "pyproject.toml").read_text(encoding="utf-8")
    assert '"protobuf>=6.31.1,<8"' in project
    assert '"grpcio>=1.76,<2"' in project
