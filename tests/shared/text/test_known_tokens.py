"""A sequence that is computed again for a consumer who has its beginning."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock import SamplingParams
from penstock.client.deltas import GrowingDelta, SequenceDelta
from penstock.client.emitted import KnownTokens, emitted_sequences
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.to_frontend import SequenceOutput
from penstock.text.tokenizer import Tokenizer
from tests.gateway.byte_tokenizer import ByteTokenizer
from tests.met import met

TEXT = "one two öäü three"


def outputs(tokens: list[int], cuts: set[int], *, logprobs: bool) -> list[SequenceOutput]:
    """The tokens in pieces, each with a log-probability that only its place has."""
    edges = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    return [
        SequenceOutput(
            0,
            0,
            tokens[begin:end],
            logprobs=[place_logprob(at) for at in range(begin, end)] if logprobs else None,
            finish="length" if end == len(tokens) else None,
        )
        for begin, end in itertools.pairwise(edges)
    ]


def place_logprob(at: int) -> TokenLogprobs:
    return TokenLogprobs(-0.5 * at, (at,), (-0.5 * at,))


def whole(deltas: list[SequenceDelta]) -> SequenceDelta:
    growing = GrowingDelta(deltas[0])
    for delta in deltas[1:]:
        growing.add(delta)
    return growing.whole()


def deltas_of(
    made: list[SequenceOutput], params: SamplingParams, known: tuple[KnownTokens, ...] = ()
) -> tuple[list[SequenceDelta], list[SequenceDelta]]:
    """Returns what was known, and what is new, up to the sequence's end."""
    tokenizer: Tokenizer = ByteTokenizer()
    (sequence,) = emitted_sequences(tokenizer, params, known)
    old, new = [], []
    for output in made:
        new.append(sequence.take(output))
        if (replayed := sequence.replayed()) is not None:
            old.append(replayed)
        if new[-1].finish_reason is not None:
            break
    return old, new


@given(
    cuts=st.sets(st.integers(1, 20), max_size=6),
    again=st.sets(st.integers(1, 20), max_size=6),
    known=st.integers(0, 18),
    stop=st.sampled_from([None, "two", "wo ö", "three"]),
    logprobs=st.booleans(),
)
def test_what_is_known_and_what_is_new_are_the_whole_answer(
    cuts: set[int], again: set[int], known: int, stop: str | None, logprobs: bool
) -> None:
    """However its tokens come the second time: text, ids, log-probabilities and the end."""
    params = SamplingParams(stop=stop, logprobs=0 if logprobs else None)
    tokens = list(TEXT.encode())
    _, undisturbed = deltas_of(outputs(tokens, cuts, logprobs=logprobs), params)
    expected = whole(undisturbed)
    known = min(known, len(expected.token_ids))
    repeated = outputs(tokens, again, logprobs=logprobs)
    old, new = deltas_of(repeated, params, (KnownTokens(known),))
    within = any(at < known < at + len(each.tokens) for at, each in places(repeated))
    met("an output with tokens of both, and log-probabilities", within and logprobs)
    met("a stop string", expected.stop_reason is not None)
    later = whole(new)
    assert later.token_ids == expected.token_ids[known:]
    assert later.finish_reason == expected.finish_reason
    assert later.stop_reason == expected.stop_reason
    before = "" if not old else whole(old).text
    assert before + later.text == expected.text
    if logprobs:
        assert later.logprobs == [place_logprob(at) for at in range(known, len(expected.token_ids))]
        kept = [] if not old else whole(old).logprobs
        assert kept == [place_logprob(at) for at in range(known)]


def places(made: list[SequenceOutput]) -> list[tuple[int, SequenceOutput]]:
    """Each output with its first token's place."""
    found, at = [], 0
    for output in made:
        found.append((at, output))
        at += len(output.tokens)
    return found
