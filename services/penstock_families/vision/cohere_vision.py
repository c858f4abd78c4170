"""Command A Vision and Aya Vision: SigLIP's tower over the tiles of a canvas, a gated feed-forward
of each square of patches, and Command R's decoder, with windows (Cohere2) or without.

Sources: Cohere, "Command A Vision", 2025; Cohere Labs, "Aya Vision: advancing the frontier of
multilingual multimodality", 2025.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP_TOWER, PROJECTOR, TWO, under
from penstock.families.vision.image_processor import ImageSettings, pixels_of
from penstock.families.vision.pictures import MAX_TILES
from penstock.families.vision.reading import (
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    bounded,
    siglip_tower,
)
from penstock.formats.fields import Fields
from penstock.forms.canvas import CanvasImages
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import SquareMLPProjector
from penstock.model.tower_spec import TowerSpec, VisionSpec
from penstock_families.cohere import COHERE, COHERE2

MAX_FACTOR = 16
COMMAND_TOWER: dict[str, object] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "image_size": 512,
    "num_hidden_layers": 27,
    "num_attention_heads": 12,
}
AYA_TOWER: dict[str, object] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 14,
    "image_size": 384,
    "num_hidden_layers": 26,
    "num_attention_heads": 14,
}
"""transformers' towers where config.json says nothing of them."""
ALIGNED = 36_864
"""Outputs of the first product of Command A Vision, where config.json doesn't say."""


def square_factor(fields: Fields, side: int) -> int:
    """Patches in a row of a square that becomes one embedding. side: patches in a row of a tile.
    Raises UnsupportedModel."""
    factor = bounded(fields, "downsample_factor", MAX_FACTOR, 2)
    if side % factor:
        raise fields.wrong("downsample_factor", f"a divisor of {side} patches in a row of a tile")
    return factor


def _spec(
    fields: Fields, tower: TowerSpec, image: int, inner: int, norm: NormSpec | None
) -> VisionSpec:
    if inner % 2:
        raise UnsupportedModel(
            f"{fields.where}: alignment_intermediate_size is {inner}; an even number is needed"
        )
    factor = square_factor(fields, image // tower.patch)
    projector = SquareMLPProjector(factor=factor, norm=norm, inner=inner, gated=True)
    return VisionSpec(tower=tower, projector=projector, image_size=image)


def _of_siglip(section: Fields, usual: dict[str, object]) -> Fields:
    """The tower's section. Raises UnsupportedModel for another tower than SigLIP's."""
    kind = section.text("model_type", "siglip_vision_model")
    if kind != "siglip_vision_model":
        raise section.wrong("model_type", "siglip_vision_model")
    return section if section.values else section.completed(**usual)


def _read_command(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    tower, image = siglip_tower(_of_siglip(section, COMMAND_TOWER))
    inner = bounded(fields, "alignment_intermediate_size", MAX_WIDTH, ALIGNED)
    return _spec(fields, tower, image, inner, None)


def _read_aya(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    if fields.text("vision_feature_select_strategy", "full") != "full":
        raise fields.wrong("vision_feature_select_strategy", "full")
    layer = fields.integer("vision_feature_layer", -1)
    tower, image = siglip_tower(_of_siglip(section, AYA_TOWER), layer)
    inner = bounded(fields, "alignment_intermediate_size", MAX_WIDTH, text.hidden_size)
    eps = fields.positive("adapter_layer_norm_eps", 1e-6)
    return _spec(fields, tower, image, inner, NormSpec(kind="layer", eps=eps, bias=True))


HALVES = {"cohere2": TextHalf(COHERE2), "cohere": TextHalf(COHERE)}


BEGIN, END = "<|START_OF_IMG|>", "<|END_OF_IMG|>"
LINE = "<|IMG_LINE_BREAK|>"
PLACEHOLDER = "<image>"
"""What stands for a picture in Aya Vision's filled template."""


def pictures_of_command(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """How Command's pictures are prepared: a token follows each tile. The settings' patch_size is
    the number of embeddings in a row of a tile."""
    image = _canvas(settings, config, fitting=True, tile_end=LINE)
    side = int(image.rows**0.5)
    if settings.integer("patch_size", side) != side:
        raise settings.wrong("patch_size", f"embeddings in a row of a tile ({side})")
    tokens.check(LINE)
    return _facts(image, config, tokens, None)


def pictures_of_aya(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """`crop_to_patches` is on whatever the file says, as in transformers' AyaVisionProcessor."""
    settings.ignore("crop_to_patches")
    image = _canvas(settings, config, numbered="TILE_", whole="TILE_GLOBAL")
    return _facts(image, config, tokens, PLACEHOLDER)


def _facts(
    image: CanvasImages, config: Fields, tokens: MediaTokens, placeholder: str | None
) -> KindFacts:
    for text in (BEGIN, END):
        tokens.check(text)
    token = tokens.named("image_token_id", "image_token_index")
    return KindFacts.marked(image, token, placeholder, before=BEGIN, behind=END)


def _canvas(
    settings: ImageSettings,
    config: Fields,
    *,
    fitting: bool = False,
    numbered: str = "",
    whole: str = "",
    tile_end: str = "",
) -> CanvasImages:
    """fitting, numbered, whole, tile_end: as CanvasImages has them."""
    vision = config.section("vision_config")
    height, width = settings.side("size")
    patch, tile = vision.integer("patch_size", 16), vision.integer("image_size", height)
    if not height == width == tile or not 1 <= patch <= tile:
        raise settings.wrong("size", f"a square of what the vision tower has ({tile})")
    side = tile // patch
    least, most = settings.integer("min_patches", 1), settings.integer("max_patches", 12)
    if not 1 <= least <= most <= MAX_TILES:
        raise settings.wrong("max_patches", f"min_patches to {MAX_TILES} tiles")
    return CanvasImages(
        pixels=pixels_of(settings),
        tile=tile,
        rows=(side // square_factor(config, side)) ** 2,
        least=least,
        most=most,
        split=not fitting or settings.flag("crop_to_patches", True),
        fitting=fitting,
        numbered=numbered,
        whole=whole,
        tile_end=tile_end,
    )


COHERE2_VISION = VisionFamily(
    "cohere2_vision",
    ("Cohere2VisionForConditionalGeneration",),
    "Command A Vision",
    HALVES,
    _read_command,
    usual="cohere2",
    pictures=pictures_of_command,
    hub_names=CLIP_TOWER | PROJECTOR,
)
AYA_VISION = VisionFamily(
    "aya_vision",
    ("AyaVisionForConditionalGeneration",),
    "Aya Vision",
    HALVES,
    _read_aya,
    usual="cohere2",
    pictures=pictures_of_aya,
    hub_names=CLIP_TOWER | under("multi_modal_projector", TWO | {"layernorm": "norm"}, "projector"),
)
