"""The matchers beside the sampler: masks that come, masks that are late, and what they cost."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from penstock.protocol.common import Grammar, TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.batch.slots import PlanError
from penstock_worker.grammar import grammars as grammars_module
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.steps.runner import StepRunner
from tests.worker.checkpoints import TINY
from tests.worker.driver import GREEDY, Driver, Job, make_runner
from tests.worker.grammar.grammar_tools import EVEN, Evens, compile_now

pytestmark = pytest.mark.timeout(300)
HOT = TokenSampling(7, temperature=1.3, top_p=0.9, logprobs=2)
PROMPTS = [[5, 6, 7, 8, 9], list(range(40, 73)), [1], list(range(200, 217))]


@pytest.fixture
def model(tiny_models: dict[torch.dtype, DecoderModel]) -> DecoderModel:
    return tiny_models[torch.float32]


def make(model: DecoderModel, evens: Evens, *, budget: float = 20.0, **options: int) -> StepRunner:
    grammars = SlotGrammars(evens, budget=budget)
    assert compile_now(grammars, 1, EVEN) is None
    return make_runner(model, grammars=grammars, **options)


def jobs() -> list[Job]:
    """Every other one without a grammar."""
    return [
        Job(prompt, 12, HOT if at % 2 else GREEDY, index=at, grammar=None if at == 2 else 1)
        for at, prompt in enumerate(PROMPTS)
    ]


def follows(job: Job) -> bool:
    return all(token % 2 == at % 2 for at, token in enumerate(job.tokens))


def test_outputs_follow_the_grammar_whatever_the_disturbance(model: DecoderModel) -> None:
    alone = [Driver(make(model, Evens(TINY.vocab_size))).run([job])[0] for job in jobs()]
    assert [follows(job) for job in alone] == [True, True, False, True]
    runner = make(model, Evens(TINY.vocab_size), threads=2)
    crowded = Driver(runner, budget=16, preempt_every=3).run(jobs())
    assert sum(job.preempted for job in crowded) >= 3
    for one, other in zip(alone, crowded, strict=True):
        assert other.tokens == one.tokens
        assert other.logprobs == one.logprobs


def test_grammars_are_prepared_for_where_no_step_has_come_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that only the test moves. The thread that waits looks at it."""
    now, looks, prepared = [0.0], threading.Semaphore(0), threading.Event()

    def monotonic() -> float:
        if threading.current_thread().name == "grammar-warm":
            looks.release()
        return now[0]

    def looked_twice() -> None:
        while looks.acquire(blocking=False):
            pass
        for _ in range(2):
            assert looks.acquire(timeout=60)

    monkeypatch.setattr(grammars_module, "time", SimpleNamespace(monotonic=monotonic))
    grammars = SlotGrammars(Evens(TINY.vocab_size), prepare=prepared.set)
    grammars.warm_when_idle(0.01)
    for _ in range(3):
        looked_twice()
        now[0] += 0.009
        grammars.take(Plan(1, 0, [], [], []))
    looked_twice()
    assert not prepared.is_set()
    now[0] += 0.011
    assert prepared.wait(60)
    grammars.close()


def test_log_probabilities_are_those_of_the_raw_distribution(model: DecoderModel) -> None:
    """The first token's: the same prompt without a grammar gives the same distribution."""
    for sampling in (GREEDY, HOT):
        evens = Evens(TINY.vocab_size)
        [bound] = Driver(make(model, evens)).run([Job(PROMPTS[0], 1, sampling, grammar=1)])
        [free] = Driver(make(model, evens)).run([Job(PROMPTS[0], 1, sampling)])
        first, raw = bound.logprobs[0], free.logprobs[0]
        assert first.top_ids == raw.top_ids
        assert first.top_logprobs == raw.top_logprobs
        assert any(token % 2 for token in raw.top_ids)  # Forbidden ones are reported too.
        top = dict(zip(raw.top_ids, raw.top_logprobs, strict=True))
        assert first.logprob == top.get(bound.tokens[0], first.logprob)
        assert math.isfinite(first.logprob)


