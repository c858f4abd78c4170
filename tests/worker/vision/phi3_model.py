"""Phi-3-vision, which transformers has no class of: CLIP's tower and Phi-3's decoder are its own,
and what is between them is slow and obvious, by the names of the makers' files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPVisionModel, Phi3ForCausalLM

SPREAD = 0.2
"""Standard deviation of the random weights."""
TAKEN = -2
"""The layer of the tower whose output is taken."""
TOWER = "model.vision_embed_tokens.img_processor.vision_model."


class Phi3V(nn.Module):
    """Made of LLaVA's configuration: its tower's and its decoder's are Phi-3-vision's."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, text, sees = config, config.text_config, config.vision_config
        text._attn_implementation = sees._attn_implementation = "eager"
        self.decoder, self.tower = Phi3ForCausalLM(text), CLIPVisionModel(sees)
        self.generation_config = self.decoder.generation_config
        wide, size = 4 * sees.hidden_size, text.hidden_size
        self.img_projection = nn.Sequential(nn.Linear(wide, size), nn.GELU(), nn.Linear(size, size))
        self.sub_GN = nn.Parameter(torch.zeros(1, 1, 1, wide))
        self.glb_GN = nn.Parameter(torch.zeros(1, 1, wide))
        for parameter in (self.sub_GN, self.glb_GN, *self.img_projection.parameters()):
            nn.init.normal_(parameter, 0, SPREAD)

    def rows(self, pixels: Tensor, form: tuple[int, int]) -> Tensor:
        """Pixels of the whole and of the tiles, [tiles, 3, height, width], to a picture's rows.
        form: rows and columns of tiles."""
        seen = self.tower(pixels, output_hidden_states=True).hidden_states[TAKEN][:, 1:]
        side = self.config.vision_config.image_size // self.config.vision_config.patch_size
        tiles = [each.unflatten(0, (side, side)) for each in seen]
        lines = []
        for down in range(form[0]):
            row = tiles[1 + down * form[1] : 1 + (down + 1) * form[1]]
            lines += self.lines(torch.cat(row, 1))
        lines += [self.glb_GN.flatten(), *self.lines(tiles[0])]
        return self.img_projection(torch.stack(lines))

    def lines(self, patches: Tensor) -> list[Tensor]:
        """Squares of two by two of [rows, columns, hidden], line by line, with what ends a line."""
        found = []
        for top in range(0, patches.shape[0], 2):
            for left in range(0, patches.shape[1], 2):
                square = patches[top : top + 2, left : left + 2]
                found.append(torch.cat([square[0, 0], square[0, 1], square[1, 0], square[1, 1]]))
            found.append(self.sub_GN.flatten())
        return found

    def forward(self, ids: Tensor, **pictures: Any) -> Any:
        """[1, tokens] to logits [1, tokens, vocab]. pictures: pixel_values and forms of each."""
        embedded = self.decoder.get_input_embeddings()(ids)
        if pictures:
            given = zip(pictures["pixel_values"], pictures["forms"], strict=True)
            rows = torch.cat([self.rows(pixels, form) for pixels, form in given])
            shown = (ids == self.config.image_token_index)[..., None]
            embedded = embedded.masked_scatter(shown, rows)
        return SimpleNamespace(logits=self.decoder(inputs_embeds=embedded).logits)

    def save_pretrained(self, folder: Path) -> None:
        """Writes config.json and weights, as the makers have them."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = dict(self.decoder.state_dict())
        for name, each in self.tower.state_dict().items():
            tensors[TOWER + name.removeprefix("vision_model.")] = each
        for name, each in self.state_dict().items():
            if name.startswith(("sub_GN", "glb_GN", "img_projection.")):
                tensors[f"model.vision_embed_tokens.{name}"] = each
        # The makers' code has the embeddings of words in two places.
        tensors["model.vision_embed_tokens.wte.weight"] = tensors["model.embed_tokens.weight"]
        kept = {name: each.detach().clone().contiguous() for name, each in tensors.items()}
        save_file(kept, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.said()))
        self.generation_config.save_pretrained(folder)

    def said(self) -> dict[str, Any]:
        """config.json. Of the tower's sizes the makers' says nothing: only one is known."""
        text, sees = self.config.text_config, self.config.vision_config
        named = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        tower = {key: getattr(sees, key) for key in (*named, "image_size", "patch_size")}
        more = ("num_key_value_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps")
        return {key: getattr(text, key) for key in (*named, *more)} | {
            "architectures": ["Phi3VForCausalLM"],
            "model_type": "phi3_v",
            "bos_token_id": text.bos_token_id,
            "eos_token_id": text.eos_token_id,
            "embd_layer": {
                "embedding_cls": "image",
                "hd_transform_order": "sub_glb",
                "projection_cls": "mlp",
                "use_hd_transform": True,
                "with_learnable_separator": True,
            },
            "img_processor": {
                "image_dim_out": sees.hidden_size,
                "model_name": "openai/clip-vit-large-patch14-336",
                "name": "clip_vision_model",
                "num_img_tokens": (sees.image_size // sees.patch_size // 2) ** 2,
            },
            "vision_config": tower,
            "rope_theta": text.rope_parameters["rope_theta"],
            "sliding_window": text.sliding_window,
            "tie_word_embeddings": False,
        }
