"""Outputs are divided into messages by the values in them, and nothing of them is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.to_frontend import SequenceOutput
from penstock_engine.sessions import output_messages
from penstock_engine.sessions.output_messages import is_large, messages
from tests.met import met

MOST_VALUES, MOST_OUTPUTS = 40, 4


def _values(entries: list[TokenLogprobs] | None) -> int:
    return sum(1 + 2 * len(each.top_ids) for each in entries or ())


def _entries(count: int, top: int, first: float) -> list[TokenLogprobs]:
    ids = tuple(range(top))
    return [TokenLogprobs(first - at, ids, tuple(map(float, ids))) for at in range(count)]


OUTPUTS = st.builds(
    lambda sequence, tokens, top, told, prompt, cached, finish: SequenceOutput(
        1,
        sequence,
        list(range(tokens)),
        _entries(tokens, top, -1.0) if told else None,
        finish,
        cached_tokens=cached,
        prompt_logprobs=_entries(prompt, top, -1000.0) if prompt else None,
    ),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(0, 6),
    st.booleans(),
    st.sampled_from([0, 1, 7, 30]),
    st.sampled_from([None, 3]),
    st.sampled_from([None, "stop"]),
)


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_messages, "MAX_VALUES", MOST_VALUES)
        patch.setattr(output_messages, "MAX_OUTPUTS", MOST_OUTPUTS)
        yield


@given(st.lists(OUTPUTS, max_size=12))
def test_messages_are_small_and_whole(outputs: list[SequenceOutput]) -> None:
    told = list(messages(outputs, large=any(map(is_large, outputs))))
    met("several messages", len(told) > 1)
    met("a divided prompt", sum(map(len, told)) > len(outputs))
    for part in told:
        assert len(part) <= MOST_OUTPUTS
        before = sum(len(o.tokens) + _values(o.logprobs) for o in part[:-1])
        before += sum(_values(o.prompt_logprobs) for o in part[:-1])
        assert before < MOST_VALUES
        for output in part:
            entries = output.prompt_logprobs or []
            assert len(entries) <= 1 or _values(entries) <= MOST_VALUES
    assert bool(told[0]) == bool(outputs), "where there is nothing, one empty message"
    _are_whole([each for part in told for each in part], outputs)


def _are_whole(found: list[SequenceOutput], outputs: list[SequenceOutput]) -> None:
    """Pieces of an output lie one behind the other: joined they are what it was."""
    pieces = iter(found)
    for output in outputs:
        piece = next(pieces)
        assert piece.cached_tokens == output.cached_tokens
        of_prompt = list(piece.prompt_logprobs or ())
        while len(of_prompt) < len(output.prompt_logprobs or ()):
            assert not piece.tokens
            assert piece.logprobs is piece.finish is None
            piece = next(pieces)
            assert piece.cached_tokens is None
            of_prompt += piece.prompt_logprobs or ()
        assert of_prompt == (output.prompt_logprobs or [])
        assert (piece.request, piece.sequence) == (output.request, output.sequence)
        assert (piece.tokens, piece.logprobs, piece.finish) == (
            output.tokens,
            output.logprobs,
            output.finish,
        )
    assert next(pieces, None) is None
