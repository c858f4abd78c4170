"""Quantised checkpoints as folders of the hub's files, each beside the same model in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.model.config import ModelConfig
from penstock.model.prepared_model import PreparedModel, WeightFiles
from penstock.prepare import load_manifest, prepare
from testing.model_configs import llama_config
from testing.tiny_models import LLAMA_CONFIG, write_hub_folder
from tests.worker.checkpoints import tiny_tensors
from tests.worker.quantised_writers import Writer, Written, auto_round, int4_in_bytes, int8, packed

SIZES = {
    "vocab_size": 700,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}


@dataclass(frozen=True)
class Case:
    """settings: quantization_config.  plain: the dtype of everything else."""

    settings: dict[str, Any]
    writer: Writer
    plain: torch.dtype = torch.float16
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """folder: the hub's files.  prepared: what Penstock makes of them.  twin: the same model as
    plain float32.  meant: the weights of quantised modules, by the hub's names."""

    folder: Path
    twin: WeightFiles
    meant: dict[str, Tensor]

    @property
    def prepared(self) -> PreparedModel:
        return load_manifest(prepare(str(self.folder), cache_dir=str(self.folder / "cache")))

    @property
    def config(self) -> ModelConfig:
        return self.prepared.decoder

    def change(self, change: Callable[[dict[str, Tensor]], None]) -> None:
        """Rewrites the tensors."""
        path = self.folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)


def write_checkpoint(folder: Path, case: Case) -> Checkpoint:
    stated = LLAMA_CONFIG | SIZES | case.sizes
    config = stated | {"quantization_config": case.settings, "tie_word_embeddings": False}
    write_hub_folder(folder, config=config)
    shapes = llama_config(
        architecture="llama",
        vocab_size=stated["vocab_size"],
        hidden_size=stated["hidden_size"],
        intermediate_size=stated["intermediate_size"],
        num_layers=stated["num_hidden_layers"],
        num_heads=stated["num_attention_heads"],
        num_kv_heads=stated["num_key_value_heads"],
        head_dim=stated["head_dim"],
        max_position=512,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
    )
    tensors, twin, meant = {}, {}, {}
    for name, weight in tiny_tensors(shapes).items():
        if "_proj.weight" not in name:
            tensors[name] = weight.to(case.plain)
            twin[name] = tensors[name].float()
            continue
        module = name.removesuffix(".weight")
        parts, meant[name] = case.writer(weight)
        tensors |= {f"{module}.{part}": each for part, each in parts.items()}
        twin[name] = meant[name].clone()
    save_file(tensors, folder / "model.safetensors")
    path = folder / "twin" / "model.safetensors"
    path.parent.mkdir()
    save_file(twin, path)
    files = WeightFiles(format="safetensors", files=(str(path),), dtype="float32")
    return Checkpoint(folder, files, meant)


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """quantization_config as compressed-tensors writes it."""
    scheme = {"num_bits": 8, "type": "int", "strategy": "channel", "dynamic": False, **weights}
    inputs = {"num_bits": 8, "type": scheme["type"], "strategy": "token", "dynamic": True}
    group = {
        "targets": ["Linear"],
        "weights": scheme,
        "input_activations": None if "pack" in form else inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "global_compression_ratio": 1.5,
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "ignore": ["lm_head", "re:.*router"],
        "config_groups": {"group_0": group},
    }


def two_schemes(weight: Tensor) -> Written:
    """8 bits for what has most inputs, as mixed recipes have it."""
    wide = weight.shape[1] == SIZES["intermediate_size"]
    write = packed(8, None, HALF, symmetric=True) if wide else packed(4, 32, HALF, symmetric=True)
    return write(weight)


def bytes_of_two_schemes(weight: Tensor) -> Written:
    """4 and 8 bits as above, whose tensors have the same shapes and types."""
    wide = weight.shape[1] == SIZES["intermediate_size"]
    return (int8(BRAIN) if wide else int4_in_bytes(None))(weight)


def three_schemes(weight: Tensor) -> Written:
    """8 bits for what has most inputs, 4 for most others, and 16 for keys and values."""
    if weight.shape[0] < SIZES["hidden_size"]:
        return {"weight": weight.half()}, weight.half().float()
    wide = weight.shape[1] == SIZES["intermediate_size"]
    return auto_round(8 if wide else 4, 32)(weight)


def both(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The groups of two configurations."""
    groups = {"group_0": first["config_groups"]["group_0"]}
    groups["group_1"] = second["config_groups"]["group_0"] | {"targets": ["re:.*down_proj"]}
    return first | {"config_groups": groups}


def hqq_settings(bits: int) -> dict[str, Any]:
    weights = {"axis": 1, "channel_wise": True, "group_size": 32, "nbits": bits}
    weights |= {"optimize": True, "round_zero": False, "view_as_float": False}
    group = {"offload_meta": False, "scale_quant_params": None, "weight_quant_params": weights}
    return {"quant_method": "hqq", "quant_config": group, "skip_modules": ["lm_head"]}


AWQ_SETTINGS = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "zero_point": True,
    "version": "GEMM",
    "modules_to_not_convert": None,
}
GPTQ_SETTINGS = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "desc_act": False,
    "sym": False,
    "damp_percent": 0.1,
    "true_sequential": True,
    "checkpoint_format": "gptq",
    "meta": {"quantizer": ["gptqmodel:1.0"]},
}
AUTO_ROUND = {
    "quant_method": "auto-round",
    "autoround_version": "0.16.1",
    "bits": 4,
    "block_name_to_quantize": "model.layers",
    "data_type": "int",
    "enable_quanted_input": False,
    "group_size": 32,
    "sym": True,
}
WIDER = {
    f"model.layers.{layer}.{module}": {"bits": bits}
    for layer in range(2)
    for module, bits in (("mlp.down_proj", 8), ("self_attn.k_proj", 16), ("self_attn.v_proj", 16))
}
FP8_SETTINGS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
NF4_SETTINGS = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_compute_dtype": "bfloat16",
    "llm_int8_threshold": 6.0,
}
HALF, BRAIN = torch.float16, torch.bfloat16
V2 = {"checkpoint_format": "gptq_v2"}
FLOAT8 = {"type": "float", "num_bits": 8}
ODD = {"hidden_size": 60, "head_dim": 16}

MODELOPT = {
    "config_groups": {"group_0": {"targets": ["Linear"]}},
    "ignore": ["lm_head"],
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.43.0"},
    "quant_method": "modelopt",
}