def test_a_late_mask_defers_its_slot_and_no_other(model: DecoderModel) -> None:
    evens = Evens(TINY.vocab_size)
    undisturbed = Driver(make(model, evens)).run([Job(PROMPTS[0], 6, HOT, grammar=1)])[0]
    free_alone = Driver(make(model, evens)).run([Job(PROMPTS[3], 9, HOT)])[0]
    evens.open.clear()
    driver = Driver(make(model, evens, budget=0.0))
    bound, free = Job(PROMPTS[0], 6, HOT, grammar=1), Job(PROMPTS[3], 9, HOT)
    for _ in range(9):
        driver._step([job for job in (bound, free) if not job.done])
    assert (bound.deferred, bound.tokens) == (9, [])
    assert (free.tokens, free.steps) == (free_alone.tokens, 9)
    until = time.monotonic() + 60
    while evens.made < 2 and time.monotonic() < until:  # A thread's, which comes when it comes.
        time.sleep(0.01)
    assert evens.made == 2  # One each: the computation went on, and wasn't begun again.
    evens.open.set()
    driver.run([bound])
    assert bound.tokens == undisturbed.tokens
    assert bound.logprobs == undisturbed.logprobs


def test_a_slow_matcher_is_not_behind_a_quick_one(model: DecoderModel) -> None:
    """One that was slow has a lane of its own, so that the other's masks are never late."""
    slow, quick = Evens(TINY.vocab_size), Evens(TINY.vocab_size)
    grammars = SlotGrammars(
        lambda definition: slow if definition.text == "slow" else quick, budget=0.0
    )
    assert compile_now(grammars, 1, Grammar("lark", "slow")) is None
    assert compile_now(grammars, 2, Grammar("lark", "quick")) is None
    runner = make_runner(model, grammars=grammars)
    driver = Driver(runner)
    waits = [Job(prompt, 20, GREEDY, grammar=1) for prompt in PROMPTS[:2]]
    goes = Job(PROMPTS[3], 8, GREEDY, grammar=2)
    slow.open.clear()
    driver._step(list(waits))  # Both are late, and sit in the quick lane.
    slow.open.set()
    while any(not grammars._held[job.slot].mask.done() for job in waits):
        time.sleep(0.01)
    assert all(grammars._held[job.slot].slow for job in waits)
    grammars._budget = 1000.0  # Longer than this test may take: a quick one is not late.
    slow.open.clear()
    driver._step(list(waits))
    for _ in range(8):
        driver._step([*waits, *([] if goes.done else [goes])])
    slow.open.set()
    assert goes.done
    assert goes.deferred == 0
    assert [(len(job.tokens), job.error) for job in waits] == [(1, None)] * 2


def test_nobody_waits_for_a_matcher_that_was_slow(model: DecoderModel) -> None:
    """The budget is longer than this test may take: were it waited for, this would not end."""
    evens = Evens(TINY.vocab_size)
    driver = Driver(make(model, evens, budget=1000.0))
    slow, free = Job(PROMPTS[0], 9, GREEDY, grammar=1), Job(PROMPTS[3], 9, GREEDY)
    driver._step([slow, free])
    driver.runner.feature(SlotGrammars)._held[slow.slot].mask.result(60)
    evens.open.clear()
    driver._step([slow, free])
    driver.runner.feature(SlotGrammars)._held[slow.slot].slow = True
    driver._step([slow, free])
    assert (slow.deferred, len(free.tokens)) == (1, 3)
    evens.open.set()
    driver.run([slow])  # Alone it is waited for: nobody else is kept.
    assert slow.deferred == 1
    assert follows(slow)


def test_a_matcher_that_meets_a_limit_fails_its_slot_only(model: DecoderModel) -> None:
    driver = Driver(make(model, Evens(TINY.vocab_size, last=4)))
    bound, free = Job(PROMPTS[0], 9, GREEDY, grammar=1), Job(PROMPTS[3], 9, GREEDY)
    driver.run([bound, free])
    assert len(bound.tokens) == 4
    assert "a limit was met" in bound.error
    assert free.error is None


