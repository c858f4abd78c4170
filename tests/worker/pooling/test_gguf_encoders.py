"""Encoders in GGUF files, named as the gguf package names them, against transformers."""

from __future__ import annotations

from collections.abc import Callable
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
    SIZES,
    VOCAB,
    cosine_distance,
    load_pooling,
    random_inputs,
    run,
    save,
)
from testing.tiny_models import write_gguf

pytestmark = pytest.mark.timeout(240)

HIDDEN = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
LAYERS = SIZES["num_hidden_layers"]


def write_encoder(
    path: Path,
    model: Any,
    *,
    kind: str = "F32",
    skipped: int = 0,
    adjust: Callable[[gguf.GGUFWriter], object] = lambda _: None,
    without: tuple[str, ...] = (),
) -> Path:
    """kind: of the layers' matrices.  skipped: rows of the position table that padding takes."""
    config = model.config
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings - skipped)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_tokenizer_model("bert")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    writer.add_token_list([*special, *(f"▁w{i}" for i in range(VOCAB - len(special)))])
    writer.add_token_types([3] * len(special) + [1] * (VOCAB - len(special)))
    writer.add_unk_token_id(1)
    writer.add_sep_token_id(3)
    adjust(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if "pooler" in name or "position_ids" in name:
            continue
        values = tensor.numpy()[skipped if "position_embeddings" in name else 0 :]
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if theirs in without:
            continue
        quantised = values.ndim == 2 and theirs.startswith("blk.")
        stored = gguf.GGMLQuantizationType[kind if quantised else "F32"]
        writer.add_tensor(theirs, gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _hidden(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).last_hidden_state[0].numpy()


KINDS = {
    "BERT": ("BertModel", {}, 0),
    "RoBERTa": ("RobertaModel", {"pad_token_id": 1, "type_vocab_size": 1}, 2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_encoders_equal_transformers(tmp_path: Path, kind: str) -> None:
    name, config, skipped = KINDS[kind]
    model = save(tmp_path / "m", name, **HIDDEN, **config)
    path = write_encoder(tmp_path / "m.gguf", model, skipped=skipped)
    loaded = load_pooling(str(path), tmp_path)
    inputs = random_inputs([1, 7, 40])
    found = run(loaded, inputs, Pooling("token_embed", normalize=False))
    for tokens, vectors in zip(inputs, found, strict=True):
        assert np.abs(vectors - _hidden(model, tokens)).max() < 2e-4
    loaded.runner.close()


@pytest.mark.parametrize("pooling", [gguf.PoolingType.MEAN, gguf.PoolingType.CLS])
def test_pooling_is_what_the_file_says(tmp_path: Path, pooling: gguf.PoolingType) -> None:
    model = save(tmp_path / "m", "BertModel", **HIDDEN)
    path = write_encoder(
        tmp_path / "m.gguf", model, kind="F16", adjust=lambda w: w.add_pooling_type(pooling)
    )
    loaded = load_pooling(str(path), tmp_path)
    inputs = random_inputs([20, 3])
    for tokens, found in zip(inputs, run(loaded, inputs, Pooling("embed")), strict=True):
        hidden = _hidden(model, tokens)
        wanted = hidden.mean(0) if pooling is gguf.PoolingType.MEAN else hidden[0]
        assert cosine_distance(found, wanted) < 1e-5
        assert abs(float((found**2).sum()) - 1) < 1e-5
    loaded.runner.close()


def test_quantised_weights_meet_quantised_activations(tmp_path: Path) -> None:
    """On the CPU kernels, as in llama.cpp: vectors are near, and no more."""
    model = save(tmp_path / "m", "BertModel", **HIDDEN)
    loaded = load_pooling(str(write_encoder(tmp_path / "m.gguf", model, kind="Q8_0")), tmp_path)
    inputs = random_inputs([20, 3])
    for tokens, found in zip(inputs, run(loaded, inputs, Pooling("embed")), strict=True):
        assert 1e-7 < cosine_distance(found, _hidden(model, tokens).mean(0)) < 1e-2
    loaded.runner.close()


def test_what_a_file_says_of_itself(tmp_path: Path) -> None:
    model = save(tmp_path / "m", "BertModel", **HIDDEN)
    manifest = load_manifest(
        prepare(str(write_encoder(tmp_path / "m.gguf", model)), cache_dir=tmp_path)
    )
    config = manifest.config
    assert manifest.pooling is not None
    assert (manifest.family, manifest.pooling.mode, manifest.pooling.normalize) == (
        "bert", "mean", True)  # fmt: skip
    assert (config.max_position, config.layers.token_types) == (80, 2)
    assert config.layers.norm.eps == 1e-12
    assert not manifest.add_bos


@pytest.mark.parametrize(("kind", "pooled"), [(0, False), (3, True)])
def test_a_decoder_with_a_pooling_embeds(tmp_path: Path, kind: int, pooled: bool) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", adjust=lambda w: w.add_pooling_type(gguf.PoolingType(kind))
    )
    pooling = load_manifest(prepare(str(path), cache_dir=tmp_path)).pooling
    assert (pooling is not None) == pooled
    if pooling is not None:
        assert (pooling.mode, pooling.size) == ("last", 24)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "ranking": (
        {"adjust": lambda w: w.add_pooling_type(gguf.PoolingType.RANK)}, "pooling_type 4"),
    "causal": (
        {"adjust": lambda w: (w.kv_data[0].pop("bert.attention.causal"),
                              w.add_causal_attention(True))}, "causal attention"),
    "no positions": ({"without": ("position_embd.weight",)}, "position_embd.weight is missing"),
    "heads": (
        {"adjust": lambda w: (w.kv_data[0].pop("bert.attention.head_count"), w.add_head_count(7))},
        "7 attention heads don't divide"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_unserved_settings_of_a_gguf_encoder_are_named(tmp_path: Path, case: str) -> None:
    changes, reason = REFUSED[case]
    model = save(tmp_path / "m", "BertModel", **HIDDEN)
    path = write_encoder(tmp_path / "odd.gguf", model, **changes)
    with pytest.raises(UnsupportedModel, match=reason):
        prepare(str(path), cache_dir=tmp_path)


def test_a_decoder_pooled_otherwise_is_refused(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", adjust=lambda w: w.add_pooling_type(gguf.PoolingType.MEAN)
    )
    with pytest.raises(UnsupportedModel, match="pooling_type 1 over a decoder"):
        prepare(str(path), cache_dir=tmp_path)
