"""What the conformance suite runs on: a session for each check, its system calls counted and failed on request."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import AddressSpace, Block, Counter, Env, NotOffered, Session, Stage, Target
from accelctl.errors import AccelError
from accelctl.hal.devfile import Mapped, Syscalls, open_files

MOST_POINTS = 64
"""Calls of one stage."""
_MOST_SETTLE_S = 10.0


class Check(NamedTuple):
    """What came of one check. ``result`` is pass, fail or skip; ``detail`` says why not "pass"."""

    name: str
    result: str
    detail: str = ""


class Wrong(Exception):
    """A rule of the contract that is broken, in one line."""


class Door(Syscalls):
    """The system calls beneath one session: what they hold is remembered, and one of them fails when that is ordered.

    Not failed: fstat and close, which do not fail on a descriptor that is open (Linux gives it back even when close
    reports an error).
    """

    def __init__(self, inner: Syscalls) -> None:
        self._inner = inner
        self.fds: set[int] = set()
        self.maps: dict[int, Mapped] = {}
        self.addresses: set[int] = set()
        self.fired = ""
        self._nth, self._lost = 0, False

    def arm(self, nth: int, lost: bool = False) -> None:
        """From now on, fail the nth call before it is made; or, ``lost``, the nth ioctl, after it was made."""
        self._nth, self._lost, self.fired = nth, lost, ""

    def disarm(self) -> None:
        """Fail nothing more; ``fired`` still says what failed."""
        self._nth = 0

    def _due(self, what: str, lost: bool = False) -> bool:
        if self._lost is not lost or not self._nth:
            return False
        self._nth -= 1
        if self._nth:
            return False
        self.fired = what
        return True

    def _gate(self, what: str) -> None:
        if self._due(what):
            raise OSError(errno.EIO, f"{what} fails, as ordered")

    def stat(self, path: str) -> os.stat_result:  # noqa: D102
        self._gate("stat")
        return self._inner.stat(path)

    def fstat(self, fd: int) -> os.stat_result:  # noqa: D102
        return self._inner.fstat(fd)

    def open(self, path: str, flags: int) -> int:  # noqa: D102
        self._gate("open")
        return self._keep(self._inner.open(path, flags))

    def memfd(self, name: str, size: int, seals: int) -> int:  # noqa: D102
        self._gate("memfd_create")
        return self._keep(self._inner.memfd(name, size, seals))

    def _keep(self, fd: int) -> int:
        self.fds.add(fd)
        return fd

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:  # noqa: D102
        self._gate(f"ioctl {number:#x}")
        if not self._due(f"ioctl {number:#x}", lost=True):
            return self._inner.ioctl(fd, number, argument)
        before, mine = bytes(argument) if isinstance(argument, bytearray) else b"", descriptors()
        self._inner.ioctl(fd, number, argument)
        if isinstance(argument, bytearray):
            argument[:] = before
        for stray in descriptors() - mine:  # given out with an answer that nobody saw: not the chip's fault
            self._inner.close(stray)
        raise OSError(errno.EIO, "the answer is lost, as ordered")

    def map(self, fd: int, size: int, offset: int) -> Mapped:  # noqa: D102
        self._gate("mmap")
        mapping = self._inner.map(fd, size, offset)
        self.maps[id(mapping)] = mapping
        return mapping

    def unmap(self, mapping: Mapped) -> None:  # noqa: D102
        self._gate("munmap")
        self._inner.unmap(mapping)
        self.maps.pop(id(mapping), None)

    def close(self, fd: int) -> None:  # noqa: D102
        self.fds.discard(fd)
        self._inner.close(fd)

    def space(self, make: Callable[[int, int, int], AddressSpace]) -> Callable[[int, int, int], AddressSpace]:
        """Allocators whose addresses are counted too, and whose alloc can fail like a call."""

        def made(base: int, size: int, granule: int) -> AddressSpace:
            return _Space(self, make(base, size, granule))

        return made

    def alloc(self, make: Callable[[], int]) -> int:
        """An address of one of them."""
        if self._due("address"):
            raise AccelError("no address is left, as ordered", kind="out_of_address_space")
        address = make()
        self.addresses.add(address)
        return address

    def sweep(self) -> None:
        """Give back what the session left: the next check must not trip over it."""
        for mapping in self.maps.values():
            mapping.close()
        for fd in sorted(self.fds):
            self._inner.close(fd)


class _Space:
    def __init__(self, door: Door, inner: AddressSpace) -> None:
        self._door, self._inner = door, inner

    def alloc(self, size: int, align: int | None = None, owner: str = "") -> int:
        return self._door.alloc(lambda: self._inner.alloc(size, align, owner))

    def free(self, va: int) -> int:
        size = self._inner.free(va)
        self._door.addresses.discard(va)
        return size


def descriptors() -> set[int]:
    """What this process has open, by asking: numbers are lowest-free, so there are none above."""
    found = set()
    for fd in range(1024):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.add(fd)
    return found


class Bench:
    """A session for one check, and its books at the start."""

    session: Session

    def __init__(self, chip: Chip, target: Target, env: Env, idle: dict[str, int] | None = None) -> None:
        self.door = Door(env.syscalls)
        self.outside = (descriptors(), open_files())
        assert chip.memory is not None
        self._open = chip.memory.open
        self._target = target
        self._env = replace(env, syscalls=self.door, space=self.door.space(env.space))
        self.idle = idle or {}

    def open(self) -> Session:
        """Open the device, and take the books as they are then."""
        session: object = self._open(self._target, self._env)
        self.door.disarm()  # reading the books below is not a part of opening
        if not isinstance(session, Session):
            raise Wrong(f"open() returned a {type(session).__name__}, not a Session")
        self.session = session
        self.counters = [counter for counter in self.session.counters() if counter.exact and _readable(counter)]
        self.start = {counter.name: counter.read() for counter in self.counters}
        self.held = self._holds()
        return self.session

    def _holds(self) -> dict[str, int]:
        door = self.door
        return {
            "descriptors": len(open_files().keys() | door.fds),
            "mappings": len(door.maps),
            "device addresses": len(door.addresses),
        }

    def acquire(self, stages: Sequence[Stage], size: int, serial: int = 1) -> tuple[Block, list[int]]:
        """One block through these stages. Wrong when one fails (the earlier ones are released); NotOffered."""
        block, numbers = Block(size, serial), []
        for stage in stages:
            try:
                number = stage.acquire(block)
            except Exception as error:
                self.release(block)
                if isinstance(error, NotOffered):
                    raise
                raise Wrong(f"acquire of {stage.name}: {said(error)}") from error
            block.held.append(stage)
            if not _is_number(number):
                self.release(block)
                raise Wrong(f"acquire of {stage.name} returned {number!r}, not a number")
            numbers.append(number)
        return block, numbers

    def release(self, block: Block, first: Sequence[str] = (), armed: str = "") -> list[str]:
        """All that is held, in reverse, but these stages first (as acquired: the engine's order); what went wrong with
        each. ``armed``: the first call of that stage's release fails."""
        wrong = []
        order = [stage for stage in block.held if stage.name in first]
        order += [stage for stage in reversed(block.held) if stage.name not in first]
        for stage in order:
            block.held.remove(stage)
            if stage.release is None:
                continue
            if stage.name == armed:
                self.door.arm(1)
            try:
                stage.release(block)
            except Exception as error:
                if stage.name != armed or not isinstance(error, (OSError, AccelError)):
                    wrong.append(f"release of {stage.name}: {said(error)}")
            else:
                if stage.name == armed and self.door.fired:
                    wrong.append(f"release of {stage.name} says nothing of its {self.door.fired} that failed")
            self.door.disarm()
        return wrong

    def balance(self) -> None:
        """Wrong unless the session holds what it held at the start."""
        wrong = [f"{now - self.held[name]:+} {name}" for name, now in self._holds().items() if now != self.held[name]]
        end = time.monotonic() + min(_MOST_SETTLE_S, max((c.settle_s for c in self.counters), default=0.0))
        while self._moved() and time.monotonic() < end:
            time.sleep(0.01)
        wrong += [f"{change:+} {name}" for name, change in self._moved().items()]
        if wrong:
            raise Wrong(f"not given back: {', '.join(wrong)}")

    def _moved(self) -> dict[str, int]:
        changes = ((counter.name, counter.read() - self.start[counter.name]) for counter in self.counters)
        return {name: change for name, change in changes if change}

    def finish(self) -> None:
        """The session's last act, counted, and its end. Wrong for what is left."""
        left = {name: count for name, count in self.session.census().items() if count != self.idle.get(name, 0)}
        self.close()
        if left:
            raise Wrong("census() still counts " + ", ".join(f"{count} {name}" for name, count in left.items()))

    def close(self) -> None:
        """Close, twice. Wrong for what is open after that."""
        for again in ("", " again"):
            try:
                self.session.close()
            except Exception as error:
                raise Wrong(f"close(){again}: {said(error)}") from error
        self.nothing_open("after close()")

    def nothing_open(self, when: str) -> None:
        """Wrong for descriptors, mappings and addresses that are left."""
        files = open_files()
        left = [f"descriptor {fd} ({files[fd]})" for fd in sorted(files.keys() - self.outside[1].keys())]
        others = (descriptors() - self.outside[0] | self.door.fds) - files.keys()
        left += [f"descriptor {fd}" for fd in sorted(others)]
        left += [f"{len(self.door.maps)} mappings"] if self.door.maps else []
        left += [f"{len(self.door.addresses)} device addresses"] if self.door.addresses else []
        if left:
            raise Wrong(f"left open {when}: {', '.join(left)}")

    def leave(self) -> None:
        """Whatever happened: nothing of it meets the next check."""
        session: Session | None = getattr(self, "session", None)
        try:
            if session is not None:
                session.close()
        except Exception:
            pass  # a check has said so, or is about to
        self.door.sweep()


def _is_number(value: object) -> bool:
    return isinstance(value, int)


def _readable(counter: Counter) -> bool:
    try:
        counter.read()
    except (OSError, ValueError):
        return False
    return True


def said(error: Exception) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())[:160]
    return text if isinstance(error, (Wrong, AccelError)) else f"{type(error).__name__}: {text}".removesuffix(": ")


