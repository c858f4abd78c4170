"""Command A Vision's and Aya Vision's processors as transformers has them, the first one's pictures
without torchvision."""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast
from transformers.image_processing_utils import BatchFeature
from transformers.models.aya_vision.processing_aya_vision import AyaVisionProcessor
from transformers.models.cohere2_vision.processing_cohere2_vision import Cohere2VisionProcessor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from tests.shared.media.picture_family import Family
from tests.shared.media.processors import unchecked
from tests.shared.media.without_torchvision import SCALING, Pictures

AROUND = ("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>")
TILE = {"height": 24, "width": 24}


class CommandPictures(Pictures):
    model = "cohere2_vision"
    name = "Cohere2VisionImageProcessor"
    model_input_names = ("pixel_values", "num_patches")
    of_a_call = (
        "do_resize",
        "size",
        "resample",
        *SCALING,
        "crop_to_patches",
        "min_patches",
        "max_patches",
    )

    def __call__(self, images: Any, return_tensors: str = "np", **more: Any) -> BatchFeature:
        found = super().__call__(images, **more)
        tiles = np.stack([np.asarray(each) for each in found["pixel_values"]])
        return BatchFeature({"pixel_values": tiles, "num_patches": list(found["num_patches"])})


def _command(fast: PreTrainedTokenizerFast) -> Any:
    names = ("boi_token", "eoi_token", "image_token", "img_line_break_token")
    for name, text in zip(names, AROUND, strict=True):
        setattr(fast, name, text)
    fast.image_token_id = fast.convert_tokens_to_ids(AROUND[2])
    return unchecked(Cohere2VisionProcessor)(CommandPictures(size=TILE, patch_size=3), fast)


def _aya(fast: PreTrainedTokenizerFast) -> Any:
    pictures = GotOcr2ImageProcessorPil(size=TILE, max_patches=6)
    return AyaVisionProcessor(pictures, fast, patch_size=4, img_size=24, downsample_factor=2)


COHERE_FAMILIES = {
    "cohere2_vision": Family(
        "Cohere2VisionForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids[AROUND[2]],
            "vision_config": {"image_size": 24, "patch_size": 4},
        },
        _command,
        AROUND[2],
        AROUND,
    ),
    "aya_vision": Family(
        "AyaVisionForConditionalGeneration",
        lambda ids: {
            "image_token_index": ids[AROUND[2]],
            "vision_config": {"image_size": 24, "patch_size": 4},
        },
        _aya,
        "<image>",
        AROUND,
    ),
}
"""What FAMILIES has of them."""
