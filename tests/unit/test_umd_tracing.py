"""`serve --trace` and `smoke --trace`: what the file holds, and that without it nothing of it runs."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.errors import UsageError
from accelctl.hal.trace import LIMIT, Trace, span
from accelctl.smoke.run import Request, carry_out
from accelctl.umd import serving
from accelctl.umd.channel.door import Door
from accelctl.umd.channel.tunnel import Tunnel
from accelctl.umd.client import Client
from accelctl.umd.metrics import Metrics
from accelctl.umd.observer import STAGES, Both
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.server import serve
from accelctl.umd.service import Service
from accelctl.umd.tracing import Tracing
from tests import umdkit

Events = list[dict[str, Any]]


def events(path: Path) -> Events:
    found: Events = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(str(tmp_path / "t"))


def named(found: Events, name: str) -> Events:
    return [one for one in found if one["name"] == name and one["ph"] == "X"]


def test_an_op_is_a_span_with_its_stages_one_behind_the_other(trace: Trace, tmp_path: Path) -> None:
    Tracing(trace).translated("relu", [1000, 2000, 0, 4000, 5000, 6000], False, 0xABC)
    trace.close()
    found = events(tmp_path / "t")
    (op,) = named(found, "relu")
    assert op["dur"] == pytest.approx(18.0)
    assert op["args"] == {"session": f"{0xABC:016x}", "cache": "miss"}
    stages = [one for one in found if one["name"] in STAGES]
    assert [one["name"] for one in stages] == ["validate", "route", "infer", "instantiate", "submit"]
    at = op["ts"]
    for one, took in zip(stages, [1.0, 2.0, 4.0, 5.0, 6.0], strict=True):
        assert (one["ts"], one["dur"]) == (pytest.approx(at, abs=1e-2), pytest.approx(took))
        at += took
    assert at == pytest.approx(op["ts"] + op["dur"], abs=1e-2)


def test_ops_of_a_session_stand_on_its_row_even_when_they_overlap(trace: Trace, tmp_path: Path) -> None:
    told = Tracing(trace)
    for session in (7, 7, 8):
        told.translated("add", [1000] * 6, True, session)
    trace.close()
    begin, end = ([one for one in events(tmp_path / "t") if one["ph"] == ph] for ph in "be")
    assert [one["cat"] for one in begin] == [f"session {one:016x}" for one in (7, 7, 8)]
    assert [(one["cat"], one["id"]) for one in begin] == [(one["cat"], one["id"]) for one in end]
    assert len({one["id"] for one in begin}) == 3


def test_every_thread_has_a_row_with_its_name(trace: Trace, tmp_path: Path) -> None:
    told = Tracing(trace)
    stay = threading.Barrier(3)  # a number of a thread that has ended is given to the next

    def work() -> None:
        told.answered("Wait", 1000, 0)
        told.moved("in", 4096)
        stay.wait(10)

    threads = [threading.Thread(target=work, name=f"call-{number}") for number in range(2)]
    for one in threads:
        one.start()
    stay.wait(10)
    for one in threads:
        one.join()
    trace.close()
    found = events(tmp_path / "t")
    rows = {one["tid"]: one["args"]["name"] for one in found if one["ph"] == "M"}
    assert sorted(rows.values()) == ["call-0", "call-1"]
    assert Counter(one["tid"] for one in found if one["name"] == "bytes in") == dict.fromkeys(rows, 1)


def test_failures_and_codes(trace: Trace, tmp_path: Path) -> None:
    told = Tracing(trace)
    told.failed("invalid_argument", "matmul")
    told.launched("matmul", 3)
    told.answered("TranslateOp", 2500, 3)
    trace.close()
    found = events(tmp_path / "t")
    assert [one["args"] for one in found if one["name"] == "failed: invalid_argument"] == [{"op": "matmul"}]
    (call,) = named(found, "TranslateOp")
    assert (call["dur"], call["args"]) == (2.5, {"code": 3})


def test_several_events_are_cut_where_single_ones_are(tmp_path: Path) -> None:
    trace = Trace(str(tmp_path / "t"))
    trace._count = LIMIT - 2
    trace.put([span(name, 0, 1, {}) for name in ("last", "cut", "never")])
    trace.put([span("never", 0, 1, {})])
    trace.close()
    assert [one["name"] for one in events(tmp_path / "t")] == ["last", "trace cut: too many events", "end"]


# -- a service


def relu(client: Client) -> None:
    with client.session() as session:
        x = session.alloc((4,), "fp32")
        session.write(x, bytes(16))
        for _ in range(2):
            session.wait(session.translate(session.request("relu", [x], [None], submit=True)).fence)
        session.read(x)


def test_stages_lie_inside_their_call_on_its_thread(trace: Trace, tmp_path: Path) -> None:
    counted = Metrics()
    door = Door(str(tmp_path / "data"))
    service = Service(umdkit.chip_of(), observer=Both(counted, Tracing(trace)), door=door)
    server = serve(service, f"unix:{tmp_path}/s")
    try:
        with Client(f"unix:{tmp_path}/s", deadline_s=20) as client:
            relu(client)
    finally:
        server.stop()
    trace.close()
    found = events(tmp_path / "t")
    calls, ops = named(found, "TranslateOp"), named(found, "relu")
    assert (len(calls), len(ops)) == (2, 2)
    for call, op in zip(calls, ops, strict=True):
        assert call["tid"] == op["tid"]
        assert call["ts"] - 0.01 <= op["ts"] <= op["ts"] + op["dur"] <= call["ts"] + call["dur"] + 0.01
    assert {one["name"] for one in found if one["ph"] == "X"} >= {"CreateSession", "Wait", "DestroySession", *STAGES}
    assert counted.hits["relu", False] + counted.hits["relu", True] == 2
    assert Counter(one["name"] for one in found)["bytes in"] == 1


def test_bytes_of_the_data_channel_are_counted(tmp_path: Path) -> None:
    counted = Metrics()
    service = Service(umdkit.chip_of(), observer=counted, door=Door(str(tmp_path / "data")))
    client = umdkit.Client(service)
    room, theirs = client.alloc((5000,), "uint8"), umdkit.Client(service).alloc((8,), "uint8")
    answer = service.open_data_channel(pb.DataChannelRequest(session_id=client.number))
    with Tunnel(answer.socket, answer.token) as tunnel:
        tunnel.upload([(room.tensor_id, 0, bytes(5000))])
        back = bytearray(700)
        tunnel.download([(room.tensor_id, 0, back), (room.tensor_id, 300, back)])
        with pytest.raises(Exception, match="tensor"):  # nothing of it was put anywhere
            tunnel.upload([(theirs.tensor_id, 0, bytes(8))])
    service.close()
    assert dict(counted.bytes) == {"in": 5000, "out": 1400}


# -- the switch


class Stopped(Exception):
    pass


def chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str) -> Service:
    """The service that `accelctl serve` would put on its socket."""
    found: list[Service] = []

    def instead(service: Service, address: str) -> Any:
        found.append(service)
        raise Stopped

    monkeypatch.setattr(serving, "serve", instead)
    with pytest.raises(Stopped):
        serving.run(serving.Request(device=("sim:0",), address=f"unix:{tmp_path}/s", trace=path), lambda ready: None)
    return found[0]


def entered(service: Service) -> Counter[str]:
    """Functions of traces and observers that two ops enter, one that is new and one from the cache."""
    found: Counter[str] = Counter()
    client = umdkit.Client(service)
    x, y = client.alloc((4,), "fp32"), client.alloc((4,), "fp32")
    raw = pb.OpRequest(session_id=client.number, op_type=pb.RELU, inputs=[x], outputs=[y]).SerializeToString()

    def seen(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith(("trace.py", "tracing.py", "observer.py")):
            found[frame.f_code.co_name] += 1

    sys.setprofile(seen)
    try:
        for _ in range(2):
            service.translate(raw, 5.0)
    finally:
        sys.setprofile(None)
    service.close()
    return found


def test_switched_off_it_costs_no_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The observer is the metrics themselves, as without the switch."""
    service = chosen(monkeypatch, tmp_path, "")
    assert type(service.observer) is Metrics
    assert entered(Service(service.chip, observer=service.observer)) == {}


