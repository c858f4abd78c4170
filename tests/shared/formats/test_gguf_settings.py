"""What a GGUF file's keys say of its model, and which files are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import pytest

from penstock.errors import UnsupportedModel
from penstock.model.prepared_model import PreparedModel
from penstock.model.rope_spec import RopeScaling
from penstock.prepare import prepare
from testing.tiny_models import add_byte_level_vocabulary, byte_level_tokenizer, write_gguf
from tests.shared.prepare.prepared_file import prepared_file

pytestmark = pytest.mark.timeout(240)

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
        lambda w: w.add_eot_token_id(2), lambda m: m.generation.eos_token_ids == (2, 0)),
    "one KV count for each layer": (
        lambda w: w.add_array("llama.attention.head_count_kv", [1]),
        lambda m: m.config.num_kv_heads == 1),
    "end of message": (
        lambda w: w.add_eom_token_id(1), lambda m: m.generation.eos_token_ids == (2, 1, 0)),
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
    manifest, tokenizer = prepared_file(path)
    plain = tokenizer.encode("some text", add_special_tokens=False).ids
    assert tokenizer.encode("some text").ids == [*plain, 2]
    assert not manifest.add_bos


@pytest.mark.parametrize("case", ADJUSTED)
def test_settings(tmp_path: Path, case: str) -> None:
    adjust, holds = ADJUSTED[case]
    without = ("head_count_kv",) if case == "one KV count for each layer" else ()
    manifest, _ = prepared_file(write_gguf(tmp_path / "m.gguf", adjust=adjust, without=without))
    assert holds(manifest), manifest


def test_settings_that_tensors_tell(tmp_path: Path) -> None:
    tied, _ = prepared_file(write_gguf(tmp_path / "tied.gguf"))
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
    config = prepared_file(path)[0].config
    assert not config.tie_word_embeddings
    assert config.ropes[0].scaling == RopeScaling(kind="precomputed")
    assert config.layers[0].attention.qkv_bias


@pytest.mark.parametrize(
    ("architecture", "qkv_bias", "qk_norm"),
    [("llama", False, False), ("qwen2", True, False), ("qwen3", False, True)],
)
def test_architectures(tmp_path: Path, architecture: str, qkv_bias: bool, qk_norm: bool) -> None:
    path = write_gguf(tmp_path / "m.gguf", architecture=architecture)
    config = prepared_file(path)[0].config
    attention = config.layers[0].attention
    assert (config.architecture, attention.qkv_bias) == (architecture, qkv_bias)
    assert (attention.norm == "head") == qk_norm


def test_head_dim_may_differ_from_the_share_of_a_head(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", adjust=lambda w: w.add_key_length(16), heads=3)
    assert prepared_file(path)[0].config.head_dim == 16


REFUSED: dict[str, tuple[dict, str]] = {
    "architecture": ({"architecture": "falcon"}, "'falcon' is not served; GGUF files of arcee"),
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
def test_unserved_settings_of_a_gguf_file_are_named(tmp_path: Path, case: str) -> None:
    changes, reason = REFUSED[case]
    path = write_gguf(tmp_path / "odd.gguf", **changes)
    with pytest.raises(UnsupportedModel, match=reason) as raised:
        prepared_file(path)
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
        prepared_file(path)


def test_more_tokens_than_embeddings(tmp_path: Path) -> None:
    def vocabulary(writer: Writer) -> int:
        return add_byte_level_vocabulary(writer) - 1

    with pytest.raises(UnsupportedModel, match=r"highest id is (\d+), .* only \1 embeddings"):
        prepared_file(write_gguf(tmp_path / "odd.gguf", vocabulary=vocabulary))
