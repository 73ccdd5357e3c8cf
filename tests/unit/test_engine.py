"""The loop: order, rollback, held sets, patterns, and what it writes into the ledger."""

from __future__ import annotations

import errno
from functools import partial
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.abi.lifecycle import Block, Sizes
from accelctl.errors import UsageError
from accelctl.hal.devfile import open_files
from accelctl.memory.ledger import Ledger
from accelctl.stress.engine import REFUSED_IN_A_ROW, Divergence, Engine, UsedUp
from accelctl.stress.plan import MIB, Plan, Step, pattern
from tests.stresskit import Toy, ToySession, toy_session

ONE = Plan(seed=3, cycles=10, hold=1, partial=0, order="reverse", sizes="page")


def engine_on(session: ToySession, plan: Plan = ONE, ledger: Ledger | None = None) -> Engine:
    return Engine(session, session.lifecycles[0], plan, ledger=ledger)


def test_one_slot_is_the_plain_loop() -> None:
    session = toy_session()
    engine = engine_on(session)
    engine.run(2)
    engine.drain()
    assert session.toy.log == ["object", "offset", "cpu_map", "-cpu_map", "-object"] * 2
    assert session.toy.objects == {}
    assert open_files() == {}


@pytest.mark.parametrize(("stage", "undone"), [("object", []), ("offset", ["-object"]), ("cpu_map", ["-object"])])
def test_a_failure_releases_the_earlier_stages_only(stage: str, undone: list[str]) -> None:
    session = toy_session(lambda toy: toy.refuse.update({stage: errno.ENOSPC}))
    ledger = Ledger()
    engine = engine_on(session, ledger=ledger)
    engine.run(3)
    engine.drain()
    assert [word for word in session.toy.log if word.startswith("-")] == undone * 3
    assert session.toy.objects == {}
    assert engine.failures == {(stage, "ENOSPC"): 3}
    assert ledger.balance().clean


def test_ledger_and_kernel_agree_while_blocks_are_held() -> None:
    session, ledger = toy_session(), Ledger()
    plan = Plan(seed=5, hold=6, partial=4, bytes_limit=MIB)
    engine = engine_on(session, plan, ledger)
    for _ in range(20):
        engine.run(13)
        assert ledger.live("/dev/toy#0", "handle") == set(session.toy.objects)
    assert ledger.stages()["object"].peak <= 7
    engine.drain()
    assert ledger.balance().clean
    assert ledger.stages()["object"].acquired == 260


def test_what_the_driver_keeps_is_missed_by_the_ledger_and_seen_by_the_kernel() -> None:
    session, ledger = toy_session(lambda toy: setattr(toy, "keep_every", 10)), Ledger()
    engine = engine_on(session, ledger=ledger)
    engine.run(100)
    engine.drain()
    assert ledger.balance().clean
    assert [counter.read() for counter in session.counters()] == [10]
    assert session.census() == {"toy-handles": 10}


def test_what_cannot_be_released_stays_in_the_ledger() -> None:
    session, ledger = toy_session(), Ledger()
    first, *rest = session.lifecycles[0].stages

    def refuse(block: Block) -> None:
        if block.serial == 2:
            raise OSError(errno.EBUSY, "as ordered")
        session.toy.destroy(block)

    lifecycle = session.lifecycles[0]._replace(stages=(first._replace(release=refuse), *rest))
    engine = Engine(session, lifecycle, ONE, ledger=ledger)
    engine.run(5)
    engine.drain()
    assert engine.failures == {("-object", "EBUSY"): 1}
    assert [holding.key.number for holding in ledger.outstanding()] == [1]
    assert ledger.stages()["object"] == (1, 5, 4, 2)
    assert ledger.stages()["cpu_map"] == (0, 5, 5, 1)
    assert ledger.held_bytes("toy") == 4096
    assert [counter.read() for counter in session.counters()] == [1]


def test_a_number_that_is_given_out_twice_is_a_mistake() -> None:
    session, ledger = toy_session(), Ledger()
    stages = tuple(
        stage._replace(acquire=lambda block: 5, release=None) if stage.name == "object" else stage
        for stage in session.lifecycles[0].stages[:1]
    )
    engine = Engine(
        session,
        session.lifecycles[0]._replace(stages=stages),
        Plan(hold=2),
        ledger=ledger,
        steps=[Step(0, 4096, 1, False), Step(1, 4096, 1, False)],
    )
    engine.run(2)
    assert [mistake.what for mistake in ledger.balance().mistakes] == ["taken"]
    engine.drain()
    assert [mistake.what for mistake in ledger.balance().mistakes] == ["taken", "double"]
    assert ledger.stages()["object"] == (0, 1, 1, 1)


def test_a_trial_touches_no_slot() -> None:
    session, ledger = toy_session(), Ledger()
    engine = engine_on(session, Plan(hold=2, partial=0, bytes_limit=MIB), ledger)
    engine.fill()
    before = dict(session.toy.objects)
    assert engine.trial() == ""
    assert session.toy.objects == before
    assert ledger.live("/dev/toy#0", "handle") == {1, 2}
    engine.drain()
    assert ledger.balance().clean


