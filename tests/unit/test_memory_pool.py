"""The pools: what is in use, what is only cached, and chips that never mix."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.memory import CallerError
from accelctl.memory.pool import ClassStats, Pool, PoolBlock, Pools, size_class

PAGE, KIB, MIB = 4096, 1024, 1 << 20


class Driver:
    """Hands out numbers, keeps what is alive, and can refuse."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.live: dict[int, int] = {}
        self.limit, self.next, self.stuck = limit, 0, False

    def allocate(self, size: int) -> int:
        if sum(self.live.values()) + size > self.limit:
            raise MemoryError("ENOSPC")
        self.next += 1
        self.live[self.next] = size
        return self.next

    def give_back(self, handle: int, size: int) -> None:
        if self.stuck:
            raise OSError("EBUSY")
        assert self.live.pop(handle) == size

    def pool(self, chip: str = "sim0") -> Pool[int]:
        return Pool(chip, self.allocate, self.give_back)


def test_four_classes_per_doubling() -> None:
    pages = sorted({size_class(n * PAGE) // PAGE for n in range(1, 129)})
    assert pages == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128]
    assert size_class(1) == PAGE
    assert size_class(64 * MIB + 1) == 80 * MIB


@settings(max_examples=200, derandomize=True, database=None)
@given(st.integers(1, 1 << 40), st.integers(0, 1 << 24))
def test_a_class_holds_its_sizes_and_wastes_little(size: int, more: int) -> None:
    length = size_class(size)
    assert length >= size
    assert length % PAGE == 0
    assert size_class(length) == length
    assert size_class(size + more) >= length
    assert length - size < PAGE + 0.2 * length


def test_hits_misses_and_what_is_held() -> None:
    driver = Driver()
    pool = driver.pool()
    first, second = pool.acquire(60 * KIB), pool.acquire(36 * KIB)
    assert (first.size, second.size) == (64 * KIB, 40 * KIB)
    pool.release(first)
    again = pool.acquire(62 * KIB)
    assert again is first
    stats = pool.stats()
    assert (stats.chip, stats.in_use, stats.cached, stats.asked) == ("sim0", 104 * KIB, 0, 98 * KIB)
    assert (stats.hits, stats.misses, stats.high_water) == (1, 2, 104 * KIB)
    assert stats.fragmentation == pytest.approx(1 - 98 / 104)
    assert stats.classes == {40 * KIB: ClassStats(0, 1, 40 * KIB, 0), 64 * KIB: ClassStats(1, 1, 64 * KIB, 0)}
    pool.release(again)
    pool.release(second)
    stats = pool.stats()
    assert (stats.in_use, stats.cached, stats.fragmentation) == (0, 104 * KIB, 0)
    assert sum(driver.live.values()) == 104 * KIB, "cached is held from the driver"
    assert pool.trim() == 104 * KIB
    assert driver.live == {}
    assert pool.stats().ops == {
        "acquire": 3,
        "release": 3,
        "trim": 1,
        "allocate": 2,
        "give_back": 2,
        "refused": 0,
        "wrong": 0,
    }
    assert pool.stats().high_water == 104 * KIB


def test_the_newest_block_is_reused_and_the_oldest_is_trimmed() -> None:
    driver = Driver()
    pool = driver.pool()
    a, b, c = (pool.acquire(MIB) for _ in range(3))
    d = pool.acquire(5 * MIB)
    for block in (b, d, a, c):
        pool.release(block)
    assert pool.acquire(MIB) is c
    assert pool.trim(MIB + 1) == 6 * MIB, "b, then d: whole blocks until enough"
    assert set(driver.live) == {a.handle, c.handle}
    assert pool.trim(0) == 0
    assert pool.trim() == MIB
    pool.check()


def test_a_refusal_of_the_driver_changes_nothing() -> None:
    driver = Driver(limit=2 * MIB)
    pool = driver.pool()
    block = pool.acquire(2 * MIB)
    with pytest.raises(MemoryError):
        pool.acquire(PAGE)
    pool.check()
    assert pool.stats().in_use == 2 * MIB
    pool.release(block)
    driver.stuck = True
    with pytest.raises(OSError, match="EBUSY"):
        pool.trim()
    pool.check()
    assert pool.stats().cached == 2 * MIB, "not returned, so still in the books"
    driver.stuck = False
    assert pool.trim() == 2 * MIB
    assert pool.stats().ops["refused"] == 2


def test_chips_do_not_mix() -> None:
    one, two = Driver(), Driver()
    pools: Pools[int] = Pools()
    pools.add(one.pool("sim0"))
    pools.add(two.pool("sim1"))
    block = pools.of("sim0").acquire(MIB)
    same_number = pools.of("sim1").acquire(MIB)
    assert block.handle == same_number.handle == 1, "equal handles of two chips"
    with pytest.raises(CallerError, match="of sim0 into the pool of sim1: pools of two chips do not mix"):
        pools.of("sim1").release(block)
    pools.release(block)
    assert pools.of("sim1").acquire(MIB) is not block, "a cached block of the other chip is no hit"
    stats = pools.stats()
    assert (stats["sim0"].cached, stats["sim1"].cached) == (MIB, 0)
    assert stats["sim1"].ops["wrong"] == 1
    with pytest.raises(CallerError, match="already"):
        pools.add(one.pool("sim0"))
    with pytest.raises(CallerError, match="sim9 has no pool"):
        pools.of("sim9")


def test_wrong_releases() -> None:
    pool = Driver().pool()
    block = pool.acquire(1)
    pool.release(block)
    with pytest.raises(CallerError, match="released already"):
        pool.release(block)
    pool.trim()
    with pytest.raises(CallerError, match="returned to the driver since"):
        pool.release(block)
    with pytest.raises(CallerError):
        pool.release(PoolBlock("sim0", 1, PAGE, 1))
    with pytest.raises(CallerError, match="0 bytes"):
        pool.acquire(0)
    with pytest.raises(CallerError, match="granule"):
        Pool("sim0", Driver().allocate, Driver().give_back, granule=3000)
    pool.check()


@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_against_the_driver(seed: int) -> None:
    """What the driver has is exactly what is in use and cached, all the time; patterns stay whole."""
    rng, driver = random.Random(seed), Driver()
    pool = driver.pool()
    out: list[PoolBlock[int]] = []
    written: Counter[int] = Counter()
    for step in range(4000):
        choice = rng.random()
        if choice < 0.5:
            block = pool.acquire(int(2 ** rng.uniform(0, 24)))
            assert written[block.handle] == 0, "given out twice"
            written[block.handle] = 1
            out.append(block)
        elif choice < 0.97 and out:
            block = out.pop(rng.randrange(len(out)))
            written[block.handle] = 0
            pool.release(block)
        elif choice >= 0.97:
            pool.trim(rng.choice((None, 1, 8 * MIB)))
        if step % 50 == 0:
            pool.check()
            stats = pool.stats()
            assert sum(driver.live.values()) == stats.in_use + stats.cached
            assert stats.in_use == sum(block.size for block in out)
    for block in out:
        pool.release(block)
    pool.trim()
    pool.check()
    assert driver.live == {}
