"""A stand-in for kernel drivers beneath DevFile, at the offsets of ../shared/uapi and never through accelctl.hal.uapi.

A subclass has a method for each call that its driver understands, named as the ioctl is (DRM_IOCTL_ left off); anything
else fails the test. Every argument is recorded as it came in. It keeps what the tests count (handles, ranges,
mappings, descriptors) and refuses what they rely on being refused; no more. Structures are copied back when a call
fails, as DRM does.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import AddressSpace, Block, Env, Lifecycle, Memory, Session, Target
from accelctl.abi.manifest import Manifest
from accelctl.hal.devfile import Syscalls
from accelctl.memory.va import GoodFit

PAGE = 4096


@cache
def table(folder: Path, driver: str) -> dict[str, Any]:
    """One table, or a loud skip."""
    file = folder / "uapi" / f"{driver}.json"
    if not file.is_file():
        pytest.skip(f"no table {file}")
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def refuse(code: int) -> OSError:
    """An error as the kernel gives it."""
    return OSError(code, os.strerror(code))


def peek(address: int, size: int) -> bytes:
    """Memory of this process."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, address)


def poke(address: int, data: bytes) -> None:
    """Write memory of this process."""
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        assert os.pwrite(memory.fileno(), data, address) == len(data)


class Arg:
    """A structure of the table in a buffer."""

    def __init__(self, structs: dict[str, Any], name: str, buffer: bytearray) -> None:
        self.name, self.buffer = name, buffer
        self.size = int(structs[name]["sizeof"])
        self._fields = {f["name"]: f for f in structs[name]["fields"]}
        assert len(buffer) >= self.size, f"{name}: {len(buffer)} bytes, its size is {self.size}"

    def __getitem__(self, name: str) -> int:
        field = self._fields[name]
        signed = field["type"] in ("int", "__s32", "__s64", "NvS32")
        return int.from_bytes(self.raw(name), "little", signed=signed)

    def __setitem__(self, name: str, value: int) -> None:
        field = self._fields[name]
        self.put(name, value.to_bytes(field["size"], "little", signed=value < 0))

    def raw(self, name: str) -> bytes:
        """The bytes of a field."""
        field = self._fields[name]
        return bytes(self.buffer[field["offset"] : field["offset"] + field["size"]])

    def put(self, name: str, data: bytes) -> None:
        """Write the bytes of a field, from its start."""
        offset = self._fields[name]["offset"]
        self.buffer[offset : offset + len(data)] = data

    def set(self) -> dict[str, int]:
        """Numbers that are not 0, for comparing whole structures."""
        plain = {n: f for n, f in self._fields.items() if not (f.get("aggregate") or f.get("count"))}
        return {name: self[name] for name in plain if self[name]}


class Node:
    """An open descriptor: which driver answers, and what it holds."""

    def __init__(self, path: str, driver: str) -> None:
        self.path, self.driver = path, driver
        self.handles: dict[int, Any] = {}
        self.ranges: dict[int, tuple[int, int]] = {}
        """Address -> size, handle."""
        self.vms: dict[int, dict[int, tuple[int, int]]] = {}
        self.extra: Any = None

    def take(self, thing: Any, first: int = 1) -> int:
        """The lowest free handle."""
        number = next(n for n in range(first, len(self.handles) + first + 1) if n not in self.handles)
        self.handles[number] = thing
        return number

    def bind(self, address: int, size: int, handle: int, vm: int | None = None) -> None:
        """Register a range: EINVAL when it overlaps, is misaligned or has no pages."""
        ranges = self.ranges if vm is None else self.vms[vm]
        if not size or address % PAGE or size % PAGE or not address:
            raise refuse(errno.EINVAL)
        if any(a < address + size and address < a + n for a, (n, _) in ranges.items()):
            raise refuse(errno.EINVAL)
        ranges[address] = (size, handle)

    def unbind(self, address: int, size: int, vm: int | None = None) -> None:
        """Forget a range, exactly: ENOENT otherwise."""
        ranges = self.ranges if vm is None else self.vms[vm]
        if address not in ranges or ranges[address][0] != size:
            raise refuse(errno.ENOENT)
        del ranges[address]


