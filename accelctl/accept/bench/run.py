"""`accelctl bench`: choose a device, open it and a service of it, and measure every figure in turns."""

from __future__ import annotations

import platform
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import accelctl
from accelctl.abi import compute, registry
from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import NotOffered, Target
from accelctl.accept.bench import bandwidth, calls, ceilings, memory
from accelctl.accept.bench.ops import Ops
from accelctl.accept.bench.rounds import Rounds, Task, not_measured
from accelctl.accept.bench.subject import FREE_SHARE, MOST_BYTES, Subject
from accelctl.errors import AccelError, NoDeviceError, UsageError
from accelctl.exits import SIGNAL_BASE
from accelctl.hal.endings import in_order
from accelctl.hal.root import SysRoot, open_root
from accelctl.model.benchreport import PARTS, BenchReport, Ceiling, Fingerprint, Skipped
from accelctl.model.device import Device
from accelctl.probes.filters import SCHEMES, parse_filters
from accelctl.probes.scan import look
from accelctl.stress import targets
from accelctl.stress.room import free_bytes

SECONDS, MOST_SECONDS = 20.0, 3600.0
WITH_SERVICE = ("roundtrip", "batch", "stream", "cache", "channel", "ops")
"""Parts that need kernels."""
Tick = Callable[[str, int, int], None]
Group = Callable[[], list[Task]]


class Chosen(NamedTuple):
    """What is measured. ``device`` has facts only where the machine was looked at."""

    chip: Chip
    target: Target
    title: str
    accelerator: bool
    device: Device
    flushes: bool = False
    """It takes the smallest fp32 numbers as 0 (abi.ops.Device)."""


def measure(
    device: Sequence[str] = (),
    parts: Sequence[str] = (),
    seconds: float = SECONDS,
    *,
    link: str = "",
    tick: Tick = lambda name, number, count: None,
) -> BenchReport:
    """Measure a device. NoDeviceError where it is not here, saying what was looked for; UsageError for a part or a
    time that is none. Once figures come there is a report, whatever ends the run."""
    wanted = checked(parts, seconds)
    root = open_root("/")
    chosen = choose(root, device)
    return Run(root, chosen, wanted, seconds, link).everything(tick)


def checked(parts: Sequence[str], seconds: float) -> tuple[str, ...]:
    """The parts, in their order. UsageError."""
    for name in parts:
        if name not in PARTS:
            raise UsageError(f"--part {name}: not one of {', '.join(PARTS)}")
    if not 0 < seconds <= MOST_SECONDS:
        raise UsageError(f"--seconds {seconds:g}: more than 0 and at most {MOST_SECONDS:g}")
    return tuple(name for name in PARTS if not parts or name in parts)


def choose(root: SysRoot, device: Sequence[str]) -> Chosen:
    """A device that computes, or one that only has memory. Named as everywhere: ``opencl:0``, ``pci:0000:03:00.0``,
    ``driver=xe``; without a name the first accelerator that computes."""
    computing = [one for one in device if _is_computing(one)]
    if computing or not device:
        try:
            return _computing(compute.choose(computing))
        except NoDeviceError as error:
            others = [one for one in device if one not in computing]
            if device and not others:
                raise
            try:
                return _with_memory(root, others)
            except NoDeviceError as other:
                raise NoDeviceError(f"{error.message}; {other.message}", error.hint) from None
    return _with_memory(root, list(device))


def _is_computing(text: str) -> bool:
    """``chip:which``; what is no chip and stands before a colon in a filter is a bus."""
    name, colon, _ = text.partition(":")
    return bool(colon) and "=" not in name and (name in registry.names() or name not in SCHEMES)


def _computing(found: compute.Found) -> Chosen:
    target = found.device.target
    device = Device(target.id, "physical", "")
    return Chosen(found.chip, target, found.device.title, found.device.accelerator, device, found.device.flushes)


def _with_memory(root: SysRoot, filters: list[str]) -> Chosen:
    one = targets.choose(targets.find(root, targets.Allowed()), filters or None)
    chip = registry.load(one.target.chip)
    name = str(one.device.value("pci/device_name") or one.device.value("name") or one.target.driver)
    return Chosen(chip, one.target, name, one.device.kind == "physical", one.device)


