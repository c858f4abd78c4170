"""Checkpoints that tests make, and their loading through Penstock's own readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file

from penstock.formats.fields import Fields
from penstock.formats.weight_files import find_safetensors
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import GenerationDefaults, PreparedModel, WeightFiles
from penstock.prepare.folder import FORMAT_VERSION
from penstock.prepare.hub_config import read_config
from penstock.protocol.to_worker import Setup
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.opening import open_weights
from testing.model_configs import llama_config

TINY = llama_config(
    architecture="llama",
    vocab_size=301,
    hidden_size=60,
    intermediate_size=90,
    num_layers=2,
    num_heads=5,
    num_kv_heads=1,
    head_dim=24,
    max_position=512,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)
"""Odd on purpose: one KV head, sizes that no vector width divides."""


def tiny_tensors(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights under the hub's names, large enough for clear-cut choices."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": (config.num_heads * dim, hidden),
            f"{at}.self_attn.k_proj.weight": (config.num_kv_heads * dim, hidden),
            f"{at}.self_attn.v_proj.weight": (config.num_kv_heads * dim, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, config.num_heads * dim),
            f"{at}.mlp.gate_proj.weight": (inner, hidden),
            f"{at}.mlp.up_proj.weight": (inner, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, inner),
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
        }
        if config.layers[0].attention.norm == "head":
            shapes |= {f"{at}.self_attn.{part}_norm.weight": (dim,) for part in "qk"}
        if config.layers[0].attention.qkv_bias:
            shapes |= {
                f"{at}.self_attn.q_proj.bias": (config.num_heads * dim,),
                f"{at}.self_attn.k_proj.bias": (config.num_kv_heads * dim,),
                f"{at}.self_attn.v_proj.bias": (config.num_kv_heads * dim,),
            }
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    tensors = {}
    for name, shape in shapes.items():
        values = torch.randn(*shape, generator=generator)
        tensors[name] = values * 2.5 / shape[-1] ** 0.5 if len(shape) == 2 else 1 + values / 4
    return tensors


def tiny_files(folder: Path, config: ModelConfig = TINY, seed: int = 0) -> WeightFiles:
    path = folder / f"tiny-{seed}.safetensors"
    save_file(tiny_tensors(config, seed), path)
    return WeightFiles(format="safetensors", files=(str(path),), dtype="float32")


def tiny_setup(folder: Path, files: WeightFiles | None = None, **changes: Any) -> Setup:
    """Writes a prepared folder of the tiny model, as far as a worker reads one. files: of its
    weights; None: they are written too. changes: of the Setup that asks for it."""
    prepared = PreparedModel(
        format_version=FORMAT_VERSION,
        name="tiny",
        source="test",
        config=TINY,
        generation=GenerationDefaults(),
        weights=files or tiny_files(folder),
        digest="0" * 64,
        has_chat_template=False,
    )
    (folder / "manifest.json").write_bytes(msgspec.json.encode(prepared))
    usual = Setup(
        version=1,
        model_dir=str(folder),
        dtype="float32",
        attention_backend="auto",
        threads=2,
        block_size=4,
        num_kv_blocks=2000,
        kv_memory_fraction=0.1,
        max_num_seqs=4,
        max_num_batched_tokens=8192,
        max_model_len=8000,
    )
    return msgspec.structs.replace(usual, **changes)


def load_model(
    config: ModelConfig, files: WeightFiles, dtype: torch.dtype, positions: int = 2048
) -> DecoderModel:
    return DecoderModel(config, open_weights(files, config, dtype), positions)


def hub_model(
    folder: Path, dtype: torch.dtype, positions: int = 2048, *, language_model_only: bool = False
) -> DecoderModel:
    """A folder that transformers saved, without a tokenizer."""
    path = folder / "config.json"
    fields = Fields(json.loads(path.read_text()), str(path))
    config = read_config(fields, language_model_only=language_model_only)
    files = tuple(str(file) for file in find_safetensors(folder))
    stored = WeightFiles(format="safetensors", files=files, dtype="float32")
    return load_model(config, stored, dtype, positions)


def prepared_model(prepared: PreparedModel, dtype: torch.dtype) -> DecoderModel:
    return load_model(prepared.config, prepared.weights, dtype)
