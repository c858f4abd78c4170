"""MiniMax M3 as its makers' code computes it, of transformers' classes.

transformers 5.17 has another rotation than the makers' own code (in SGLang), vLLM, llama.cpp and
transformers before August 2026: where these turn a third of a head's pairs by frame, a third by row
and a third by column, and leave what is left over, it turns one half of a whole head by the frame's
number and the other by the row's, and the column means nothing. It also lets all frames of a video,
and all pictures of a call, see one another, whatever `vision_segment_max_frames` says. Both are put
right here; all else is transformers'.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class ThreeAxes(torch.nn.Module):
    """Cosines and sines of each patch's angles, [patches, what turns of a head]."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.pairs = head_dim // 2 // 3
        self.theta = theta

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """position_ids: frame, row and column of each patch."""
        angles = [
            [
                number * self.theta ** (-pair / self.pairs)
                for number in place
                for pair in range(self.pairs)
            ]
            for place in position_ids.tolist()
        ]
        halves = torch.tensor(angles, dtype=torch.float64).repeat(1, 2)
        return halves.cos().to(x.dtype), halves.sin().to(x.dtype)


def make_timed(config: Any) -> Any:
    """The model of a configuration, with random weights."""
    import transformers

    model: Any = transformers.MiniMaxM3SparseForConditionalGeneration(config)
    tower, sees = model.model.vision_tower, config.vision_config
    theta = sees.rope_parameters["rope_theta"]
    tower.rotary_emb = ThreeAxes(sees.hidden_size // sees.num_attention_heads, theta)
    model.model.get_image_features = partial(_features, model.model)
    model.model.get_video_features = partial(_features, model.model)
    return model


def _features(
    model: Any,
    pixel_values: Tensor | None = None,
    image_grid_thw: Tensor | None = None,
    *,
    pixel_values_videos: Tensor | None = None,
    video_grid_thw: Tensor | None = None,
) -> SimpleNamespace:
    """Rows of pictures or of videos, each part that sees itself after the other."""
    patches = pixel_values if pixel_values_videos is None else pixel_values_videos
    grids = image_grid_thw if video_grid_thw is None else video_grid_thw
    assert patches is not None
    assert grids is not None
    together, start, found = model.config.vision_config.vision_segment_max_frames, 0, []
    for frames, rows, columns in grids.tolist():
        for first in range(0, frames, together):
            grid = torch.tensor([[min(together, frames - first), rows, columns]])
            count = int(grid.prod())
            own = patches[start : start + count]
            seen = model.vision_tower(pixel_values=own, grid_thw=grid).last_hidden_state[0]
            found.append(model.multi_modal_projector(seen))
            start += count
    return SimpleNamespace(pooler_output=torch.cat(found))
