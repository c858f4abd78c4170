"""Tokens that nobody reads as they come go out several at a time, and lose nothing."""

from __future__ import annotations

import pytest

from penstock_engine.kv.pool import BrokenState
from penstock_engine.sessions.gathered_outputs import MOST_HELD
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore, undisturbed

LONG = 3 * MOST_HELD


def started(**options: int) -> tuple[Harness, Front]:
    h = Harness(max_model_len=128, block_size=4, max_num_seqs=4, **options)
    front = h.connect()
    h.start_worker(100)
    return h, front


def long_request(h: Harness, front: Front, *, gathered: bool = True, n: int = 1) -> RequestScore:
    return h.submit(
        front, [5, 6, 7], n=n, max_tokens=LONG, ignore_eos=True, gathered=gathered, settle=True
    )


def messages(h: Harness, front: Front) -> int:
    """Outputs that came until everything was done."""
    before = front.num_outputs
    h.run()
    return front.num_outputs - before


def told(request: RequestScore, index: int = 0) -> int:
    return len(request.sequences[index].tokens)


def test_a_front_end_is_told_rarely_and_of_every_token() -> None:
    h, front = started()
    request = long_request(h, front, gathered=False)
    alone = messages(h, front)
    expected = request.sequences[0].tokens
    gathered = long_request(h, front)
    assert messages(h, front) <= 2 + -(-LONG // MOST_HELD)
    assert alone >= LONG
    assert gathered.sequences[0].tokens == expected
    assert expected == undisturbed(gathered.submit, 0, 128)[0]


def test_sequences_that_began_at_different_times_are_told_of_together() -> None:
    h, front = started()
    requests: list[RequestScore] = []
    for _ in range(4):
        requests.append(long_request(h, front))
        for _ in range(3):
            h.run_step()
    assert messages(h, front) <= 3 + 2 * len(requests)
    for request in requests:
        assert request.over
        assert told(request) == LONG


def test_the_first_token_comes_at_once_also_after_a_worker_has_died() -> None:
    h, front = started()
    request = long_request(h, front)
    h.run_step()
    assert told(request) == 1
    for _ in range(5):
        h.run_step()
    assert told(request) == 1
    h.kill_worker()  # It is in no step any more: what was held is told.
    held = told(request)
    assert held > 4
    h.start_worker(100)
    h.run_step()
    assert told(request) == held + 1
    h.run()
    assert request.sequences[0].tokens == undisturbed(request.submit, 0, 128)[0]


def test_a_deadline_brings_what_was_held() -> None:
    h, front = started()
    request = h.submit(
        front, [5, 6], max_tokens=LONG, ignore_eos=True, gathered=True, time_left_ms=1000
    )
    for _ in range(6):
        h.run_step()
    h.now += 2
    h.settle()
    terminal = request.sequences[0].terminal
    assert terminal is not None
    assert terminal.finish == "timeout"
    assert told(request) >= 5


def test_nothing_is_kept_of_what_has_ended() -> None:
    h, front = started()
    request = long_request(h, front, n=2)
    for _ in range(6):
        h.run_step()
    session = h.core.state.frontends.get(front.session)
    assert session is not None
    assert len(list(session.gathered)) == 2
    h.abort(front, request)
    assert not list(session.gathered)


def test_the_audit_finds_outputs_of_what_has_ended() -> None:
    h, front = started()
    long_request(h, front)
    h.run_step()
    session = h.core.state.frontends.get(front.session)
    assert session is not None
    session.gathered._held[77, 0] = []
    with pytest.raises(BrokenState, match="request 77 are held"):
        h.core.check()
