"""Gemma 4: a tower with a gate and norms before and after each half of a layer, whose patches have
a vector for their column and one for their row; the mean of squares of patches; and Gemma 4's
decoder. The audio towers of E2B and E4B are in penstock.families.audio.

Source: transformers' Gemma4VisionConfig and the model that has it.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.gemma4 import GEMMA4
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import IN_LLAMA, TowerNames, tower, under
from penstock.families.vision.image_processor import ImageSettings, pixels_of
from penstock.families.vision.reading import (
    MAX_HEADS,
    MAX_PATCH,
    MAX_WIDTH,
    TextHalf,
    Videos,
    VisionFamily,
    activation,
    bounded,
)
from penstock.families.vision.video_processor import VideoSettings, sampling_of
from penstock.families.vision.videos import KEYS
from penstock.formats.fields import Fields
from penstock.forms.pooled import SOFT_TOKENS, PooledFrames, PooledImages
from penstock.forms.video import FrameSampling, GroupTexts
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import SquarePoolProjector
from penstock.model.tower_spec import AxialPositions, RotaryPositions, TowerSpec, VisionSpec

THETA = 100.0
MAX_TABLE = 1 << 20
MAX_POOL = 64
"""Patches in a row of a square that becomes one row, at most."""


def gemma4_vision(tower: TowerSpec, factor: int, *, spans: bool, standard: bool) -> VisionSpec:
    """spans: whether the rows of a picture see one another in the decoder's windows."""
    if tower.head_dim % 4:
        raise UnsupportedModel(
            f"heads of {tower.head_dim} numbers can't rotate by row and column; hidden_size / "
            "num_attention_heads must be a multiple of 4"
        )
    return VisionSpec(
        tower=tower,
        projector=SquarePoolProjector(factor=factor, eps=tower.norm.eps, standardised=standard),
        spans_whole=spans,
        windowed_spans=spans,
    )


def positions(side: int, theta: float = THETA) -> AxialPositions:
    """side: vectors of each table."""
    rotary = RotaryPositions(theta=theta, columns_first=True, by_halves=True)
    return AxialPositions(side=side, rotary=rotary)


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec | None:
    if not section.values:
        return None
    sizes = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
    }
    section = section.completed(**sizes)
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    count = bounded(section, "num_attention_heads", MAX_HEADS)
    size = bounded(section, "head_dim", MAX_WIDTH, 64)
    if count * size != hidden or section.integer("num_key_value_heads", count) != count:
        raise UnsupportedModel(
            f"{section.where}: {count} attention heads of {size} numbers, with as many keys, are "
            f"needed for the hidden size {hidden}"
        )
    hub.only(section, attention_bias=False)
    rope = section.section("rope_parameters")
    if rope.text("rope_type", "axial") not in ("axial", "default"):
        raise rope.wrong("rope_type", "axial or default")
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        num_layers=layer_count(section, "num_hidden_layers"),
        num_heads=count,
        patch=bounded(section, "patch_size", MAX_PATCH, 16),
        norm=NormSpec(eps=section.number("rms_norm_eps", 1e-6)),
        activation=activation(section, "gelu_pytorch_tanh", "hidden_activation"),
        positions=positions(
            bounded(section, "position_embedding_size", MAX_TABLE, 10_240),
            rope.number("rope_theta", THETA),
        ),
        clipped=section.flag("use_clipped_linears", False),
        **FORM,
    )
    section.ignore(
        "default_output_length",  # of the image processor, as the next
        "image_seq_length",
        "global_head_dim",
        "max_position_embeddings",
        "video_seq_length",
    )
    # The decoder has asked for it, whether its pictures are served or not.
    both_ways = fields.section("text_config").values.get("use_bidirectional_attention")
    return gemma4_vision(
        tower,
        bounded(section, "pooling_kernel_size", MAX_POOL, 3),
        spans=both_ways == "vision",
        standard=section.flag("standardize", False),
    )