def test_switched_on_it_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    service = chosen(monkeypatch, tmp_path, str(tmp_path / "t"))
    assert [one["name"] for one in events(tmp_path / "t")] == ["end"]
    assert isinstance(service.observer, Both)
    with (tmp_path / "more").open("w") as other:  # the file was closed with the command
        service.observer._all[1]._trace._fd = other.fileno()  # type: ignore[attr-defined]
        assert entered(Service(service.chip, observer=service.observer))["put"] == 2


# -- smoke


def test_smoke_and_its_own_service_write_one_file(tmp_path: Path) -> None:
    """And the cases of OPS-08 really run in both orders, on the simulated chip."""
    path = tmp_path / "t"
    ops = ("relu", "add", "matmul")
    report = carry_out(Request(device=("sim:0",), ops=ops, cases="*/ops-08-*", model=False, trace=str(path)))
    assert [row.result for row in report.rows] == ["pass"] * 10
    assert report.rows[-1].id == "order/ops-08"
    found = events(path)
    assert found[-1]["name"] == "end"
    cases = [one for one in found if one["pid"] == os.getpid()]
    assert [one["name"] for one in cases] == [row.id for row in report.rows[:9]]
    calls = [one for one in found if one["name"] == "TranslateOp" and one["pid"] != os.getpid()]
    inside = [
        one
        for one in calls
        if any(case["ts"] <= one["ts"] and one["ts"] + one["dur"] <= case["ts"] + case["dur"] for case in cases)
    ]
    assert len(calls) - len(inside) == 18  # both orders come after the cases
    with pytest.raises(UsageError, match="such a file already"):
        carry_out(Request(device=("sim:0",), ops=ops, trace=str(path)))


def test_smoke_beside_another_service_writes_what_it_did_itself(tmp_path: Path) -> None:
    server = serve(Service(umdkit.chip_of()), f"unix:{tmp_path}/s")
    try:
        wanted = Request(target=f"unix:{tmp_path}/s", cases="relu/fp32/ops-08-6", trace=str(tmp_path / "t"))
        carry_out(wanted)
    finally:
        server.stop()
    assert [one["name"] for one in events(tmp_path / "t")] == ["relu/fp32/ops-08-6", "end"]
