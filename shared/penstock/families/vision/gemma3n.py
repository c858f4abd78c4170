"""Gemma 3n with its vision tower: MobileNet V5, embeddings of the tower's own vocabulary, one of
which ends a picture, and Gemma 3n. Its audio tower is in penstock.families.gemma3n_audio.

Sources: Gemma team, "Gemma 3n", 2025; keys: transformers' Gemma3nVisionConfig; blocks: timm's
`mobilenetv5_300m_enc`, which no file says.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import MAX_ROWS
from penstock.families.gemma3n import GEMMA3N
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import EMBEDDER, under
from penstock.families.vision.image_processor import ImageSettings, fixed_size, pixels_of
from penstock.families.vision.pictures import bounded_rows
from penstock.families.vision.reading import (
    MAX_PIXELS,
    MAX_SIDE,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    bounded,
)
from penstock.formats.fields import Fields
from penstock.forms.fixed import FixedImages
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.mobilenet_spec import (
    EdgeBlock,
    InvertedBlock,
    MobileBlock,
    MobileNetSpec,
    QueryBlock,
)
from penstock.model.projector_spec import NormedTwiceProjector
from penstock.model.tower_spec import TowerSpec, VisionSpec

STEM, WIDTHS, OUTPUTS = 64, (128, 256, 640, 1280), 2048
"""Channels of the first convolution, of each stage, and of what comes out."""
IMAGE, SIDE, TEXT_ROWS = 768, 16, 262_144
"""Pixels in a row of a picture, squares in a row of it, and where the tower's vocabulary begins."""
MULTIPLE, LEAST_SHARE = 8, 0.9
"""What widths are multiples of: the nearest one, that is no less than this share of the width."""
MODEL_ARGS = ("channel_multiplier", "msfa_output_resolution")


def mobilenet(widths: tuple[int, ...], side: int) -> MobileNetSpec:
    """widths: channels of each of the four stages.  side: squares in a row."""
    first, second, third, fourth = widths
    edges = [EdgeBlock(outputs=first, expansion=4, kernel=3, step=step) for step in (2, 1, 1)]
    seen = [InvertedBlock(outputs=second, expansion=4, start=size) for size in (5, 3, 5, 3)]
    wide = [InvertedBlock(outputs=third, expansion=4, start=5)] * 7
    stages: list[list[MobileBlock]] = [
        [*edges],
        [InvertedBlock(outputs=second, expansion=6, start=3, middle=5, step=2), *seen],
        [
            InvertedBlock(outputs=third, expansion=6, start=5, middle=5, step=2),
            *wide,
            InvertedBlock(outputs=third, expansion=1),
            *_pairs(14, QueryBlock(heads=12, head_dim=64, step=2), third),
        ],
        [
            InvertedBlock(outputs=fourth, expansion=6, start=5, middle=5, step=2),
            *_pairs(19, QueryBlock(heads=16, head_dim=96), fourth),
        ],
    ]
    return MobileNetSpec(stem=STEM, stages=tuple(map(tuple, stages)), side=side)


def _pairs(count: int, query: QueryBlock, width: int) -> list[MobileBlock]:
    """Returns `count` pairs of attention and the block that follows it."""
    return [query, InvertedBlock(outputs=width, expansion=2)] * count


def gemma3n_vision(
    where: str,
    net: MobileNetSpec,
    image: int,
    hidden: int,
    projector: NormedTwiceProjector,
) -> VisionSpec:
    """image: pixels in a row of a picture. Raises UnsupportedModel for one that the squares don't
    divide."""
    place = 2 ** len(net.stages)
    if image % (place * net.side) or image % (2 * place):
        raise UnsupportedModel(
            f"{where}: pictures have {image} pixels in a row; a multiple of {2 * place} is needed "
            f"whose {place}th part {net.side} squares divide"
        )
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=hidden,
        num_layers=0,
        num_heads=1,
        patch=image // net.side,
        norm=NormSpec(eps=net.eps),
        positions=None,
        convolutions=net,
    )
    return VisionSpec(tower=tower, projector=projector, image_size=image)


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec | None:
    """image_size isn't in releases, whose pictures have one size."""
    if not section.values:
        return None
    section.ignore("do_pooling", "label_names", "num_classes", "pretrained_cfg")
    hub.only(section, architecture="mobilenetv5_300m_enc", hidden_size=OUTPUTS)
    widths, side = _model_args(section)
    hub.only(fields, vision_soft_tokens_per_image=side * side)
    _, vocab, end = tower_vocabulary(
        fields,
        section.completed(vocab_offset=TEXT_ROWS, vocab_size=128),
        text,
        end="eoi_token_id",
        item="image_token_id",
    )
    return gemma3n_vision(
        section.where,
        mobilenet(widths, side),
        bounded(section, "image_size", MAX_PIXELS, IMAGE),
        OUTPUTS,
        NormedTwiceProjector(eps=section.number("rms_norm_eps", 1e-6), vocab=vocab, end=end),
    )


