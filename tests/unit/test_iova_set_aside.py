"""Addresses that we choose (VFIO, iommufd): a mapping that was not undone costs its address, and not the run."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from accelctl.abi import registry
from accelctl.abi.lifecycle import Block, Env, Lifecycle, Session
from accelctl.stress.spaces import Spaces
from tests.fake import FakeMachine

PAGE = 4096
pytestmark = pytest.mark.parametrize(
    ("chip", "name", "book", "one"), [("vfio", "map", "dma-mappings", 1), ("iommufd", "map-fixed", "iova-bytes", PAGE)]
)


@contextmanager
def opened(chip: str, policy: str = "recycle") -> Iterator[tuple[FakeMachine, Session]]:
    memory = registry.load(chip).memory
    assert memory is not None
    with (
        FakeMachine(chip) as machine,
        closing(memory.open(machine.target(chip), Env(machine, Spaces(policy)))) as session,
    ):
        yield machine, session


def outcome(session: Session, name: str) -> int:
    """One whole life with its rollback: 0, or the errno with which a stage failed."""
    life: Lifecycle = next(life for life in session.lifecycles if life.name == name)
    block = Block(PAGE)
    try:
        for stage in life.stages:
            stage.acquire(block)
            block.held.append(stage)
    except OSError as error:
        return error.errno or -1
    finally:
        for stage in reversed(block.held):
            if stage.release is not None:
                stage.release(block)
    return 0


def test_each_lost_mapping_refuses_one_block(chip: str, name: str, book: str, one: int) -> None:
    """Every tenth unmap is acknowledged and not made; the kernel's book has them all at the end."""
    with opened(chip) as (machine, session):
        machine.swallow("UNMAP_DMA" if chip == "vfio" else "IOAS_UNMAP", every=10)
        assert Counter(outcome(session, name) for _ in range(43)) == {0: 40, errno.EEXIST: 3}
        machine.knobs.clear()
        assert session.census()[book] == 4 * one


def test_addresses_that_are_never_reused_meet_nothing(chip: str, name: str, book: str, one: int) -> None:
    with opened(chip, "bump") as (machine, session):
        machine.swallow("UNMAP_DMA" if chip == "vfio" else "IOAS_UNMAP", every=10)
        assert Counter(outcome(session, name) for _ in range(40)) == {0: 40}
        machine.knobs.clear()
        assert session.census()[book] == 4 * one


def test_a_mapping_whose_answer_was_lost_is_the_same(chip: str, name: str, book: str, one: int) -> None:
    """The map call was made and reported as failed: the address is not ours to hand out again."""
    with opened(chip) as (machine, session):
        assert outcome(session, name) == 0
        machine.lose_reply("MAP_DMA" if chip == "vfio" else "IOAS_MAP")
        assert [outcome(session, name) for _ in range(4)] == [errno.EFAULT, errno.EEXIST, 0, 0]
        assert session.census()[book] == one
