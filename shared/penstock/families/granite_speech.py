"""Granite Speech: a conformer that has learned to write letters, learned queries over windows of
its vectors, and Granite 3, for which many releases have an adapter that is meant for sounds.

Source: Granite Speech team, "Granite-speech: open-source speech-aware LLMs with strong English ASR
capabilities", 2025; what it computes, as transformers' model granite_speech has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.family import TextHalf
from penstock.families.granite import GRANITE
from penstock.families.hearing import MAX_BINS, AudioFamily
from penstock.families.tower_names import TowerNames
from penstock.families.vision.granite4_vision import OF_QUERIES, QUERY_LAYER
from penstock.families.vision.llava_next import GRANITE_DEFAULTS
from penstock.families.vision.reading import MAX_HEADS, MAX_WIDTH, bounded, heads
from penstock.formats.fields import Fields
from penstock.model.audio_spec import AudioSpec, BlockConformerSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.sound_projector_spec import QueryProjector

ENCODER_DEFAULTS: dict[str, object] = {
    "input_dim": 160,
    "num_layers": 10,
    "hidden_dim": 1024,
    "feedforward_mult": 4,
    "num_heads": 8,
    "output_dim": 42,
    "context_size": 200,
    "max_pos_emb": 512,
    "conv_kernel_size": 15,
    "conv_expansion_factor": 2,
}
"""Defaults of transformers' GraniteSpeechEncoderConfig."""
QUERY_NORM = NormSpec(kind="layer", eps=1e-12, bias=True)
"""Norm of the queries, the same in all releases."""
MAX_SEEN = 4096
"""Most vectors that attend to one another, and of a window."""
MAX_TIMES = 64
"""How many times as wide as the encoder its feed-forwards and convolutions may be."""


@dataclass(frozen=True)
class GraniteSpeech(AudioFamily):
    """A family whose encoder's section has another name."""

    SECTION: ClassVar[str] = "encoder_config"


def _read(fields: Fields, section: Fields, text: ModelConfig) -> AudioSpec:
    section = section.completed(**ENCODER_DEFAULTS)
    hidden, bins = (bounded(section, key, MAX_WIDTH) for key in ("hidden_dim", "input_dim"))
    if bins % 2 or bins > 2 * MAX_BINS:
        raise section.wrong("input_dim", f"an even number up to {2 * MAX_BINS}")
    count = bounded(section, "num_heads", MAX_HEADS)
    if section.optional_integer("dim_head") is None:
        size = hidden // heads(section, "num_heads", hidden)
    else:
        size = bounded(section, "dim_head", MAX_WIDTH)
    block = bounded(section, "context_size", MAX_SEEN)
    distances = bounded(section, "max_pos_emb", MAX_WIDTH)
    if block > distances:
        raise section.wrong("context_size", f"{distances} at most, which is max_pos_emb,")
    layers = layer_count(section, "num_layers")
    tower = BlockConformerSpec(
        hidden_size=hidden,
        intermediate_size=hidden * bounded(section, "feedforward_mult", MAX_TIMES),
        num_layers=layers,
        num_heads=count,
        head_dim=size,
        mel_bins=bins // 2,
        block=block,
        distances=distances,
        channels=hidden * bounded(section, "conv_expansion_factor", MAX_TIMES),
        reach=bounded(section, "conv_kernel_size", MAX_SEEN),
        outputs=bounded(section, "output_dim", MAX_WIDTH),
    )
    projector = _projector(fields, hidden)
    return AudioSpec(tower=tower, projector=projector, row_multiplier=text.embedding_multiplier)


def _projector(fields: Fields, hidden: int) -> QueryProjector:
    window = bounded(fields, "window_size", MAX_SEEN, 15)
    rate = bounded(fields, "downsample_rate", MAX_SEEN, 5)
    if window % rate:
        raise fields.wrong("downsample_rate", f"a divisor of window_size, {window},")
    section = fields.section("projector_config").completed(
        cross_attention_frequency=2, **QUERY_LAYER
    )
    hub.only(section, hidden_act="gelu", use_qformer_text_input=False, encoder_hidden_size=hidden)
    seeing = bounded(section, "cross_attention_frequency", MAX_SEEN)
    section.ignore(*OF_QUERIES)
    size = bounded(section, "hidden_size", MAX_WIDTH)
    return QueryProjector(
        window=window,
        queries=window // rate,
        hidden_size=size,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        num_layers=layer_count(section, "num_hidden_layers"),
        num_heads=heads(section, "num_attention_heads", size),
        seeing=seeing,
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps"), bias=True),
    )


_IN_LAYER = ("ff1", "ff2", "attn", "conv", "post_norm")
NAMES: TowerNames = {
    "projector": "projector",
    **{f"encoder.{module}": module for module in ("input_linear", "out", "out_mid")},
    **{f"encoder.layers.*.{module}": f"layers.*.{module}" for module in _IN_LAYER},
    "encoder.layers.*.conv.batch_norm.num_batches_tracked": None,
}

GRANITE_SPEECH = GraniteSpeech(
    "granite_speech",
    ("GraniteSpeechForConditionalGeneration",),
    "Granite Speech",
    {"granite": TextHalf(GRANITE, {**GRANITE_DEFAULTS, "tie_word_embeddings": True})},
    _read,
    usual="granite",
    harmless=frozenset({"has_lora_adapter", "projector_config"}),
    hub_names=NAMES,
)
