"""A sequence's ids as text: from which token on stop strings count, and how long text is held."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from penstock import SamplingParams
from penstock.client.deltas import SequenceDelta
from penstock.client.emitted import SequenceText, emitted_sequences
from penstock.protocol.common import FinishReason, TokenLogprobs
from penstock.protocol.to_frontend import SequenceOutput
from penstock.text.detokenizer import WindowDetokenizer, make_detokenizer
from penstock.text.tokenizer import Tokenizer
from tests.gateway.byte_tokenizer import ByteTokenizer


@pytest.mark.parametrize("min_tokens", range(6))
def test_stop_strings_count_from_the_first_token_behind_min_tokens(min_tokens: int) -> None:
    """Each token is the stop string."""
    text = SequenceText(
        ByteTokenizer(),  # type: ignore[arg-type]
        skip_special_tokens=True,
        stop=("x",),
        min_tokens=min_tokens,
    )
    piece = text.push(list(b"xxxxxx"))
    assert (piece.text, piece.used, piece.stop) == ("x" * min_tokens, min_tokens + 1, "x")


def test_a_stop_string_that_begins_before_min_tokens_is_none() -> None:
    text = SequenceText(
        ByteTokenizer(),  # type: ignore[arg-type]
        skip_special_tokens=True,
        stop=("abc",),
        min_tokens=2,
    )
    piece = text.push(list(b"abcabcd"))
    assert (piece.text, piece.used, piece.stop) == ("abc", 6, "abc")


def test_what_never_becomes_a_character_is_shown_after_a_while() -> None:
    """A model may write U+FFFD itself, again and again."""
    backend = Backend(WordLevel({"\ufffd": 0, "a": 1}, unk_token="a"))
    tokenizer = Tokenizer.from_bytes(backend.to_str().encode(), add_bos=False, bos_token_id=None)
    detokenizer = make_detokenizer(tokenizer, True)
    assert isinstance(detokenizer, WindowDetokenizer)
    shown = [detokenizer.push([0]) for _ in range(40)]
    longest = max(len(run) for run in "".join("x" if each else "." for each in shown).split("x"))
    assert longest < WindowDetokenizer.MAX_HELD
    assert "".join([*shown, detokenizer.finish()]).count("\ufffd") == 40


def taken(tokens: list[int], *, finish: FinishReason | None = None, **params: Any) -> SequenceDelta:
    """What a sequence gains by one output."""
    (sequence,) = emitted_sequences(ByteTokenizer(), SamplingParams(**params), ())  # type: ignore[arg-type]
    logprobs = [TokenLogprobs(-float(token), (), ()) for token in tokens]
    stop_token = tokens[-1] if finish == "stop" else None
    return sequence.take(
        SequenceOutput(0, 0, tokens, logprobs, finish=finish, stop_token=stop_token)
    )


def test_nothing_behind_a_stop_string_counts() -> None:
    delta = taken(list(b"ab|cd"), stop="|")
    assert (delta.text, delta.token_ids) == ("ab", list(b"ab|"))
    assert delta.logprobs is not None
    assert [each.logprob for each in delta.logprobs] == [-97.0, -98.0, -124.0]
    assert (delta.finish_reason, delta.stop_reason) == ("stop", "|")


def test_a_stop_string_is_shown_where_that_was_asked_for() -> None:
    delta = taken(list(b"ab|cd"), stop="|", include_stop_str_in_output=True)
    assert (delta.text, delta.token_ids) == ("ab|", list(b"ab|"))


def test_a_token_that_ends_an_answer_counts_and_is_shown_only_where_that_was_asked_for() -> None:
    for asked, text in ((False, "ab"), (True, "abc")):
        delta = taken(list(b"abc"), finish="stop", include_stop_str_in_output=asked)
        assert (delta.text, delta.token_ids) == (text, list(b"abc"))
        assert (delta.finish_reason, delta.stop_reason) == ("stop", ord("c"))
    assert taken(list(b"abc"), finish="length").text == "abc"


def test_a_stop_string_comes_before_an_end_of_the_same_tokens() -> None:
    delta = taken(list(b"ab|c"), finish="length", stop=["|", "c"])
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("ab", "stop", "|")
