"""Kimi-VL, which transformers has no class of: its tower and its projector, slow and obvious, by
the names of its makers' files; before transformers' DeepSeek-V3, in its class of Kimi K2.5."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import DeepseekV3ForCausalLM, Kimi_K25ForConditionalGeneration

SPREAD = 0.2
"""Standard deviation of the random weights."""
THETA = 10_000.0


class MoonViT(nn.Module):
    """Sees one picture at a time."""

    def __init__(self, sees: Any) -> None:
        super().__init__()
        size, patch = sees.hidden_size, sees.patch_size
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, size, patch, patch)
        self.patch_embed.pos_emb = nn.Module()
        table = torch.zeros(sees.pos_emb_height, sees.pos_emb_width, size)
        self.patch_embed.pos_emb.weight = nn.Parameter(table)
        self.encoder = nn.Module()
        layers = [Layer(sees) for _ in range(sees.num_hidden_layers)]
        self.encoder.blocks = nn.ModuleList(layers)
        self.encoder.final_layernorm = nn.LayerNorm(size)

    def forward(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        """[rows * columns, 3, patch, patch] -> [rows, columns, size]."""
        table = self.patch_embed.pos_emb.weight.permute(2, 0, 1)[None]
        places = functional.interpolate(table, size=(rows, columns), mode="bicubic")
        hidden = self.patch_embed.proj(patches).flatten(1) + places[0].flatten(1).t()
        for layer in self.encoder.blocks:
            hidden = layer(hidden, columns)
        return self.encoder.final_layernorm(hidden).unflatten(0, (rows, columns))


class Layer(nn.Module):
    def __init__(self, sees: Any) -> None:
        super().__init__()
        size, inner = sees.hidden_size, sees.intermediate_size
        self.heads = sees.num_attention_heads
        self.norm0, self.norm1 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.wqkv, self.wo = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = nn.Module()
        self.mlp.fc0, self.mlp.fc1 = nn.Linear(size, inner), nn.Linear(inner, size)

    def forward(self, hidden: Tensor, columns: int) -> Tensor:
        queries, keys, values = self.wqkv(self.norm0(hidden)).chunk(3, 1)
        found = []
        for query, key, value in zip(
            *(each.chunk(self.heads, 1) for each in (queries, keys, values)), strict=True
        ):
            scores = turned(query, columns) @ turned(key, columns).t()
            found.append((scores / query.shape[1] ** 0.5).softmax(1) @ value)
        hidden = hidden + self.wo(torch.cat(found, 1))
        inner = functional.gelu(self.mlp.fc0(self.norm1(hidden)), approximate="tanh")
        return hidden + self.mlp.fc1(inner)


def turned(vectors: Tensor, columns: int) -> Tensor:
    """Turns one head's vectors: two numbers side by side are a pair. Pairs 0, 2, …
    turn by the patch's column, pairs 1, 3, … by its row, two of a frequency."""
    pairs = vectors.shape[1] // 2
    angles = [
        [
            (patch // columns if pair % 2 else patch % columns)
            * THETA ** (-2 * (pair // 2) / pairs)
            for pair in range(pairs)
        ]
        for patch in range(len(vectors))
    ]
    turns = torch.polar(torch.ones(len(vectors), pairs), torch.tensor(angles))
    made = torch.view_as_complex(vectors.unflatten(1, (pairs, 2)).contiguous()) * turns
    return torch.view_as_real(made).flatten(1)


class Projector(nn.Module):
    def __init__(self, size: int, side: int, outputs: int) -> None:
        super().__init__()
        self.side, wide = side, size * side**2
        self.pre_norm = nn.LayerNorm(size, eps=1e-5)
        self.linear_1, self.linear_2 = nn.Linear(wide, wide), nn.Linear(wide, outputs)

    def forward(self, seen: Tensor) -> Tensor:
        """[rows, columns, size] -> [squares, outputs]."""
        rows = [
            part.flatten()
            for line in self.pre_norm(seen).split(self.side, 0)
            for part in line.split(self.side, 1)
        ]
        return self.linear_2(functional.gelu(self.linear_1(torch.stack(rows))))


class KimiVL(Kimi_K25ForConditionalGeneration):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        sees, outputs = config.vision_config, config.text_config.hidden_size
        side = sees.merge_kernel_size[0]
        self.model.vision_tower = MoonViT(sees)
        self.model.mm_projector = Projector(sees.hidden_size, side, outputs)
        for part in (self.model.vision_tower, self.model.mm_projector):
            for parameter in part.parameters():
                nn.init.normal_(parameter, 0, SPREAD)
        for name, buffer in self.named_buffers():
            if name.endswith("e_score_correction_bias"):
                nn.init.normal_(buffer, 0, SPREAD)
        self.model.get_image_features = self.image_features

    def image_features(self, pixel_values: Tensor, image_grid_thw: Tensor, **also: Any) -> Any:
        found, start = [], 0
        for _, rows, columns in image_grid_thw.tolist():
            own = pixel_values[start : start + rows * columns]
            found.append(self.model.mm_projector(self.model.vision_tower(own, rows, columns)))
            start += rows * columns
        return SimpleNamespace(pooler_output=found)

    def write(self, folder: Path) -> None:
        """Writes config.json and weights, as the makers have them."""
        decoder = DeepseekV3ForCausalLM(self.config.text_config)
        decoder.model, decoder.lm_head = self.model.language_model, self.lm_head
        decoder.save_pretrained(folder)
        path = folder / "model.safetensors"
        tensors = {f"language_model.{name}": each for name, each in load_file(path).items()}
        # The makers' files have the decoder's frequencies in them.
        tensors["language_model.model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        for name, part in (
            ("vision_tower", self.model.vision_tower),
            ("multi_modal_projector", self.model.mm_projector),
        ):
            tensors |= {f"{name}.{inner}": each for inner, each in part.state_dict().items()}
        save_file({name: each.contiguous() for name, each in tensors.items()}, path)
        (folder / "config.json").write_text(json.dumps(self.said()))

    def said(self) -> dict[str, Any]:
        """config.json."""
        text, sees = self.config.text_config.to_dict(), self.config.vision_config
        turning = text.pop("rope_parameters")
        kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
        return {
            "architectures": ["KimiVLForConditionalGeneration"],
            "ignore_index": -100,
            "media_placeholder_token_id": self.config.image_token_id,
            "model_type": "kimi_vl",
            "text_config": {key: text[key] for key in text.keys() - {"model_type"}}
            | {"rope_theta": turning["rope_theta"], "rope_scaling": None},
            "tie_word_embeddings": False,
            "vision_config": {key: getattr(sees, key) for key in kept}
            | {
                "init_pos_emb_height": sees.pos_emb_height,
                "init_pos_emb_width": sees.pos_emb_width,
                "merge_kernel_size": list(sees.merge_kernel_size),
                "model_type": "moonvit",
                "patch_size": sees.patch_size,
            },
        }
