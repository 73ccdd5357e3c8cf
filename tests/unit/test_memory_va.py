"""The recycling address allocator against a model that owns every page by name, and its cost."""

import random
import sys
from bisect import bisect_right
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from accelctl.exits import ExitCode
from accelctl.memory import CallerError, in_bytes, va
from accelctl.memory.va import GoodFit, Ordered, VaExhausted, VaTaken

PAGE, MIB = 4096, 1 << 20
PAGES = 128
BASES = (0, 0x5000, 0x7F_0000_3000)


class Model:
    """One owner per page, found by looking at all of them."""

    def __init__(self, base: int) -> None:
        self.first = base // PAGE
        self.owner = [0] * PAGES

    def offers(self, align: int) -> dict[int, int]:
        """Aligned start -> free pages from there, for every hole."""
        found, page = {}, 0
        while page < PAGES:
            end = page
            while end < PAGES and not self.owner[end]:
                end += 1
            start = page + -(self.first + page) % align
            if start < end:
                found[start] = end - start
            page = max(end, page + 1)
        return found

    def put(self, start: int, pages: int, pattern: int) -> None:
        assert start >= 0
        assert self.owner[start : start + pages] == [0] * pages, "handed out twice, or outside"
        self.owner[start : start + pages] = [pattern] * pages

    def take(self, start: int, pages: int, pattern: int) -> None:
        assert self.owner[start : start + pages] == [pattern] * pages, "someone wrote over it"
        self.owner[start : start + pages] = [0] * pages


