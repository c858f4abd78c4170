"""How MiniCPM-V's makers prepare pictures and prompts up to 4.5, slowly: transformers has no class
of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers.image_processing_utils import BatchFeature

from tests.shared.media.picture_family import Family

MARK = "(<image>./</image>)"
HALF = [0.5, 0.5, 0.5]


class MiniCPMPictures:
    """scale: side of the square that has about as many pixels as a slice.  most: slices.  queries:
    embeddings of each."""

    model_input_names = ("pixel_values", "target_sizes")

    def __init__(self, patch: int, scale: int, queries: int, most: int = 9) -> None:
        self.patch, self.scale, self.queries, self.most = patch, scale, queries, most

    def __call__(self, images: Any, return_tensors: str = "np", **_: Any) -> BatchFeature:
        """Patches of all parts side by side; rows and columns of those of each."""
        shown = images if isinstance(images, list) else [images]
        parts = [part for each in shown for part in self.parts(each)]
        strips = [self.strip(part) for part in parts]
        sizes = [(part.height // self.patch, part.width // self.patch) for part in parts]
        return BatchFeature(
            {"pixel_values": np.concatenate(strips, 2)[None], "target_sizes": np.array(sizes)}
        )

    def parts(self, image: Image.Image) -> list[Image.Image]:
        """The whole, then its slices, row by row."""
        columns, rows = self.form(image)
        size = self.near(image.width, image.height, enlarged=columns * rows == 1)
        found = [image.resize(size, Image.Resampling.BICUBIC)]
        if columns * rows == 1:
            return found
        across, down = self.divided(image.width, columns), self.divided(image.height, rows)
        wide, high = self.near(across / columns, down / rows, enlarged=True)
        large = image.resize((wide * columns, high * rows), Image.Resampling.BICUBIC)
        for top in range(0, large.height, high):
            for left in range(0, large.width, wide):
                found.append(large.crop((left, top, left + wide, top + high)))
        return found

    def form(self, image: Image.Image) -> tuple[int, int]:
        """Columns and rows of slices; (1, 1): there are none."""
        whole = math.ceil(image.width * image.height / self.scale**2)
        count = min(whole, self.most)
        if count <= 1:
            return 1, 1
        counts = [n for n in (count - 1, count, count + 1) if n != 1 and n <= self.most]
        forms = [(m, n // m) for n in counts for m in range(1, n + 1) if n % m == 0]
        wanted = math.log(image.width / image.height)
        return min(
            forms, key=lambda form: abs(wanted - math.log(form[0] / form[1])), default=(1, 1)
        )

    def near(self, width: float, height: float, *, enlarged: bool) -> tuple[int, int]:
        """Width and height in whole patches, about as many pixels as the square."""
        if enlarged or width * height > self.scale**2:
            ratio = width / height
            height = int(self.scale / math.sqrt(ratio))
            width = int(height * ratio)
        return self.divided(width, self.patch), self.divided(height, self.patch)

    @staticmethod
    def divided(length: float, part: int) -> int:
        return max(round(length / part) * part, part)

    def strip(self, part: Image.Image) -> np.ndarray:
        """[3, patch, patches * patch]: patches row by row, side by side."""
        numbers = np.asarray(part).astype(np.float32) / 255
        numbers = (numbers - np.float32(0.5)) / np.float32(0.5)
        side, patches = self.patch, []
        for top in range(0, part.height, side):
            for left in range(0, part.width, side):
                patches.append(numbers[top : top + side, left : left + side].transpose(2, 0, 1))
        return np.concatenate(patches, 2)

    def text(self, image: Image.Image, number: int) -> str:
        """What stands for a picture in a prompt."""
        unknown, (columns, rows) = "<unk>" * self.queries, self.form(image)
        whole = f"<image_id>{number}</image_id><image>{unknown}</image>"
        if columns * rows == 1:
            return whole
        line = f"<slice>{unknown}</slice>" * columns
        return whole + "\n".join([line] * rows)

    @staticmethod
    def fetch_images(images: Any) -> Any:
        return images

    def save_pretrained(self, folder: Path) -> None:
        """The makers' file."""
        settings = {
            "auto_map": {
                "AutoImageProcessor": "image_processing_minicpmv.MiniCPMVImageProcessor",
                "AutoProcessor": "processing_minicpmv.MiniCPMVProcessor",
            },
            "im_end": "</image>",
            "im_id_end": "</image_id>",
            "im_id_start": "<image_id>",
            "im_start": "<image>",
            "image_feature_size": self.queries,
            "image_processor_type": "MiniCPMVImageProcessor",
            "max_slice_nums": self.most,
            "norm_mean": HALF,
            "norm_std": HALF,
            "patch_size": self.patch,
            "processor_class": "MiniCPMVProcessor",
            "scale_resolution": self.scale,
            "slice_end": "</slice>",
            "slice_mode": True,
            "slice_start": "<slice>",
            "unk": "<unk>",
            "use_image_id": True,
            "version": 2.6,
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))


class MiniCPMProcessor:
    def __init__(self, pictures: MiniCPMPictures, tokenizer: Any) -> None:
        self.image_processor, self.tokenizer = pictures, tokenizer

    def __call__(self, text: list[str], images: Any, return_tensors: str = "np") -> BatchFeature:
        first, *others = text[0].split(MARK)
        for number, (image, other) in enumerate(zip(images, others, strict=True)):
            first += self.image_processor.text(image, number) + other
        ids = self.tokenizer(first, add_special_tokens=False)["input_ids"]
        return BatchFeature({"input_ids": np.array([ids]), **self.image_processor(images)})


MINICPM_FAMILIES = {
    "minicpmv": Family(
        "MiniCPMV",
        lambda ids: {"query_num": 5, "vision_config": {"patch_size": 4}},
        lambda fast: MiniCPMProcessor(MiniCPMPictures(4, 32, 5), fast),
        MARK,
        ("<unk>",),
    ),
}
"""What FAMILIES has of it."""