class Call(NamedTuple):
    """One call: its name, and the argument as it came in."""

    name: str
    data: bytes


class TableKernel(Syscalls):
    """``nodes``: path -> driver. ``fail``: name -> errno of a call that is not made (a positive number of times)."""

    def __init__(self, shared: Path, nodes: dict[str, str]) -> None:
        self.shared, self.nodes = shared, nodes
        self.files: dict[int, Node] = {}
        self.calls: list[Call] = []
        self.fail: dict[str, int] = {}
        self.maps = 0

    # -- what is no ioctl --

    def stat(self, path: str) -> os.stat_result:
        if path not in self.nodes:
            raise refuse(errno.ENOENT)
        return os.stat("/dev/null")

    def fstat(self, fd: int) -> os.stat_result:
        return os.stat("/dev/null")

    def open(self, path: str, flags: int) -> int:
        if path not in self.nodes:
            raise refuse(errno.ENOENT)
        return self.new(Node(path, self.nodes[path]))

    def new(self, node: Node) -> int:
        """A descriptor for it."""
        fd = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.files[fd] = node
        self.calls.append(Call(f"open {node.path}", b""))
        return fd

    def close(self, fd: int) -> None:
        node = self.files.pop(fd)
        self.calls.append(Call(f"close {node.path}", b""))
        os.close(fd)

    def map(self, fd: int, size: int, offset: int) -> mmap.mmap:
        self._door("mmap", b"")
        self.mapped(self.files[fd], size, offset)
        self.maps += 1
        return mmap.mmap(-1, size)

    def mapped(self, node: Node, size: int, offset: int) -> None:
        """Is that right? By default the offset says which handle (see :meth:`offset`)."""
        assert size % PAGE == 0
        if offset >> 32 not in node.handles:
            raise refuse(errno.EINVAL)

    def unmap(self, mapping: mmap.mmap) -> None:
        self.calls.append(Call("munmap", b""))
        mapping.close()
        self.maps -= 1

    @staticmethod
    def offset(handle: int) -> int:
        """Where an object is mapped."""
        return handle << 32

    def names(self) -> list[str]:
        """Names of the calls so far, openings and closings apart."""
        return [call.name for call in self.calls if not call.name.startswith(("open ", "close "))]

    def last(self, name: str) -> Arg:
        """The argument of the last call of that name."""
        call = next(call for call in reversed(self.calls) if call.name == name)
        driver, entry = self.entry(name)
        return Arg(table(self.shared, driver)["structs"], entry["struct"], bytearray(call.data))

    def entry(self, name: str) -> tuple[str, dict[str, Any]]:
        """The table that has a call, and its row there."""
        for driver in {*self.nodes.values(), "drm-core"}:
            for key, entry in table(self.shared, driver)["ioctls"].items():
                if short(key) == name:
                    return driver, entry
        raise AssertionError(name)

    def left(self) -> int:
        """Everything alive."""
        spaces = [len(vm) for node in self.files.values() for vm in node.vms.values()]
        return self.maps + sum(len(n.handles) + len(n.ranges) for n in self.files.values()) + sum(spaces)

    def _door(self, name: str, data: bytes) -> None:
        self.calls.append(Call(name, data))
        if name in self.fail:
            raise refuse(self.fail[name])

    # -- ioctls --

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        node = self.files[fd]
        name, structs, entry = self.find(node, number)
        self._door(name, bytes(argument) if isinstance(argument, bytearray) else b"")
        if isinstance(argument, int):
            return int(getattr(self, name.lower())(node, argument) or 0)
        arg = Arg(structs, entry["struct"], argument)
        return int(getattr(self, name.lower())(node, arg) or 0)

    def find(self, node: Node, number: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Name without DRM_IOCTL_, the structures of its table, its row. DRM and KFD go by type and command alone; of
        two calls with one command (i915's GEM_MMAP_GTT grew into GEM_MMAP_OFFSET) the one of this size."""
        for driver in (node.driver, "drm-core"):
            known = table(self.shared, driver)
            rows = {name: entry for name, entry in known["ioctls"].items() if "value" in entry}
            alike = [name for name, entry in rows.items() if entry["value"] & 0xFFFF == number & 0xFFFF]
            for name in sorted(alike, key=lambda name: rows[name]["value"] != number):
                assert hasattr(self, short(name).lower()), f"{node.driver} is not expected to get {name}"
                return short(name), known["structs"], rows[name]
        raise AssertionError(f"{node.driver}: nobody knows {number:#x}")

    def version(self, node: Node, arg: Arg) -> None:
        name = self.answers(node.driver).encode()
        poke(arg["name"], name[: arg["name_len"]])
        arg["name_len"] = len(name)

    @staticmethod
    def answers(driver: str) -> str:
        """The driver's name in DRM_IOCTL_VERSION."""
        return driver

    def drop_master(self, node: Node, arg: Arg | int) -> None:
        raise refuse(errno.EINVAL)

    def gem_close(self, node: Node, arg: Arg) -> None:
        if node.handles.pop(arg["handle"], None) is None:
            raise refuse(errno.EINVAL)

    def prime_handle_to_fd(self, node: Node, arg: Arg) -> None:
        if arg["handle"] not in node.handles:
            raise refuse(errno.ENOENT)
        shared = Node("dma-buf", "dma-buf")
        shared.extra = node.handles[arg["handle"]]
        arg["fd"] = self.new(shared)

    def prime_fd_to_handle(self, node: Node, arg: Arg) -> None:
        arg["handle"] = node.take(self.files[arg["fd"]].extra)


def short(name: str) -> str:
    """Without DRM_IOCTL_ and AMDKFD_IOC_."""
    return name.removeprefix("DRM_IOCTL_").removeprefix("AMDKFD_IOC_")


class Bench:
    """A kernel, an environment beneath it that remembers its allocators, and a chip."""

    def __init__(self, kernel: TableKernel, manifest: Manifest, memory: Memory, target: Target, **options: str) -> None:
        self.kernel, self.target = kernel, target
        self.spaces: list[GoodFit] = []
        self.env = Env(kernel, self._space, options)
        self.chip = Chip(manifest, memory, None, None, "in-tree")

    def _space(self, base: int, size: int, granule: int) -> AddressSpace:
        self.spaces.append(GoodFit(base, size, granule=granule))
        return self.spaces[-1]

    def open(self) -> Session:
        """A session."""
        assert self.chip.memory is not None
        return self.chip.memory.open(self.target, self.env)

    def balanced(self) -> bool:
        """No address is held."""
        for space in self.spaces:
            space.check()
        return all(space.snapshot().blocks == 0 for space in self.spaces)


def life(session: Session, name: str) -> Lifecycle:
    """A lifecycle by name."""
    return next(one for one in session.lifecycles if one.name == name)


def acquire(lifecycle: Lifecycle, size: int = PAGE, depth: int = 99, serial: int = 1) -> Block:
    """As the engine does: the first ``depth`` stages, all or nothing."""
    block = Block(size, serial)
    try:
        for stage in lifecycle.stages[:depth]:
            stage.acquire(block)
            block.held.append(stage)
    except BaseException:
        release(block)
        raise
    return block


def release(block: Block) -> None:
    """Everything held, last one first, whatever one of them says; the last failure is raised."""
    with ExitStack() as order:
        while block.held:
            stage = block.held.pop(0)
            if stage.release is not None:
                order.callback(stage.release, block)


def cycle(lifecycle: Lifecycle, size: int = PAGE) -> Block:
    """Once through, forth and back."""
    block = acquire(lifecycle, size)
    if block.map is not None:
        block.map[: len(b"touched")] = b"touched"
        assert bytes(block.map[: len(b"touched")]) == b"touched"
    release(block)
    return block
