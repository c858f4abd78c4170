"""Chunks, budgets, fairness and preemption, seen through the plans that a worker gets."""

from __future__ import annotations

import msgspec
import pytest

from penstock.protocol.to_worker import Plan
from penstock_engine.request.request import Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.request.step_builder import StepBuilder
from tests.engine.harness import Harness
from tests.engine.scores import RequestScore


def counts(plan: Plan) -> dict[int, int]:
    return {work.slot: work.count for work in plan.work}


def tokens_of(request: RequestScore, index: int = 0) -> list[int]:
    return request.sequences[index].tokens


def all_done(requests: list[RequestScore]) -> bool:
    return all(s.terminal is not None for r in requests for s in r.sequences.values())


@pytest.mark.parametrize("budget", [1, 2, 7, 16, 64])
def test_prompts_are_computed_in_chunks_within_the_budget(budget: int) -> None:
    h = Harness(max_num_batched_tokens=budget)
    front = h.connect()
    h.start_worker()
    requests = [h.submit(front, [i + 1] * 30, max_tokens=3, ignore_eos=True) for i in range(3)]
    h.run()
    assert h.worker is not None
    sizes = [sum(counts(plan).values()) for plan in h.worker.log]
    assert max(sizes) <= budget  # the fake worker checks it too
    assert sizes[0] == min(budget, 30)
    assert all_done(requests)


def test_decode_and_prefill_share_a_step() -> None:
    h = Harness(max_num_batched_tokens=10)
    front = h.connect()
    h.start_worker()
    short = h.submit(front, [1, 2], max_tokens=20, ignore_eos=True)
    h.run_step()
    long = h.submit(front, [3] * 40, max_tokens=2, ignore_eos=True)
    assert h.plan is not None
    h.run_step()  # the decode that was in flight when the long prompt came
    plans = []
    while tokens_of(long) == []:
        assert h.plan is not None
        plans.append(counts(h.plan))
        h.run_step()
    # Each of these steps gave the running sequence its token and the rest to the prompt.
    assert plans[:4] == [{0: 1, 1: 9}] * 4
    assert len(tokens_of(short)) == 2 + len(plans)


DECODES = [(1, 0.05)] * 900


@pytest.mark.parametrize(
    ("tokens", "seen", "steps"),
    [
        pytest.param(512, [], 2, id="few tokens"),
        pytest.param(1024, [], 1, id="many tokens, whose time isn't known"),
        pytest.param(1024, [(1024, 0.4)] * 8, 1, id="many tokens that take long"),
        pytest.param(1024, [(1024, 0.02)] * 8, 2, id="many that a fast device computes soon"),
        pytest.param(1024, DECODES[:20], 1, id="many, after nothing but decodes"),
        pytest.param(1024, [(1024, 0.4)] * 8 + DECODES, 1, id="many, whose time is forgotten"),
    ],
)
def test_a_step_that_takes_long_is_not_followed(
    tokens: int, seen: list[tuple[int, float]], steps: int
) -> None:
    """seen: tokens and seconds of earlier steps."""
    h = Harness(max_num_batched_tokens=tokens, max_model_len=2048, max_steps_in_flight=2)
    front = h.connect()
    h.start_worker(1000)
    for earlier in seen:
        h.core.state.scheduling.step_cost.observe(*earlier)
    for first in (1, 2):
        h.submit(front, [first] * tokens, max_tokens=2)
    assert len(h.plans) == steps
    h.run()


def test_a_small_budget_starves_neither_decode_nor_prefill() -> None:
    """Six decodes and a budget of two: every decode advances, and so does a late prompt."""
    h = Harness(max_num_seqs=8, max_num_batched_tokens=2, max_model_len=128)
    front = h.connect()
    h.start_worker()
    decodes = [h.submit(front, [i + 1], max_tokens=100, ignore_eos=True) for i in range(6)]
    while not all(tokens_of(request) for request in decodes):
        h.run_step()
    late = h.submit(front, [30] * 10, max_tokens=5, ignore_eos=True)
    before = [len(tokens_of(request)) for request in decodes]
    steps = 0
    while not tokens_of(late):
        h.run_step()
        steps += 1
        assert steps < 100
    gained = [len(tokens_of(r)) - b for r, b in zip(decodes, before, strict=True)]
    assert min(gained) >= 5
    assert max(gained) - min(gained) <= 2  # none is favoured


