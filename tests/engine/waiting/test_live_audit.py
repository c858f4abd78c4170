"""Which answers are computed again, when, and what comes of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.protocol.common import Grammar, Repetition
from penstock.protocol.from_worker import Result
from penstock_engine.waiting import live_audit
from penstock_engine.waiting.live_audit import LiveAudit
from tests.engine.fake_adapters import adapter
from tests.engine.fake_disk import FakeDisk
from tests.engine.fake_media import drawn_media
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def started(share: float = 1.0, **options: Any) -> tuple[Harness, Front]:
    h = Harness(audit_share=share, **options)
    front = h.connect()
    h.start_worker()
    return h, front


def audits(h: Harness) -> LiveAudit:
    found = h.core.state.audits
    assert found is not None
    return found


def ask(h: Harness, front: Front, prompt: list[int] = PROMPT, **more: Any) -> RequestScore:
    return h.submit(front, prompt, **{"ignore_eos": True, **more})


def until_replayed(h: Harness) -> None:
    """Until a replay has computed some of its tokens."""
    while audits(h).sequence is None or len(audits(h).sequence.emitted) < 3:
        assert h.run_step() is not None


def test_off_by_default() -> None:
    assert Harness().core.state.audits is None


def test_each_kind_of_answer_is_reproduced() -> None:
    h, front = started()
    ask(h, front, n=3, seed=5)
    ask(h, front, logprobs=2, prompt_logprobs=1)
    ask(h, front, grammar=Grammar("regex", "3"), ignore_eos=False)
    ask(h, front, min_tokens=4, ignore_eos=False, max_tokens=20)
    ask(h, front, stop_token_ids=tuple(range(0, 40, 3)), max_tokens=20)
    ask(h, front, repetition=Repetition(1, 2, 2), max_tokens=30)
    h.run()
    begun = front.requests[2].sequences[0].tokens
    ask(h, front, emitted={0: begun[:2]}, resumed=True)
    h.run()
    assert (audits(h).equal, audits(h).different, dict(audits(h).skipped)) == (9, 0, {})


def test_the_client_sees_nothing_of_it() -> None:
    h, front = started()
    request = ask(h, front, gathered=True)
    status_before = h.core.state.counts.ended.copy()
    h.run()
    assert request.sequences[0].logprobs == []
    counts = h.core.state.counts
    assert sum(counts.ended.values()) == sum(status_before.values()) + 1
    assert counts.generation_tokens == {"anonymous": 8}
    assert sum(counts.step_sequences.counts) == 8
    assert h.core.state.scheduling.num_steps == 16
    assert audits(h).equal == 1


def test_the_share_hangs_on_the_requests_id_alone() -> None:
    chosen = []
    for _ in range(2):
        h, front = started(0.25, max_waiting_requests=500, max_waiting_tokens=10_000)
        for _ in range(80):
            ask(h, front, [1], max_tokens=1)
        h.run()
        chosen.append(audits(h).equal)
    assert chosen[0] == chosen[1]
    assert 8 <= chosen[0] <= 35


def test_a_request_waits_for_no_more_than_the_step_that_runs() -> None:
    h, front = started(max_steps_in_flight=3)
    ask(h, front)
    until_replayed(h)
    done = len(audits(h).sequence.emitted)
    assert h.core.state.scheduling.num_in_flight == 1
    other = ask(h, front, [20, 21])
    assert audits(h).sequence is None
    assert h.core.state.scheduling.num_in_flight == 1
    h.run_step()
    h.run_step()
    assert len(other.sequences[0].tokens) == 1
    steps = h.core.state.scheduling.num_steps
    h.run()
    assert (audits(h).equal, audits(h).different) == (2, 0)
    # The interrupted one went on where it was: its tokens are a prompt's now.
    left = h.core.state.scheduling.num_steps - steps
    assert left < 7 + 8 + 8 - done + 3


def test_it_uses_and_leaves_nothing_in_the_cache() -> None:
    h, front = started()
    ask(h, front, max_tokens=12)
    h.run()
    cache = h.core.state.scheduling.cache
    assert cache is not None
    cached = cache.num_cached
    again = ask(h, front, max_tokens=12)
    h.run()
    assert again.cached == 8
    assert cache.num_cached == cached
    assert (audits(h).equal, audits(h).different) == (2, 0)


def test_nothing_of_a_replay_is_kept_on_disk() -> None:
    """Nobody could find it there: its blocks are named for it alone."""
    kept = []
    for share in (0.0, 1.0):
        h = Harness(audit_share=share)
        h.disk = FakeDisk()
        front = h.connect()
        h.start_worker()
        ask(h, front, max_tokens=12)
        h.run()
        assert share == 0.0 or audits(h).equal == 1
        kept.append(set(h.disk.kept))
    assert kept[1] == kept[0]
    assert kept[0]


def test_a_death_during_a_replay_accuses_nobody() -> None:
    h, front = started()
    request = ask(h, front)
    until_replayed(h)
    h.kill_worker()
    assert dict(audits(h).skipped) == {"worker_lost": 1}
    h.start_worker()
    other = ask(h, front)
    h.run()
    assert (request.over, other.over) == (True, True)
    assert other.sequences[0].deaths == 0
    assert audits(h).equal == 1


def test_held_audits_are_bounded_in_number_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_audit, "MAX_AUDITS", 2)
    h, front = started()
    ask(h, front, n=4)
    h.run()
    assert (audits(h).equal, dict(audits(h).skipped)) == (2, {"full": 2})
    monkeypatch.setattr(live_audit, "MAX_AUDITS", 64)
    monkeypatch.setattr(live_audit, "MAX_AUDIT_TOKENS", 40)
    ask(h, front, n=4)
    h.run()
    assert (audits(h).equal, dict(audits(h).skipped)) == (4, {"full": 4})


def test_what_waits_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_audit, "MAX_AUDIT_AGE", 1.0)
    h, front = started()
    ask(h, front, max_tokens=2)
    ask(h, front, [9, 9], max_tokens=40)  # It keeps the engine core busy.
    for _ in range(6):
        h.run_step()
    assert audits(h).num_held == 1
    h.now += 0.75
    h.settle()
    assert audits(h).num_held == 1
    assert h.core.next_deadline() <= h.now + 0.25
    h.now += 0.25
    h.settle()
    assert dict(audits(h).skipped) == {"busy": 1}
    h.run()


def test_what_cannot_be_audited_is_counted() -> None:
    h, front = started()
    aborted = ask(h, front)
    h.run_step()
    h.run_step()
    h.abort(front, aborted)
    h.run()
    assert dict(audits(h).skipped) == {"aborted": 1}
    h, front = started()
    h.media_rows = 12
    h.kill_worker()
    h.start_worker()
    ask(h, front, [1] * 20, media=drawn_media(lambda low, high: high, 20))
    h.run()
    assert dict(audits(h).skipped) == {"media": 1}


def test_a_wrong_adapter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker takes another one's places while the answer is computed, and the right ones
    later."""
    h, front = started(max_loras=2)
    for number in (1, 2):
        ask(h, front, adapter=adapter(number))
        h.run()
    assert (audits(h).equal, audits(h).different) == (2, 0)
    worker = h.worker
    assert worker is not None
    execute = worker.execute

    def mixed_up(plan: Any) -> Result:
        wrong = [
            msgspec.structs.replace(new, adapter=adapter(2).digest) if new.adapter else new
            for new in plan.admitted
        ]
        return execute(msgspec.structs.replace(plan, admitted=wrong))

    with monkeypatch.context() as patched:
        patched.setattr(worker, "execute", mixed_up)
        # The front end would see that at once.
        patched.setattr(h, "_take", lambda request, output: None)
        patched.setattr(h, "_check_in_step", lambda running, internal_errors: None)
        ask(h, front, [30, 31], adapter=adapter(1), max_tokens=3)
        while h.core.has_open_requests:
            h.run_step()
    h.disconnect(front)
    h.run()
    assert audits(h).found == {"none": 1}
