"""The one suite that every chip passes which claims a contract: ours, and a third party's.

    from accelctl.abi.conformance import check_memory, check_ops, check_queue
    assert [check for check in check_memory(chip, target, env) if check.result == "fail"] == []

One function for each contract; that of Memory is here, the others are in ringcheck, opscheck, schedulecheck and
telemetrycheck. Each check opens a session of its own, so a chip that is broken in one respect fails the checks of that
respect and no others. The process should do nothing else meanwhile: descriptors are counted as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from accelctl.abi import lifecycle as contract
from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import Block, Env, Lifecycle, NotOffered, Session, Target
from accelctl.abi.opscheck import check_ops
from accelctl.abi.ringcheck import check_queue
from accelctl.abi.schedulecheck import check_schedule
from accelctl.abi.telemetrycheck import check_telemetry
from accelctl.abi.testbench import MOST_POINTS, Bench, Check, Suite, Wrong, said
from accelctl.errors import AccelError

__all__ = ["check_memory", "check_ops", "check_queue", "check_schedule", "check_telemetry", "memory_checks"]

KINDS = (
    contract.HANDLE,
    contract.FD,
    contract.CPU_MAP,
    contract.GPU_MAP,
    contract.VA,
    contract.IOVA,
    contract.HOST_PAGES,
    contract.QUEUE,
    contract.NOTHING,
)
_NUMBERED = (contract.HANDLE, contract.FD, contract.VA, contract.IOVA)
"""Kinds of which two that are alive have two numbers."""
SCOPES = ("file", "process", "device", "system")
_LARGEST = 16 << 20


def memory_checks(chip: Chip, target: Target, env: Env) -> Iterator[Check]:
    """Check after check; see :func:`check_memory`."""
    suite = Suite(chip, target, env)
    seen: list[Lifecycle] = []

    def describe(bench: Bench) -> None:
        seen.extend(bench.session.lifecycles)
        _described(bench.session)
        suite.idle = dict(bench.session.census())

    yield suite.run("open", describe, strict=False)
    if not seen:
        return
    yield _opening(suite)
    yield suite.run("counters", _counters)
    for index, life in enumerate(seen):
        yield from _lifecycle(suite, index, life)


def check_memory(chip: Chip, target: Target, env: Env) -> list[Check]:
    """Every check of the Memory contract on one device, which nobody else uses meanwhile.

    env: as for a real run; ``syscalls`` is wrapped, so that each call can be failed, and ``space`` is needed where the
    chip takes device addresses from user space. Nothing is raised: what goes wrong is a result.
    """
    return list(memory_checks(chip, target, env))


def _described(session: Session) -> None:
    names = [life.name for life in session.lifecycles]
    if not names or len(set(names)) < len(names):
        raise Wrong(f"names of lifecycles: {', '.join(names) or 'none'}")
    for life in session.lifecycles:
        stages = [stage.name for stage in life.stages]
        if not stages or len(set(stages)) < len(stages):
            raise Wrong(f"{life.name}: names of stages: {', '.join(stages) or 'none'}")
        for stage in life.stages:
            if stage.kind not in KINDS:
                raise Wrong(f"{life.name}: {stage.name} holds a {stage.kind!r}, which is no kind")
            if stage.release is None and stage.kind != contract.NOTHING:
                raise Wrong(f"{life.name}: {stage.name} holds a {stage.kind} and has no release")
        granule, largest = life.sizes
        if granule < 1 or largest < 0 or largest % granule:
            raise Wrong(f"{life.name}: sizes of whole granules of {granule} up to {largest}")


def _opening(suite: Suite) -> Check:
    """Opening fails at each of its calls: an AccelError, and nothing stays open."""
    name = "open fails"
    for nth in range(1, MOST_POINTS + 1):
        bench = suite.make()
        try:
            bench.door.arm(nth)
            try:
                bench.open()
            except AccelError:
                bench.door.disarm()
            except Exception as error:
                return Check(name, "fail", f"call {nth} ({bench.door.fired}): {said(error)}, which is no AccelError")
            else:  # the call was not needed, or there are no more
                fired = bench.door.fired
                bench.door.disarm()
                bench.close()
                if not fired:
                    return Check(name, "pass") if nth > 1 else Check(name, "skip", "it makes no call")
            bench.nothing_open(f"when its call {nth} failed")
        except Wrong as error:
            return Check(name, "fail", str(error))
        finally:
            bench.leave()
    return Check(name, "fail", f"more than {MOST_POINTS} calls")


def _counters(bench: Bench) -> None:
    names = []
    dark = []
    for counter in bench.session.counters():
        names.append(counter.name)
        if counter.scope not in SCOPES:
            raise Wrong(f"{counter.name}: scope {counter.scope!r} is not one of {', '.join(SCOPES)}")
        try:
            value = counter.read()
        except (OSError, ValueError) as error:
            dark.append(f"{counter.name} ({said(error)})")
            continue
        if not isinstance(value, int) or (counter.exact and counter.read() != value):
            raise Wrong(f"{counter.name}: {value!r} is no exact number: it moves by itself")
    if len(set(names)) < len(names):
        raise Wrong(f"names of counters: {', '.join(names)}")
    if dark:
        raise NotOffered(f"cannot be read here: {', '.join(dark)}")


def _lifecycle(suite: Suite, index: int, life: Lifecycle) -> Iterator[Check]:
    """All checks of one lifecycle; only the first where that says enough."""
    if life.unsupported:
        yield Check(f"{life.name}: cycle", "skip", life.unsupported)
        return
    granule = life.sizes.granule

    def cycle(bench: Bench) -> None:
        for size in (granule, granule):
            _released(bench, _whole(bench, index, size))
            bench.balance()

    first = suite.run(f"{life.name}: cycle", cycle)
    yield first
    if first.result != "pass":
        yield Check(f"{life.name}: the rest", "skip", "a plain cycle does not run")
        return
    most = min(life.sizes.largest or _LARGEST, _LARGEST)
    sizes = dict.fromkeys(count * granule for count in (1, 2, 3, 16, most // granule) if count * granule <= most)
    yield suite.run(f"{life.name}: sizes", lambda bench: _sizes(bench, index, tuple(sizes)))
    yield suite.run(f"{life.name}: two at once", lambda bench: _two(bench, index))
    yield suite.run(f"{life.name}: census", lambda bench: _census(bench, index), strict=False)
    early = [stage.name for stage in life.stages if stage.early]
    for first_out in [(name,) for name in early] + ([tuple(early)] if len(early) > 1 else []):
        yield suite.run(f"{life.name}: {' and '.join(first_out)} early", _early(index, first_out))
    for depth, stage in enumerate(life.stages):
        yield from _failing(suite, f"{life.name}: {stage.name}", index, depth)


def _whole(bench: Bench, index: int, size: int, serial: int = 1) -> Block:
    """A block through all stages, its memory written to and read back."""
    life = bench.session.lifecycles[index]
    block, _ = bench.acquire(life.stages, size, serial)
    if block.size < size:
        bench.release(block)
        raise Wrong(f"{size} bytes asked for, the block says {block.size}")
    try:
        _write(life, block)
        _verify(life, block)
    except Exception as error:
        bench.release(block)
        raise error if isinstance(error, Wrong) else Wrong(f"its memory: {said(error)}") from error
    return block


def _tag(block: Block) -> bytes:
    return (block.serial * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")


def _write(life: Lifecycle, block: Block) -> None:
    if block.map is None:
        return
    if len(block.map) < block.size:
        raise Wrong(f"a mapping of {len(block.map)} bytes of a block of {block.size}")
    if life.sync:
        life.sync(block, True)
    block.map[0:8] = block.map[block.size - 8 : block.size] = _tag(block)
    if life.sync:
        life.sync(block, False)


def _verify(life: Lifecycle, block: Block) -> None:
    if block.map is None:
        return
    if life.sync:
        life.sync(block, True)
    found = bytes(block.map[0:8]) + bytes(block.map[block.size - 8 : block.size])
    if life.sync:
        life.sync(block, False)
    if found != _tag(block) * 2:
        raise Wrong(f"its memory holds {found.hex()}, {(_tag(block) * 2).hex()} was written")


def _released(bench: Bench, block: Block, first: tuple[str, ...] = ()) -> None:
    wrong = bench.release(block, first)
    if wrong:
        raise Wrong("; ".join(wrong))


def _sizes(bench: Bench, index: int, sizes: tuple[int, ...]) -> None:
    for size in sizes:
        try:
            _released(bench, _whole(bench, index, size))
            bench.balance()
        except Wrong as error:
            raise Wrong(f"{size} bytes: {error}") from error


def _two(bench: Bench, index: int) -> None:
    """Two blocks alive: other numbers, other memory, and the older one may go first."""
    life, size = bench.session.lifecycles[index], bench.session.lifecycles[index].sizes.granule
    one, first = bench.acquire(life.stages, size, 1)
    try:
        two, second = bench.acquire(life.stages, size, 2)
    except Wrong as error:
        bench.release(one)
        raise Wrong(f"a second block: {error}") from error
    try:
        for stage, a, b in zip(life.stages, first, second, strict=True):
            if stage.kind in _NUMBERED and a == b:
                raise Wrong(f"{stage.name} gave the number {a} to two blocks")
        _write(life, one)
        _write(life, two)
        _verify(life, one)
    finally:
        wrong = bench.release(one)
        try:
            _verify(life, two)
        finally:
            wrong += bench.release(two)
    if wrong:
        raise Wrong("; ".join(wrong))


def _census(bench: Bench, index: int) -> None:
    """A block that is held is counted, where the lifecycle has a handle and the session a census."""
    life = bench.session.lifecycles[index]
    block, _ = bench.acquire(life.stages, life.sizes.granule)
    alive = bench.session.census()
    bench.release(block)  # errors are right: the census has given back what it counted
    if not alive:
        raise NotOffered("this chip has no census")
    handles = [stage.name for stage in life.stages if stage.kind == contract.HANDLE]
    if handles and not any(count > bench.idle.get(name, 0) for name, count in alive.items()):
        raise Wrong(f"it counts {alive} while {', '.join(handles)} is held")


def _early(index: int, names: tuple[str, ...]) -> Callable[[Bench], None]:
    def body(bench: Bench) -> None:
        _released(bench, _whole(bench, index, bench.session.lifecycles[index].sizes.granule), names)

    return body


def _failing(suite: Suite, name: str, index: int, depth: int) -> Iterator[Check]:
    """Each call of one stage fails, before and after it is made, and at release."""

    def acquiring(bench: Bench, nth: int, lost: bool) -> None:
        life = bench.session.lifecycles[index]
        block, _ = bench.acquire(life.stages[:depth], life.sizes.granule)
        bench.door.arm(nth, lost)
        try:
            life.stages[depth].acquire(block)
        except NotOffered as error:
            bench.door.disarm()
            bench.release(block)
            raise Wrong(f"it calls a failure ({bench.door.fired}) not offered: {error.reason}") from error
        except (OSError, AccelError):
            bench.door.disarm()
        else:  # there are no more calls, or the stage could do without this one
            bench.door.disarm()
            block.held.append(life.stages[depth])
        wrong = bench.release(block)
        if wrong and not lost:
            raise Wrong(f"after {bench.door.fired} failed: {'; '.join(wrong)}")

    def releasing(bench: Bench) -> None:
        life = bench.session.lifecycles[index]
        block, _ = bench.acquire(life.stages[: depth + 1], life.sizes.granule)
        wrong = bench.release(block, armed=life.stages[depth].name)
        if not bench.door.fired:
            raise NotOffered("it makes no call that can fail")
        silent = [line for line in wrong if "says nothing" in line]
        if silent:
            raise Wrong(silent[0])

    yield suite.points(f"{name} fails", lambda bench, nth: acquiring(bench, nth, False), strict=True)
    yield suite.points(f"{name} loses its answer", lambda bench, nth: acquiring(bench, nth, True), strict=False)
    yield suite.run(f"{name} fails at release", releasing, strict=False)
