"""MiniCPM-V 2.6, 4.0 and 4.5, and MiniCPM-o 2.6 as far as it sees: SigLIP's tower for pictures of
any form, learned queries that see all patches of a slice, and Qwen2's, Llama's or Qwen3's decoder.

config.json has no section about the decoder and doesn't name it: its version tells which it is.
MiniCPM-o's audio and speech parts aren't read.

Sources: Yao et al., "MiniCPM-V: a GPT-4V level MLLM on your phone", 2024; OpenBMB, "MiniCPM-V 4.5",
2025; the makers' code.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.families import hub_reading as hub
from penstock.families.llama import LLAMA
from penstock.families.media_tokens import MediaTokens
from penstock.families.qwen2 import QWEN2
from penstock.families.qwen3 import QWEN3
from penstock.families.tower_names import CLIP, TowerNames, under
from penstock.families.vision.image_processor import MAX_EDGE, ImageSettings, pixels_of
from penstock.families.vision.pictures import MAX_TILES
from penstock.families.vision.reading import (
    MAX_PIXELS,
    TextHalf,
    VisionFamily,
    bounded,
    patches_in_row,
    siglip_tower,
)
from penstock.formats.fields import Fields
from penstock.forms.sliced import SlicedImages
from penstock.model.config import ModelConfig
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import ResamplerProjector
from penstock.model.tower_spec import LearnedPositions, VisionSpec

DECODERS = {"2.6": "qwen2", "4.0": "llama", "4.5": "qwen3"}
"""Decoder of each version."""
TOWER: dict[str, object] = {
    "hidden_size": 1152,
    "image_size": 980,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
}
"""The tower where config.json says nothing of it."""
QUERIES, MAX_QUERIES = 64, 4096
HEAD = 128
"""Numbers of a head of the queries' attention."""
SQUARE = 448
"""Side of the square that has about as many pixels as a slice, where config.json doesn't say."""
BESIDE = (
    "audio_chunk_length",
    "audio_config",
    "audio_pool_step",
    "batch_3d_resampler",
    "batch_vision_input",
    "chunk_input",
    "drop_vision_last_layer",
    "image_size",
    "init_audio",
    "init_tts",
    "init_vision",
    "listen_speak_type",
    "patch_size",
    "query_num",
    "slice_config",
    "slice_mode",
    "stream_input",
    "tts_config",
    "use_image_id",
    "version",
    "vision_batch_size",
    "vision_config",
)
"""What config.json says of pictures, sounds and speech among the decoder's settings."""


def positions(side: int) -> LearnedPositions:
    return LearnedPositions(side=side, fractional=True)


