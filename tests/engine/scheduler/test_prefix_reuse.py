"""Who computes what: shared prefixes, forks, swaps, seen through the plans that a worker gets."""

from __future__ import annotations

import pytest

from penstock.protocol.to_worker import Plan
from tests.engine.harness import Harness
from tests.engine.scores import RequestScore


def computed(h: Harness) -> int:
    """Tokens that the worker has computed."""
    assert h.worker is not None
    return sum(work.count for plan in h.worker.log for work in plan.work)


def kinds(h: Harness) -> list[str]:
    assert h.worker is not None
    return [copy.kind for plan in h.worker.log for copy in plan.copies]


PROMPT = list(range(1, 31))
ENDLESS = {"ignore_eos": True}


def test_a_second_request_computes_only_what_the_first_did_not() -> None:
    h = Harness(block_size=4, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker()
    first = h.submit(front, PROMPT, max_tokens=3, **ENDLESS)
    h.run()
    before = computed(h)
    second = h.submit(front, [*PROMPT[:20], 39, 39], max_tokens=1)
    h.run()
    assert (first.cached, second.cached) == (0, 20)
    assert computed(h) - before == 2


def test_the_last_token_is_computed_even_where_all_is_known() -> None:
    h = Harness(block_size=4, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker()
    prompt = PROMPT[:20]
    for expected in (0, 16):
        request = h.submit(front, prompt, max_tokens=1)
        h.run()
        assert request.cached == expected


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_an_answer_is_found_too_when_it_comes_back_in_a_prompt(in_flight: int) -> None:
    """The last tokens of a block that is scheduled may be unknown for some steps."""
    h = Harness(block_size=4, max_num_batched_tokens=64, max_steps_in_flight=in_flight)
    front = h.connect()
    h.start_worker()
    first = h.submit(front, PROMPT[:10], max_tokens=12, **ENDLESS)
    h.run()
    answer = first.sequences[0].tokens
    second = h.submit(front, [*PROMPT[:10], *answer, 5], max_tokens=1)
    h.run()
    assert second.cached == 20  # The 22nd token was emitted, and never computed.


def test_what_a_resumed_request_finds_of_its_answer_is_not_of_its_prompt() -> None:
    h = Harness(block_size=4, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker()
    first = h.submit(front, PROMPT[:10], max_tokens=12, **ENDLESS)
    h.run()
    emitted = {0: first.sequences[0].tokens[:8]}
    before = computed(h)
    resumed = h.submit(front, PROMPT[:10], emitted=emitted, max_tokens=12, **ENDLESS)
    h.run()
    assert computed(h) - before == 2 + 3, "16 of its 18 tokens are there, and 4 are sampled"
    assert resumed.cached == 10


@pytest.mark.parametrize(("delivered", "expected"), [(0, 0), (6, 4), (9, 8), (29, 28)])
def test_who_is_told_of_its_prompt_reuses_only_what_it_was_told_of(
    delivered: int, expected: int
) -> None:
    """The harness compares what it is told with what it should be."""
    h = Harness(block_size=4, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker()
    h.submit(front, PROMPT, max_tokens=1)
    h.run()
    told = h.submit(front, PROMPT, max_tokens=1, prompt_logprobs=0, delivered=delivered)
    h.run()
    assert told.cached == expected
    assert len(told.sequences[0].prompt_logprobs) == 29


def test_another_salt_shares_nothing() -> None:
    h = Harness(block_size=4, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker()
    for salt, expected in (("a", 0), ("b", 0), ("", 0), ("a", 28)):
        request = h.submit(front, PROMPT, max_tokens=1, salt=salt)
        h.run()
        assert request.cached == expected


def test_another_tenant_shares_nothing() -> None:
    h = Harness(block_size=4, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker()
    for tenant, salt, expected in (("a", "", 0), ("b", "", 0), ("", "a", 0), ("a", "", 28)):
        request = h.submit(front, PROMPT, max_tokens=1, tenant=tenant, salt=salt)
        h.run()
        assert request.cached == expected


def test_without_prefix_caching_nothing_is_shared_between_requests() -> None:
    h = Harness(block_size=4, max_num_batched_tokens=64, prefix_caching=False)
    front = h.connect()
    h.start_worker()
    for _ in range(2):
        request = h.submit(front, PROMPT, max_tokens=1)
        h.run()
        assert request.cached == 0


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("length", [3, 20, 21, 30])
def test_a_prompt_with_n_answers_is_computed_once(length: int, prefix_caching: bool) -> None:
    h = Harness(
        block_size=4, max_num_batched_tokens=64, max_num_seqs=8, prefix_caching=prefix_caching
    )
    front = h.connect()
    h.start_worker()
    h.submit(front, PROMPT[:length], n=5, max_tokens=4, **ENDLESS)
    h.run()
    tail = (length - 1) % 4
    # The others compute the last token, for its logits; the rest they share, or copy.
    assert computed(h) == length + 4 + 5 * 3
    assert kinds(h) == ["device"] * (4 if tail else 0)


def test_requests_with_one_prefix_that_come_together_compute_it_once() -> None:
    h = Harness(block_size=4, max_num_batched_tokens=8, max_num_seqs=8)
    front = h.connect()
    requests = [h.submit(front, [*PROMPT[:24], 30 + i], max_tokens=1) for i in range(6)]
    h.start_worker()
    h.run()
    assert computed(h) == 25 + 5
    assert [request.cached for request in requests] == [0, 24, 24, 24, 24, 24]


def test_who_waits_for_a_prefix_starts_when_its_maker_is_gone() -> None:
    h = Harness(block_size=4, max_num_batched_tokens=8, max_num_seqs=8)
    front = h.connect()
    first = h.submit(front, PROMPT, max_tokens=1)
    second = h.submit(front, PROMPT, max_tokens=2, **ENDLESS)
    h.start_worker()
    h.run_step()
    h.abort(front, first)
    h.run()
    assert second.sequences[0].terminal is not None
    assert len(second.sequences[0].tokens) == 2


def test_who_leaves_takes_no_one_elses_blocks_out_of_the_making() -> None:
    """The first computes the last of five blocks, and so does the second, which has found four; the
    third still waits for it when the second is gone."""
    h = Harness(block_size=4, max_num_batched_tokens=18, max_steps_in_flight=3)
    front = h.connect()
    h.start_worker()
    h.submit(front, PROMPT[:20], max_tokens=1)
    second = h.submit(front, PROMPT[:20], max_tokens=1)
    h.run_step()
    assert [[work.start for work in plan.work] for plan, _ in h.plans] == [[18], [16]]
    h.abort(front, second)
    third = h.submit(front, PROMPT[:24], max_tokens=1)
    h.run()
    assert third.cached == 20


def swapping(mode: str, host_blocks: int) -> tuple[Harness, list[RequestScore]]:
    """Three sequences that fit one by one, in a pool of 64 tokens."""
    h = Harness(
        max_model_len=64,
        block_size=4,
        max_num_batched_tokens=32,
        max_num_seqs=3,
        preemption_mode=mode,
    )
    front = h.connect()
    h.start_worker(16, host_blocks=host_blocks)
    requests = [h.submit(front, [i + 1] * 3, max_tokens=40, **ENDLESS) for i in range(3)]
    h.run()
    assert h.core.state.scheduling.num_preemptions > 0
    return h, requests


def test_swapped_sequences_compute_again_only_their_last_block() -> None:
    h, _ = swapping("swap", 64)
    recomputed = computed(h) - 3 * (3 + 40 - 1)
    assert {"in", "out"} <= set(kinds(h))
    assert recomputed <= 4 * h.core.state.scheduling.num_preemptions


def test_recomputed_sequences_compute_all_again() -> None:
    h, _ = swapping("recompute", 64)
    assert "in" not in kinds(h)  # what other sequences left behind may go out
    again, _ = swapping("swap", 64)
    assert computed(h) > computed(again) + 20


def test_a_host_tier_of_one_block_is_enough_to_stay_right() -> None:
    h, _ = swapping("swap", 1)  # the harness compares the tokens
    assert h.core.state.scheduling.cache is not None
    assert h.core.state.scheduling.cache.host is not None
    assert h.core.state.scheduling.cache.host.num_used <= 1


def test_evicted_prefixes_come_back_from_the_host() -> None:
    h = Harness(block_size=4, max_num_batched_tokens=64, max_model_len=64)
    front = h.connect()
    h.start_worker(16, host_blocks=32)
    h.submit(front, PROMPT, max_tokens=1)
    h.run()
    h.submit(front, [39 - token for token in range(38)] + [1] * 20, max_tokens=1)
    h.run()
    again = h.submit(front, PROMPT, max_tokens=1)
    h.run()
    assert again.cached == 28
    assert "in" in kinds(h)


def test_a_plan_without_copies_is_as_small_as_before() -> None:
    assert Plan(1, 0, [], [], []).copies == []
