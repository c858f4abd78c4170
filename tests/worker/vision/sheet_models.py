"""A tiny Phi-4-multimodal: transformers' model with random weights, and its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from penstock.forms.sheets import shown

HEARS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_blocks": 1,
    "num_attention_heads": 4,
    "ext_pw_out_channel": 32,
    "depthwise_separable_out_channel": 32,
    "nemo_conv_channels": 8,
    "input_size": 12,
    "bias_max_distance": 7,
    "audio_token_id": 999,
}
"""A tower for sounds, which the class has in any case."""


def make_sheets(config: Any) -> Any:
    """Makes the model, with learned vectors that aren't zeros."""
    from transformers import Phi4MultimodalForCausalLM

    model = Phi4MultimodalForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "extensor" in name or name.endswith((".b1", ".b2")):
                parameter.normal_(0, 0.5)
    return model


def of_sheets(model: Any, inputs: Sequence[Mapping[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """Pictures as transformers' processor gives them: filled up to as many tiles, whose masks say
    which patches aren't white."""
    vision = model.config.vision_config
    tile, patch = vision.image_size, vision.patch_size
    most = max(len(each["pixel_values"]) for each in inputs)
    pixels, sizes, masks = [], [], []
    for each in inputs:
        own = torch.from_numpy(each["pixel_values"])
        rows, columns = each["tile_grid"].tolist()
        high, wide = shown(each["image_size"].tolist(), (rows, columns), tile, patch)
        side = tile // patch
        mask = torch.zeros(rows * side, columns * side)
        mask[:high, :wide] = 1
        tiles = mask.unflatten(0, (rows, side)).unflatten(2, (columns, side))
        tiles = torch.cat((torch.ones(1, side, side), tiles.transpose(1, 2).flatten(0, 1)))
        missing = (0, 0, 0, 0, 0, most - len(own))
        pixels.append(functional.pad(own, (0, 0, *missing)))
        masks.append(functional.pad(tiles, missing, value=1))
        sizes.append([rows * tile, columns * tile])
    return {
        "image_pixel_values": torch.stack(pixels),
        "image_sizes": torch.tensor(sizes),
        "image_attention_mask": torch.stack(masks),
    }


def rows_of_sheets(model: Any, rows: int, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The rows of a picture, [rows, hidden], of transformers' model, or of the slow one of
    Phi-3-vision."""
    if "forms" in given:
        ((pixels, form),) = zip(given["pixel_values"], given["forms"], strict=True)
        found: torch.Tensor = model.rows(pixels, form)
        return found
    tokens = torch.full((1, rows), model.config.vision_config.image_token_id)
    extended = model.model.embed_tokens_extend.image_embed
    found = extended(tokens, model.model.embed_tokens(tokens), **given)[0]
    return found
