"""Stages: every one of them has a step to compute, and knows all tokens that are in it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol.common import Grammar
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_engine.scheduler.scheduler import Scheduler
from tests.engine.rank_workers import RankHarness
from tests.engine.scores import RequestScore


def decoding(count: int, stages: int, **options: Any) -> RankHarness:
    """So many sequences decode, and have for a while."""
    settings = {"max_num_seqs": 32, "max_num_batched_tokens": 256, **options}
    h = RankHarness(1, stages, **settings)
    h.connect()
    h.start_worker()
    for at in range(count):
        ask(h, [3 + at] * 3)
    for _ in range(3 * count):
        h.run_step()
    return h


def ask(h: RankHarness, prompt: list[int], **more: Any) -> RequestScore:
    terms = {"max_tokens": 50, "ignore_eos": True, **more}
    return h.submit(h.fronts[0], prompt, **terms)


def slots(plan: Plan) -> list[int]:
    return sorted(work.slot for work in plan.work)


def in_flight(h: RankHarness) -> list[list[int]]:
    return [slots(plan) for plan, _ in h.plans]


def test_eight_sequences_over_two_stages_are_two_steps_of_four_that_alternate() -> None:
    h = decoding(8, 2)
    first, second = in_flight(h)
    assert len(first) == len(second) == 4
    assert sorted(first + second) == list(range(8))
    for _ in range(3):
        h.run_step()
        assert in_flight(h) == [second, first]
        h.run_step()
        assert in_flight(h) == [first, second]


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_steps_are_as_even_as_can_be_and_nobody_waits_long(count: int, stages: int) -> None:
    h = decoding(count, stages)
    assert len(h.plans) == min(count, stages)
    sizes = [len(step) for step in in_flight(h)]
    assert sum(sizes) == count
    assert max(sizes) <= -(-count // stages)
    last = dict.fromkeys(range(count), 0)
    for at in range(1, 6 * stages):
        assert h.plan is not None
        for slot in slots(h.plan):
            assert at - last[slot] <= stages + 1
            last[slot] = at
        h.run_step()


def test_steps_become_even_again_when_sequences_end_or_come() -> None:
    h = decoding(8, 2)
    for request in list(h.fronts[0].requests.values())[:3]:
        h.abort(h.fronts[0], request)
    for _ in range(4):
        h.run_step()
    assert sorted(len(step) for step in in_flight(h)) == [2, 3]
    for at in range(5):
        ask(h, [20 + at])
    for _ in range(6):
        h.run_step()
    assert [len(step) for step in in_flight(h)] == [5, 5]


def test_more_steps_may_be_in_flight_than_there_are_stages() -> None:
    h = decoding(6, 2, max_steps_in_flight=3)
    assert [len(step) for step in in_flight(h)] == [2, 2, 2]


def test_a_plan_tells_what_the_last_stage_sampled() -> None:
    h = RankHarness(1, 2, max_num_batched_tokens=4)
    h.connect()
    h.start_worker()
    request = ask(h, [3] * 10, max_tokens=3)
    works: list[SlotWork] = []
    while h.plan is not None:
        works += h.plan.work
        h.run_step()
    tokens = request.sequences[0].tokens
    shown = [(work.start, work.count, work.sampled) for work in works]
    assert shown[:3] == [(0, 4, []), (4, 4, []), (8, 2, [])]
    assert shown[3:] == [(10, 1, tokens[:1]), (11, 1, tokens[1:2])]


def spans(h: RankHarness) -> list[list[tuple[int, int]]]:
    """(first token, tokens) of the works of each step in flight."""
    return [[(work.start, work.count) for work in plan.work] for plan, _ in h.plans]


def prefilling(stages: int, prompt: int, **more: Any) -> tuple[RankHarness, RequestScore]:
    """One prompt, over steps of 4 tokens."""
    h = RankHarness(1, stages, max_num_batched_tokens=4)
    h.connect()
    h.start_worker()
    return h, ask(h, [3 + at % 7 for at in range(prompt)], **{"max_tokens": 3, **more})


def test_chunks_of_one_prompt_follow_each_other_and_nothing_follows_what_samples() -> None:
    h, request = prefilling(2, 14)
    seen = []
    while h.plans:
        seen.append(spans(h))
        h.run_step()
    assert seen[:4] == [
        [[(0, 4)], [(4, 4)]],
        [[(4, 4)], [(8, 4)]],
        [[(8, 4)], [(12, 2)]],
        [[(12, 2)]],
    ]
    assert seen[4:] == [[[(14, 1)]], [[(15, 1)]]]
    assert len(request.sequences[0].tokens) == 3


def test_one_long_prompt_keeps_all_stages_busy() -> None:
    h, _ = prefilling(4, 40)
    assert spans(h) == [[(0, 4)], [(4, 4)], [(8, 4)], [(12, 4)]]


def test_chunks_that_tell_about_their_prompt_follow_each_other_too() -> None:
    h, request = prefilling(2, 14, prompt_logprobs=1)
    seen = []
    while h.plans:
        seen.append(spans(h))
        h.run_step()
    assert seen[:3] == [[[(0, 4)], [(4, 4)]], [[(4, 4)], [(8, 4)]], [[(8, 4)], [(12, 2)]]]
    assert len(request.sequences[0].prompt_logprobs) == 13


def test_a_prompt_is_given_up_between_its_chunks() -> None:
    h, request = prefilling(2, 30)
    h.run_step()
    h.abort(h.fronts[0], request)
    assert len(h.plans) == 2, "what was sent is computed"
    assert h.core.state.scheduling.marked
    other = ask(h, [9] * 6, max_tokens=2)
    h.run()
    assert len(other.sequences[0].tokens) == 2
    assert request.sequences[0].tokens == []


def test_a_death_between_chunks_counts_once() -> None:
    h, request = prefilling(2, 30)
    assert len(h.plans) == 2
    h.kill_rank(0)
    (sequence,) = h.core.state.scheduling.queue.sequences()
    h.start_worker(ready=False)
    assert (sequence.deaths, sequence.suspect_until) == (1, 8)
    h.worker_ready()
    while sequence.suspect_until:
        assert len(h.plans) == 1, "alone, one step after the other"
        h.run_step()
    assert len(h.plans) == 2
    h.run()
    assert len(request.sequences[0].tokens) == 3


def test_blocks_of_settled_chunks_alone_are_shared() -> None:
    h, _ = prefilling(2, 40)
    h.run_step()
    cache = h.core.state.scheduling.cache
    assert cache is not None
    assert cache.num_cached == 1, "4 tokens are settled, 8 more in flight"


def test_what_was_told_once_is_not_told_again_when_a_mask_is_late() -> None:
    h = RankHarness(1, 2)
    h.connect()
    h.start_worker()
    late = iter([False, True, True, False])
    h.late = lambda: next(late, False)
    request = ask(h, [3] * 4, grammar=Grammar("regex", "3"), ignore_eos=False)
    told = []
    while h.plan is not None:
        told += [work.sampled for work in h.plan.work]
        h.run_step()
    tokens = request.sequences[0].tokens
    assert told[:5] == [[], tokens[:1], [], [], tokens[1:2]]


def test_who_resumes_brings_what_it_has_emitted() -> None:
    h = RankHarness(1, 2)
    h.connect()
    h.start_worker()
    request = ask(h, [3] * 4)
    for _ in range(3):
        h.run_step()
    h.kill_rank(0)
    h.start_worker()
    assert h.plan is not None
    assert h.plan.admitted[0].tokens == [3] * 4 + request.sequences[0].tokens
    assert h.plan.work[0].sampled == []
    h.run()


def test_long_steps_are_followed_until_every_stage_has_one() -> None:
    long = Scheduler.FOLLOWED_TOKENS + 1
    options = {"max_model_len": 4096, "max_num_batched_tokens": long, "max_steps_in_flight": 3}
    h = RankHarness(1, 2, **options)
    h.connect()
    h.start_worker(4000)
    for at in range(3):
        ask(h, [3 + at] * long, max_tokens=2)
    assert len(h.plans) == 2
    h.run()


def test_a_suspect_is_alone_in_every_stage() -> None:
    h = decoding(4, 2)
    h.kill_rank(1)
    h.start_worker()
    while any(s.suspect_until for s in h.core.state.scheduling.queue.sequences()):
        assert len(h.plans) == 1
        h.run_step()
    for _ in range(8):
        h.run_step()
    assert [len(step) for step in in_flight(h)] == [2, 2]


def test_all_take_turns_where_steps_go_one_by_one() -> None:
    """A suspect waits for a slot: nothing follows a step meanwhile."""
    h = decoding(4, 2, max_num_seqs=4)
    ask(h, [9], deaths=1)
    for _ in range(3):
        h.run_step()
    seen = []
    for _ in range(4):
        assert len(h.plans) == 1
        seen += in_flight(h)
        h.run_step()
    assert seen[0] != seen[1]
    assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == [0, 1, 2, 3]


def test_a_fair_step_counts_a_stages_part_of_what_is_in_flight() -> None:
    options = {"scheduling_policy": "fair", "max_num_batched_tokens": 16}
    h = RankHarness(1, 2, **options)
    h.connect()
    h.start_worker()
    for at in range(2):
        ask(h, [3 + at] * 16, max_tokens=2)
    assert [sum(work.count for work in plan.work) for plan, _ in h.plans] == [16, 8]
    h.run()


def test_one_stage_is_told_nothing_and_follows_itself() -> None:
    h = RankHarness(2, 1, max_steps_in_flight=2)
    h.connect()
    h.start_worker()
    ask(h, [3] * 3)
    assert in_flight(h) == [[0], [0]]
    h.run()
