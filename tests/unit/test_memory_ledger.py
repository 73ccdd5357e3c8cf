"""The ownership ledger: references as the kernel counts them (MEM-01, MEM-04), and books that stay small."""

import gc
import random
import tracemalloc

import pytest

from accelctl.memory import CallerError
from accelctl.memory.ledger import CLOSED, MISTAKES, Ledger
from accelctl.memory.records import Gate, Key, StageCount

MIB = 1 << 20
FILE = "card0#3"


def handle(number: int, domain: str = FILE) -> Key:
    return Key(domain, "handle", number)


def cpu_map(number: int) -> Key:
    return Key("process", "cpu_map", number)


def va(number: int = 0x10_0000_0000) -> Key:
    return Key(FILE, "reservation", number)


def imported_twice() -> Ledger:
    book = Ledger()
    first = book.bring_in(handle(5), stage="import", chip="sim0", size=MIB)
    assert book.bring_in(handle(5), stage="import", chip="sim0", size=MIB) is first
    return book


def test_mem_01_run_1_the_second_close_is_the_callers_error() -> None:
    book = imported_twice()
    assert book.release(handle(5)).gone
    outcome = book.release(handle(5))
    assert not outcome.gone
    balance = book.balance()
    assert book.live(FILE, "handle") == frozenset()
    assert balance.outstanding == ()
    assert [(m.what, m.key) for m in balance.mistakes] == [("double", handle(5))]
    assert balance.mistakes[0].text == "second release of handle 5 of card0#3, closed by operation 3"
    assert outcome.mistake == balance.mistakes[0]
    assert not balance.clean


def test_mem_01_run_2_one_close_is_enough() -> None:
    book = imported_twice()
    book.release(handle(5))
    assert book.balance().clean
    assert book.live(FILE, "handle") == frozenset()


def test_mem_01_run_3_one_handle_leaked_not_two() -> None:
    balance = imported_twice().balance()
    assert [(h.key, h.bytes, h.stage) for h in balance.outstanding] == [(handle(5), MIB, "import")]
    assert balance.mistake_count == 0
    assert not balance.clean


