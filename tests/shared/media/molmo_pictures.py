"""How Molmo 2's makers prepare pictures, slowly: transformers has no class of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from transformers.image_processing_utils import BatchFeature

MOLMO = (
    "<im_start>",
    "<im_end>",
    "<im_patch>",
    "<im_col>",
    "<low_res_im_start>",
    "<im_low>",
    "<frame_start>",
    "<frame_end>",
)
"""Special tokens around and among Molmo 2's pictures."""
MARK = "<|image|>"


class MolmoPictures:
    """side: of a square, pixels.  margins: of crops, patches.  most: crops."""

    model_input_names = ("pixel_values", "pooled", "lines")

    def __init__(
        self,
        side: int,
        patch: int,
        margins: tuple[int, int] = (1, 1),
        pool: tuple[int, int] = (2, 2),
        most: int = 6,
    ) -> None:
        self.side, self.patch, self.margins, self.pool, self.most = side, patch, margins, pool, most

    def __call__(self, images: Any, return_tensors: str = "np", **_: Any) -> BatchFeature:
        shown = images if isinstance(images, list) else [images]
        found = [self.picture(each) for each in shown]
        return BatchFeature({name: [each[name] for each in found] for name in found[0]})

    def picture(self, image: Image.Image) -> dict[str, Any]:
        """pixel_values: [crops, 3, side, side], of which the whole is the first.  pooled: of each
        embedding the patches that it is made of.  forms: rows and columns of embeddings of the
        whole, and of all crops together."""
        pixels = np.asarray(image)
        rows, columns = self.tiling(*pixels.shape[:2])
        side = self.side // self.patch
        step = side - sum(self.margins)
        shape = rows * step + sum(self.margins), columns * step + sum(self.margins)
        large = resized(pixels, (shape[0] * self.patch, shape[1] * self.patch))
        crops, patch_at = [resized(pixels, (self.side, self.side))], {}
        for row in range(rows):
            for column in range(columns):
                top, left = row * step, column * step
                y, x = top * self.patch, left * self.patch
                for down in range(side):
                    for along in range(side):
                        hidden = (
                            (row > 0 and down < self.margins[0])
                            or (column > 0 and along < self.margins[0])
                            or (row < rows - 1 and down >= side - self.margins[1])
                            or (column < columns - 1 and along >= side - self.margins[1])
                        )
                        if not hidden:
                            number = len(crops) * side * side + down * side + along
                            assert (top + down, left + along) not in patch_at
                            patch_at[top + down, left + along] = number
                crops.append(large[y : y + self.side, x : x + self.side])
        whole = {(n // side, n % side): n for n in range(side * side)}
        parts = [list(self.squares(whole, (side, side))), list(self.squares(patch_at, shape))]
        numbers = (np.stack(crops).astype(np.float32) / 255 - np.float32(0.5)) / np.float32(0.5)
        return {
            "pixel_values": numbers.transpose(0, 3, 1, 2),
            "pooled": [square for part in parts for line in part for square in line],
            "forms": [(len(part), len(part[0])) for part in parts],
        }

    def squares(
        self, patches: dict[tuple[int, int], int], shape: tuple[int, int]
    ) -> Iterator[list[list[int]]]:
        """Lines of squares, each with its patches; what is missing is half before and half
        behind."""
        before = [-has % by // 2 for has, by in zip(shape, self.pool, strict=True)]
        for top in range(-before[0], shape[0], self.pool[0]):
            yield [
                [
                    patches[y, x]
                    for y in range(top, top + self.pool[0])
                    for x in range(left, left + self.pool[1])
                    if (y, x) in patches
                ]
                for left in range(-before[1], shape[1], self.pool[1])
            ]

    def tiling(self, height: int, width: int) -> tuple[int, int]:
        """The form of crops to which a picture is enlarged least; or, of one that is larger than
        all, made smaller least. Of equal ones the first."""
        step = self.side - self.patch * sum(self.margins)
        inner = [np.float32(each - (self.side - step)) for each in (height, width)]
        forms = [(i, j) for i in range(1, self.most + 1) for j in range(1, self.most + 1)]
        forms = sorted((form for form in forms if form[0] * form[1] <= self.most), key=by_count)
        best, scale_of_best = forms[0], None
        with np.errstate(divide="ignore"):
            scales = [
                min(np.float32(count * step) / has for count, has in zip(form, inner, strict=True))
                for form in forms
            ]
        larger = any(scale >= 1 for scale in scales)
        for form, scale in zip(forms, scales, strict=True):
            if larger and scale < 1:
                continue
            nearer = scale_of_best is None or (
                scale < scale_of_best if larger else scale > scale_of_best
            )
            if nearer:
                best, scale_of_best = form, scale
        return best

    @staticmethod
    def fetch_images(images: Any) -> Any:
        return images

    def save_pretrained(self, folder: Path) -> None:
        """The makers' files."""
        settings = {
            "auto_map": {"AutoImageProcessor": "image_processing_molmo2.Molmo2ImageProcessor"},
            "do_convert_rgb": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_processor_type": "Molmo2ImageProcessor",
            "image_std": [0.5, 0.5, 0.5],
            "max_crops": self.most,
            "overlap_margins": list(self.margins),
            "patch_size": self.patch,
            "pooling_size": list(self.pool),
            "resample": 2,
            "size": {"height": self.side, "width": self.side},
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
        around = {
            "image_use_col_tokens": True,
            "processor_class": "Molmo2Processor",
            "use_frame_special_tokens": True,
            "use_single_crop_col_tokens": False,
            "use_single_crop_start_token": True,
            "video_use_col_tokens": False,
        }
        (folder / "processor_config.json").write_text(json.dumps(around))


def frames_shown(total: int, rate: float, fps: float, most: int) -> list[int]:
    """Which frames of a video the makers' processor shows: in a short one those nearest to every
    1 / fps seconds, and the last; else `most`, of which the first and the last are two."""
    if total > 2 and total / rate <= (most - 1) / fps:
        found, number = [], 0
        while number * (rate / fps) < total - 1:
            found.append(round(number * (rate / fps)))
            number += 1
        return found if found[-1] == total - 1 else [*found, total - 1]
    count = min(most, total)
    step = (total - 1) / max(count - 1, 1)
    return [
        total - 1 if number and number == count - 1 else int(number * step)
        for number in range(count)
    ]


def frames_text(times: list[float], rows: int, columns: int, *, lines: bool = False) -> str:
    """What stands for a video whose frames have so many rows and columns of embeddings."""
    line = "<im_patch>" * columns + "<im_col>" * lines
    frame = f"<frame_start>{line * rows}<frame_end>"
    return " ".join(f"{time:.1f} {frame}" for time in times)


VIDEO_SETTINGS = {
    "auto_map": {"AutoVideoProcessor": "video_processing_molmo2.Molmo2VideoProcessor"},
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "do_sample_frames": True,
    "frame_sample_mode": "uniform_last_frame",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_fps": 2,
    "num_frames": 384,
    "patch_size": 4,
    "pooling_size": [3, 3],
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "return_metadata": False,
    "sampling_fps": 2,
    "size": {"height": 20, "width": 20},
    "video_processor_type": "Molmo2VideoProcessor",
}
"""The makers' video_preprocessor_config.json, written from memory, with the tiny models' sizes."""


def by_count(form: tuple[int, int]) -> tuple[int, int]:
    return form[0] * form[1], form[0]


def resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes bytes without antialiasing, as torchvision does."""
    planes = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float()
    found = functional.interpolate(planes, size=size, mode="bilinear", align_corners=False)
    return found.round().to(torch.uint8)[0].permute(1, 2, 0).numpy()


class MolmoProcessor:
    """Puts tokens in the place of each picture."""

    def __init__(self, image_processor: MolmoPictures, tokenizer: Any) -> None:
        self.image_processor, self.tokenizer = image_processor, tokenizer

    def __call__(self, text: list[str], images: Any, return_tensors: str = "np") -> BatchFeature:
        pictures = self.image_processor(images)
        whole = text[0]
        for forms in pictures["forms"]:
            whole = whole.replace(MARK, self.tokens(*forms), 1)
        ids = self.tokenizer(whole, return_tensors="np")["input_ids"]
        return BatchFeature({"input_ids": ids, **pictures})

    @staticmethod
    def tokens(whole: tuple[int, int], crops: tuple[int, int]) -> str:
        line = "<im_patch>" * crops[1] + "<im_col>"
        return (
            "<low_res_im_start>"
            + "<im_patch>" * (whole[0] * whole[1])
            + "<im_end><im_start>"
            + line * crops[0]
            + "<im_end>"
        )
