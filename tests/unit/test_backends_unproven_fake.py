"""The unproven back-ends and every row against the one fake driver that is made from ../shared/uapi alone."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import closing, suppress

import pytest

from accelctl.abi import registry
from accelctl.abi.conformance import check_memory
from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import AddressSpace, Env, NotOffered, Session
from accelctl.backends.amdgpu import kfd
from accelctl.memory.va import GoodFit
from tests.fake import FakeMachine
from tests.fakekit import UNPROVEN, Processes
from tests.tablekernel import acquire, cycle, life, release

NVIDIA = ["525.147.05", "535.288.01", "550.163.01", "580.142", "595.45.04"]
MACHINES: dict[str, Callable[[], FakeMachine]] = {
    **{name: lambda name=name: FakeMachine(name) for name in UNPROVEN},  # type: ignore[misc]
    **{f"nvidia {one}": lambda one=one: FakeMachine("nvidia", release=one) for one in NVIDIA[:-1]},  # type: ignore[misc]
    "i915 integrated": lambda: FakeMachine("i915", local_memory=False),
    "xe integrated": lambda: FakeMachine("xe", local_memory=False),
    "kfd small BAR": lambda: FakeMachine("kfd", large_bar=False),
}


class Place:
    """A machine with one driver, its chip, and the address spaces that were asked for."""

    def __init__(self, name: str, machine: FakeMachine, peer: str = "") -> None:
        driver = name.split(maxsplit=1)[0]
        loaded = registry.load(UNPROVEN[driver])
        assert loaded.memory is not None
        self.chip = Chip(loaded.manifest, Processes(loaded.memory, machine), None, None, "in-tree")
        self.target, self.spaces = machine.target(UNPROVEN[driver], driver), [GoodFit(0, 4096)]
        if peer:
            self.target = self.target._replace(others=(*self.target.others, peer))
        self.env = Env(machine, self._space)

    def _space(self, base: int, size: int, granule: int) -> AddressSpace:
        self.spaces.append(GoodFit(base, size, granule=granule))
        return self.spaces[-1]

    def open(self) -> Session:
        assert self.chip.memory is not None
        return self.chip.memory.open(self.target, self.env)


@pytest.mark.parametrize("name", MACHINES)
def test_the_contract_is_kept_on_the_fake(name: str) -> None:
    with MACHINES[name]() as machine:
        place = Place(name, machine)
        with closing(place.open()) as session:  # the fake keeps descriptors of its own from the first use on
            for one in session.lifecycles:
                with suppress(NotOffered):
                    cycle(one, one.sizes.granule)
        checks = check_memory(place.chip, place.target, place.env)
        assert {check.name: check.detail for check in checks if check.result == "fail"} == {}
        assert len([check for check in checks if check.result == "pass"]) > 8
        machine.new_process()


@pytest.mark.parametrize("name", MACHINES)
def test_a_cycle_leaves_the_fake_as_it_was(name: str) -> None:
    """Object by object, and nothing that only closing the file would have cleaned up."""
    with MACHINES[name]() as machine:
        place = Place(name, machine)
        session = place.open()
        for one in session.lifecycles:
            if one.unsupported or (name == "kfd small BAR" and one.name == "vram"):
                continue
            before = machine.census()
            for size in (one.sizes.granule, 3 * one.sizes.granule):
                cycle(one, size)
                assert machine.census() == before, machine.leftovers()
        assert all(space.snapshot().blocks == 0 for space in place.spaces)
        session.close()
        assert not machine.dropped
        machine.new_process()


@pytest.mark.parametrize("driver", ["amdgpu", "kfd"])
def test_a_second_device_sees_the_same_object(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kfd, "_topology", lambda: {128: 0x1000, 129: 0x1111})
    machines = {"amdgpu": ("amdgpu", "amdgpu"), "kfd": ("kfd",)}
    with FakeMachine(*machines[driver], gpus=2) as machine:
        second = "/dev/dri/renderD129"
        assert second in machine.nodes
        place = Place(driver, machine, "" if driver == "kfd" else second)
        with closing(place.open()) as session:
            before = machine.census()
            cycle(life(session, "peer_map"), 3 * 4096)
            assert machine.census() == before
        assert not machine.dropped
        machine.new_process()


@pytest.mark.parametrize(
    ("driver", "name", "code"),
    [
        ("amdgpu", "vram", errno.ENOMEM),
        ("kfd", "vram", errno.ENOMEM),
        ("nvidia", "vidmem", errno.ENOMEM),
        ("habanalabs", "device", errno.ENOMEM),
    ],
)
def test_memory_that_runs_out_leaves_nothing_behind(driver: str, name: str, code: int) -> None:
    """Two large blocks do not fit, and what the second one had is given back; no other kind of memory is taken
    silently in its place."""
    with FakeMachine(driver, vram=16 << 20) as machine:
        place = Place(driver, machine)
        with closing(place.open()) as session:
            one = acquire(life(session, name), 10 << 20)
            held = machine.census()
            with pytest.raises(OSError, match=r"(?i)memory|vram") as caught:
                acquire(life(session, name), 10 << 20)
            assert caught.value.errno == code
            assert machine.census() == held
            release(one)
            cycle(life(session, name), 10 << 20)
        assert not machine.dropped
        assert all(space.snapshot().blocks == 0 for space in place.spaces)
        machine.new_process()
