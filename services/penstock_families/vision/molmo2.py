"""Molmo 2: a SigLIP 2 tower whose outputs of two layers are taken, queries that each see a square
of patches, a gated feed-forward without norms, and Qwen 3's or OLMo 3's decoder. The tokens around
and among pictures' embeddings have embeddings of their own. All of these see one another, also
those of several pictures or of a video's frames, but not the text between them.

Sources: Clark et al., "Molmo2", 2026; Tschannen et al., "SigLIP 2", 2025; the makers' code, whose
configuration classes have the keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.media_tokens import MediaTokens
from penstock.families.molmo2 import DEFAULTS, MOLMO2, further_tokens
from penstock.families.tower_names import TowerNames, under
from penstock.families.vision.image_processor import MAX_EDGE, ImageSettings, pixels_of
from penstock.families.vision.pictures import MAX_TILES
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_PIXELS,
    MAX_WIDTH,
    TextHalf,
    Videos,
    VisionFamily,
    activation,
    bounded,
    computed_layers,
    heads,
    patches_in_row,
)
from penstock.families.vision.video_processor import MAX_FRAMES, USUAL_FRAMES, VideoSettings
from penstock.formats.fields import Fields
from penstock.forms.overlapping import MarkedFrames, OverlappingImages
from penstock.forms.video import FrameSampling, GroupTexts
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import PooledProjector
from penstock.model.tower_spec import LearnedPositions, TowerSpec, VisionSpec

USUAL: dict[str, object] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_patch_size": 14,
    "image_num_pos": 577,
}
"""Defaults of the makers' class for towers."""
USUAL_POOLING: dict[str, object] = {
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "intermediate_size": 18_944,
    "vit_layers": [-3, -9],
}
"""The makers' defaults for the connector, which files may leave out."""
IDS = ("image_col_id", "image_high_res_id", "image_low_res_id")
"""Token ids, which are read with how pictures are prepared."""
MAX_TAKEN = 8
"""Layers whose outputs are taken."""


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    pooling = fields.section("adapter_config").completed(**USUAL_POOLING)
    section = section.completed(**USUAL)
    taken = _taken(pooling, section)
    tower, image = _tower(section, taken)
    hub.only(pooling, text_hidden_size=text.hidden_size, pooling_attention_mask=True)
    if "pooling_attention_mask" not in pooling:
        raise pooling.wrong("pooling_attention_mask", "true")
    _same_heads(pooling)
    hub.activation(pooling, "silu")
    further = further_tokens(fields.section("text_config"))
    patch = fields.integer("image_patch_id") - (text.vocab_size - further)
    if not 0 <= patch < further:
        raise fields.wrong("image_patch_id", "one of the tokens behind the head's")
    projector = PooledProjector(
        size=bounded(pooling, "hidden_size", MAX_WIDTH),
        num_heads=heads(pooling, "num_attention_heads", pooling.integer("hidden_size")),
        inner=bounded(pooling, "intermediate_size", MAX_WIDTH),
        tokens=further,
        patch_token=patch,
    )
    pooling.ignore("float32_attention", "image_feature_dropout")
    hub.pass_over(pooling, _HARMLESS)
    return VisionSpec(tower=tower, projector=projector, image_size=image, spans_whole=True)


_HARMLESS = frozenset(
    {
        "attention_dropout",
        "attn_implementation",
        "dtype",
        "initializer_range",
        "model_type",
        "residual_dropout",
        "torch_dtype",
        "transformers_version",
    }
)


def _taken(pooling: Fields, section: Fields) -> tuple[int, ...]:
    """Layers whose outputs are taken, in their order, counted from the embedded patches, 0."""
    key = "vit_layers"
    layers, count = pooling.listed(key, int), layer_count(section, "num_hidden_layers")
    if not 1 <= len(layers) <= MAX_TAKEN or len(set(layers)) < len(layers):
        raise pooling.wrong(key, f"1 to {MAX_TAKEN} layers, each once,")
    # Layers are counted from 0, or from the last one if negative.
    found = tuple(computed_layers(pooling, layer + (layer >= 0), count) for layer in layers)
    if not all(found):
        raise pooling.wrong(key, f"layers of the tower, which has {count},")
    return found


