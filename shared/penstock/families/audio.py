"""Families of audio models.

Qwen2-Audio has Whisper's encoder, the mean of each two of its vectors, a product, and Qwen 2 (Chu
et al., "Qwen2-Audio technical report", 2024). Voxtral has Whisper's encoder, two products of each
four of its vectors, and Llama (Mistral AI, "Voxtral", 2025). Qwen2.5-Omni's audio tower is
Qwen2-Audio's, but in blocks.

Gemma 4 E2B and E4B have a conformer, a product of each of its vectors, and Gemma 4; they see, too
(transformers' Gemma4AudioConfig).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.family import TextHalf
from penstock.families.gemma4 import GEMMA4
from penstock.families.hearing import MAX_BINS, OF_TRAINING, AudioFamily
from penstock.families.llama import LLAMA
from penstock.families.qwen2 import QWEN2
from penstock.families.tower_names import AUDIO_TOWER, PROJECTOR, TowerNames, under
from penstock.families.vision import qwen2_5_omni as omni
from penstock.families.vision.reading import MAX_WIDTH, bounded, heads
from penstock.formats.fields import Fields
from penstock.model.audio_spec import AudioSpec, AudioTowerSpec, ConformerSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.sound_projector_spec import LinearProjector, NormedProjector, StackProjector

MAX_POSITIONS = 65_536
"""Most rows of a table of positions."""


@dataclass(frozen=True)
class TowerKeys:
    """What the tower's section calls its sizes."""

    hidden: str
    inner: str
    layers: str
    heads: str


def whisper_tower(section: Fields, keys: TowerKeys, *, pooled: bool) -> AudioTowerSpec:
    """Whisper's encoder. Raises UnsupportedModel for a variant that isn't served."""
    hidden = bounded(section, keys.hidden, MAX_WIDTH)
    hub.only(section, scale_embedding=False)
    act = hub.activation(
        section, "gelu", "gelu_tanh", "silu", key="activation_function", default="gelu"
    )
    positions = bounded(section, "max_source_positions", MAX_POSITIONS)
    if pooled and positions % 2:
        raise UnsupportedModel(
            f"{section.where}: max_source_positions is {positions}; an even number is needed, "
            "since each two become one"
        )
    tower = AudioTowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, keys.inner, MAX_WIDTH),
        num_layers=layer_count(section, keys.layers),
        num_heads=heads(section, keys.heads, hidden),
        mel_bins=bounded(section, "num_mel_bins", MAX_BINS),
        positions=positions,
        norm=NormSpec(kind="layer", eps=1e-5, bias=True),
        activation=act,
        pooled=pooled,
    )
    section.ignore(*OF_TRAINING)
    return tower


QWEN2_AUDIO_KEYS = TowerKeys(
    "d_model", "encoder_ffn_dim", "encoder_layers", "encoder_attention_heads"
)
QWEN2_TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
}
"""Defaults of transformers' Qwen2Config."""
QWEN2_TOWER_DEFAULTS: dict[str, object] = {
    "d_model": 1280,
    "encoder_ffn_dim": 5120,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
}
"""Defaults of transformers' Qwen2AudioEncoderConfig."""


def _read_qwen2_audio(fields: Fields, section: Fields, text: ModelConfig) -> AudioSpec:
    tower = whisper_tower(section.completed(**QWEN2_TOWER_DEFAULTS), QWEN2_AUDIO_KEYS, pooled=True)
    return AudioSpec(tower=tower, projector=LinearProjector(), cut=True)


QWEN2_AUDIO = AudioFamily(
    "qwen2_audio",
    ("Qwen2AudioForConditionalGeneration",),
    "Qwen2-Audio",
    {"qwen2": TextHalf(QWEN2, QWEN2_TEXT_DEFAULTS)},
    _read_qwen2_audio,
    usual="qwen2",
    harmless=frozenset({"ignore_index", "vocab_size"}),
    ignored=("use_mrope",),
    hub_names=AUDIO_TOWER | under("multi_modal_projector", {"linear": ""}, "projector"),
)


OMNI_TOWER_DEFAULTS = QWEN2_TOWER_DEFAULTS | {"n_window": 100, "output_dim": 3584}
"""Defaults of transformers' Qwen2_5OmniAudioEncoderConfig."""


def _read_omni(fields: Fields, section: Fields, text: ModelConfig) -> AudioSpec:
    """A block has n_window vectors."""
    section = section.completed(**OMNI_TOWER_DEFAULTS)
    tower = whisper_tower(section, QWEN2_AUDIO_KEYS, pooled=True)
    if tower.hidden_size % 2:
        raise section.wrong("d_model", "an even number")
    if section.integer("output_dim") != text.hidden_size:
        raise section.wrong("output_dim", f"{text.hidden_size}, the decoder's hidden size,")
    block = 2 * bounded(section, "n_window", tower.positions)
    return AudioSpec(tower=replace(tower, block=block), projector=LinearProjector(), cut=True)


QWEN2_5_OMNI_AUDIO = AudioFamily(
    "qwen2_5_omni",
    omni.OMNI_2_5,
    omni.KNOWN_AS,
    omni.HALVES,
    _read_omni,
    usual=omni.USUAL,
    harmless=omni.BESIDE,
    hub_names=AUDIO_TOWER
    | {"audio_tower.proj": "projector", "audio_tower.audio_bos_eos_token": None},
)


