"""How sequences of a model with recurrent layers start, wait for others, and come back."""

from __future__ import annotations

import pytest

from penstock.model.kv_layout import FULL, KVGroup
from penstock.protocol.to_worker import Plan
from tests.engine.harness import Harness

SIZE, EVERY, PIECES = 4, 8, 2
PROMPT = [3 + at % 30 for at in range(30)]


def harness(**options: object) -> Harness:
    h = Harness(block_size=SIZE, max_model_len=64, **options)
    h.kv_groups = (FULL, KVGroup(every=EVERY, blocks=PIECES))
    return h


def starts(plans: list[Plan]) -> list[tuple[int, int]]:
    """(where its state is from, where its first work starts) of each sequence that was admitted."""
    return [
        (new.state_at, work.start)
        for plan in plans
        for new in plan.admitted
        for work in plan.work
        if work.slot == new.slot
    ]


def test_a_prompt_is_found_up_to_its_last_checkpoint() -> None:
    h = harness()
    h.start_worker(100)
    front = h.connect()
    h.submit(front, PROMPT)
    h.run()
    h.submit(front, PROMPT)
    h.submit(front, PROMPT[:17])
    h.submit(front, PROMPT[:10] + 9 * [2])
    h.run()
    assert h.worker is not None
    assert starts(h.worker.log) == [(0, 0), (24, 24), (16, 16), (8, 8)]


def test_who_shares_a_checkpoint_waits_for_it_and_who_shares_none_does_not() -> None:
    h = harness(max_num_batched_tokens=12)
    h.start_worker(100)
    front = h.connect()
    h.submit(front, PROMPT)
    h.submit(front, PROMPT[:20] + [2] * 6)
    h.submit(front, PROMPT[:6] + [2] * 3)
    h.run()
    assert h.worker is not None
    assert sorted(starts(h.worker.log)) == [(0, 0), (0, 0), (16, 16)]


def test_who_has_found_one_checkpoint_waits_for_the_next_one() -> None:
    """The first step computes 20 tokens, behind which nobody can go on; the next has room left."""
    h = harness(max_num_batched_tokens=20)
    h.start_worker(100)
    front = h.connect()
    h.submit(front, PROMPT)
    h.submit(front, PROMPT[:25] + [2] * 4)
    h.run()
    assert h.worker is not None
    assert starts(h.worker.log) == [(0, 0), (24, 24)]


def test_a_preempted_sequence_goes_on_behind_its_newest_checkpoint() -> None:
    h = harness(preemption_mode="swap", prefix_caching=True)
    h.start_worker(100)
    front = h.connect()
    h.submit(front, PROMPT, max_tokens=30, ignore_eos=True)
    while h.core.state.scheduling.running[h_slot(h)].progress.tokens < 46:
        h.run_step()
    scheduling = h.core.state.scheduling
    [sequence] = scheduling.running.values()
    scheduling.leaving[h_slot(h)] = sequence
    h.run()
    assert h.worker is not None
    assert starts(h.worker.log) == [(0, 0), (40, 40)]


def h_slot(h: Harness) -> int:
    [slot] = h.core.state.scheduling.running
    return slot


@pytest.mark.parametrize(
    "groups",
    [
        (KVGroup(every=8, blocks=1),),
        (KVGroup(every=8, blocks=1), FULL),
        (FULL, KVGroup(every=8, blocks=1), KVGroup(every=8, blocks=1)),
        (FULL, KVGroup(every=6, blocks=1)),
        (FULL, KVGroup(every=0, blocks=1)),
        (FULL, KVGroup(every=8, blocks=0)),
    ],
)
def test_a_worker_with_groups_that_can_not_be_is_refused(groups: tuple[KVGroup, ...]) -> None:
    h = harness()
    h.start_worker(ready=False)
    assert h.setup is not None
    h.kv_groups = groups
    h.worker_ready(100)
    assert h.worker_end is not None
    assert "checkpoints" in h.worker_end or "recurrent layers" in h.worker_end


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_one_before_a_checkpoint_is_not_starved_by_newcomers(policy: str, in_flight: int) -> None:
    """A checkpoint takes more blocks than whoever is preempted for it gives back."""
    h = Harness(
        block_size=SIZE,
        max_model_len=64,
        max_num_batched_tokens=16,
        max_steps_in_flight=in_flight,
        scheduling_policy=policy,
        max_num_seqs=8,
    )
    h.kv_groups = (FULL, KVGroup(every=32, blocks=16))
    h.start_worker(31)
    front = h.connect()
    first = h.submit(front, PROMPT[:20], max_tokens=30, ignore_eos=True)
    state = h.core.state.scheduling
    for step in range(100):
        while state.queue.num_sequences < 2:
            h.submit(front, [3 + (7 * step + at) % 30 for at in range(9)], max_tokens=4)
        if not h.plans:
            h.settle()
        h.run_step()
        alive = [*state.running.values(), *state.queue.sequences()]
        if not any(sequence.request.name == first for sequence in alive):
            return
    raise AssertionError("it gets no step any more")


def test_nobody_starts_while_one_lacks_blocks_for_its_checkpoint() -> None:
    """The blocks that are free are too few for it, and enough for a newcomer. The one that makes
    way is in a step in flight."""
    h = Harness(
        block_size=SIZE,
        max_model_len=64,
        max_num_batched_tokens=16,
        max_steps_in_flight=2,
        max_num_seqs=4,
    )
    h.kv_groups = (FULL, KVGroup(every=32, blocks=8))
    h.start_worker(18)
    front = h.connect()
    h.submit(front, PROMPT[:20], max_tokens=30, ignore_eos=True)
    h.submit(front, PROMPT[:9], max_tokens=30, ignore_eos=True)
    state = h.core.state.scheduling
    h.settle()
    [first] = state.running.values()
    while first.progress.scheduled < 28:
        h.run_step()
    assert len(state.running) == 2
    h.submit(front, [2] * 9, max_tokens=4)
    h.run_step()
    assert len(state.leaving) == 1
    assert state.pool is not None
    assert state.pool.num_free >= state.kv_groups.needed(10) + 2, "a newcomer could start"
    while state.leaving:
        assert len(state.running) == 2
        h.run_step()
    assert first.progress.scheduled > 28
    h.run()
