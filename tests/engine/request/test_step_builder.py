"""What a step has left, while it is put together."""

from __future__ import annotations

import msgspec
import pytest

from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.step_builder import MAX_PROMPT_LOGPROBS, StepBuilder

BUDGET = 100


def sequence(slot: int, *, prompt_logprobs: int | None = None) -> Sequence:
    sampling = msgspec.structs.replace(TokenSampling(1), prompt_logprobs=prompt_logprobs)
    submit = Submit(1, "r", [1] * 50, [OpenSequence(0, [])], sampling, Stopping(max_tokens=9))
    (made,) = Request(b"s", submit, arrival=1, eos_token_ids=(0,)).sequences.values()
    made.slot = slot
    return made


def test_what_is_taken_back_can_be_given_to_others() -> None:
    builder = StepBuilder(BUDGET, 1000)
    first, second = sequence(0), sequence(1)
    builder.schedule(first, 0, 60, [])
    assert builder.left == 40
    builder.withdraw(first)
    builder.withdraw(first)
    assert builder.left == BUDGET
    builder.schedule(second, 0, BUDGET, [])
    assert builder.left == 0
    with pytest.raises(ValueError, match="can't be scheduled"):
        builder.schedule(first, 0, 1, [])


def test_prompt_logprobs_that_are_not_computed_leave_their_room() -> None:
    builder = StepBuilder(10 * MAX_PROMPT_LOGPROBS, 1000)
    first, second = sequence(0, prompt_logprobs=1), sequence(1, prompt_logprobs=1)
    assert builder.most(first) == MAX_PROMPT_LOGPROBS
    builder.schedule(first, 0, MAX_PROMPT_LOGPROBS, [])
    assert builder.most(second) == 0
    builder.withdraw(first)
    assert builder.most(second) == MAX_PROMPT_LOGPROBS


def test_tokens_that_are_held_back_come_back_as_far_as_they_are_needed() -> None:
    builder = StepBuilder(BUDGET, 1000)
    builder.keep_to(30.5)
    assert builder.left == 30
    builder.keep_to(50)
    assert builder.left == 30, "it never gives any out"
    builder.reach(45)
    assert builder.left == 45
    builder.release()
    assert builder.left == BUDGET
    builder.reach(BUDGET + 1)
    assert builder.left == BUDGET


def test_one_always_may_start_whatever_it_brings() -> None:
    builder = StepBuilder(BUDGET, 60)
    first, second = sequence(0), sequence(1)
    assert builder.can_carry(first)
    builder.admit(first)
    assert builder.room == 10
    assert not builder.can_carry(second)


def test_drafts_come_out_of_the_same_budget() -> None:
    builder = StepBuilder(10, 1000)
    builder.schedule(sequence(3), 0, 6, [7])
    builder.draft(3, 3, [7, 8])
    assert (builder.left, builder.items[3][3]) == (1, [7, 8])
    with pytest.raises(ValueError, match="can't have"):
        builder.draft(3, 1, [])


def test_one_may_bring_more_than_there_is_room_for() -> None:
    """Else it would never start: no step has more room."""
    builder = StepBuilder(BUDGET, 30)
    first, second = sequence(0), sequence(1)
    assert builder.can_carry(first)
    builder.admit(first)
    assert not builder.can_carry(second)