def test_emitted_tokens_that_do_not_fit_are_an_error(model: DecoderModel) -> None:
    runner = make(model, Evens(TINY.vocab_size))
    new = NewSequence(0, [5, 6, 7, 1], 3, 0, GREEDY, [0], 1)
    result = runner.execute(Plan(1, 0, [], [new], [SlotWork(0, 0, 4)]))
    assert "doesn't fit" in result.slots[0].error
    assert result.slots[0].error_code == "grammar_mismatch"


def test_what_ends_a_sequence_is_held_back_unless_nothing_else_is_allowed(
    model: DecoderModel,
) -> None:
    """min_tokens and a grammar: the grammar has the last word."""
    evens = Evens(TINY.vocab_size)
    [free] = Driver(make(model, evens)).run([Job(PROMPTS[0], 1, GREEDY, grammar=1)])
    ends = (free.tokens[0],)
    held = TokenSampling(0, temperature=0.0, logprobs=3, min_tokens=5, held_back=ends)
    [job] = Driver(make(model, evens)).run([Job(PROMPTS[0], 1, held, grammar=1)])
    assert job.tokens != free.tokens
    assert follows(job)
    everything = tuple(range(TINY.vocab_size))
    held = TokenSampling(0, temperature=0.0, logprobs=3, min_tokens=5, held_back=everything)
    [job] = Driver(make(model, evens)).run([Job(PROMPTS[0], 1, held, grammar=1)])
    assert job.tokens == free.tokens


def test_each_thread_of_a_step_waits_for_masks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that compute shares of a step wait at the same time: what one has waited is not taken
    from the others. A thread's rounds share what there is."""
    clock, asked = [0.0], []

    def wait(_: object, timeout: float) -> None:
        asked.append(timeout)
        clock[0] += timeout

    evens = Evens(TINY.vocab_size)
    grammars = SlotGrammars(evens, budget=3.0)
    assert compile_now(grammars, 1, EVEN) is None
    evens.open.clear()
    monkeypatch.setattr("penstock_worker.grammar.grammars.wait", wait)
    monkeypatch.setattr("penstock_worker.grammar.grammars.time.monotonic", lambda: clock[0])
    for step in (1, 2):
        new = [NewSequence(slot, [5], 1, 0, GREEDY, [slot], 1) for slot in (0, 1)]
        grammars.take(Plan(step, 0, [0, 1] if step > 1 else [], new, []))
        with ThreadPoolExecutor(1) as other:
            assert other.submit(grammars.masks, [0]).result()[0].allowed is None
            assert other.submit(grammars.masks, [0]).result()[0].allowed is None
        assert grammars.masks([1])[1].allowed is None
    evens.open.set()
    grammars.close()
    assert asked == [3.0, 0.0, 3.0] * 2


def test_grammars_that_fail_say_why_and_numbers_end_with_their_session(
    model: DecoderModel,
) -> None:
    grammars = SlotGrammars(Evens(TINY.vocab_size), budget=60.0)
    assert compile_now(grammars, 1, Grammar("lark", "bad")) == "it is bad"
    assert "panic" in compile_now(grammars, 2, Grammar("lark", "panic"))
    assert compile_now(grammars, 3, EVEN) is None
    runner = make_runner(model, grammars=grammars)
    for number in (1, 2, 4):
        with pytest.raises(PlanError, match=f"grammar {number} is not compiled"):
            grammars.take(Plan(1, 0, [], [NewSequence(0, [5], 1, 0, GREEDY, [0], number)], []))
    grammars.take(Plan(1, 0, [], [NewSequence(0, [5], 1, 0, GREEDY, [0], 3)], []))
    grammars.drop(3)
    assert grammars.masks([0])[0].allowed.sum() == (TINY.vocab_size + 1) // 2
    runner.reset()
    assert grammars.masks([0]) == {}
    with pytest.raises(PlanError, match="grammar 3 is not compiled"):
        grammars.take(Plan(1, 0, [], [NewSequence(0, [5], 1, 0, GREEDY, [0], 3)], []))
    runner.close()
