"""GGUF files as prepared models: settings, vocabulary, and what is refused."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import gguf
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from penstock.formats.gguf import GGUFFile
from penstock.prepare import load_manifest, prepare
from penstock.prepare.from_gguf import MIXTURES
from penstock.prepare.gguf_tokenizer_bpe import PRE_TOKENIZERS
from testing.model_configs import llama_config
from testing.tiny_models import (
    CORPUS,
    add_byte_level_vocabulary,
    add_sentencepiece_vocabulary,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    tokens_by_id,
    write_gguf,
)
from tests.met import met
from tests.shared.prepare.prepared_file import prepared_file
from tests.thinning import part

pytestmark = pytest.mark.timeout(240)

TEXTS = [
    *CORPUS,
    "",
    " ",
    "  two  spaces ",
    "a  3 b 12345",
    "\r\n\r\n x",
    "<|im_start|>user\nhi<|im_end|>",
]


def test_default_model(tmp_path: Path, smollm2_gguf: Path) -> None:
    begin = time.thread_time()
    GGUFFile(smollm2_gguf)
    reading = time.thread_time() - begin
    begin = time.thread_time()
    folder = prepare("smollm2-135m", cache_dir=str(tmp_path))
    assert time.thread_time() - begin < 50 * reading, "weights stay where they are"
    manifest = load_manifest(folder)
    assert manifest.name == "smollm2-135m"
    assert manifest.source == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert manifest.weights.files == (str(smollm2_gguf),)
    assert manifest.weights.dtype == manifest.weights.mixture == "Q4_1"
    assert manifest.config == llama_config(
        architecture="llama",
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position=8192,
        rms_norm_eps=1e-5,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
    )
    assert manifest.generation.eos_token_ids == (2, 0)
    assert manifest.generation.bos_token_id == 1
    assert not manifest.add_bos
    assert manifest.has_chat_template
    template = (folder / "chat_template.jinja").read_text()
    assert template == GGUFFile(smollm2_gguf).metadata["tokenizer.chat_template"]


@pytest.mark.timeout(300)  # transformers takes its time to read the file
def test_default_models_tokenizer_as_transformers_reads_it(
    tmp_path: Path, smollm2_in_transformers: Any
) -> None:
    theirs = smollm2_in_transformers
    folder = prepare("smollm2-135m", cache_dir=str(tmp_path))
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert ours.get_vocab() == theirs.get_vocab()
    for text in TEXTS:
        # transformers' conversion from GGUF leaves the file's pre-tokenizer out. llama.cpp's
        # definition of `smollm` decides: digits alone first, so in "a  3" both spaces are one
        # word, where GPT-2's pattern alone would give the second one to the digit.
        expected = [i for part in regex.split(r"(\p{N})", text) for i in theirs(part)["input_ids"]]
        assert ours.encode(text).ids == expected


def _isolate(pieces: list[str], pattern: str) -> list[str]:
    found: list[str] = []
    for piece in pieces:
        end = 0
        for match in regex.finditer(pattern, piece):
            found += [piece[end : match.start()], match[0]]
            end = match.end()
        found.append(piece[end:])
    return [piece for piece in found if piece]


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_CPP = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"],
    "qwen2": [rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "deepseek-coder": [
        r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"],
}  # fmt: skip
"""llama.cpp's definitions: each pattern isolates its matches in what the one before left."""

WORDS = st.text(
    st.one_of(
        st.sampled_from(" \t\n\r'0123456789sStTrReEvVdDlLmM.,!?<=>$+日本é½Ⅷ"),
        st.characters(codec="utf-8", categories=["L", "N", "P", "Z", "M"]),
    ),
    max_size=40,
)


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(text=WORDS)
@pytest.mark.parametrize("name", LLAMA_CPP)
def test_words_as_llama_cpp_defines_them(name: str, text: str) -> None:
    pieces = [text] if text else []
    for pattern in LLAMA_CPP[name]:
        pieces = _isolate(pieces, pattern)
    split = PRE_TOKENIZERS[name].build().pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in split] == pieces
    met("several words", len(pieces) > 1)


def test_byte_level_vocabulary_gives_the_tokenizer_it_came_from(tmp_path: Path) -> None:
    manifest, tokenizer = prepared_file(write_gguf(tmp_path / "tiny.gguf"))
    original = byte_level_tokenizer()
    assert manifest.name == "tiny"
    assert not manifest.add_bos
    for text in TEXTS:
        ids = original.encode(text).ids
        assert tokenizer.encode(text).ids == ids
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == original.decode(
                ids, skip_special_tokens=skip
            )


@pytest.mark.parametrize("name", ["llama-bpe", "tekken"])
def test_a_word_of_the_vocabulary_is_one_token_where_merges_are_ignored(
    tmp_path: Path, name: str
) -> None:
    def vocabulary(writer: gguf.GGUFWriter) -> int:
        return add_byte_level_vocabulary(writer, name)

    manifest, tokenizer = prepared_file(write_gguf(tmp_path / "a.gguf", vocabulary=vocabulary))
    assert json.loads(tokenizer.to_str())["model"]["ignore_merges"] is True
    assert manifest.add_bos


