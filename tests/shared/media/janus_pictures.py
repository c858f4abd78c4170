"""How the makers of Janus and DeepSeek-VL prepare pictures and prompts, slowly: transformers' own
class rounds otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers.image_processing_utils import BatchFeature
from transformers.image_transforms import normalize, rescale

from tests.shared.media.media_tokenizer import JANUS
from tests.shared.media.picture_family import Family

MARK = "<image_placeholder>"
HALF = [0.5, 0.5, 0.5]


class MakersPictures:
    """side: of the square, pixels.  least: pixels of a picture's shorter side in it."""

    model_input_names = ("pixel_values",)

    def __init__(self, side: int, patch: int, least: int = 6) -> None:
        self.side, self.patch, self.least = side, patch, least

    def __call__(self, images: Any, return_tensors: str = "np", **_: Any) -> BatchFeature:
        shown = images if isinstance(images, list) else [images]
        return BatchFeature({"pixel_values": np.stack([self.picture(each) for each in shown])})

    def picture(self, image: Image.Image) -> np.ndarray:
        """[3, side, side]"""
        longest = max(image.size)
        sides = [max(int(each / longest * self.side), self.least) for each in image.size]
        inner = image.resize((sides[0], sides[1]), Image.Resampling.BICUBIC)
        square = Image.new("RGB", (self.side, self.side), tuple(int(255 * each) for each in HALF))
        square.paste(inner, ((self.side - sides[0]) // 2, (self.side - sides[1]) // 2))
        planes = np.array(square).transpose(2, 0, 1)
        scaled = rescale(planes, 1 / 255, input_data_format="channels_first")
        return normalize(scaled, HALF, HALF, input_data_format="channels_first")

    @staticmethod
    def fetch_images(images: Any) -> Any:
        return images

    def save_pretrained(self, folder: Path) -> None:
        """The makers' files."""
        settings = {
            "background_color": [127, 127, 127],
            "do_normalize": True,
            "image_mean": HALF,
            "image_processor_type": "VLMImageProcessor",
            "image_size": self.side,
            "image_std": HALF,
            "min_size": self.least,
            "processor_class": "VLChatProcessor",
            "rescale_factor": 1 / 255,
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
        around = {
            "add_special_token": False,
            "ignore_id": -100,
            "image_tag": MARK,
            "mask_prompt": True,
            "num_image_tokens": (self.side // self.patch) ** 2,
            "processor_class": "VLChatProcessor",
            "sft_format": "deepseek",
        }
        (folder / "processor_config.json").write_text(json.dumps(around))


class MakersProcessor:
    """Repeats the token of each picture, between two others where there are such."""

    def __init__(self, pictures: MakersPictures, tokenizer: Any, around: tuple[str, ...]) -> None:
        self.image_processor, self.tokenizer, self.around = pictures, tokenizer, around

    def __call__(self, text: list[str], images: Any, return_tensors: str = "np") -> BatchFeature:
        pictures = self.image_processor(images)
        mark, *around = self.tokenizer.convert_tokens_to_ids([MARK, *self.around])
        count = (self.image_processor.side // self.image_processor.patch) ** 2
        ids: list[int] = []
        for token in self.tokenizer(text[0])["input_ids"]:
            ids += [*around[:1], *[mark] * count, *around[1:]] if token == mark else [token]
        return BatchFeature({"input_ids": np.array([ids]), **pictures})


def makers_config() -> dict[str, Any]:
    """What config.json says of a tower of 16 patches."""
    params = {
        "image_size": 24,
        "model_name": "siglip_large_patch16_384",
        "select_layer": -1,
        "patch_size": 6,
    }
    return {"vision_config": {"cls": "CLIPVisionTower", "params": params}}


MAKERS_FAMILIES = {
    "janus_of_makers": Family(
        "MultiModalityCausalLM",
        lambda ids: makers_config() | {"gen_vision_config": {"cls": "VQ-16"}},
        lambda fast: MakersProcessor(MakersPictures(24, 6), fast, JANUS),
        MARK,
        (*JANUS, MARK),
    ),
    "deepseek_vl_of_makers": Family(
        "MultiModalityCausalLM",
        lambda ids: makers_config(),
        lambda fast: MakersProcessor(MakersPictures(24, 6), fast, ()),
        MARK,
        (MARK,),
    ),
}
"""What FAMILIES has of them."""
