"""Where an answer's results stand among an op's outputs: an answer has those that are made, in the table's order."""

from __future__ import annotations

from accelctl.abi.opset import BY_CODE as OPS
from accelctl.umd.proto import umd_pb2 as pb


def place_results(request: pb.OpRequest, answer: pb.OpResponse) -> None:
    """Put each result where the request has, or could have, described it: asked again, the op writes the same ones.
    Outputs that were left out and are not made stay so."""
    table = OPS[request.op_type].outputs
    said = [at < len(request.outputs) and bool(request.outputs[at].ByteSize()) for at in range(len(table))]
    there = [one or not operand.optional for one, operand in zip(said, table, strict=True)]
    for at, one in enumerate(there):  # what an op makes although nobody asked comes in the table's order
        there[at] = one or sum(there) < len(answer.outputs)
    described = iter(answer.outputs)
    del request.outputs[:]
    request.outputs.extend([next(described) if one else pb.TensorDesc() for one in there])
