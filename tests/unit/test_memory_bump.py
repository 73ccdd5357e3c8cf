"""Address space that never comes back: what it costs, when it ends, and how it shows before (MEM-03)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.memory import CallerError
from accelctl.memory.bump import AddressWatch, Bump, Forecast, Sample, forecast
from accelctl.memory.va import GoodFit, VaExhausted, VaSpace, VaTaken

PAGE, MIB, GIB = 4096, 1 << 20, 1 << 30


def loop(space: VaSpace, watch: AddressWatch, size: int, last: int) -> int:
    """alloc, free, `last` times; how many worked."""
    for done in range(last):
        try:
            address = space.alloc(size)
        except VaExhausted:
            return done
        watch.took(address, size)
        assert space.free(address) == size
        watch.gave(size)
        watch.tick(0.5 * (done + 1))
    return last


def test_mem_03_iterations_1_to_256_succeed_and_257_fails() -> None:
    space, watch = Bump(0, 4 * GIB), AddressWatch(0, 4 * GIB)
    assert loop(space, watch, 16 * MIB, 1000) == 256
    now = space.snapshot()
    assert (now.mapped, now.blocks, now.high_water, now.lost, now.free) == (0, 0, 4 * GIB, 4 * GIB, 0)
    with pytest.raises(VaExhausted, match=r"0 bytes free in all, .* 4 GiB given back but not reused") as caught:
        space.alloc(16 * MIB)
    assert caught.value.lost == 4 * GIB
    assert caught.value.kind == "out_of_address_space"


def test_mem_03_is_named_long_before_the_end() -> None:
    space, watch = Bump(0, 4 * GIB), AddressWatch(0, 4 * GIB)
    loop(space, watch, 16 * MIB, 4)
    assert watch.climb() is None, "three rises after warm-up are too few"
    loop(space, watch, 16 * MIB, 1)
    climb = watch.climb()
    assert climb is not None
    assert (climb.per_operation, climb.held, climb.mark) == (16 * MIB, 0, 80 * MIB)
    assert climb.ahead.last_operation == 256
    assert str(climb) == (
        "device address space not reused after free: high-water mark +16 MiB per operation while bytes held return to 0"
        ", exhausted after operation 256"
    )


def test_an_allocator_that_recycles_is_not_named() -> None:
    space, watch = GoodFit(0, 4 * GIB), AddressWatch(0, 4 * GIB)
    assert loop(space, watch, 16 * MIB, 1000) == 1000
    assert watch.climb() is None


def test_a_leak_is_not_called_a_climb() -> None:
    """Addresses rise, and so does what is held: the cause is the leak."""
    space, watch = GoodFit(0, 4 * GIB), AddressWatch(0, 4 * GIB)
    for operation in range(100):
        watch.took(space.alloc(16 * MIB), 16 * MIB)
        watch.tick(operation)
    assert watch.climb() is None


@pytest.mark.parametrize("seed", range(5))
def test_a_working_set_is_told_from_a_climb(seed: int) -> None:
    """Random sizes with up to 40 blocks held: never named for GoodFit after its growth, always for Bump."""
    for space, named in ((GoodFit(0, 64 * GIB), False), (Bump(0, 64 * GIB), True)):
        rng, watch = random.Random(seed), AddressWatch(0, 64 * GIB)
        held: list[tuple[int, int]] = []
        for operation in range(2000):
            size = rng.randint(1, 4096) * PAGE
            held.append((space.alloc(size), size))
            watch.took(*held[-1])
            if len(held) > 40:
                address, length = held.pop(rng.randrange(len(held)))
                space.free(address)
                watch.gave(length)
            watch.tick(operation)
            if not named:
                assert watch.climb() is None, operation
        assert (watch.climb() is not None) is named


def test_a_mark_that_rests_ends_the_climb() -> None:
    watch = AddressWatch(0, GIB)
    for operation in range(300):
        watch.took(min(operation, 99) * MIB, MIB)
        watch.gave(MIB)
        watch.tick()
        if operation == 50:
            assert watch.climb() is not None
    assert watch.climb() is None


def test_watch_is_bounded_and_keeps_the_rate() -> None:
    watch = AddressWatch(0x1000, 1 << 47)
    for operation in range(20_000):
        watch.took(0x1000 + operation * MIB, MIB)
        watch.gave(MIB)
        watch.tick(operation / 10)
    assert len(watch.samples) < AddressWatch.SAMPLES
    climb = watch.climb()
    assert climb is not None
    assert climb.per_operation == MIB
    assert climb.ahead.last_operation == (1 << 47) // MIB


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("align", [PAGE, 64 * 1024])
def test_forecast_is_within_5_percent(seed: int, align: int) -> None:
    """Random sizes, a 1 GiB space, seen until half of it is used: operations and seconds against the real end."""
    rng, space = random.Random(seed), Bump(0x100000, GIB)
    samples, seconds, done, said = [Sample(0, 0.0, 0)], 0.0, 0, None
    while True:
        try:
            space.free(space.alloc(rng.randint(1, 256) * PAGE, align))
        except VaExhausted:
            break
        done += 1
        seconds += rng.uniform(0.001, 0.003)
        samples.append(Sample(done, seconds, space.mark))
        if said is None and space.mark >= GIB // 2:
            said = space.forecast(samples)
            at = seconds
    assert said is not None
    assert said.seconds_left is not None
    assert said.last_operation == pytest.approx(done, rel=0.05)
    assert at + said.seconds_left == pytest.approx(seconds, rel=0.05)


def test_forecast_of_equal_sizes_is_exact_from_the_second_sample() -> None:
    samples = [Sample(1, 2.0, 16 * MIB), Sample(3, 3.0, 48 * MIB)]
    assert forecast(samples, 4 * GIB) == Forecast(16 * MIB, 32.0 * MIB, 253, (4096 - 48) / 32, 256)
    assert forecast([s._replace(seconds=0.0) for s in samples], 4 * GIB) == Forecast(16 * MIB, 0.0, 253, None, 256)


@pytest.mark.parametrize(
    "samples", [[], [Sample(1, 0.0, 5)], [Sample(1, 0.0, 5), Sample(9, 1.0, 5)], [Sample(1, 0.0, 5), Sample(1, 0.0, 9)]]
)
def test_no_growth_no_forecast(samples: list[Sample]) -> None:
    assert forecast(samples, GIB) is None


def test_samples_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(CallerError, match="order"):
        forecast([Sample(9, 0.0, 5), Sample(1, 1.0, 9)], GIB)


def test_fixed_ranges_ahead_are_stepped_over() -> None:
    space = Bump(0, 16 * PAGE)
    space.reserve(4 * PAGE, 2 * PAGE, "scanout")
    assert space.alloc(3 * PAGE) == 0
    assert space.alloc(2 * PAGE) == 6 * PAGE, "one page before the fixed range is too small and lost"
    now = space.snapshot()
    assert (now.reserved, now.mapped, now.lost, now.free, now.high_water) == (
        2 * PAGE,
        5 * PAGE,
        PAGE,
        8 * PAGE,
        8 * PAGE,
    )
    with pytest.raises(VaTaken, match="scanout"):
        space.reserve(5 * PAGE, PAGE)
    space.free(0)
    with pytest.raises(VaTaken, match="never reuses"):
        space.reserve(0, PAGE)
    space.reserve(10 * PAGE, PAGE)
    with pytest.raises(VaTaken, match=r"fixed range at 0xa000"):
        space.reserve(9 * PAGE, 2 * PAGE)
    with pytest.raises(VaExhausted) as caught:
        space.alloc(6 * PAGE)
    assert (caught.value.free, caught.value.largest_hole) == (7 * PAGE, 5 * PAGE)
    assert space.alloc(5 * PAGE) == 11 * PAGE
    space.check()


def test_wrong_calls() -> None:
    space = Bump(0, GIB)
    address = space.alloc(PAGE)
    space.free(address)
    with pytest.raises(CallerError, match="freed already"):
        space.free(address)
    with pytest.raises(CallerError):
        space.alloc(0)
    with pytest.raises(CallerError):
        space.alloc(1, 3)
    with pytest.raises(CallerError, match="outside"):
        space.reserve(GIB, PAGE)


STEP = st.tuples(st.sampled_from("arf"), st.integers(0, 63), st.integers(1, 9), st.sampled_from([1, 2, 8]))


@settings(max_examples=100, derandomize=True, database=None)
@given(st.lists(STEP, max_size=40))
def test_nothing_is_handed_out_twice(steps: list[tuple[str, int, int, int]]) -> None:
    """Against the set of all pages ever given."""
    space = Bump(0x3000, 64 * PAGE)
    ever: set[int] = set()
    live: list[int] = []
    for what, page, pages, align in steps:
        address, fixed = 0, 0x3000 + page * PAGE
        try:
            if what == "a":
                address = space.alloc(pages * PAGE, align * PAGE)
                assert address % (align * PAGE) == 0
            elif what == "r" and page + pages <= 64:
                space.reserve(fixed, pages * PAGE)
                address = fixed
            elif live:
                space.free(live.pop(page % len(live)))
        except (VaExhausted, VaTaken):
            pass
        space.check()
        if address:
            now = set(range(address // PAGE, address // PAGE + pages))
            assert not now & ever
            assert 3 <= min(now) <= max(now) < 67
            ever |= now
            live.append(address)
    now_ = space.snapshot()
    assert now_.reserved + now_.mapped + now_.free + now_.lost == now_.size
