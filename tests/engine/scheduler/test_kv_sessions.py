"""Sessions: what was computed for one is there when it comes back, and others still run."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock.protocol.common import SessionTerms
from penstock_engine.kv.pool import BrokenState
from penstock_engine.kv.retention import KVSession
from penstock_engine.scheduler import kv_sessions
from tests.engine.fake_disk import FakeDisk
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore

TURN = list(range(3, 33))
BLOCKS = 40


def made(**options: Any) -> tuple[Harness, Front]:
    h = Harness(max_model_len=64, max_num_batched_tokens=64, **options)
    front = h.connect()
    h.start_worker(BLOCKS)
    return h, front


def ask(h: Harness, front: Front, prompt: list[int], **fields: Any) -> RequestScore:
    asked = h.submit(front, prompt, max_tokens=3, ignore_eos=True, **fields)
    h.run()
    return asked


def others(h: Harness, front: Front, count: int = 12) -> None:
    """Fill the pool several times over."""
    for at in range(count):
        ask(h, front, [at % 30 + 3, at // 30 + 3] * 14, salt=f"other {at}")


@pytest.mark.parametrize(("terms", "found"), [(None, 0), (SessionTerms("a"), 28)])
def test_a_session_finds_what_others_would_have_displaced(
    terms: SessionTerms | None, found: int
) -> None:
    h, front = made()
    ask(h, front, TURN, session=terms)
    others(h, front)
    assert ask(h, front, [*TURN, 5, 6], session=terms).cached == found


def test_its_time_is_over_as_the_settings_and_the_request_say() -> None:
    h, front = made()
    ask(h, front, TURN, session=SessionTerms("a"))
    ask(h, front, TURN[::-1], session=SessionTerms("b", retention_s=30.0))
    h.now += 60.0
    others(h, front)
    assert ask(h, front, TURN).cached == 28
    assert ask(h, front, TURN[::-1]).cached == 0
    h.now += 61.0
    h.settle()
    assert h.core.state.kv_sessions.num_live == 0
    others(h, front)
    assert ask(h, front, TURN).cached == 0


def test_a_session_that_is_back_is_kept_from_then_on() -> None:
    h, front = made()
    for _ in range(4):
        ask(h, front, TURN, session=SessionTerms("a", retention_s=10.0))
        h.now += 8.0
    others(h, front)
    assert ask(h, front, TURN).cached == 28


def test_whoever_runs_gets_the_blocks_in_any_case() -> None:
    h, front = made(session_share=1.0)
    for at in range(5):
        ask(h, front, [at + 3] * 30, session=SessionTerms(str(at)))
    assert h.core.state.scheduling.cache is not None
    assert h.core.state.scheduling.cache.retention.num_blocks > BLOCKS // 2
    asked = [h.submit(front, [at + 9] * 50, max_tokens=10, ignore_eos=True) for at in range(4)]
    h.run()
    assert [len(each.sequences[0].tokens) for each in asked] == [10] * 4
    assert not h.core.state.scheduling.num_preemptions


def test_names_are_each_tenants_own_and_nothing_is_left_of_one_that_keeps_nothing() -> None:
    h, front = made()
    ask(h, front, TURN, session=SessionTerms("a"), tenant="x")
    ask(h, front, TURN, session=SessionTerms("a"), tenant="y")
    assert h.core.state.kv_sessions.num_live == 2
    for at in range(9):
        ask(h, front, [at + 3], session=SessionTerms(f"short {at}"))
    assert h.core.state.kv_sessions.num_live == 2, "no block was filled"
    h.kill_worker()
    assert h.core.state.kv_sessions.num_live == 0
    h.start_worker(BLOCKS)
    assert ask(h, front, TURN, session=SessionTerms("a"), tenant="x").cached == 0


def test_a_session_of_a_request_that_waits_outlives_the_worker() -> None:
    h, front = made()
    asked = h.submit(front, TURN, max_tokens=3, ignore_eos=True, session=SessionTerms("a"))
    h.kill_worker()
    h.start_worker(BLOCKS)
    h.run()
    others(h, front)
    assert len(asked.sequences[0].tokens) == 3
    assert ask(h, front, TURN).cached == 28


def test_without_prefix_caching_there_are_none() -> None:
    h, front = made(prefix_caching=False)
    ask(h, front, TURN, session=SessionTerms("a"))
    assert h.core.state.kv_sessions.num_live == 0


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (SessionTerms(""), "session_id is empty"),
        (SessionTerms("a" * 257), "session_id has 257 characters; at most 256"),
        (SessionTerms("a", -1.0), "kv_retention_seconds is -1; it must lie in 0 to 86400"),
        (SessionTerms("a", 3601.0), "kv_retention_seconds is 3601; it must lie in 0 to 3600"),
        (SessionTerms("a", None, 1e9), r"kv_hint.resume_within_s is 1e\+09"),
    ],
)
def test_what_no_session_can_have_is_refused(terms: SessionTerms, said: str) -> None:
    h, front = made()
    asked = ask(h, front, TURN, session=terms)
    assert asked.rejected is not None
    assert re.search(said, asked.rejected.message)


def test_check_notices_a_session_that_miscounts() -> None:
    h, front = made()
    ask(h, front, TURN, session=SessionTerms("a"))
    (session,) = h.core.state.kv_sessions._sessions.values()
    session.num_open = 1
    with pytest.raises(BrokenState, match="open requests"):
        h.core.check()
    session.num_open = 0
    h.core.state.kv_sessions._sessions.clear()
    with pytest.raises(BrokenState, match="forgotten"):
        h.core.check()


def test_a_session_that_says_when_it_is_back_is_kept_no_longer_than_that() -> None:
    h, front = made()
    ask(h, front, TURN, session=SessionTerms("a", resume_within_s=10.0))
    h.now += 21.0
    others(h, front)
    h.now += 2.0
    h.settle()
    assert h.core.state.kv_sessions.num_live == 0
    others(h, front)
    assert ask(h, front, TURN).cached == 0


def test_without_a_tier_below_a_long_absence_is_kept_for_as_long_as_any() -> None:
    h, front = made()
    ask(h, front, TURN, session=SessionTerms("a", resume_within_s=1000.0))
    h.now += 100.0
    others(h, front)
    assert ask(h, front, TURN).cached == 28


def test_who_is_long_away_goes_down_to_the_host_and_is_brought_back_in_time() -> None:
    h = Harness(max_model_len=64, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker(BLOCKS, host_blocks=200)
    ask(h, front, TURN, session=SessionTerms("a", resume_within_s=200.0))
    cache = h.core.state.scheduling.cache
    assert cache is not None
    assert cache.retention.num_blocks == 0
    others(h, front)
    assert cache.num_swapped_out
    assert h.core.next_deadline() <= 298.0 + h.now - 100.0
    h.now = 298.0
    h.settle()
    assert h.core.state.counts.prefetched == {"host": 8, "disk": 0}
    assert cache.retention.num_blocks == 8
    others(h, front)
    swapped = cache.num_swapped_in
    h.now = 300.0
    assert ask(h, front, TURN).cached == 28
    assert cache.num_swapped_in == swapped, "it was in the pool"


def test_who_is_long_away_is_read_from_disk_in_time() -> None:
    h = Harness(max_model_len=64, max_num_batched_tokens=64)
    h.disk = FakeDisk()
    front = h.connect()
    h.start_worker(BLOCKS)
    ask(h, front, TURN, session=SessionTerms("a", resume_within_s=200.0))
    others(h, front)
    h.now = 298.0
    h.disk_at_once = False
    h.settle()
    # It is early: it waits for what is being read for it already.
    asked = h.submit(front, TURN, max_tokens=3, ignore_eos=True, session=SessionTerms("a"))
    assert h.core.state.remote_kv.num_waiting == 1
    assert h.core.state.disk_kv.num_fetches == 1
    h.disk_at_once = True
    h.answer_disk()
    h.run()
    assert asked.cached == 28
    assert h.core.state.counts.prefetched == {"host": 0, "disk": 8}
    others(h, front)
    assert ask(h, front, TURN).cached == 28


def test_a_session_that_is_expected_survives_the_worker() -> None:
    h = Harness(max_model_len=64, max_num_batched_tokens=64)
    h.disk = FakeDisk()
    front = h.connect()
    h.start_worker(BLOCKS)
    ask(h, front, TURN, session=SessionTerms("a", resume_within_s=200.0))
    h.kill_worker()
    h.start_worker(BLOCKS)
    h.now = 298.0
    h.settle()
    h.run()
    assert h.core.state.counts.prefetched["disk"] >= 7, "the last one may not have been saved"
    h.now += 1000.0
    h.settle()
    assert h.core.state.kv_sessions.num_live == 0


def test_what_is_expected_is_bounded_and_the_tenant_with_most_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_sessions, "MAX_EXPECTED_KEYS", 10)
    book = kv_sessions.ExpectedSessions()
    sessions = [KVSession(tenant, str(at), 1) for at, tenant in enumerate("aaab")]
    for at, session in enumerate(sessions):
        book.add(session, kv_sessions.Expected(9.0 - at, 10.0, [b"k"] * 3))
        book.check(sessions)
    assert [session in book for session in sessions] == [False, True, True, True]
    book.add(sessions[0], kv_sessions.Expected(1.0, 2.0, [b"k"] * 11))
    assert sessions[0] not in book
    assert book.next_deadline() == 6.0
    assert [session.name for session, _ in book.due(7.0)] == ["3", "2"]
    assert book.num_keys == 3


def test_nothing_is_left_of_a_session_that_is_expected_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_sessions, "MAX_EXPECTED_KEYS", 10)
    h = Harness(max_model_len=64, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker(BLOCKS, host_blocks=200)
    for at in range(3):
        ask(h, front, [at + 3] * 30, session=SessionTerms(str(at), resume_within_s=200.0))
        h.now += 1.0
    h.settle()
    assert h.core.state.kv_sessions.num_live == 1
