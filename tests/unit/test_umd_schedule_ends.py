"""What ends pinned lists and how that is said, and how many there may be."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.abi.opset import OPS
from accelctl.backends.sim.schedule import SCHEDULE
from accelctl.umd.chip import Off
from accelctl.umd.lists import REASONS, difference
from accelctl.umd.pipeline import route as routing
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal
from tests.helpers import ROOT
from tests.listkit import Counting, Lists, listing, right, three
from tests.umdkit import QUICK, HeldKernels


@pytest.fixture(params=["recorded", "one by one"])
def client(request: pytest.FixtureRequest) -> Iterator[Lists]:
    with listing(SCHEDULE if request.param == "recorded" else None) as made:
        yield made


# -- what ends them


def test_a_freed_tensor_ends_the_lists_that_name_it(client: Lists) -> None:
    x, other = client.put(np.ones(4, np.float32)), client.put(np.ones(4, np.float32))
    ops, _ = three(client, x)
    mine, others = client.pin(ops), client.pin([client.request("relu", [other])])
    client.free(x.tensor_id)
    again = client.put(np.full(4, 9, np.float32))
    assert again.device_addr == x.device_addr, "the same place, and not the same memory"
    assert client.ended(mine.list_id) == ("memory", f"tensor {x.tensor_id}, which it names, was freed")
    with pytest.raises(Refusal):
        client.replay(mine.list_id, retranslate=True)
    assert client.replay(others.list_id).fence


def test_a_tensor_that_is_freed_while_the_list_runs() -> None:
    kernels = HeldKernels()
    with listing(None, kernels=kernels) as client:
        x = client.put(np.ones(4, np.float32))
        number = client.pin([client.request("relu", [x])]).list_id
        client.replay(number)
        client.free(x.tensor_id)
        assert client.session.memory.waiting, "the queue still uses it"
        assert client.ended(number)[0] == "memory"
        kernels.rings[0].line.advance(1)


def test_a_switched_op_ends_all_lists_and_is_refused(client: Lists) -> None:
    x = client.put(np.array([-1, 1], np.float32))
    relu, add = client.request("relu", [x]), client.request("add", [x, x])
    lists = [client.pin([relu]).list_id, client.pin([add]).list_id]
    chip = client.session.chip
    chip.switch(Off({"relu": "a.toml: [profile.sim] ops.off"}))
    for number in lists:
        assert client.ended(number) == ("switch", "ops or kernels were switched")
    with pytest.raises(Refusal) as caught:
        client.replay(lists[0], retranslate=True)
    assert caught.value.kind == "not_supported"
    assert "relu is switched off for sim:0 by a.toml: [profile.sim] ops.off" in caught.value.message
    assert client.replay(lists[1], retranslate=True).retranslated
    assert client.replay(lists[1]).retranslated == "", "valid from then on"
    chip.switch(Off())
    assert client.replay(lists[0], retranslate=True).fence


def test_what_was_translated_before_a_switch_does_not_come_back(client: Lists) -> None:
    """Neither from a cache, nor as an instruction that the client kept."""
    x = client.put(np.array([-1, 1], np.float32))
    y = client.alloc([2])
    op = client.request("relu", [x], outputs=[y], submit=True)
    kept = client.translate(op)
    assert client.translate(op).cache_hit
    client.session.chip.switch(Off({"relu": "here"}))
    with pytest.raises(Refusal, match="relu is switched off for sim:0 by here"):
        client.translate(op)
    with pytest.raises(Refusal, match=r"kernel relu.* is switched off by here"):
        client.submit(kept.instructions)
    client.session.chip.switch(Off())
    assert not client.translate(op).cache_hit
    assert client.submit(kept.instructions).fence


def test_what_was_found_before_a_switch_is_not_kept_after_it(client: Lists, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch comes between finding a way and keeping it."""
    chip, find = client.session.chip, routing._find

    def slow(op: Any, of: Any) -> Any:
        found = find(op, of)
        chip.switch(Off(ops={"relu": "a test"}))
        return found

    monkeypatch.setattr(routing, "_find", slow)
    assert routing.route(OPS["relu"], chip).templates
    monkeypatch.undo()
    assert "relu" not in chip.routes
    with pytest.raises(Refusal, match="relu is switched off"):
        routing.route(OPS["relu"], chip)


def test_a_kernel_that_is_off_leaves_the_call_to_the_next(client: Lists) -> None:
    chip = client.session.chip
    x = client.put(np.ones((2, 2), np.float32))
    op = client.request("matmul", [x, x])
    first = client.translate(op).instructions[0].kernel_id
    chip.switch(Off(kernels={chip.by_number[first].name: "there"}))
    assert first not in chip.by_number
    with pytest.raises(Refusal, match=r"no kernel takes this matmul: matmul_f: switched off by there") as caught:
        client.translate(op)
    assert caught.value.kind == "not_supported"


