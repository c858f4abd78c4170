"""DeepSeek-OCR of parts that transformers has: the tower and the decoder of DeepSeek-OCR 2, and
CLIP's layers; and its files as its makers write them. transformers has no class of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPVisionConfig, DeepseekOcr2ForConditionalGeneration
from transformers.models.clip.modeling_clip import CLIPVisionModel


class PagesModel(DeepseekOcr2ForConditionalGeneration):
    """num_local_patches are rows and columns of tiles here."""

    def __init__(self, config: Any, clip: dict[str, Any]) -> None:
        super().__init__(config)
        size, outputs = clip["hidden_size"], config.text_config.hidden_size
        made = CLIPVisionConfig(hidden_act="quick_gelu", layer_norm_eps=1e-5, **clip)
        made._attn_implementation = "eager"
        self.clip = CLIPVisionModel(made)
        self.product = nn.Linear(2 * size, outputs)
        self.newline = nn.Parameter(torch.zeros(outputs))
        self.model.get_image_features = self.image_features

    def image_features(
        self,
        pixel_values: Tensor,
        pixel_values_local: Tensor | None = None,
        num_local_patches: Any = (),
        **also: Any,
    ) -> Any:
        pages, end = self.seen(pixel_values), self.model.view_separator[None]
        tiles = None if pixel_values_local is None else self.seen(pixel_values_local)
        found, start = [], 0
        for page, (rows, columns) in zip(pages, num_local_patches, strict=True):
            parts = [self.lines(page[None], 1, 1), end]
            if tiles is not None and rows:
                own = tiles[start : start + rows * columns]
                parts.insert(0, self.lines(own, rows, columns))
                start += rows * columns
            found.append(torch.cat(parts))
        return SimpleNamespace(pooler_output=found)

    def seen(self, pixels: Tensor) -> Tensor:
        """[tiles, rows, columns, outputs]."""
        sam = self.model.vision_tower.sam_encoder(pixels).last_hidden_state
        patches = sam.flatten(2).transpose(1, 2)
        embeddings = self.clip.embeddings
        table = embeddings.position_embedding.weight
        side = round((len(table) - 1) ** 0.5)
        square = table[1:].view(1, side, side, -1).permute(0, 3, 1, 2)
        stretched = functional.interpolate(
            square, size=sam.shape[2:], mode="bicubic", antialias=True, align_corners=False
        )
        places = torch.cat((table[:1], stretched.flatten(2)[0].t()))
        first = embeddings.class_embedding.expand(len(sam), 1, -1)
        hidden = self.clip.pre_layrnorm(torch.cat((first, patches), 1) + places)
        known = self.clip.encoder(inputs_embeds=hidden).last_hidden_state[:, 1:]
        return self.product(torch.cat((known, patches), -1)).unflatten(1, sam.shape[2:])

    def lines(self, tiles: Tensor, rows: int, columns: int) -> Tensor:
        found = []
        for row in tiles.unflatten(0, (rows, columns)):
            for line in range(row.shape[1]):
                found += [*row[:, line].flatten(0, 1), self.newline]
        return torch.stack(found)

    def write(self, folder: Path) -> None:
        """Writes config.json and weights."""
        super().save_pretrained(folder)
        path = folder / "model.safetensors"
        tensors = {
            name: tensor
            for name, tensor in load_file(path).items()
            if not name.startswith(("model.qwen2_model", "model.projector", "clip", "newline"))
            and not name.startswith("product")
        }
        tensors |= self.of_clip() | {
            f"model.projector.layers.{kind}": getattr(self.product, kind).detach()
            for kind in ("weight", "bias")
        }
        tensors["model.image_newline"] = self.newline.detach()
        save_file({name: each.contiguous() for name, each in tensors.items()}, path)
        (folder / "config.json").write_text(json.dumps(self.said()))

    def of_clip(self) -> dict[str, Tensor]:
        """The second tower's tensors by the makers' names."""
        found = {
            f"model.vision_model.{name.replace('encoder.', 'transformer.')}": tensor
            for name, tensor in self.clip.state_dict().items()
            if "post_layernorm" not in name
        }
        for name in [name for name in found if ".self_attn.q_proj." in name]:
            parts = [found.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
            found[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        return found

    @property
    def seen_config(self) -> Any:
        """What llama.cpp's converter takes of config.json: it says of the second tower's
        feed-forward what that hasn't."""
        clip = self.clip.config
        layers = SimpleNamespace(
            hidden_size=clip.hidden_size,
            intermediate_size=4 * clip.num_attention_heads,
            num_hidden_layers=clip.num_hidden_layers,
            num_attention_heads=clip.num_attention_heads,
            layer_norm_eps=1e-6,
        )
        sam = self.config.vision_config.sam_config
        return SimpleNamespace(
            model_type="deepseek_ocr",
            text_config=self.config.text_config,
            vision_config=SimpleNamespace(encoder_config=layers, sam_config=sam, model_type=""),
        )

    def seen_with(self) -> dict[str, Tensor]:
        """Tensors of towers and product: the first tower's by transformers' names."""
        found = {
            name: tensor
            for name, tensor in self.state_dict().items()
            if name.startswith("model.vision_tower.sam_encoder") or "view_separator" in name
        }
        found |= {
            f"multi_modal_projector.{kind}": getattr(self.product, kind).detach()
            for kind in ("weight", "bias")
        }
        return found | self.of_clip() | {"model.image_newline": self.newline.detach()}

    def said(self) -> dict[str, Any]:
        """config.json."""
        sam, clip = self.config.vision_config.sam_config, self.clip.config
        text = self.config.text_config.to_dict()
        kinds = text.pop("mlp_layer_types")
        text.pop("model_type")
        widths = {
            "clip-l-14-224": {
                "heads": clip.num_attention_heads,
                "image_size": clip.image_size,
                "layers": clip.num_hidden_layers,
                "patch_size": clip.patch_size,
                "width": clip.hidden_size,
            },
            "sam_vit_b": {
                "downsample_channels": sam.downsample_channels,
                "global_attn_indexes": sam.global_attn_indexes,
                "heads": sam.num_attention_heads,
                "layers": sam.num_hidden_layers,
                "width": sam.hidden_size,
            },
        }
        return {
            "architectures": ["DeepseekOCRForCausalLM"],
            "language_config": text | {"first_k_dense_replace": kinds.count("dense")},
            "model_type": "deepseek_vl_v2",
            "projector_config": {"projector_type": "linear"},
            "tile_tag": "2D",
            "vision_config": {"image_size": sam.image_size, "width": widths},
        }