def test_with_a_budget_of_one_everybody_still_advances() -> None:
    h = Harness(max_num_seqs=4, max_num_batched_tokens=1)
    front = h.connect()
    h.start_worker()
    requests = [h.submit(front, [i + 1] * 5, max_tokens=10, ignore_eos=True) for i in range(6)]
    h.run()
    assert all_done(requests)


def test_requests_start_in_order_of_arrival() -> None:
    h = Harness(max_num_seqs=2, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker()
    # The second is long: the third and fourth, short ones, don't overtake it.
    prompts = [[1] * 4, [2] * 40, [3], [4]]
    for prompt in prompts:
        h.submit(front, prompt, max_tokens=4, ignore_eos=True)
    h.run()
    assert h.worker is not None
    started = [new.tokens[0] for plan in h.worker.log for new in plan.admitted]
    assert started == [1, 2, 3, 4]


def test_a_request_starts_only_where_its_next_tokens_have_blocks() -> None:
    """Two requests that need 11 blocks each in the end, and 10 at first. Of 22 blocks the second
    finds 12, one more than its next token needs; of 21 it would soon take the first one's."""
    for blocks, together in ((22, 2), (21, 1)):
        h = Harness(max_num_batched_tokens=128, max_num_seqs=4)
        front = h.connect()
        requests = [h.submit(front, [i + 1] * 40, max_tokens=4) for i in range(2)]
        h.start_worker(blocks)
        assert len(h.core.state.scheduling.running) == together
        h.run()
        assert all_done(requests)
        assert h.core.state.scheduling.num_preemptions == 0


def test_sequences_of_a_request_differ_by_index_alone() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [9, 8], n=6, max_tokens=6, ignore_eos=True)
    h.run()
    assert all_done([request])
    assert len({tuple(tokens_of(request, index)) for index in range(6)}) > 1


def preempting() -> tuple[Harness, list[RequestScore]]:
    """Three sequences that fit one by one: 3 + 40 tokens each, in a pool of 64."""
    h = Harness(max_model_len=64, block_size=4, max_num_batched_tokens=32, max_num_seqs=3)
    front = h.connect()
    h.start_worker(16)
    requests = [h.submit(front, [i + 1] * 3, max_tokens=40, ignore_eos=True) for i in range(3)]
    return h, requests


def test_preemption_happens_and_changes_no_token() -> None:
    h, requests = preempting()
    h.run()
    assert h.core.state.scheduling.num_preemptions > 0
    assert all_done(requests)  # the harness compares the tokens
    assert [len(tokens_of(request)) for request in requests] == [40] * 3
    assert h.fronts[0].status is not None
    h.now += 1
    h.settle()
    assert h.fronts[0].status.preemptions == h.core.state.scheduling.num_preemptions


def test_the_latest_is_preempted_and_the_order_is_kept() -> None:
    h, requests = preempting()
    victims = []
    while h.run_step() is not None:
        held = h.core.state.scheduling.queue.sequences()
        victims += [s.request.arrival for s in held if s.state is SequenceState.PREEMPTED]
    assert victims
    assert 1 not in victims  # the oldest never loses its blocks
    assert victims[0] == 3
    ends = [request.sequences[0].terminal for request in requests]
    assert all(end is not None and end.finish == "length" for end in ends)


def test_the_preempted_goes_before_those_that_came_later() -> None:
    h, _ = preempting()
    late = h.submit(h.fronts[0], [7], max_tokens=2, ignore_eos=True)
    starts = []
    while h.plan is not None:
        starts += [new.tokens[0] for new in h.plan.admitted]
        h.run_step()
    assert h.core.state.scheduling.num_preemptions > 0
    assert starts[:3] == [1, 2, 3]
    assert starts.count(3) > 1  # it was started again,
    assert starts[-1] == 7  # and still before the late one
    assert all_done([late])


