"""Token ids from text: special tokens parsed or not, BOS once, and what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from penstock.errors import InvalidRequest, UnsupportedModel
from penstock.text.tokenizer import Tokenizer, sharing_model
from testing.tiny_models import (
    CORPUS,
    added,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    with_bos,
)
from tests.met import met
from tests.thinning import part

pytestmark = pytest.mark.timeout(240)


def _ours(backend: Backend, *, add_bos: bool = False, bos: int | None = None) -> Tokenizer:
    content = backend.to_str().encode()
    return Tokenizer.from_bytes(content, add_bos=add_bos, bos_token_id=bos)


@pytest.fixture(scope="module")
def chatml() -> Tokenizer:
    return _ours(byte_level_tokenizer())


@pytest.fixture(scope="module")
def without_special() -> Backend:
    """A tokenizer of equal vocabulary and merges, in which nothing is a special token."""
    described = json.loads(byte_level_tokenizer().to_str())
    described["added_tokens"] = []
    return Backend.from_str(json.dumps(described))


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(
    text=st.lists(st.sampled_from(["<|im_", "end|>", "<|im_start|>", "a ", "é", "\n"])).map("".join)
)
def test_special_tokens_are_text_when_they_are_not_parsed(
    chatml: Tokenizer, without_special: Backend, text: str
) -> None:
    assert chatml.encode(text, parse_special=False) == without_special.encode(text).ids
    met("a special token's text", "<|im_start|>" in text or "<|im_end|>" in text)
    assert chatml.encode(text) == byte_level_tokenizer().encode(text).ids
    assert chatml.decode(chatml.encode(text, parse_special=False)) == text


def test_special_ids_and_texts(chatml: Tokenizer) -> None:
    assert chatml.special_ids == {0, 1, 2}
    assert chatml.special_tokens == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert chatml.vocab_size == byte_level_tokenizer().get_vocab_size()
    assert chatml.encode("x<|im_end|>")[-1] == 2
    assert chatml.token_text(2) == "<|im_end|>"


def test_token_bytes_are_the_bytes_of_the_text(chatml: Tokenizer) -> None:
    for tokenizer in (chatml, _ours(sentencepiece_tokenizer())):
        for text in CORPUS:
            ids = tokenizer.encode(text)
            joined = b"".join(tokenizer.token_bytes(token) for token in ids)
            assert joined.decode().removeprefix(" ") == text
    assert chatml.token_bytes(10**6) == b""
    assert chatml.token_bytes(-1) == b""
    broken = chatml.encode("日")[0]
    assert "\ufffd" in chatml.token_text(broken)


BOS_CASES = [
    ("hello", 1),
    ("", 1),
    ("<s>hello", 1),
    ("<s><s>hello", 2),
]


@pytest.mark.parametrize(("text", "count"), BOS_CASES)
def test_bos_is_added_once(text: str, count: int) -> None:
    """Whether the manifest asks for it, or tokenizer.json's own post-processor adds it. vLLM issue
    9519: a prompt that a client made from a template got a second one."""
    plain = sentencepiece_tokenizer()
    by_manifest = _ours(plain, add_bos=True, bos=1).encode(text)
    assert by_manifest == _ours(with_bos(plain, "<s>"), add_bos=True, bos=1).encode(text)
    assert by_manifest.count(1) == max(1, count)
    assert by_manifest[0] == 1


def test_bos_is_not_added_where_it_is_not_wanted() -> None:
    plain = sentencepiece_tokenizer()
    assert 1 not in _ours(plain, add_bos=False, bos=1).encode("hello")
    assert 1 not in _ours(plain, add_bos=True, bos=None).encode("hello")
    for backend in (plain, with_bos(plain, "<s>")):
        tokenizer = _ours(backend, add_bos=True, bos=1)
        assert tokenizer.encode("hello", add_special=False) == plain.encode("hello").ids
        unparsed = tokenizer.encode("<s>hello", parse_special=False)
        assert unparsed[0] == 1
        assert unparsed.count(1) == 1


@pytest.mark.parametrize("text", ["\ud800", "a\udfff b", "x" * 100 + "\ud83d"])
@pytest.mark.parametrize("parse_special", [True, False])
def test_lone_surrogates_are_refused(chatml: Tokenizer, text: str, parse_special: bool) -> None:
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        chatml.encode(text, parse_special=parse_special)


@pytest.mark.parametrize("ids", [[-1], [2**32], [1, 2**70]])
def test_ids_out_of_range_are_refused(chatml: Tokenizer, ids: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="token ids must lie between"):
        chatml.decode(ids)


def test_truncation_and_padding_of_the_file_are_off() -> None:
    backend = Backend.from_str(byte_level_tokenizer().to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=50)
    text = CORPUS[0]
    assert _ours(backend).encode(text) == byte_level_tokenizer().encode(text).ids


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\xff", b'{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","b"]]}}'],
)
def test_what_is_no_tokenizer_is_refused(content: bytes) -> None:
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json can't be read"):
        Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)


def test_added_tokens_that_are_not_special_are_always_parsed() -> None:
    backend = Backend.from_str(byte_level_tokenizer().to_str())
    backend.add_tokens(["<think>"])
    backend.add_special_tokens([added("<|x|>")])
    tokenizer = _ours(backend)
    think = backend.token_to_id("<think>")
    for parse in (True, False):
        assert think in tokenizer.encode("a<think>b", parse_special=parse)
    assert think not in tokenizer.special_ids
    assert backend.token_to_id("<|x|>") in tokenizer.special_ids


def test_threads_that_parse_and_threads_that_do_not(chatml: Tokenizer) -> None:
    text = "a<|im_end|>b"
    expected = {parse: chatml.encode(text, parse_special=parse) for parse in (True, False)}
    wrong: list[list[int]] = []

    def work(parse: bool) -> None:
        for _ in range(300):
            ids = chatml.encode(text, parse_special=parse)
            if ids != expected[parse]:
                wrong.append(ids)

    threads = [threading.Thread(target=work, args=(n % 2 == 0,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(byte_level_tokenizer().to_str()), **changes}).encode()


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    return {**split, "pattern": {"Regex": pattern}}


BREAK_LATER = {
    "backtracking without end": {"pre_tokenizer": _split("(a+)+$")},
    "in the normalizer": {
        "normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "x"}
    },
    "chunks of nothing": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "no token for the unknown": {
        "model": {"type": "WordLevel", "vocab": {"b": 0}, "unk_token": "[UNK]"}
    },
    "no pieces": {"model": {"type": "Unigram", "unk_id": None, "vocab": []}},
    "a template without its token": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "a", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    },
}


@pytest.mark.parametrize("case", BREAK_LATER)
def test_a_tokenizer_that_breaks_at_some_texts_refuses_these(case: str) -> None:
    """The library panics there, which `except Exception` doesn't catch."""
    tokenizer = Tokenizer.from_bytes(
        _changed(**BREAK_LATER[case]), add_bos=False, bos_token_id=None
    )
    for way in (tokenizer.encode, lambda text: tokenizer.encode_typed(text, None)):
        with pytest.raises(InvalidRequest, match=r"the model's tokenizer\.json can't handle"):
            way("a" * 40 + "!")


