"""Device memory of a session: stages undone, limits, what is kept idle, transfers in pieces."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.lifecycle import CPU_MAP, HANDLE, VA, Block, Lifecycle, Sizes, Stage
from accelctl.umd.blocks import Budget, Source
from accelctl.umd.memory import SessionMemory
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import DATA_LOSS, FAILED_PRECONDITION, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, Refusal
from accelctl.umd.registrar import Limits
from accelctl.umd.transfer import MOST_CHUNK, Inbox
from tests.umdkit import PATIENCE_S, Client, client_of, service_of

PAGE = 4096


class Driver:
    """Three stages that say what they did, and fail when a test wants that."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fail: dict[str, Exception] = {}
        self.next = 1 << 20

    def lifecycle(self, largest: int = 0) -> Lifecycle:
        kinds = (("va", VA), ("object", HANDLE), ("map", CPU_MAP))
        return Lifecycle("fake", tuple(self._stage(name, kind) for name, kind in kinds), Sizes(PAGE, largest))

    def _stage(self, name: str, kind: str) -> Stage:
        def acquire(block: Block) -> int:
            if name in self.fail:
                raise self.fail[name]
            if name == "va":
                block.address, self.next = self.next, self.next + block.size
            self.log.append(name)
            return 1

        def release(block: Block) -> None:
            self.log.append(f"-{name}")
            if f"-{name}" in self.fail:
                raise self.fail[f"-{name}"]

        return Stage(name, kind, acquire, release)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def memory_of(driver: Driver, limit: int = 0, largest: int = 0, pressure: int = 0) -> tuple[SessionMemory, Source]:
    source = Source(driver.lifecycle(largest), Budget(limit), lambda: pressure)
    return SessionMemory("fake:0", source, 0xABCD), source


def test_stages_in_order_and_back(driver: Driver) -> None:
    memory, source = memory_of(driver)
    made = memory.allocate(100)
    assert driver.log == ["va", "object", "map"]
    memory.free(made.number)
    assert len(driver.log) == 3, "kept for the next one"
    assert memory.close() == (0, 0)
    assert driver.log[3:] == ["-map", "-object", "-va"]
    assert source._budget.held == 0


@pytest.mark.parametrize("stage", ["va", "object", "map"])
def test_a_stage_that_fails_is_undone(stage: str, driver: Driver) -> None:
    memory, source = memory_of(driver)
    driver.fail[stage] = OSError(errno.ENOMEM, "no room")
    with pytest.raises(Refusal, match=f"at its stage {stage}") as caught:
        memory.allocate(100)
    assert (caught.value.kind, caught.value.code) == ("out_of_memory", RESOURCE_EXHAUSTED)
    names = ["va", "object", "map"][: ["va", "object", "map"].index(stage)]
    assert driver.log == [*names, *(f"-{name}" for name in reversed(names))]
    assert source._budget.held == 0
    assert len(memory) == 0
    driver.fail.clear()
    assert memory.allocate(100).size == 100


def test_another_failure_is_not_called_a_lack_of_memory(driver: Driver) -> None:
    memory, _ = memory_of(driver)
    driver.fail["object"] = OSError(errno.EIO, "it is broken")
    with pytest.raises(Refusal) as caught:
        memory.allocate(1)
    assert caught.value.kind == "os_error"


def test_a_release_that_fails_keeps_nothing_else_from_coming_back(driver: Driver) -> None:
    memory, source = memory_of(driver)
    memory.allocate(1)
    memory.allocate(1 << 20)
    driver.fail["-object"] = OSError(errno.EIO, "it is broken")
    with pytest.raises(OSError, match="broken"):
        memory.close()
    assert driver.log.count("-map") == driver.log.count("-object") == driver.log.count("-va") == 2
    assert source._budget.held == 0


def test_the_limit_of_the_service(driver: Driver) -> None:
    memory, _ = memory_of(driver, limit=8 * PAGE)
    memory.allocate(4 * PAGE)
    with pytest.raises(Refusal, match="20 KiB: the service may hold 32 KiB, 16 KiB are left"):
        memory.allocate(5 * PAGE)
    assert memory.allocate(4 * PAGE)


def test_one_block_has_a_largest_size(driver: Driver) -> None:
    memory, _ = memory_of(driver, largest=1 << 16)
    with pytest.raises(Refusal, match="at most 64 KiB"):
        memory.allocate((1 << 16) + 1)


def test_memory_that_is_kept_idle_is_given_back_for_others() -> None:
    with service_of(limits=Limits(memory_bytes=16 * PAGE)) as service:
        one, other = Client(service), Client(service)
        kept = one.alloc((8 * PAGE,), "int8")
        one.free(kept.tensor_id)
        assert service.registrar.budget.held == 8 * PAGE
        assert other.alloc((16 * PAGE,), "int8").byte_size == 16 * PAGE
        with pytest.raises(Refusal, match="0 bytes are left") as caught:
            one.alloc((1,), "int8")
        assert caught.value.field == "byte_size"


