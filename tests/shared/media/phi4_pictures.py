"""Phi-4-multimodal's image processor as transformers has it, without torchvision: the methods of
its class, which can't be imported, with Pillow for what resizes bytes and torch for the rest."""

from __future__ import annotations

import ast
import json
import math
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from transformers.image_processing_utils import BatchFeature

NEEDED = (
    "find_closest_aspect_ratio",
    "dynamic_preprocess",
    "pad_to_max_num_crops",
    "pad_mask_to_max_num_crops",
    "_preprocess",
)


def _methods() -> dict[str, Any]:
    found = find_spec("transformers.models.phi4_multimodal")
    assert found is not None
    assert found.submodule_search_locations
    path = Path(found.submodule_search_locations[0]) / "image_processing_phi4_multimodal.py"
    (made,) = (
        each
        for each in ast.parse(path.read_text()).body
        if isinstance(each, ast.ClassDef) and each.name == "Phi4MultimodalImageProcessor"
    )
    kept: list[ast.stmt] = [
        each for each in made.body if isinstance(each, ast.FunctionDef) and each.name in NEEDED
    ]
    names: dict[str, Any] = {
        "math": math,
        "torch": torch,
        "tvF": SimpleNamespace(resize=_resized, pad=_padded),
        "BatchFeature": BatchFeature,
        "SizeDict": Any,
        "TensorType": Any,
    }
    exec(compile(ast.Module(kept, []), str(path), "exec"), names)
    return {name: names[name] for name in NEEDED}


def _resized(image: torch.Tensor, size: list[int]) -> torch.Tensor:
    shown = Image.fromarray(image.permute(1, 2, 0).numpy())
    made = shown.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(made)).permute(2, 0, 1)


def _padded(image: torch.Tensor, widths: list[int], fill: list[int]) -> torch.Tensor:
    left, top, right, bottom = widths
    return functional.pad(image, (left, right, top, bottom), value=fill[0])


class _Base:
    """What the class has of transformers' base."""

    @staticmethod
    def rescale_and_normalize(image: torch.Tensor, *given: Any) -> torch.Tensor:
        _, factor, _, mean, std = given
        middle, width = (torch.tensor(each)[:, None, None] for each in (mean, std))
        found: torch.Tensor = (image.float() * factor - middle) / width
        return found

    @staticmethod
    def resize(image: torch.Tensor, size: Any, **_: Any) -> torch.Tensor:
        high_wide = [size.height, size.width]
        if list(image.shape[1:]) == high_wide:
            return image
        return functional.interpolate(image[None], size=high_wide, mode="bicubic")[0]


class Phi4Pictures:
    """tile: side, pixels. most: tiles of a sheet."""

    model_input_names = ("image_pixel_values",)

    def __init__(self, tile: int, patch: int, most: int) -> None:
        self._tile, self._patch, self._most = tile, patch, most
        self._made = type("Pictures", (_Base,), _methods())()

    def __call__(self, images: Any, return_tensors: str | None = None, **_: Any) -> BatchFeature:
        shown = images if isinstance(images, list) else [images]
        made: BatchFeature = self._made._preprocess(
            [torch.from_numpy(np.array(each)).permute(2, 0, 1) for each in shown],
            True,
            SimpleNamespace(height=self._tile, width=self._tile),
            3,
            True,
            1 / 255,
            True,
            [0.5] * 3,
            [0.5] * 3,
            self._patch,
            self._most,
            return_tensors,
        )
        return made

    @staticmethod
    def fetch_images(images: Any) -> Any:
        return images

    def save_pretrained(self, folder: Path) -> None:
        settings = {
            "image_processor_type": "Phi4MultimodalImageProcessor",
            "size": {"height": self._tile, "width": self._tile},
            "patch_size": self._patch,
            "dynamic_hd": self._most,
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
