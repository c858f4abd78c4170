"""How a sequence ends: every rule, beside a model that reads as the rules are written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.common import Repetition, Stopping, TokenLogprobs, TokenSampling
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock.protocol.from_worker import SlotResult
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.request.stopping import Stop, check_stop, until_stop
from tests.met import met
from tests.thinning import part

EOS, STOP, OTHER = 0, 7, 3
STOPPED, LENGTH = SequenceState.FINISHED_STOPPED, SequenceState.FINISHED_LENGTH


def sequence(
    emitted: list[int], *, prompt: int = 4, grammar: bool = False, **stopping: Any
) -> Sequence:
    stops = Stopping(**{"max_tokens": 20, "stop_token_ids": (STOP,), **stopping})
    submit = Submit(1, "r", [1] * prompt, [OpenSequence(0, emitted)], TokenSampling(seed=1), stops)
    request = Request(b"s", submit, arrival=1, eos_token_ids=(EOS,))
    request.grammar = 5 if grammar else None
    return request.sequences[0]


def expected(
    emitted: list[int], *, prompt: int, grammar: bool, max_len: int, **stopping: Any
) -> Stop | None:
    """The rules one after another."""
    if not emitted:
        return None
    last, ends = emitted[-1], not stopping["ignore_eos"]
    if ends and last == EOS and grammar:
        return STOPPED, None
    if len(emitted) > stopping["min_tokens"]:
        if ends and last == EOS:
            return STOPPED, None
        if last == STOP:
            return STOPPED, STOP
    if len(emitted) >= stopping["max_tokens"] or prompt + len(emitted) >= max_len:
        return LENGTH, None
    return None


CASES = {
    "prompt": st.integers(1, 6),
    "grammar": st.booleans(),
    "min_tokens": st.sampled_from([0, 0, 1, 2, 4, 8]),
    "max_tokens": st.sampled_from([1, 3, 9, 10, 10]),
    "ignore_eos": st.booleans(),
    "max_len": st.sampled_from([4, 6, 8, 10, 14, 20]),
}


@settings(max_examples=part(900, 1 / 3))
@given(
    emitted=st.lists(st.sampled_from([EOS, STOP, OTHER]), min_size=1, max_size=9),
    case=st.fixed_dictionaries(CASES),
)
def test_any_tokens_against_the_rules(emitted: list[int], case: dict[str, Any]) -> None:
    max_len = case.pop("max_len")
    found = check_stop(sequence(emitted, **case), max_len)
    met("EOS that comes too early", emitted[-1] == EOS and len(emitted) <= case["min_tokens"])
    met("it goes on", found is None)
    met("the context is full", found == (LENGTH, None) and len(emitted) < case["max_tokens"])
    assert found == expected(emitted, max_len=max_len, **case)


@pytest.mark.parametrize("min_tokens", range(4))
@pytest.mark.parametrize(("token", "told"), [(EOS, None), (STOP, STOP)])
def test_an_end_counts_from_the_first_token_behind_min_tokens(
    min_tokens: int, token: int, told: int | None
) -> None:
    early = sequence([*[OTHER] * (min_tokens - 1), token], min_tokens=min_tokens)
    late = sequence([*[OTHER] * min_tokens, token], min_tokens=min_tokens)
    assert check_stop(late, 99) == (STOPPED, told)
    assert min_tokens == 0 or check_stop(early, 99) is None


def test_a_loop_as_long_as_is_looked_for_is_seen() -> None:
    bound = Repetition(2, 3, 3)
    for count, end in ((2, None), (3, (SequenceState.FINISHED_REPETITION, None))):
        found = sequence([9, 9, *[1, 2, 3] * count], repetition=bound)
        assert check_stop(found, 99) == end


def test_one_whose_prompt_is_still_to_be_told_about_goes_on() -> None:
    waiting = sequence([EOS])
    waiting.prompt_reported = 2
    assert check_stop(waiting, 99) is None


def test_under_a_grammar_eos_counts_at_once() -> None:
    """It comes that early only where nothing else is allowed."""
    assert check_stop(sequence([EOS], grammar=True, min_tokens=5), 99) == (STOPPED, None)
    ignoring = sequence([EOS], grammar=True, min_tokens=5, ignore_eos=True)
    assert check_stop(ignoring, 99) is None


@pytest.mark.parametrize("at", range(5))
def test_what_was_drafted_behind_an_end_is_left_out(at: int) -> None:
    """Its log-probabilities, too."""
    tokens = [*[OTHER] * at, EOS, *[OTHER] * (4 - at)]
    logprobs = [TokenLogprobs(-float(place), (), ()) for place in range(5)]
    outcome = SlotResult(
        0, tokens[0], more=tokens[1:], logprobs=logprobs[0], more_logprobs=logprobs[1:]
    )
    kept = until_stop(sequence([OTHER]), outcome, 99)
    assert kept.tokens == tokens[: at + 1]
    assert kept.more_logprobs == logprobs[1 : at + 1]
    assert until_stop(sequence([OTHER], ignore_eos=True), outcome, 99) == outcome
    assert (
        len(until_stop(sequence([OTHER], ignore_eos=True, max_tokens=3), outcome, 99).tokens) == 2
    )