def test_places(driver: Driver) -> None:
    memory, _ = memory_of(driver)
    one, other = memory.allocate(100), memory.allocate(100)
    assert memory.place(one.number, 0, 100, 4, "x") == (one, one.start)
    assert memory.place(0, one.start + 96, 4, 4, "x") == (one, one.start + 96)
    assert memory.place(0, other.start, 100, 4, "x").allocation is other
    assert memory.place(0, 0, 0, 4, "x") == (None, 0)
    for number, address, size in (
        (one.number, 0, 101),
        (one.number, other.start, 4),
        (0, one.start + 97, 4),
        (0, one.start - 4, 4),
        (0, one.start + 200, 4),
        (0, other.start + PAGE, 0),
        (0, 4, 4),
        (0, (1 << 64) - 4, 4),
    ):
        with pytest.raises(Refusal, match="not inside one tensor of this session") as caught:
            memory.place(number, address, size, 4, "inputs[0]")
        assert caught.value.field == "inputs[0].device_addr"


def test_two_neighbours_are_not_one_tensor(driver: Driver) -> None:
    memory, _ = memory_of(driver)
    one, other = memory.allocate(PAGE), memory.allocate(PAGE)
    assert one.end == other.start
    with pytest.raises(Refusal):
        memory.place(0, one.start, 2 * PAGE, 4, "x")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40_000)), max_size=60))
def test_allocations_never_overlap_and_all_come_back(steps: list[tuple[int, int]]) -> None:
    driver = Driver()
    memory, source = memory_of(driver)
    held: list[int] = []
    for what, size in steps:
        if what or not held:
            held.append(memory.allocate(size).number)
        else:
            memory.free(held.pop(size % len(held)))
        ranges = sorted((memory.get(number).start, memory.get(number).end) for number in held)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges))
        for start, end in ranges:
            assert memory.place(0, start, end - start, 1, "x").address == start
        memory.pool.check()
    total = sum(memory.get(number).size for number in held)
    assert memory.close() == (total, len(held))
    assert source._budget.held == 0
    assert driver.log.count("va") == driver.log.count("-va")


def test_statistics() -> None:
    with client_of() as client:
        first = client.alloc((5000,), "int8")
        client.free(first.tensor_id)
        client.alloc((5000,), "int8")
        client.alloc((100,), "int8")
        (level,) = client.service.telemetry().sessions
        pool = level.pool
        assert (pool.in_use_bytes, pool.cached_bytes, pool.asked_bytes) == (12288, 0, 5100)
        assert (pool.hits, pool.misses, pool.high_water_bytes) == (1, 2, 12288)
        assert pool.fragmentation == pytest.approx(1 - 5100 / 12288)
        sample = client.service.telemetry()
        assert [(one.bytes, one.allocations, one.frees) for one in sample.size_classes] == [(4096, 1, 0), (8192, 2, 1)]
        assert [(one.op, one.allocations, one.frees) for one in sample.ops] == [("client", 3, 1)]


# -- bytes in and out


@pytest.fixture
def client() -> Iterator[Client]:
    with client_of() as made:
        yield made


def piece(client: Client, number: int, offset: int, data: bytes, **more: int) -> pb.TensorChunk:
    made = pb.TensorChunk(session_id=client.number, tensor_id=number, offset=offset, data=data, crc32c=crc32c(data))
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_a_tensor_in_pieces(client: Client) -> None:
    room = client.alloc((10,), "uint8")
    inbox = Inbox()
    client.service.receive(piece(client, room.tensor_id, 0, b"01234"), inbox, PATIENCE_S)
    client.service.receive(
        pb.TensorChunk(offset=5, data=b"56789", crc32c=crc32c(b"56789"), last=True), inbox, PATIENCE_S
    )
    inbox.end()
    assert (inbox.bytes, inbox.chunks) == (10, 2)
    assert client.read(room.tensor_id) == b"0123456789"


@pytest.mark.parametrize(
    ("offset", "more", "field", "code"),
    [
        (5, {"crc32c": 1}, "crc32c", DATA_LOSS),
        (0, {}, "offset", FAILED_PRECONDITION),
        (4, {}, "offset", FAILED_PRECONDITION),
        (6, {}, "offset", FAILED_PRECONDITION),
        (5, {"tensor_id": 77}, "tensor_id", 5),
        (5, {"session_id": 77}, "session_id", 5),
    ],
)
def test_pieces_that_are_torn_repeated_or_missing(
    offset: int, more: dict[str, int], field: str, code: int, client: Client
) -> None:
    room = client.alloc((10,), "uint8")
    client.write(room.tensor_id, b"..........")
    inbox = Inbox()
    client.service.receive(piece(client, room.tensor_id, 0, b"01234"), inbox, PATIENCE_S)
    with pytest.raises(Refusal) as caught:
        client.service.receive(piece(client, room.tensor_id, offset, b"5678", **more), inbox, PATIENCE_S)
    assert (caught.value.field, caught.value.code) == (field, code)
    assert client.read(room.tensor_id) == b"01234.....", "those before it stand"