class Suite:
    """Runs checks on one device."""

    def __init__(self, chip: Chip, target: Target, env: Env) -> None:
        self._chip, self._target, self._env = chip, target, env
        self.idle: dict[str, int] = {}
        """What census() of an unused session counts."""

    def make(self) -> Bench:
        """A bench, unopened."""
        return Bench(self._chip, self._target, self._env, self.idle)

    def run(self, name: str, body: Callable[[Bench], None], *, strict: bool = True) -> Check:
        """One check in a session of its own. ``strict``: in the end the books are what they were; otherwise only
        closing must end everything (a lost answer strands what it told of)."""
        bench = self.make()
        try:
            bench.open()
            body(bench)
            if strict:
                bench.balance()
                bench.finish()
            else:
                bench.close()
                self._nothing_stays(bench)
        except NotOffered as error:
            return Check(name, "skip", error.reason)
        except Wrong as error:
            return Check(name, "fail", str(error))
        except Exception as error:
            return Check(name, "fail", said(error))
        finally:
            bench.leave()
        return Check(name, "pass")

    def _nothing_stays(self, bench: Bench) -> None:
        """The device's own books after the file was closed: read through a new one."""
        names = {counter.name for counter in bench.counters if counter.scope != "file"}
        if not names:
            return
        fresh = self.make()
        try:
            fresh.open()
            fresh.counters = [counter for counter in fresh.counters if counter.name in names]
            fresh.start = bench.start
            fresh.held = fresh._holds()
            fresh.balance()
        finally:
            fresh.leave()

    def points(self, name: str, body: Callable[[Bench, int], None], *, strict: bool) -> Check:
        """A check once for each call that can fail; body(bench, n) arms the nth."""
        for nth in range(1, MOST_POINTS + 1):
            fired: list[str] = []

            def once(bench: Bench, nth: int = nth, fired: list[str] = fired) -> None:
                body(bench, nth)
                fired.append(bench.door.fired)

            check = self.run(name, once, strict=strict)
            if check.result != "pass":
                return check._replace(detail=f"call {nth}: {check.detail}")
            if not fired[0]:
                return check if nth > 1 else Check(name, "skip", "it makes no such call")
        return Check(name, "fail", f"more than {MOST_POINTS} calls in one stage")