class Rocm:
    """The steps of MEM-04, and used memory over the baseline after each, in MiB."""

    def __init__(self) -> None:
        self.book = Ledger()
        self.used: list[int] = []

    def do(self, *steps: str) -> list[int]:
        for step in steps:
            getattr(self, step)()
            self.book.check()
            self.used.append(self.book.held_bytes("sim0") // MIB)
        return self.used

    def reserve(self) -> None:
        self.book.hold(va(), stage="va", chip="sim0")

    def create(self) -> None:
        self.book.hold(handle(1), stage="object", chip="sim0", size=1024 * MIB)

    def map(self) -> None:
        self.book.hold(Key(FILE, "gpu_map", va().number), stage="gpu_map", chip="sim0", of=handle(1))
        self.book.pin(va(), handle(1))

    def unmap(self) -> None:
        self.book.release(Key(FILE, "gpu_map", va().number))

    def close(self) -> None:
        self.book.release(handle(1))

    def give_back(self) -> None:
        self.last = self.book.release(va())


def test_mem_04_order_1() -> None:
    run = Rocm()
    assert run.do("reserve", "create", "map", "unmap", "close") == [0, 1024, 1024, 1024, 1024]
    assert not run.book.balance().clean, "too early to judge: the range is open"
    assert run.do("give_back")[-1] == 0
    assert run.last.returned == 1024 * MIB
    assert run.book.balance().clean


def test_mem_04_order_2() -> None:
    run = Rocm()
    used = run.do("reserve", "create", "map", "close", "unmap", "give_back")
    assert used == [0, 1024, 1024, 1024, 1024, 0]
    assert run.book.balance().clean


def test_mem_04_order_3_names_the_reservation() -> None:
    run = Rocm()
    run.do("reserve", "create", "map", "unmap", "close")
    (left,) = run.book.balance().outstanding
    assert (left.key, left.bytes, left.stage) == (va(), 1024 * MIB, "va")
    assert left.why == (
        "1 GiB held by reservation 0x1000000000 of card0#3 is still open, the object has no handle any more"
    )
    assert run.book.balance().bytes == {"sim0": 1024 * MIB}


def test_a_mapping_keeps_memory_after_the_handle() -> None:
    """drm-gem: every VMA takes a reference on the object."""
    book = Ledger()
    book.hold(handle(1), stage="object", chip="sim0", size=MIB)
    book.hold(cpu_map(0x7F00_0000_0000), stage="cpu_map", chip="sim0", of=handle(1))
    assert book.release(handle(1)).returned == 0
    assert [h.why for h in book.outstanding()] == [
        "1 MiB held by cpu_map 0x7f0000000000 of process is still open, the object has no handle any more"
    ]
    assert book.release(cpu_map(0x7F00_0000_0000)).returned == MIB
    assert book.balance().clean


def test_closing_the_file_drops_its_handles_but_not_what_lives_elsewhere() -> None:
    book = Ledger()
    for number in (1, 2):
        book.hold(handle(number), stage="object", chip="sim0", size=MIB)
    book.hold(Key("process", "dmabuf", 20), stage="export", chip="sim0", of=handle(2))
    left = book.close(FILE)
    assert [h.key for h in left] == [handle(1), handle(2)]
    assert book.held_bytes("sim0") == MIB
    assert [h.key for h in book.outstanding()] == [Key("process", "dmabuf", 20)]
    book.release(Key("process", "dmabuf", 20))
    assert book.balance().clean
    assert book.stages()["object"] == StageCount(0, 2, 2, 2)
    assert book.close(FILE) == ()


def test_one_object_mapped_on_two_devices_counts_once_at_home() -> None:
    book = Ledger()
    book.hold(handle(1), stage="object", chip="sim0", size=8 * MIB)
    book.bring_in(handle(9, "card1#4"), stage="import", chip="sim1", of=handle(1))
    book.hold(Key("card1#4", "gpu_map", 0x1000), stage="peer_map", chip="sim1", of=handle(9, "card1#4"))
    assert (book.held_bytes("sim0"), book.held_bytes("sim1")) == (8 * MIB, 0)
    assert set(book.stages("sim1")) == {"import", "peer_map"}
    assert sum(h.bytes for h in book.outstanding()) == 8 * MIB
    book.release(handle(1))
    assert [(h.chip, h.bytes) for h in book.outstanding()] == [("sim1", 8 * MIB), ("sim1", 0)]
    assert "no handle" not in book.outstanding()[0].why, "the second device has one"
    book.release(handle(9, "card1#4"))
    assert book.held_bytes("sim0") == 8 * MIB
    assert book.release(Key("card1#4", "gpu_map", 0x1000)).returned == 8 * MIB
    assert book.balance().clean


def test_host_pages_are_host_memory() -> None:
    book = Ledger()
    pages = Key("process", "host_pages", 0x7F00_0000)
    book.hold(pages, stage="host_map", chip="sim0", size=MIB, host=True)
    assert (book.held_bytes("host"), book.held_bytes("sim0")) == (MIB, 0)
    assert book.balance().bytes == {"host": MIB}
    assert book.release(pages).returned == MIB
    assert book.balance().clean


def test_borrowed_is_neither_leak_nor_ours_to_free() -> None:
    book = Ledger()
    fence = Key("process", "dmabuf", 7)
    book.hold(fence, stage="import", chip="sim0", owner="borrowed")
    assert book.balance().clean
    assert book.release(fence).mistake is not None
    assert book.balance().mistakes[0].what == "foreign"
    entry = book.get(fence)
    assert entry is not None
    assert entry.ownership == "borrowed"
    book.forget(fence)
    assert book.get(fence) is None
    book.hold(handle(1), stage="object", chip="sim0")
    with pytest.raises(CallerError, match="ours"):
        book.forget(handle(1))


def test_shared_goes_with_the_last_reference() -> None:
    book = Ledger()
    entry = book.hold(handle(1), stage="object", chip="sim0", size=MIB)
    assert entry.ownership == "ours"
    assert (book.share(handle(1)), book.share(handle(1))) == (2, 3)
    assert entry.ownership == "shared(3)"
    assert [book.release(handle(1)).gone for _ in range(3)] == [False, False, True]
    assert book.balance().clean


def test_a_release_waits_for_every_queue() -> None:
    book = Ledger()
    book.hold(handle(1), stage="object", chip="sim0", size=MIB)
    book.gate(handle(1), "compute", 7)
    book.gate(handle(1), "copy", 3)
    outcome = book.release(handle(1))
    assert (outcome.gone, set(outcome.waits)) == (False, {Gate("compute", 7), Gate("copy", 3)})
    assert book.outstanding()[0].why == "handle 1 of card0#3 waits for compute to pass 7"
    again = book.release(handle(1)).mistake
    assert again is not None
    assert again.text == "second release of handle 1 of card0#3, which waits for its queue"
    assert book.passed("compute", 6) == ()
    assert book.passed("compute", 9) == ()
    assert book.held_bytes("sim0") == MIB
    assert book.outstanding()[0].why == "handle 1 of card0#3 waits for copy to pass 3"
    assert book.passed("copy", 3) == (handle(1),)
    assert book.held_bytes("sim0") == 0
    book.hold(handle(1), stage="object", chip="sim0")
    book.gate(handle(1), "copy", 3)
    assert book.release(handle(1)).gone, "passed already"


def test_an_import_calls_off_a_close_that_waits() -> None:
    """The same handle comes back; the late close would take it away from who imported it now."""
    book = Ledger()
    book.bring_in(handle(5), stage="import", chip="sim0", size=MIB)
    book.gate(handle(5), "copy", 1)
    book.release(handle(5))
    book.bring_in(handle(5), stage="import", chip="sim0")
    assert book.passed("copy", 1) == ()
    assert book.live(FILE, "handle") == {5}
    assert book.release(handle(5)).gone


def test_a_file_closed_while_a_release_waits() -> None:
    book = Ledger()
    book.hold(handle(5), stage="object", chip="sim0", size=MIB)
    book.gate(handle(5), "copy", 1)
    book.release(handle(5))
    book.close(FILE)
    book.hold(handle(5), stage="object", chip="sim0", size=MIB)
    assert book.passed("copy", 1) == (), "the new object of that number is another one"
    assert book.live(FILE, "handle") == {5}


def test_mistakes_are_told_apart() -> None:
    book = Ledger()
    book.hold(handle(5), stage="object", chip="sim0", size=MIB)
    book.release(handle(5, "card1#4"))
    book.release(handle(6))
    book.hold(handle(5), stage="object", chip="sim0", size=MIB)
    assert [(m.what, m.text) for m in book.balance().mistakes] == [
        ("foreign", "release of handle 5 of card1#4: that number is held in card0#3"),
        ("unknown", "release of handle 6 of card0#3, which was never held"),
        ("taken", "handle 5 of card0#3 was given out again while it is held (stage object)"),
    ]
    assert book.held_bytes("sim0") == MIB, "the book followed none of them"
    book.check()


def test_the_newest_closed_keys_are_remembered() -> None:
    """A number that was used again counts from its last close, and older ones make room."""
    book = Ledger()
    for number in (0, *range(1, CLOSED), 0, CLOSED):
        book.hold(handle(number), stage="object", chip="sim0")
        book.release(handle(number))
    book.release(handle(0))
    book.release(handle(1))
    assert [m.what for m in book.balance().mistakes] == ["double", "unknown"]


def test_references_to_nothing_are_refused() -> None:
    book = Ledger()
    for call in (
        lambda: book.hold(cpu_map(1), stage="cpu_map", chip="sim0", of=handle(1)),
        lambda: book.share(handle(1)),
        lambda: book.gate(handle(1), "copy", 1),
        lambda: book.pin(va(), handle(1)),
        lambda: book.forget(handle(1)),
    ):
        with pytest.raises(CallerError, match="not held"):
            call()
    book.hold(handle(1), stage="object", chip="sim0", size=1)
    with pytest.raises(CallerError, match="not both"):
        book.hold(cpu_map(1), stage="cpu_map", chip="sim0", of=handle(1), size=1)
    book.check()


def test_counts_per_stage() -> None:
    book = Ledger()
    for number in range(3):
        book.hold(handle(number), stage="object", chip="sim0", size=MIB)
        book.hold(cpu_map(number), stage="cpu_map", chip="sim0", of=handle(number))
        if number != 1:
            book.release(cpu_map(number))
        book.release(handle(number))
    assert book.stages() == {"object": StageCount(0, 3, 3, 1), "cpu_map": StageCount(1, 3, 2, 2)}
    assert [(h.key, h.stage) for h in book.outstanding()] == [(cpu_map(1), "cpu_map")]


class Naive:
    """The model: every reference as a pair, everything computed by looking at all of them."""

    def __init__(self) -> None:
        self.refs: dict[Key, list[int]] = {}
        """Entry -> its own storage first, then what it pins."""
        self.size: dict[int, int] = {}

    def bytes(self) -> int:
        return sum(self.size[number] for number in {n for numbers in self.refs.values() for n in numbers})

    def close(self, domain: str) -> None:
        self.refs = {key: numbers for key, numbers in self.refs.items() if key.domain != domain}


def act(rng: random.Random, book: Ledger, model: Naive, step: int) -> bool:
    """One random operation on both; whether it was a mistake."""
    domain = rng.choice((FILE, "card1#4", "process"))
    key = Key(domain, rng.choice(("handle", "cpu_map")), rng.randint(1, 12))
    other = rng.choice(sorted(model.refs)) if model.refs else None
    action = rng.choice(("new", "refer", "refer", "pin", "release", "release", "release", "close"))
    if action == "new" and key not in model.refs:
        model.size[step], model.refs[key] = rng.randint(1, 9), [step]
        book.hold(key, stage=key.kind, chip="sim0", size=model.size[step])
    elif action == "refer" and other and key not in model.refs:
        model.refs[key] = model.refs[other][:1]
        book.hold(key, stage=key.kind, chip="sim0", of=other)
    elif action == "pin" and other and key in model.refs:
        model.refs[key] += model.refs[other][:1]
        book.pin(key, other)
    elif action == "release":
        known = model.refs.pop(key, None) is not None
        assert book.release(key).gone is known
        return not known
    elif action == "close" and rng.random() < 0.05:
        book.close(domain)
        model.close(domain)
    return False


@pytest.mark.parametrize("seed", range(4))
def test_random_references_against_a_model(seed: int) -> None:
    rng, book, model = random.Random(seed), Ledger(), Naive()
    wrong = 0
    for step in range(1500):
        wrong += act(rng, book, model, step)
        assert book.held_bytes("sim0") == model.bytes()
        assert book.mistake_count == wrong
        if step % 20 == 0:
            book.check()
            assert {h.key for h in book.outstanding()} == set(model.refs)
            assert sum(h.bytes for h in book.outstanding()) == model.bytes()


def churn(book: Ledger, cycles: int, start: int) -> None:
    """Four operations each, a wrong one now and then; numbers are new every time."""
    for number in range(start, start + cycles):
        book.hold(handle(number), stage="object", chip="sim0", size=MIB)
        book.hold(cpu_map(number), stage="cpu_map", chip="sim0", of=handle(number))
        if number % 8 == 0:
            book.gate(handle(number), "copy", number)
            book.release(handle(number))
            book.passed("copy", number)
            book.release(handle(number))
        else:
            book.release(handle(number))
        book.release(cpu_map(number))


def test_a_million_operations_do_not_grow_the_book() -> None:
    """200,000 operations here: growth must be none, so a million (limit: 5 MiB) grow it as little."""
    book = Ledger()
    churn(book, 2000, 0)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        churn(book, 22_000, 2000)
        gc.collect()
        half = tracemalloc.get_traced_memory()[0]
        churn(book, 22_000, 24_000)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 1 * MIB
    assert after - half < 64 * 1024, "none of it per operation"
    assert book.mistake_count == 46_000 // 8
    assert len(book.balance().mistakes) == MISTAKES
    assert len(book._closed) == CLOSED
    assert book.outstanding() == ()
    book.check()


def test_the_fast_lane_counts_like_everything_else() -> None:
    book = Ledger()
    lane = book.account("card0#3", "vgem", "object", "handle")
    lane.take(1, 4096)
    lane.take(2, 8192)
    lane.give(1)
    assert book.live("card0#3", "handle") == {2}
    assert book.held_bytes("vgem") == 8192
    assert book.stages()["object"] == StageCount(1, 2, 1, 2)
    balance = book.balance()
    assert not balance.clean
    assert [h.why for h in balance.outstanding] == ["8 KiB held by handle 2 of card0#3 is still open"]
    lane.take(2)
    lane.give(9)
    assert [(m.what, m.key.number) for m in book.balance().mistakes] == [("taken", 2), ("double", 9)]
    assert [h.key.number for h in book.close("card0#3")] == [2]
    assert not book.balance().outstanding
