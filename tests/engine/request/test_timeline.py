"""The engine's account of a sequence's time, against one kept by hand."""

from __future__ import annotations

import msgspec
import pytest

from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock.protocol.from_worker import Result
from penstock.protocol.to_frontend import SequenceTimeline
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore


def submit(h: Harness, front: Front, prompt: list[int], tokens: int) -> RequestScore:
    """A request that asks for its timeline."""
    return h.submit(front, prompt, max_tokens=tokens, ignore_eos=True, timeline=True)


def step(h: Harness, seconds: float, compute: float) -> None:
    """The oldest step in flight is settled after `seconds`, `compute` of them the worker's."""
    h.now += seconds
    assert h.worker is not None
    plan, _ = h.plans.popleft()
    result = h.worker.execute(plan)
    h.worker_says(Result(result.step, result.slots, compute))


def timeline(score: RequestScore, index: int = 0) -> SequenceTimeline:
    terminal = score.sequences[index].terminal
    assert terminal is not None
    assert terminal.timeline is not None
    return terminal.timeline


def whole(t: SequenceTimeline) -> float:
    return t.queue + t.requeued + t.compute + t.dispatch + t.idle


def test_a_request_alone() -> None:
    h = Harness(max_num_batched_tokens=4)
    front = h.connect()
    begun = h.now
    score = submit(h, front, [1] * 6, 2)  # no worker yet: it waits
    h.now += 3
    h.start_worker()
    step(h, 0.5, 0.4)  # 4 tokens of the prompt
    step(h, 0.5, 0.3)  # 2, and the first token
    step(h, 0.25, 0.25)
    t = timeline(score)
    assert t.queue == 3
    assert t.compute == pytest.approx(0.95)
    assert t.share == pytest.approx(0.95), "it had every step to itself"
    assert t.dispatch == pytest.approx(0.3)
    assert t.first_token == pytest.approx(4)
    assert (t.requeued, t.steps, t.preemptions) == (0, 3, 0)
    assert t.idle == pytest.approx(0)
    assert whole(t) == pytest.approx(h.now - begun)


def test_shares_go_by_tokens_and_add_up() -> None:
    h = Harness()
    front = h.connect()
    long = submit(h, front, [1] * 9, 1)
    short = submit(h, front, [2, 3, 4], 1)
    h.start_worker()
    step(h, 1.0, 0.8)
    assert not h.plans, "one step for both"
    for score, tokens in ((long, 9), (short, 3)):
        assert timeline(score).compute == pytest.approx(0.8)
        assert timeline(score).share == pytest.approx(0.8 * tokens / 12)


def test_waiting_again_after_a_preemption_is_counted() -> None:
    h = Harness(block_size=2, max_num_seqs=2)
    front = h.connect()
    h.start_worker(num_blocks=8)
    scores = [submit(h, front, [n, n, n], 9) for n in (1, 2)]
    begun = h.now
    while h.plans:
        step(h, 0.1, 0.09)
    times = [timeline(score) for score in scores]
    preempted = [t for t in times if t.preemptions]
    assert len(preempted) == 1
    assert preempted[0].requeued > 0
    assert sum(t.preemptions for t in times) == h.core.state.scheduling.num_preemptions
    assert max(map(whole, times)) == pytest.approx(h.now - begun)


def test_a_worker_that_dies_costs_idle_time_and_a_wait() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    score = submit(h, front, [1, 2], 2)
    begun = h.now
    step(h, 0.1, 0.1)
    h.now += 2  # silence
    h.kill_worker()
    h.now += 3
    h.start_worker()
    while h.plans:
        step(h, 0.1, 0.1)
    t = timeline(score)
    assert t.idle == pytest.approx(2)
    assert t.requeued == pytest.approx(3)
    assert whole(t) == pytest.approx(h.now - begun)


def test_two_steps_in_flight_are_counted_once() -> None:
    h = Harness(max_steps_in_flight=2)
    front = h.connect()
    h.start_worker()
    score = submit(h, front, [1, 2], 6)
    begun = h.now
    while h.plans:
        step(h, 0.1, 0.08)
    t = timeline(score)
    assert t.compute == pytest.approx(0.08 * 6)
    assert t.dispatch == pytest.approx(0.02 * 6)
    assert whole(t) == pytest.approx(h.now - begun)


def test_two_results_in_one_turn_are_not_counted_twice() -> None:
    """The core hears of both at once, though the worker took its time for each."""
    h = Harness(max_steps_in_flight=2)
    front = h.connect()
    h.start_worker()
    score = submit(h, front, [1, 2], 6)
    begun = h.now
    while h.plans:
        step(h, 0.2, 0.1)
        step(h, 0.0, 0.1)
    t = timeline(score)
    assert t.compute == pytest.approx(0.6)
    assert t.dispatch == pytest.approx(0)
    assert whole(t) == pytest.approx(h.now - begun)


def test_nobody_pays_who_did_not_ask() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    asked = submit(h, front, [1, 2], 3)
    silent = h.submit(front, [1, 2], max_tokens=3, ignore_eos=True)
    h.run()
    assert timeline(asked).steps >= 3
    assert silent.sequences[0].terminal is not None
    assert silent.sequences[0].terminal.timeline is None
    assert h.core.state.clock.watched == 0, "every timeline that was begun was closed"


def test_an_older_front_end_does_not_know_the_field() -> None:
    """Its Submit has no `timeline`, and decodes."""
    fields = msgspec.to_builtins(
        Submit(1, "old", [1], [OpenSequence(0)], TokenSampling(1), Stopping(1))
    )
    assert "timeline" not in fields, "a default is not sent"
    assert msgspec.convert(fields, Submit).timeline is False