VOXTRAL_KEYS = TowerKeys(
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"
)
VOXTRAL_TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 131_072,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000_000.0,
    "head_dim": 128,
}
VOXTRAL_TOWER_DEFAULTS: dict[str, object] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
}
"""The tower's defaults in transformers' VoxtralConfig, as VOXTRAL_TEXT_DEFAULTS are the
decoder's."""
ACTIVATIONS: dict[str, Any] = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}


def _read_voxtral(fields: Fields, section: Fields, text: ModelConfig) -> AudioSpec:
    section = section.completed(**VOXTRAL_TOWER_DEFAULTS)
    tower = whisper_tower(section, VOXTRAL_KEYS, pooled=False)
    _check_heads(section, tower.num_heads, tower.head_dim)
    factor = tower.intermediate_size // tower.hidden_size
    if tower.intermediate_size % tower.hidden_size or tower.positions % factor:
        raise UnsupportedModel(
            f"{section.where}: intermediate_size {tower.intermediate_size} says how many vectors "
            f"of {tower.hidden_size} become one; that must be a divisor of max_source_positions, "
            f"{tower.positions}"
        )
    act = fields.text("projector_hidden_act", "gelu")
    if act not in ACTIVATIONS:
        raise fields.wrong("projector_hidden_act", " or ".join(ACTIVATIONS))
    return AudioSpec(
        tower=tower, projector=StackProjector(factor=factor, activation=ACTIVATIONS[act])
    )


def _check_heads(section: Fields, count: int, size: int) -> None:
    """Releases say what follows from the other sizes."""
    for key, wanted in (("num_key_value_heads", count), ("head_dim", size)):
        if section.optional_integer(key) not in (None, wanted):
            raise section.wrong(key, str(wanted))


VOXTRAL = AudioFamily(
    "voxtral",
    ("VoxtralForConditionalGeneration",),
    "Voxtral",
    {"llama": TextHalf(LLAMA, VOXTRAL_TEXT_DEFAULTS)},
    _read_voxtral,
    usual="llama",
    harmless=frozenset({"hidden_size", "vocab_size"}),
    hub_names=AUDIO_TOWER | PROJECTOR,
)


GEMMA4_TOWER_DEFAULTS: dict[str, object] = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "subsampling_conv_channels": [128, 32],
    "attention_chunk_size": 12,
    "attention_context_left": 13,
    "conv_kernel_size": 5,
    "output_proj_dims": 1536,
}
MAX_WINDOW = 1024
"""Most vectors that one attends to, and that a convolution over time reads."""


def _read_gemma4(fields: Fields, section: Fields, text: ModelConfig) -> AudioSpec | None:
    """The spectrogram has as many bands as the first convolution has outputs. Distances count from
    the middle of what a chunk of vectors sees, which has to be the first that its first one
    does."""
    if not section.values:
        return None
    section = section.completed(**GEMMA4_TOWER_DEFAULTS)
    hub.only(section, hidden_act="silu", attention_context_right=0)
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    channels = section.listed("subsampling_conv_channels", int)
    if len(channels) != 2 or channels[0] % 4 or not 1 <= min(channels) <= max(channels) <= MAX_BINS:
        raise section.wrong(
            "subsampling_conv_channels",
            f"two numbers of 1 to {MAX_BINS}, the first a multiple of 4",
        )
    before = bounded(section, "attention_context_left", MAX_WINDOW) - 1
    chunk = bounded(section, "attention_chunk_size", MAX_WINDOW)
    if before < 1 or chunk not in (before, before + 1):
        raise section.wrong("attention_chunk_size", "attention_context_left, or one less,")
    cap = section.number("attention_logit_cap", 50.0)
    if cap <= 0 or section.number("attention_invalid_logits_value", -1e9) > -1e4 - cap:
        raise section.wrong("attention_logit_cap", "a positive number that hides nothing")
    eps = section.number("rms_norm_eps", 1e-6)
    tower = ConformerSpec(
        hidden_size=hidden,
        num_layers=layer_count(section, "num_hidden_layers"),
        num_heads=heads(section, "num_attention_heads", hidden),
        mel_bins=channels[0],
        channels=(channels[0], channels[1]),
        window=before,
        reach=bounded(section, "conv_kernel_size", MAX_WINDOW),
        residual_weight=section.number("residual_weight", 0.5),
        score_cap=cap,
        bound=section.number("gradient_clipping", 1e10),
        eps=eps,
        outputs=bounded(section, "output_proj_dims", MAX_WIDTH),
        clipped=section.flag("use_clipped_linears", True),
    )
    return AudioSpec(tower=tower, projector=NormedProjector(eps=eps))


_PRODUCTS = (
    *(f"feed_forward{number}.ffw_layer_{nth}" for number in (1, 2) for nth in (1, 2)),
    "lconv1d.linear_start",
    "lconv1d.linear_end",
    "self_attn.post",
)
_IN_CONFORMER: TowerNames = {
    **{f"{product}.linear": product for product in _PRODUCTS},
    **{f"self_attn.{part}_proj": f"{part}_proj" for part in "qkv"},
    **{f"self_attn.{part}_proj.linear": f"{part}_proj" for part in "qkv"},
}
GEMMA4_NAMES = under("audio_tower", under("layers.*", _IN_CONFORMER, "layers.*")) | under(
    "embed_audio", {"embedding_projection": ""}, "projector"
)

GEMMA4_AUDIO = AudioFamily(
    "gemma4",
    ("Gemma4ForConditionalGeneration",),
    "Gemma 4 E2B, E4B",
    {"gemma4_text": TextHalf(GEMMA4, nulls=True)},
    _read_gemma4,
    usual="gemma4_text",
    hub_names=GEMMA4_NAMES,
)
