"""Models with heads that draft for them, in folders: transformers' own with random weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.formats.fields import Fields
from penstock.formats.weight_files import find_safetensors
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import GenerationDefaults, PreparedModel, WeightFiles
from penstock.prepare.folder import FORMAT_VERSION, MANIFEST, TOKENIZER
from penstock.prepare.from_hub_folder import read_head
from penstock.prepare.hub_config import read_config
from tests.worker.models import text_halves
from tests.worker.models.case_sizes import QUARTER, YARN
from tests.worker.models.family_cases import config_class
from tests.worker.models.latent_cases import DEEPSEEK_V4
from tests.worker.speculation.mixed_heads import MixedLayer, MixedReference
from tests.worker.speculation.slow_heads import (
    FULL,
    HIDDEN,
    LAYERS,
    LINEAR,
    MTP,
    POSITIONS,
    SLIDING,
    VOCAB,
    Eagle3,
    MiMoLayer,
    MiMoV2Layer,
    MTPLayer,
    QwenLayer,
    Reference,
    StepLayer,
    circle,
)

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": None,
    "bos_token_id": None,
}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENTS = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
INDEX = {"index_n_heads": 24, "index_head_dim": 16, "index_topk": 6}
HYBRID = GROUPED | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "rope_parameters": QUARTER | {"partial_rotary_factor": 0.5},
}
HYBRID_LAYERS = [LINEAR, FULL, LINEAR, LINEAR]
HYBRID_EXPERTS = {
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
}
WINDOW = {"num_key_value_heads": 1, "head_dim": 32, "v_head_dim": 20, "sliding_window": 9}
WINDOW_LAYERS = [FULL, SLIDING, SLIDING, FULL]
STEP = {
    "sliding_window": 9,
    "num_sliding_attention_heads": 6,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "share_expert_dim": 40,
}
V4_KINDS = [
    "compressed_sparse_attention",
    SLIDING,
    "heavily_compressed_attention",
    "compressed_sparse_attention",
]
V4 = DEEPSEEK_V4 | {"sliding_window": 9, "rope_parameters": YARN}
HYBRIDS = ("Qwen3Next", "Qwen3_5", "Qwen3_5Moe")
WINDOWED = ("MiMoV2Flash", "Step3p7")
SERVED: dict[str, dict[str, Any]] = {
    "Llama": GROUPED,
    "Qwen3": GROUPED,
    "MiMo": GROUPED,
    "Glm4Moe": GROUPED | EXPERTS | {"use_qk_norm": True},
    "MiMoV2Flash": GROUPED | EXPERTS | WINDOW,
    "Step3p7": GROUPED | STEP,
    "DeepseekV3": LATENTS | EXPERTS,
    "DeepseekV32": LATENTS | EXPERTS | INDEX,
    "DeepseekV4": V4,
    "Qwen3Next": HYBRID | {"num_experts": 8, **HYBRID_EXPERTS},
    "Qwen3_5": HYBRID | {"tie_word_embeddings": True},
    "Qwen3_5Moe": HYBRID | {"num_experts": 6, **HYBRID_EXPERTS},
}
"""What is served, by the first part of transformers' class; MiMo, which is Qwen 2."""
HEADS = dict.fromkeys(HYBRIDS, QwenLayer) | {"MiMo": MiMoLayer, "MiMoV2Flash": MiMoV2Layer}
HEADS |= {"Step3p7": StepLayer, "DeepseekV4": MixedLayer}


def randomise(module: torch.nn.Module, seed: int) -> None:
    """Weights that are large enough for clear-cut choices."""
    generator = torch.Generator().manual_seed(seed)
    for name, each in [*module.named_parameters(), *module.named_buffers()]:
        values = torch.randn(each.shape, generator=generator)
        if name.endswith("inv_freq"):
            continue
        if name.endswith("tid2eid"):
            experts = torch.rand(len(each), V4["n_routed_experts"], generator=generator)
            each.copy_(experts.argsort(-1)[:, : each.shape[1]])
            continue
        if each.dim() > 1:
            each.data.copy_(values * 1.6 / each.shape[-1] ** 0.5)
        else:
            each.data.copy_((0.0 if "bias" in name else 1.0) + values / 5)


def count_on(hub: Any) -> None:
    """Makes a model say mostly the id behind the last token's, whatever its layers add to it."""
    embeddings, step = circle()
    # Where norms add 1 to their weights, what layers read is twice as large.
    share = 0.02 if hub.config.model_type.startswith("qwen3_") else 0.1
    for name, each in hub.named_parameters():
        if any(part in name for part in ("o_proj", "o_b_proj", "out_proj", "down_proj")):
            each.data.mul_(share)
    hub.model.embed_tokens.weight.data.copy_(embeddings)
    hub.model.norm.weight.data.fill_(1.0)
    if not hub.config.tie_word_embeddings:
        hub.lm_head.weight.data.copy_(embeddings @ step)