def test_a_lost_device_ends_all_lists() -> None:
    with listing(SCHEDULE) as client:
        q, cache = client.put(np.ones((1, 1, 4), np.float32)), client.put(np.ones((2, 4, 1, 4), np.float32))
        table, lengths = client.put(np.array([[99]], np.int32)), client.put(np.array([1], np.int32))
        op = client.request("attention_decode", [q, cache, cache, table, lengths], {"block_size": "4"})
        bad, good = client.pin([op]).list_id, client.pin([client.request("relu", [q])]).list_id
        fence = client.replay(bad).fence
        with pytest.raises(Refusal, match="instruction 0 of its list"):
            client.wait(fence)
        with pytest.raises(Refusal) as caught:
            client.replay(good)
        assert caught.value.kind != "invalid_state"
        reason, said = client.ended(good)
        assert reason == "device"
        assert "instruction 0 of its list" in said
        assert client.level.ended == {"device": 2}


def test_a_closed_session_has_no_lists() -> None:
    counts = Counting()
    with listing(counts) as client:
        number = client.pin([client.request("relu", [client.put(np.ones(2, np.float32))])]).list_id
        other = Lists(client.service)
        client.service.destroy_session(pb.SessionRequest(session_id=client.number))
        assert counts.closed == 1
        with pytest.raises(Refusal, match="destroyed"):
            client.replay(number)
        with pytest.raises(Refusal, match="this session never had such a list") as caught:
            other.replay(number)
        assert caught.value.kind == "invalid_handle"
        assert client.service.telemetry().lists.pinned == 1, "counts outlive their session"
        assert dict(client.service.telemetry().lists.ended) == {"session": 1}


def test_unpinning(client: Lists) -> None:
    number = client.pin([client.request("relu", [client.put(np.ones(2, np.float32))])]).list_id
    client.unpin(number)
    assert client.ended(number) == ("client", "it was unpinned")
    client.unpin(number)
    with pytest.raises(Refusal, match="never had"):
        client.unpin(12345)


def test_the_document_has_every_reason() -> None:
    document = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
    rows = [line.split(" |")[0] for line in document.splitlines() if line.startswith("| `")]
    assert {word for row in rows for word in re.findall(r"`(\w+)`", row)} == {*REASONS}


def test_lists_end_under_the_hands_of_those_who_replay_them(client: Lists) -> None:
    """Threads replay while memory goes and kernels are switched: each replay is run or refused, and nothing breaks."""
    tensors = [client.put(np.ones(4, np.float32)) for _ in range(24)]
    numbers = [client.pin([client.request("relu", [x], outputs=[x])] * 3).list_id for x in tensors]
    kinds: list[str] = []

    def use() -> None:
        for number in numbers * 4:
            try:
                client.replay(number)
                kinds.append("")
            except Refusal as refusal:
                kinds.append(refusal.kind)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for one in threads:
        one.start()
    for x in tensors[:16]:
        client.free(x.tensor_id)
    client.session.chip.changed("a test")
    for one in threads:
        one.join()
    assert len(kinds) == 3 * 4 * 24
    assert set(kinds) <= {"", "invalid_state"}
    assert client.session.lists.level().lists == 0
    assert client.session.line.ring.state != "lost"


# -- how many there may be


def test_the_least_recently_used_list_makes_room() -> None:
    counts = Counting()
    with listing(counts, QUICK._replace(lists=3)) as client:
        tensors = [client.put(np.ones(n, np.float32)) for n in range(1, 6)]
        lists = [client.pin([client.request("relu", [one])]).list_id for one in tensors[:3]]
        client.replay(lists[0])
        lists += [client.pin([client.request("relu", [one])]).list_id for one in tensors[3:]]
        for gone in (1, 2):
            assert client.ended(lists[gone])[0] == "room"
        for there in (0, 3, 4):
            assert client.replay(lists[there]).fence
        assert client.replay(lists[1], retranslate=True).retranslated.startswith("room: ")
        assert dict(client.level.ended) == {"room": 3}
        assert client.level.lists == 3
        assert counts.made - counts.closed == 3


def test_bytes_are_bounded_and_counted() -> None:
    with listing(None, QUICK._replace(list_bytes=4096)) as client:
        for n in range(1, 40):
            client.pin([client.request("relu", [client.alloc([n])])])
            assert client.level.bytes <= 4096
        assert 2 <= client.level.lists < 39
        x = client.alloc([4])
        with pytest.raises(Refusal, match="all lists of a session have room for 4096") as caught:
            client.pin([client.request("relu", [x], outputs=[x])] * 100)
        assert caught.value.kind == "out_of_resources"
        lists = client.session.lists
        for one in list(lists._by_number.values()):
            lists.end(one, "client", "")
        assert (lists.size, len(lists), len(lists._by_key), len(lists._by_name)) == (0, 0, 0, 0)


def test_a_list_that_has_no_room_leaves_no_results() -> None:
    with listing(SCHEDULE, QUICK._replace(list_bytes=1024)) as client:
        x = client.alloc([64])
        with pytest.raises(Refusal, match="all lists of a session have room for 1024"):
            client.pin([client.request("relu", [x])] * 10)
        assert client.session.tensors == 1


