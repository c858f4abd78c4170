"""GGUF files as prepared models: settings, vocabulary, and what is refused."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.model.config import PreparedModel
from penstock.model.layer_spec import RopeScaling
from penstock.prepare import load_manifest, prepare
from penstock.prepare.gguf_tokenizer_bpe import PRE_TOKENIZERS
from testing.model_configs import llama_config
from tests.shared.tiny_models import (
    CORPUS,
    add_byte_level_vocabulary,
    add_sentencepiece_vocabulary,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    tokens_by_id,
    write_gguf,
)
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


def _prepare(path: Path) -> tuple[PreparedModel, Tokenizer]:
    folder = prepare(str(path), cache_dir=str(path.parent / "cache"))
    return load_manifest(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))


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
    assert manifest.weights.dtype == "Q4_1"
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
    assert manifest.generation.eos_token_ids == (2,)
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


def test_byte_level_vocabulary_gives_the_tokenizer_it_came_from(tmp_path: Path) -> None:
    manifest, tokenizer = _prepare(write_gguf(tmp_path / "tiny.gguf"))
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

    manifest, tokenizer = _prepare(write_gguf(tmp_path / "a.gguf", vocabulary=vocabulary))
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
    manifest, tokenizer = _prepare(sentencepiece_file)
    assert manifest.add_bos
    assert tokenizer.encode(text).ids == _sentencepiece_ids(text, GGUFFile(sentencepiece_file))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text.replace("▁", " ")


def test_sentencepiece_vocabulary_gives_the_tokenizer_it_came_from(
    sentencepiece_file: Path,
) -> None:
    _, tokenizer = _prepare(sentencepiece_file)
    for text in (*TEXTS, "</s> after", "a<unk>b"):
        assert tokenizer.encode(text).ids == sentencepiece_tokenizer().encode(text).ids


def test_space_prefix_can_be_switched_off(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "spm.gguf",
        vocabulary=add_sentencepiece_vocabulary,
        adjust=lambda writer: writer.add_add_space_prefix(False),
    )
    _, tokenizer = _prepare(path)
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
    ours, usual = _prepare(without)[1], _prepare(plain)[1]
    for text in (*TEXTS, "  the   quick  ", "   "):
        words = " ".join(word for word in text.split(" ") if word)
        assert ours.encode(text).ids == usual.encode(words).ids, text


@pytest.mark.parametrize("name", ["Phi-3 mini", "Other"])
def test_tokens_of_phi_3_take_the_space_behind_them(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", adjust=lambda writer: writer.add_name(name))
    tokenizer = _prepare(path)[1]
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
    _, tokenizer = _prepare(path)
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    assert added["<|im_end|>"].special
    assert not added["<tool>"].special
    assert "[PAD]" not in tokenizer.get_vocab()
    assert "<tool>" in tokenizer.encode("use<tool>now").tokens


Writer = gguf.GGUFWriter
ADJUSTED: dict[str, tuple[Callable[[Writer], None], Callable[[PreparedModel], bool]]] = {
    "rope theta": (
        lambda w: w.add_rope_freq_base(5e5), lambda m: m.config.ropes[0].theta == 5e5),
    "rope theta by default": (lambda w: None, lambda m: m.config.ropes[0].theta == 10_000.0),
    "linear scaling": (
        lambda w: (w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR),
                   w.add_rope_scaling_factor(4.0)),
        lambda m: m.config.ropes[0].scaling == RopeScaling(kind="linear", factor=4.0)),
    "partial rotary": (
        lambda w: w.add_rope_dimension_count(4), lambda m: m.config.ropes[0].dims == 4),
    "a window as long as the context": (
        lambda w: w.add_sliding_window(1 << 20),
        lambda m: m.config.layers[0].attention.window is None),
    "no scaling": (
        lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.NONE),
        lambda m: m.config.ropes[0].scaling is None),
    "BOS wanted": (lambda w: w.add_add_bos_token(True), lambda m: m.add_bos),
    "end of turn": (
        lambda w: w.add_eot_token_id(0), lambda m: m.generation.eos_token_ids == (2, 0)),
    "same end of turn": (
        lambda w: w.add_eot_token_id(2), lambda m: m.generation.eos_token_ids == (2,)),
    "one KV count for each layer": (
        lambda w: w.add_array("llama.attention.head_count_kv", [1]),
        lambda m: m.config.num_kv_heads == 1),
    "end of message": (
        lambda w: w.add_eom_token_id(1), lambda m: m.generation.eos_token_ids == (2, 1)),
    "template": (lambda w: w.add_chat_template("{{ 1 }}"), lambda m: m.has_chat_template),
    "no template": (lambda w: None, lambda m: not m.has_chat_template),
    "sampling": (
        lambda w: w.add_float32("general.sampling.temp", 0.5),
        lambda m: m.generation.temperature == 0.5),
}  # fmt: skip


NAMED = {
    "default and others": (
        [("default", "{{ 1 }}"), ("other", "{{ 2 }}")], "{{ 1 }}"),
    "the only one": ([("rag", "{{ 3 }}")], "{{ 3 }}"),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
def test_named_templates(tmp_path: Path, case: str) -> None:
    named, wanted = NAMED[case]
    templates = [{"name": name, "template": template} for name, template in named]
    path = write_gguf(tmp_path / "m.gguf", adjust=lambda w: w.add_chat_template(templates))
    folder = prepare(str(path), cache_dir=str(tmp_path / "cache"))
    assert (folder / "chat_template.jinja").read_text() == wanted


def test_prompts_end_with_eos_where_the_file_says_so(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", adjust=lambda w: w.add_add_eos_token(True))
    manifest, tokenizer = _prepare(path)
    plain = tokenizer.encode("some text", add_special_tokens=False).ids
    assert tokenizer.encode("some text").ids == [*plain, 2]
    assert not manifest.add_bos


@pytest.mark.parametrize("case", ADJUSTED)
def test_settings(tmp_path: Path, case: str) -> None:
    adjust, holds = ADJUSTED[case]
    without = ("head_count_kv",) if case == "one KV count for each layer" else ()
    manifest, _ = _prepare(write_gguf(tmp_path / "m.gguf", adjust=adjust, without=without))
    assert holds(manifest), manifest


def test_settings_that_tensors_tell(tmp_path: Path) -> None:
    tied, _ = _prepare(write_gguf(tmp_path / "tied.gguf"))
    assert tied.config.tie_word_embeddings
    assert tied.config.ropes[0].scaling is None
    assert tied.config.vocab_size == byte_level_tokenizer().get_vocab_size()
    assert not tied.config.layers[0].attention.qkv_bias
    tensors = {
        "output.weight": np.zeros((tied.config.vocab_size, 24), np.float32),
        "rope_freqs.weight": np.ones(4, np.float32),
        "blk.0.attn_q.bias": np.zeros(24, np.float32),
    }
    path = write_gguf(tmp_path / "more.gguf", tensors=tensors)
    config = _prepare(path)[0].config
    assert not config.tie_word_embeddings
    assert config.ropes[0].scaling == RopeScaling(kind="precomputed")
    assert config.layers[0].attention.qkv_bias


@pytest.mark.parametrize(
    ("architecture", "qkv_bias", "qk_norm"),
    [("llama", False, False), ("qwen2", True, False), ("qwen3", False, True)],
)
def test_architectures(tmp_path: Path, architecture: str, qkv_bias: bool, qk_norm: bool) -> None:
    path = write_gguf(tmp_path / "m.gguf", architecture=architecture)
    config = _prepare(path)[0].config
    attention = config.layers[0].attention
    assert (config.architecture, attention.qkv_bias) == (architecture, qkv_bias)
    assert (attention.norm == "head") == qk_norm


def test_head_dim_may_differ_from_the_share_of_a_head(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", adjust=lambda w: w.add_key_length(16), heads=3)
    assert _prepare(path)[0].config.head_dim == 16


REFUSED: dict[str, tuple[dict, str]] = {
    "architecture": ({"architecture": "falcon"}, "'falcon' is not served; GGUF files of llama"),
    "pre-tokenizer": (
        {"vocabulary": partial(add_byte_level_vocabulary, pre="whitespace")},
        r"pre-tokenizer 'whitespace' \(tokenizer.ggml.pre\) is not known; known: default"),
    "yarn": (
        {"adjust": lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN)}, "'yarn'"),
    "experts": ({"adjust": lambda w: w.add_expert_count(8)}, "expert_used_count is missing"),
    "a mixture's mean": (
        {"adjust": lambda w: (w.add_expert_count(8), w.add_expert_used_count(2),
                              w.add_pooling_type(gguf.PoolingType.MEAN))},
        "pooling_type 1 over a decoder"),
    "sliding window": (
        {"adjust": lambda w: w.add_sliding_window(64)}, "sliding_window is 64, which is not"),
    "a key of tomorrow": (
        {"adjust": lambda w: w.add_float32("llama.attention.bend", 0.5)}, "attention.bend is 0.5"),
    "endless layers": (
        {"architecture": "gemma2", "without": ("block_count",),
         "adjust": lambda w: w.add_block_count(1 << 31)}, "num_layers is 2147483648; 1 to 4096"),
    "odd rotary": ({"adjust": lambda w: w.add_rope_dimension_count(3)}, "dimension_count is 3"),
    "head counts": ({"heads": 3, "kv_heads": 2}, "3 attention heads .* 2 key/value heads"),
    "heads and width": (
        {"without": ("head_count",), "adjust": lambda w: w.add_head_count(7)},
        "7 attention heads don't divide the hidden size 24"),
    "no heads": (
        {"without": ("head_count",), "adjust": lambda w: w.add_head_count(0)}, "don't divide"),
    "odd head": ({"adjust": lambda w: w.add_key_length(7)}, "rotary|7"),
    "no width": ({"without": ("embedding_length",)}, "embedding_length is missing"),
    "no embedding": ({"without": ("token_embd.weight",)}, "token_embd.weight is missing"),
    "layers differ": (
        {"without": ("feed_forward_length",),
         "adjust": lambda w: w.add_feed_forward_length([48, 32])}, "differs between layers"),
    "split file": (
        {"adjust": lambda w: w.add_uint16("split.count", 2)}, "one of 2 parts .* one of 1"),
    "EOS outside": (
        {"adjust": lambda w: w.add_eot_token_id(10_000)}, "10000 is outside the vocabulary"),
    "EOS is text": (
        {"adjust": lambda w: w.add_string("tokenizer.ggml.eot_token_id", "x")}, "whole number"),
    "no EOS to end prompts with": (
        {"adjust": lambda w: (w.add_add_eos_token(True),
                              w.kv_data[0].pop("tokenizer.ggml.eos_token_id"))},
        "add_eos_token.* but tokenizer.ggml.eos_token_id is missing"),
    "tensor type": (
        {"without": ("output_norm.weight",),
         "tensors": {"output_norm.weight": np.zeros(24, np.int32)}},
        "output_norm.weight is of type I32, which is not served; BF16, F16"),
    "embedding's shape": (
        {"without": ("token_embd.weight",),
         "tensors": {"token_embd.weight": np.zeros((600, 25), np.float32)}},
        r"token_embd.weight has shape \(600, 25\); the metadata make it \(600, 24\)"),
    "unnamed templates": (
        {"adjust": lambda w: w.add_chat_template(
            [{"name": "tool_use", "template": "a"}, {"name": "rag", "template": "b"}])},
        "a name 'default' among them"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_served_is_refused_by_name(tmp_path: Path, case: str) -> None:
    changes, reason = REFUSED[case]
    path = write_gguf(tmp_path / "odd.gguf", **changes)
    with pytest.raises(UnsupportedModel, match=reason) as raised:
        _prepare(path)
    assert "odd.gguf" in str(raised.value)


def _vocabulary(
    tokens: list[str], *, model: str = "gpt2", merges: list[str] | None = None,
    scores: list[float] | None = None, types: list[int] | None = None,
) -> Callable[[Writer], int]:  # fmt: skip
    def add(writer: Writer) -> int:
        writer.add_tokenizer_model(model)
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        for value, method in (
            (merges, writer.add_token_merges),
            (scores, writer.add_token_scores),
            (types, writer.add_token_types),
        ):
            if value is not None:
                method(value)
        return len(tokens)

    return add


BROKEN_VOCABULARIES = {
    "kind": (_vocabulary(["a"], model="rwkv"), "tokenizer model 'rwkv' is not served"),
    "no unknown": (_vocabulary(["a"], model="bert"), r"unknown words \(\[UNK\]\)"),
    "scores that are none": (
        _vocabulary(["a", "b"], model="t5", scores=[1.0, float("nan")]), "NaN or infinity"),
    "no merges": (_vocabulary(["a", "b"]), "tokenizer.ggml.merges is missing"),
    "merge of one": (_vocabulary(["a", "b"], merges=["ab"]), "'ab' is not two tokens"),
    "merge of nothing": (_vocabulary(["a", "b"], merges=["a "]), "not two tokens"),
    "unknown merge": (_vocabulary(["a", "b"], merges=["a b"]), "a merge gives 'ab': no token"),
    "merge of unknown": (_vocabulary(["a", "b"], merges=["a c"]), "'a' and 'c': no tokens"),
    "twice": (_vocabulary(["a", "a"], merges=["a a"]), "same text"),
    "types": (_vocabulary(["a", "b"], merges=["a b"], types=[1]), "2 tokens but 1 token types"),
    "no scores": (_vocabulary(["a", "b"], model="llama"), "scores is missing"),
    "scores": (_vocabulary(["a", "b"], model="llama", scores=[1.0]), "2 tokens but 1 scores"),
    "endless token": (
        _vocabulary(["a", "a" * 600], model="llama", scores=[1.0, 2.0]), "at most 512"),
    "endless token of any kind": (_vocabulary(["a", "a" * 5000], merges=["a a"]), "4096 at most"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN_VOCABULARIES)
def test_broken_vocabulary_is_refused(tmp_path: Path, case: str) -> None:
    vocabulary, reason = BROKEN_VOCABULARIES[case]
    path = write_gguf(tmp_path / "odd.gguf", vocabulary=vocabulary)
    with pytest.raises(UnsupportedModel, match=reason):
        _prepare(path)


def test_more_tokens_than_embeddings(tmp_path: Path) -> None:
    def vocabulary(writer: Writer) -> int:
        return add_byte_level_vocabulary(writer) - 1

    with pytest.raises(UnsupportedModel, match=r"highest id is (\d+), .* only \1 embeddings"):
        _prepare(write_gguf(tmp_path / "odd.gguf", vocabulary=vocabulary))