def served_model(kind: str, folder: Path, *, drafts: int, counts: bool = False) -> Reference:
    """Writes a model in the hub's format. `drafts`: so many layers behind its own are its head's.
    `counts`: it mostly says the next id."""
    settings = COMMON | SERVED[kind] | {"num_hidden_layers": LAYERS + drafts}
    if kind in HYBRIDS:
        settings["layer_types"] = HYBRID_LAYERS + [FULL] * drafts
    elif kind in WINDOWED:
        settings["layer_types"] = WINDOW_LAYERS + [SLIDING] * drafts
        settings["mlp_layer_types"] = ["dense", *["sparse"] * (LAYERS - 1), *["dense"] * drafts]
    elif kind == "DeepseekV4":
        settings["layer_types"] = V4_KINDS + [SLIDING] * drafts
        settings["mlp_layer_types"] = ["hash_moe", "hash_moe", *["moe"] * (2 + drafts)]
    theirs = "Qwen2" if kind == "MiMo" else kind
    config = config_class(theirs)(**settings, attn_implementation="eager")
    model = getattr(transformers, f"{theirs}ForCausalLM", None) or text_halves.model_class(theirs)
    hub = model(config).eval()
    with torch.no_grad():
        randomise(hub, 1)
        if counts:
            count_on(hub)
    hub.save_pretrained(folder)
    path = folder / "config.json"
    said = json.loads(path.read_text()) | {"num_hidden_layers": LAYERS}
    sparse = said.pop("mlp_layer_types", [])
    if "layer_types" in said:
        said["layer_types"] = said["layer_types"][:LAYERS]
    if kind in HYBRIDS:
        rename_layers(folder, drafts, "mtp.layers")
        said["mtp_num_hidden_layers"] = drafts
    elif kind == "DeepseekV4":
        rename_layers(folder, drafts, "mtp")
        said["mlp_layer_types"] = sparse[:LAYERS]
    elif kind == "MiMoV2Flash":
        rename_layers(folder, drafts, "model.mtp.layers")
    elif kind == "Step3p7":
        said |= {"architectures": ["Step3p5ForCausalLM"], "mlp_layer_types": sparse[:LAYERS]}
        del said["per_layer_config"]
    elif kind == "MiMo":
        rename_layers(folder, drafts, "model.mtp_layers")
        said |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"}
    if drafts and kind not in HYBRIDS:
        said["num_nextn_predict_layers"] = drafts
    path.write_text(json.dumps(said))
    return MixedReference(hub) if kind == "DeepseekV4" else Reference(hub)


def rename_layers(folder: Path, drafts: int, name: str) -> None:
    """The last layers' tensors are called like those of a head beside the layers."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for draft in range(drafts):
        last = f"model.layers.{LAYERS + draft}."
        tensors = {n.replace(last, f"{name}.{draft}."): each for n, each in tensors.items()}
    if name == "model.mtp.layers":
        renamed = "post_attention_layernorm", "pre_mlp_layernorm"
        own = {n: n.replace(*renamed) if n.startswith(name) else n for n in tensors}
        tensors = {own[n]: each for n, each in tensors.items()}
    save_file(tensors, path)


def add_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | tensors, path)


def prepared_folder(hub: Path, folder: Path) -> Path:
    """Writes the prepared folder of a model or a head that has no tokenizer."""
    path = hub / "config.json"
    fields = Fields(json.loads(path.read_text()), str(path))
    drafts = "draft_vocab_size" in fields or "backbone_hidden_size" in fields
    config: ModelConfig = read_head(fields) if drafts else read_config(fields)
    files = tuple(str(file) for file in find_safetensors(hub))
    manifest = PreparedModel(
        format_version=FORMAT_VERSION,
        name=hub.name,
        source=hub.name,
        config=config,
        generation=GenerationDefaults(),
        weights=WeightFiles(format="safetensors", files=files, dtype="float32"),
        digest=str(hub),
        has_chat_template=False,
    )
    folder.mkdir()
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    (folder / TOKENIZER).write_bytes(b"{}")
    return folder


@dataclass
class Served:
    """A model with its head: prepared, and as slow torch."""

    reference: Reference
    slow: Eagle3 | MTP
    folder: Path
    said: dict[str, Any]
    """The setting that asks for the head."""


def written(kind: str, head: str, folder: Path, *, counts: bool = False, layers: int = 1) -> Served:
    """`head`: mtp, with so many layers, or eagle3, or `eagle3, normed`. `counts`: what either says
    is mostly the next id."""
    hub, mtp = folder / "hub", head == "mtp"
    reference = served_model(kind, hub, drafts=layers if mtp else 0, counts=counts)
    slow: Eagle3 | MTP = (
        MTP(reference, HEADS.get(kind, MTPLayer), layers)
        if mtp
        else Eagle3(reference, own=295 if counts else 100, normed=head == "eagle3, normed")
    )
    if counts:
        slow.count_on()
    said = {"method": "mtp"}
    if isinstance(slow, MTP):
        add_tensors(hub, slow.tensors)
    else:
        slow.write(folder / "head")
        own = prepared_folder(folder / "head", folder / "prepared head")
        said = {"method": "eagle3", "model": str(own)}
    return Served(reference, slow, prepared_folder(hub, folder / "prepared"), said)