def test_a_decoder_that_breaks_refuses() -> None:
    strip = {"type": "Strip", "content": "a", "start": 2**60, "stop": 2**60}
    tokenizer = Tokenizer.from_bytes(_changed(decoder=strip), add_bos=False, bos_token_id=None)
    with pytest.raises(InvalidRequest, match=r"the model's tokenizer\.json can't handle"):
        tokenizer.decode(tokenizer.encode("aaaa"))


def test_the_same_text_is_always_the_same_tokens() -> None:
    """BPE's dropout, which a file may be saved with, is for training."""
    model = json.loads(byte_level_tokenizer().to_str())["model"]
    tokenizer = Tokenizer.from_bytes(
        _changed(model={**model, "dropout": 0.5}), add_bos=False, bos_token_id=None
    )
    text = "return the sums " * 20
    for parse_special in (True, False):
        ids = [tokenizer.encode(text, parse_special=parse_special) for _ in range(5)]
        assert ids == [byte_level_tokenizer().encode(text).ids] * 5


def _mixed() -> Backend:
    backend = byte_level_tokenizer()
    backend.add_tokens(
        [AddedToken("plain word", single_word=True), AddedToken(" kept ", lstrip=True)]
    )
    backend.add_special_tokens(
        [added("<late>"), AddedToken("<stripped>", rstrip=True, special=True)]
    )
    return backend


@pytest.mark.parametrize(
    "make",
    [
        byte_level_tokenizer,
        sentencepiece_tokenizer,
        lambda: sentencepiece_tokenizer(prepend_scheme="first"),
        _mixed,
        lambda: with_bos(sentencepiece_tokenizer(), "<s>"),
    ],
)
def test_backends_that_share_a_vocabulary_are_as_if_read_again(make: Callable[[], Backend]) -> None:
    content = make().to_str()
    ours = sharing_model(Backend.from_str(content))
    again = Backend.from_str(content)
    assert json.loads(ours.to_str()) == json.loads(again.to_str())
    text = "word kept <late> <cut>  <|im_start|>é</s> <far>" + CORPUS[0]
    for each in (ours, again):
        each.encode_special_tokens = True
    assert ours.encode(text).ids == again.encode(text).ids


def test_a_prepared_tokenizer_reads_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = _ours(sentencepiece_tokenizer(prepend_scheme="first"))
    ours.prepare()
    monkeypatch.setattr("penstock.text.tokenizer.load_backend", None)
    monkeypatch.setattr("penstock.text.tokenizer.Backend", None)
    marked = ours.encode("a", parse_special=False, add_special=False)
    assert ours.encode("a", parse_special=False, add_special=False, begins=False) != marked
    assert ours.fallback_pieces(True) is ours.fallback_pieces(True)
