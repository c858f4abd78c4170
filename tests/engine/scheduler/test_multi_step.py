"""Plans for several tokens, and what results with them do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.protocol.common import Grammar, Repetition
from penstock.protocol.from_worker import Result, SlotResult
from penstock_engine.request.step_in_flight import UnfitResult, verify_drafts
from penstock_engine.scheduler.multi_step import MOST, SECONDS
from tests.engine.fake_model import EOS, VOCAB
from tests.engine.harness import Harness
from tests.engine.scores import RequestScore


def going_on(seconds: float = 0.001, **options: Any) -> Harness:
    """With a worker that goes on by itself, and takes so long for each token of a sequence."""
    settings = {"max_num_batched_tokens": 64, "max_steps_in_flight": 2, "max_model_len": 400}
    h = Harness(**{**settings, **options})
    h.goes_on = True
    h.step_seconds = lambda: seconds * (1 + h.worker.log[-1].extra_steps)
    h.connect()
    h.start_worker()
    return h


def ask(h: Harness, prompt: list[int], tokens: int = 200, **more: Any) -> RequestScore:
    return h.submit(
        h.fronts[0], prompt, max_tokens=tokens, **{"ignore_eos": True, "gathered": True, **more}
    )


def run_until_it_goes_on(h: Harness) -> None:
    for _ in range(20):
        if h.plan is not None and h.plan.extra_steps:
            return
        h.run_step()
    raise AssertionError("no step goes on")


def count(score: RequestScore) -> int:
    return len(score.sequences[0].tokens)


def test_decodes_that_nobody_reads_as_they_come_go_on() -> None:
    h = going_on()
    score = ask(h, [5, 6])
    run_until_it_goes_on(h)
    assert h.plan is not None
    assert h.plan.extra_steps == MOST
    h.run()
    assert count(score) == 200
    assert len(h.worker.log) < 40
    # The last step has as many as are left.
    assert sum(1 + plan.extra_steps for plan in h.worker.log) == 200


def test_a_loop_ends_a_sequence_in_the_middle_of_a_step_that_goes_on() -> None:
    ended = 0
    for seed in range(8):
        h = going_on()
        score = ask(h, [5, 6], seed=seed, repetition=Repetition(1, 3, 2))
        h.run()
        terminal = score.sequences[0].terminal
        ended += terminal is not None and terminal.finish == "repetition"
    assert ended >= 6


def test_proposals_that_pay_end_a_step_that_goes_on() -> None:
    h = going_on()
    ask(h, [5, 6])
    run_until_it_goes_on(h)
    assert h.plan is not None
    assert 1 <= h.plan.least_proposed <= 3, "nothing is known of drafts or of what rows cost"
    h.proposes = lambda: 3
    h.run_step()
    assert h.plan is not None
    assert not h.plan.extra_steps
    assert all(work.draft for work in h.plan.work)


def test_no_step_follows_one_that_goes_on_but_for_who_comes() -> None:
    h = going_on()
    ask(h, [5, 6])
    run_until_it_goes_on(h)
    assert len(h.plans) == 1
    other = ask(h, [7, 8, 9], tokens=4)
    follower = h.plans[1][0]
    assert [new.slot for new in follower.admitted] == [1]
    assert follower.extra_steps == 0
    # It starts wherever the one before stops.
    assert [work.after_drafts for work in follower.work] == [True, False]
    h.disturbed = lambda: True
    h.run_step()
    h.disturbed = lambda: False
    h.run()
    assert count(other) == 4


def test_who_leaves_ends_a_step_that_goes_on() -> None:
    h = going_on()
    leaving, staying = ask(h, [5, 6]), ask(h, [7, 8])
    run_until_it_goes_on(h)
    assert len(h.plans) == 1
    h.abort(h.fronts[0], leaving)
    follower = h.plans[1][0]
    assert [work.slot for work in follower.work] == [1]
    h.disturbed = lambda: True
    h.run_step()
    h.disturbed = lambda: False
    h.run()
    assert count(staying) == 200
    assert count(leaving) < 200


@pytest.mark.parametrize(
    "terms",
    [
        {"gathered": False},
        {"grammar": Grammar("regex", "300"), "ignore_eos": False},
    ],
)
def test_who_is_read_or_may_be_deferred_gets_each_token_by_a_plan(terms: dict[str, Any]) -> None:
    h = going_on()
    ask(h, [5, 6], tokens=300)
    ask(h, [7, 8], tokens=60, **terms)
    for _ in range(40):
        h.run_step()
    assert not any(plan.extra_steps for plan in h.worker.log)
    h.run()
    assert any(plan.extra_steps for plan in h.worker.log)


def test_steps_are_as_short_as_what_happens_may_wait() -> None:
    slow = going_on(seconds=SECONDS / 3)
    ask(slow, [5, 6], tokens=50)
    slow.run()
    assert not any(plan.extra_steps for plan in slow.worker.log)
    slower = going_on(seconds=SECONDS / 8)
    ask(slower, [5, 6], tokens=150)
    slower.run()
    assert max(plan.extra_steps for plan in slower.worker.log) in (6, 7)


def test_a_worker_that_does_not_say_that_it_goes_on_is_sent_each_step() -> None:
    h = Harness(max_num_batched_tokens=64)
    h.step_seconds = lambda: 0.001
    h.connect()
    h.start_worker()
    ask(h, [5, 6], tokens=25)
    h.run()
    assert not any(plan.extra_steps for plan in h.worker.log)


def test_ends_are_told_and_nothing_is_emitted_behind_them() -> None:
    h = going_on()
    score = ask(h, [5, 6], ignore_eos=False, stop_token_ids=[3], min_tokens=30)
    run_until_it_goes_on(h)
    assert h.plan is not None
    assert h.plan.ends == sorted({*EOS, 3})
    h.run()
    tokens = score.sequences[0].tokens
    assert len(tokens) > 30
    assert not {*tokens[30:-1]} & {*EOS, 3}


def test_a_loss_in_a_step_that_goes_on_costs_no_token_twice() -> None:
    h = going_on()
    scores = [ask(h, [5, 6, at]) for at in range(3)]
    run_until_it_goes_on(h)
    h.kill_worker()
    h.start_worker()
    h.run()
    assert [count(score) for score in scores] == [200] * 3


def test_tenants_are_charged_for_what_steps_go_on_to() -> None:
    h = going_on(scheduling_policy="fair", tenants="a;b")
    policy = h.core.state.scheduling.policy
    charged = []
    charge = policy.charge
    policy.charge = lambda sequence, computed, sampled, held: (  # type: ignore[method-assign]
        charged.append(sampled),
        charge(sequence, computed, sampled, held),
    )
    ask(h, [5, 6], tenant="a")
    h.run()
    assert sum(charged) == 200


def test_more_than_was_planned_is_no_fitting_result() -> None:
    verify_drafts(SlotResult(0, 1, more=[2, 3]), 0, VOCAB, 2)
    with pytest.raises(UnfitResult, match="drafted 0 tokens and kept 3"):
        verify_drafts(SlotResult(0, 1, more=[2, 3, 4]), 0, VOCAB, 2)
    with pytest.raises(UnfitResult, match="not in 0 to"):
        verify_drafts(SlotResult(0, 1, more=[2, VOCAB]), 0, VOCAB, 2)


def test_a_result_with_more_than_was_planned_ends_the_session() -> None:
    h = going_on()
    ask(h, [5, 6])
    run_until_it_goes_on(h)
    plan, _ = h.plans[0]
    slots = [SlotResult(0, 5, more=[5] * (plan.extra_steps + 1))]
    h.worker_says(msgspec.structs.replace(Result(plan.step, slots)))
    assert h.worker_end is not None
    assert "kept" in h.worker_end
    h.start_worker()
    h.run()
