"""How Kimi-VL's makers prepare pictures, plainly: transformers has no class of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers.image_processing_utils import BatchFeature

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)


class KimiVLPictures:
    """most: patches that a picture has at most, before it is filled up."""

    model_input_names = ("pixel_values", "image_grid_thw")

    def __init__(self, patch: int, most: int) -> None:
        self.patch, self.most, self.merge_size = patch, most, 2

    def __call__(self, images: Any, return_tensors: str = "np", **_: Any) -> BatchFeature:
        shown = images if isinstance(images, list) else [images]
        flat = [one for each in shown for one in (each if isinstance(each, list) else [each])]
        found = [self.patches(image) for image in flat]
        return BatchFeature(
            {
                "pixel_values": np.concatenate([patches for patches, _ in found]),
                "image_grid_thw": np.array([grid for _, grid in found]),
            }
        )

    def patches(self, image: Image.Image) -> tuple[np.ndarray, tuple[int, int, int]]:
        """Row by row, [patches, 3, patch, patch]; and frames, rows and columns of them."""
        whole = (image.width // self.patch) * (image.height // self.patch)
        if whole > self.most:
            scale = math.sqrt(self.most / whole)
            size = int(image.width * scale), int(image.height * scale)
            image = image.resize(size, Image.Resampling.BICUBIC)
        square = self.patch * self.merge_size
        high, wide = (math.ceil(side / square) * square for side in (image.height, image.width))
        filled = Image.new("RGB", (wide, high))
        filled.paste(image, (0, 0))
        pixels = np.asarray(filled, np.float32) / np.float32(255)
        numbers = (pixels - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
        rows, columns = high // self.patch, wide // self.patch
        cut = numbers.reshape(rows, self.patch, columns, self.patch, 3).transpose(0, 2, 4, 1, 3)
        return cut.reshape(-1, 3, self.patch, self.patch), (1, rows, columns)

    @staticmethod
    def fetch_images(images: Any) -> Any:
        return images

    def save_pretrained(self, folder: Path) -> None:
        """The makers' file, which names no class of transformers."""
        settings = {
            "auto_map": {"AutoImageProcessor": "image_processing_kimi_vl.KimiVLImageProcessor"},
            "image_mean": MEAN,
            "image_std": STD,
            "in_token_limit": self.most,
            "merge_kernel_size": [self.merge_size, self.merge_size],
            "num_pooled_tokens": 1024,
            "pad_input": True,
            "patch_size": self.patch,
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
