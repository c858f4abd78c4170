"""Long and hostile texts: ids as `tokenizers` gives them, and work that others don't feel."""

from __future__ import annotations

import random
import re
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from penstock.errors import InvalidRequest
from penstock.text import segment_encoder
from penstock.text.disarm import disarm, prefix_tree
from penstock.text.segment_encoder import SegmentEncoder
from penstock.text.template import ChatTemplate
from penstock.text.tokenizer import LONG_TEXT, PIECE, Tokenizer
from testing.tiny_models import CHATML, added, byte_level_tokenizer, sentencepiece_tokenizer
from tests.met import met

pytestmark = pytest.mark.timeout(120)

SPECIAL = ("<|im_end|>", "<|im_start|>", "<s>", "</s>", "[INST]")
WORDS = ("the ", "über", "\n\n", "  ", "<", "<|", "<|im_", "|>", "☃", "0x", *SPECIAL)


def tokenizer_of(backend: Backend) -> Tokenizer:
    return Tokenizer.from_bytes(backend.to_str().encode(), add_bos=False, bos_token_id=None)


def with_specials(backend: Backend) -> Backend:
    made = Backend.from_str(backend.to_str())
    made.add_special_tokens([added(token) for token in SPECIAL])
    return made


def texts() -> list[str]:
    draw = random.Random(1)
    mixed = ["".join(draw.choices(WORDS, k=k)) for k in (2000, 6000)]
    return [*mixed, "<" * 2 * PIECE, "a" * 2 * PIECE, " " * 2 * PIECE, "x" * (LONG_TEXT - 1)]


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
@pytest.mark.parametrize("parse_special", [True, False])
def test_long_texts_have_the_ids_that_the_library_gives(make: object, parse_special: bool) -> None:
    backend = with_specials(make())  # type: ignore[operator]
    ours = tokenizer_of(backend)
    backend.encode_special_tokens = not parse_special
    for text in texts():
        ids = backend.encode(text, add_special_tokens=False).ids
        given = {"parse_special": parse_special, "add_special": False}
        assert ours.encode(text, **given) == ids
        assert ours.encode(text, **given, most=len(ids) + 100) == ids


def test_a_cut_text_keeps_the_ids_of_its_beginning() -> None:
    ours = tokenizer_of(byte_level_tokenizer())
    whole = ours.encode("word " * 4000, add_special=False)
    assert ours.encode_typed("word " * 4000, None, add_special=False, limit=50)[0] == whole[:50]


def test_counting_stops_where_a_text_has_too_many_tokens() -> None:
    ours = tokenizer_of(byte_level_tokenizer())
    with pytest.raises(InvalidRequest, match="more than 1000 tokens: its first") as refused:
        ours.encode("word " * 1_000_000, most=1000)
    assert refused.value.code == "context_length_exceeded"
    assert "of 5000000 characters" in refused.value.message


def test_encoding_lets_go_of_the_interpreters_lock() -> None:
    """While one thread encodes, another takes many turns: holding the lock, it would leave none."""
    ours, turns, done = tokenizer_of(byte_level_tokenizer()), 0, threading.Event()
    text = "some words <|im_end|> " * 50_000
    ours.encode(text[:LONG_TEXT])

    def encode() -> None:
        ours.encode(text, add_special=False)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    while not done.is_set():
        turns += 1
        time.sleep(0.001)
    thread.join()
    assert turns > 10


def test_a_prefix_tree_matches_the_longest() -> None:
    draw = random.Random(2)
    for _ in range(200):
        words = {"".join(draw.choices("ab|<", k=draw.randint(1, 5))) for _ in range(6)}
        text = "".join(draw.choices("ab|<", k=60))
        longest_first = sorted(words, key=len, reverse=True)
        plain = re.compile("|".join(map(re.escape, longest_first)))
        assert re.findall(prefix_tree(words), text) == plain.findall(text)


def test_breaking_takes_time_in_proportion_to_a_text() -> None:
    """Thread CPU time, of texts that begin a special token at every character or come near one."""
    special = frozenset({*SPECIAL, *(f"<|reserved_special_token_{i}|>" for i in range(250))})
    disarm({"x": "y"}, special, CHATML)
    for piece in ("<", "<|reserved_special_token_", "<|im_end|>"):
        text = piece * (1_000_000 // len(piece))
        begun = time.thread_time()
        disarmed = disarm({"x": text}, special, CHATML)
        assert time.thread_time() - begun < 2.0
        assert disarmed.restore(disarmed.values["x"]) == text


def test_a_template_is_filled_with_hostile_variables_elsewhere() -> None:
    """None of the work of breaking is this process's own."""
    backend = with_specials(byte_level_tokenizer())
    template = ChatTemplate(CHATML, tokenizer_of(backend))
    messages = [{"role": "user", "content": "hi"}]
    template.filled(messages)
    begun = time.thread_time()
    filled = template.filled(messages, x="<" * 3_000_000)
    spent = time.thread_time() - begun
    template.close()
    assert filled.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert spent < 0.25


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
def test_the_wanted_ids_are_those_of_the_whole_text(make: object) -> None:
    ours = tokenizer_of(with_specials(make()))  # type: ignore[operator]
    for text in [*texts(), "word <|im_end|> ☃ " * 4000]:
        whole = ours.encode(text, add_special=False)
        for wanted in (1, 50, 3000):
            assert ours.encode(text, add_special=False, first=wanted)[:wanted] == whole[:wanted]
            assert ours.encode(text, add_special=False, last=wanted)[-wanted:] == whole[-wanted:]
    assert len(ours.encode("word " * 100_000, last=50)) < 20_000


def test_many_ids_have_the_text_that_the_library_gives() -> None:
    ours = tokenizer_of(with_specials(byte_level_tokenizer()))
    ids = ours.encode("word <|im_end|> ☃ " * 4000)
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == ours._backend.decode(
            ids, skip_special_tokens=skip
        )


@given(
    pieces=st.lists(
        st.sampled_from(["<|im_start|>", "<|im_end|>", "<|", "im_", "end|>", "[INST]", "x" * 9])
    ),
    window=st.integers(1, 40),
)
def test_windows_find_the_special_tokens_that_one_search_finds(
    pieces: list[str], window: int
) -> None:
    encoder = SegmentEncoder(tokenizer_of(with_specials(byte_level_tokenizer())))
    text = "".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_encoder, "WINDOW", window)
        found = encoder._split(text)
    assert found == re.split(f"({'|'.join(map(re.escape, SPECIAL))})", text)
    met("a special token in a text longer than a window", len(found) > 1 and len(text) > window)