FORM: dict[str, Any] = {
    "gated": True,
    "qkv_bias": False,
    "bias": False,
    "head_norms": True,
    "value_norm": True,
    "score_scale": 1.0,
    "output_norms": True,
    "centred": True,
}
"""What all towers of the family have."""


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Patches are cut in the tower, of pictures of whole squares of them."""
    vision = config.section("vision_config")
    image = PooledImages(
        pixels=pixels_of(settings),
        patch=settings.integer("patch_size", 16),
        merge=settings.integer("pooling_kernel_size", 3),
        most=settings.integer("max_soft_tokens", SOFT_TOKENS[2]),
    )
    if image.patch != vision.integer("patch_size", 16) or not 1 <= image.patch <= 1024:
        raise settings.wrong("patch_size", "what the vision tower has")
    if image.merge != vision.integer("pooling_kernel_size", 3) or not 1 <= image.merge <= 64:
        raise settings.wrong("pooling_kernel_size", "what the vision tower has")
    if image.most not in SOFT_TOKENS:
        raise settings.wrong("max_soft_tokens", f"one of {', '.join(map(str, SOFT_TOKENS))}")
    token = tokens.named("image_token_id")
    before, _ = tokens.named("boi_token_id")
    behind, _ = tokens.named("eoi_token_id")
    return KindFacts.marked(image, token, before=before, behind=behind)


def videos(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Gemma 4's: each frame is a picture, which stands after its time."""
    picture = pictures(settings, config, tokens)
    return of_pooled(picture, *tokens.named(*KEYS), sampling_of(settings))


def of_pooled(
    picture: KindFacts, token: str, token_id: int, sampling: FrameSampling, most: int = 0
) -> KindFacts:
    """Videos whose frames are Gemma 4's pictures. token: stands for a video.  most: embeddings of
    a frame; 0: as many as of a picture."""
    frame = picture.preparation
    if not isinstance(frame, PooledImages):
        raise TypeError(f"Gemma 4's pictures are {type(frame).__name__}")
    video = PooledFrames(
        pixels=frame.pixels,
        patch=frame.patch,
        merge=frame.merge,
        most=most or frame.most,
        texts=GroupTexts(begin=picture.before, end=picture.behind, between=" ", stamp="clock"),
        sampling=sampling,
    )
    return KindFacts.marked(video, (token, token_id))


_IN_LAYER: TowerNames = {
    **IN_LLAMA,
    "pre_feedforward_layernorm": "norm3",
    "post_feedforward_layernorm": "norm4",
    # Linear layers have their clipping bounds as sibling tensors.
    **{f"self_attn.{part}_proj.linear": f"{part}_proj" for part in "qkv"},
    "self_attn.o_proj.linear": "out_proj",
    **{f"mlp.{part}_proj.linear": f"{part}_proj" for part in ("gate", "up", "down")},
}
BEHIND: TowerNames = {
    "embedding_projection": "",
    "multimodal_embedder.embedding_projection": "",  # as transformers calls it itself
}
NAMES = tower(
    {
        "patch_embedder.input_proj": "patch_embedding",
        "patch_embedder.position_embedding_table": "axial_positions.weight",
        "std_bias": "projector.std_bias",
        "std_scale": "projector.std_scale",
        **under("encoder.layers.*", _IN_LAYER, "layers.*"),
    }
) | under("embed_vision", BEHIND, "projector")

GEMMA4_VISION = VisionFamily(
    "gemma4",
    ("Gemma4ForConditionalGeneration",),
    "Gemma 4",
    {"gemma4_text": TextHalf(GEMMA4, nulls=True)},
    _read,
    usual="gemma4_text",
    harmless=frozenset({"vision_soft_tokens_per_image"}),
    pictures=pictures,
    videos=Videos(videos, "Gemma4VideoProcessor"),
    may_be_blind=True,
    hub_names=NAMES,
)
