"""Step 3.7 as its makers' code computes it, of transformers' classes.

In transformers 5.17 the first half of a head's pairs turns by the row, and the second by the
column. In the makers' code, and in SGLang, vLLM and llama.cpp, it is the other way round, and files
are the same. This is put right here; all else is transformers'.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ColumnsFirst(torch.nn.Module):
    """Cosines and sines of each patch's angles, [patches, numbers of a head]."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.pairs = head_dim // 4
        self.theta = theta

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """position_ids: row and column of each patch."""
        angles = [
            [
                number * self.theta ** (-pair / self.pairs)
                for number in (column, row)
                for pair in range(self.pairs)
            ]
            for row, column in position_ids.tolist()
        ]
        halves = torch.tensor(angles, dtype=torch.float64).repeat(1, 2)
        return halves.cos().to(x.dtype), halves.sin().to(x.dtype)


def make_turned(config: Any) -> Any:
    """The model of a configuration, with random weights."""
    import transformers

    model: Any = transformers.Step3p7ForConditionalGeneration(config)
    sees = config.vision_config
    theta = sees.rope_parameters["rope_theta"]
    turned = ColumnsFirst(sees.hidden_size // sees.num_attention_heads, theta)
    model.model.vision_model.rotary_emb = turned
    with torch.no_grad():
        for layer in model.model.vision_model.layers:
            for scale in (layer.lambda_1, layer.lambda_2):
                scale.normal_(0.8, 0.3)
    return model