def test_work_is_withdrawn_when_its_blocks_are_taken_in_the_same_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks of one token: each decode takes one.  With a budget of two among three the youngest
    is at times served before the oldest finds the pool empty and takes its blocks."""
    withdrawn = []
    withdraw = StepBuilder.withdraw

    def spy(builder: StepBuilder, sequence: Sequence) -> None:
        withdrawn.append(sequence.slot in builder.items)
        withdraw(builder, sequence)

    monkeypatch.setattr(StepBuilder, "withdraw", spy)
    for blocks in range(34, 46):
        h = Harness(
            max_model_len=32,
            block_size=1,
            max_num_batched_tokens=2,
            max_num_seqs=3,
            preemption_mode="recompute",
        )
        front = h.connect()
        requests = [h.submit(front, [i + 1] * 2, max_tokens=25, ignore_eos=True) for i in range(6)]
        h.start_worker(blocks)
        h.run()
        assert all_done(requests)
    assert sum(withdrawn) > 3


def test_the_oldest_finishes_in_a_pool_of_exactly_one_sequence() -> None:
    h = Harness(max_model_len=32, block_size=4, max_num_batched_tokens=8, max_num_seqs=4)
    front = h.connect()
    h.start_worker(8)
    requests = [h.submit(front, [i + 1] * 5, max_tokens=27, ignore_eos=True) for i in range(4)]
    h.run()
    assert all_done(requests)
    assert [len(tokens_of(request)) for request in requests] == [27] * 4


def test_a_slot_and_its_blocks_are_not_reused_while_a_step_is_in_flight() -> None:
    h = Harness(max_num_seqs=1)
    front = h.connect()
    h.start_worker(4)
    first = h.submit(front, [1] * 9, max_tokens=4, ignore_eos=True)
    assert h.plan is not None
    h.abort(front, first)
    end = first.sequences[0].terminal
    assert end is not None
    assert end.finish == "abort"
    scheduler = h.core.state.scheduling
    assert scheduler.pool is not None
    assert (list(scheduler.marked), scheduler.pool.num_free) == ([0], 1)
    second = h.submit(front, [2] * 9, max_tokens=1)
    assert second.accepted
    assert not scheduler.running
    h.run_step()
    assert not scheduler.marked
    assert h.plan is not None
    assert h.plan.released == [0]
    h.run()
    assert all_done([second])
    assert scheduler.pool.num_free == 4


@pytest.mark.parametrize("most", [60, 6])
def test_a_last_token_is_not_computed(most: int) -> None:
    """No other may follow it: of max_tokens, or of all that the pool holds."""
    h = Harness(max_num_batched_tokens=64, max_steps_in_flight=2)
    front = h.connect()
    h.start_worker(6)
    request = h.submit(front, [7] * 10, max_tokens=most, ignore_eos=True)
    h.run()
    assert h.worker is not None
    computed = sum(sum(counts(plan).values()) for plan in h.worker.log)
    assert len(tokens_of(request)) == min(most, 6 * 4 - 10)
    assert computed == 10 + len(tokens_of(request)) - 1


def test_a_prompt_starts_within_its_turn() -> None:
    """Two tenants' prompts begin together, each with its half of the step."""
    h = Harness(scheduling_policy="fair", max_num_batched_tokens=16)
    front = h.connect()
    for tenant in "ab":
        h.submit(front, [1] * 40, tenant=tenant, max_tokens=2, ignore_eos=True)
    h.start_worker()
    for _ in range(5):
        assert h.plan is not None
        assert counts(h.plan) == {0: 8, 1: 8}
        h.run_step()


def test_a_head_without_room_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue counts who passes it."""
    h = Harness(scheduling_policy="fair", max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker(12)
    small = h.submit(front, [1] * 20, tenant="a", max_tokens=12, ignore_eos=True)
    h.run_step()
    held: list[Sequence] = []
    monkeypatch.setattr(h.core.state.scheduling.queue, "hold", held.append)
    large = h.submit(front, [2] * 36, tenant="b", max_tokens=2, ignore_eos=True)
    h.run_step()
    assert {each.request.tenant for each in held} == {"b"}
    monkeypatch.undo()
    h.run()
    assert all_done([small, large])


@pytest.mark.parametrize("other", [-1, 1])
def test_a_result_of_another_step_ends_the_worker(other: int) -> None:
    """Though it says of the same slots what this one's would."""
    h = Harness(max_steps_in_flight=1)
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [1, 2, 3], max_tokens=4, ignore_eos=True)
    h.run_step()
    [(plan, _)] = h.plans
    assert h.worker is not None
    result = h.worker.execute(plan)
    h.worker_says(msgspec.structs.replace(result, step=plan.step + other))
    assert h.worker is None
    assert (
        h.worker_end == f"a result for step {plan.step + other}, but step {plan.step} is in flight"
    )
    h.start_worker()
    h.run()
    assert len(request.sequences[0].tokens) == 4
