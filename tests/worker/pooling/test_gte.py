"""GTE against a slow and obvious model of its published structure: transformers has no class of
it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from penstock.errors import StartupError, UnsupportedModel
from penstock.prepare import prepare
from penstock.protocol.common import Pooling
from testing.pooling_models import (
    VOCAB,
    Loaded,
    load_pooling,
    random_inputs,
    run,
    sentence_files,
    word_tokenizer,
)
from tests.adapter_folders import random_factors, write_peft

HIDDEN, HEADS, INNER, LAYERS, EPS = 48, 3, 50, 2, 1e-12
"""Heads of 16 numbers: what the CPU kernels multiply at a time."""
BACKENDS = ("cpu", "reference")
LENGTHS = [1, 2, 15, 16, 17, 40, 79]
CONFIG: dict[str, Any] = {
    "architectures": ["NewModel"],
    "model_type": "new",
    "attention_probs_dropout_prob": 0.0,
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": INNER,
    "layer_norm_eps": EPS,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "max_position_embeddings": 80,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "pack_qkv": True,
    "pad_token_id": 0,
    "position_embedding_type": "rope",
    "rope_theta": 500.0,
    "type_vocab_size": 1,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
    "vocab_size": VOCAB,
}
NTK = {"factor": 8.0, "type": "ntk"}
CASES: dict[str, dict[str, Any]] = {
    "gte-multilingual": {"rope_scaling": NTK},
    "gte-en": {"rope_scaling": {"factor": 2.0, "type": "ntk"}, "type_vocab_size": 0},
    "arctic-embed": {"architectures": ["GteModel"], "model_type": "gte", "pack_qkv": False},
}


def tensors(config: dict[str, Any], prefix: str = "", labels: int = 0) -> dict[str, Tensor]:
    """Random weights by the names of the releases."""
    make = torch.Generator().manual_seed(11)
    shapes = {"embeddings.word_embeddings.weight": (VOCAB, HIDDEN)}
    if config["type_vocab_size"]:
        shapes["embeddings.token_type_embeddings.weight"] = (config["type_vocab_size"], HIDDEN)
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        qkv = {"qkv": 3 * HIDDEN} if config["pack_qkv"] else dict.fromkeys("qkv", HIDDEN)
        for name, rows in (qkv | {"o": HIDDEN}).items():
            shapes[f"{at}.attention.{name}_proj.weight"] = (rows, HIDDEN)
            shapes[f"{at}.attention.{name}_proj.bias"] = (rows,)
        shapes[f"{at}.mlp.up_gate_proj.weight"] = (2 * INNER, HIDDEN)
        shapes[f"{at}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        shapes[f"{at}.mlp.down_proj.bias"] = (HIDDEN,)
        shapes |= {f"{at}.{norm}_ln.{kind}": (HIDDEN,) for norm in NORMS for kind in KINDS}
    shapes |= {f"embeddings.LayerNorm.{kind}": (HIDDEN,) for kind in KINDS}
    if labels:
        shapes |= {"pooler.dense.weight": (HIDDEN, HIDDEN), "pooler.dense.bias": (HIDDEN,)}
    found = {
        f"{prefix}{name}": torch.randn(shape, generator=make) for name, shape in shapes.items()
    }
    if labels:
        found["classifier.weight"] = torch.randn(labels, HIDDEN, generator=make)
        found["classifier.bias"] = torch.randn(labels, generator=make)
    return {
        name: value / HIDDEN**0.5 if value.dim() == 2 else value for name, value in found.items()
    }


NORMS, KINDS = ("attn", "mlp"), ("weight", "bias")


def model(config: dict[str, Any], weights: dict[str, Tensor], tokens: list[int]) -> Tensor:
    """The last layer's output, in float64: [tokens, hidden]."""
    own = {name: value.double() for name, value in weights.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        return functional.layer_norm(x, (HIDDEN,), own[f"{name}.weight"], own[f"{name}.bias"], EPS)

    x = own["embeddings.word_embeddings.weight"][tokens]
    if config["type_vocab_size"]:
        x = x + own["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        query, key, value = qkv(own, f"{at}.attention", x)
        query, key = rotated(config, query), rotated(config, key)
        scores = torch.einsum("ihd,jhd->hij", query, key) / math.sqrt(HIDDEN // HEADS)
        mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), value).flatten(1)
        x = norm(x + linear(own, f"{at}.attention.o_proj", mixed), f"{at}.attn_ln")
        both = x @ own[f"{at}.mlp.up_gate_proj.weight"].T
        inner = functional.gelu(both[:, INNER:]) * both[:, :INNER]
        x = norm(x + linear(own, f"{at}.mlp.down_proj", inner), f"{at}.mlp_ln")
    return x


def linear(own: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ own[f"{name}.weight"].T + own[f"{name}.bias"]


def qkv(own: dict[str, Tensor], at: str, x: Tensor) -> list[Tensor]:
    if f"{at}.qkv_proj.weight" in own:
        parts = linear(own, f"{at}.qkv_proj", x).chunk(3, -1)
    else:
        parts = tuple(linear(own, f"{at}.{name}_proj", x) for name in "qkv")
    return [part.unflatten(-1, (HEADS, -1)) for part in parts]


def rotated(config: dict[str, Any], x: Tensor) -> Tensor:
    """Number i of a head against number i + half, one angle at a time."""
    size, factor = HIDDEN // HEADS, (config.get("rope_scaling") or {"factor": 1.0})["factor"]
    out = x.clone()
    for place in range(len(x)):
        for i in range(size // 2):
            frequency = (config["rope_theta"] * factor) ** (-2 * i / size) / factor ** (2 / size)
            c, s = math.cos(place * frequency), math.sin(place * frequency)
            one, other = x[place, :, i], x[place, :, i + size // 2]
            out[place, :, i], out[place, :, i + size // 2] = (
                one * c - other * s,
                other * c + one * s,
            )
    return out


def write(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    word_tokenizer(folder)


def loaded_by(backend: str, folder: Path, cache: Path, **settings: Any) -> Loaded:
    return load_pooling(str(folder), cache, worker={"attention_backend": backend}, **settings)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_equals_an_obvious_model(case: str, backend: str, tmp_path: Path) -> None:
    config = CONFIG | CASES[case]
    weights = tensors(config)
    write(tmp_path / "m", config, weights)
    sentence_files(tmp_path / "m", "cls_token", normalize=False)
    loaded = loaded_by(backend, tmp_path / "m", tmp_path)
    inputs = random_inputs(LENGTHS)
    found = run(loaded, inputs, Pooling("token_embed", normalize=False))
    for tokens, vectors in zip(inputs, found, strict=True):
        assert np.abs(vectors - model(config, weights, tokens).numpy()).max() < 2e-4
    # Alone, an input has the bits that it has in company.
    for tokens, vectors in zip(inputs, found, strict=True):
        (alone,) = run(loaded, [tokens], Pooling("token_embed", normalize=False))
        assert np.array_equal(alone, vectors)
    loaded.runner.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_an_adapter_of_paired_matrices(case: str, backend: str, tmp_path: Path) -> None:
    config = CONFIG | CASES[case]
    weights = tensors(config)
    write(tmp_path / "m", config, weights)
    sentence_files(tmp_path / "m", "cls_token", normalize=False)
    shapes = {
        name.removesuffix(".weight"): (value.shape[0], value.shape[1])
        for name, value in weights.items()
        if value.dim() == 2 and name.startswith("encoder.")
    }
    factors = random_factors(shapes, 4, 1, 0.15)
    adapter = write_peft(tmp_path / "adapter", factors, alpha=4)
    merged = dict(weights)
    for name, (down, up) in factors.items():
        merged[f"{name}.weight"] = weights[f"{name}.weight"] + torch.from_numpy(up @ down)
    lora = {"enable_lora": True, "max_lora_rank": 4}
    loaded = loaded_by(backend, tmp_path / "m", tmp_path, lora=lora)
    inputs = random_inputs(LENGTHS)
    paths = [None, adapter] * (len(inputs) // 2) + [adapter]
    asked = Pooling("embed", normalize=False)
    found = run(loaded, inputs, asked, adapters=paths)
    for tokens, path, vector in zip(inputs, paths, found, strict=True):
        wanted = model(config, weights if path is None else merged, tokens)[0].numpy()
        assert np.abs(vector - wanted).max() < 5e-4
    loaded.runner.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reranker(backend: str, tmp_path: Path) -> None:
    config = CONFIG | {
        "architectures": ["NewForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "rope_scaling": NTK,
    }
    weights = tensors(config, "new.", labels=1)
    write(tmp_path / "m", config, weights)
    loaded = loaded_by(backend, tmp_path / "m", tmp_path)
    inputs = random_inputs(LENGTHS)
    plain = {name.removeprefix("new."): value for name, value in weights.items()}
    double = {name: value.double() for name, value in plain.items()}
    for tokens, score in zip(inputs, run(loaded, inputs, Pooling("classify")), strict=True):
        first = model(config, plain, tokens)[0]
        pooled = torch.tanh(linear(double, "pooler.dense", first))
        wanted = torch.sigmoid(linear(double, "classifier", pooled))
        assert np.abs(np.asarray(score).reshape(-1) - wanted.numpy()).max() < 1e-4
    loaded.runner.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type 'rms_norm' is not served; layer_norm"),
        ({"position_embedding_type": "absolute"}, "'absolute' is not served; rope is"),
        ({"logn_attention_scale": True}, "logn_attention_scale is True, which is not served"),
        ({"rope_scaling": NTK | {"mixed_b": 0.6}}, "mixed_b is 0.6"),
        ({"rope_scaling": {"factor": 2.0, "type": "linear"}}, "'linear' by 2"),
        ({"num_attention_heads": 16}, "no heads of an even size"),
    ],
)
def test_other_variants_of_gte_are_refused(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    write(tmp_path / "m", CONFIG | change, {})
    with pytest.raises(UnsupportedModel, match=said):
        prepare(str(tmp_path / "m"), cache_dir=tmp_path)


def test_what_the_cpu_kernels_lack_is_said(tmp_path: Path) -> None:
    config = CONFIG | {"num_attention_heads": 4}
    write(tmp_path / "m", config, tensors(config))
    with pytest.raises(StartupError, match="head_dim is 12, not a multiple of 16"):
        loaded_by("cpu", tmp_path / "m", tmp_path)


def test_bfloat16_on_the_cpu_kernels(tmp_path: Path) -> None:
    """An input's bits are its own, and near those in float32."""
    write(tmp_path / "m", CONFIG, tensors(CONFIG))
    inputs, asked = random_inputs(LENGTHS), Pooling("token_embed", normalize=False)
    found = []
    for settings in ({"threads": 2}, {"dtype": "bfloat16"}):
        loaded = loaded_by("cpu", tmp_path / "m", tmp_path, **settings)
        found.append(run(loaded, inputs, asked))
        for tokens, vectors in zip(inputs, found[-1], strict=True):
            assert np.array_equal(run(loaded, [tokens], asked)[0], vectors)
        loaded.runner.close()
    for one, other in zip(*found, strict=True):
        assert 0 < np.linalg.norm(one - other) < 0.1 * np.linalg.norm(one)
