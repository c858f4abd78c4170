"""MiniCPM-V 2.6, 4.0 and 4.5, which transformers has no class of: SigLIP's layers and the decoder
are its own, and what is before and between them is slow and obvious, by the names of the makers'
files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, SiglipVisionModel

SPREAD = 0.2
"""Standard deviation of the random weights."""
QUERIES = 6
HEAD = 128
"""Numbers of a head of the queries' attention."""
VERSIONS = {"qwen2": 2.6, "llama": "4.0", "qwen3": 4.5}
"""MiniCPM-V's version by its decoder's model_type; one is a text, as some files have it."""


class MiniCPMV(nn.Module):
    """Made of LLaVA's configuration: its tower's and its decoder's are MiniCPM-V's."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, text, sees = config, config.text_config, config.vision_config
        text._attn_implementation = sees._attn_implementation = "eager"
        self.llm = AutoModelForCausalLM.from_config(text, attn_implementation="eager")
        self.vpm = SiglipVisionModel(sees)
        self.generation_config = self.llm.generation_config
        self.resampler = Resampler(sees.hidden_size, text.hidden_size)
        self.seen_config = SimpleNamespace(
            model_type="minicpmv", text_config=text, vision_config=sees, query_num=QUERIES
        )

    @property
    def model(self) -> MiniCPMV:
        """What sees and speaks: of transformers' classes it is a part."""
        return self

    @property
    def language_model(self) -> Any:
        return self.llm.model

    @property
    def lm_head(self) -> Any:
        return self.llm.lm_head

    def get_input_embeddings(self) -> Any:
        return self.llm.get_input_embeddings()

    def get_image_features(self, strip: Tensor, size: Tensor) -> Any:
        """The rows of a slice whose patches stand side by side: [1, 3, patch, patches * patch];
        size: [1, 2], rows and columns of these."""
        rows, columns = size[0].tolist()
        inner = getattr(self.vpm, "vision_model", self.vpm)
        patches = inner.embeddings.patch_embedding(strip).flatten(2).transpose(1, 2)
        sees = self.config.vision_config
        side = sees.image_size // sees.patch_size
        places = [place(row, rows, side) * side for row in range(rows)]
        table = inner.embeddings.position_embedding.weight
        added = [
            table[at + place(column, columns, side)] for at in places for column in range(columns)
        ]
        hidden = inner.encoder(inputs_embeds=patches + torch.stack(added)).last_hidden_state
        found = self.resampler(inner.post_layernorm(hidden)[0], rows, columns)
        return SimpleNamespace(pooler_output=[found])

    def forward(self, ids: Tensor | None = None, **given: Any) -> Any:
        """[1, tokens], or embeddings, to logits [1, tokens, vocab]."""
        return SimpleNamespace(logits=self.llm(ids, **given).logits)

    def seen_with(self) -> dict[str, Tensor]:
        """Tensors of what sees, by the makers' names."""
        found = {}
        for name, each in self.vpm.state_dict().items():
            inner = name.removeprefix("vision_model.")
            if not inner.startswith("head."):
                found[f"vpm.{inner}"] = each
        for name, each in self.resampler.state_dict().items():
            found[f"resampler.{name}"] = each
        return found

    def save_pretrained(self, folder: Path) -> None:
        """Writes config.json and weights, as the makers have them."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = self.seen_with() | {
            f"llm.{name}": each for name, each in self.llm.state_dict().items()
        }
        kept = {name: each.detach().clone().contiguous() for name, each in tensors.items()}
        save_file(kept, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.said()))
        self.generation_config.save_pretrained(folder)

    def said(self) -> dict[str, Any]:
        """config.json: the decoder's settings, and what is beside it among them."""
        text, sees = self.config.text_config, self.config.vision_config
        named = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        tower = {key: getattr(sees, key) for key in (*named, "image_size", "patch_size")}
        more = ("num_key_value_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps")
        found = {key: getattr(text, key) for key in (*named, *more)} | {
            "architectures": ["MiniCPMV"],
            "batch_vision_input": True,
            "bos_token_id": text.bos_token_id,
            "drop_vision_last_layer": False,
            "eos_token_id": text.eos_token_id,
            "image_size": 448,
            "model_type": "minicpmv",
            "patch_size": sees.patch_size,
            "query_num": QUERIES,
            "slice_config": {"max_slice_nums": 4, "model_type": "minicpmv"},
            "slice_mode": True,
            "tie_word_embeddings": False,
            "use_image_id": True,
            "version": VERSIONS[text.model_type],
            "vision_batch_size": 16,
            "vision_config": tower | {"model_type": "siglip"},
        }
        if text.model_type == "qwen3":
            found["head_dim"] = text.head_dim
        rope = dict(text.rope_parameters)
        found["rope_theta"] = rope.pop("rope_theta")
        if rope.get("rope_type") == "longrope":
            found["rope_scaling"] = rope
        return found


def place(number: int, count: int, side: int) -> int:
    """The row of a table of `side` that a patch has: where its row's share of the picture lies. As
    the makers' code rounds, which has learned with that: in float32."""
    share = float(np.float32(number) * (np.float32(1) / np.float32(count)))
    ends = np.arange(1 / side, 1.0, 1 / side).astype(np.float32)
    return sum(bool(share >= end) for end in ends)


class Resampler(nn.Module):
    """Queries that see the patches of one slice."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(QUERIES, size))
        self.kv_proj = nn.Linear(inputs, size, bias=False)
        self.attn = nn.MultiheadAttention(size, size // HEAD)
        self.ln_q, self.ln_kv, self.ln_post = (nn.LayerNorm(size, eps=1e-6) for _ in range(3))
        self.proj = nn.Parameter(torch.zeros(size, size))
        for name, parameter in self.named_parameters():
            norm = name.startswith("ln_") and name.endswith("weight")
            wide = {"query": 1.0, "kv_proj.weight": 0.3, "attn.in_proj_weight": 0.2}
            nn.init.normal_(parameter, 1.0 if norm else 0.0, wide.get(name, 0.1))

    def forward(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        """[rows * columns, inputs] to [queries, size]."""
        shown = self.ln_kv(self.kv_proj(patches))
        size = shown.shape[1]
        places = [
            waves(column, size // 2) + waves(row, size // 2)
            for row in range(rows)
            for column in range(columns)
        ]
        keys = shown + torch.tensor(places)
        found, _ = self.attn(self.ln_q(self.query), keys, shown, need_weights=False)
        made: Tensor = self.ln_post(found) @ self.proj
        return made


def waves(at: int, size: int) -> list[float]:
    """Sines of a place, then cosines, of ever longer waves."""
    turns = [at / 10_000 ** (number / (size // 2)) for number in range(size // 2)]
    return [math.sin(each) for each in turns] + [math.cos(each) for each in turns]
