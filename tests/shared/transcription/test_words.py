"""Words of tokens: the same as transformers makes of the same tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from penstock.text.tokenizer import Tokenizer
from penstock.transcription.transcriber import Word, words_of

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def backend() -> Backend:
    """Bytes."""
    made = Backend(models.BPE(vocab={letter: n for n, letter in enumerate(ALPHABET)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


BACKEND = backend()
TOKENIZER = Tokenizer.from_bytes(BACKEND.to_str().encode(), add_bos=False, bos_token_id=None)
THEIRS: Any = SimpleNamespace(
    decode=lambda ids, **_: BACKEND.decode(ids, skip_special_tokens=False),
    eos_token_id=len(ALPHABET),
)
TEXTS = {
    "english": " Hello, world! It's (really) 3.5 %, isn't it?",
    "german": ' Grüße aus "Köln": schön – nicht wahr?',
    "chinese": "今天天气不错。我们去“公园”吧！",
}


def words(text: str, language: str, ends: list[float] | None = None) -> list[Word]:
    ids = BACKEND.encode(text).ids
    ends = ends or [0.1 * at for at in range(1, len(ids) + 1)]
    return words_of(ids, ends, 0.0, TOKENIZER, text_end=len(ALPHABET), language=language)


@pytest.mark.parametrize(
    ("language", "code"), [("english", "en"), ("german", "de"), ("chinese", "zh")]
)
def test_words_are_those_of_transformers(language: str, code: str) -> None:
    text = TEXTS[language]
    theirs, _, indices = _combine_tokens_into_words(THEIRS, BACKEND.encode(text).ids, language)
    found = words(text, code)
    assert [each.text for each in found] == [each.strip() for each in theirs]
    assert [each.start for each in found] == pytest.approx([0.1 * each[0] for each in indices])
    assert [each.end for each in found] == pytest.approx([0.1 * (each[-1] + 1) for each in indices])


def test_times_stand_between_words_and_are_none() -> None:
    ids = [300, *BACKEND.encode(" ab").ids, 301, 301, *BACKEND.encode(" c").ids, 302]
    ends = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    found = words_of(ids, ends, 0.5, TOKENIZER, text_end=len(ALPHABET), language="en")
    assert found == [Word("ab", 1.0, 4.0), Word("c", 6.0, 8.0)]
    assert Word("a", 0.0, 9.0).within(2.0, 5.0) == Word("a", 2.0, 5.0)


def test_bytes_that_are_no_text_are_kept() -> None:
    broken = BACKEND.encode(" é").ids[:-1]
    found = words_of(broken, [1.0, 2.0], 0.0, TOKENIZER, text_end=len(ALPHABET), language="en")
    assert [(each.start, each.end) for each in found] in ([(0.0, 2.0)], [(1.0, 2.0)])
