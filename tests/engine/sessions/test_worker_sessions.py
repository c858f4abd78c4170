"""Workers that come, go and misbehave."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.config.settings import WorkerSettings
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_worker import (
    Fault,
    Progress,
    Ready,
    Result,
    SlotResult,
    WorkerHello,
)
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore
from tests.engine.sessions.test_sessions import end_of
from tests.engine.small_facts import facts


def test_setup_carries_the_configuration() -> None:
    h = Harness(max_model_len=64, block_size=4, num_kv_blocks=12, max_num_batched_tokens=20)
    h.start_worker(ready=False)
    assert h.setup is not None
    assert (h.setup.block_size, h.setup.num_kv_blocks) == (4, 12)
    assert (h.setup.max_num_batched_tokens, h.setup.max_model_len) == (20, 64)
    assert (h.setup.model_dir, h.setup.version) == ("/m", 2)


def test_setup_carries_the_workers_own_settings() -> None:
    own = WorkerSettings(
        attention_backend="reference",
        threads=3,
        numa_node=2,
        flash_attention_3=False,
        cpu_experts="3",
    )
    default = facts()
    config = msgspec.structs.replace(default.config, worker=own)
    setup = msgspec.structs.replace(default, config=config).setup(1)
    assert (setup.attention_backend, setup.threads, setup.numa_nodes) == ("reference", 3, (2,))
    assert (default.setup(1).flash_attention_3, setup.flash_attention_3) == (True, False)
    assert (default.setup(1).cpu_experts, setup.cpu_experts) == ("off", "3")


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


LOGPROBS = TokenLogprobs(-1.0, (), ())


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