def projector(found: Fields, queries: int, size: int, side: int) -> ResamplerProjector:
    """size: of the decoder.  side: patches in a row of the square of about as many as a slice has.
    Raises UnsupportedModel."""
    if not 1 <= queries <= MAX_QUERIES:
        raise found.wrong("query_num", f"1 to {MAX_QUERIES}")
    if size % HEAD:
        raise found.wrong("hidden_size", f"a multiple of {HEAD}, the size of a query's heads,")
    return ResamplerProjector(queries=queries, num_heads=size // HEAD, side=max(side, 1))


def _decoder(fields: Fields) -> Fields:
    """The decoder's settings, with its type instead of the whole's. Raises UnsupportedModel for a
    version that isn't served."""
    version = fields.values.get("version")
    kind = DECODERS.get(f"{version:.1f}" if isinstance(version, float | int) else str(version))
    if kind is None:
        raise fields.wrong("version", " or ".join(DECODERS))
    return fields.replaced({"model_type": kind})


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    hub.only(fields, init_vision=True)
    tower, image = siglip_tower(section if section.values else section.completed(**TOWER))
    side = patches_in_row(section, image, tower.patch)
    layers = tower.num_layers - fields.flag("drop_vision_last_layer", True)
    if not layers:
        raise fields.wrong("drop_vision_last_layer", "false, for a tower of one layer,")
    found = msgspec.structs.replace(tower, positions=positions(side), num_layers=layers)
    square = bounded(fields, "image_size", MAX_PIXELS, SQUARE)
    queries = fields.integer("query_num", QUERIES)
    return VisionSpec(
        tower=found,
        projector=projector(fields, queries, text.hidden_size, square // tower.patch),
    )


SLICE_NUMBER = "<image_id>", "</image_id>"
"""Around the number of a picture of MiniCPM-V's."""
PLACEHOLDER = "(<image>./</image>)"
"""What stands for a picture in a prompt of the makers'."""
TOKEN = "<unk>"
"""What stands for an embedding."""
AROUND: dict[str, object] = {
    "im_start": "<image>",
    "im_end": "</image>",
    "slice_start": "<slice>",
    "slice_end": "</slice>",
    "im_id_start": SLICE_NUMBER[0],
    "im_id_end": SLICE_NUMBER[1],
    "unk": TOKEN,
}
"""The makers' settings of texts around embeddings, of which all releases have these."""


def of_makers(values: dict[str, Any], whole: dict[str, Any], where: str) -> dict[str, Any]:
    """The makers' settings, with transformers' names of two of them."""
    if "norm_mean" not in values:
        return values
    names = {"norm_mean": "image_mean", "norm_std": "image_std"}
    return {names.get(key, key): value for key, value in values.items()}


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    queries = config.integer("query_num", QUERIES)
    hub.only(settings, image_feature_size=queries, **AROUND)
    settings.ignore("version")
    image = sliced(settings, config, whole=1, queries=queries)
    return KindFacts.marked(
        image,
        tokens.called(TOKEN),
        placeholder=PLACEHOLDER,
        numbered=numbered(settings, tokens, image),
    )


def sliced(
    settings: ImageSettings, config: Fields, *, merge: int = 4, whole: int = 4, queries: int = 0
) -> SlicedImages:
    """merge, whole, queries: of the model, as SlicedImages has them."""
    patch = config.section("vision_config").integer("patch_size", 14)
    if settings.integer("patch_size", 14) != patch or not 1 <= patch <= 1024:
        raise settings.wrong("patch_size", f"what the vision tower has ({patch})")
    scale, most = settings.integer("scale_resolution", 448), settings.integer("max_slice_nums", 9)
    if not 1 <= scale <= MAX_EDGE:
        raise settings.wrong("scale_resolution", f"1 to {MAX_EDGE} pixels")
    if not 1 <= most <= MAX_TILES:
        raise settings.wrong("max_slice_nums", f"1 to {MAX_TILES}")
    return SlicedImages(
        pixels=pixels_of(settings),
        patch=patch,
        merge=merge,
        whole=whole,
        scale=scale,
        most=most,
        split=settings.flag("slice_mode", True),
        queries=queries,
    )


def numbered(settings: ImageSettings, tokens: MediaTokens, image: SlicedImages) -> tuple[str, str]:
    """KindFacts.numbered. Raises UnsupportedModel for a tokenizer without the tokens around
    embeddings."""
    numbered = SLICE_NUMBER if settings.flag("use_image_id", True) else ("", "")
    for text in (image.begin, image.end, image.slice_begin, image.slice_end, *numbered):
        if text:
            tokens.check(text)
    return numbered


_RESAMPLER: TowerNames = {
    "kv_proj": "kv",
    "attn.in_proj_weight": "attn.qkv.weight",
    "attn.in_proj_bias": "attn.qkv.bias",
    "attn.out_proj": "attn.out",
    "proj": "out.columns",
}
_SPEAKS_AND_HEARS = ("apm", "audio_projection_layer", "audio_avg_pooler", "tts")
NAMES = (
    under("vpm", CLIP)
    | under("resampler", _RESAMPLER, "projector")
    | dict.fromkeys(_SPEAKS_AND_HEARS)
)

MINICPMV = VisionFamily(
    "minicpmv",
    ("MiniCPMV", "MiniCPMO"),
    "MiniCPM-V 2.6, 4.0, 4.5, MiniCPM-o 2.6",
    {"qwen2": TextHalf(QWEN2), "llama": TextHalf(LLAMA), "qwen3": TextHalf(QWEN3)},
    _read,
    usual="qwen2",
    flat=_decoder,
    harmless=frozenset(BESIDE),
    ignored=BESIDE,
    pictures=pictures,
    makers=of_makers,
    hub_names=NAMES,
)
