"""Captures: work that is recorded instead of run, and replayed as often as one likes.

The order of recording is an order in which everything may run, forks and joins included: a replay puts it into one
stream. A clock for each stream tells what it has seen of the others, so that a fork nobody joined is found at the end.
"""

from __future__ import annotations

from typing import NamedTuple

from accelctl.abi.runtime.copies import CopyCalls
from accelctl.abi.runtime.core import runtime_call
from accelctl.abi.runtime.failure import fail
from accelctl.abi.runtime.stream import Do, Event, Stream, Work

Clock = dict[int, int]
"""Stream (its place in the graph) -> how many of its items were before."""


class Node(NamedTuple):
    """Where an event was recorded."""

    graph: Graph
    clock: Clock


class Graph:
    """One capture."""

    def __init__(self, origin: Stream) -> None:
        self.items: list[Work | Do] = []
        self.lost = ""
        """Why it cannot be used; empty: it can."""
        self.ended = False
        self._streams = [origin]
        self._clocks: list[Clock] = [{}]

    def add(self, stream: Stream, item: Work | Do) -> None:
        """One item of a stream that takes part."""
        at = self._streams.index(stream)
        self._clocks[at][at] = self._clocks[at].get(at, 0) + 1
        self.items.append(item)

    def node(self, stream: Stream) -> Node:
        """What an event recorded in a stream stands for."""
        return Node(self, dict(self._clocks[self._streams.index(stream)]))

    def wait(self, stream: Stream, node: Node) -> None:
        """A stream waits for an event of this capture, and takes part from now on."""
        if stream not in self._streams:
            self._streams.append(stream)
            self._clocks.append({})
            stream.graph = self
        clock = self._clocks[self._streams.index(stream)]
        for at, count in node.clock.items():
            clock[at] = max(count, clock.get(at, 0))

    def end(self) -> None:
        """No more. Forks that the first stream has not joined make it useless."""
        for at, clock in enumerate(self._clocks):
            if clock.get(at, 0) > self._clocks[0].get(at, 0):
                self.lost = self.lost or "a forked stream was not joined"
        self.release()

    def release(self) -> None:
        """The streams run again."""
        self.ended = True
        for stream in self._streams:
            stream.graph = None


class CaptureCalls(CopyCalls):
    """Mixed into Runtime."""

    @runtime_call
    def begin_capture(self, stream: Stream | None) -> None:
        """From now on this thread's work in the stream is recorded. invalid_state where something is captured."""
        live = self.live_stream(stream)
        if self.capturing is not None or live.graph is not None:
            raise fail("invalid_state", "a capture is going on")
        live.graph = self._here.graph = Graph(live)

    @runtime_call
    def end_capture(self, stream: Stream | None) -> Graph:
        """What was recorded. capture_violation where something forbidden was called meanwhile."""
        live, graph = self.live_stream(stream), self.capturing
        if graph is None or live.graph is not graph:
            raise fail("invalid_state", "this stream does not capture")
        self._here.graph = None
        graph.end()
        if graph.lost:
            raise fail("capture_violation", graph.lost)
        return graph

    @runtime_call
    def replay(self, graph: Graph, stream: Stream | None) -> None:
        """Run it all, in stream order."""
        live = self.live_stream(stream)
        if not graph.ended or graph.lost:
            raise fail("invalid_state", "this capture is not complete")
        with self._lock:
            for item in graph.items:
                live.put(item)
        self.relieve(live)

    def captured_record(self, event: Event, stream: Stream) -> bool:
        """Whether a record is part of a capture."""
        if stream.graph is None:
            return False
        event.node = stream.graph.node(stream)
        return True

    def captured_wait(self, event: Event, stream: Stream) -> bool:
        """Whether a wait is part of a capture. An event from outside is none that a capture can wait for."""
        node = event.node
        if node is not None and not node.graph.ended:
            node.graph.wait(stream, node)
            return True
        if stream.graph is not None:
            stream.graph.lost = "a wait for an event from outside the capture"
            raise fail("capture_violation", stream.graph.lost)
        return False
