"""Drivers whose memory is a row of facts (hal.uapi.gem_table): their lifecycles, made from the row.

    object     object -> offset -> cpu_map
    bound      va -> object -> offset -> cpu_map -> gpu_map, where user space chooses addresses
    host_map   host_pages -> object, where our own pages can become one
    in_heap    object -> address, in an object that the session holds

Which row it is the driver itself tells (DRM_IOCTL_VERSION): a module's name and a device's are often others. Sizes that
the driver's field cannot hold are refused here, because the kernel would see their lower 32 bits.
"""

from __future__ import annotations

import array
import errno
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from accelctl.abi import dumb, gem, hostmem
from accelctl.abi.devmem import HeldSession, ask, inside, number, opened, said, va_stage, whole
from accelctl.abi.lifecycle import (
    GPU_MAP,
    NOTHING,
    VA,
    AddressSpace,
    Block,
    Counter,
    Env,
    Lifecycle,
    NotOffered,
    Session,
    Sizes,
    Stage,
    Target,
)
from accelctl.errors import DeviceUnusable
from accelctl.hal.devfile import File
from accelctl.hal.uapi.gem_table import ROWS, Bind, GemRow, Space, UserPages

_ABSENT = (errno.EINVAL, errno.ENOSYS, errno.ENOTTY, errno.EOPNOTSUPP, errno.ENODEV)
"""How drivers say that they have no such call, or cannot on this hardware."""


class _Device:
    """One open node with its row, and what the session holds for it."""

    def __init__(self, node: str, env: Env, drivers: Sequence[str], held: ExitStack) -> None:
        self.file: File = gem.open_node(node, env)
        held.callback(self.file.close)
        name = gem.driver_name(self.file)
        rows = [row for row in ROWS if row.driver in drivers and row.answers_to(name)]
        if not rows:
            raise DeviceUnusable(f"{node}: its driver is {name}, not {' or '.join(drivers)}")
        self.row = rows[0]
        self.vm = 0
        self.space: AddressSpace | None = None
        self.no_space = self.no_heap = ""
        self.heap = ExitStack()
        held.callback(self.heap.close)
        if self.row.bind is not None:
            self._address_space(self.row.bind.space, env, held)
        self.book = dumb.book(self.file, lambda: self.create(hostmem.PAGE, self.row.create_also)[0])
        if self.row.heap:
            self._make_heap(self.row)

    def create(self, size: int, also: Mapping[str, int]) -> tuple[int, bytearray]:
        """An object: its handle, and the whole answer. Raises OSError (EFBIG: the field cannot hold the size)."""
        row = self.row
        if size >> row.size_bits:
            raise OSError(errno.EFBIG, f"{size} bytes, {row.driver} takes sizes of {row.size_bits} bits")
        answer = ask(self.file, row.create, **{row.size: size, **also})
        return int(row.create.layout.field(row.handle).get(answer)), answer

    def _address_space(self, space: Space, env: Env, held: ExitStack) -> None:
        """Before any object: nouveau's file has the old interface for good after the first one."""
        try:
            base, size = space.base, space.size
            if space.ask is not None:
                base = number(self.file, space.ask, "value", **space.ask_base)
                size = number(self.file, space.ask, "value", **space.ask_size)
            if space.create is not None:
                answer = ask(self.file, space.create, **space.create_also)
                self.vm = int(space.create.layout.field(space.id).get(answer)) if space.id else 0
            if space.destroy is not None:
                held.callback(ask, self.file, space.destroy, **{space.destroy_id: self.vm})
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            self.no_space = f"no address space of our own: {said(error)}"
            return
        self.space = env.space(*inside(base, base + size, hostmem.PAGE), hostmem.PAGE)

    def _make_heap(self, row: GemRow) -> None:
        """The heap, mapped: the driver looks at where the program sees it."""
        try:
            handle, _ = self.create(row.heap[row.size], row.heap)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            self.no_heap = f"no heap: {said(error)}"
            return
        self.heap.callback(gem.close_handle, self.file, self.book.handles.seen(handle))
        block = Block(row.heap[row.size])
        block.handle = handle
        locate_stage(self).acquire(block)
        mapping = self.file.map(block.size, block.offset)
        self.heap.callback(self.file.unmap, mapping)

    def unusable(self) -> int:
        """Is the address space broken (1) by an earlier bind that failed? Raises OSError."""
        assert self.row.bind is not None
        space = self.row.bind.space
        assert space.state is not None
        return number(self.file, space.state, space.state_value, **{space.state_id: self.vm})


def object_stage(device: _Device, also: Mapping[str, int]) -> Stage:
    """An object; its address and offset where they come with it."""
    row = device.row

    def acquire(block: Block) -> int:
        block.size = whole(block.size, hostmem.PAGE)
        block.handle, answer = device.create(block.size, also)
        if row.locate is None:
            block.offset = int(row.create.layout.field(row.offset).get(answer))
        if row.address_in == "create":
            block.address = int(row.create.layout.field(row.address).get(answer))
        return device.book.handles.seen(block.handle)

    return gem.handle_stage(device.file, acquire, _short(row.create.name))


