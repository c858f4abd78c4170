"""The table of states, and what a worker is told to hold back."""

from __future__ import annotations

import msgspec
import pytest

from penstock.protocol.common import LogitsAdjustments, Pooling, Stopping, TokenSampling
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock.protocol.to_worker import Plan, ToWorker
from penstock_engine.request.request import Request, Sequence, worker_sampling
from penstock_engine.request.states import (
    FINISH_REASONS,
    TRANSITIONS,
    IllegalTransition,
    SequenceState,
)
from tests.engine.fake_model import VOCAB
from tests.engine.harness import Harness
from tests.engine.small_facts import facts


def make_sequence(prompt: list[int] | None = None, emitted: list[int] | None = None) -> Sequence:
    submit = Submit(
        1,
        "r",
        prompt or [1, 2],
        [OpenSequence(0, emitted or [])],
        TokenSampling(seed=1),
        Stopping(max_tokens=5),
    )
    return Request(b"s", submit, arrival=1, eos_token_ids=(0,)).sequences[0]


def test_the_table_names_every_state() -> None:
    assert set(TRANSITIONS) == set(SequenceState)
    assert all(TRANSITIONS[end] == () for end in FINISH_REASONS)


@pytest.mark.parametrize("start", list(SequenceState))
@pytest.mark.parametrize("end", list(SequenceState))
def test_only_listed_transitions_happen(start: SequenceState, end: SequenceState) -> None:
    sequence = make_sequence()
    sequence.state = start
    legal = {
        SequenceState.WAITING: {
            SequenceState.RUNNING,
            SequenceState.WAITING_FOR_GRAMMAR,
            SequenceState.WAITING_FOR_REMOTE_KV,
            SequenceState.WAITING_FOR_MEDIA,
            SequenceState.WAITING_FOR_ADAPTER,
        },
        SequenceState.WAITING_FOR_GRAMMAR: {SequenceState.WAITING},
        SequenceState.WAITING_FOR_REMOTE_KV: {SequenceState.WAITING},
        SequenceState.WAITING_FOR_MEDIA: {SequenceState.WAITING},
        SequenceState.WAITING_FOR_ADAPTER: {SequenceState.WAITING},
        SequenceState.RUNNING: {SequenceState.WAITING, SequenceState.PREEMPTED},
        SequenceState.PREEMPTED: {
            SequenceState.RUNNING,
            SequenceState.WAITING_FOR_GRAMMAR,
            SequenceState.WAITING_FOR_MEDIA,
            SequenceState.WAITING_FOR_ADAPTER,
        },
    }
    if start in legal and end in legal[start] | set(FINISH_REASONS):
        sequence.move(end)
        assert sequence.state is end
    else:
        with pytest.raises(IllegalTransition, match=start.name):
            sequence.move(end)
        assert sequence.state is start


def test_tokens_are_prompt_and_emitted() -> None:
    sequence = make_sequence([5, 6, 7], [8])
    assert (sequence.num_tokens, sequence.all_token_ids()) == (4, [5, 6, 7, 8])
    sequence.append(9, [])
    assert (sequence.num_tokens, sequence.all_token_ids()) == (5, [5, 6, 7, 8, 9])


def test_undelivered_tokens_are_forgotten_with_the_kv() -> None:
    sequence = make_sequence([5], [6])
    sequence.append(7, [])
    sequence.progress.computed = sequence.progress.scheduled = 2
    sequence.forget_computed()
    assert sequence.all_token_ids() == [5, 6]
    assert (sequence.num_tokens, sequence.progress.computed, sequence.progress.scheduled) == (
        2,
        0,
        0,
    )


@pytest.mark.parametrize(
    ("stopping", "held_back"),
    [
        (Stopping(max_tokens=9, min_tokens=3, stop_token_ids=(5, 2)), (0, 2, 5, 7)),
        (Stopping(max_tokens=9, min_tokens=3, stop_token_ids=(5,), ignore_eos=True), (5,)),
        (Stopping(max_tokens=9, stop_token_ids=(5,)), ()),
    ],
)
def test_ends_are_held_back_before_min_tokens(
    stopping: Stopping, held_back: tuple[int, ...]
) -> None:
    # What a front end writes there is not believed.
    told = TokenSampling(seed=1, temperature=0.5, min_tokens=99, held_back=(1, 2, 3))
    sampling = worker_sampling(told, stopping, (0, 7))
    assert sampling.held_back == held_back
    assert sampling.min_tokens == stopping.min_tokens
    assert (sampling.seed, sampling.temperature) == (1, 0.5)


def test_ids_that_the_model_never_writes_are_bad_words() -> None:
    """Beside the request's own; vectors have no output."""
    plain, stopping = TokenSampling(seed=1), Stopping(max_tokens=9)
    assert worker_sampling(plain, stopping, (), (4, 6)).adjustments == LogitsAdjustments(
        bad_words=((4,), (6,))
    )
    own = LogitsAdjustments(presence=0.5, bad_words=((2, 3),))
    told = TokenSampling(seed=1, adjustments=own)
    assert worker_sampling(told, stopping, (), (4,)).adjustments == LogitsAdjustments(
        presence=0.5, bad_words=((2, 3), (4,))
    )
    assert worker_sampling(told, stopping, ()).adjustments == own
    submit = Submit(1, "r", [1, 2], [OpenSequence(0, [])], plain, stopping)
    assert Request(b"s", submit, arrival=1, eos_token_ids=(), suppressed=(4,)).sampling.adjustments
    vectors = msgspec.structs.replace(submit, pooling=Pooling("embed"))
    pooled = Request(b"s", vectors, arrival=1, eos_token_ids=(), suppressed=(4,))
    assert pooled.sampling.adjustments is None


class Listening(Harness):
    """Notes what a worker is told of sampling."""

    def _to_worker(self, session: bytes, message: ToWorker) -> None:
        if isinstance(message, Plan):
            told = self.__dict__.setdefault("told", [])
            told += [each.sampling.adjustments for each in message.admitted]
        super()._to_worker(session, message)


def test_a_worker_is_told_of_them_with_each_request() -> None:
    usual = facts()
    own = msgspec.structs.replace(usual.model.generation, suppress_tokens=(VOCAB - 1,))
    model = msgspec.structs.replace(usual.model, generation=own)
    harness = Listening(msgspec.structs.replace(usual, model=model))
    front = harness.connect()
    harness.start_worker()
    harness.submit(front, [1, 2, 3], max_tokens=2)
    told = harness.__dict__["told"]
    assert told
    assert all(each == LogitsAdjustments(bad_words=((VOCAB - 1,),)) for each in told)


def test_what_nobody_was_told_is_forgotten_with_the_kv() -> None:
    """It is computed again, and would else be there twice."""
    sequence = make_sequence([1, 2], [3])
    sequence.append(4, [])
    sequence.delivered = 2
    sequence.append(5, [])
    sequence.forget_computed()
    assert list(sequence.emitted) == [3, 4]
    assert sequence.num_tokens == sequence.progress.tokens == 4