@pytest.mark.parametrize("reason", ["room", "kernels"])
def test_an_ended_list_is_not_translated_again_onto_memory_that_was_freed(reason: str) -> None:
    """By address it would be found: another tensor lies there now."""
    with listing(SCHEDULE, QUICK._replace(lists=1)) as client:
        x, y, out = client.put(np.array([1, 2], np.float32)), client.alloc([2]), client.alloc([2])
        place = pb.TensorDesc(shape=x.shape, data_type=x.data_type, device_addr=x.device_addr)
        number = client.pin([client.request("relu", [place], outputs=[out])]).list_id
        if reason == "room":
            client.pin([client.request("relu", [y], outputs=[y])])
        else:
            client.session.chip.changed("a test")
        assert client.ended(number)[0] == reason
        spare = client.session.lists._spare
        client.free(x.tensor_id)
        other = client.put(np.array([9, 9], np.float32))
        assert other.device_addr == x.device_addr
        with pytest.raises(Refusal, match=f"memory: tensor {x.tensor_id}, which it names, was freed; its ops cannot"):
            client.replay(number, retranslate=True)
        assert client.ended(number)[0] == "memory"
        assert client.session.lists._spare < spare


def test_what_is_remembered_of_ended_lists_is_bounded(client: Lists, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelctl.umd.lists._REMEMBERED", 5)
    x, y = client.alloc([4]), client.alloc([4])
    op = client.request("relu", [x], outputs=[y])
    numbers = []
    for _ in range(10):
        numbers.append(client.pin([op]).list_id)
        client.unpin(numbers[-1])
    assert client.ended(numbers[-1])[0] == "client"
    with pytest.raises(Refusal, match="this list ended long ago"):
        client.replay(numbers[0])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda client, request: request.ops[0].MergeFrom(pb.OpRequest(submit=True)), "ops[0].submit"),
        (lambda client, request: request.ops[0].MergeFrom(pb.OpRequest(session_id=5)), "ops[0].session_id"),
        (lambda client, request: request.ClearField("ops"), "ops"),
        (lambda client, request: request.MergeFrom(pb.PinRequest(name="x" * 81)), "name"),
        (lambda client, request: request.MergeFrom(pb.PinRequest(name="a\n")), "name"),
        (lambda client, request: request.ops[0].MergeFrom(pb.OpRequest(attrs={"nonsense": "1"})), "ops[0].attrs"),
    ],
)
def test_what_is_no_list(client: Lists, change: Any, field: str) -> None:
    x = client.alloc([4])
    request = pb.PinRequest(session_id=client.number, ops=[client.request("relu", [x], outputs=[x])])
    change(client, request)
    with pytest.raises(Refusal) as caught:
        client.service.pin(request)
    assert caught.value.field.startswith(field), caught.value.field
    assert client.level.lists == 0


def test_a_list_has_no_more_ops_than_a_batch() -> None:
    with listing(None, QUICK._replace(batch=3)) as client:
        x = client.alloc([4])
        op = client.request("relu", [x], outputs=[x])
        client.pin([op] * 3)
        with pytest.raises(Refusal, match="4: a list has 1 to 3"):
            client.pin([op] * 4)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=4), st.lists(st.binary(max_size=40), max_size=4))
def test_a_difference_is_found_between_any_two_requests(before: list[bytes], after: list[bytes]) -> None:
    def parsed(raw: bytes) -> bytes:
        request = pb.OpRequest()
        try:
            request.ParseFromString(raw)
        except Exception:
            request = pb.OpRequest(op_type=len(raw))  # type: ignore[arg-type]
        return request.SerializeToString(deterministic=True)

    reason, said = difference(tuple(map(parsed, before)), tuple(map(parsed, after)))
    assert reason in REASONS
    assert said.startswith(("ops[", f"{len(before)} ops became"))


def test_random_use_never_gives_a_stale_result() -> None:
    """Pins, frees, switches and replays in any order: a replay gives the right numbers, or is refused."""
    rng = random.Random(11)
    with listing(SCHEDULE, QUICK._replace(lists=4)) as client:
        lists: list[tuple[int, pb.TensorDesc, pb.TensorDesc]] = []
        ran = refused = 0
        for turn in range(300):
            what = rng.random()
            if what < 0.3 or not lists:
                x = client.put(np.full(rng.randrange(1, 5), turn, np.float32))
                ops, out = three(client, x)
                lists.append((client.pin(ops, rng.choice(["", "a", "b"])).list_id, x, out))
            elif what < 0.4:
                _, x, out = lists[rng.randrange(len(lists))]
                try:
                    client.free(rng.choice([x, out]).tensor_id)
                except Refusal:
                    continue
            elif what < 0.45:
                client.session.chip.switch(Off())
            else:
                number, x, out = rng.choice(lists)
                value = np.full(x.shape[0], rng.randrange(-9, 9), np.float32)
                try:
                    client.write(x.tensor_id, value.tobytes())
                    fence = client.replay(number, retranslate=rng.random() < 0.5).fence
                except Refusal:
                    refused += 1
                    continue
                assert client.wait(fence).passed
                assert np.array_equal(client.get(out), right(value))
                ran += 1
        assert ran > 20
        assert refused > 20
