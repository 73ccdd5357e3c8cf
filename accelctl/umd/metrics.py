"""What the service has done, as OpenMetrics: latency per op and stage, errors, sizes, cache hits, pools, queues.

The hot path only adds to integers (a histogram of a metrics library takes longer than a cached translation); families
are made when somebody asks. prometheus_client writes the text.
"""

from __future__ import annotations

import logging
import sys
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from accelctl.hal import loopback
from accelctl.umd.dispatch import Count
from accelctl.umd.observer import STAGES
from accelctl.umd.proto import umd_pb2 as pb

LOG = logging.getLogger("accelctl.umd")
BUCKETS_NS = tuple(1000 << n for n in range(0, 24, 2))
"""1 us, 4 us, 16 us ... 4.2 s."""
Sample = Callable[[], pb.TelemetrySample]
Dispatched = Callable[[], list[Count]]
Key = TypeVar("Key", str, tuple[str, str])
"""Values of the labels of one line."""


class Histogram:
    """Counts by bucket, and the sum."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_NS) + 1)
        self.total_ns = 0

    def add(self, ns: int) -> None:
        """One observation."""
        self.total_ns += ns
        self.counts[bisect_left(BUCKETS_NS, ns)] += 1

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper edge in seconds, and the sum in seconds."""
        found, running = [], 0
        for edge, count in zip([*(ns / 1e9 for ns in BUCKETS_NS), None], self.counts, strict=True):
            running += count
            found.append(("+Inf" if edge is None else repr(edge), float(running)))
        return found, self.total_ns / 1e9


