"""The suite of the Telemetry contract: numbers that are the device's own and have a source, and silence where the
driver is silent: files that are gone, empty, or say what means "no value"."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from accelctl.abi.handshake import Chip
from accelctl.abi.telemetry import Draft, Gauge, Seat, Tick
from accelctl.abi.testbench import Check, Wrong, said
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import MemoryTree, fail
from accelctl.model.snapshot import DeviceLevel, Snapshot, key

FIELDS = frozenset(field.name for field in dataclasses.fields(DeviceLevel))
NOTHING = ("", "N/A", "[N/A]", "4294967295", "18446744073709551615", "one hundred")
"""Texts that no driver means as a number."""
_SECOND = 1_000_000_000


class _Says(MemoryTree):
    """A machine in which every file says the same, or (None) there is none."""

    def __init__(self, text: str | None) -> None:
        super().__init__("check")
        self._text = text

    def read(self, path: str, limit: int) -> bytes:
        if self._text is None:
            raise fail(2, path)
        return self._text.encode()


def check_telemetry(chip: Chip, seat: Seat) -> list[Check]:
    """Every check of the Telemetry contract on one seat, whose device is awake. Nothing is raised: what goes wrong is
    a result."""
    checks: dict[str, Callable[[], None]] = {
        "telemetry: open": lambda: _opens(chip, seat),
        "telemetry: rows": lambda: _rows(chip, seat),
        "telemetry: close": lambda: _close(chip, seat),
    }
    if seat.root is not None:
        checks["telemetry: files gone"] = lambda: _silent(chip, seat, None)
        for text in NOTHING:
            checks[f"telemetry: files say {text!r}"] = lambda text=text: _silent(chip, seat, text)  # type: ignore[misc]
    return [_run(name, body) for name, body in checks.items()]


def _run(name: str, body: Callable[[], None]) -> Check:
    try:
        body()
    except Wrong as error:
        return Check(name, "fail", str(error))
    except Exception as error:
        return Check(name, "fail", said(error))
    return Check(name, "pass")


def _open(chip: Chip, seat: Seat) -> Gauge:
    assert chip.telemetry is not None
    return chip.telemetry.open(seat)


def _opens(chip: Chip, seat: Seat) -> None:
    before = dict(seat.root.opened) if seat.root is not None else {}
    _open(chip, seat).close()
    if seat.root is not None and seat.root.opened != before:
        raise Wrong("opening the gauge reads files: that is for the first sample")


def _close(chip: Chip, seat: Seat) -> None:
    gauge = _open(chip, seat)
    gauge.sample(Draft(), _tick(0))
    gauge.close()
    gauge.close()


def _samples(chip: Chip, seat: Seat) -> Iterator[tuple[Draft, Snapshot]]:
    gauge = _open(chip, seat)
    try:
        for number in range(3):
            draft, tick = Draft(), _tick(number)
            gauge.sample(draft, tick)
            strangers = {name for fields in draft.devices.values() for name in fields} - FIELDS
            if strangers:
                raise Wrong(f"no fields of a device: {', '.join(sorted(strangers))}")
            yield draft, draft.snapshot(tick)
    finally:
        gauge.close()


def _tick(number: int) -> Tick:
    now = (1 + number) * _SECOND
    return Tick(now, now, _SECOND if number else 0, lambda path: None)


def _rows(chip: Chip, seat: Seat) -> None:
    """Rows of this device alone, each with a name of its own, each number with a source."""
    identity = seat.device.id
    for draft, snapshot in _samples(chip, seat):
        others = draft.devices.keys() - {identity}
        if others:
            raise Wrong(f"rows of other devices: {', '.join(sorted(others))}")
        for table in ("pools", "queues", "spaces", "engines"):
            rows = getattr(snapshot, table)
            if any(row.device != identity or not row.id.startswith(f"{identity}/") for row in rows):
                raise Wrong(f"{table}: a row's device is {identity}, and its id begins with that and a slash")
            if len({row.id for row in rows}) < len(rows):
                raise Wrong(f"{table}: two rows with one id")
        for name, value in draft.devices.get(identity, {}).items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if number and key("devices", identity, name) not in draft.sources:
                raise Wrong(f"{name} has no source")


def _silent(chip: Chip, seat: Seat, text: str | None) -> None:
    """No number is made of what is none, and no event."""
    root = SysRoot(_Says(text), allow_wake=True)
    if seat.root is not None:
        root.allow = seat.root.allow
    for draft, snapshot in _samples(chip, seat._replace(root=root)):
        for name, value in draft.devices.get(seat.device.id, {}).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                raise Wrong(f"{name} is {value} where no file says a number")
        wrong = [pool.id for pool in snapshot.pools if (pool.capacity_bytes, pool.in_use_bytes) != (None, None)]
        if wrong:
            raise Wrong(f"{wrong[0]} has numbers where no file says one")
        if snapshot.events:
            raise Wrong(f"an event where nothing is told: {snapshot.events[0].text}")
