"""How Phi-3-vision's makers prepare pictures and prompts, slowly: transformers has no class of
it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from transformers.image_processing_utils import BatchFeature

from tests.shared.media.picture_family import Family

MARK = "<|image|>"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class Phi3Pictures:
    """tile: side, pixels.  most: tiles of a sheet."""

    model_input_names = ("pixel_values", "image_sizes")

    def __init__(self, tile: int, patch: int, most: int) -> None:
        self.tile, self.patch, self.most = tile, patch, most

    def __call__(self, images: Any, return_tensors: str = "np", **_: Any) -> BatchFeature:
        shown = [self.picture(each) for each in (images if isinstance(images, list) else [images])]
        return BatchFeature(
            {
                "pixel_values": [pixels for pixels, _ in shown],
                "image_sizes": [size for _, size in shown],
                "num_img_tokens": [self.count(*size) for _, size in shown],
            }
        )

    def picture(self, image: Image.Image) -> tuple[np.ndarray, tuple[int, int]]:
        """[the whole and the tiles, 3, tile, tile], and the sheet's height and width."""
        high = image.height > image.width
        if high:
            image = image.transpose(Image.Transpose.TRANSPOSE)
        proportion = image.width / image.height
        fitting = [
            count
            for count in range(1, self.most + 1)
            if all(each * math.ceil(each / proportion) <= self.most for each in range(1, count + 1))
        ]
        width = fitting[-1] * self.tile
        image = image.resize((width, int(width / proportion)), Image.Resampling.BILINEAR)
        sheet = Image.new("RGB", (width, -(-image.height // self.tile) * self.tile), (255,) * 3)
        sheet.paste(image, (0, (sheet.height - image.height) // 2))
        if high:
            sheet = sheet.transpose(Image.Transpose.TRANSPOSE)
        numbers = torch.from_numpy(np.array(sheet)).permute(2, 0, 1) / 255
        numbers = (numbers - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        side = self.tile
        whole = functional.interpolate(numbers[None], size=(side, side), mode="bicubic")[0]
        tiles = [
            numbers[:, top : top + side, left : left + side]
            for top in range(0, sheet.height, side)
            for left in range(0, sheet.width, side)
        ]
        return torch.stack([whole, *tiles]).numpy(), (sheet.height, sheet.width)

    def count(self, height: int, width: int) -> int:
        """Embeddings of a sheet: of the tiles as lines of squares, each with an end; one; and of
        the whole as lines."""
        lines, columns = (length // self.patch // 2 for length in (height, width))
        side = self.tile // self.patch // 2
        return lines * (columns + 1) + 1 + side * (side + 1)

    @staticmethod
    def fetch_images(images: Any) -> Any:
        return images

    def save_pretrained(self, folder: Path) -> None:
        """The makers' file."""
        settings = {
            "auto_map": {
                "AutoImageProcessor": "processing_phi3_v.Phi3VImageProcessor",
                "AutoProcessor": "processing_phi3_v.Phi3VProcessor",
            },
            "image_mean": list(MEAN),
            "image_processor_type": "Phi3VImageProcessor",
            "image_std": list(STD),
            "num_crops": self.most,
            "num_img_tokens": (self.tile // self.patch // 2) ** 2,
            "processor_class": "Phi3VProcessor",
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))


class Phi3Processor:
    """Tokenises what stands between pictures by itself, each part with BOS in front. begins:
    whether the first part has it, too."""

    def __init__(self, pictures: Phi3Pictures, tokenizer: Any, *, begins: bool = False) -> None:
        self.image_processor, self.tokenizer, self.begins = pictures, tokenizer, begins

    def __call__(self, text: list[str], images: Any, return_tensors: str = "np") -> BatchFeature:
        pictures = self.image_processor(images)
        counts = iter(pictures["num_img_tokens"])
        bos, mark = self.tokenizer.convert_tokens_to_ids(["<s>", MARK])
        ids: list[int] = []
        for number, part in enumerate(re.split(re.escape(MARK), text[0])):
            if number:
                ids += [mark] * next(counts)
            if number or self.begins:
                ids.append(bos)
            ids += self.tokenizer(part, add_special_tokens=False)["input_ids"]
        return BatchFeature({"input_ids": np.array([ids]), **pictures})


PHI3_V = Family(
    "Phi3VForCausalLM",
    lambda ids: {
        "bos_token_id": ids["<s>"],
        "vision_config": {"image_size": 24, "patch_size": 4},
    },
    lambda fast: Phi3Processor(Phi3Pictures(24, 4, 6), fast),
    MARK,
)
"""What FAMILIES has of it."""
