"""Llama 4's image processor as transformers has it, without torchvision: its module's own functions
say how large a picture becomes, Pillow resizes it, and torch computes its numbers."""

from __future__ import annotations

import ast
import json
import math
from collections import defaultdict
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.image_processing_utils import BatchFeature

NEEDED = (
    "get_factors",
    "find_supported_resolutions",
    "get_max_res_without_distortion",
    "get_best_fit",
)


def _functions() -> dict[str, Any]:
    """Functions of the module, which can't be imported: it asks for torchvision."""
    found = find_spec("transformers.models.llama4")
    assert found is not None
    assert found.submodule_search_locations
    path = Path(found.submodule_search_locations[0]) / "image_processing_llama4.py"
    tree = ast.parse(path.read_text())
    tree.body = [
        each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name in NEEDED
    ]
    names: dict[str, Any] = {
        "math": math,
        "torch": torch,
        "lru_cache": lru_cache,
        "defaultdict": defaultdict,
        "SizeDict": Any,
    }
    exec(compile(tree, str(path), "exec"), names)
    return names


class _Square(SimpleNamespace):
    """A size that may be hashed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash((self.height, self.width))


class Llama4Pictures:
    """tile: side, pixels. most: tiles of a canvas."""

    model_input_names = ("pixel_values",)

    def __init__(self, tile: int, most: int) -> None:
        self._tile, self._most = tile, most
        self._by_name = _functions()

    def __call__(self, images: Any, return_tensors: str = "np", **_: Any) -> BatchFeature:
        shown = images if isinstance(images, list) else [images]
        made = [self._prepared(image) for image in shown]
        values = {
            "pixel_values": np.concatenate([tiles for tiles, _ in made]),
            "aspect_ratios": [grid for _, grid in made],
        }
        return BatchFeature(values)

    @staticmethod
    def fetch_images(images: Any) -> Any:
        return images

    def save_pretrained(self, folder: Path) -> None:
        settings = {
            "image_processor_type": "Llama4ImageProcessorFast",
            "size": {"height": self._tile, "width": self._tile},
            "max_patches": self._most,
            "resize_to_max_canvas": False,
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))

    def _prepared(self, image: Image.Image) -> tuple[np.ndarray, tuple[int, int]]:
        size, tile = (image.height, image.width), self._tile
        square = _Square(height=tile, width=tile)
        canvases = torch.tensor(self._by_name["find_supported_resolutions"](self._most, square))
        canvas = self._by_name["get_best_fit"](size, canvases)
        bound = [min(max(has, tile), most) for has, most in zip(size, canvas, strict=True)]
        inner = self._by_name["get_max_res_without_distortion"](size, bound)
        high, wide = (max(int(side), 1) for side in inner)
        rows, columns = (int(side) // tile for side in canvas)
        shown = Image.new("RGB", (columns * tile, rows * tile))
        shown.paste(image.resize((wide, high), Image.Resampling.BILINEAR), (0, 0))
        corners = [(row * tile, column * tile) for row in range(rows) for column in range(columns)]
        tiles = [shown.crop((left, top, left + tile, top + tile)) for top, left in corners]
        if len(tiles) > 1:
            tiles.append(image.resize((tile, tile), Image.Resampling.BILINEAR))
        return np.stack([_numbers(each) for each in tiles]), (rows, columns)


def _numbers(tile: Image.Image) -> np.ndarray:
    """float32 [3, height, width] of what is bfloat16 there."""
    scaled = torch.from_numpy(np.array(tile)).to(torch.bfloat16) * (1 / 255)
    half = torch.tensor(0.5, dtype=torch.bfloat16)
    numbers: np.ndarray = ((scaled - half) / half).float().numpy().transpose(2, 0, 1)
    return numbers