def _sentencepiece_ids(text: str, file: GGUFFile) -> list[int]:
    """SentencePiece's BPE as its authors describe it, word for word and slow: join the
    neighbours that make the token with the best score, the leftmost of equals, until none do."""
    tokens = file.metadata["tokenizer.ggml.tokens"]
    types = file.metadata["tokenizer.ggml.token_type"]
    scores = file.metadata["tokenizer.ggml.scores"]
    ids = {token: i for i, token in enumerate(tokens)}
    normal = {token for token, kind in zip(tokens, types, strict=True) if kind == 1}
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        best = max(
            (
                (scores[ids[left + right]], -i)
                for i, (left, right) in enumerate(itertools.pairwise(parts))
                if left + right in normal
            ),
            default=None,
        )
        if best is None:
            break
        i = -best[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    found: list[int] = []
    for one in parts:
        found += [ids[one]] if one in normal else [ids[f"<0x{b:02X}>"] for b in one.encode()]
    return found


@pytest.fixture(scope="module")
def sentencepiece_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spm") / "spm.gguf"
    return write_gguf(path, vocabulary=add_sentencepiece_vocabulary)


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(text=st.one_of(st.sampled_from(CORPUS), st.text("theoréà ▁.日", max_size=30), WORDS))
def test_scores_give_the_merges_of_sentencepiece(sentencepiece_file: Path, text: str) -> None:
    manifest, tokenizer = prepared_file(sentencepiece_file)
    assert manifest.add_bos
    ids = tokenizer.encode(text).ids
    assert ids == _sentencepiece_ids(text, GGUFFile(sentencepiece_file))
    met("merged", len(ids) - 1 < len(text.encode()))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text.replace("▁", " ")


def test_sentencepiece_vocabulary_gives_the_tokenizer_it_came_from(
    sentencepiece_file: Path,
) -> None:
    _, tokenizer = prepared_file(sentencepiece_file)
    for text in (*TEXTS, "</s> after", "a<unk>b"):
        assert tokenizer.encode(text).ids == sentencepiece_tokenizer().encode(text).ids


def test_space_prefix_can_be_switched_off(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "spm.gguf",
        vocabulary=add_sentencepiece_vocabulary,
        adjust=lambda writer: writer.add_add_space_prefix(False),
    )
    _, tokenizer = prepared_file(path)
    the = tokenizer.encode("the")
    assert not the.tokens[0].startswith("▁")
    assert tokenizer.decode(tokenizer.encode(" the").ids) == " the"


def test_extra_spaces_can_be_removed(tmp_path: Path) -> None:
    """SentencePiece's own normaliser does it where the model says so."""
    plain = write_gguf(tmp_path / "plain.gguf", vocabulary=add_sentencepiece_vocabulary)
    without = write_gguf(
        tmp_path / "spm.gguf",
        vocabulary=add_sentencepiece_vocabulary,
        adjust=lambda writer: writer.add_remove_extra_whitespaces(True),
    )
    ours, usual = prepared_file(without)[1], prepared_file(plain)[1]
    for text in (*TEXTS, "  the   quick  ", "   "):
        words = " ".join(word for word in text.split(" ") if word)
        assert ours.encode(text).ids == usual.encode(words).ids, text


@pytest.mark.parametrize("name", ["Phi-3 mini", "Other"])
def test_tokens_of_phi_3_take_the_space_behind_them(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", adjust=lambda writer: writer.add_name(name))
    tokenizer = prepared_file(path)[1]
    stripped = tokenizer.encode("<|im_end|> \n x").ids == tokenizer.encode("<|im_end|>x").ids
    assert stripped == (name != "Other")
    kept = tokenizer.encode("<|endoftext|> x").ids
    assert kept != tokenizer.encode("<|endoftext|>x").ids


def test_kinds_of_tokens(tmp_path: Path) -> None:
    def vocabulary(writer: gguf.GGUFWriter) -> int:
        tokens = [*tokens_by_id(byte_level_tokenizer()), "<tool>", "[PAD]", "[PAD]"]
        add_byte_level_vocabulary(writer)
        for key, kind, value in (
            ("tokens", gguf.GGUFValueType.STRING, tokens),
            ("token_type", gguf.GGUFValueType.INT32, [3] * 3 + [1] * (len(tokens) - 6) + [4, 5, 5]),
        ):
            writer.kv_data[0][f"tokenizer.ggml.{key}"] = gguf.GGUFValue(
                value=value, type=gguf.GGUFValueType.ARRAY, sub_type=kind
            )
        return len(tokens)

    path = write_gguf(tmp_path / "kinds.gguf", vocabulary=vocabulary)
    _, tokenizer = prepared_file(path)
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    assert added["<|im_end|>"].special
    assert not added["<tool>"].special
    assert "[PAD]" not in tokenizer.get_vocab()
    assert "<tool>" in tokenizer.encode("use<tool>now").tokens


def test_the_mixture_is_what_the_file_says(tmp_path: Path) -> None:
    def said(value: object) -> str:
        def vocabulary(writer: gguf.GGUFWriter) -> int:
            if isinstance(value, str):
                writer.add_string("general.file_type", value)
            elif isinstance(value, int):
                writer.add_file_type(value)
            return add_byte_level_vocabulary(writer)

        path = write_gguf(tmp_path / "mixed.gguf", vocabulary=vocabulary)
        return prepared_file(path)[0].weights.mixture

    assert said(gguf.LlamaFileType.MOSTLY_Q4_K_M) == "Q4_K_M"
    # Floats are what writers put that know no better; the rest is nobody's, or no number.
    for other in (gguf.LlamaFileType.ALL_F32, gguf.LlamaFileType.GUESSED, 9999, "Q4_K_M", None):
        assert said(other) == ""
    names = {kind.value: kind.name.removeprefix("MOSTLY_") for kind in gguf.LlamaFileType}
    assert {kind: names[kind] for kind in MIXTURES} == MIXTURES