def _tower(section: Fields, taken: tuple[int, ...]) -> tuple[TowerSpec, int]:
    """The tower, and the size of its pictures."""
    key, patch = "image_default_input_size", bounded(section, "image_patch_size", MAX_PATCH)
    sides = section.listed(key, int) if key in section else [378, 378]
    if len(sides) != 2 or len(set(sides)) > 1 or not 1 <= sides[0] <= MAX_PIXELS:
        raise section.wrong(key, f"a square of 1 to {MAX_PIXELS} pixels")
    side = patches_in_row(section, sides[0], patch)
    hub.only(section, image_num_pos=side * side)
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    _same_heads(section)
    section.ignore("float32_attention")
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        num_layers=max(taken),
        num_heads=heads(section, "num_attention_heads", hidden),
        patch=patch,
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps", 1e-6), bias=True),
        activation=activation(section, "gelu_pytorch_tanh"),
        patch_bias=True,
        positions=LearnedPositions(side=side),
        taken=taken,
    )
    return tower, sides[0]


def _same_heads(section: Fields) -> None:
    """Raises UnsupportedModel for heads that share keys, or of a size of their own."""
    count, hidden = section.integer("num_attention_heads"), section.integer("hidden_size")
    own = section.integer("head_dim", hidden // max(count, 1))
    if own * count != hidden:
        raise UnsupportedModel(
            f"{section.where}: head_dim is {own} and num_attention_heads {count}; together they "
            f"must be the hidden size, {hidden}"
        )
    if section.integer("num_key_value_heads", count) != count:
        raise section.wrong("num_key_value_heads", f"num_attention_heads, {count}")


@dataclass(frozen=True)
class MolmoFamily(VisionFamily):
    """A family whose files call the tower's section otherwise."""

    SECTION: ClassVar[str] = "vit_config"


PROCESSOR = "Molmo2ImageProcessor"
VIDEO_CLASS = "Molmo2VideoProcessor"
PLACEHOLDER = "<|image|>"
"""What the chat template writes for a picture."""
BILINEAR = 2
"""Pillow's number of the one filter that is served; what it computes is torch's."""
OF_PROCESSOR = (
    "image_use_col_tokens",
    "use_single_crop_col_tokens",
    "use_single_crop_start_token",
)
"""Settings of the processor that are about pictures."""
OF_FRAMES = ("use_frame_special_tokens", "video_use_col_tokens")
"""Settings that are about videos."""
VIDEO = "<|video|>"
"""config.json names neither."""


def of_makers(values: dict[str, Any], whole: dict[str, Any], where: str) -> dict[str, Any]:
    """Settings of pictures, with those of the whole processor's that are about them."""
    if values.get("image_processor_type") != PROCESSOR:
        return values
    return values | {key: whole[key] for key in OF_PROCESSOR if key in whole}


def of_makers_videos(values: dict[str, Any], whole: dict[str, Any], where: str) -> dict[str, Any]:
    """Settings of videos, with those of the whole processor's that are about them."""
    if values.get("video_processor_type") != VIDEO_CLASS:
        return values
    return values | {key: whole[key] for key in OF_FRAMES if key in whole}


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Raises UnsupportedModel."""
    side, patch = _square(settings, config)
    before, behind = _two(settings, "overlap_margins", 0, side // patch - 1)
    if before + behind >= side // patch:
        raise settings.wrong("overlap_margins", f"less than {side // patch} patches together")
    most = settings.integer("max_crops")
    if not 1 <= most <= MAX_TILES:
        raise settings.wrong("max_crops", f"1 to {MAX_TILES} crops")
    lines = settings.flag("image_use_col_tokens", True)
    keys = "image_start_token_id", "image_end_token_id", "image_col_id"
    begin, end, line_end = (_mark(config, tokens, key) for key in keys)
    whole_begin = begin
    if settings.flag("use_single_crop_start_token", True):
        whole_begin = _mark(config, tokens, "low_res_image_start_token_id")
    image = OverlappingImages(
        pixels=pixels_of(settings),
        side=side,
        patch=patch,
        pool=_two(settings, "pooling_size", 1, side // patch),
        margins=(before, behind),
        most=most,
        first_token=config.section("text_config").integer("vocab_size", 152_064),
        whole_begin=whole_begin,
        begin=begin,
        end=end,
        line_end=line_end,
        lines=lines,
        whole_lines=settings.flag("use_single_crop_col_tokens", lines),
    )
    tokens.check(PLACEHOLDER)
    return KindFacts.marked(
        image, tokens.named("image_patch_id"), placeholder=PLACEHOLDER, joined=True
    )


def frame(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> OverlappingImages:
    """A frame of a video, as MarkedFrames has it. Raises UnsupportedModel."""
    side, patch = _square(settings, config)
    around = "frame" if settings.flag("use_frame_special_tokens", True) else "image"
    keys = f"{around}_start_token_id", f"{around}_end_token_id", "image_col_id"
    begin, end, line_end = (_mark(config, tokens, key) for key in keys)
    return OverlappingImages(
        pixels=pixels_of(settings),
        side=side,
        patch=patch,
        pool=_two(settings, "pooling_size", 1, side // patch),
        margins=(0, 0),
        most=1,
        first_token=config.section("text_config").integer("vocab_size", 152_064),
        whole_begin=begin,
        begin=begin,
        end=end,
        line_end=line_end,
        lines=settings.flag("video_use_col_tokens", False),
    )


def _square(settings: ImageSettings, config: Fields) -> tuple[int, int]:
    """Sides of a crop or a frame, and of a patch, pixels."""
    tower = config.section("vit_config")
    patch, (side, wide) = settings.integer("patch_size"), settings.side("size")
    if patch != tower.integer("image_patch_size", 14) or not 1 <= patch <= 1024:
        raise settings.wrong("patch_size", "what the vision tower has")
    stated = tower.values.get("image_default_input_size", [378, 378])
    if side != wide or [side, wide] != stated or side % patch or side > MAX_EDGE:
        raise settings.wrong("size", f"a square of whole patches, as the tower has it ({stated})")
    if settings.integer("resample") != BILINEAR:
        raise settings.wrong("resample", f"{BILINEAR}, bilinear,")
    return side, patch


def _two(settings: ImageSettings, key: str, least: int, most: int) -> tuple[int, int]:
    values = settings.listed(key, int)
    if len(values) != 2 or not all(least <= value <= most for value in values):
        raise settings.wrong(key, f"two numbers, {least} to {most},")
    return values[0], values[1]


def _mark(config: Fields, tokens: MediaTokens, key: str) -> int:
    """A token that stands for pictures alone."""
    _, token = tokens.named(key)
    text = config.section("text_config")
    number = token - text.integer("vocab_size", 152_064)
    if not 0 <= number < further_tokens(text):
        raise config.wrong(key, "one of the tokens behind vocab_size")
    return token


def videos(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Molmo 2's: each frame is a square, which stands after its time; its rows have pictures'
    token."""
    image = frame(settings, config, tokens)
    most, fps = settings.integer("num_frames"), settings.number("max_fps")
    hub.only(settings, frame_sample_mode="uniform_last_frame")
    settings.ignore("sampling_fps")  # of another mode
    if not (1 <= most <= MAX_FRAMES and 0 < fps <= 1000):
        raise settings.wrong("num_frames", f"1 to {MAX_FRAMES}, with max_fps above 0, to 1000")
    sampling = FrameSampling(num_frames=most, fps=fps, max_frames=most, rule="molmo2")
    if not settings.flag("do_sample_frames", True):
        sampling = FrameSampling(num_frames=USUAL_FRAMES)
    video = MarkedFrames(
        image=image, texts=GroupTexts(between=" ", stamp="plain"), sampling=sampling
    )
    return KindFacts.marked(
        video, tokens.called(VIDEO), joined=True, shown_id=tokens.named("image_patch_id")[1]
    )


_BLOCK: TowerNames = {
    **{f"attention.w{part}": f"{part}_proj" for part in "qkv"},
    "attention.wo": "out_proj",
    "attention_norm": "norm1",
    "ffn_norm": "norm2",
    "feed_forward.w1": "up_proj",
    "feed_forward.w2": "down_proj",
}
NAMES = under(
    "vision_backbone",
    {
        "image_vit": "",
        "image_vit.positional_embedding": "position_embedding.weight",
        **under("image_vit.transformer.resblocks.*", _BLOCK, "layers.*"),
        **{f"image_pooling_2d.w{part}": f"projector.{part}_proj" for part in "qkv"},
        "image_pooling_2d.wo": "projector.out_proj",
        "image_projector.w1": "projector.gate_proj",
        "image_projector.w2": "projector.down_proj",
        "image_projector.w3": "projector.up_proj",
    },
) | {
    "transformer.wte.new_embedding": "projector.tokens",
    "wte.new_embedding": "projector.tokens",
}

MOLMO2_VISION = MolmoFamily(
    "molmo2",
    ("Molmo2ForConditionalGeneration",),
    "Molmo 2",
    {"molmo2_text": TextHalf(MOLMO2, DEFAULTS)},
    _read,
    usual="molmo2_text",
    begins_with_bos=True,
    harmless=frozenset({"adapter_config", "use_frame_special_tokens", *IDS}),
    pictures=pictures,
    videos=Videos(videos, VIDEO_CLASS, token=VIDEO, makers=of_makers_videos, named=True),
    makers=of_makers,
    hub_names=NAMES,
)
