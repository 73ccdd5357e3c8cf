"""Pinned lists on OpenCL: the contract itself is asked for in test_opencl.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyopencl", reason="OpenCL is not installed: pip install 'accelctl[opencl]'")
pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

import numpy as np

from accelctl.abi import registry
from accelctl.errors import AccelError
from accelctl.umd.chip import Chip
from accelctl.umd.refusal import Refusal
from accelctl.umd.service import Service
from tests.listkit import Lists, right, three
from tests.umdkit import QUICK


@pytest.fixture
def client() -> Iterator[Lists]:
    chip = registry.load("opencl")
    assert chip.ops is not None
    try:
        devices = chip.ops.devices()
    except AccelError as error:
        pytest.skip(error.message)
    service = Service(Chip.registered(chip, devices[0].target), limits=QUICK)
    yield Lists(service)
    service.close()
    assert service.registrar.budget.held == 0


def test_a_list_is_one_submission(client: Lists) -> None:
    data = np.array([-2, -1, 0, 1, 2], np.float32)
    x = client.put(data)
    ops, out = three(client, x)
    pinned = client.pin(ops)
    assert pinned.recorded
    for turn in range(1, 4):
        client.write(x.tensor_id, data.tobytes())
        assert client.replay(pinned.list_id).fence == turn
        assert client.wait(turn).passed
        np.testing.assert_array_equal(client.get(out), right(data))
        data = data - 1


def test_a_failure_inside_a_list_is_named(client: Lists) -> None:
    """A block table that points nowhere is noticed by the kernel; the list's point is never passed."""
    q, cache = client.put(np.ones((1, 1, 4), np.float32)), client.put(np.ones((2, 4, 1, 4), np.float32))
    table, lengths = client.put(np.array([[1]], np.int32)), client.put(np.array([1], np.int32))
    y = client.alloc([1, 1, 4])
    ops = [
        client.request("relu", [q], outputs=[y]),
        client.request("attention_decode", [q, cache, cache, table, lengths], {"block_size": "4"}),
        client.request("relu", [y]),
    ]
    number = client.pin(ops).list_id
    assert client.wait(client.replay(number).fence).passed
    client.write(table.tensor_id, np.array([[99]], np.int32).tobytes())
    fence = client.replay(number).fence
    with pytest.raises(Refusal, match="instruction 1 of its list"):
        client.wait(fence)
    with pytest.raises(Refusal, match="lost"):
        client.replay(number)
    assert client.ended(number)[0] == "device"


def test_memory_can_go_while_a_list_is_there(client: Lists) -> None:
    """Arguments hold buffers, and buffers pages: a list must not keep either."""
    for _ in range(3):
        x = client.put(np.ones(1 << 16, np.float32))
        number = client.pin([client.request("relu", [x], outputs=[x])]).list_id
        assert client.wait(client.replay(number).fence).passed
        client.free(x.tensor_id)
        assert client.session.memory.trim() > 0
        assert client.ended(number)[0] == "memory"