class Machine(RuleBasedStateMachine):
    """Every operation is done by both; refusals must be true, and the hole taken the smallest that serves."""

    base = 0

    def __init__(self) -> None:
        super().__init__()
        self.real, self.model = GoodFit(self.base, PAGES * PAGE), Model(self.base)
        self.live: dict[int, tuple[int, int]] = {}
        self.count = 0

    def own(self, address: int, size: int) -> None:
        self.count += 1
        start, pages = (address - self.base) // PAGE, -(-size // PAGE)
        self.model.put(start, pages, self.count)
        self.live[address] = (pages, self.count)

    @rule(size=st.integers(1, 24 * PAGE), align=st.sampled_from([None, 1, PAGE, 4 * PAGE, 16 * PAGE, 64 * PAGE]))
    def alloc(self, size: int, align: int | None) -> None:
        step = max(align or PAGE, PAGE)
        fits = {s: n for s, n in self.model.offers(step // PAGE).items() if n * PAGE >= size}
        if not fits:
            with pytest.raises(VaExhausted) as caught:
                self.real.alloc(size, align)
            assert caught.value.free == self.model.owner.count(0) * PAGE
            assert caught.value.largest_hole == max(self.model.offers(step // PAGE).values(), default=0) * PAGE
            return
        address = self.real.alloc(size, align)
        assert address % step == 0
        assert fits[(address - self.base) // PAGE] == min(fits.values())
        self.own(address, size)

    @rule(page=st.integers(0, PAGES - 1), size=st.integers(1, 20 * PAGE))
    def reserve(self, page: int, size: int) -> None:
        pages, address = -(-size // PAGE), self.base + page * PAGE
        if page + pages > PAGES:
            with pytest.raises(CallerError, match="outside"):
                self.real.reserve(address, size)
            return
        holders = set(self.model.owner[page : page + pages]) - {0}
        if holders:
            with pytest.raises(VaTaken) as caught:
                self.real.reserve(address, size)
            assert caught.value.holder is not None
            assert self.live[caught.value.holder.va][1] in holders
            return
        self.real.reserve(address, size)
        self.own(address, size)

    @rule(choice=st.randoms(use_true_random=False))
    def free(self, choice: random.Random) -> None:
        if self.live:
            self.give(choice.choice(sorted(self.live)))

    def give(self, address: int) -> None:
        pages, pattern = self.live.pop(address)
        assert self.real.free(address) == pages * PAGE
        self.model.take((address - self.base) // PAGE, pages, pattern)

    @rule(address=st.integers(-2 * PAGE, (PAGES + 2) * PAGE))
    def free_wrong(self, address: int) -> None:
        if self.base + address not in self.live:
            with pytest.raises(CallerError):
                self.real.free(self.base + address)

    @invariant()
    def same(self) -> None:
        self.real.check()
        holes = self.model.offers(1)
        assert list(self.real.holes()) == [(self.base + s * PAGE, n * PAGE) for s, n in holes.items()]
        now = self.real.snapshot()
        assert now.free == sum(holes.values()) * PAGE
        assert (now.holes, now.blocks) == (len(holes), len(self.live))
        assert now.reserved + now.mapped + now.free == now.size

    def teardown(self) -> None:
        for address in list(self.live):
            self.give(address)
        self.real.check()
        assert list(self.real.holes()) == [(self.base, PAGES * PAGE)]
        assert self.real.snapshot().fragmentation == 0


@pytest.mark.parametrize("base", BASES)
def test_against_a_model_that_owns_pages(base: int) -> None:
    machine = type("At", (Machine,), {"base": base})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=20, stateful_step_count=40, derandomize=True, database=None)
    )


@pytest.mark.parametrize("seed", range(3))
def test_long_run_in_a_57_bit_space(seed: int) -> None:
    """No overlap among thousands of blocks of all sizes; everything is one hole in the end."""
    rng, space = random.Random(seed), GoodFit(1 << 20, (1 << 57) - (1 << 20))
    starts: list[int] = []
    size_of: dict[int, int] = {}
    for _ in range(6000):
        if starts and rng.random() < 0.45:
            address = starts.pop(rng.randrange(len(starts)))
            assert space.free(address) == size_of.pop(address)
            continue
        size = PAGE * rng.choice((1, 3, 16, 512, rng.randint(1, 1 << rng.randint(1, 30))))
        align = PAGE << rng.choice((0, 0, 4, 9))
        address = space.alloc(size, align)
        at = bisect_right(starts, address)
        assert address % align == 0
        assert at == 0 or starts[at - 1] + size_of[starts[at - 1]] <= address
        assert at == len(starts) or address + size <= starts[at]
        starts.insert(at, address)
        size_of[address] = size
    space.check()
    assert space.snapshot().mapped == sum(size_of.values())
    for address in rng.sample(starts, len(starts)):
        space.free(address)
    space.check()
    assert list(space.holes()) == [(space.base, space.size)]


@settings(max_examples=60, derandomize=True, database=None)
@given(st.integers(1, 1 << 45), st.data())
def test_ordered_is_a_sorted_set(universe: int, data: st.DataObject) -> None:
    number = st.integers(0, universe - 1) | st.integers(0, min(universe, 200) - 1)
    members = data.draw(st.sets(number, max_size=40))
    tree = Ordered(universe)
    for member in members:
        tree.add(member)
        tree.add(member)
    for member in data.draw(st.sets(st.sampled_from(sorted(members)))) if members else ():
        tree.remove(member)
        members.discard(member)
    assert list(tree) == sorted(members)
    for probe in data.draw(st.lists(number, max_size=20)):
        assert tree.ceil(probe) == min((m for m in members if m >= probe), default=None)
        assert tree.floor(probe) == max((m for m in members if m <= probe), default=None)
    if not members:
        assert not any(tree._levels), "empty words are kept"


def lines_run(module: str, call: Callable[[], Any]) -> int:
    """Lines of that file that were executed: counts what the code does, whatever it says of itself."""
    count = 0

    def local(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return local

    def entered(frame: FrameType, event: str, arg: Any) -> Any:
        return local if frame.f_code.co_filename == module else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


class FirstFit:
    """The naive allocator, as a control: looks at the holes one by one."""

    def __init__(self, holes: list[tuple[int, int]]) -> None:
        self.holes = holes

    def alloc(self, size: int) -> int | None:
        for start, length in self.holes:
            if length >= size:
                return start
        return None


def full_of_holes(count: int) -> GoodFit:
    """So many holes of many sizes, none next to another."""
    rng, space = random.Random(count), GoodFit(0, 1 << 47)
    blocks = [space.alloc(rng.randint(1, 500) * PAGE) for _ in range(2 * count)]
    for address in blocks[::2]:
        space.free(address)
    space.alloc(PAGE, 16 * PAGE)  # a second index: kept by every operation from here on
    return space


def worst(space: GoodFit) -> int:
    """Most lines that one of many operations took."""
    rng, most = random.Random(1), 0
    for _ in range(150):
        size, align = rng.randint(1, 600) * PAGE, rng.choice((PAGE, 16 * PAGE))
        got: list[int] = []
        most = max(most, lines_run(va.__file__, lambda s=size, a=align, g=got: g.append(space.alloc(s, a))))  # type: ignore[misc]
        most = max(most, lines_run(va.__file__, lambda g=got: space.free(g[0])))  # type: ignore[misc]
        most = max(most, lines_run(va.__file__, lambda g=got, s=size: space.reserve(g[0], s)))  # type: ignore[misc]
        space.free(got[0])
    return most


def test_cost_grows_like_the_logarithm() -> None:
    """Lines executed, not time: 256 times as many holes cost at most what 8 doublings may."""
    few, more, many = (worst(full_of_holes(count)) for count in (32, 512, 8192))
    assert few > 50, "the counter counts"
    assert more <= few * 9 / 5, "log 512 / log 32"
    assert many <= few * 13 / 5, "log 8192 / log 32"
    naive = [
        lines_run(__file__, lambda n=n: FirstFit([(i, 1) for i in range(n)]).alloc(2))  # type: ignore[misc]
        for n in (32, 8192)
    ]
    assert naive[1] > 100 * naive[0], "the control would fail this test"


def test_equal_holes_do_not_pile_up() -> None:
    """The usual case, one size only: one key in the order of sizes however many holes there are."""
    space = GoodFit(0, 1 << 40)
    blocks = [space.alloc(PAGE) for _ in range(4000)]
    for address in blocks[::2]:
        space.free(address)
    assert space.snapshot().holes == 2001
    assert len(list(space._fits[1]._sizes)) == 2


def test_snapshot_and_exhaustion_say_what_is_left() -> None:
    space = GoodFit(0x10000, 16 * PAGE)
    blocks = [space.alloc(2 * PAGE, owner=f"buffer {i}") for i in range(8)]
    for address in blocks[::2]:
        space.free(address)
    now = space.snapshot()
    assert (now.free, now.largest_hole, now.holes, now.mapped) == (8 * PAGE, 2 * PAGE, 4, 8 * PAGE)
    assert (now.fragmentation, now.high_water, now.peak, now.lost) == (0.75, 16 * PAGE, 16 * PAGE, 0)
    with pytest.raises(VaExhausted) as caught:
        space.alloc(3 * PAGE)
    error = caught.value
    assert (error.wanted, error.free, error.largest_hole) == (3 * PAGE, 8 * PAGE, 2 * PAGE)
    assert error.message == (
        "no device address range of 12 KiB (aligned to 4 KiB) is free: 32 KiB free in all, largest hole 8 KiB"
    )
    assert error.kind == "out_of_address_space"
    assert error.exit_code == ExitCode.FINDINGS
    space.check()


def test_a_hole_that_fits_only_when_aligned_is_found() -> None:
    """TLSF asks for size + alignment - page and would refuse this."""
    space = GoodFit(0x3000, 33 * PAGE)
    assert space.alloc(16 * PAGE, 16 * PAGE) == 0x10000
    with pytest.raises(VaExhausted):
        space.alloc(16 * PAGE, 32 * PAGE)
    assert space.snapshot().largest_hole == 13 * PAGE


def test_a_freed_address_is_used_again() -> None:
    """MEM-03's loop, 2,000 times the space: the mark never moves."""
    space = GoodFit(0, 4 << 30)
    for _ in range(8000):
        space.free(space.alloc(16 * MIB, 2 * MIB))
    assert space.snapshot().high_water == 16 * MIB
    assert space.snapshot().peak == 16 * MIB


def test_fixed_ranges_name_their_holder() -> None:
    space = GoodFit(0, 1 * MIB)
    space.reserve(0x8000, 0x4000, "scanout")
    with pytest.raises(VaTaken, match=r"0x7000\.\.0x9000 is held: scanout at 0x8000\.\.0xc000") as caught:
        space.reserve(0x7000, 0x2000)
    assert caught.value.exit_code == ExitCode.FINDINGS
    with pytest.raises(VaTaken, match="scanout"):
        space.reserve(0xB000, 0x1000)
    assert space.snapshot().reserved == 0x4000
    assert space.snapshot().high_water == 0, "a fixed range is no growth"
    held = space.block(0xBFFF)
    assert held is not None
    assert held.owner == "scanout"
    assert space.block(0xC000) is None
    assert space.free(0x8000) == 0x4000
    assert space.snapshot().reserved == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: s.free(0x4000), "freed already, or never handed out"),
        (lambda s: s.free(0x1000), r"inside block at 0x0\.\.0x2000, not its start"),
        (lambda s: s.free(0x10), "inside block"),
        (lambda s: s.free(-PAGE), "not held"),
        (lambda s: s.free(1 << 60), "not held"),
        (lambda s: s.alloc(0), "0 bytes"),
        (lambda s: s.alloc(-1), "-1 bytes"),
        (lambda s: s.alloc(1, 3 * PAGE), "power of two"),
        (lambda s: s.alloc(1, 0), "power of two"),
        (lambda s: s.reserve(0x1800, 1), "multiple"),
        (lambda s: s.reserve(0xFF000, 0x2000), "outside"),
        (lambda s: s.reserve(0x4000, 0), "0 bytes"),
    ],
)
def test_a_wrong_call_changes_nothing(call: Callable[[GoodFit], Any], says: str) -> None:
    space = GoodFit(0, 1 * MIB)
    space.alloc(2 * PAGE)
    before = space.snapshot()
    with pytest.raises(CallerError, match=says):
        call(space)
    space.check()
    assert space.snapshot() == before


def test_double_free_is_refused() -> None:
    space = GoodFit(0, 1 * MIB)
    address = space.alloc(PAGE)
    space.free(address)
    with pytest.raises(CallerError, match="freed already"):
        space.free(address)
    assert issubclass(CallerError, ValueError)


@pytest.mark.parametrize(("base", "size", "granule"), [(1, PAGE, PAGE), (0, 0, PAGE), (0, PAGE + 1, PAGE), (0, 9, 3)])
def test_a_space_is_whole_pages(base: int, size: int, granule: int) -> None:
    with pytest.raises(CallerError):
        GoodFit(base, size, granule=granule)


def test_check_finds_a_broken_book() -> None:
    """The invariants are not decoration: each kind of damage is seen."""

    def lose_hole(space: GoodFit) -> None:
        del space._holes[4]

    def grow_hole(space: GoodFit) -> None:
        space._holes[4] += 1

    def forget_block(space: GoodFit) -> None:
        del space._blocks[2]

    def spoil_index(space: GoodFit) -> None:
        space._fits[1].remove(4, 12)

    def miscount(space: GoodFit) -> None:
        space._free += 1

    for damage in (lose_hole, grow_hole, forget_block, spoil_index, miscount):
        space = GoodFit(0, 16 * PAGE)
        space.alloc(2 * PAGE)
        space.alloc(2 * PAGE)
        space.check()
        damage(space)
        with pytest.raises(AssertionError):
            space.check()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (4096, "4 KiB"), (4097, "4097 bytes"), (3 << 30, "3 GiB"), (5 << 40, "5 TiB")]
)
def test_sizes_are_exact(count: int, text: str) -> None:
    assert in_bytes(count) == text
