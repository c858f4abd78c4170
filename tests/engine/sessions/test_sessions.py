"""Hello, versions, status, and workers that come, go and misbehave."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.config.settings import WorkerSettings
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_frontend import Abort, Hello
from penstock.protocol.from_worker import (
    Fault,
    Progress,
    Ready,
    Result,
    SlotResult,
    WorkerHello,
)
from penstock.protocol.to_frontend import SequenceOutput
from penstock.protocol.to_worker import Plan
from penstock_engine.sessions.fault_attribution import MAX_DEATHS
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore
from tests.engine.small_facts import facts


def end_of(request: RequestScore, index: int = 0) -> SequenceOutput:
    terminal = request.sequences[index].terminal
    assert terminal is not None
    return terminal


def status_of(h: Harness, front: Front) -> Any:
    h.now += 1.0
    h.settle()
    return front.status


# ---- front ends


def test_welcome_carries_what_a_front_end_needs() -> None:
    h = Harness(max_model_len=64)
    front = h.connect()
    assert front.welcome is not None
    assert front.welcome.version == 2
    assert front.welcome.model == "tiny"
    assert front.welcome.limits.max_model_len == 64
    h.start_worker(3)
    later = h.connect().welcome
    assert later is not None
    assert later.limits.max_model_len == 12


def test_no_common_version_ends_the_session_with_both_lists() -> None:
    h = Harness()
    front = h.connect(versions=(7, 9))
    assert front.welcome is None
    assert front.ended is not None
    assert "[2]" in front.ended
    assert "[7, 9]" in front.ended


def test_a_session_begins_with_hello_and_has_only_one() -> None:
    h = Harness()
    front = h.connect()
    h.send(front, Hello([2], "again", 1))
    assert front.ended is not None
    assert "twice" in front.ended
    h.core.frontend_opened(b"x" * 16, Abort(1), h.now)
    assert [reason for _, reason in h.core.step(h.now).end_frontends] == [
        "the first message must be Hello"
    ]
    h.core.frontend_received(b"y" * 16, Abort(1), h.now)  # never opened: ignored
    assert h.core.step(h.now).end_frontends == []


def test_status_comes_every_beat_and_at_once_when_readiness_changes() -> None:
    h = Harness()
    front = h.connect()
    assert front.status is not None
    assert (front.status.ready, front.status.reason) == (False, "no worker is connected")
    first = front.status
    h.now += 0.1
    h.settle()
    assert front.status is first
    h.now = max(h.now, h.core.next_deadline())
    h.settle()
    assert front.status is not first
    h.start_worker(ready=False)
    assert front.status.reason == "the worker is loading the model"
    h.worker_ready(50)
    assert front.status.ready
    assert (front.status.blocks_total, front.status.blocks_free) == (50, 50)
    assert (front.status.workers, front.status.fingerprint) == (1, "f")
    h.kill_worker()
    assert not front.status.ready


def test_readiness_proves_progress() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    h.now += 100
    assert status_of(h, front).ready  # nothing to do, for however long
    h.submit(front, [1] * 40, max_tokens=9)
    h.now += 8
    assert status_of(h, front).ready
    h.worker_says(Progress(1, 5))
    h.now += 8
    assert status_of(h, front).ready
    h.worker_says(Progress(1, 5))  # the same count again is no progress
    h.now += 3
    status = status_of(h, front)
    assert not status.ready
    assert status.reason == "no step has made progress for 10 s"
    h.run_step()
    assert front.status is not None
    assert front.status.ready


def test_workers_that_are_stuck_are_replaced_and_the_request_goes_on() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    h.now += 1000  # Nothing to do.
    h.settle()
    asked = h.submit(front, [1] * 40, max_tokens=9, ignore_eos=True)
    h.run_step()
    h.now += 299
    h.settle()
    assert h.worker_session is not None
    h.worker_says(Progress(h.plans[0][0].step, 5))
    h.now += 299
    h.settle()
    assert h.worker_session is not None
    h.now += 2
    h.settle()
    assert h.worker_end == "no step has made progress for 300 s (--stuck-timeout)"
    h.start_worker()
    h.run()
    assert end_of(asked).finish == "length"


def test_a_step_that_has_just_begun_is_not_stuck() -> None:
    """However long nothing could be computed before it, or the engine core itself was away."""
    h = Harness()
    front = h.connect()
    h.start_worker()
    h.now += 1000
    asked = h.submit(front, [1] * 40, max_tokens=9, ignore_eos=True)
    h.settle()
    assert h.worker_session is not None
    h.run()
    assert end_of(asked).finish == "length"


def test_a_request_that_workers_hang_of_ends() -> None:
    h = Harness()
    front = h.connect()
    asked = h.submit(front, [1] * 40, max_tokens=9, ignore_eos=True)
    for _ in range(MAX_DEATHS):
        h.start_worker()
        assert h.plans
        h.now += 301
        h.settle()
        assert h.worker_session is None
    assert end_of(asked).finish == "error"


def test_an_internal_error_ends_one_session_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness()
    h.allow_internal_errors = True
    front, other = h.connect(), h.connect()
    h.start_worker()
    kept = h.submit(other, [1], max_tokens=9, ignore_eos=True)

    def broken(*_: Any) -> None:
        raise KeyError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("penstock_engine.handlers.submissions.Request", broken)
        h.submit(front, [1])
    assert front.ended is not None
    assert "internal error" in front.ended
    h.run()
    assert end_of(kept).finish == "length"


def test_an_internal_error_in_a_step_is_survived_and_repeated_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness()
    h.allow_internal_errors = True
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [1], n=2, max_tokens=9, ignore_eos=True)
    h.run_step()
    scheduler = h.core.state.scheduling
    whole = scheduler.apply

    def half(result: Result) -> Any:
        whole(result)
        raise KeyError("a bug after the tokens were appended")

    monkeypatch.setattr(scheduler, "apply", half)
    h.run_step()
    monkeypatch.setattr(scheduler, "apply", whole)
    assert h.worker is None
    h.start_worker()
    h.run()
    assert [len(s.tokens) for s in request.sequences.values()] == [9, 9]  # none twice, none lost

    def never() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(h.core.scheduler, "plan", never)
    for _ in range(2):
        h.core.step(h.now)
    with pytest.raises(RuntimeError, match="3 internal errors"):
        h.core.step(h.now)


def test_a_block_that_was_lost_is_noticed_when_idle_and_found_again() -> None:
    h = Harness()
    h.allow_internal_errors = True
    front = h.connect()
    h.start_worker(20)
    request = h.submit(front, [1], max_tokens=3, ignore_eos=True)
    pool = h.core.state.scheduling.pool
    assert pool is not None
    lost = pool.take(1)
    effects = h.core.step(h.now)  # something runs: not the time to look
    assert effects.end_workers == []
    while h.plan is not None and h.worker is not None:
        plan, _ = h.plans.popleft()
        h.core.worker_received(h.worker_session or b"", h.worker.execute(plan), h.now)
        effects = h.core.step(h.now)
        for _, message, _ in effects.to_workers:
            if isinstance(message, Plan):
                h.plans.append((message, []))
    assert ["internal error" in reason for _, reason in effects.end_workers] == [True]
    assert lost == [1]
    assert request.accepted
    h.start_worker(20)
    h.submit(front, [1])
    h.run()


# ---- workers


def test_setup_carries_the_configuration() -> None:
    h = Harness(max_model_len=64, block_size=4, num_kv_blocks=12, max_num_batched_tokens=20)
    h.start_worker(ready=False)
    assert h.setup is not None
    assert (h.setup.block_size, h.setup.num_kv_blocks) == (4, 12)
    assert (h.setup.max_num_batched_tokens, h.setup.max_model_len) == (20, 64)
    assert (h.setup.model_dir, h.setup.version) == ("/m", 2)


def test_setup_carries_the_workers_own_settings() -> None:
    own = WorkerSettings(
        attention_backend="reference", threads=3, numa_node=2, flash_attention_3=False
    )
    default = facts()
    config = msgspec.structs.replace(default.config, worker=own)
    setup = msgspec.structs.replace(default, config=config).setup(1)
    assert (setup.attention_backend, setup.threads, setup.numa_node) == ("reference", 3, 2)
    assert (default.setup(1).flash_attention_3, setup.flash_attention_3) == (True, False)


@pytest.mark.parametrize(
    ("hello", "complaint"),
    [
        (WorkerHello([5], 0, 1), "the engine core supports [2], the peer [5]"),
        (WorkerHello([2], 1, 1), "one worker, rank 0"),
        (Progress(1, 1), "first message must be WorkerHello"),
    ],
)
def test_a_worker_that_does_not_fit_is_refused(hello: Any, complaint: str) -> None:
    h = Harness()
    h.core.worker_opened(b"w" * 16, hello, h.now)
    effects = h.core.step(h.now)
    assert effects.to_workers == []
    assert [complaint in reason for _, reason in effects.end_workers] == [True]


def test_a_second_worker_of_the_rank_takes_the_place_of_the_first() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [1] * 5, max_tokens=12, ignore_eos=True)
    for _ in range(4):
        h.run_step()
    old, plan = h.worker_session, h.plan
    assert old is not None
    assert plan is not None
    h.start_worker()
    # The old one wakes up and answers: nobody listens.
    h.core.worker_received(old, Result(plan.step, [SlotResult(0, 3)]), h.now)
    h.run()
    assert end_of(request).finish == "length"


def with_step_in_flight() -> tuple[Harness, Front, RequestScore]:
    h = Harness(max_num_batched_tokens=8)
    front = h.connect()
    request = h.submit(front, [1] * 3, max_tokens=6, ignore_eos=True, logprobs=0)
    h.submit(front, [2] * 20, max_tokens=6, ignore_eos=True)
    h.start_worker()
    assert h.plan is not None
    assert len(h.plan.work) == 2
    return h, front, request


LOGPROBS = TokenLogprobs(-1.0, [], [])


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Result(2, [SlotResult(0, 1, LOGPROBS), SlotResult(1)]), "a result for step 2"),
        (Result(1, [SlotResult(0, 1, LOGPROBS)]), "has 1 slots; its plan has 2"),
        (
            Result(1, [SlotResult(1), SlotResult(0, 1, LOGPROBS)]),
            "the result is for slot 1; the plan has slot 0",
        ),
        (Result(1, [SlotResult(0), SlotResult(1)]), "slot 0 should have sampled"),
        (
            Result(1, [SlotResult(0, 1, LOGPROBS), SlotResult(1, 4)]),
            "slot 1 should not have sampled",
        ),
        (Result(1, [SlotResult(0, 40, LOGPROBS), SlotResult(1)]), "token 40, not in 0 to 39"),
        (
            Result(1, [SlotResult(0, 1), SlotResult(1)]),
            "returned 0 log-probabilities",
        ),
        (
            Ready(num_kv_blocks=1, device="", fingerprint="", load_seconds=0),
            "Ready was not expected in this state",
        ),
        (WorkerHello([2], 0, 1), "WorkerHello was not expected in this state"),
    ],
)
def test_a_message_that_does_not_fit_ends_the_session_and_nothing_is_lost(
    message: Any, complaint: str
) -> None:
    h, _, request = with_step_in_flight()
    h.worker_says(message)
    assert h.worker is None
    assert complaint in (h.worker_end or "")
    assert request.sequences[0].tokens == []
    h.start_worker()
    h.run()
    assert end_of(request).finish == "length"


@pytest.mark.parametrize("message", [Result(1, []), Progress(1, 1)])
def test_a_worker_that_is_not_ready_has_nothing_to_report(message: Any) -> None:
    h = Harness()
    h.start_worker(ready=False)
    h.worker_says(message)
    assert h.worker_session is None


@pytest.mark.parametrize("blocks", [0, -4, 2**40])
def test_an_absurd_number_of_blocks_ends_the_session(blocks: int) -> None:
    h = Harness()
    h.start_worker(ready=False)
    h.worker_says(Ready(num_kv_blocks=blocks, device="cpu", fingerprint="f", load_seconds=0.0))
    assert h.worker_session is None
    assert "KV blocks" in (h.worker_end or "")


def test_an_error_of_one_slot_fails_that_sequence_alone() -> None:
    h = Harness()
    front = h.connect()
    h.fail_prompts.add((9, 9))
    h.start_worker()
    bad = h.submit(front, [9, 9])
    good = h.submit(front, [8, 8], max_tokens=5, ignore_eos=True)
    h.run()
    assert (end_of(bad).finish, end_of(bad).error) == ("error", "this prompt always fails")
    assert end_of(good).finish == "length"


def test_a_fault_is_shown_and_requests_wait() -> None:
    h, front, request = with_step_in_flight()
    h.worker_says(Fault("the device is gone", final=False))
    assert front.status is not None
    assert not front.status.ready
    assert front.status.reason == "the worker failed: the device is gone"
    assert request.sequences[0].terminal is None
    h.start_worker()
    assert front.status.ready
    h.run()
    assert end_of(request).finish == "length"


def test_a_final_fault_fails_everything_that_waits() -> None:
    h, front, request = with_step_in_flight()
    h.worker_says(Fault("not enough memory", final=True))
    assert end_of(request).finish == "error"
    assert "not enough memory" in (end_of(request).error or "")
    later = h.submit(front, [1])
    assert later.rejected is not None
    assert later.rejected.code == "unavailable"
    assert "not enough memory" in later.rejected.message
    h.start_worker()  # somebody fixed it
    assert h.submit(front, [1]).accepted
    h.run()


# ---- deaths


def test_a_death_of_the_worker_is_a_pause() -> None:
    h, _, request = with_step_in_flight()
    for _ in range(3):
        h.run_step()
    before = list(request.sequences[0].tokens)
    assert before
    h.kill_worker()
    assert request.sequences[0].tokens == before
    h.start_worker(700)
    h.run()
    assert end_of(request).finish == "length"
    assert request.sequences[0].tokens[: len(before)] == before


def test_suspects_run_alone_until_they_are_past_the_point_of_the_death() -> None:
    h = Harness(max_num_seqs=4, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker()
    requests = [h.submit(front, [i + 1] * 3, max_tokens=20, ignore_eos=True) for i in range(3)]
    for _ in range(5):
        h.run_step()
    h.kill_worker()
    late = h.submit(front, [9], max_tokens=3, ignore_eos=True)
    h.start_worker()
    assert h.worker is not None
    while not late.sequences[0].tokens:
        h.run_step()
    # One suspect's recomputation, then a step of those that are cleared; the newcomer comes last.
    assert [len(plan.work) for plan in h.worker.log[:5]] == [1, 1, 1, 2, 1]
    h.run()
    assert all(end_of(request).finish == "length" for request in [*requests, late])


def test_a_resumed_request_that_saw_a_death_begins_alone() -> None:
    h = Harness(max_num_batched_tokens=64)
    front = h.connect()
    h.submit(front, [1] * 3, deaths=1, max_tokens=4, ignore_eos=True)
    h.submit(front, [2] * 3, max_tokens=4, ignore_eos=True)
    h.start_worker()
    assert h.worker is not None
    h.run()
    assert [len(plan.work) for plan in h.worker.log[:3]] == [1, 2, 2]


def test_a_request_that_kills_twice_fails_and_the_others_go_on() -> None:
    """The third prompt kills every worker that computes it."""
    h = Harness(max_num_seqs=4, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker()
    requests = [h.submit(front, [i + 1] * 3, max_tokens=8, ignore_eos=True) for i in range(4)]
    kills = 0
    for _ in range(200):
        if h.plan is None:
            break
        running = h.core.state.scheduling.running
        if any(running[work.slot].request.prompt_token_ids[0] == 3 for work in h.plan.work):
            kills += 1
            h.kill_worker()
            h.start_worker()
        else:
            h.run_step()
    assert kills == 2
    assert [end_of(request).finish for request in requests] == [
        "length",
        "length",
        "error",
        "length",
    ]
    assert "died 2 times" in (end_of(requests[2]).error or "")


def test_workers_that_die_for_other_reasons_fail_nobody() -> None:
    """A worker killed again and again, while each request gets a step alone in between."""
    h = Harness(max_num_seqs=4, max_num_batched_tokens=64)
    front = h.connect()
    requests = [h.submit(front, [i + 1] * 3, max_tokens=30, ignore_eos=True) for i in range(3)]
    for _ in range(6):
        h.start_worker()
        for _ in range(8):
            h.run_step()
        h.kill_worker()
    h.start_worker()
    h.run()
    assert [end_of(request).finish for request in requests] == ["length"] * 3


@pytest.mark.parametrize(("deaths", "finish"), [(1, "length"), (2, "error"), (9, "error")])
def test_deaths_that_a_submit_brings_count(deaths: int, finish: str) -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [1], n=2, deaths=deaths, max_tokens=5, ignore_eos=True)
    innocent = h.submit(front, [2], max_tokens=5, ignore_eos=True)
    h.run()
    assert [end_of(request, index).finish for index in (0, 1)] == [finish] * 2
    assert end_of(innocent).finish == "length"


def test_a_suspect_that_kills_once_more_fails() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [1], deaths=1, max_tokens=5, ignore_eos=True)
    h.kill_worker()
    h.start_worker()
    assert end_of(request).finish == "error"
