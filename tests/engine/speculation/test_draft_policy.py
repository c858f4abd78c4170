"""When drafts pay, and that they cost next to nothing where they don't."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from penstock_engine.speculation.draft_policy import DraftPolicy, Offer, StepSize
from penstock_engine.speculation.history import KINDS, Acceptance, ByKind, SequenceDrafts
from tests.engine.speculation.closed_loop import ClosedLoop, Machine, Stream

MACHINES: dict[str, Callable[[int], float]] = {
    "weights are read once": lambda rows: 0.020 + 0.0012 * rows,
    "each row costs": lambda rows: 0.004 + 0.004 * rows,
    "tiles of four rows": lambda rows: 0.02 + 0.012 * ((rows + 3) // 4),
    "rows are free up to 128": lambda rows: 0.006 + 0.00004 * max(0, rows - 128),
}


def gain(
    machine: Machine, streams: int, chance: float, *, told: bool = True, steps: int = 400
) -> float:
    """How many times as fast tokens come with drafts as without."""

    def made() -> list[Stream]:
        return [Stream(lambda place: chance, told=told) for _ in range(streams)]

    seconds = steps * machine.step(streams)
    before = ClosedLoop(machine, made()).run(seconds, drafts=False)
    return ClosedLoop(machine, made()).run(seconds) / before


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("streams", [1, 16, 64])
def test_drafts_that_are_seldom_right_cost_next_to_nothing(name: str, streams: int) -> None:
    machine = Machine(MACHINES[name], beside=0.01 * MACHINES[name](1), jitter=0.1)
    steps = 400 if streams < 64 else 150
    assert gain(machine, streams, 0.0, steps=steps) > 0.98
    assert gain(machine, streams, 0.3, steps=steps) > 0.98


def test_learning_costs_little_of_the_first_hundred_steps() -> None:
    machine = Machine(lambda rows: 0.003 + 0.0012 * rows, jitter=0.05)
    for streams in (4, 16):
        for chance in (0.3, 0.6):
            assert gain(machine, streams, chance, steps=100) > 0.97, (streams, chance)


def test_where_the_worker_tells_nothing_attempts_are_rare() -> None:
    machine = Machine(MACHINES["weights are read once"], jitter=0.1)
    for streams in (1, 4):
        assert gain(machine, streams, 0.0, told=False, steps=800) > 0.98


def test_a_slow_beginning_does_not_make_drafts_look_cheap() -> None:
    """Each row costs; without drafts the first steps took twice as long for another reason."""
    loop = ClosedLoop(
        Machine(lambda rows: 0.001 * rows), [Stream(lambda place: 0.8) for _ in range(16)]
    )
    for _ in range(3):
        loop.policy.settled(StepSize(16, 0), 0, 0, 0.032, each=0.001)
    assert loop.run(400 * 0.016) > 0.975 * 1000.0
    assert 0 < loop.drafted < 1000


def test_copying_alone_is_several_times_as_fast() -> None:
    for name in ("weights are read once", "rows are free up to 128", "tiles of four rows"):
        machine = Machine(MACHINES[name], jitter=0.1)
        assert gain(machine, 1, 0.95) > 2.5, name


def test_a_full_batch_drafts_only_where_rows_are_free() -> None:
    """Now and then a step has some where each row costs, to show what it takes."""

    def drafted(name: str) -> int:
        loop = ClosedLoop(Machine(MACHINES[name]), [Stream(lambda place: 0.8) for _ in range(64)])
        loop.run(30 * MACHINES[name](64))
        before = loop.drafted
        loop.run(30 * MACHINES[name](64))
        return loop.drafted - before

    assert drafted("each row costs") < 0.05 * 30 * 64
    assert drafted("rows are free up to 128") > 500


def test_a_stream_that_can_be_foretold_gets_drafts_beside_others_that_cannot() -> None:
    streams = [Stream(lambda place: 0.95), *(Stream(lambda place: 0.02) for _ in range(7))]
    machine = Machine(MACHINES["weights are read once"])
    ClosedLoop(machine, streams).run(20.0)
    assert streams[0].tokens > 1.3 * streams[1].tokens
    undisturbed = 20.0 / MACHINES["weights are read once"](8)
    assert all(stream.tokens > 0.9 * undisturbed for stream in streams[1:])


def test_what_one_gains_at_the_cost_of_many_is_no_gain() -> None:
    """Each row costs nearly what a step does: their sum would grow a little."""
    streams = [Stream(lambda place: 0.98), *(Stream(lambda place: 0.02) for _ in range(3))]
    step = MACHINES["each row costs"]
    ClosedLoop(Machine(step, each=0.004), streams).run(400 * step(4))
    assert all(stream.tokens > 0.98 * 400 for stream in streams)


def test_looks_are_rare_where_nothing_could_pay() -> None:
    def wants_proposed(name: str, streams: int, chance: float) -> float:
        step = MACHINES[name]
        loop = ClosedLoop(Machine(step), [Stream(lambda place: chance) for _ in range(streams)])
        loop.run(200 * step(streams))
        before = loop.wants_proposed, loop.steps
        loop.run(320 * step(streams))
        return (loop.wants_proposed - before[0]) / (loop.steps - before[1])

    assert wants_proposed("weights are read once", 1, 0.95) == 1.0
    assert 0.2 < wants_proposed("weights are read once", 1, 0.0) < 0.4
    assert wants_proposed("each row costs", 64, 0.9) < 0.4


def test_what_was_right_no_more_is_noticed_within_a_few_steps() -> None:
    chance = 0.98
    loop = ClosedLoop(Machine(MACHINES["weights are read once"]), [Stream(lambda place: chance)])
    loop.run(10.0)
    assert loop.kept > 0.8 * loop.drafted
    chance, before = 0.0, loop.drafted
    loop.run(10.0)
    assert loop.drafted - before < 150


def test_a_machine_that_is_busy_with_something_else_does_not_make_drafts_look_cheap() -> None:
    noise = random.Random(1)

    def step(rows: int) -> float:
        return (0.008 + 0.002 * rows) * noise.lognormvariate(0.0, 1.0)

    def drafted(chance: float) -> int:
        loop = ClosedLoop(Machine(step), [Stream(lambda place: chance)])
        loop.run(20.0)
        return loop.drafted

    assert drafted(0.2) < 100
    assert drafted(0.95) > 500


def test_the_account_keeps_what_is_lost_small_however_wrong_the_policy_is() -> None:
    """A worker that always says that its guesses were right, and whose drafts never are."""
    policy, drafts = DraftPolicy(), SequenceDrafts()
    size, cost, steps = StepSize(1, 0), 0.0, 1000
    for _ in range(steps):
        drafts.propose(8)
        for _ in range(30):
            policy.undrafted(drafts, True)
        count = policy.choose([Offer(drafts, 8)], size, 8)[0]
        policy.settled(size, count, 0, 0.02 + 0.01 * count, each=0.01)
        if count:
            policy.observe(drafts, count, 0)
        cost += 0.01 * count / 0.02
    assert 0 < cost < 0.02 * steps


def test_a_look_ends_though_claimed_outputs_leave_no_step_without_drafts() -> None:
    policy, drafts, size = DraftPolicy(), SequenceDrafts(), StepSize(1, 0)
    for rows in range(1, 12):
        policy.settled(StepSize(rows, 0), 0, 0, 0.02 + 0.0005 * rows, each=0.0005)
    chosen = looks = 0
    for _ in range(200):
        drafts.observe(4, 4)
        chosen += policy.choose([Offer(drafts, 4)], size, 8)[0] > 0
        looks += policy.looking
        policy.settled(size, 30, 30, 0.035, each=0.0005)
    assert looks > 1
    assert chosen > 100


def test_a_step_without_decodes_is_no_exception() -> None:
    policy, drafts = DraftPolicy(), SequenceDrafts()
    for rows in (1, 2, 9):
        policy.settled(StepSize(rows, 0), 0, 0, 0.02 + 0.001 * rows, each=0.001)
    drafts.observe(4, 4)
    assert policy.choose([Offer(drafts, 4)], StepSize(0, 30), 8)[0] > 0
    policy.settled(StepSize(0, 30), 4, 2, 0.05, each=0.001)
    assert policy.wants_proposed(0)
    assert policy.wants_proposed(0)


def test_a_head_rests_where_keeping_up_costs_more_than_its_drafts_save() -> None:
    policy, size, paid = DraftPolicy(), StepSize(16, 0), 0.0
    for number in range(4000):
        upkeep = 0.0 if policy.upkeep.rests(16) else 0.2
        paid += upkeep
        policy.settled(size, 0, 0, 0.05, each=0.003, upkeep=upkeep * 0.05)
        if number == 10:
            assert policy.upkeep.rests(16)
            assert not policy.upkeep.rests(1), "a batch of another size"
    assert 2.0 < paid < 0.01 * 4000, "it is tried again now and then, and costs little"


def test_a_head_whose_drafts_pay_does_not_rest() -> None:
    policy = DraftPolicy()
    for decodes in (1, 2, 3, 4, 5):
        policy.settled(StepSize(decodes, 0), 0, 0, 0.02 + 0.002 * decodes, each=0.002)
    for number in range(1000):
        kept = (3, 0, 1, 2)[number % 4]
        policy.settled(StepSize(1, 0), 3, kept, 0.03, each=0.002, upkeep=0.004)
        assert not policy.upkeep.rests(1)


def test_drafts_go_where_they_are_likeliest() -> None:
    policy, likely, unlikely = DraftPolicy(), SequenceDrafts(), SequenceDrafts()
    for rows in range(1, 12):
        policy.settled(StepSize(rows, 0), 0, 0, 0.02 + 0.004 * rows, each=0.004)
    for _ in range(10):
        likely.observe(4, 4)
        unlikely.observe(4, 0)
    chosen = policy.choose([Offer(unlikely, 4), Offer(likely, 4)], StepSize(2, 0), 8)
    assert chosen[0] <= 1
    assert chosen[1] >= 2
    assert policy.choose([Offer(likely, 4)], StepSize(1, 0), 2) == [2]


def test_a_step_that_goes_on_ends_only_for_proposals_that_would_be_drafted() -> None:
    policy = DraftPolicy()
    sequences = [SequenceDrafts() for _ in range(4)]
    for rows in range(1, 12):
        policy.settled(StepSize(rows, 0), 0, 0, 0.02 + 0.003 * rows, each=0)

    def least() -> int:
        return policy.least_proposed(sequences, StepSize(4, 0), 60)

    def drafted(most: int) -> bool:
        offers = [Offer(drafts, most) for drafts in sequences]
        return any(policy.choose(offers, StepSize(4, 0), 60))

    for _ in range(20):
        policy.undrafted(sequences[0], True)
    assert least() > 0
    assert drafted(least())
    for _ in range(100):
        policy.waited(1.0)
    assert least() == 0, "another step costs more than drafts save"
    for _ in range(100):
        policy.waited(0.0)
    assert least() > 0
    for drafts in sequences:
        for _ in range(40):
            policy.undrafted(drafts, False)
    assert least() == 0
    assert sum(drafted(64) for _ in range(50)) < 10, "more than to learn what it costs"


def test_chances_by_place_are_those_that_were_seen() -> None:
    prior, drafts = Acceptance(0.99, first=0.5, weight=4.0), SequenceDrafts()
    assert drafts.chances(prior.by_place(), 2) == [0.5, 0.25]
    for _ in range(200):
        drafts.observe(3, 1)
    first, second, third = drafts.chances(prior.by_place(), 3)
    assert first > 0.9
    assert second < 0.15
    assert third < second


def test_a_new_sequence_is_expected_to_be_foretold_as_others_of_its_kind_are() -> None:
    kinds = ByKind()
    first = kinds.of(b"new")[0]
    for _ in range(200):
        kinds.observe(b"JSON", 2, 2)
        kinds.observe(b"chat", 2, 0)
    assert kinds.of(b"JSON")[0] > 0.9
    assert kinds.of(b"chat")[0] < 0.1
    assert 0.3 < kinds.of(b"new")[0] < 0.7 <= first
    for number in range(2 * KINDS):
        kinds.guessed(number.to_bytes(2, "big"), right=False)
    assert kinds.of(b"JSON") == kinds.of(b"new"), "more kinds are kept than there is room for"
