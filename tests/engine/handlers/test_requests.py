"""What becomes of a Submit: refused, accepted, stopped, aborted, resumed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.protocol.common import (
    LogitsAdjustments,
    Repetition,
    SpeechRules,
    Stopping,
    ThinkingBudget,
    TimestampRules,
    TokenSampling,
)
from penstock.protocol.from_frontend import Abort, Finish, OpenSequence, Submit
from penstock.protocol.to_frontend import SequenceOutput
from tests.engine.fake_model import EOS, VOCAB
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore, SequenceScore, undisturbed


def ready(blocks: int | None = None, **options: int) -> tuple[Harness, Front]:
    h = Harness(**options)
    front = h.connect()
    h.start_worker(blocks)
    return h, front


def end_of(request: RequestScore, index: int = 0) -> SequenceOutput:
    terminal = request.sequences[index].terminal
    assert terminal is not None
    return terminal


def seed_where(wanted: Any, prompt: list[int], **stopping: Any) -> int:
    """A seed with which the run alone satisfies `wanted(tokens, finish, stop)`."""
    for seed in range(2000):
        submit = Submit(
            0, "", prompt, [OpenSequence(0)], TokenSampling(seed=seed), Stopping(**stopping)
        )
        if wanted(*undisturbed(submit, 0, 64)):
            return seed
    raise AssertionError("no such seed")


# ---- stop rules


def test_eos_ends_it_and_is_reported_as_a_token() -> None:
    h, front = ready()
    seed = seed_where(lambda t, f, s: f == "stop" and len(t) > 2, [1], max_tokens=20)
    request = h.submit(front, [1], seed=seed, max_tokens=20)
    h.run()
    assert (end_of(request).finish, end_of(request).stop_token) == ("stop", None)
    assert end_of(request).tokens[0] in EOS


def test_ignore_eos_runs_to_max_tokens_but_stop_ids_still_count() -> None:
    h, front = ready()
    seed = seed_where(lambda t, f, s: EOS[0] in t[:-1], [1], max_tokens=20, ignore_eos=True)
    request = h.submit(front, [1], seed=seed, max_tokens=20, ignore_eos=True)
    stopped = h.submit(
        front, [1], seed=seed, max_tokens=20, ignore_eos=True, stop_token_ids=(EOS[0],)
    )
    h.run()
    assert end_of(request).finish == "length"
    assert len(request.sequences[0].tokens) == 20
    assert (end_of(stopped).finish, end_of(stopped).stop_token) == ("stop", EOS[0])


def test_eos_goes_before_stop_ids() -> None:
    h, front = ready()
    seed = seed_where(lambda t, f, s: t[-1] == EOS[0], [1], max_tokens=20)
    request = h.submit(front, [1], seed=seed, max_tokens=20, stop_token_ids=(EOS[0],))
    h.run()
    assert (end_of(request).finish, end_of(request).stop_token) == ("stop", None)


def test_nothing_stops_before_min_tokens() -> None:
    h, front = ready()
    seed = seed_where(lambda t, f, s: len(t) < 4 and f == "stop", [1], max_tokens=20)
    request = h.submit(front, [1], seed=seed, max_tokens=20, min_tokens=9)
    h.run()
    assert len(request.sequences[0].tokens) > 9 or end_of(request).finish == "length"
    assert not set(request.sequences[0].tokens[:9]) & set(EOS)


def test_a_full_context_ends_it() -> None:
    h, front = ready(max_model_len=20)
    request = h.submit(front, [1] * 12, max_tokens=100, ignore_eos=True)
    h.run()
    assert end_of(request).finish == "length"
    assert len(request.sequences[0].tokens) == 8


def test_max_tokens_zero_ends_without_a_token_or_a_worker() -> None:
    h = Harness(max_model_len=20)
    front = h.connect()
    request = h.submit(front, [1] * 20, max_tokens=0)
    assert end_of(request).finish == "length"
    assert request.sequences[0].tokens == []


def test_logprobs_come_with_each_token_when_asked_for() -> None:
    h, front = ready()
    asked = h.submit(front, [1], max_tokens=5, ignore_eos=True, logprobs=1)
    silent = h.submit(front, [1], max_tokens=5, ignore_eos=True)
    h.run()
    assert [p.logprob for p in asked.sequences[0].logprobs] == [0.0, -1.0, -2.0, -3.0, -4.0]
    assert silent.sequences[0].logprobs == []


def test_prompt_logprobs_come_once_and_without_a_token_where_none_is_wanted() -> None:
    h, front = ready(block_size=4, max_num_batched_tokens=5)
    ids = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    warm = h.submit(front, ids, max_tokens=3)
    h.run()
    asked = h.submit(front, ids, n=2, max_tokens=0, prompt_logprobs=1)
    one = h.submit(front, [3], max_tokens=0, prompt_logprobs=1)
    later = h.submit(front, ids, max_tokens=2, ignore_eos=True, prompt_logprobs=1)
    h.run()
    assert (warm.cached, asked.cached, later.cached) == (0, 0, 0), "nothing is taken from the cache"
    assert len(asked.sequences[0].prompt_logprobs) == 9
    assert asked.sequences[1].prompt_logprobs == one.sequences[0].prompt_logprobs == []
    assert end_of(asked).finish == end_of(asked, 1).finish == end_of(one).finish == "length"
    assert asked.sequences[0].tokens == []
    assert later.sequences[0].prompt_logprobs == asked.sequences[0].prompt_logprobs
    assert len(later.sequences[0].tokens) == 2


def test_prompt_logprobs_go_on_from_the_delivered_mark() -> None:
    h, front = ready(block_size=4, max_num_batched_tokens=5)
    ids = list(range(3, 25))
    h.submit(front, ids, max_tokens=1)
    h.run()
    asked = h.submit(front, ids, max_tokens=2, ignore_eos=True, prompt_logprobs=1, delivered=11)
    h.run()
    assert asked.cached == 8, "the blocks before the mark are found"
    assert len(asked.sequences[0].prompt_logprobs) == 10 + 11


# ---- invalid


def adjusted(**fields: object) -> dict[str, object]:
    return {"sampling": TokenSampling(seed=1, adjustments=LogitsAdjustments(**fields))}


def thinking(**fields: Any) -> dict[str, object]:
    sound = ThinkingBudget(tokens=3, begin=(1,), ends=((2,),), closing=(2,))
    return adjusted(thinking=msgspec.structs.replace(sound, **fields))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"prompt_token_ids": []}, "empty"),
        ({"prompt_token_ids": [VOCAB]}, "token id 40 is not in the vocabulary, 0 to 39"),
        ({"prompt_token_ids": [-1]}, "token id -1"),
        ({"prompt_token_ids": [1] * 64}, "has 64 tokens; it may have at most 63"),
        ({"sequences": []}, "1 to 128 sequences, not 0"),
        ({"sequences": [OpenSequence(0), OpenSequence(0)]}, "must be distinct"),
        ({"sequences": [OpenSequence(-1)]}, "must be distinct and in 0 to 127"),
        ({"sequences": [OpenSequence(128)]}, "must be distinct and in 0 to 127"),
        ({"sequences": [OpenSequence(i) for i in range(129)]}, "not 129"),
        ({"sequences": [OpenSequence(0, [1] * 9)]}, "emitted 9 tokens, more than max_tokens, 8"),
        ({"sequences": [OpenSequence(0, [99])]}, "emitted: token id 99"),
        ({"sampling": TokenSampling(seed=-1)}, "seed must be in 0 to 18446744073709551615"),
        ({"sampling": TokenSampling(seed=1, temperature=float("nan"))}, "temperature"),
        ({"sampling": TokenSampling(seed=1, temperature=-0.5)}, "temperature"),
        ({"sampling": TokenSampling(seed=1, top_p=0.0)}, "top_p must be above 0"),
        ({"sampling": TokenSampling(seed=1, top_p=1.5)}, "top_p"),
        ({"sampling": TokenSampling(seed=1, top_k=-1)}, "top_k"),
        ({"sampling": TokenSampling(seed=1, min_p=float("inf"))}, "min_p"),
        ({"sampling": TokenSampling(seed=1, logprobs=257)}, "logprobs must be in 0 to 256"),
        (
            {"sampling": TokenSampling(seed=1, prompt_logprobs=21)},
            "prompt_logprobs must be in 0 to 20",
        ),
        ({"prompt_delivered": 3}, "prompt_delivered must be in 0 to 2, not 3"),
        (adjusted(presence=2.5), "presence_penalty must be in -2 to 2, not 2.5"),
        (adjusted(frequency=float("nan")), "frequency_penalty"),
        (adjusted(repetition=0.0), "repetition_penalty must be above 0"),
        (adjusted(repetition=101.0), "repetition_penalty must be in 0 to 100"),
        (adjusted(bias={VOCAB: 1.0}), "logit_bias: token id 40 is not in the vocabulary"),
        (adjusted(bias={1: -101.0}), "logit_bias must be in -100 to 100"),
        (adjusted(bias=dict.fromkeys(range(1025), 1.0)), "logit_bias has 1025 entries"),
        (adjusted(allowed=()), "allowed_token_ids must have at least one id"),
        (adjusted(allowed=(-1, 3)), "allowed_token_ids: token id -1"),
        (adjusted(bad_words=((),)), "one of bad_words has 0 tokens"),
        (adjusted(bad_words=((1,) * 1029,)), "one of bad_words has 1029 tokens"),
        (adjusted(bad_words=((1, 99),)), "bad_words: token id 99"),
        (adjusted(bad_words=((1,),) * 513), "bad_words has 513 entries; at most 512"),
        (
            {"sampling": TokenSampling(seed=1, logprobs=0, logprob_ids=(VOCAB,))},
            "logprob_token_ids: token id 40",
        ),
        (
            {"sampling": TokenSampling(seed=1, logprobs=0, logprob_ids=(1,) * 21)},
            "logprob_token_ids has 21 entries; at most 20",
        ),
        (thinking(tokens=-1), "thinking_token_budget must be in 0 to"),
        (thinking(spent=-1), "thinking_token_budget must be in 0 to"),
        (thinking(begin=()), "a mark of thoughts has 0 tokens; 1 to 64 are allowed"),
        (thinking(closing=(1,) * 65), "a mark of thoughts has 65 tokens; 1 to 64"),
        (thinking(ends=((VOCAB,),)), "thinking_token_budget: token id 40"),
        (thinking(ends=((1,),) * 9), "thinking_token_budget has 9 entries; at most 8"),
        (adjusted(speech=SpeechRules(suppressed=(VOCAB,))), "suppress_tokens: token id 40"),
        (
            adjusted(speech=SpeechRules(suppressed_first=(1,) * 1025)),
            "begin_suppress_tokens has 1025 entries; at most 1024",
        ),
        (adjusted(speech=SpeechRules(timestamps=TimestampRules(40, 3, 4))), "timestamps: token id"),
        (
            adjusted(speech=SpeechRules(timestamps=TimestampRules(0, 0, 4))),
            "timestamps.first must be in 1 to 39, not 0",
        ),
        (
            adjusted(speech=SpeechRules(timestamps=TimestampRules(30, 31, 4))),
            "timestamps.text_end must be in 0 to 30, not 31",
        ),
        (
            adjusted(speech=SpeechRules(timestamps=TimestampRules(30, 3, 4, -1))),
            "max_initial_timestamp_index",
        ),
        ({"stopping": Stopping(max_tokens=-1)}, "max_tokens"),
        ({"stopping": Stopping(max_tokens=2**31)}, "max_tokens"),
        ({"stopping": Stopping(max_tokens=3, min_tokens=4)}, "min_tokens must be in 0 to 3"),
        ({"stopping": Stopping(max_tokens=3, stop_token_ids=(VOCAB,))}, "stop_token_ids"),
        ({"stopping": Stopping(max_tokens=3, stop_token_ids=(1,) * 257)}, "has 257 ids"),
        (
            {"stopping": Stopping(max_tokens=3, repetition=Repetition(3, 2, 2))},
            "min_pattern_size must be in 1 to 2",
        ),
        (
            {"stopping": Stopping(max_tokens=3, repetition=Repetition(1, 257, 2))},
            "max_pattern_size must be in 1 to 256",
        ),
        (
            {"stopping": Stopping(max_tokens=3, repetition=Repetition(1, 256, 17))},
            "min_count must be in 2 to 16",
        ),
        ({"deaths": -1}, "deaths"),
        ({"name": "x" * 1025}, "1024 characters"),
    ],
)
def test_an_invalid_submit_says_what_is_wrong(change: dict[str, Any], complaint: str) -> None:
    h, front = ready()
    good = Submit(1, "r", [1, 2], [OpenSequence(0)], TokenSampling(seed=1), Stopping(max_tokens=8))
    front.requests[1] = RequestScore(good)
    h.send(front, msgspec.structs.replace(good, **change))
    rejected = front.requests[1].rejected
    assert rejected is not None
    assert rejected.code == "invalid"
    assert complaint in rejected.message
    assert front.ended is None


def test_a_number_that_is_open_already_is_refused() -> None:
    h, front = ready()
    first = h.submit(front, [1], max_tokens=9, ignore_eos=True)
    number = first.submit.request
    again = RequestScore(first.submit)
    front.requests[number], kept = again, front.requests[number]
    h.core.frontend_received(front.session, first.submit, h.now)
    h.settle()
    assert again.rejected is not None
    assert "already open" in again.rejected.message
    front.requests[number] = kept
    h.run()
    assert end_of(first).finish == "length"
    # Another session may use the same number: the key is (session, number).
    other = h.connect()
    other.requests[number] = RequestScore(first.submit, sequences={0: SequenceScore([])})
    h.send(other, first.submit)
    h.run()
    assert end_of(other.requests[number]).finish == "length"


def test_a_prompt_that_the_whole_pool_cannot_hold_is_refused_by_blocks() -> None:
    h, front = ready(5)
    request = h.submit(front, [1] * 20)
    assert request.rejected is not None
    assert request.rejected.code == "invalid"
    assert "5 blocks of 4 tokens" in request.rejected.message


def test_a_waiting_request_that_a_new_pool_cannot_hold_fails_by_blocks() -> None:
    h = Harness()
    front = h.connect()
    unfit = h.submit(front, [1] * 20)
    fits = h.submit(front, [1] * 10, max_tokens=2)
    assert unfit.accepted
    h.start_worker(5)
    assert end_of(unfit).finish == "error"
    assert "5 blocks of 4 tokens" in (end_of(unfit).error or "")
    h.run()
    assert end_of(fits).finish in ("length", "stop")


# ---- resume


def test_a_resumed_request_goes_on_where_it_was() -> None:
    h, front = ready()
    whole = h.submit(front, [4, 5], n=3, max_tokens=12, ignore_eos=True, seed=8)
    h.run()
    emitted = {i: s.tokens[: 4 * i] for i, s in whole.sequences.items() if i}
    resumed = h.submit(front, [4, 5], emitted=emitted, max_tokens=12, ignore_eos=True, seed=8)
    h.run()
    assert sorted(resumed.sequences) == [1, 2]
    for index, score in resumed.sequences.items():
        assert score.tokens == whole.sequences[index].tokens


def test_a_resumed_sequence_that_had_everything_ends_at_once() -> None:
    h = Harness()
    front = h.connect()
    done = undisturbed(
        Submit(
            0,
            "",
            [1],
            [OpenSequence(0)],
            TokenSampling(seed=1),
            Stopping(max_tokens=3, ignore_eos=True),
        ),
        0,
        64,
    )[0]
    request = h.submit(front, [1], emitted={0: done}, max_tokens=3, ignore_eos=True, seed=1)
    assert end_of(request).finish == "length"
    assert end_of(request).tokens == []


# ---- abort and finish, in every state


def in_state(name: str) -> tuple[Harness, Front, RequestScore]:
    """A request of two sequences that waits, runs, is in flight, is preempted, or has ended."""
    h = Harness(max_model_len=64, max_num_batched_tokens=32)
    front = h.connect()
    if name == "waiting":
        return h, front, h.submit(front, [2], n=2)
    h.start_worker(16)
    if name == "preempted":
        h.submit(front, [1] * 3, max_tokens=60, ignore_eos=True)
    request = h.submit(front, [2] * 3, n=2, max_tokens=40, ignore_eos=True)
    while name == "preempted" and not h.core.state.scheduling.num_preemptions:
        h.run_step()
    if name == "loading again":
        h.run_step()
        h.kill_worker()
    if name == "finished":
        h.run()
    return h, front, request


STATES = ["waiting", "in flight", "preempted", "loading again", "finished"]


@pytest.mark.parametrize("name", STATES)
def test_abort_in_every_state(name: str) -> None:
    h, front, request = in_state(name)
    h.abort(front, request)
    ends = [end_of(request, index).finish for index in (0, 1)]
    assert ends == (["length"] * 2 if name == "finished" else ["abort"] * 2)
    h.abort(front, request)  # again: ignored
    if h.worker is None:
        h.start_worker()
    h.run()
    assert not h.core.state.scheduling.has_work


@pytest.mark.parametrize("name", STATES)
def test_finish_in_every_state(name: str) -> None:
    h, front, request = in_state(name)
    h.finish(front, request, 1)
    assert end_of(request, 1).finish == ("length" if name == "finished" else "stop")
    assert (request.sequences[0].terminal is None) == (name != "finished")
    if h.worker is None:
        h.start_worker()
    h.run()
    assert request.sequences[0].terminal is not None


def test_unknown_numbers_are_ignored() -> None:
    h, front = ready()
    h.send(front, Abort(77))
    h.send(front, Finish(77, 0, 1))
    request = h.submit(front, [1])
    h.send(front, Finish(request.submit.request, 5, 1))
    h.run()
    assert front.ended is None
    assert end_of(request).finish in ("length", "stop")


def test_a_front_end_that_leaves_takes_its_requests_along() -> None:
    h, front = ready()
    other = h.connect()
    h.submit(front, [1] * 5, n=3, max_tokens=50, ignore_eos=True)
    kept = h.submit(other, [2] * 5, max_tokens=10, ignore_eos=True)
    h.run_step()
    h.disconnect(front)
    h.run()
    assert end_of(kept).finish == "length"
    pool = h.core.state.scheduling.pool
    assert pool is not None
    assert pool.num_free == pool.num_blocks
