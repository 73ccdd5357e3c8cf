"""Any legal sequence of calls: the fake driver's references agree with a naive count, and nothing is left."""

from __future__ import annotations

import mmap

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake import FakeMachine
from tests.fakekit import MAP, PAGE, UNMAP, VA, Device


class Model:
    """What must be alive, told by counting: per object its handles, mappings, addresses; per dma-buf who has it."""

    def __init__(self, m: FakeMachine) -> None:
        self.m, self.devices = m, (Device(m), Device(m, "/dev/dri/renderD129"))
        self.handles: list[dict[int, int]] = [{}, {}]
        self.maps: list[tuple[mmap.mmap, int]] = []
        self.bound: list[tuple[int, int, int]] = []
        self.fds: list[tuple[int, int]] = []
        self.exported: set[tuple[int, int]] = set()
        """(object, device) whose handle keeps a dma-buf."""
        self.objects, self.addresses = 0, 0

    def step(self, what: str, pick: int) -> None:
        getattr(self, f"do_{what}")(pick)
        assert self.m.census() == self.expected(), self.m.leftovers()

    def expected(self) -> dict[str, int]:
        held = {number for handles in self.handles for number in handles.values()}
        buffers = {number for number, _ in self.exported} | {number for _, number in self.fds}
        imports = list(self.handles[1].values())
        mapped = {number for _, number in self.maps}
        counts = {
            "object": len(held | buffers | mapped | {n for _, n, _ in self.bound}) + len(set(imports)),
            "dma-buf": len(buffers),
            "mapping on the device": len(self.bound),
            "mapping": len(self.maps),
            "descriptor": 2 + len(self.fds),
        }
        return {name: count for name, count in counts.items() if count}

    def do_create(self, pick: int) -> None:
        self.objects += 1
        self.handles[0][self.devices[0].create()] = self.objects

    def one(self, device: int, pick: int) -> tuple[int, int] | None:
        known = sorted(self.handles[device].items())
        return known[pick % len(known)] if known else None

    def do_close(self, pick: int, device: int = 0) -> None:
        if (found := self.one(device, pick)) is None:
            return
        handle, number = found
        self.devices[device].close(handle)
        del self.handles[device][handle]
        self.exported.discard((number, device))
        self.bound = [item for item in self.bound if device or item[1] != number]

    def do_close_import(self, pick: int) -> None:
        self.do_close(pick, 1)

    def do_map(self, pick: int) -> None:
        if (found := self.one(0, pick)) is not None:
            device = self.devices[0]
            self.maps.append((self.m.map(device.fd, PAGE, device.offset(found[0])), found[1]))

    def do_unmap(self, pick: int) -> None:
        if self.maps:
            self.m.unmap(self.maps.pop(pick % len(self.maps))[0])

    def do_bind(self, pick: int) -> None:
        if (found := self.one(0, pick)) is not None:
            self.addresses += 1
            address = VA + self.addresses * PAGE
            self.devices[0].bind(MAP, found[0], address)
            self.bound.append((found[0], found[1], address))

    def do_unbind(self, pick: int) -> None:
        if self.bound:
            handle, _, address = self.bound.pop(pick % len(self.bound))
            self.devices[0].bind(UNMAP, handle, address)

    def do_export(self, pick: int) -> None:
        if (found := self.one(0, pick)) is not None:
            self.fds.append((self.devices[0].export(found[0]), found[1]))
            self.exported.add((found[1], 0))

    def do_import(self, pick: int) -> None:
        if self.fds:
            fd, number = self.fds[pick % len(self.fds)]
            handle = self.devices[1].take(fd)
            assert self.handles[1].get(handle, number) == number
            self.handles[1][handle] = number
            self.exported.add((number, 1))

    def do_close_fd(self, pick: int) -> None:
        if self.fds:
            self.m.close(self.fds.pop(pick % len(self.fds))[0])

    def end(self) -> None:
        for what in ("unmap", "unbind", "close_fd", "close_import", "close"):
            for _ in range(100):
                self.step(what, 0)
        assert not self.m.alive
        for device in self.devices:
            self.m.close(device.fd)
        assert not self.m.dropped


STEPS = [name[3:] for name in dir(Model) if name.startswith("do_")]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 99)), max_size=40))
def test_any_legal_sequence_keeps_the_count_and_ends_with_nothing(steps: list[tuple[str, int]]) -> None:
    with FakeMachine("amdgpu", "amdgpu") as m:
        model = Model(m)
        for what, pick in steps:
            model.step(what, pick)
        model.end()