def tower_vocabulary(
    fields: Fields, section: Fields, text: ModelConfig, *, end: str, item: str
) -> tuple[int, int, int]:
    """Where a tower's own vocabulary begins, how many tokens it has, and which of them ends an
    item.

    end, item: keys of the ids of that token and of an item's placeholder. Neither has a row in the
    table of inputs of each layer's own. Raises UnsupportedModel.
    """
    first = bounded(section, "vocab_offset", MAX_ROWS)
    count = bounded(section, "vocab_size", MAX_ROWS)
    last = fields.integer(end, first) - first
    if not 0 <= last < count:
        raise fields.wrong(end, f"one of the {count} tokens from vocab_offset, {first},")
    inputs = text.per_layer_inputs
    if inputs is not None and min(fields.integer(item, first + 1), first) < inputs.vocab_size:
        raise fields.wrong(item, f"{inputs.vocab_size}, vocab_size_per_layer_input, or more")
    return first, count, last


def _model_args(section: Fields) -> tuple[tuple[int, ...], int]:
    """What timm makes the tower of: its widths, and squares in a row; releases say nothing."""
    key = "model_args"
    args = section.section(key)
    section.ignore(key)
    if set(args.values) - set(MODEL_ARGS):
        raise section.wrong(key, f"with {' or '.join(MODEL_ARGS)} alone")
    factor = args.number(MODEL_ARGS[0], 1.0)
    if not 0 < factor <= MAX_WIDTH // max(WIDTHS):
        raise args.wrong(MODEL_ARGS[0], f"above 0, up to {MAX_WIDTH // max(WIDTHS)},")
    widths = tuple(_rounded(width * factor) for width in WIDTHS)
    return widths, bounded(args, MODEL_ARGS[1], MAX_SIDE, SIDE)


def _rounded(width: float) -> int:
    found = max(MULTIPLE, int(width + MULTIPLE / 2) // MULTIPLE * MULTIPLE)
    return found + MULTIPLE * (found < LEAST_SHARE * width)


CONFORMER_DEFAULTS: dict[str, Any] = {
    "feature_size": 128,
    "sampling_rate": 16_000,
    "frame_length_ms": 20.0,
    "hop_length_ms": 10.0,
    "min_frequency": 0.0,
    "max_frequency": 8000.0,
    "mel_floor": 1e-3,
}
HARMLESS_TO_CONFORMER = (
    "feature_extractor_type",
    "padding_side",
    "preemphasis_htk_flavor",  # there is no preemphasis
    "processor_class",
    "return_attention_mask",
)
EXTRACTOR = "Gemma3nAudioFeatureExtractor"
MEL_DEFAULTS: dict[str, Any] = CONFORMER_DEFAULTS | {
    "frame_length_ms": 32.0,
    "min_frequency": 125.0,
    "max_frequency": 7600.0,
    "mel_floor": 1e-5,
    "preemphasis": 0.97,
}
FOLLOWING = ("fft_length", "frame_length", "hop_length")
"""Settings that transformers writes although they follow from others."""
OF_SOUNDS = (
    *MEL_DEFAULTS,
    *FOLLOWING,
    *HARMLESS_TO_CONFORMER,
    *("audio_seq_length", "dither", "fft_overdrive", "input_scale_factor", "padding_value"),
    *("per_bin_mean", "per_bin_stddev"),
)
"""Settings of Gemma 3n's sounds, which its file about both has among those of pictures."""


def of_makers(values: dict[str, Any], whole: dict[str, Any], where: str) -> dict[str, Any]:
    """Nothing of a file that is about sounds alone."""
    heard = values.get("feature_extractor_type") == EXTRACTOR
    return {} if heard and "image_processor_type" not in values else values


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """The token that ends a picture is the last of its rows (see NormedTwiceProjector). Settings of
    sounds may stand among those of pictures."""
    settings.ignore(*OF_SOUNDS)
    height, width, edge, _ = fixed_size(settings)
    side = config.section("vision_config").integer("image_size", IMAGE)
    if edge or (height, width) != (side, side):
        raise settings.wrong("size", f"height and width of {side}")
    rows = config.integer("vision_soft_tokens_per_image", 256)
    begin, _ = tokens.named("boi_token_id")
    token = tokens.named("image_token_id")
    image = FixedImages(
        pixels=pixels_of(settings), height=side, width=side, rows=bounded_rows(rows, settings) + 1
    )
    return KindFacts.marked(image, token, before=f"\n\n{begin}", behind="\n\n")


GEMMA3N_VISION = VisionFamily(
    "gemma3n",
    ("Gemma3nForConditionalGeneration",),
    "Gemma 3n E2B, E4B",
    {"gemma3n_text": TextHalf(GEMMA3N, nulls=True)},
    _read,
    usual="gemma3n_text",
    harmless=frozenset({"audio_soft_tokens_per_image"}),
    pictures=pictures,
    makers=of_makers,
    may_be_blind=True,
    hub_names=under("vision_tower.timm_model", {}) | under("embed_vision", EMBEDDER, "projector"),
)