def locate_stage(device: _Device, name: str = "offset") -> Stage:
    """Where the CPU maps it, and on some where the device sees it. Holds nothing."""
    row = device.row
    assert row.locate is not None
    call, layout = row.locate, row.locate.layout

    def acquire(block: Block) -> int:
        answer = ask(device.file, call, handle=block.handle, **row.locate_also)
        block.offset = int(layout.field(row.offset).get(answer))
        if row.address_in == "locate":
            block.address = int(layout.field(row.address).get(answer))
        return 0

    return Stage(name, NOTHING, acquire, None, _short(call.name))


def bind_stage(device: _Device, bind: Bind) -> Stage:
    """The object at ``block.address``."""

    def run(values: dict[str, int]) -> None:
        call = dict(bind.call_also)
        if bind.space_id:
            call[bind.space_id] = device.vm
        if bind.op is None:
            ask(device.file, bind.call, **call, **values)
            return
        op = array.array("B", bind.op.pack(**values))
        ask(device.file, bind.call, **call, **{bind.pointer: op.buffer_info()[0]})

    def acquire(block: Block) -> int:
        run({bind.handle: block.handle, bind.address: block.address, **sized(block), **bind.map_also})
        return block.address

    def release(block: Block) -> None:
        if bind.keeps:
            run({bind.address: block.address, **sized(block), **bind.unmap_also})
        else:
            run({bind.handle: block.handle, **bind.unmap_also})

    def sized(block: Block) -> dict[str, int]:
        return {bind.size: block.size} if bind.size else {}

    return Stage("gpu_map", GPU_MAP, acquire, release, f"{_short(bind.call.name)}, map / unmap")


def user_stage(device: _Device, user: UserPages) -> Stage:
    """Our own pages (``block.extra``) as an object."""

    def acquire(block: Block) -> int:
        values = {user.pointer: block.extra.address, user.size: block.size, **user.create_also}
        try:
            block.handle = number(device.file, user.create, "handle", **values)
        except OSError as error:
            if error.errno in _ABSENT:
                raise NotOffered(f"no objects of our own pages: {said(error)}") from error
            raise
        return device.book.handles.seen(block.handle)

    return gem.handle_stage(device.file, acquire, _short(user.create.name))._replace(early=False)


def _short(name: str) -> str:
    return name.removeprefix("DRM_IOCTL_")


def _lifecycles(device: _Device) -> tuple[Lifecycle, ...]:
    row = device.row
    largest = 0 if row.size_bits > 32 else (1 << row.size_bits) - hostmem.PAGE
    sizes, made = Sizes(hostmem.PAGE, largest), object_stage(device, row.create_also)
    rest = (locate_stage(device),) if row.locate else ()
    plain = (made, *rest, gem.map_stage(device.file))
    found = [Lifecycle("object", plain, sizes)]
    if row.bind is not None and device.space is not None:
        va = va_stage(device.space, hostmem.PAGE, row.driver)
        bound = (va, made._replace(early=row.bind.keeps), *plain[1:], bind_stage(device, row.bind))
        found.append(Lifecycle("bound", bound, sizes))
    elif row.bind is not None:
        found.append(Lifecycle("bound", plain, sizes, unsupported=device.no_space))
    if row.user is not None:
        found.append(Lifecycle("host_map", (hostmem.stage(), user_stage(device, row.user)), sizes))
    if row.in_heap:
        inner = object_stage(device, row.in_heap)._replace(early=False)
        most = Sizes(hostmem.PAGE, row.heap[row.size])
        found.append(Lifecycle("in_heap", (inner, locate_stage(device, "address")), most, unsupported=device.no_heap))
    return tuple(found)


def _counters(device: _Device) -> tuple[Counter, ...]:
    bind = device.row.bind
    if bind is None or bind.space.state is None or device.space is None:
        return ()
    return (Counter("address-space-broken", "spaces", "file", _short(bind.space.state.name), device.unusable, kind=VA),)


def open_session(target: Target, env: Env, drivers: Sequence[str]) -> Session:
    """Open the node of one of these drivers (``GemRow.driver``). AccelError where that is impossible."""

    def build(held: ExitStack) -> Session:
        device = _Device(target.node, env, drivers, held)
        life, more = _lifecycles(device), _counters(device)
        return HeldSession(target, life, (device.file,), held, (device.book,), more, device.heap.close)

    return opened(target, build)


class RowMemory:
    """Memory of a chip that is nothing but rows."""

    def __init__(self, *drivers: str) -> None:
        self._drivers = drivers

    def open(self, target: Target, env: Env) -> Session:
        """Open the node. AccelError: it cannot be opened, or another driver answers."""
        return open_session(target, env, self._drivers)
