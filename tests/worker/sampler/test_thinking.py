"""The state of a sequence's thoughts beside what a budget means, read off the whole output."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.common import LogitsAdjustments, ThinkingBudget, TokenSampling
from penstock_worker.sampler.adjustments import adjustments_of
from penstock_worker.sampler.cpu import CPUSampler
from penstock_worker.sampler.interface import SampleRequest
from penstock_worker.sampler.reference import ReferenceSampler
from penstock_worker.sampler.thinking import AHEAD, ThinkingState
from tests.met import met
from tests.thinning import part

pytestmark = pytest.mark.timeout(240)

VOCAB = 6
ids = st.integers(0, VOCAB - 1)
marks = st.lists(ids, min_size=1, max_size=3).map(tuple)
BUDGET = ThinkingBudget(tokens=3, begin=(1,), ends=((2,),), closing=(2, 4), spent=0)


@st.composite
def budgets(draw: st.DrawFn) -> ThinkingBudget:
    end = draw(marks)
    return ThinkingBudget(
        tokens=draw(st.integers(0, 12)),
        begin=draw(marks.filter(lambda mark: mark != end)),
        ends=(end, *draw(st.lists(marks, max_size=2))),
        closing=(*end, *draw(st.lists(ids, max_size=2))),
        spent=draw(st.none() | st.integers(0, 14)),
    )


def forced_next(wanted: ThinkingBudget, output: list[int]) -> int | None:
    """What must follow the output: thoughts begin behind the first mark that opens them, and end
    at the first that ends them, or after so many tokens."""
    start = 0
    if wanted.spent is None:
        size = len(wanted.begin)
        opened = [
            at
            for at in range(size, len(output) + 1)
            if tuple(output[at - size : at]) == wanted.begin
        ]
        if not opened:
            return None
        start = opened[0]
    full = max(start, start + wanted.tokens - (wanted.spent or 0))
    if any(ends_at(end, output, at) for end in wanted.ends for at in range(start + 1, full + 1)):
        return None
    written = len(output) - full
    return wanted.closing[written] if 0 <= written < len(wanted.closing) else None


def ends_at(end: tuple[int, ...], output: list[int], at: int) -> bool:
    return at <= len(output) and at >= len(end) and tuple(output[at - len(end) : at]) == end


@settings(max_examples=part(300, 1 / 3))
@given(wanted=budgets(), output=st.lists(ids, max_size=40))
def test_what_is_forced_follows_from_the_output(wanted: ThinkingBudget, output: list[int]) -> None:
    state = ThinkingState(wanted, [], VOCAB)
    was_forced = False
    for at in range(len(output) + 1):
        forced = forced_next(wanted, output[:at])
        was_forced = was_forced or forced is not None
        assert state.forced == forced
        assert ThinkingState(wanted, output[:at], VOCAB).forced == forced
        allowed = range(VOCAB) if forced is None else [forced]
        assert state.array.tolist() == [token for token in range(VOCAB) if token not in allowed]
        assert [token for token in range(VOCAB) if not state.forbids(token)] == list(allowed)
        if at < len(output):
            state = state.copy()
            state.advance(output[at])
    met("the end of thoughts is forced", was_forced)


@given(wanted=budgets(), output=st.lists(ids, max_size=20), more=st.lists(ids, max_size=AHEAD))
def test_a_device_runs_ahead_only_where_nothing_can_be_forced(
    wanted: ThinkingBudget, output: list[int], more: list[int]
) -> None:
    state = ThinkingState(wanted, output, VOCAB)
    met("it runs ahead", more and not state.follows_output)
    met("it doesn't", state.follows_output)
    if not state.follows_output:
        assert state.forced is None
        for token in more:
            state.advance(token)
            assert state.forced is None


@pytest.mark.parametrize("name", ["cpu", "reference"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_sampler_writes_what_closes_the_thoughts(name: str, temperature: float) -> None:
    """The likeliest id by far is another one, and a bias favours it."""
    sampler = CPUSampler(threads=1) if name == "cpu" else ReferenceSampler()
    adjusted = LogitsAdjustments(bias={3: 50.0, 2: -100.0}, thinking=BUDGET)
    sampling = TokenSampling(1, temperature=temperature, logprobs=1, adjustments=adjusted)
    logits = torch.from_numpy(np.array([[0, 0, -9, 99, 0, 0]], np.float32))
    output: list[int] = []
    for _ in range(7):
        rules = adjustments_of(sampling, [0, 1, *output], 2, VOCAB)
        (choice,) = sampler.sample(logits, [SampleRequest(sampling, 0, len(output), None, rules)])
        assert choice.token is not None
        output.append(choice.token)
    assert output == [3, 3, 3, 2, 4, 3, 3]


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_a_closing_mark_that_is_forbidden_is_an_error(name: str) -> None:
    sampler = CPUSampler(threads=1) if name == "cpu" else ReferenceSampler()
    wanted = LogitsAdjustments(bad_words=((2,),), thinking=BUDGET)
    sampling = TokenSampling(1, adjustments=wanted)
    rules = adjustments_of(sampling, [1, 3, 3, 3], 1, VOCAB)
    (choice,) = sampler.sample(torch.zeros(1, VOCAB), [SampleRequest(sampling, 0, 3, None, rules)])
    assert choice.error_code == "no_token_left"
    assert "thinking_token_budget" in (choice.error or "")