def test_a_stream_without_its_end(client: Client) -> None:
    room = client.alloc((10,), "uint8")
    inbox = Inbox()
    client.service.receive(piece(client, room.tensor_id, 0, b"01234"), inbox, PATIENCE_S)
    with pytest.raises(Refusal, match="without its last piece, after 5 bytes"):
        inbox.end()
    client.service.receive(piece(client, room.tensor_id, 5, b"5", last=True), inbox, PATIENCE_S)
    with pytest.raises(Refusal, match="after the last one"):
        client.service.receive(piece(client, room.tensor_id, 6, b"6"), inbox, PATIENCE_S)


def test_bytes_beyond_a_tensor(client: Client) -> None:
    """The block behind it is a page; the tensor has ten bytes."""
    room = client.alloc((10,), "uint8")
    for offset, data in ((10, b"x"), (0, b"x" * 11), (1 << 63, b"x")):
        with pytest.raises(Refusal) as caught:
            client.write(room.tensor_id, data, offset)
        assert (caught.value.field, caught.value.code) == ("offset", INVALID_ARGUMENT)


def test_reading_in_pieces(client: Client) -> None:
    data = bytes(range(256)) * 40
    room = client.alloc((len(data),), "uint8")
    client.write(room.tensor_id, data)
    wanted = pb.ReadTensorRequest(
        session_id=client.number, tensor_id=room.tensor_id, offset=7, length=9000, chunk_bytes=4000
    )
    pieces = list(client.service.read_tensor(wanted, PATIENCE_S))
    assert [len(one.data) for one in pieces] == [4000, 4000, 1000]
    assert [one.offset for one in pieces] == [7, 4007, 8007]
    assert [one.last for one in pieces] == [False, False, True]
    assert all(crc32c(one.data) == one.crc32c for one in pieces)
    assert b"".join(one.data for one in pieces) == data[7:9007]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"offset": 11}, "offset"),
        ({"length": 11}, "length"),
        ({"offset": 5, "length": 6}, "length"),
        ({"offset": (1 << 64) - 1, "length": (1 << 64) - 1}, "offset"),
        ({"chunk_bytes": MOST_CHUNK + 1}, "chunk_bytes"),
    ],
)
def test_reading_what_is_not_there(changes: dict[str, int], field: str, client: Client) -> None:
    room = client.alloc((10,), "uint8")
    wanted = pb.ReadTensorRequest(session_id=client.number, tensor_id=room.tensor_id, **changes)
    with pytest.raises(Refusal) as caught:
        list(client.service.read_tensor(wanted, PATIENCE_S))
    assert caught.value.field == field


def test_a_tensor_that_is_lent_is_not_freed(client: Client) -> None:
    room = client.alloc((10,), "uint8")
    view, size = client.session.lend(room.tensor_id)
    assert size == 10
    view[:3] = b"abc"
    with pytest.raises(Refusal, match="uses this tensor now"):
        client.free(room.tensor_id)
    view.release()
    client.session.take_back(room.tensor_id)
    assert client.read(room.tensor_id)[:3] == b"abc"
    assert client.free(room.tensor_id) == 10


def test_lending_speaks_the_data_channels_errors(client: Client) -> None:
    from accelctl.errors import AccelError

    with pytest.raises(AccelError, match="not a tensor of this session") as caught:
        client.session.lend(5)
    assert caught.value.kind == "invalid_handle"


def test_results_and_scratch_that_find_no_memory() -> None:
    """A result is about its output; what is needed on the way is about no field, and no larger than it must be."""
    with service_of(limits=Limits(memory_bytes=16 * PAGE)) as service:
        client = Client(service)
        x, y = client.alloc((2 * PAGE,), "fp16"), client.alloc((2 * PAGE,), "fp32")
        with pytest.raises(Refusal, match="scratch memory for this op: 32 KiB") as caught:
            client.translate(client.request("add", [x, y], {}, [y]))
        assert (caught.value.field, caught.value.code) == ("", RESOURCE_EXHAUSTED)
        client.alloc((2 * PAGE,), "int8")
        with pytest.raises(Refusal, match="16 KiB: the service may hold 64 KiB, 8 KiB are left") as caught:
            client.translate(client.request("add", [x, x]))
        assert (caught.value.field, caught.value.code) == ("outputs[0]", RESOURCE_EXHAUSTED)
        small = client.request("add", [_part(x), _part(y)], {}, [_part(y)])
        assert len(client.translate(small).instructions) == 2


def _part(tensor: pb.TensorDesc) -> pb.TensorDesc:
    return pb.TensorDesc(tensor_id=tensor.tensor_id, shape=[PAGE // 4], data_type=tensor.data_type)
