"""The fake kernel itself: files, mappings, what is alive, and orders to misbehave. Families of drivers are elsewhere.

Descriptors are real placeholders (of /dev/null): their numbers never clash with others, a limit on descriptors hits
the fake as it hits a kernel, and a book that counts /proc/self/fd counts them.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, TypeVar

from accelctl.hal.devfile import Syscalls
from tests.fake.tables import Call
from tests.fake.things import PAGE, SYSTEM_CALLS, Arena, FakeError, Knob, Thing, UserMemory, matches, oops

__all__ = ["PAGE", "Driver", "FakeError", "FakeKernel", "File", "Lost", "serves"]

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class Lost(OSError):
    """A call that was done, and whose answer does not come."""


def serves(*names: str) -> Callable[[_Handler], _Handler]:
    """Mark a method as the handler of these ioctls."""

    def mark(method: _Handler) -> _Handler:
        method.serves = names  # type: ignore[attr-defined]
        return method

    return mark


class File:
    """An open file: it lives until its descriptor and all mappings of it are gone (each VMA holds its file)."""

    def __init__(self, fd: int, path: str, driver: Driver) -> None:
        self.fd, self.path, self.driver = fd, path, driver
        self.uses = 1
        self.state: Any = None
        """What the driver keeps for it."""

    def __str__(self) -> str:
        return f"fd {self.fd} ({self.path})"


class Backing(NamedTuple):
    """What mmap maps: a thing, and where its bytes are."""

    thing: Thing
    fd: int
    offset: int


class Mapping(NamedTuple):
    """One mmap that is alive."""

    mapping: mmap.mmap
    size: int
    thing: Thing | None
    file: File | None


class Driver:
    """What answers on a node. Subclasses mark their handlers with :func:`serves`."""

    name = ""
    orderly = False
    """Closing a file is how its thing is given back, not a clean-up."""
    handlers: ClassVar[dict[str, str]] = {}
    """Name of an ioctl -> name of the method."""

    def __init_subclass__(cls) -> None:
        cls.handlers = dict(cls.handlers)
        for attribute, method in vars(cls).items():
            for name in getattr(method, "serves", ()):
                cls.handlers[name] = attribute

    def __init__(self, machine: FakeKernel) -> None:
        self.machine = machine

    def known(self) -> Iterable[Call]:
        """All calls of its tables, served or not: names that knobs may use."""
        return ()

    def handler(self, name: str) -> Callable[..., Any]:
        """The method for an ioctl; FakeError where nothing plays it."""
        if name not in self.handlers:
            raise FakeError(f"{self.name}: nothing here plays {name}")
        return getattr(self, self.handlers[name])  # type: ignore[no-any-return]

    def opened(self, file: File) -> None:
        """A file was opened."""

    def released(self, file: File) -> None:
        """A file, and every mapping made of it, is gone: what it owned goes too."""

    def ioctl(self, file: File, number: int, argument: bytearray | int) -> int:
        """One call."""
        raise FakeError(f"{file}: ioctl {number:#x} on something that takes none")

    def mmap(self, file: File, size: int, offset: int) -> Backing:
        """What lies at this offset of the node."""
        raise oops(errno.ENODEV, f"{self.name} maps nothing")


class FakeKernel(Syscalls):
    """System calls on nodes that are not there. See tests.fake.machine.FakeMachine for how to use it.

    All of it is behind one lock: it stands for a kernel that serves threads.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.nodes: dict[str, tuple[Driver, int]] = {}
        """Path -> (driver, device number)."""
        self.files: dict[int, File] = {}
        self.maps: dict[int, Mapping] = {}
        self.memfds: dict[int, str] = {}
        self.alive: dict[int, Thing] = {}
        self.arena, self.user = Arena(), UserMemory()
        self.calls: deque[str] = deque(maxlen=10000)
        """Names of the last calls, ioctls with their operation: "DRM_IOCTL_AMDGPU_GEM_VA:MAP"."""
        self.counts: Counter[str] = Counter()
        self.dropped: list[str] = []
        """What the end of a file had to clean up, since nobody had given it back before."""
        self.errors: list[FakeError] = []
        self.knobs: list[Knob] = []
        self.oddities: list[str] = []
        """What the kernel takes without a word and nobody can have meant: an unbind of nothing, a bind over a bind."""
        self.statuses: deque[str] = deque(maxlen=100)
        """Why RM and UVM refused, lately."""
        self.part: tuple[int, int] | None = None
        """What a handler that can be done by halves shall do, now."""

    # -- orders to misbehave --

    def fail(self, name: str, nth: int = 1, error: int = errno.ENOMEM) -> Knob:
        """The ``nth`` such call from now on is not made: errno, or RM's and UVM's status where a call has one (a
        negative number is an errno there too).

        ``name`` is an ioctl's, or its end after a "_" (GEM_VA, RM_ALLOC), with ":OP" where one call does many things
        (GEM_VA:UNMAP, HL_MEMORY:FREE, RM_ALLOC:NV1_MEMORY_USER); or open, mmap, munmap, close, memfd; "*" is any.
        """
        return self._order("fail", name, nth, 0, error)

    def lose_reply(self, name: str, nth: int = 1, error: int = errno.EFAULT) -> Knob:
        """The ``nth`` such call is made; its answer is not copied out, and it fails with this errno."""
        return self._order("lose", name, nth, 0, error)

    def interrupt(self, times: int = 1, name: str = "*", error: int = errno.EINTR) -> None:
        """The next ``times`` such ioctls are not made: EINTR, or EAGAIN."""
        for nth in range(1, times + 1):
            self._order("interrupt", name, nth, 0, error)

    def swallow(self, name: str, every: int = 100) -> Knob:
        """Each ``every``-th such call is acknowledged and not done."""
        return self._order("swallow", name, 0, every, 0)

    def partial(self, name: str, done: int, nth: int = 1, error: int = 0) -> Knob:
        """The ``nth`` such call does only so much and says so in its answer: KFD's MAP_MEMORY_TO_GPU and
        UNMAP_MEMORY_FROM_GPU (how many GPUs), VFIO's UNMAP_DMA (0 bytes). It succeeds all the same, or fails with
        ``error``."""
        knob = self._order("partial", name, nth, 0, done)
        knob.error = error
        return knob

    def _order(self, kind: str, name: str, nth: int, every: int, value: int) -> Knob:
        call = name.partition(":")[0]
        known = {*SYSTEM_CALLS, *(one.name for driver, _ in self.nodes.values() for one in driver.known())}
        if not any(matches(call, one) for one in known):
            raise FakeError(f"no call of this machine is named {call}")
        knob = Knob(kind, name, nth, every, value)
        self.knobs.append(knob)
        return knob

    def odd(self, what: str) -> None:
        """Note an oddity."""
        self.oddities.append(what)

    def calm(self) -> None:
        """Forget all orders."""
        self.knobs.clear()

    def perform(self, call: str, op: str, do: Callable[[], int], deny: Callable[[int], int] | None = None) -> int:
        """Do a call, or what was ordered instead. ``deny``: how this call says a status (0: done); without it, errno
        and 0. Raises Lost after it was done."""
        self.calls.append(f"{call}:{op}" if op else call)
        self.counts[call] += 1
        fired = [knob for knob in self.knobs if knob.due(call, op)]
        kinds = {knob.kind: knob.value for knob in fired}
        for knob in fired:
            if not knob.every:
                self.knobs.remove(knob)
        if "interrupt" in kinds:
            raise oops(kinds["interrupt"], "as ordered")
        if "fail" in kinds:
            if deny is None or kinds["fail"] < 0:
                raise oops(abs(kinds["fail"]), f"{call}, as ordered")
            return deny(kinds["fail"])
        if "swallow" in kinds:
            return deny(0) if deny else 0
        self.part = next(((knob.value, knob.error) for knob in fired if knob.kind == "partial"), None)
        try:
            result = do()
        finally:
            self.part = None
        if "lose" in kinds:
            raise Lost(kinds["lose"], f"{os.strerror(kinds['lose'])} [fake: {call} was done]")
        return result

    # -- system calls --

    def stat(self, path: str) -> os.stat_result:
        if path not in self.nodes:
            raise oops(errno.ENOENT, path)
        return _stat(self.nodes[path][1])

    def fstat(self, fd: int) -> os.stat_result:
        if fd in self.memfds:
            return os.fstat(fd)
        path = self._file(fd, "fstat").path
        return _stat(self.nodes[path][1] if path in self.nodes else 0)

    def open(self, path: str, flags: int) -> int:
        with self.lock:
            if path not in self.nodes:
                raise oops(errno.ENOENT, path)
            if flags & os.O_ACCMODE != os.O_RDWR or not flags & os.O_CLOEXEC:
                self._raise(FakeError(f"{path}: opened with flags {flags:#o}: not read-write, or children inherit it"))
            return self.perform("open", "", lambda: self.new_file(path, self.nodes[path][0]).fd)

    def new_file(self, path: str, driver: Driver, state: Any = None) -> File:
        """A file with a descriptor of its own. Raises OSError (EMFILE)."""
        file = File(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), path, driver)
        file.state = state
        try:
            driver.opened(file)
        except BaseException:
            os.close(file.fd)
            raise
        self.files[file.fd] = file
        return file

    def file(self, fd: int) -> File | None:
        """An open file by the number that a structure carries."""
        return self.files.get(fd)

    def _file(self, fd: int, what: str) -> File:
        if fd not in self.files:
            self._raise(FakeError(f"{what} on descriptor {fd}, which is not open here"))
        return self.files[fd]

    def _raise(self, error: FakeError) -> None:
        self.errors.append(error)
        raise error

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        with self.lock:
            file = self._file(fd, f"ioctl {number:#x}")
            try:
                return file.driver.ioctl(file, number, argument)
            except FakeError as error:
                self.errors.append(error)
                raise

    def memfd(self, name: str, size: int, seals: int) -> int:
        with self.lock:
            fd = self.perform("memfd", "", lambda: Syscalls.memfd(self, name, size, seals))
            self.memfds[fd] = name
            return fd

    def map(self, fd: int, size: int, offset: int) -> mmap.mmap:
        with self.lock:
            made: list[mmap.mmap] = []
            try:
                self.perform("mmap", "", lambda: made.append(self._map(fd, size, offset)) or 0)  # type: ignore[func-returns-value]
            except Lost:
                self.unmap(made[0])  # mmap(2) has nothing to copy out: it cannot be done and fail
                raise
            if not made:
                raise FakeError("mmap cannot be swallowed")
            return made[0]

    def _map(self, fd: int, size: int, offset: int) -> mmap.mmap:
        if size <= 0 or offset % PAGE:
            raise oops(errno.EINVAL, f"mmap of {size} bytes at {offset:#x}")
        if fd < 0 or fd in self.memfds:
            mapping = Syscalls.map(self, fd, size, offset)
            self.maps[id(mapping)] = Mapping(mapping, size, None, None)
            return mapping
        file = self._file(fd, "mmap")
        found = file.driver.mmap(file, size, offset)
        mapping = mmap.mmap(found.fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=found.offset)
        self.maps[id(mapping)] = Mapping(mapping, size, found.thing, file)
        found.thing.hold(("mapping", id(mapping)))
        file.uses += 1
        return mapping

    def unmap(self, mapping: mmap.mmap) -> None:
        with self.lock:
            if id(mapping) not in self.maps:
                self._raise(FakeError("munmap of what is not mapped"))
            mapping[:0]  # ValueError if somebody closed it behind our back
            self.perform("munmap", "", lambda: self._unmap(mapping))

    def _unmap(self, mapping: mmap.mmap) -> int:
        mapping.close()  # BufferError: a view is alive, nothing has happened
        known = self.maps.pop(id(mapping))
        if known.thing is not None:
            known.thing.drop(("mapping", id(mapping)))
        if known.file is not None:
            self.put(known.file)
        return 0

    def close(self, fd: int) -> None:
        with self.lock:
            if fd not in self.files and fd not in self.memfds:
                self._raise(FakeError(f"close of descriptor {fd}, which is not open here"))
            self.perform("close", "", lambda: self.shut(fd))

    def shut(self, fd: int) -> int:
        """End of a descriptor, without a call."""
        os.close(fd)
        if self.memfds.pop(fd, None) is None:
            self.put(self.files.pop(fd))
        return 0

    def put(self, file: File) -> None:
        """One use of a file less; the last ends it."""
        file.uses -= 1
        if not file.uses:
            before = {} if file.driver.orderly else dict(self.alive)
            file.driver.released(file)
            self.dropped += [f"{file}: {thing}" for key, thing in before.items() if key not in self.alive]

    # -- the end --

    def leftovers(self) -> list[str]:
        """Everything that is alive now, named."""
        with self.lock:
            found = [str(file) for file in self.files.values()]
            found += [f"fd {fd} (memfd {name})" for fd, name in self.memfds.items()]
            found += [f"mapping of {known.size} bytes of {known.thing or 'own pages'}" for known in self.maps.values()]
            return found + [str(thing) for thing in self.alive.values()]

    def census(self) -> Counter[str]:
        """How many of each kind are alive: the same before and after a cycle that gives everything back."""
        with self.lock:
            kinds = Counter(thing.kind for thing in self.alive.values())
            kinds.update({"descriptor": len(self.files) + len(self.memfds), "mapping": len(self.maps)})
            return +kinds  # without zeros

    def finish(self) -> None:
        """Close everything, whatever is left; for tests that leave things on purpose."""
        with self.lock:
            self.knobs.clear()
            for known in tuple(self.maps.values()):
                try:
                    self._unmap(known.mapping)
                except (BufferError, ValueError):
                    self.maps.pop(id(known.mapping))
            for fd in (*self.files, *self.memfds):
                self.shut(fd)
            self.arena.close()
            self.user.close()


def _stat(device: int) -> os.stat_result:
    return os.stat_result((stat.S_IFCHR | 0o666, 1, 2, 1, 0, 0, 0, 0, 0, 0), {"st_rdev": device})


def seals(fd: int) -> int:
    """F_GET_SEALS; -1 for what cannot be sealed."""
    try:
        return fcntl.fcntl(fd, 1034)
    except OSError:
        return -1
