"""LFM2-VL's image processor as transformers has it, without torchvision; and what it and
MiniCPM-V's give, as patches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.shared.media.without_torchvision import SCALING, Pictures


class Lfm2Pictures(Pictures):
    model = "lfm2_vl"
    name = "Lfm2VlImageProcessor"
    model_input_names = ("pixel_values", "pixel_attention_mask", "spatial_shapes")
    of_a_call = (
        "do_resize",
        "resample",
        *SCALING,
        "downsample_factor",
        "do_image_splitting",
        "min_tiles",
        "max_tiles",
        "use_thumbnail",
        "min_image_tokens",
        "max_image_tokens",
        "encoder_patch_size",
        "tile_size",
        "max_pixels_tolerance",
        "do_pad",
    )

    def also(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"return_row_col_info": more.get("return_row_col_info", False)}


def parts_of(theirs: Any, patch: int) -> tuple[np.ndarray, np.ndarray]:
    """Patches, [patches, 3 * patch * patch], in whose numbers colours come first, and how many rows
    and columns of them each part has, of what the processor gives."""
    shapes = np.array(theirs["spatial_shapes"].tolist())
    filled = torch.as_tensor(theirs["pixel_values"])
    rows = [part.numpy()[: shape.prod()] for part, shape in zip(filled, shapes, strict=True)]
    flat = np.concatenate(rows).reshape(-1, patch, patch, 3)
    return flat.transpose(0, 3, 1, 2).reshape(len(flat), -1), shapes


def pages_of(theirs: Any, patch: int) -> tuple[np.ndarray, list[list[int]]]:
    """Patches, [patches, 3 * patch * patch], and rows and columns of each part, of what
    DeepSeek-OCR 2's processor gives: the tiles of each picture, then its page."""
    tiles = iter(theirs.get("pixel_values_local", ()))
    parts: list[np.ndarray] = []
    for page, count in zip(theirs["pixel_values"], theirs["num_local_patches"], strict=True):
        parts += [*(next(tiles) for _ in range(count)), page]
    found, shapes = [], []
    for part in parts:
        rows, columns = (side // patch for side in part.shape[1:])
        apart = np.asarray(part).reshape(3, rows, patch, columns, patch)
        found.append(apart.transpose(1, 3, 0, 2, 4).reshape(rows * columns, -1))
        shapes.append([rows, columns])
    return np.concatenate(found), shapes


def strip_of(theirs: Any, patch: int) -> np.ndarray:
    """Patches, [patches, 3 * patch * patch], of what MiniCPM-V's processor gives, where they stand
    side by side."""
    strip = np.asarray(theirs["pixel_values"])[0].reshape(3, patch, -1, patch)
    return strip.transpose(2, 0, 1, 3).reshape(-1, 3 * patch * patch)
