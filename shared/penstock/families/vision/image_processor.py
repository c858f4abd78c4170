"""The settings of an image processor, with the defaults of its class in transformers."""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.forms.pixels import Colour, Pixels

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
MAX_EDGE = 8192
"""Pixels."""

_CLIP = {"resample": 3, "image_mean": CLIP_MEAN, "image_std": CLIP_STD}
_CENTRED = {**_CLIP, "size": {"shortest_edge": 224}, "crop_size": 224, "do_center_crop": True}
_FITTED = {**_CLIP, "size": 384, "min_size": 14}
_SIGLIP = {"image_mean": HALF, "image_std": HALF, "size": 224, "do_center_crop": False}
_GLM = {**_CLIP, "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15_000}}
OF_REPEATED = ("Glm4vImageProcessor", "Glm46VImageProcessor")
"""Classes whose bounds on pixels are of a picture's repetitions together (PatchImages.of_all)."""
_LLAVA_NEXT: dict[str, Any] = {**_CLIP, "size": {"shortest_edge": 336}, "crop_size": 336}
_GEMMA4: dict[str, Any] = {
    "resample": 3,
    "do_normalize": False,
    "image_mean": (0.0, 0.0, 0.0),
    "image_std": (1.0, 1.0, 1.0),
}
_PHI4 = {**_SIGLIP, "resample": 3, "size": 448, "patch_size": 14, "dynamic_hd": 36}
CLASSES: dict[str, dict[str, Any]] = {
    "CLIPImageProcessor": _CENTRED,
    "LlavaImageProcessor": _CENTRED,
    "SiglipImageProcessor": {**_SIGLIP, "resample": 3},
    "Gemma3ImageProcessor": {**_SIGLIP, "resample": 2},
    "Idefics3ImageProcessor": {"resample": 1, "image_mean": HALF, "image_std": HALF},
    "SmolVLMImageProcessor": {"resample": 1, "image_mean": HALF, "image_std": HALF},
    "Qwen2VLImageProcessor": _CLIP,
    "Glm4vImageProcessor": _GLM,
    "Glm46VImageProcessor": _GLM,
    "Cohere2VisionImageProcessor": {**_CLIP, "size": {"height": 512, "width": 512}},
    "GotOcr2ImageProcessor": {**_CLIP, "size": {"height": 384, "width": 384}},
    "LlavaOnevisionImageProcessor": {**_CLIP, "size": {"height": 384, "width": 384}},
    "Llama4ImageProcessor": {**_SIGLIP, "resample": 2, "size": 336},
    "Lfm2VlImageProcessor": {"resample": 2, "image_mean": HALF, "image_std": HALF},
    "LlavaNextImageProcessor": _LLAVA_NEXT,
    "Granite4VisionImageProcessor": _LLAVA_NEXT,
    "PaddleOCRVLImageProcessor": _CLIP,
    "Kimi_K25ImageProcessor": {"resample": 3, "image_mean": HALF, "image_std": HALF},
    "KimiVLImageProcessor": _CLIP,
    "DeepseekOcr2ImageProcessor": {
        "resample": 3,
        "image_mean": HALF,
        "image_std": HALF,
        "size": 1024,
    },
    "DeepseekVLImageProcessor": _FITTED,
    "DeepseekVLHybridImageProcessor": {**_FITTED, "high_res_size": 1024},
    "JanusImageProcessor": _FITTED,
    "VLMImageProcessor": {**_FITTED, "size": None},
    "MiniCPMVImageProcessor": {"resample": 3, "image_mean": HALF, "image_std": HALF},
    "MiniCPMV4_6ImageProcessor": {"resample": 3, "image_mean": HALF, "image_std": HALF},
    "MllamaImageProcessor": {**_SIGLIP, "resample": 2, "max_image_tiles": 4},
    "MiniMaxM3VLImageProcessor": {
        **_CLIP,
        "size": {"shortest_edge": 4 * 28 * 28, "longest_edge": 672 * 672},
    },
    "Gemma4ImageProcessor": _GEMMA4,
    "Gemma4UnifiedImageProcessor": _GEMMA4,
    "Molmo2ImageProcessor": {
        **_SIGLIP,
        "resample": 2,
        "size": 378,
        "patch_size": 14,
        "pooling_size": [2, 2],
        "overlap_margins": [4, 4],
        "max_crops": 8,
    },
    "Phi3VImageProcessor": {**_CLIP, "resample": 2, "num_crops": 1, "num_img_tokens": 144},
    "Phi4MultimodalImageProcessor": _PHI4,
    "Phi4MMImageProcessor": _PHI4,
    "Step3p7ImageProcessor": {
        **_CLIP,
        "resample": 2,
        "size": 728,
        "patch_size": 504,
        "max_image_size": 3024,
    },
    "PixtralImageProcessor": {**_CLIP, "patch_size": 16},
}
"""Class -> its defaults."""

_HARMLESS = (
    "_valid_processor_keys",
    "auto_map",
    "data_format",
    "default_to_square",
    "device",
    "disable_grouping",
    "do_convert_rgb",  # always done
    "feature_extractor_type",
    "image_processor_type",
    "image_seq_length",
    "input_data_format",
    "pan_and_scan_max_num_crops",
    "pan_and_scan_min_crop_size",
    "pan_and_scan_min_ratio_to_activate",
    "processor_class",
    "return_row_col_info",
    "return_tensors",
    "video_metadata",
)
"""Keys that change no pixel, or none while what they belong to is refused."""


class ImageSettings(Fields):
    """Settings as in preprocessor_config.json, completed by the class's defaults. kind: the class.

    Raises UnsupportedModel for a class that isn't known."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        stated = values.get("image_processor_type") or values.get("feature_extractor_type")
        name = str(stated or "").removesuffix("Fast").removesuffix("Pil")
        self.kind = name.replace("FeatureExtractor", "ImageProcessor")
        if self.kind not in CLASSES:
            raise UnsupportedModel(
                f"{where}: image_processor_type is {stated!r}; known are {', '.join(CLASSES)} "
                "(--language-model-only serves the model without its eyes)"
            )
        given = {key: value for key, value in values.items() if value is not None}
        super().__init__({**CLASSES[self.kind], **given}, where)

    def sizes(self, key: str, least: int, most: int) -> tuple[int, int]:
        """(shortest_edge, longest_edge) under a key, which may leave them out."""
        found = self.section(key)
        return found.integer("shortest_edge", least), found.integer("longest_edge", most)

    def side(self, key: str) -> tuple[int, int]:
        """(height, width) under a key that may hold one number."""
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            self.ignore(key)
            height = width = value
        else:
            section = self.section(key)
            height, width = section.integer("height"), section.integer("width")
        if not (1 <= height <= MAX_EDGE and 1 <= width <= MAX_EDGE):
            raise self.wrong(key, f"1 to {MAX_EDGE} pixels")
        return height, width


def pixels_of(settings: ImageSettings) -> Pixels:
    """How bytes become numbers. Raises UnsupportedModel."""
    resample = settings.integer("resample")
    if not 0 <= resample <= 5:
        raise settings.wrong("resample", "a filter of Pillow's, 0 to 5")
    if not settings.flag("do_resize", True):
        raise settings.wrong("do_resize", "true")
    scaled, normalised = settings.flag("do_rescale", True), settings.flag("do_normalize", True)
    factor = settings.number("rescale_factor", 1 / 255)
    mean, std = _colour(settings, "image_mean"), _colour(settings, "image_std")
    if not all(std):
        raise settings.wrong("image_std", "three numbers other than zero")
    return Pixels(
        resample=resample,
        rescale=factor if scaled else None,
        mean=mean if normalised else None,
        std=std if normalised else None,
    )


def fixed_size(settings: ImageSettings) -> tuple[int, int, int, tuple[int, int]]:
    """(height, width, shortest edge or 0, size before the crop or zeros) of pictures that all
    become alike."""
    size = settings.values.get("size")
    edge, resized = 0, (0, 0)
    if isinstance(size, dict) and "shortest_edge" in size:
        edge = settings.section("size").integer("shortest_edge")
        if not 1 <= edge <= MAX_EDGE:
            raise settings.wrong("size", f"1 to {MAX_EDGE} pixels")
    elif isinstance(size, int) and settings.flag("do_center_crop"):
        edge = settings.side("size")[0]  # CLIP's older way to say it
    else:
        resized = settings.side("size")
    if settings.flag("do_center_crop"):
        height, width = settings.side("crop_size")
        return height, width, edge, resized
    settings.ignore("crop_size")
    if edge:
        raise settings.wrong("do_center_crop", "true, where only the shortest edge is given")
    return *resized, 0, (0, 0)


def longest_edge(settings: ImageSettings, key: str, default: int) -> int:
    """Longest edge, in pixels, of the pictures or tiles that a tiled preparation makes."""
    settings.flag("do_pad", True)  # A picture's tiles are all of one size.
    edge = settings.section(key).integer("longest_edge", default)
    if not 1 <= edge <= MAX_EDGE:
        raise settings.wrong(key, f"a longest_edge of 1 to {MAX_EDGE} pixels")
    return edge


def check_all_read(settings: ImageSettings) -> None:
    """Raises UnsupportedModel for a setting that wasn't read."""
    settings.ignore(*_HARMLESS, *(key for key in settings.values if key.endswith("_token_id")))
    if settings.kind != "LlavaImageProcessor":
        settings.ignore("do_pad", "pad_size")
    unknown = settings.not_asked()
    if unknown:
        raise UnsupportedModel(
            f"{settings.where}: {unknown[0]} is not known here, and could change what the model "
            "sees (--language-model-only serves the model without its eyes)"
        )


def _colour(settings: ImageSettings, key: str) -> Colour:
    values = settings.values.get(key)
    settings.ignore(key)
    if not isinstance(values, (list, tuple)) or len(values) != 3:
        raise settings.wrong(key, "three numbers")
    if not all(isinstance(value, (int, float)) and abs(value) < 1e6 for value in values):
        raise settings.wrong(key, "three numbers")
    red, green, blue = map(float, values)
    return red, green, blue
