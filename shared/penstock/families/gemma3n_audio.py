"""Gemma 3n's audio tower: a conformer, of whose vectors every fourth is taken, embeddings of the
tower's own vocabulary, which fill up and end a sound, and Gemma 3n. Its vision tower is in
penstock.families.vision.gemma3n.

Source: Gemma team, "Gemma 3n", 2025; keys: transformers' Gemma3nAudioConfig.
"""

from __future__ import annotations

from typing import Any

from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.family import TextHalf
from penstock.families.gemma3n import GEMMA3N
from penstock.families.hearing import MAX_BINS, AudioFamily
from penstock.families.tower_names import EMBEDDER, TowerNames, under
from penstock.families.vision.gemma3n import TEXT_ROWS, tower_vocabulary
from penstock.families.vision.reading import MAX_WIDTH, bounded, heads
from penstock.formats.fields import Fields
from penstock.model.audio_spec import AudioSpec, ConformerSpec
from penstock.model.config import ModelConfig
from penstock.model.sound_projector_spec import EmbedderProjector

MAX_WINDOW = 1024
"""Most vectors that one attends to, and that a convolution over time reads."""
MAX_FACTOR = 64
"""Most vectors of which one is taken."""
MAX_VECTORS = 4096
"""Most vectors to which those of a sound are filled up."""
DEFAULTS: dict[str, object] = {
    "input_feat_size": 128,
    "hidden_size": 1536,
    "conf_attention_chunk_size": 12,
    "conf_attention_context_left": 13,
    "conf_num_attention_heads": 8,
    "conf_num_hidden_layers": 12,
    "conf_conv_kernel_size": 5,
    "conf_reduction_factor": 4,
    "sscp_conv_channel_size": [128, 32],
    "vocab_size": 128,
    "vocab_offset": TEXT_ROWS + 128,  # after that of the vision tower
}
VECTORS = 188
"""Vectors of a sound after it is filled up, in all releases."""
FORM: dict[str, Any] = {"outputs": 0, "clipped": False, "grown_keys": False, "ahead": True}
"""What the tower has otherwise than Gemma 4's."""
CUMULATIVE_EPS = 1e-3
"""The epsilon of the convolutions' norms, where nothing else is said."""


def _read(fields: Fields, section: Fields, text: ModelConfig) -> AudioSpec | None:
    """How many vectors are a chunk says nothing: a vector attends to as many before it in each."""
    if not section.values:
        return None
    section = section.completed(**DEFAULTS)
    hub.only(
        section,
        conf_attention_context_right=0,
        sscp_conv_kernel_size=[[3, 3], [3, 3]],
        sscp_conv_stride_size=[[2, 2], [2, 2]],
    )
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    channels = section.listed("sscp_conv_channel_size", int)
    if len(channels) != 2 or not 1 <= min(channels) <= max(channels) <= MAX_WIDTH:
        raise section.wrong("sscp_conv_channel_size", f"two numbers of 1 to {MAX_WIDTH}")
    bounded(section, "conf_attention_chunk_size", MAX_WINDOW)
    cap = section.number("conf_attention_logit_cap", 50.0)
    if cap <= 0:
        raise section.wrong("conf_attention_logit_cap", "a positive number")
    eps = section.number("rms_norm_eps", 1e-6)
    tower = ConformerSpec(
        hidden_size=hidden,
        num_layers=layer_count(section, "conf_num_hidden_layers"),
        num_heads=heads(section, "conf_num_attention_heads", hidden),
        mel_bins=bounded(section, "input_feat_size", MAX_BINS),
        channels=(channels[0], channels[1]),
        window=bounded(section, "conf_attention_context_left", MAX_WINDOW),
        reach=bounded(section, "conf_conv_kernel_size", MAX_WINDOW),
        residual_weight=section.number("conf_residual_weight", 0.5),
        score_cap=cap,
        bound=section.number("gradient_clipping", 1e10),
        eps=eps,
        cumulative_eps=section.number("sscp_conv_group_norm_eps", CUMULATIVE_EPS),
        every=bounded(section, "conf_reduction_factor", MAX_FACTOR),
        **FORM,
    )
    return AudioSpec(tower=tower, projector=_embedder(fields, section, text, eps))


def _embedder(fields: Fields, section: Fields, text: ModelConfig, eps: float) -> EmbedderProjector:
    """The decoder's last token fills up a sound."""
    first, vocab, end = tower_vocabulary(
        fields, section, text, end="eoa_token_id", item="audio_token_id"
    )
    filler = text.vocab_size - 1 - first
    if not 0 <= filler < vocab:
        raise section.wrong(
            "vocab_offset", f"less than vocab_size of the decoder, by up to {vocab},"
        )
    vectors = bounded(fields, "audio_soft_tokens_per_image", MAX_VECTORS, VECTORS)
    return EmbedderProjector(eps=eps, vocab=vocab, filler=filler, end=end, vectors=vectors)


_IN_LAYER: TowerNames = {
    "attention.pre_attn_norm": "norm_pre_attn",
    **{f"attention.attn.{part}_proj": f"{part}_proj" for part in "qkv"},
    "attention.attn.per_dim_scale": "self_attn.per_dim_scale",
    "attention.attn.relative_position_embedding.pos_proj": "self_attn.relative_k_proj",
    "attention.post": "self_attn.post",
    "attention.post_norm": "norm_post_attn",
    "ffw_layer_start": "feed_forward1",
    "ffw_layer_end": "feed_forward2",
    "norm": "norm_out",
}
NAMES = under(
    "audio_tower",
    {
        "subsample_conv_projection.conv_*": "subsample_conv_projection.layer*",
        **under("conformer.*", _IN_LAYER, "layers.*"),
    },
) | under("embed_audio", EMBEDDER, "projector")

GEMMA3N_AUDIO = AudioFamily(
    "gemma3n",
    ("Gemma3nForConditionalGeneration",),
    "Gemma 3n E2B, E4B",
    {"gemma3n_text": TextHalf(GEMMA3N, nulls=True)},
    _read,
    usual="gemma3n_text",
    harmless=frozenset({"vision_config", "vision_soft_tokens_per_image"}),
    hub_names=NAMES,
)
