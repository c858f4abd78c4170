"""How many requests, tokens and sequences may wait."""

from __future__ import annotations

import pytest

from tests.engine.handlers.test_requests import end_of, ready
from tests.engine.harness import Harness
from tests.engine.scores import undisturbed
from tests.engine.walked_harness import POLICIES


def test_too_many_waiting_requests_are_refused_for_now() -> None:
    h = Harness(max_waiting_requests=3)
    front = h.connect()
    requests = [h.submit(front, [1]) for _ in range(5)]
    assert [r.accepted for r in requests] == [True] * 3 + [False] * 2
    rejected = requests[4].rejected
    assert rejected is not None
    assert rejected.code == "overloaded"
    assert rejected.retry_after_ms > 0
    assert "3 requests are waiting" in rejected.message


def test_too_many_waiting_tokens_are_refused_for_now() -> None:
    h = Harness(max_waiting_tokens=50)
    front = h.connect()
    accepted = [h.submit(front, [1] * 20).accepted for _ in range(3)]
    assert accepted == [True, True, False]


def test_predictions_are_a_part_of_what_waits() -> None:
    h = Harness(max_waiting_tokens=50)
    front = h.connect()
    accepted = [h.submit(front, [1] * 4, prediction=[2] * 16).accepted for _ in range(3)]
    assert accepted == [True, True, False]
    assert h.submit(front, [1] * 4).accepted


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("running", [0, 3])
def test_what_has_a_slot_free_is_not_waiting(policy: str, running: int) -> None:
    """8 slots, 4 may wait, 12 come at once: as many are taken as if each had had its step."""
    h, front = ready(max_num_seqs=8, max_waiting_requests=4, scheduling_policy=policy)
    before = [h.submit(front, [9], max_tokens=30, ignore_eos=True) for _ in range(running)]
    h.run_step()
    burst = [h.submit(front, [1, at], tenant=f"t{at}", max_tokens=4) for at in range(16)]
    assert [request.accepted for request in burst] == [True] * (12 - running) + [False] * (
        4 + running
    )
    rejected = burst[-1].rejected
    assert rejected is not None
    assert "4 requests are waiting, the maximum is 4" in rejected.message
    h.run_step()
    assert len(h.core.state.scheduling.running) == 8
    h.run()
    assert all(end_of(request).finish for request in before)


def test_slots_without_blocks_let_nobody_start() -> None:
    """Prompts of which two fill the pool: of eight slots six are free in vain."""
    h, front = ready(blocks=10, max_num_seqs=8, max_waiting_requests=2, max_model_len=40)
    burst = [h.submit(front, [1] * 15 + [at], max_tokens=1) for at in range(8)]
    assert [request.accepted for request in burst] == [True] * 4 + [False] * 4


def test_without_a_worker_everything_waits() -> None:
    h = Harness(max_num_seqs=8, max_waiting_requests=4)
    front = h.connect()
    assert [h.submit(front, [at]).accepted for at in range(6)] == [True] * 4 + [False] * 2


def test_a_burst_for_many_slots_is_taken_whole() -> None:
    """More than are looked at first."""
    h, front = ready(max_num_seqs=100, max_waiting_requests=3)
    burst = [h.submit(front, [at % 30], max_tokens=1) for at in range(110)]
    assert [request.accepted for request in burst] == [True] * 103 + [False] * 7


def test_tokens_and_sequences_of_what_can_start_do_not_count_either() -> None:
    h, front = ready(max_num_seqs=2, max_waiting_requests=4, max_waiting_tokens=20)
    assert [h.submit(front, [1] * 15 + [at]).accepted for at in range(4)] == [
        *[True] * 3,
        False,
    ]
    h, front = ready(max_num_seqs=2, max_waiting_requests=1)
    # Four sequences may wait for each request that may; two of the six can start.
    assert [h.submit(front, [1], n=6).accepted for _ in range(2)] == [True, False]


def test_n_counts_too() -> None:
    h = Harness(max_waiting_requests=2)
    front = h.connect()
    accepted = [h.submit(front, [1], n=n).accepted for n in (6, 3, 2)]
    assert accepted == [True, False, True]


def test_a_request_larger_than_the_bound_waits_alone() -> None:
    h = Harness(max_waiting_tokens=10)
    front = h.connect()
    assert h.submit(front, [1] * 30).accepted
    assert not h.submit(front, [1]).accepted


def test_retry_after_follows_the_service_rate() -> None:
    """Two requests leave the queue each second; the first that is refused may come in half of
    one, the fifth in two and a half."""
    h, front = ready(max_num_seqs=1, max_waiting_requests=30)
    for _ in range(30):
        h.submit(front, [1], max_tokens=1, ignore_eos=True)
    for _ in range(12):
        h.now += 0.5
        h.run_step()
    waits = []
    while len(waits) < 5:
        rejected = h.submit(front, [1]).rejected
        if rejected is not None:
            waits.append(rejected.retry_after_ms / 1000)
    assert waits[0] == pytest.approx(0.5, rel=0.2)
    assert waits[4] == pytest.approx(2.5, rel=0.2)


def test_a_resumed_submit_is_not_refused_for_lack_of_room() -> None:
    h = Harness(max_waiting_requests=1)
    front = h.connect()
    assert h.submit(front, [1]).accepted
    assert not h.submit(front, [1]).accepted
    assert h.submit(front, [1], deaths=1).accepted
    assert h.submit(front, [1], resumed=True).accepted
    expected = undisturbed(h.submit(front, [1], seed=3).submit, 0, 64)[0]
    assert h.submit(front, [1], seed=3, emitted={0: expected[:1]}).accepted
