"""Metrics of the service: what is counted, and that every OpenMetrics reader can read it."""

import socket
import struct
import threading
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from accelctl.umd import metrics
from accelctl.umd.metrics import BUCKETS_NS, Endpoint, Histogram, Metrics
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal
from tests import umdkit


def sample() -> pb.TelemetrySample:
    now = pb.TelemetrySample(uptime_ms=1500, sessions_created=3, sessions_expired=1)
    one = now.sessions.add(session_id=0xABC, queue_depth=64, in_flight=2, tensors=5)
    one.pool.in_use_bytes, one.pool.hits = 8192, 7
    now.size_classes.add(bytes=4096, allocations=9, frees=8)
    now.ops.add(op="relu", allocations=4, frees=4)
    return now


def read(counted: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.text(counted, sample).decode())  # type: ignore[no-untyped-call]
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


@pytest.mark.parametrize(
    ("ns", "bucket"), [(1, 0), (1000, 0), (1001, 1), (4000, 1), (4001, 2), (16000, 2), (10**12, len(BUCKETS_NS))]
)
def test_a_bucket_holds_its_upper_edge(ns: int, bucket: int) -> None:
    one = Histogram()
    one.add(ns)
    assert one.counts.index(1) == bucket
    assert one.buckets()[0][-1] == ("+Inf", 1.0)


def test_everything_that_was_told_stands_in_the_text() -> None:
    counted = Metrics()
    counted.translated("relu", [1000, 2000, 0, 0, 3000, 0], False)
    counted.translated("relu", [500, 0, 0, 0, 500, 0], True)
    counted.failed("invalid_argument", "matmul")
    counted.launched("relu", 3)
    counted.moved("in", 4096)
    counted.answered("TranslateOp", 250_000, 0)
    found = read(counted)
    assert found["umd_translate_seconds_count", (("op", "relu"),)] == 2
    assert found["umd_translate_seconds_sum", (("op", "relu"),)] == pytest.approx(7e-6)
    assert found["umd_stage_seconds_sum", (("op", "relu"), ("stage", "instantiate"))] == pytest.approx(3.5e-6)
    assert found["umd_translations_total", (("cache", "hit"), ("op", "relu"))] == 1
    assert found["umd_errors_total", (("kind", "invalid_argument"), ("op", "matmul"))] == 1
    assert found["umd_launches_total", (("op", "relu"),)] == 3
    assert found["umd_tensor_bytes_total", (("direction", "in"),)] == 4096
    assert found["umd_call_seconds_bucket", (("code", "0"), ("le", "0.000256"), ("method", "TranslateOp"))] == 1
    assert found["umd_sessions", ()] == 1
    assert found["umd_pool_in_use_bytes", (("session", f"{0xABC:016x}"),)] == 8192
    assert found["umd_session_in_flight", (("session", f"{0xABC:016x}"),)] == 2
    assert found["umd_pool_class_allocations_total", (("bytes", "4096"),)] == 9
    assert found["umd_pool_op_frees_total", (("op", "relu"),)] == 4
    assert found["umd_uptime_seconds", ()] == 1.5


def test_threads_lose_no_count() -> None:
    counted = Metrics()

    def work() -> None:
        for _ in range(2000):
            counted.translated("add", [1, 1, 1, 1, 1, 1], True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted.hits["add", True] == 8000
    assert counted.stages["add"][-1] == 8000


def counts_of(found: pb.TelemetrySample) -> tuple[object, object]:
    by_op = {one.op: (one.translated, one.launches, one.allocations) for one in found.ops}
    return by_op, {one.bytes: one.allocations for one in found.size_classes}


def test_no_count_goes_back_while_a_session_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    with umdkit.service_of() as service:
        client = umdkit.Client(service)
        x = client.alloc((4,))
        client.translate(client.request("relu", [x], {}, [x], submit=True))
        before = service.telemetry()
        assert before.ops
        between: list[pb.TelemetrySample] = []
        monkeypatch.setattr(service.registrar, "_ended", lambda number: between.append(service.telemetry()))
        service.destroy_session(pb.SessionRequest(session_id=client.number))
        found = [*between, service.telemetry()]
        assert [len(one.sessions) for one in found] == [0, 0]
        assert [counts_of(one) for one in found] == [counts_of(before)] * 2


def test_what_was_refused_is_no_allocation() -> None:
    with umdkit.service_of() as service:
        client = umdkit.Client(service)
        for _ in range(3):
            with pytest.raises(Refusal):
                client.alloc((1 << 40,), "uint8")
        found = service.telemetry()
    assert list(found.size_classes) == []
    assert found.sessions[0].pool.misses == 0


def test_a_reader_that_goes_away_is_no_trouble(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It resets the connection in the middle of the answer, or of its own request."""
    asked = threading.Semaphore(0)

    def produce() -> bytes:
        asked.release()
        return bytes(32 << 20)  # more than the kernel takes before somebody reads

    endpoint = Endpoint("127.0.0.1", 0, produce)
    try:
        for request in (b"GET /metrics HTTP/1.1\r\n\r\n", b"GET /met"):
            reader = socket.create_connection(("127.0.0.1", endpoint.port))
            reader.sendall(request)
            if b"\r\n" in request:
                assert asked.acquire(timeout=10)
                assert reader.recv(1)
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reader.close()
        answered = urllib.request.Request(f"http://127.0.0.1:{endpoint.port}/")
        with pytest.raises(urllib.error.HTTPError, match="404"):  # so those before it were accepted
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(answered, timeout=5)
        end = time.monotonic() + 10
        while any("process_request" in one.name for one in threading.enumerate()) and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        endpoint.close()
    assert caplog.messages == []
    assert capfd.readouterr().err == ""


def test_metrics_that_cannot_be_made_are_one_line(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def produce() -> bytes:
        raise RuntimeError("no metrics")

    endpoint = Endpoint("127.0.0.1", 0, produce)
    try:
        with socket.create_connection(("127.0.0.1", endpoint.port)) as reader:
            reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert reader.recv(1) == b""
    finally:
        endpoint.close()
    assert caplog.messages == ["metrics: RuntimeError: no metrics"]
    assert capfd.readouterr().err == ""


def test_the_endpoint_serves_metrics_and_nothing_else() -> None:
    endpoint = Endpoint("127.0.0.1", 0, lambda: metrics.text(Metrics(), sample))
    try:
        base = f"http://127.0.0.1:{endpoint.port}"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{base}/metrics", timeout=5) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert answer.read().endswith(b"# EOF\n")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            direct.open(f"{base}/etc/passwd", timeout=5)
    finally:
        endpoint.close()
