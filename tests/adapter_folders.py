"""Adapters for tests: random factors, as folders and files of both formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from safetensors.numpy import save_file

Factors = dict[str, tuple[np.ndarray, np.ndarray]]
"""A [rank, inputs] and B [outputs, rank], float32, by the module that they change."""


def random_factors(
    shapes: Mapping[str, tuple[int, int]], rank: int, seed: int, size: float = 0.1
) -> Factors:
    """`shapes`: outputs and inputs of each module."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (size * random.standard_normal((rows, columns))).astype(np.float32)

    return {
        name: (matrix(rank, inputs), matrix(outputs, rank))
        for name, (outputs, inputs) in shapes.items()
    }


def write_peft(
    folder: Path,
    factors: Factors,
    *,
    alpha: float = 8.0,
    whole: Mapping[str, np.ndarray] | None = None,
    magnitudes: Mapping[str, np.ndarray] | None = None,
    **settings: Any,
) -> Path:
    """`whole`: tensors in the place of the model's, by their names. `magnitudes`: of DoRA, by
    module. `settings`: further ones of adapter_config.json, or others in the place of the usual
    ones."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = max((down.shape[0] for down, _ in factors.values()), default=8)
    usual = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "some/model",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "bias": "none",
        "use_rslora": False,
        "use_dora": magnitudes is not None,
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": sorted(whole) if whole else None,
        "target_modules": sorted({name.rpartition(".")[2] for name in factors}),
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    (folder / "adapter_config.json").write_text(json.dumps(usual | settings))
    tensors = {}
    for name, pair in factors.items():
        ends = ("A.weight", "B.weight")
        if name.endswith(("embed_tokens", "word_embeddings", "token_type_embeddings")):
            ends = ("embedding_A", "embedding_B")
        for end, factor in zip(ends, pair, strict=True):
            tensors[f"base_model.model.{name}.lora_{end}"] = factor
    for name, values in (magnitudes or {}).items():
        tensors[f"base_model.model.{name}.lora_magnitude_vector"] = values
    for name, values in (whole or {}).items():
        tensors[f"base_model.model.{name}"] = values
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def write_gguf(path: Path, factors: Factors, *, alpha: float = 8.0, arch: str = "llama") -> Path:
    """`factors`: by names of a GGUF file's modules, as `blk.0.attn_q`."""
    writer = GGUFWriter(path, arch)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, (down, up) in factors.items():
        writer.add_tensor(f"{name}.weight.lora_a", down)
        writer.add_tensor(f"{name}.weight.lora_b", up)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
