"""Molmo 2, which transformers has no class of: its tower and what follows it, slow and obvious, by
the names of its makers' files; before transformers' Qwen 3 or OLMo 3, whose pictures' tokens all
see one another."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import Olmo3ForCausalLM, Qwen3ForCausalLM

SPREAD = 0.2
"""Standard deviation of the random weights."""
FURTHER = 10
"""Embeddings behind those of the head's tokens."""
MARKS = {
    "image_patch_id": 1,
    "image_start_token_id": 0,
    "image_end_token_id": 2,
    "image_col_id": 3,
    "low_res_image_start_token_id": 4,
    "image_low_res_id": 5,
    "frame_start_token_id": 6,
    "frame_end_token_id": 7,
}
"""Tokens by their number among the further ones."""
TAKEN = (-1, 0)
"""Layers of the tower whose outputs are taken."""


class Attention(nn.Module):
    """Maps [places, wide] to [places, wide]; queries may come from elsewhere."""

    def __init__(self, wide: int, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv = (nn.Linear(wide, size) for _ in range(3))
        self.wo = nn.Linear(size, size)

    def forward(self, queries: Tensor, seen: Tensor) -> Tensor:
        found = []
        parts = (self.wq(queries), self.wk(seen), self.wv(seen))
        for query, key, value in zip(*(x.chunk(self.heads, 1) for x in parts), strict=True):
            scores = query @ key.t() / math.sqrt(query.shape[1])
            found.append(scores.softmax(1) @ value)
        return self.wo(torch.cat(found, 1))


class Block(nn.Module):
    def __init__(self, sees: Any) -> None:
        super().__init__()
        size = sees.hidden_size
        self.attention = Attention(size, size, sees.num_attention_heads)
        self.attention_norm, self.ffn_norm = (nn.LayerNorm(size, eps=1e-6) for _ in range(2))
        self.feed_forward = nn.Module()
        self.feed_forward.w1 = nn.Linear(size, sees.intermediate_size)
        self.feed_forward.w2 = nn.Linear(sees.intermediate_size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        normed = self.attention_norm(hidden)
        hidden = hidden + self.attention(normed, normed)
        inner = self.feed_forward.w1(self.ffn_norm(hidden))
        return hidden + self.feed_forward.w2(functional.gelu(inner, approximate="tanh"))


class Backbone(nn.Module):
    def __init__(self, sees: Any, outputs: int) -> None:
        super().__init__()
        size, self.patch = sees.hidden_size, sees.patch_size
        tower = self.image_vit = nn.Module()
        tower.patch_embedding = nn.Linear(3 * self.patch**2, size)
        side = sees.image_size // self.patch
        tower.positional_embedding = nn.Parameter(torch.zeros(side * side, size))
        tower.transformer = nn.Module()
        blocks = [Block(sees) for _ in range(sees.num_hidden_layers)]
        tower.transformer.resblocks = nn.ModuleList(blocks)
        self.image_pooling_2d = Attention(len(TAKEN) * size, size, sees.num_attention_heads)
        self.image_projector = nn.Module()
        inner = 2 * size
        self.image_projector.w1 = nn.Linear(size, inner, bias=False)
        self.image_projector.w2 = nn.Linear(inner, outputs, bias=False)
        self.image_projector.w3 = nn.Linear(size, inner, bias=False)

    def crop(self, pixels: Tensor) -> Tensor:
        """[3, height, width] to [patches, what all taken layers give]."""
        cut = [
            part.permute(1, 2, 0).flatten()  # colours last
            for line in pixels.split(self.patch, 1)
            for part in line.split(self.patch, 2)
        ]
        tower, outputs = self.image_vit, []
        hidden = tower.patch_embedding(torch.stack(cut)) + tower.positional_embedding
        for block in tower.transformer.resblocks:
            hidden = block(hidden)
            outputs.append(hidden)
        return torch.cat([outputs[layer] for layer in TAKEN], 1)

    def forward(self, crops: Tensor, pooled: list[list[int]]) -> Tensor:
        """pooled: for each row the patches that it is made of, counted through all crops."""
        patches = torch.cat([self.crop(pixels) for pixels in crops])
        found = []
        for own in pooled:
            seen = patches[own]
            mixed = self.image_pooling_2d(seen.mean(0, keepdim=True), seen)
            gate, up = self.image_projector.w1(mixed), self.image_projector.w3(mixed)
            found.append(self.image_projector.w2(functional.silu(gate) * up)[0])
        return torch.stack(found)


class Molmo2(nn.Module):
    """Made of LLaVA's configuration, whose tower is SigLIP's: their sizes are those of Molmo 2's.
    The decoder has fewer tokens than embeddings: `further` has the rest, of which `marks` of the
    configuration says what they mean, if it is there."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, text, sees = config, config.text_config, config.vision_config
        kind = {"qwen3": Qwen3ForCausalLM, "olmo3": Olmo3ForCausalLM}[text.model_type]
        text._attn_implementation = "eager"
        self.decoder = kind(text)
        self.vision_backbone = Backbone(sees, text.hidden_size)
        self.marks: dict[str, int] = getattr(config, "marks", MARKS)
        self.further = nn.Parameter(torch.zeros(FURTHER, text.hidden_size))
        for parameter in (*self.vision_backbone.parameters(), self.further):
            nn.init.normal_(parameter, 0, SPREAD)
        self.model = SimpleNamespace(get_image_features=self.image_features)

    def rows(self, pixels: Tensor, pooled: Tensor, marks: Tensor) -> Tensor:
        """A picture's rows, with the tokens among its embeddings."""
        made = iter(
            self.vision_backbone(
                pixels,
                [
                    [patch for patch in own if patch >= 0]
                    for own, mark in zip(pooled.tolist(), marks.tolist(), strict=True)
                    if mark < 0
                ],
            )
        )
        own = self.further[self.marks["image_patch_id"]]
        return torch.stack(
            [next(made) + own if mark < 0 else self.further[mark] for mark in marks.tolist()]
        )

    def image_features(self, pixel_values: Any, pooled: Any, marks: Any, **also: Any) -> Any:
        given = zip(pixel_values, pooled, marks, strict=True)
        return SimpleNamespace(pooler_output=[self.rows(*each) for each in given])

    def forward(self, ids: Tensor, **pictures: Any) -> Any:
        """[1, tokens] to logits [1, tokens, tokens of the head]. Those of pictures see one
        another."""
        table = torch.cat((self.decoder.get_input_embeddings().weight, self.further))
        embedded, count = table[ids[0]], ids.shape[1]
        sees = torch.ones(count, count, dtype=torch.bool).tril()
        if pictures:
            shown = ids[0] == self.config.image_token_index
            rows = self.image_features(**pictures).pooler_output
            embedded = embedded.masked_scatter(shown[:, None], torch.cat(rows))
            sees |= shown[:, None] & shown[None]
        mask = torch.zeros(count, count).masked_fill(~sees, torch.finfo(torch.float32).min)
        masks: Any = mask[None, None]
        if self.config.text_config.model_type == "olmo3":
            masks = {"full_attention": masks, "sliding_attention": masks}
        found = self.decoder(inputs_embeds=embedded[None], attention_mask=masks).logits
        return SimpleNamespace(logits=found)

    def save_pretrained(self, folder: Path) -> None:
        """Writes config.json and weights, as the makers have them."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"model.vision_backbone.{name}": each
            for name, each in self.vision_backbone.state_dict().items()
        }
        tensors |= {"model.transformer.wte.new_embedding": self.further}
        tensors |= _makers(self.decoder.state_dict())
        kept = {name: each.detach().clone().contiguous() for name, each in tensors.items()}
        save_file(kept, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.said()))

    def said(self) -> dict[str, Any]:
        """config.json."""
        text, sees = self.config.text_config, self.config.vision_config
        olmo, turning = text.model_type == "olmo3", text.rope_parameters
        scaling = layers = None
        theta = turning.get("rope_theta")
        if olmo:
            full = turning["full_attention"]
            theta = full["rope_theta"]
            scaling = {key: value for key, value in full.items() if key != "rope_theta"}
            layers = [n for n, kind in enumerate(text.layer_types) if kind == "full_attention"]
        named = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        heads = {
            "hidden_size": sees.hidden_size,
            "num_attention_heads": sees.num_attention_heads,
            "num_key_value_heads": sees.num_attention_heads,
            "head_dim": sees.hidden_size // sees.num_attention_heads,
        }
        return {
            "architectures": ["Molmo2ForConditionalGeneration"],
            "model_type": "molmo2",
            "text_config": {key: getattr(text, key) for key in named}
            | {
                "model_type": "molmo2_text",
                "num_key_value_heads": text.num_key_value_heads,
                "head_dim": text.hidden_size // text.num_attention_heads if olmo else text.head_dim,
                "vocab_size": text.vocab_size,
                "additional_vocab_size": FURTHER,
                "max_position_embeddings": text.max_position_embeddings,
                "qkv_bias": False,
                "use_qk_norm": True,
                "qk_norm_type": "olmo" if olmo else "qwen3",
                "layer_norm_eps": text.rms_norm_eps,
                "norm_after": olmo,
                "rope_theta": theta,
                "rope_scaling": scaling,
                "rope_scaling_layers": layers,
            },
            "vit_config": heads
            | {
                "model_type": "molmo2",
                "intermediate_size": sees.intermediate_size,
                "num_hidden_layers": sees.num_hidden_layers,
                "hidden_act": "gelu_pytorch_tanh",
                "layer_norm_eps": 1e-6,
                "image_default_input_size": [sees.image_size, sees.image_size],
                "image_patch_size": sees.patch_size,
                "image_num_pos": (sees.image_size // sees.patch_size) ** 2,
            },
            "adapter_config": heads
            | {
                "model_type": "molmo2",
                "vit_layers": list(TAKEN),
                "pooling_attention_mask": True,
                "hidden_act": "silu",
                "intermediate_size": 2 * sees.hidden_size,
                "text_hidden_size": text.hidden_size,
            },
            "tie_word_embeddings": False,
            "use_frame_special_tokens": True,
        } | {key: text.vocab_size + number for key, number in self.marks.items()}


def _makers(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The decoder's tensors, by the makers' names."""
    found = {
        "lm_head.weight": tensors["lm_head.weight"],
        "model.transformer.wte.embedding": tensors["model.embed_tokens.weight"],
        "model.transformer.ln_f.weight": tensors["model.norm.weight"],
    }
    numbers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    for number in numbers:
        theirs, ours = f"model.layers.{number}", f"model.transformer.blocks.{number}"
        behind = f"{theirs}.post_feedforward_layernorm.weight" in tensors
        norms = ("input_layernorm", "post_attention_layernorm")
        if behind:
            norms = ("post_attention_layernorm", "post_feedforward_layernorm")
        found |= {
            f"{ours}.attn_norm.weight": tensors[f"{theirs}.{norms[0]}.weight"],
            f"{ours}.ff_norm.weight": tensors[f"{theirs}.{norms[1]}.weight"],
            f"{ours}.self_attn.att_proj.weight": torch.cat(
                [tensors[f"{theirs}.self_attn.{each}_proj.weight"] for each in "qkv"]
            ),
            f"{ours}.self_attn.attn_out.weight": tensors[f"{theirs}.self_attn.o_proj.weight"],
            f"{ours}.mlp.ff_proj.weight": torch.cat(
                [tensors[f"{theirs}.mlp.{each}_proj.weight"] for each in ("up", "gate")]
            ),
            f"{ours}.mlp.ff_out.weight": tensors[f"{theirs}.mlp.down_proj.weight"],
        }
        for each in ("q_norm", "k_norm"):
            found[f"{ours}.self_attn.{each}.weight"] = tensors[f"{theirs}.self_attn.{each}.weight"]
    return found
