"""Streamed text against the whole decode of the tokenizers library."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend

from penstock.prepare import prepare
from penstock.text.detokenizer import (
    ByteFallbackDetokenizer,
    ByteLevelDetokenizer,
    WindowDetokenizer,
    make_detokenizer,
)
from penstock.text.tokenizer import Tokenizer
from testing.tiny_models import CORPUS, byte_level_tokenizer, sentencepiece_tokenizer
from tests.met import met
from tests.thinning import part

pytestmark = pytest.mark.timeout(240)


def _copy(backend: Backend) -> Backend:
    return Backend.from_str(backend.to_str())


def _ours(backend: Backend) -> Tokenizer:
    return Tokenizer.from_bytes(backend.to_str().encode(), add_bos=False, bos_token_id=None)


def _byte_level() -> Backend:
    """With added tokens whose letters are, and aren't, letters for bytes."""
    backend = _copy(byte_level_tokenizer())
    backend.add_tokens([AddedToken("<tool>"), AddedToken("é¡Ġ"), AddedToken("日本 x")])
    backend.add_special_tokens([AddedToken("▁☃"), AddedToken("<｜end｜>")])
    return backend


def _sentencepiece(order: str) -> Backend:
    backend = _copy(sentencepiece_tokenizer())
    backend.add_tokens([AddedToken("<tool> x"), AddedToken("▁▁")])
    replace, join = decoders.Replace("▁", " "), [decoders.ByteFallback(), decoders.Fuse()]
    steps = {
        "replaced first": [replace, *join, decoders.Strip(" ", 1, 0)],
        "replaced last": [*join, replace, decoders.Strip(" ", 1, 0)],
        "not stripped": [replace, *join],
    }
    backend.decoder = decoders.Sequence(steps[order])
    return backend


def _metaspace() -> Backend:
    backend = _copy(sentencepiece_tokenizer())
    backend.decoder = decoders.Metaspace()
    return backend


def _undecoded() -> Backend:
    backend = _copy(byte_level_tokenizer())
    backend.decoder = None
    return backend


KINDS = {
    "byte-level": (_byte_level, ByteLevelDetokenizer),
    "replaced first": (lambda: _sentencepiece("replaced first"), ByteFallbackDetokenizer),
    "replaced last": (lambda: _sentencepiece("replaced last"), ByteFallbackDetokenizer),
    "not stripped": (lambda: _sentencepiece("not stripped"), ByteFallbackDetokenizer),
    "metaspace": (_metaspace, WindowDetokenizer),
    "no decoder": (_undecoded, WindowDetokenizer),
}
_MADE: dict[str, Tokenizer] = {}


def _tokenizer(kind: str) -> Tokenizer:
    if kind not in _MADE:
        _MADE[kind] = _ours(KINDS[kind][0]())
    return _MADE[kind]


