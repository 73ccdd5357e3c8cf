"""Bytes to the device and back, and within it: by the mapping that the driver gives, by a kernel, through the service.

``h2d`` and ``d2h`` are written and read by the CPU, between the driver's own calls around CPU accesses: for a device
with memory of its own these move the bytes over the link, for one that shares the host's they cost nothing. A driver
that does not know what the CPU is about to do (OpenCL, PyTorch) moves them at both calls. A copy within the device
counts its bytes once, although it reads and writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from accelctl.abi import blob, registry
from accelctl.accept.bench.calls import copy_request
from accelctl.accept.bench.rounds import Task
from accelctl.accept.bench.subject import KIB, MIB, Native, Subject, turning
from accelctl.errors import AccelError, NoDeviceError
from accelctl.model.benchreport import BYTES_PER_S, Ceiling

PLAIN = "plain copy"
"""As many bytes from one buffer of the host to another."""


def tasks(subject: Subject, link: Ceiling | None) -> Iterator[Callable[[], list[Task]]]:
    """Groups of figures; each is made by a call of its own, so that one that cannot be leaves the others."""
    yield lambda: _mapped(subject, link)
    if subject.computes:
        yield lambda: _through(subject, link)
        yield lambda: _within(subject)
        yield lambda: _peer(subject, link)


def sizes(largest: int) -> list[int]:
    """Small enough for a register, a page of messages, a cache; and larger than those."""
    return sorted({min(one, largest) for one in (4 * KIB, 64 * KIB, MIB, largest)})


def text(size: int) -> str:
    """``64 KiB``."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def _task(subject: Subject, name: str, size: int, call: Callable[[], object], link: Ceiling | None) -> Task:
    """Against the link, or where there is none against a plain copy."""
    return Task(
        "bandwidth",
        f"{name} {text(size)}",
        BYTES_PER_S,
        call,
        amount=size,
        floor=subject.plain_copy(size),
        floor_name=PLAIN,
        ceiling=link,
        ceiling_is_floor="" if link else "a plain copy in this machine's memory",
    )


def _mapped(subject: Subject, link: Ceiling | None) -> list[Task]:
    """Where the driver wants calls around CPU accesses it may move the whole block at either, so each size has a block
    of just that size."""
    found = []
    for size in sizes(subject.largest):
        synced = subject.native.life is not None and subject.native.life.sync is not None
        own = synced and size < subject.largest
        place = subject.native.place(size, subject.held) if own else subject.places[0]
        starts = subject.starts(size)
        for name, buffer, move in (("h2d", subject.host[0], place.write), ("d2h", subject.host[1], place.read)):
            spots = [(buffer[at : at + size], 0 if own else at) for at in starts]
            found.append(_task(subject, f"{name} mapped", size, _by_turns(move, spots), link))
    return found


def _by_turns(move: Callable[[memoryview, int], None], spots: list[tuple[memoryview, int]]) -> Callable[[], None]:
    turns = turning(spots)
    return lambda: move(*next(turns))


def _through(subject: Subject, link: Ceiling | None) -> list[Task]:
    """The service's data channel."""
    (tensor, _), session, (data, into) = subject.tensors, subject.session, subject.host
    found = []
    for size in sorted({min(MIB, subject.largest), subject.largest}):
        found.append(_task(subject, "h2d service", size, partial(session.write, tensor, data[:size]), link))
        found.append(_task(subject, "d2h service", size, partial(session.read_into, tensor, into[:size]), link))
    return found


def _within(subject: Subject) -> list[Task]:
    """By the chip's own copy kernel; its memory has no ceiling that could be computed from what the kernel tells."""
    source, into = subject.places
    source.write(subject.host[0])
    found = []
    for size in sorted({min(MIB, subject.largest), subject.largest}):
        work = copy_work(subject, size, source.block.address, into.block.address)
        task = _task(subject, "d2d kernel", size, partial(subject.native.run, work), None)
        found.append(task._replace(ceiling_is_floor=_memory(subject)))
    return found


def _memory(subject: Subject) -> str:
    """A plain copy is a ceiling only for kernels that run on this CPU."""
    return "" if subject.accelerator else "a plain copy in this machine's memory"


def copy_work(subject: Subject, size: int, source: int, into: int) -> bytes:
    """The instruction that copies so many bytes between two addresses of the device, as the service translates it."""
    response: Any = subject.session.translate(copy_request(subject, size // 4))
    if len(response.instructions) != 1:
        raise AccelError(
            f"a copy of {size} bytes takes {len(response.instructions)} instructions", kind="not_supported"
        )
    found = blob.decode(response.instructions[0].instruction_blob)
    return blob.encode(found.kernel_id, found.launch.encode(), [source, into], found.body)


def _peer(subject: Subject, link: Ceiling | None) -> list[Task]:
    """To a second device of the chip, through buffers of the host: contracts have no way around them yet."""
    ops = subject.chip.ops
    others = [one for one in (ops.devices() if ops else ()) if one.target.id != subject.target.id]
    if not others:
        raise NoDeviceError(f"peer: {subject.chip.manifest.name} has no second device here")
    other = Native(registry.load(others[0].target.chip), others[0].target)
    held = subject.held.enter_context(ExitStack())
    held.callback(other.close)
    size = subject.largest // 2
    there = other.place(size, held)
    here, (staging, _) = subject.places[0], subject.host
    part = staging[:size]

    def move() -> None:
        here.read(part)
        there.write(part)

    task = _task(subject, f"to {others[0].target.id} by host", size, move, link)
    return [task._replace(detail="down to a buffer of the host and up again: two ways for each byte")]
