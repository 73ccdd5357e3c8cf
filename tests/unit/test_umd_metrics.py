"""Metrics of the service: what is counted, and that every OpenMetrics reader can read it."""

import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from accelctl.umd import metrics
from accelctl.umd.metrics import BUCKETS_NS, Endpoint, Histogram, Metrics
from accelctl.umd.proto import umd_pb2 as pb


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
