"""Streams and events as callers use them."""

from __future__ import annotations

from accelctl.abi.runtime.capture import CaptureCalls
from accelctl.abi.runtime.core import runtime_call
from accelctl.abi.runtime.failure import fail
from accelctl.abi.runtime.stream import Event, Hold, Mark, Stream
from accelctl.errors import AccelError

READY, NOT_READY = "ok", "not_ready"


class StreamCalls(CaptureCalls):
    """Mixed into Runtime."""

    @runtime_call
    def create_stream(self) -> Stream:
        """A queue of the selected device. It synchronises with no other one by itself. out_of_resources."""
        with self._lock:
            return self.device().stream()

    @runtime_call
    def destroy_stream(self, stream: Stream | None, timeout_s: float | None = None) -> None:
        """Work in it is done first. timeout leaves the stream as it is."""
        live = self.live_stream(stream)
        self.outside_capture("destroying a stream")
        self.wait_for(live, live.last, timeout_s)
        with self._lock:
            self._devices[live.device].streams.remove(live)
            live.close()

    @runtime_call
    def query(self, stream: Stream | None) -> str:
        """ok or not_ready, at once. What is not ready is no failure."""
        live = self.live_stream(stream)
        self.outside_capture("a query")
        with self._lock:
            self.pump()
            live.complain()
            return READY if live.look() >= live.last else NOT_READY

    @runtime_call
    def sync(self, stream: Stream | None, timeout_s: float | None = None) -> None:
        """Wait for all work so far; its first error is raised. timeout leaves the work running."""
        live = self.live_stream(stream)
        self.outside_capture("a synchronisation")
        self.wait_for(live, live.last, timeout_s)
        live.complain()

    @runtime_call
    def synchronise_device(self) -> None:
        """Wait for every stream of the selected device; the first error is raised."""
        device = self.device()
        self.outside_capture("a synchronisation")
        first: AccelError | None = None
        for stream in tuple(device.streams):
            try:
                self.wait_for(stream, stream.last, None)
                stream.complain()
            except AccelError as error:
                first = first or error
        if first is not None:
            raise first

    # -- events --

    @runtime_call
    def create_event(self, timing: bool) -> Event:
        """One of the selected device. It counts as complete until it is recorded."""
        device = self.device()
        return Event(device.index, device.generation, timing)

    @runtime_call
    def destroy_event(self, event: Event | None) -> None:
        """Waits that were issued keep their mark."""
        self.live_event(event).alive = False

    @runtime_call
    def record(self, event: Event | None, stream: Stream | None) -> None:
        """It stands for all work of the stream so far, whatever it stood for before."""
        found, live = self.live_event(event), self.live_stream(stream)
        with self._lock:
            if self.captured_record(found, live):
                return
            found.mark, found.node = live.mark(), None
            found.stamp = live.timed() if found.timing else None
            if live.slow and live.stamping:
                self.watch_stamps()

    @runtime_call
    def wait(self, stream: Stream | None, event: Event | None) -> None:
        """Work put into the stream from now on starts after the mark that the event has now. The host goes on."""
        found, live = self.live_event(event), self.live_stream(stream)
        with self._lock:
            if not self.captured_wait(found, live) and found.mark is not None and not found.mark.reached():
                live.put(Hold(found.mark))

    @runtime_call
    def event_query(self, event: Event | None) -> str:
        """ok or not_ready."""
        mark = self.live_event(event).mark
        self.outside_capture("a query")
        with self._lock:
            self.pump()
            return READY if mark is None or mark.reached() else NOT_READY

    @runtime_call
    def event_sync(self, event: Event | None, timeout_s: float | None = None) -> None:
        """Wait for its mark; at once where it has none. timeout."""
        mark = self.live_event(event).mark
        self.outside_capture("a synchronisation")
        if mark is not None:
            self.wait_for(mark.stream, mark.number, timeout_s)

    @runtime_call
    def elapsed(self, first: Event | None, second: Event | None) -> float:
        """Milliseconds from one mark to the other; negative where the second was earlier. invalid_state, not_ready."""
        marks = [self._timed(self.live_event(one)) for one in (first, second)]
        with self._lock:
            self.pump()
            if not all(mark.reached() for mark, _ in marks):
                raise fail(NOT_READY, "one of the two events is not complete")
        times = [self._stamp(mark, event) for mark, event in marks]
        return (times[1] - times[0]) * 1e3

    def _timed(self, event: Event) -> tuple[Mark, Event]:
        if event.mark is None or event.stamp is None:
            raise fail("invalid_state", "an event that was not recorded, or has no timing")
        return event.mark, event

    def _stamp(self, mark: Mark, event: Event) -> float:
        with self._lock:
            mark.stream.look()
            assert event.stamp is not None
            if event.stamp.at is None:
                raise fail(NOT_READY, "the time of an event is not known yet")
            return event.stamp.at

    def note(self, error: AccelError) -> None:
        """What is not ready is never a last error."""
        if error.kind != NOT_READY:
            super().note(error)
