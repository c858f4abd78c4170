"""Janus's folder as its makers write it: transformers' model under their names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import JanusForConditionalGeneration

TOWER = "vision_model.vision_tower."
NAMES = (
    (r"^model\.", ""),
    (r"^language_model\.", "language_model.model."),
    (r"^lm_head\.", "language_model.lm_head."),
    (r"^aligner\.fc1\.", "aligner.layers.0."),
    (r"^aligner\.hidden_layers\.0\.", "aligner.layers.2."),
    (r"^vqmodel\.", "gen_vision_model."),
    (r"^generation_embeddings\.", "gen_embed."),
    (r"^generation_aligner\.fc1\.", "gen_aligner.layers.0."),
    (r"^generation_aligner\.hidden_layers\.0\.", "gen_aligner.layers.2."),
    (r"^generation_head\.proj_out\.", "gen_head.output_mlp_projector."),
    (r"^generation_head\.vision_head\.", "gen_head.vision_head."),
    (r"^vision_model\.encoder\.layers\.", f"{TOWER}blocks."),
    (r"^vision_model\.post_layernorm\.", f"{TOWER}norm."),
    (r"^vision_model\.embeddings\.patch_embedding\.", f"{TOWER}patch_embed.proj."),
    (r"^vision_model\.embeddings\.position_embedding\.weight$", f"{TOWER}pos_embed"),
    (r"(?<=\d\.)layer_norm(?=\d\.)", "norm"),
    (r"self_attn\.projection_layer\.", "attn.proj."),
)
"""transformers' names, and the makers' where those of a layer's queries, keys and values aren't
one."""
_PART = re.compile(r"^(vision_model\.vision_tower\.blocks\.\d+)\.self_attn\.([qkv])_proj\.(\w+)$")


def makers_tensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the makers' names. What pools the tower's output is beside it."""
    found: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        for theirs, makers in NAMES:
            name = re.sub(theirs, makers, name)
        part = _PART.match(name)
        if part is not None:
            parts.setdefault(f"{part[1]}.attn.qkv.{part[3]}", {})[part[2]] = tensor
        elif name == f"{TOWER}pos_embed":
            found[name] = tensor[None]
        else:
            found[name] = tensor
    found |= {name: torch.cat([own[each] for each in "qkv"]) for name, own in parts.items()}
    found[f"{TOWER}attn_pool.latent"] = torch.ones(1, 1, found[f"{TOWER}norm.weight"].shape[0])
    return found


class MakersJanus(JanusForConditionalGeneration):
    def write(self, folder: Path) -> None:
        """Writes config.json and weights."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: each.detach() for name, each in self.state_dict().items()}
        kept = {name: each.clone() for name, each in makers_tensors(state).items()}
        save_file(kept, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.said()))

    def said(self) -> dict[str, Any]:
        """config.json, which names no class. The tower's sizes stand beside its name."""
        text, sees = self.config.text_config, self.config.vision_config
        named = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        more = ("num_key_value_heads", "max_position_embeddings", "vocab_size", "rms_norm_eps")
        language = {key: getattr(text, key) for key in (*named, *more)}
        language["rope_theta"] = text.rope_parameters["rope_theta"]
        wide = {"depth": 2, "n_embed": text.hidden_size, "projector_type": "mlp_gelu"}
        return {
            "model_type": "multi_modality",
            "aligner_config": {
                "cls": "MlpProjector",
                "model_type": "aligner",
                "params": wide | {"input_dim": sees.hidden_size},
            },
            "gen_aligner_config": {"cls": "MlpProjector", "params": wide | {"input_dim": 8}},
            "gen_head_config": {"cls": "vision_head", "params": {"n_embed": text.hidden_size}},
            "gen_vision_config": {"cls": "VQ-16", "params": {"n_embed": 8}},
            "language_config": language | {"model_type": "llama"},
            "vision_config": {
                "cls": "CLIPVisionTower",
                "model_type": "vision",
                "params": {
                    "image_size": sees.image_size,
                    "model_name": "siglip_large_patch16_384",
                    "select_feature": "same",
                    "select_layer": -1,
                    "width": sees.hidden_size,
                    "layers": sees.num_hidden_layers,
                    "heads": sees.num_attention_heads,
                    "patch_size": sees.patch_size,
                    "mlp_ratio": sees.mlp_ratio,
                },
            },
        }
