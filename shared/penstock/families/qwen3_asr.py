"""Qwen3-ASR: an encoder of blocks (see BlockTowerSpec), and Qwen 3 (Qwen team, "Qwen3-ASR technical
report", 2026); and Qwen3-Omni's audio tower, which is a larger one."""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.family import TEXT, TextHalf
from penstock.families.hearing import MAX_BINS, OF_TRAINING, AudioFamily
from penstock.families.qwen3 import QWEN3
from penstock.families.tower_names import AUDIO_TOWER, PROJECTOR
from penstock.families.vision.qwen2_5_omni import OMNI_2_5
from penstock.families.vision.qwen3_omni import BESIDE, HALVES, KNOWN_AS, OMNI, USUAL
from penstock.families.vision.reading import MAX_WIDTH, bounded, heads
from penstock.formats.fields import Fields
from penstock.model.audio_spec import AudioSpec, BlockTowerSpec, halved
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.sound_projector_spec import NarrowProjector

TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 65_536,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
TOWER_DEFAULTS: dict[str, object] = {
    "d_model": 1024,
    "encoder_ffn_dim": 4096,
    "encoder_layers": 24,
    "encoder_attention_heads": 16,
    "num_mel_bins": 128,
    "downsample_hidden_size": 480,
    "n_window": 50,
    "n_window_infer": 800,
    "output_dim": 3584,
    "max_position_embeddings": 13,
}
"""The tower's defaults in transformers' Qwen3ASREncoderConfig; the decoder's are those of
Qwen3ASRConfig."""
HALF_BLOCK = 50
"""Windows: transformers counts 13 vectors for each block, whatever n_window says."""
MAX_SEEN = 65_536
"""Most blocks that see one another."""
OF_SPEECH = (
    *("code2wav_config", "enable_audio_output", "enable_talker", "talker_config"),
    "token2wav_config",
)
"""What config.json of Qwen3-Omni and Qwen2.5-Omni says of what speaks, which isn't read."""
OF_OMNI = ("conv_chunksize", "max_source_positions")
"""Settings of the encoder's code in Qwen3-Omni, which change nothing here; the first says how many
blocks are convolved at a time."""


def _read(fields: Fields, section: Fields, text: ModelConfig) -> AudioSpec:
    if "classify_num" in fields:
        raise UnsupportedModel(
            f"{fields.where}: a model that says when words are spoken (classify_num) is not "
            "served; those that transcribe are"
        )
    return block_tower(section.completed(**TOWER_DEFAULTS), text)


def block_tower(section: Fields, text: ModelConfig, *, short_alone: bool = False) -> AudioSpec:
    """Returns the audio tower of Qwen3-ASR and Qwen3-Omni. section: about the tower, with its
    defaults. short_alone: as BlockTowerSpec has it. Raises UnsupportedModel for one that isn't
    served."""
    hidden = bounded(section, "d_model", MAX_WIDTH)
    hub.only(section, scale_embedding=False)
    act = hub.activation(section, "gelu", "silu", key="activation_function", default="gelu")
    hub.only(section, n_window=HALF_BLOCK)
    block = 2 * HALF_BLOCK
    seen, rest = divmod(bounded(section, "n_window_infer", MAX_SEEN * block), block)
    if rest or not seen:
        raise section.wrong("n_window_infer", f"a multiple of {block}, twice n_window,")
    if hidden % 2:
        raise section.wrong("d_model", "an even number")
    if section.integer("max_position_embeddings", halved(block)) < halved(block):
        raise section.wrong("max_position_embeddings", f"{halved(block)} at least")
    if section.integer("output_dim") != text.hidden_size:
        raise section.wrong("output_dim", f"{text.hidden_size}, the decoder's hidden size,")
    tower = BlockTowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "encoder_ffn_dim", MAX_WIDTH),
        num_layers=layer_count(section, "encoder_layers"),
        num_heads=heads(section, "encoder_attention_heads", hidden),
        mel_bins=bounded(section, "num_mel_bins", MAX_BINS),
        channels=bounded(section, "downsample_hidden_size", MAX_WIDTH),
        block=block,
        short_alone=short_alone,
        seen=seen,
        norm=NormSpec(kind="layer", eps=1e-5, bias=True),
        activation=act,
    )
    section.ignore(*OF_TRAINING, *OF_OMNI)
    return AudioSpec(tower=tower, projector=NarrowProjector(activation=act))


NAMES = AUDIO_TOWER | {"audio_tower.proj1": "projector.1", "audio_tower.proj2": "projector.2"}

QWEN3_ASR = AudioFamily(
    "qwen3_asr",
    ("Qwen3ASRForConditionalGeneration",),
    "Qwen3-ASR",
    {
        name: TextHalf(QWEN3, TEXT_DEFAULTS)
        for name in ("qwen3", "qwen3_asr_text")  # the second one in the makers' own files
    },
    _read,
    usual="qwen3",
    harmless=frozenset({"support_languages", "token_classification_bias"}),
    hub_names=NAMES | PROJECTOR,
)
OMNI_DEFAULTS = TOWER_DEFAULTS | {
    "d_model": 1280,
    "encoder_ffn_dim": 5120,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
}
"""What transformers' Qwen3OmniMoeAudioEncoderConfig has by default."""


def _read_omni(fields: Fields, section: Fields, text: ModelConfig) -> AudioSpec:
    return block_tower(section.completed(**OMNI_DEFAULTS), text, short_alone=True)


QWEN3_OMNI_AUDIO = AudioFamily(
    "qwen3_omni",
    OMNI,
    KNOWN_AS,
    HALVES,
    _read_omni,
    usual=USUAL,
    harmless=BESIDE,
    hub_names=NAMES,
)
THINKER = "thinker_config"
OF_TIME = ("mrope_section", "mrope_interleaved", "interleaved")


def lifted(fields: Fields) -> Fields:
    """config.json of Qwen3-ASR, Qwen3-Omni or Qwen2.5-Omni in their makers' form, as transformers
    has what listens and writes: what is said under `thinker_config` stands at the top. Positions of
    a sound are the same number thrice there, as a text's, so that it doesn't matter to Qwen3-ASR
    which pairs turn by which.

    Returns `fields` themselves of other models."""
    names = fields.listed("architectures", str) if "architectures" in fields else []
    known = (QWEN3_ASR.hub_classes, (*OMNI, *OMNI_2_5))
    hears, omni = (any(each in names for each in classes) for classes in known)
    if THINKER not in fields or not (hears or omni):
        return fields
    inner = fields.section(THINKER)
    text = dict(inner.section(TEXT).values)
    rope = text.get("rope_scaling")
    if isinstance(rope, dict) and hears:
        text["rope_scaling"] = {key: rope[key] for key in rope if key not in OF_TIME}
    above = {key: value for key, value in fields.values.items() if key not in (THINKER, *OF_SPEECH)}
    return Fields({**inner.values, TEXT: text, **above}, fields.where)
