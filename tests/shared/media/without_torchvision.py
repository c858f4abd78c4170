"""Image processors of transformers that ask for torchvision, without it: their modules' own code,
but that Pillow resizes and numpy computes numbers."""

from __future__ import annotations

import ast
import json
import logging
import math
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from transformers.image_processing_utils import BatchFeature
from transformers.image_transforms import (
    divide_to_patches,
    group_images_by_shape,
    reorder_images,
    split_to_tiles,
)
from transformers.image_utils import (
    IMAGENET_STANDARD_MEAN,
    IMAGENET_STANDARD_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
    PILImageResampling,
    SizeDict,
)
from transformers.processing_utils import ImagesKwargs

from penstock.forms.pooled import SOFT_TOKENS


class Backend:
    """What a module's class inherits."""

    rescale_factor = 1 / 255

    def __init__(self, **settings: Any) -> None:
        for name, value in settings.items():
            setattr(self, name, SizeDict(**value) if isinstance(value, dict) else value)

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

    def pad(self, image: Any, pad_size: SizeDict) -> Any:
        """Fills up one picture, or several, with zeros at the right and below."""
        if isinstance(image, list):
            return [self.pad(each, pad_size) for each in image]
        below, right = pad_size.height - image.shape[-2], pad_size.width - image.shape[-1]
        return functional.pad(image, (0, right, 0, below))


def _resized(
    image: torch.Tensor, size: list[int], interpolation: Any, antialias: bool
) -> torch.Tensor:
    """Resizes [3, height, width] uint8."""
    height, width = size
    return Backend().resize(image[None], SizeDict(height=height, width=width), interpolation)[0]


def class_of(model: str, name: str) -> Any:
    """The class `name` of a model's module over `Backend`."""
    found = find_spec(f"transformers.models.{model}")
    assert found is not None
    assert found.submodule_search_locations
    path = Path(found.submodule_search_locations[0]) / f"image_processing_{model}.py"
    tree = ast.parse(path.read_text())
    tree.body = [each for each in tree.body if isinstance(each, (ast.FunctionDef, ast.ClassDef))]
    names: dict[str, Any] = {
        "logger": logging.getLogger(__name__),
        "math": math,
        "np": np,
        "torch": torch,
        "lru_cache": lru_cache,
        "TorchvisionBackend": Backend,
        "auto_docstring": lambda each=None, **_: each or (lambda one: one),
        "Unpack": list,
        "ImagesKwargs": ImagesKwargs,
        "__name__": __name__,
        "SizeDict": SizeDict,
        "PILImageResampling": PILImageResampling,
        "IMAGENET_STANDARD_MEAN": IMAGENET_STANDARD_MEAN,
        "IMAGENET_STANDARD_STD": IMAGENET_STANDARD_STD,
        "OPENAI_CLIP_MEAN": OPENAI_CLIP_MEAN,
        "OPENAI_CLIP_STD": OPENAI_CLIP_STD,
        "Iterable": Iterable,
        "tvF": SimpleNamespace(InterpolationMode=int, resize=_resized),
        "_SUPPORTED_SOFT_TOKENS": SOFT_TOKENS,
        "BatchFeature": BatchFeature,
        "ImageInput": object,
        "TensorType": str,
        "group_images_by_shape": group_images_by_shape,
        "reorder_images": reorder_images,
        "split_to_tiles": split_to_tiles,
        "divide_to_patches": divide_to_patches,
    }
    exec(compile(tree, str(path), "exec"), names)
    return names[name]


SCALING = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
"""Settings of all these processors: how pixels become numbers."""


class Pictures:
    """A processor of pictures. settings: where they differ from its class's."""

    model: str
    name: str
    """Its class."""
    of_a_call: tuple[str, ...]
    """Settings that each call is given."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._inner = class_of(self.model, self.name)(**settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, images: Any, return_tensors: str = "np", **more: Any) -> Any:
        shown = images if isinstance(images, list) else [images]
        flat = [one for each in shown for one in (each if isinstance(each, list) else [each])]
        tensors = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in flat]
        settings = {name: getattr(self._inner, name) for name in self.of_a_call}
        return self._inner._preprocess(
            tensors, **settings, return_tensors=None, disable_grouping=None, **self.also(more)
        )

    def also(self, more: dict[str, Any]) -> dict[str, Any]:
        """What a call is given of `more`, the processor of prompts'."""
        return {}

    @staticmethod
    def fetch_images(images: Any) -> Any:
        return images

    def save_pretrained(self, folder: Path) -> None:
        settings = {"image_processor_type": f"{self.name}Fast", **self._settings}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))


class ArrayPictures(Pictures):
    """A processor whose results are arrays."""

    def __call__(self, images: Any, return_tensors: str = "np", **more: Any) -> Any:
        found = super().__call__(images, **more)
        return BatchFeature({name: np.asarray(value) for name, value in found.items()})


class KimiPictures(ArrayPictures):
    model = "kimi_k25"
    name = "Kimi_K25ImageProcessor"
    model_input_names = ("pixel_values", "image_grid_thw")
    of_a_call = (
        "do_resize",
        "size",
        "resample",
        *SCALING,
        "patch_size",
        "merge_size",
        "max_patches",
    )


class MiniMaxPictures(ArrayPictures):
    model = "minimax_m3_vl"
    name = "MiniMaxM3VLImageProcessor"
    model_input_names = ("pixel_values", "image_grid_thw")
    of_a_call = (
        "do_resize",
        "size",
        "resample",
        *SCALING,
        "patch_size",
        "temporal_patch_size",
        "merge_size",
    )


class UnifiedPictures(ArrayPictures):
    model = "gemma4_unified"
    name = "Gemma4UnifiedImageProcessor"
    model_input_names = ("pixel_values", "image_position_ids", "num_soft_tokens_per_image")
    of_a_call = (
        "do_resize",
        "resample",
        *SCALING,
        "patch_size",
        "max_soft_tokens",
        "pooling_kernel_size",
    )


class StepPictures(Pictures):
    model = "step3p7"
    name = "Step3p7ImageProcessor"
    model_input_names = ("pixel_values", "pixel_values_local", "num_local_patches")
    of_a_call = (
        "size",
        "resample",
        *SCALING,
        "patch_size",
    )
