"""What memory costs to have and to give back: whole lifecycles of the driver, and blocks from a pool instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from accelctl.abi.lifecycle import Block, Lifecycle
from accelctl.accept.bench.calls import ECHO, LOOP, Group, loop
from accelctl.accept.bench.rounds import Task
from accelctl.accept.bench.subject import KIB, MIB, Subject, acquired
from accelctl.errors import NoDeviceError
from accelctl.hal.devfile import SYSCALLS
from accelctl.memory.pool import Pool
from accelctl.model.benchreport import PER_S, SECONDS

SIZE = 64 * KIB
BUCKETS = (4 * KIB, 64 * KIB, MIB)


def lifecycles(subject: Subject) -> Iterator[Group]:
    """Every one that this device allows, all stages and back, so often a second."""
    for life in subject.native.session.lifecycles:
        yield partial(_lifecycle, life)


def _lifecycle(life: Lifecycle) -> list[Task]:
    if life.unsupported:
        raise NoDeviceError(f"{life.name}: {life.unsupported}")
    size = -(-SIZE // life.sizes.granule) * life.sizes.granule
    size = min(size, life.sizes.largest) if life.sizes.largest else size
    floor, name = partial(_pages, size), "memfd, map, unmap, close"
    stages = " -> ".join(stage.name for stage in life.stages)
    return [
        Task("lifecycles", life.name, PER_S, partial(_cycle, life, size), floor=floor, floor_name=name, detail=stages)
    ]


def _cycle(life: Lifecycle, size: int) -> None:
    with ExitStack() as held:
        acquired(life, size, held)


def _pages(size: int) -> None:
    """What the kernel itself takes for pages with a descriptor and a mapping."""
    fd = SYSCALLS.memfd("accelctl-bench", size, 0)
    try:
        SYSCALLS.unmap(SYSCALLS.map(fd, size, 0))
    finally:
        SYSCALLS.close(fd)


def pool(subject: Subject) -> Iterator[Group]:
    """Blocks of three sizes: from the pool, from the driver, and through the service."""
    if subject.native.life is not None:
        yield partial(_here, subject, subject.native.life)
    if subject.computes:
        yield partial(_service, subject)


def _here(subject: Subject, life: Lifecycle) -> list[Task]:
    """A pool over the lifecycle, in this process."""

    def allocate(size: int) -> tuple[Block, ExitStack]:
        with ExitStack() as held:
            return acquired(life, size, held), held.pop_all()

    made: Pool[Any] = Pool(
        subject.chip.manifest.name, allocate, lambda one, _: one[1].close(), granule=life.sizes.granule
    )
    subject.held.callback(made.trim)

    def hit(size: int) -> None:
        made.release(made.acquire(size))

    def miss(size: int) -> None:
        hit(size)
        made.trim()

    more: dict[str, Any] = {"floor": loop, "floor_name": LOOP}
    found = [Task("pool", f"kept, {_text(size)}", SECONDS, partial(hit, size), **more) for size in BUCKETS[:2]]
    return [*found, Task("pool", f"new from the driver, {_text(SIZE)}", SECONDS, partial(miss, SIZE), **more)]


def _service(subject: Subject) -> list[Task]:
    """AllocTensor and FreeTensor."""
    from accelctl.accept.bench.calls import ELEMENTS, copy_request

    session, one = subject.session, copy_request(subject, ELEMENTS)
    echo = subject.echo.like(one, session.translate(one))

    def twice() -> None:
        echo()
        echo()

    def call(size: int) -> Callable[[], int]:
        return lambda: session.free(session.alloc_bytes(size))

    more: dict[str, Any] = {"floor": twice, "floor_name": f"two of an {ECHO}"}
    return [Task("pool", f"through the service, {_text(size)}", SECONDS, call(size), **more) for size in BUCKETS]


def _text(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"
