"""A mixture of experts whose experts alone are quantised, beside the same model in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from penstock.model.prepared_model import WeightFiles
from testing.tiny_models import write_hub_folder
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.quantised_checkpoints import Case, Checkpoint

SIZES: dict[str, Any] = {
    "vocab_size": 700,
    "hidden_size": 160,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
}
"""A block of 128 doesn't divide the hidden size; two ranks have one block each of an expert's inner
dimension."""


def write_experts(folder: Path, case: Case, **sizes: Any) -> Checkpoint:
    """Writes experts of Qwen3's mixtures. The case's own sizes don't matter."""
    write_hub_folder(folder)
    make_theirs("Qwen3Moe", SIZES | sizes).save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors, twin, meant = {}, {}, {}
    for name, weight in load_file(path).items():
        if ".experts." not in name:
            tensors[name] = twin[name] = weight
            continue
        # Twice as large, so that experts matter.
        parts, meant[name] = case.writer(2 * weight.float())
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{part}": each.contiguous() for part, each in parts.items()}
        twin[name] = meant[name].clone()
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = case.settings
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, path)
    (folder / "twin").mkdir()
    plain = folder / "twin" / "model.safetensors"
    save_file({name: each.contiguous() for name, each in twin.items()}, plain)
    files = WeightFiles(format="safetensors", files=(str(plain),), dtype="float32")
    return Checkpoint(folder, files, meant)
