"""LFM2-VL's image processor as transformers has it, without torchvision: its module's own code, but
that Pillow resizes and numpy computes numbers."""

from __future__ import annotations

import ast
import json
import logging
import math
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.image_processing_utils import BatchFeature
from transformers.image_transforms import group_images_by_shape, reorder_images, split_to_tiles
from transformers.image_utils import (
    IMAGENET_STANDARD_MEAN,
    IMAGENET_STANDARD_STD,
    PILImageResampling,
    SizeDict,
)
from transformers.processing_utils import ImagesKwargs


class _Backend:
    """What the module's class inherits."""

    def __init__(self, **settings: Any) -> None:
        for name, value in settings.items():
            setattr(self, name, value)

    def resize(
        self, image: torch.Tensor, size: SizeDict, resample: Any = None, antialias: bool = True
    ) -> torch.Tensor:
        """Resizes [pictures, 3, height, width] uint8."""
        made = []
        for one in image:
            shown = Image.fromarray(one.permute(1, 2, 0).numpy())
            shown = shown.resize((size.width, size.height), Image.Resampling(int(resample)))
            made.append(torch.from_numpy(np.array(shown)).permute(2, 0, 1))
        return torch.stack(made)

    def rescale_and_normalize(self, images: torch.Tensor, *settings: Any, **_: Any) -> torch.Tensor:
        _, factor, _, mean, std = settings
        scaled = (images.numpy().astype(np.float64) * factor).astype(np.float32)
        middle, spread = (np.array(each, np.float32)[:, None, None] for each in (mean, std))
        return torch.from_numpy((scaled - middle) / spread)


def _class() -> Any:
    """The module's class over `_Backend`."""
    found = find_spec("transformers.models.lfm2_vl")
    assert found is not None
    assert found.submodule_search_locations
    path = Path(found.submodule_search_locations[0]) / "image_processing_lfm2_vl.py"
    tree = ast.parse(path.read_text())
    tree.body = [each for each in tree.body if isinstance(each, (ast.FunctionDef, ast.ClassDef))]
    names: dict[str, Any] = {
        "logger": logging.getLogger(__name__),
        "math": math,
        "torch": torch,
        "lru_cache": lru_cache,
        "TorchvisionBackend": _Backend,
        "auto_docstring": lambda each: each,
        "Unpack": list,
        "ImagesKwargs": ImagesKwargs,
        "__name__": __name__,
        "SizeDict": SizeDict,
        "PILImageResampling": PILImageResampling,
        "IMAGENET_STANDARD_MEAN": IMAGENET_STANDARD_MEAN,
        "IMAGENET_STANDARD_STD": IMAGENET_STANDARD_STD,
        "BatchFeature": BatchFeature,
        "TensorType": str,
        "group_images_by_shape": group_images_by_shape,
        "reorder_images": reorder_images,
        "split_to_tiles": split_to_tiles,
    }
    exec(compile(tree, str(path), "exec"), names)
    return names["Lfm2VlImageProcessor"]


OF_A_CALL = (
    "do_resize",
    "resample",
    "do_rescale",
    "rescale_factor",
    "do_normalize",
    "image_mean",
    "image_std",
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


class Lfm2Pictures:
    """settings: of the processor, where they differ from its class's."""

    model_input_names = ("pixel_values", "pixel_attention_mask", "spatial_shapes")

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._inner = _class()(**settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, images: Any, return_tensors: str = "np", **more: Any) -> Any:
        shown = images if isinstance(images, list) else [images]
        flat = [one for each in shown for one in (each if isinstance(each, list) else [each])]
        tensors = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in flat]
        settings = {name: getattr(self._inner, name) for name in OF_A_CALL}
        return self._inner._preprocess(
            tensors,
            **settings,
            return_row_col_info=more.get("return_row_col_info", False),
            return_tensors=None,
            disable_grouping=None,
        )

    @staticmethod
    def fetch_images(images: Any) -> Any:
        return images

    def save_pretrained(self, folder: Path) -> None:
        settings = {"image_processor_type": "Lfm2VlImageProcessorFast", **self._settings}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def parts_of(theirs: Any, patch: int) -> tuple[np.ndarray, np.ndarray]:
    """Patches, [patches, 3 * patch * patch], in whose numbers colours come first, and how many rows
    and columns of them each part has, of what the processor gives."""
    shapes = np.array(theirs["spatial_shapes"].tolist())
    filled = torch.as_tensor(theirs["pixel_values"])
    rows = [part.numpy()[: shape.prod()] for part, shape in zip(filled, shapes, strict=True)]
    flat = np.concatenate(rows).reshape(-1, patch, patch, 3)
    return flat.transpose(0, 3, 1, 2).reshape(len(flat), -1), shapes
