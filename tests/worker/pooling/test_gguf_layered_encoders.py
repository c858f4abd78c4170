"""ModernBERT and EmbeddingGemma in GGUF files, written as llama.cpp's converter does it, against
transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from penstock.errors import UnsupportedModel
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Pooling
from testing.pooling_models import (
    VOCAB,
    cosine_distance,
    load_pooling,
    random_inputs,
    run,
)
from tests.worker.pooling.test_cpu_pooling import ENCODERS, _model

pytestmark = pytest.mark.timeout(240)

Writer = gguf.GGUFWriter


@dataclass(frozen=True)
class Kind:
    """plus_one: whether norms become 1 + weight."""

    model: str
    architecture: gguf.MODEL_ARCH
    says: Callable[[Writer, Any], object]
    settings: dict[str, Any]
    plus_one: bool = False


def modern(writer: Writer, config: Any) -> None:
    writer.add_causal_attention(False)
    writer.add_layer_norm_eps(config.norm_eps)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_sliding_window(config.local_attention)
    writer.add_uint32("modern-bert.attention.sliding_window_pattern", 3)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_vocab_size(config.vocab_size)
    writer.add_string("modern-bert.hidden_act", config.hidden_activation)


def embedding(writer: Writer, config: Any) -> None:
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_sliding_window(16)  # as config.json has it; transformers halves what it holds


KINDS = {
    "ModernBERT": Kind(
        "ModernBertModel",
        gguf.MODEL_ARCH.MODERN_BERT,
        modern,
        {**ENCODERS["ModernBertModel"], "global_attn_every_n_layers": 3},
    ),
    "EmbeddingGemma": Kind(
        "Gemma3TextModel",
        gguf.MODEL_ARCH.GEMMA_EMBEDDING,
        embedding,
        {
            **ENCODERS["Gemma3TextModel"],
            "num_hidden_layers": 7,
            "query_pre_attn_scalar": 32,
            "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
        },
        plus_one=True,
    ),
}


def write(
    path: Path,
    model: Any,
    kind: Kind,
    *,
    adjust: Callable[[Writer], object] = lambda _: None,
) -> Path:
    config = model.config
    writer = Writer(path, gguf.MODEL_ARCH_NAMES[kind.architecture])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    ropes = config.rope_parameters
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    kind.says(writer, config)
    writer.add_tokenizer_model("bert")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    writer.add_token_list([*special, *(f"▁w{i}" for i in range(VOCAB - len(special)))])
    writer.add_token_types([3] * len(special) + [1] * (VOCAB - len(special)))
    writer.add_unk_token_id(1)
    writer.add_sep_token_id(3)
    adjust(writer)
    names = gguf.get_tensor_name_map(kind.architecture, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        found = [
            names.get_name(each, try_suffixes=(".weight",)) for each in (name, f"model.{name}")
        ]
        theirs = found[0] or found[1]
        assert theirs is not None, name
        shift = 1.0 if kind.plus_one and name.endswith("norm.weight") else 0.0
        writer.add_tensor(theirs, (tensor + shift).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", KINDS)
def test_equal_transformers(tmp_path: Path, name: str, backend: str) -> None:
    kind = KINDS[name]
    model = _model(tmp_path / "m", kind.model, kind.settings)
    path = write(tmp_path / "m.gguf", model, kind)
    loaded = load_pooling(str(path), tmp_path, worker={"attention_backend": backend})
    inputs = random_inputs([1, 2, 7, 40, 64])
    found = run(loaded, inputs, Pooling("token_embed", normalize=False))
    for tokens, vectors in zip(inputs, found, strict=True):
        with torch.inference_mode():
            wanted = model(torch.tensor([tokens])).last_hidden_state[0].numpy()
        assert np.abs(vectors - wanted).max() < 2e-4
    loaded.runner.close()


def test_dense_layers_of_the_file(tmp_path: Path) -> None:
    kind = KINDS["EmbeddingGemma"]
    model = _model(tmp_path / "m", kind.model, kind.settings)
    first, second = 0.1 * torch.randn(80, 48), 0.1 * torch.randn(24, 80)

    def dense(writer: Writer) -> None:
        for name, matrix in (("dense_2", first), ("dense_3", second)):
            writer.add_dense_features_dims(name, matrix.shape[1], matrix.shape[0])
            writer.add_tensor(f"{name}.weight", matrix.numpy())

    path = write(tmp_path / "m.gguf", model, kind, adjust=dense)
    loaded = load_pooling(str(path), tmp_path, worker={"attention_backend": "cpu"})
    for tokens in random_inputs([20, 5]):
        with torch.inference_mode():
            mean = model(torch.tensor([tokens])).last_hidden_state[0].mean(0)
        (found,) = run(loaded, [tokens], Pooling("embed"))
        assert found.shape == (24,)
        assert cosine_distance(found, (second @ (first @ mean)).numpy()) < 1e-6
    loaded.runner.close()


REFUSED: dict[str, tuple[str, Callable[[Writer], object], str]] = {
    "another activation": (
        "ModernBERT",
        lambda writer: writer.add_string("modern-bert.hidden_act", "silu"),
        "hidden_act is 'silu'",
    ),
    "a key of tomorrow": (
        "ModernBERT",
        lambda writer: writer.add_float32("modern-bert.attention.bend", 0.5),
        "attention.bend is 0.5",
    ),
    "a dense layer of another width": (
        "EmbeddingGemma",
        lambda writer: writer.add_tensor("dense_2.weight", np.zeros((3, 5), np.float32)),
        "48 inputs are needed",
    ),
    "classes": (
        "ModernBERT",
        lambda writer: writer.add_pooling_type(gguf.PoolingType.RANK),
        "pooling_type 4 is not served",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_served_is_refused(tmp_path: Path, case: str) -> None:
    name, adjust, reason = REFUSED[case]
    model = _model(tmp_path / "m", KINDS[name].model, KINDS[name].settings)
    path = write(tmp_path / "m.gguf", model, KINDS[name], adjust=adjust)
    with pytest.raises(UnsupportedModel, match=reason):
        prepare(str(path), cache_dir=str(tmp_path / "cache"))


def test_vectors_are_means_as_the_file_says(tmp_path: Path) -> None:
    kind = KINDS["ModernBERT"]
    path = write(tmp_path / "m.gguf", _model(tmp_path / "m", kind.model, kind.settings), kind)
    pooling = load_manifest(prepare(str(path), cache_dir=str(tmp_path / "cache"))).pooling
    assert pooling is not None
    assert (pooling.mode, pooling.normalize, pooling.max_input) == ("mean", True, 80)