class Run:
    """One run on one device."""

    def __init__(self, root: SysRoot, chosen: Chosen, parts: tuple[str, ...], seconds: float, link: str) -> None:
        self._root, self._chosen, self._parts, self._seconds = root, chosen, parts, seconds
        self._notes: list[str] = []
        self._skipped: list[Skipped] = []
        self._ops = Ops()
        self._gone = ""
        self._ended = 0
        self._place = self._on_the_bus(link)
        self._links = ceilings.links_of(self._place) if self._place is not None else None

    def everything(self, tick: Tick) -> BenchReport:
        """All of it, until something ends it."""
        begin = time.monotonic()
        chip, target = self._chosen.chip, self._chosen.target
        free = free_bytes(self._root, self._place or self._chosen.device)
        room = min(MOST_BYTES, free // FREE_SHARE)
        subject = Subject(chip, target, accelerator=self._chosen.accelerator, room=room)
        rounds = Rounds((), self._seconds, tick)
        with in_order():
            try:
                tick(f"opening {target.id}", 0, 0)
                subject.native  # noqa: B018  # what cannot be opened is no report
                rounds = Rounds(self._tasks(subject, tick), self._seconds, tick)
                rounds.warm(self._failed)
                self._look_again()
                rounds.run(self._failed)
            except (KeyboardInterrupt, SystemExit) as error:
                self._ended = int(error.code or 0) if isinstance(error, SystemExit) else SIGNAL_BASE + signal.SIGINT
            except _Gone as error:
                self._gone = str(error)
            finally:
                self._close(subject)
        return self._report(rounds, time.monotonic() - begin)

    def _tasks(self, subject: Subject, tick: Tick) -> list[Task]:
        """Of all parts; what cannot be made is told."""
        found: list[Task] = []
        without = [part for part in self._parts if part in WITH_SERVICE and not subject.computes]
        if without:
            why = f"{subject.chip.manifest.name} has no kernels, so there is no service"
            self._skipped.append(Skipped(", ".join(without), why))
        for part in self._parts if not without else [one for one in self._parts if one not in without]:
            tick(f"preparing {part}", 0, 0)
            for group in self._groups(part, subject):
                try:
                    found += group()
                except (AccelError, OSError, NotOffered) as error:
                    self._leave_out(not_measured(part, self._why(error), error))
        return found

    def _leave_out(self, one: Skipped) -> None:
        """Each reason is told once, with everything that it keeps from being measured."""
        for at, known in enumerate(self._skipped):
            if (known.why, known.result) == (one.why, one.result):
                names = dict.fromkeys([*known.what.split(", "), one.what])
                self._skipped[at] = known._replace(what=", ".join(names))
                return
        self._skipped.append(one)

    def _groups(self, part: str, subject: Subject) -> Iterator[Group]:
        """The figures of a part, in groups."""
        if part == "bandwidth":
            return bandwidth.tasks(subject, self._ceiling)
        makers: dict[str, Callable[[Subject], Iterator[Group]]] = {
            "roundtrip": calls.roundtrip,
            "batch": calls.batch,
            "stream": calls.stream,
            "cache": calls.cache,
            "channel": calls.channel,
            "lifecycles": memory.lifecycles,
            "pool": memory.pool,
            "ops": self._ops.tasks,
        }
        return makers[part](subject)

    @property
    def _ceiling(self) -> Ceiling | None:
        return ceilings.ceiling(self._links) if self._links is not None else None

    @staticmethod
    def _why(error: Exception) -> str:
        text = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
        return " ".join(str(text).split()) or type(error).__name__

    def _failed(self, task: Task, error: Exception) -> str:
        """Why a figure is not measured. What is no failure of this one figure ends the run."""
        if not isinstance(error, (AccelError, OSError)):
            raise error
        if getattr(error, "code", "") == "UNAVAILABLE" or getattr(error, "kind", "") in ("device_lost", "timeout"):
            raise _Gone(f"{task.part}, {task.name}: {self._why(error)}") from error
        return self._why(error)

    def _close(self, subject: Subject) -> None:
        try:
            subject.close()
        except (AccelError, OSError) as error:
            self._gone = self._gone or f"what was opened could not be closed: {self._why(error)}"

    def _on_the_bus(self, link: str) -> Device | None:
        """The PCI device whose link the bytes pass; None where there is none."""
        chosen = self._chosen
        if link:
            return _named(self._root, link)
        if not chosen.accelerator:
            return None
        if chosen.device.facts:
            return chosen.device
        found = list(look(self._root).devices.values())
        nodes = {one.removeprefix("/") for one in (chosen.target.node, *chosen.target.others) if one}
        for one in found:
            if nodes & {str(r.value).removeprefix("/") for key, r in one.facts.items() if key.endswith("/path")}:
                return one
        physical = [one for one in found if one.kind == "physical"]
        if len(physical) == 1:
            self._notes.append(f"taken to be {physical[0].id}, the only accelerator on a bus here")
            return physical[0]
        self._notes.append(f"which PCI device {chosen.target.id} is cannot be told; name it with --link for a ceiling")
        return None

    def _look_again(self) -> None:
        """The link under load: an idle card slows it down."""
        if self._place is None or self._links is None:
            return
        for one in look(self._root).devices.values():
            if one.id == self._place.id:
                self._links = ceilings.faster(self._links, ceilings.links_of(one))

    def _report(self, rounds: Rounds, took: float) -> BenchReport:
        figures = tuple(
            one._replace(ceiling=self._ceiling) if one.ceiling is not None and one.ceiling.computed else one
            for one in rounds.figures()
        )
        if self._links is not None:
            self._notes.append(ceilings.said(self._links))
        if self._ended:
            self._notes.append("interrupted: fewer rounds than the time allowed, so wider intervals")
        chip = self._chosen.chip
        return BenchReport(
            fingerprint=self._fingerprint(),
            chip=chip.manifest.name,
            proven=chip.manifest.proven,
            command=shlex.join(["accelctl", *sys.argv[1:]]),
            seconds=took,
            rounds=rounds.count,
            parts=self._parts,
            figures=figures,
            ops=self._ops.rows(figures),
            skipped=(*self._skipped, *rounds.skipped),
            notes=tuple(self._notes),
            ended=self._ended,
            gone=self._gone,
        )

    def _fingerprint(self) -> Fingerprint:
        best = self._links.best if self._links is not None else None
        return fingerprint(self._root, self._chosen, best.text if best is not None else "")


class _Gone(Exception):
    """Nothing more can be measured."""


def _named(root: SysRoot, text: str) -> Device:
    wanted = parse_filters([text])
    for one in look(root).devices.values():
        if wanted(one):
            return one
    raise NoDeviceError(f"--link {text}: no such device is here", "accelctl probe")


def fingerprint(root: SysRoot, chosen: Chosen, link: str = "") -> Fingerprint:
    """What two reports must share, and the versions that may differ. No name of the machine: it would not help, and
    reports are passed on."""
    cpu, count = processor(root)
    versions = {
        "accelctl": accelctl.__version__,
        "python": platform.python_version(),
        "kernel": (root.text("proc/sys/kernel/osrelease") or "").strip(),
    }
    versions |= {f"toolchain {number}": text for number, text in enumerate(chosen.chip.manifest.toolchains, 1)}
    driver = chosen.device.value("driver_version")
    versions |= {"driver": str(driver)} if driver else {}
    target = chosen.target
    return Fingerprint(
        device=target.id,
        title=chosen.title,
        driver=target.driver,
        simulated=target.simulated,
        cpu=cpu,
        cpus=count,
        link=link,
        versions=versions,
    )


def processor(root: SysRoot) -> tuple[str, int]:
    """Its name, as /proc/cpuinfo has it ("model name", on Arm none), and how many there are."""
    text = root.text("proc/cpuinfo") or ""
    rows = [line.partition(":") for line in text.splitlines()]
    names = [value.strip() for name, _, value in rows if name.strip() in ("model name", "cpu model", "uarch")]
    count = sum(name.strip() == "processor" for name, _, _ in rows)
    return (names[0] if names else platform.machine()), count