def _streamed(tokenizer: Tokenizer, ids: list[int], skip: bool, sizes: list[int]) -> list[str]:
    detokenizer = make_detokenizer(tokenizer, skip)
    pieces, position = [], 0
    for size in [*sizes, len(ids)]:
        pieces.append(detokenizer.push(ids[position : position + size]))
        position += size
    return [*pieces, detokenizer.finish()]


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_recognised(kind: str) -> None:
    assert type(make_detokenizer(_tokenizer(kind), True)) is KINDS[kind][1]


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(data=st.data(), skip=st.booleans())
@pytest.mark.parametrize("kind", KINDS)
def test_streamed_text_is_the_whole_decode(kind: str, data: st.DataObject, skip: bool) -> None:
    """Random ids: most are no text at all, so broken characters are the rule."""
    tokenizer = _tokenizer(kind)
    beyond = tokenizer.vocab_size + 3
    # The first 260 ids hold the special tokens, and the single bytes of both kinds.
    token = st.one_of(st.integers(0, 260), st.integers(0, beyond))
    ids = data.draw(st.lists(token, max_size=40))
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=20))
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    met("a broken character", "\ufffd" in whole or kind in ("metaspace", "no decoder"))
    assert "".join(_streamed(tokenizer, ids, skip, sizes)) == whole
    assert "".join(_streamed(tokenizer, ids, skip, [1] * len(ids))) == whole


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(text=st.one_of(st.sampled_from(CORPUS), st.text(max_size=30)))
@pytest.mark.parametrize("kind", ["byte-level", "replaced first"])
def test_no_piece_ends_within_a_character(kind: str, text: str) -> None:
    tokenizer = _tokenizer(kind)
    text = text.replace("\ufffd", "").replace("▁", "").strip()
    ids = tokenizer.encode(text, parse_special=False)
    met("more than one byte each", len(text.encode()) > len(text))
    pieces = _streamed(tokenizer, ids, False, [1] * len(ids))
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)
    if kind == "byte-level":
        assert "".join(pieces) == text
        assert pieces[-1] == "", "nothing is kept when the last character is whole"


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(raw=st.lists(st.integers(0, 255), max_size=12))
@pytest.mark.parametrize("kind", ["byte-level", "replaced first", "replaced last"])
def test_every_sequence_of_bytes(kind: str, raw: list[int]) -> None:
    tokenizer = _tokenizer(kind)
    met("no UTF-8", "\ufffd" in bytes(raw).decode("utf-8", "replace"))
    by_byte = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    ids = [by_byte[bytes([byte])] for byte in raw]
    assert "".join(_streamed(tokenizer, ids, False, [1] * len(ids))) == tokenizer.decode(ids)


def test_a_broken_character_at_the_end_is_shown_as_such() -> None:
    tokenizer = _tokenizer("byte-level")
    ids = tokenizer.encode("日")[:-1] or tokenizer.encode("👍🏽")[:-1]
    pieces = _streamed(tokenizer, ids, True, [1] * len(ids))
    assert set("".join(pieces[:-1])) <= set("日👍🏽")
    assert pieces[-1].endswith("\ufffd")


def test_special_tokens_are_skipped_or_shown() -> None:
    tokenizer = _tokenizer("byte-level")
    ids = tokenizer.encode("a<|im_end|>b")
    assert "".join(_streamed(tokenizer, ids, True, [1] * 3)) == "ab"
    assert "".join(_streamed(tokenizer, ids, False, [1] * 3)) == "a<|im_end|>b"


def test_wordpiece_goes_through_the_window(minilm_folder: Path) -> None:
    content = (minilm_folder / "tokenizer.json").read_bytes()
    tokenizer = Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)
    rng = random.Random(5)
    for skip in (True, False):
        for _ in range(40):
            ids = [rng.randrange(tokenizer.vocab_size) for _ in range(40)]
            pieces = _streamed(tokenizer, ids, skip, [1] * len(ids))
            assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Tokenizer:
    folder = prepare("smollm2-135m", cache_dir=str(tmp_path_factory.mktemp("cache")))
    content = (folder / "tokenizer.json").read_bytes()
    return Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)


def test_default_model_with_random_ids(smollm2: Tokenizer) -> None:
    rng = random.Random(7)
    for _ in range(200):
        ids = [rng.randrange(smollm2.vocab_size) for _ in range(64)]
        for skip in (True, False):
            pieces = _streamed(smollm2, ids, skip, [1] * len(ids))
            assert "".join(pieces) == smollm2.decode(ids, skip_special_tokens=skip)


def test_cost_of_a_token(smollm2: Tokenizer, record_property: pytest.RecordProperty) -> None:
    """0.3 to 0.6 us on a quick core: ten times what a list takes for it; the bound leaves room."""
    ids = smollm2.encode(" ".join(CORPUS) * 40)
    fastest = usual = float("inf")
    for _ in range(5):
        detokenizer = make_detokenizer(smollm2, True)
        singles = [[token] for token in ids]
        begin = time.thread_time()
        for single in singles:
            detokenizer.push(single)
        fastest = min(fastest, (time.thread_time() - begin) / len(ids))
        listed: list[int] = []
        begin = time.thread_time()
        for single in singles:
            listed.append(single[0])
        usual = min(usual, (time.thread_time() - begin) / len(ids))
    record_property("microseconds_per_token", fastest * 1e6)
    print(f"{fastest * 1e6:.2f} us a token")
    assert fastest < 60 * usual
