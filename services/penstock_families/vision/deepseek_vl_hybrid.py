"""DeepSeek-VL 7B: a SigLIP tower over a picture and SAM's layers over a larger one, followed by
convolutions, products of both concatenated, and Llama.

Source: DeepSeek-AI, "DeepSeek-VL: towards real-world vision-language understanding", 2024; keys and
defaults: transformers' DeepseekVLHybridConfig.
"""

from __future__ import annotations

import msgspec

from penstock.families.llama import LLAMA
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP_MODEL, TowerNames, under
from penstock.families.vision.image_processor import CLIP_MEAN, CLIP_STD, ImageSettings, pixels_of
from penstock.families.vision.internvl import square
from penstock.families.vision.reading import (
    HARMLESS,
    MAX_PIXELS,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    bounded,
    siglip_tower,
)
from penstock.formats.fields import Fields
from penstock.forms.twofold import TwofoldImages
from penstock.model.config import ModelConfig
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import TwoTowersProjector
from penstock.model.tower_spec import VisionSpec
from penstock_families.vision.deepseek_ocr2 import NECK, NECK_NORM, SAM, SAM_DEFAULTS, sam_tower
from penstock_families.vision.deepseek_vl import TEXT_DEFAULTS, check_siglip, least_of, square_of

SECOND = "high_res_vision_config"


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    check_siglip(section)
    tower, image = siglip_tower(section)
    sam = fields.section(SECOND)
    kind = sam.text("model_type", "sam_vision_model")
    if kind != "sam_vision_model":
        raise sam.wrong("model_type", "sam_vision_model")
    sam = sam.completed(**SAM_DEFAULTS | {"global_attn_indexes": [2, 5, 8, 11]})
    sam.ignore("num_pos_feats", *HARMLESS)
    second = sam_tower(sam)
    whole = sam.listed("global_attn_indexes", int)
    if not whole:
        raise sam.wrong("global_attn_indexes", "at least one layer")
    if text.hidden_size % 2:
        raise fields.wrong("text_config", "an even hidden_size")
    return VisionSpec(
        tower=tower,
        projector=TwoTowersProjector(
            channels=bounded(sam, "output_channels", MAX_WIDTH // 4, 256), norm=NECK_NORM
        ),
        image_size=image,
        second=msgspec.structs.replace(second, taken=(whole[0] + 1, second.num_layers)),
        second_size=square(sam, "image_size", MAX_PIXELS, 1024),
    )


OF_LARGE: dict[str, object] = {"resample": 3, "image_mean": CLIP_MEAN, "image_std": CLIP_STD}
"""What the large square has where the settings say nothing of it."""


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Facts of a picture in two squares. Where the settings name no mean of the large one, its bars
    are grey, as in transformers."""
    side, rows = square_of(settings, config)
    large, wide = settings.side("high_res_size")
    wanted = config.section("high_res_vision_config").integer("image_size", large)
    if not large == wide == wanted:
        raise settings.wrong("high_res_size", f"a square of what the tower has ({wanted})")
    own = {
        ours: settings.values[f"high_res_{ours}"]
        for ours in ("resample", "image_mean", "image_std")
        if f"high_res_{ours}" in settings.values
    }
    settings.ignore(*(f"high_res_{ours}" for ours in own))
    pixels = pixels_of(settings)
    of_large = ImageSettings({**settings.values, **OF_LARGE, **own}, settings.where)
    large_pixels = pixels_of(of_large)
    background = (127, 127, 127)
    if large_pixels.mean is not None and "image_mean" in own:
        red, green, blue = (int(each * 255) for each in large_pixels.mean)
        background = (red, green, blue)
    image = TwofoldImages(
        pixels=pixels,
        large_pixels=large_pixels,
        side=side,
        large=large,
        least=least_of(settings, large),
        rows=rows,
        background=background,
    )
    return KindFacts.marked(image, tokens.named("image_token_id"))


_ALIGNER: TowerNames = {"vision_proj": "own", "high_res_vision_proj": "beside", "proj": "out"}
_SECOND: TowerNames = {
    theirs: ours if ours is None or ours.startswith("projector.") else f"second.{ours}"
    for theirs, ours in SAM.items()
}
NAMES = (
    CLIP_MODEL
    | under("aligner", _ALIGNER, "projector")
    | under("high_res_vision_model", _SECOND)
    | under("high_res_vision_model.vision_encoder", _SECOND)
    | under("high_res_vision_neck", NECK, "projector.between")
    | under("high_res_vision_proj", {"conv1": "0", "conv2": "1"}, "projector.smaller")
    | {"high_res_vision_alpha": "projector.alpha"}
)

DEEPSEEK_VL_HYBRID = VisionFamily(
    "deepseek_vl_hybrid",
    ("DeepseekVLHybridForConditionalGeneration",),
    "DeepSeek-VL 7B",
    {"llama": TextHalf(LLAMA, TEXT_DEFAULTS)},
    _read,
    usual="llama",
    harmless=frozenset({SECOND}),
    pictures=pictures,
    hub_names=NAMES,
)
