"""The runner of a device queues ahead, and gives what the one that computes at once gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from penstock.protocol.common import LogitsAdjustments, TokenLogprobs, TokenSampling
from penstock.protocol.to_worker import Copy, NewSequence, Plan, SlotWork
from penstock_worker.batch.slots import PlanError
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.metrics.phases import Phases
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.steps.runner import StepRunner
from tests.worker.checkpoints import TINY
from tests.worker.device.conftest import Machine, plain_runner
from tests.worker.device.plans import Ahead
from tests.worker.driver import GREEDY, Job
from tests.worker.grammar.grammar_tools import EVEN, Evens, compile_now
from tests.worker.speculation.drafted_jobs import Oracle

pytestmark = pytest.mark.timeout(240)

Make = Callable[..., Machine]
MakePlain = Callable[..., StepRunner]

PROMPT = [5, 6, 7, 8, 9]
HOT = TokenSampling(7, temperature=1.3, top_p=0.9, logprobs=2)
COUNTED = TokenSampling(
    3, temperature=0.9, adjustments=LogitsAdjustments(presence=1.5, frequency=0.7, repetition=1.3)
)
BANNED = TokenSampling(
    9,
    temperature=1.8,
    adjustments=LogitsAdjustments(
        bad_words=tuple((a, b) for a in range(0, 301, 2) for b in (11, 12))
    ),
)
TELLING = TokenSampling(5, temperature=1.1, prompt_logprobs=2)
ENDING = TokenSampling(8, temperature=1.4, min_tokens=3, held_back=tuple(range(0, 301, 3)))


def jobs() -> list[Job]:
    """One job of each kind, and a few that are long enough to be computed in chunks."""
    long = [7 * n % 290 for n in range(90)]
    return [
        Job(PROMPT, 9),
        Job(long, 6, HOT, index=1),
        Job([1], 12, COUNTED, index=2),
        Job(long[5:40], 10, BANNED, index=3),
        Job(long[3:75], 5, TELLING, index=4),
        Job(list(range(40, 60)), 11, HOT, index=5, grammar=1),
        Job(PROMPT[1:], 14, ENDING, index=6, ends=tuple(range(0, 301, 3))),
        Job(list(range(100, 130)), 8, GREEDY, grammar=1),
        Job([2, 2, 2], 13, COUNTED, index=8),
        Job(PROMPT, 1, HOT),
    ]


def evens() -> SlotGrammars:
    grammars = SlotGrammars(Evens(TINY.vocab_size), budget=20.0)
    assert compile_now(grammars, 1, EVEN) is None
    return grammars


@pytest.fixture(scope="module")
def alone(
    tiny_models: dict[torch.dtype, DecoderModel],
) -> tuple[list[Job], list[list[TokenLogprobs]]]:
    """Each by itself, step by step, on the runner that computes at once; what was told of their
    prompts."""
    done, told = [], []
    for job in jobs():
        runner = plain_runner(tiny_models[torch.float32], evens())
        ahead = Ahead(runner, depth=1, budget=512)
        done += ahead.run([job])
        told.append(ahead.told_of(job))
        runner.close()
    return done, told


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_tokens_are_those_of_the_plain_runner(
    make_machine: Make,
    alone: tuple[list[Job], list[list[TokenLogprobs]]],
    depth: int,
    seed: int,
) -> None:
    """Whatever is in flight, in whatever order, with chunks, releases and preemptions."""
    truth, told = alone
    machine = make_machine(evens())
    ahead = Ahead(
        machine.runner, depth=depth, budget=(40, 64, 17)[seed], seed=seed, preempt_every=5 * seed
    )
    ran = ahead.run(jobs())
    assert ahead.most_in_flight == depth
    assert sum(job.preempted for job in ran) >= (2 if seed else 0)
    for number, (one, true) in enumerate(zip(ran, truth, strict=True)):
        assert (one.tokens, one.error) == (true.tokens, None), number
        assert one.logprobs == true.logprobs
    if not seed:
        assert [ahead.told_of(job) for job in ran] == told


@pytest.mark.parametrize("depth", [1, 3])
def test_drafts_change_nothing_while_other_steps_are_in_flight(
    make_machine: Make, alone: tuple[list[Job], list[list[TokenLogprobs]]], depth: int
) -> None:
    truth, _ = alone
    outputs = [job.prompt + job.tokens for job in truth]
    machine = make_machine(evens(), proposer=lambda slots: Oracle(slots, outputs))
    ahead = Ahead(machine.runner, depth=depth, budget=20, seed=depth, preempt_every=11, draft=2)
    ran = ahead.run(jobs())
    assert ahead.most_in_flight == depth
    assert ahead.most_behind_drafts >= depth - 1
    assert sum(job.kept for job in ran) >= 8
    for number, (one, true) in enumerate(zip(ran, truth, strict=True)):
        assert (one.tokens, one.error) == (true.tokens, None), number
        assert one.logprobs == true.logprobs


def admit(
    slot: int, blocks: list[int], tokens: list[int] = PROMPT, sampling: TokenSampling = GREEDY
) -> NewSequence:
    return NewSequence(slot, list(tokens), len(tokens), 0, sampling, blocks)


def first(*sampling: TokenSampling) -> Plan:
    """One sequence of PROMPT for each, in slots from 0 on, with four blocks for each."""
    blocks = [list(range(4 * slot, 4 * slot + 4)) for slot in range(len(sampling))]
    admitted = [admit(n, blocks[n], sampling=each) for n, each in enumerate(sampling)]
    return Plan(1, 0, [], admitted, [SlotWork(n, 0, 5) for n in range(len(sampling))])


def decode(step: int, *slots: int) -> Plan:
    """The next token of slots that have taken part since step 1."""
    return Plan(step, step - 1, [], [], [SlotWork(slot, 3 + step, 1) for slot in slots])


def test_a_step_is_queued_before_the_one_before_it_is_computed(machine: Machine) -> None:
    one = machine.runner.begin(first(GREEDY, HOT, COUNTED))
    two = machine.runner.begin(decode(2, 0, 1, 2))
    three = machine.runner.begin(decode(3, 0, 1, 2))
    assert machine.device.waits == 0
    assert not one.done()
    assert [batch.tokens.tolist() for batch in machine.forward.batches[1:]] == [[-1, -2, -3]] * 2
    tokens = [slot.token for slot in one.result().slots]
    assert None not in tokens
    assert machine.device.waits == 1
    assert (one.done(), two.done(), three.done()) == (True, False, False)
    machine.device.run()
    assert two.done()
    assert three.done()
    assert machine.device.waits == 1
    assert three.result().step == 3  # Which settles the second first.
    assert two.result().step == 2


def test_a_later_result_waits_for_no_more_than_its_own_step(machine: Machine) -> None:
    steps = [machine.runner.begin(first(GREEDY))]
    steps += [machine.runner.begin(decode(step, 0)) for step in range(2, 6)]
    steps[2].result()
    assert [step.done() for step in steps] == [True, True, True, False, False]


def test_bad_words_wait_for_the_token_but_behind_the_queued_forward_pass(machine: Machine) -> None:
    one = machine.runner.begin(first(HOT, BANNED))
    assert machine.device.waits == 0
    computed: list[bool] = []
    machine.forward.obstacle = lambda batch: computed.append(one.done())
    machine.runner.begin(decode(2, 0, 1))
    assert computed == [False]
    assert machine.device.waits == 1
    assert one.done()
    machine.runner.begin(decode(3, 0))  # Who has none needn't wait.
    assert machine.device.waits == 1


def test_late_masks_defer_their_slots_and_no_others(
    make_machine: Make, make_plain: MakePlain
) -> None:
    masks = Evens(TINY.vocab_size)
    grammars = SlotGrammars(masks, budget=0.0)
    assert compile_now(grammars, 1, EVEN) is None
    prompts = [PROMPT, [1, 2, 3]]
    bound, free = (Job(prompt, 6, HOT) for prompt in prompts)
    bound.grammar = 1
    truth = Job(PROMPT, 6, HOT, grammar=1)
    Ahead(make_plain(evens()), depth=1).run([truth])
    alone = Job(prompts[1], 6, HOT)
    Ahead(make_plain(), depth=1).run([alone])

    masks.open.clear()
    ahead = Ahead(make_machine(grammars).runner)
    while not free.done:
        ahead.begin([bound, free])
        ahead.settle()
    assert bound.tokens == []
    assert bound.deferred >= 6
    assert free.tokens == alone.tokens
    masks.open.set()
    ahead.run([bound])
    assert bound.tokens == truth.tokens
    assert bound.logprobs == truth.logprobs


def test_a_grammar_that_meets_a_limit_fails_its_slot_only(make_machine: Make) -> None:
    grammars = SlotGrammars(Evens(TINY.vocab_size, last=4), budget=20.0)
    assert compile_now(grammars, 1, EVEN) is None
    bound, free = Job(PROMPT, 9, HOT, grammar=1), Job(PROMPT, 9, HOT)
    Ahead(make_machine(grammars).runner).run([bound, free])
    assert len(bound.tokens) == 4
    assert "a limit was met" in bound.error
    assert free.error is None


def test_a_slot_without_a_finite_logit_fails_with_what_was_queued_for_it(machine: Machine) -> None:
    runner = machine.runner
    machine.forward.spoiled.add(PROMPT[-1])
    plan = first(GREEDY, GREEDY)
    plan.admitted[1].tokens[-1] = 10
    steps = [runner.begin(plan), runner.begin(decode(2, 0, 1)), runner.begin(decode(3, 1, 0))]
    results = [step.result() for step in steps]
    assert machine.forward.batches[1].tokens.tolist() == [-1, -2]
    for result in results:
        (bad,) = (each for each in result.slots if each.slot == 0)
        (good,) = (each for each in result.slots if each.slot == 1)
        assert "not finite" in bad.error
        assert good.error is None
        assert good.token is not None
    again = runner.execute(decode(4, 0, 1))
    assert "not finite" in again.slots[0].error
    assert machine.forward.batches[-1].tokens.tolist() == [results[2].slots[0].token]


def test_the_host_is_asked_for_tokens_once_they_are_known(machine: Machine) -> None:
    token = machine.runner.execute(first(GREEDY)).slots[0].token
    machine.runner.execute(decode(2, 0))
    assert machine.forward.batches[1].tokens.tolist() == [token]


@pytest.mark.parametrize("number", [1, 3])
def test_misfits_are_named_as_by_the_plain_runner(machine: Machine, number: int) -> None:
    machine.runner.begin(first(GREEDY))
    with pytest.raises(PlanError, match="the last step here is 1"):
        machine.runner.begin(Plan(number, number - 1, [], [], []))
    with pytest.raises(PlanError, match=r"tokens \[5, 7\) of 6"):
        machine.runner.begin(Plan(2, 1, [], [], [SlotWork(0, 5, 2)]))


def test_copies_come_before_what_a_step_computes(machine: Machine, make_plain: MakePlain) -> None:
    """A sequence goes on in copies of the blocks that another has just filled."""
    copies = [Copy("out", 0, 3), Copy("in", 3, 10), Copy("device", 1, 11)]
    follower = admit(1, [10, 11])
    plans = [first(HOT), Plan(2, 1, [], [follower], [SlotWork(1, 4, 1)], copies)]
    steps = [machine.runner.begin(plan) for plan in plans]
    plain = make_plain()
    assert [step.result().slots for step in steps] == [plain.execute(p).slots for p in plans]


def test_a_session_that_ends_takes_what_is_in_flight_along(machine: Machine) -> None:
    truth = machine.runner.execute(first(COUNTED, HOT)).slots
    pending = machine.runner.begin(decode(2, 0, 1))
    machine.runner.reset()
    assert machine.runner.execute(first(COUNTED, HOT)).slots == truth
    with pytest.raises(RuntimeError, match="step 2 was dropped"):
        pending.result()


def test_a_released_slot_may_be_taken_while_its_last_step_is_in_flight(machine: Machine) -> None:
    """The engine core doesn't do it; a step must know its sequences all the same."""
    truth = machine.runner.execute(first(COUNTED)).slots[0].token
    two = machine.runner.begin(decode(2, 0))
    new = admit(0, [4, 5], sampling=COUNTED)
    three = machine.runner.begin(Plan(3, 2, [0], [new], [SlotWork(0, 0, 5)]))
    assert three.result().slots[0].token == truth
    assert two.result().slots[0].token is not None


def test_time_is_the_devices_own(make_machine: Make) -> None:
    """A step's begins when the one before it has ended; a token takes a second of this clock."""
    phases = Phases()
    machine = make_machine(phases=phases)
    steps = [machine.runner.begin(first(GREEDY, HOT)), machine.runner.begin(decode(2, 0, 1))]
    assert [step.result().compute_seconds for step in steps] == [10.0, 2.0]
    rest = dict.fromkeys(("sample", "masks", "copies", "encode"), 0.0)
    assert phases.seconds == {"forward": 12.0, **rest}


def test_closing_cancels(machine: Machine) -> None:
    machine.runner.begin(first(GREEDY))
    machine.runner.close()
    assert machine.forward.cancelled
    assert machine.device.waits == 0