class Metrics:
    """An Observer that counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.latency: dict[str, Histogram] = defaultdict(Histogram)
        self.stages: dict[str, list[int]] = defaultdict(lambda: [0] * (len(STAGES) + 1))
        """Nanoseconds by stage, and behind them how many translations that was."""
        self.hits: dict[tuple[str, bool], int] = defaultdict(int)
        self.errors: dict[tuple[str, str], int] = defaultdict(int)
        self.launches: dict[str, int] = defaultdict(int)
        self.bytes: dict[str, int] = defaultdict(int)
        self.calls: dict[tuple[str, int], Histogram] = defaultdict(Histogram)

    def translated(self, op: str, stage_ns: Sequence[int], hit: bool, session: int = 0) -> None:
        """See Observer."""
        with self._lock:
            self.latency[op].add(sum(stage_ns))
            self.hits[op, hit] += 1
            spent = self.stages[op]
            for at, ns in enumerate(stage_ns):
                spent[at] += ns
            spent[-1] += 1

    def failed(self, kind: str, op: str) -> None:
        """See Observer."""
        with self._lock:
            self.errors[kind, op] += 1

    def launched(self, op: str, count: int) -> None:
        """See Observer."""
        with self._lock:
            self.launches[op] += count

    def moved(self, direction: str, count: int) -> None:
        """See Observer."""
        with self._lock:
            self.bytes[direction] += count

    def answered(self, method: str, ns: int, code: int) -> None:
        """See Observer."""
        with self._lock:
            self.calls[method, code].add(ns)

    def families(self) -> Iterator[Metric]:
        """What was counted so far."""
        with self._lock:
            yield _histograms("umd_translate_seconds", "Translation of an op", ["op"], self.latency)
            yield self._by_stage()
            calls = {(method, str(code)): one for (method, code), one in self.calls.items()}
            yield _histograms("umd_call_seconds", "A call, by gRPC status code", ["method", "code"], calls)
            hits = {(op, "hit" if hit else "miss"): n for (op, hit), n in self.hits.items()}
            yield _counters("umd_translations", "Ops translated, by cache result", ["op", "cache"], hits)
            yield _counters("umd_errors", "Refusals and failures", ["kind", "op"], self.errors)
            yield _counters("umd_launches", "Instructions that went to a queue", ["op"], self.launches)
            yield _counters("umd_tensor_bytes", "Bytes of tensors moved", ["direction"], self.bytes)

    def _by_stage(self) -> Metric:
        family = SummaryMetricFamily("umd_stage_seconds", "One stage of a translation", labels=["op", "stage"])
        for op, spent in self.stages.items():
            for stage, ns in zip(STAGES, spent, strict=False):
                family.add_metric([op, stage], spent[-1], ns / 1e9)
        return family


def _labels(key: str | tuple[str, ...]) -> list[str]:
    return [key] if isinstance(key, str) else list(key)


def _histograms(name: str, text: str, labels: list[str], found: Mapping[Key, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for key, one in found.items():
        buckets, total = one.buckets()
        family.add_metric(_labels(key), buckets, total)
    return family


def _counters(name: str, text: str, labels: list[str], found: Mapping[Key, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, count in found.items():
        family.add_metric(_labels(key), count)
    return family


_POOL = (
    ("in_use_bytes", "Bytes given out"),
    ("cached_bytes", "Bytes kept for the next request"),
    ("asked_bytes", "Bytes that were asked for, of those given out"),
    ("high_water_bytes", "Most bytes held at one time"),
    ("hits", "Allocations answered from the cache"),
    ("misses", "Allocations that went to the driver"),
    ("fragmentation", "1 - asked / in use"),
)
_QUEUE = (
    ("queue_depth", "Instructions that may be in flight"),
    ("in_flight", "Instructions in flight"),
    ("tensors", "Tensors that are alive"),
    ("cached_translations", "Translations kept"),
)
_LISTS = (("lists", "Pinned lists"),)


def _lists(now: pb.ListLevel) -> Iterator[Metric]:
    events = {"pinned": now.pinned, "hit": now.hits, "replayed": now.replays}
    yield _counters("umd_lists", "Pinned lists, by what was done with them", ["event"], events)
    yield _counters("umd_lists_ended", "Pinned lists that are not valid any more", ["reason"], dict(now.ended))


class Collected(Collector):
    """Counters of a run, and the levels of this moment."""

    def __init__(self, metrics: Metrics, sample: Sample, dispatched: Dispatched = list) -> None:
        self._metrics, self._sample, self._dispatched = metrics, sample, dispatched

    def collect(self) -> Iterator[Metric]:
        """Every family, once."""
        yield from self._metrics.families()
        dispatch = CounterMetricFamily(
            "umd_dispatch",
            "Translations that a special kernel made (hit), or left to its fallback, and for which reason",
            labels=["kernel", "result", "reason"],
        )
        for kernel, result, reason, count in self._dispatched():
            dispatch.add_metric([kernel, result, reason], count)
        yield dispatch
        now = self._sample()
        yield GaugeMetricFamily("umd_uptime_seconds", "Since the service started", now.uptime_ms / 1000)
        yield GaugeMetricFamily("umd_sessions", "Sessions that are open", len(now.sessions))
        yield CounterMetricFamily("umd_sessions_created", "Sessions opened", now.sessions_created)
        yield CounterMetricFamily("umd_sessions_expired", "Sessions whose client went silent", now.sessions_expired)
        yield from _lists(now.lists)
        for names, prefix in ((_POOL, "umd_pool_"), (_QUEUE, "umd_session_"), (_LISTS, "umd_session_")):
            for name, text in names:
                family = GaugeMetricFamily(prefix + name, text, labels=["session"])
                for one in now.sessions:
                    source = one.pool if names is _POOL else one.lists if names is _LISTS else one
                    family.add_metric([f"{one.session_id:016x}"], getattr(source, name))
                yield family
        for name in ("allocations", "frees"):
            by_size = CounterMetricFamily(f"umd_pool_class_{name}", f"{name} by size class", labels=["bytes"])
            for size in now.size_classes:
                by_size.add_metric([str(size.bytes)], getattr(size, name))
            yield by_size
            by_op = CounterMetricFamily(f"umd_pool_op_{name}", f"{name} by op", labels=["op"])
            for op in now.ops:
                by_op.add_metric([op.op], getattr(op, name))
            yield by_op


def text(metrics: Metrics, sample: Sample, dispatched: Dispatched = list) -> bytes:
    """All of it, as OpenMetrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected(metrics, sample, dispatched))
    return bytes(generate_latest(registry))  # type: ignore[no-untyped-call]


class Endpoint:
    """``GET /metrics`` on a loopback port, for as long as it is open."""

    def __init__(self, host: str, port: int, produce: Callable[[], bytes]) -> None:
        """AccelError where the port cannot be had."""
        self._server = _Server(loopback.listening(host, port), _handler(produce))
        self._thread = threading.Thread(target=self._server.serve_forever, name="accelctl-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port, also where 0 was asked for."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, TCPServer):
    """Not http.server's: that one asks a name service for the name of its own address."""

    daemon_threads = True

    def __init__(self, listener: Any, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(listener.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away is nobody's concern; what else goes wrong is one line."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            LOG.error("metrics: %s: %s", type(error).__name__, error)


def _handler(produce: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            """The metrics, or 404."""
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "only /metrics is here")
                return
            body = produce()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads a line for every scrape."""

    return Handler