def test_a_changed_pattern_is_a_divergence() -> None:
    session = toy_session()
    engine = engine_on(session, Plan(hold=2, partial=0, sizes="page", bytes_limit=MIB))
    engine.run(4)
    for file in session.toy.objects.values():
        mapping = next(iter(file._maps))
        mapping[len(mapping) - 1 :] = b"!"
    with pytest.raises(Divergence, match="offset 4088: wrote"):
        engine.run(4)
    assert len(session.toy.objects) == 1, "the damaged block was released all the same"
    with pytest.raises(Divergence):
        engine.drain()
    assert session.toy.objects == {}


def test_full_touch_sees_a_single_byte() -> None:
    session = toy_session()
    engine = engine_on(session, Plan(hold=1, partial=0, sizes="page", touch="full"))
    engine.run(1)
    mapping = next(iter(next(iter(session.toy.objects.values()))._maps))
    mapping[1000:1001] = bytes([mapping[1000] ^ 1])
    with pytest.raises(Divergence, match="offset 1000"):
        engine.run(1)
    assert session.toy.objects == {}


def test_a_device_that_refuses_everything_ends_the_run() -> None:
    session = toy_session(lambda toy: toy.refuse.update({"object": errno.ENOMEM}))
    engine = engine_on(session)
    with pytest.raises(UsedUp, match=f"{REFUSED_IN_A_ROW} acquisitions in a row failed.*as ordered"):
        engine.run(1000)
    assert engine.cycles == REFUSED_IN_A_ROW


def test_early_order_releases_early_stages_first() -> None:
    session = toy_session()
    first, *rest = session.lifecycles[0].stages
    released: list[str] = []
    stages = [first._replace(early=True), *rest]
    stages = [
        stage._replace(acquire=lambda block: 0, release=partial(lambda name, block: released.append(name), stage.name))
        for stage in stages
    ]
    lifecycle = session.lifecycles[0]._replace(stages=tuple(stages))
    engine = Engine(session, lifecycle, ONE, steps=[Step(0, 4096, 3, True), Step(0, 4096, 3, True)])
    engine.run(2)
    assert released == ["object", "cpu_map", "offset"]


def test_trial_says_what_is_not_offered() -> None:
    from accelctl.abi.lifecycle import NotOffered

    def refuse(block: Block) -> int:
        raise NotOffered("no exporter")

    session = toy_session()
    stages = session.lifecycles[0].stages
    lifecycle = session.lifecycles[0]._replace(stages=(stages[0], stages[1]._replace(acquire=refuse)))
    assert Engine(session, lifecycle, ONE).trial() == "no exporter"
    assert session.toy.objects == {}
    assert engine_on(session).trial() == ""


# -- plans --


def test_the_same_seed_is_the_same_plan() -> None:
    sizes = Sizes()
    first = list(islice(Plan(seed=7).steps(sizes, 3), 3000))
    assert first == list(islice(Plan(seed=7).steps(sizes, 3), 3000))
    assert first != list(islice(Plan(seed=8).steps(sizes, 3), 3000))
    assert first != list(islice(Plan(seed=7).steps(sizes, 3, lane=1), 3000))


@settings(max_examples=60)
@given(
    sizes=st.sampled_from(["page", "small", "mixed", "large"]),
    hold=st.integers(1, 64),
    limit=st.integers(1, 1 << 30),
    workers=st.integers(1, 4),
    granule=st.sampled_from([4096, 65536, 1 << 21]),
    largest=st.sampled_from([0, 4096, 1 << 22]),
    stages=st.integers(1, 5),
)
def test_a_plan_never_holds_more_than_its_limit(
    sizes: str, hold: int, limit: int, workers: int, granule: int, largest: int, stages: int
) -> None:
    try:
        plan = Plan(sizes=sizes, hold=hold, bytes_limit=limit, workers=workers)
        steps = list(islice(plan.steps(Sizes(granule, largest), stages), 300))
    except UsageError:  # the limit is too small for so many blocks
        assert limit < granule * hold * workers
        return
    assert max(step.size for step in steps) * hold * workers <= limit
    assert all(step.size % granule == 0 and step.size for step in steps)
    assert all(1 <= step.depth <= stages and 0 <= step.slot < hold for step in steps)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hold": 0},
        {"workers": 300},
        {"sizes": "huge"},
        {"order": "x"},
        {"touch": "y"},
        {"cycles": -1},
        {"seconds": -1.0},
    ],
)
def test_a_wrong_plan_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Plan(**wrong)  # type: ignore[arg-type]


def test_patterns_differ() -> None:
    assert len({pattern(1, serial) for serial in range(10000)}) == 10000
    assert pattern(1, 5) != pattern(2, 5)


def test_the_toy_keeps_its_word() -> None:
    toy = Toy(toy_session().toy.syscalls)
    first, second = Block(4096), Block(4096)
    assert [toy.make(first), toy.make(second)] == [1, 2]
    toy.destroy(first)
    assert toy.make(Block(4096)) == 1
    for file in toy.objects.values():
        file.close()
