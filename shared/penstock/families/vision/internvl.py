"""InternVL 3 in the format of transformers: InternViT over tiles of a picture, squares of patches,
and Qwen 2.5, Qwen 3 or Llama.

Source: Zhu et al., "InternVL3", 2025.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.hub_defaults import QWEN2_DEFAULTS, QWEN3_MOE_DEFAULTS
from penstock.families.llama import LLAMA
from penstock.families.media_tokens import MediaTokens
from penstock.families.qwen2 import QWEN2
from penstock.families.qwen3 import QWEN3, QWEN3_MOE
from penstock.families.tower_names import FEED_FORWARD, TWO, TowerNames, tower, under
from penstock.families.vision.image_processor import ImageSettings, pixels_of
from penstock.families.vision.llava import LLAMA_DEFAULTS
from penstock.families.vision.pictures import MAX_ROWS, MAX_TILES, tile_of
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_PIXELS,
    MAX_WIDTH,
    TextHalf,
    Videos,
    VisionFamily,
    activation,
    bounded,
    heads,
    layers_up_to,
    only_colours,
    patches_in_row,
    projector_activation,
)
from penstock.families.vision.video_processor import VideoSettings, sampling_of
from penstock.formats.fields import Fields
from penstock.forms.canvas import CanvasImages
from penstock.forms.fixed import FixedFrames
from penstock.forms.video import FrameSampling, GroupTexts
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import SquareMLPProjector
from penstock.model.tower_spec import LearnedPositions, TowerSpec, VisionSpec

NORMS = {
    "layer_norm": NormSpec(kind="layer", eps=1e-6, bias=True),
    "rms_norm": NormSpec(kind="rms", eps=1e-6),
}
PROJECTOR_NORM = NormSpec(kind="layer", eps=1e-5, bias=True)
MAX_FACTOR = 64


def square(section: Fields, key: str, most: int, default: int) -> int:
    """A size that may be given for rows and columns."""
    if not isinstance(section.values.get(key), (list, tuple)):
        return bounded(section, key, most, default)
    sides = section.listed(key, int)
    if len(sides) != 2 or sides[0] != sides[1] or not 1 <= sides[0] <= most:
        raise section.wrong(key, f"a square of 1 to {most} pixels")
    return sides[0]


def _tower(section: Fields, layer: int) -> tuple[TowerSpec, int]:
    section = section.completed(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16
    )
    section.ignore("use_mask_token", "layer_scale_init_value", "projection_dropout")
    only_colours(section, "num_channels")
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    patch = square(section, "patch_size", MAX_PATCH, 14)
    image = square(section, "image_size", MAX_PIXELS, 448)
    if not section.flag("use_absolute_position_embeddings", True):
        raise section.wrong("use_absolute_position_embeddings", "true")
    named = section.text("norm_type", "layer_norm")
    if named not in NORMS:
        raise section.wrong("norm_type", " or ".join(NORMS))
    norm = msgspec.structs.replace(NORMS[named], eps=section.number("layer_norm_eps", 1e-6))
    last_norm = not section.flag("use_mean_pooling", True) and layer == -1
    if last_norm and norm.kind != "layer":
        raise section.wrong("use_mean_pooling", f"true, with norm_type {named}")
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        **layers_up_to(section, layer),
        num_heads=heads(section, "num_attention_heads", hidden),
        patch=patch,
        norm=norm,
        activation=activation(section, "gelu"),
        patch_bias=True,
        qkv_bias=section.flag("attention_bias", False),
        query_norms=section.flag("use_qk_norm", False),
        layer_scale=True,
        positions=LearnedPositions(side=patches_in_row(section, image, patch)),
        class_token=True,
        last_norm=last_norm,
    )
    return tower, image


def read_vision(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    """VisionFamily.read."""
    if fields.text("vision_feature_select_strategy", "default") != "default":
        raise fields.wrong("vision_feature_select_strategy", "default")
    tower, image = _tower(section, fields.integer("vision_feature_layer", -1))
    ratio = fields.number("downsample_ratio", 0.5)
    factor = round(1 / ratio) if ratio > 0 else 0
    side = image // tower.patch
    if not 1 <= factor <= MAX_FACTOR or factor * ratio != 1.0 or side % factor:
        raise UnsupportedModel(
            f"{fields.where}: downsample_ratio is {ratio:g}; one over a whole number is needed, "
            f"which divides the {side} patches in a row of a tile"
        )
    return VisionSpec(
        tower=tower,
        projector=SquareMLPProjector(
            factor=factor, norm=PROJECTOR_NORM, activation=projector_activation(fields)
        ),
        image_size=image,
    )


BEGIN, END = "<img>", "</img>"
"""Around InternVL's embeddings."""
VIDEO = "<video>"


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """`crop_to_patches` is on whatever the file says, as in transformers' InternVLProcessor."""
    settings.ignore("crop_to_patches")
    side, patch = tile_of(settings, config)
    factor = round(1 / (config.number("downsample_ratio", 0.5) or 1))
    rows = (side // patch // max(factor, 1)) ** 2
    if not 1 <= rows <= MAX_ROWS or config.integer("image_seq_length", rows) != rows:
        raise config.wrong("image_seq_length", f"what the tower gives for a tile ({rows})")
    least, most = settings.integer("min_patches", 1), settings.integer("max_patches", 12)
    if not 1 <= least <= most <= MAX_TILES:
        raise settings.wrong("max_patches", f"min_patches to {MAX_TILES} tiles")
    token = tokens.named("image_token_id")
    for text in (BEGIN, END):
        tokens.check(text)
    image = CanvasImages(pixels=pixels_of(settings), tile=side, rows=rows, least=least, most=most)
    return KindFacts.marked(image, token, before=BEGIN, behind=END)


def videos(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """InternVL's: each frame is a picture of one tile, with its token."""
    picture = pictures(settings, config, tokens)
    spread: Literal["middles", "even"] = (
        "middles" if settings.flag("initial_shift", True) else "even"
    )
    return of_tiles(picture, *tokens.called(VIDEO), sampling_of(settings, spread))


def of_tiles(picture: KindFacts, token: str, token_id: int, sampling: FrameSampling) -> KindFacts:
    """Videos whose frames are InternVL's pictures of one tile. token: stands for a video."""
    tile = picture.preparation
    if not isinstance(tile, CanvasImages):
        raise TypeError(f"InternVL's pictures are {type(tile).__name__}")
    video = FixedFrames(
        pixels=tile.pixels,
        height=tile.tile,
        width=tile.tile,
        rows=tile.rows,
        sampling=sampling,
        texts=GroupTexts(begin=picture.before, end=picture.behind, between="\n", stamp="frame"),
    )
    return KindFacts.marked(video, (token, token_id), shown_id=picture.token_id)


_IN_LAYER: TowerNames = {
    "attention": "",
    "attention.projection_layer": "out_proj",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "lambda_1": "scale1",
    "lambda_2": "scale2",
    **FEED_FORWARD,
}
NAMES = tower(
    {
        "embeddings": "",
        "embeddings.mask_token": None,  # stands for hidden patches in training
        "embeddings.patch_embeddings.projection": "patch_embedding",
        "layernorm": "last_norm",
        **under("encoder.layer.*", _IN_LAYER, "layers.*"),
    }
) | under("multi_modal_projector", TWO | {"layer_norm": "norm"}, "projector")

INTERNVL = VisionFamily(
    "internvl",
    ("InternVLForConditionalGeneration",),
    "InternVL 3, InternVL 3.5",
    {
        "qwen2": TextHalf(QWEN2, QWEN2_DEFAULTS),
        "qwen3": TextHalf(QWEN3, QWEN2_DEFAULTS),
        "qwen3_moe": TextHalf(QWEN3_MOE, QWEN3_MOE_DEFAULTS),
        "llama": TextHalf(LLAMA, LLAMA_DEFAULTS),
    },
    read_vision,
    usual="qwen2",
    harmless=frozenset({"image_seq_length"}),
    pictures=pictures,
    videos=Videos(videos, "InternVLVideoProcessor", token=VIDEO),
    hub_names=NAMES,
)
