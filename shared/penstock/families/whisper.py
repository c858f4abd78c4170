"""Whisper: a decoder that attends to what an encoder makes of half a minute of sound.

Source: Radford et al., "Robust speech recognition via large-scale weak supervision", 2022.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import MAX_INNER, layer_count
from penstock.families.family import Family
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.audio_spec import AudioSpec, AudioTowerSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import CrossAttentionSpec, FeedForwardSpec, LayerSpec, NormSpec

MAX_BINS = 1024
"""Most bands of a spectrogram."""
MAX_POSITIONS = 65_536
"""Most rows of a table of positions."""

_TRAINING = (
    "dropout",
    "activation_dropout",
    "encoder_layerdrop",
    "decoder_layerdrop",
    "init_std",
    "apply_spec_augment",
    "mask_time_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_feature_prob",
    "mask_feature_length",
    "mask_feature_min_masks",
)
_OF_OTHERS = (
    "is_encoder_decoder",
    "num_hidden_layers",  # means the encoder's
    "forced_decoder_ids",  # of generation
    "median_filter_width",  # of the times of words
    "use_weighted_layer_sum",  # of the class that classifies sounds, as the next
    "classifier_proj_size",
)
_NAMES = TensorNames(
    {
        "self_attn.out_proj": "self_attn.o_proj",
        "self_attn_layer_norm": "input_layernorm",
        "encoder_attn.out_proj": "encoder_attn.o_proj",
        "final_layer_norm": "post_attention_layernorm",
        "fc1": "mlp.up_proj",
        "fc2": "mlp.down_proj",
        "layer_norm": "norm",
        "proj_out": "lm_head",
    },
    zero_biases=("self_attn.k_proj", "encoder_attn.k_proj"),
)


def _hub(fields: Fields) -> ModelConfig:
    heads, hidden = fields.integer("decoder_attention_heads"), fields.integer("d_model")
    if heads < 1 or hidden % heads:
        raise UnsupportedModel(
            f"{fields.where}: {heads} attention heads don't divide d_model, {hidden}"
        )
    hub.only(fields, scale_embedding=False)
    act = hub.activation(
        fields, "gelu", "gelu_tanh", "silu", key="activation_function", default="gelu"
    )
    if act == "relu2":  # refused before
        raise fields.wrong("activation_function", "gelu")
    rows, positions = (_positions(fields, f"max_{which}_positions") for which in _HALVES)
    fields.ignore(*_TRAINING, *_OF_OTHERS)
    norm = NormSpec(kind="layer", eps=1e-5, bias=True)
    tower = AudioTowerSpec(
        hidden_size=hidden,
        intermediate_size=fields.integer("encoder_ffn_dim"),
        num_layers=layer_count(fields, "encoder_layers"),
        num_heads=fields.integer("encoder_attention_heads"),
        mel_bins=fields.integer("num_mel_bins"),
        positions=rows,
        norm=norm,
        activation=act,
    )
    _check_tower(tower, fields)
    layer = LayerSpec(
        attention=AttentionSpec(rope=None, qkv_bias=True, output_bias=True),
        feed_forward=FeedForwardSpec(activation=act, gated=False, bias=True),
    )
    return ModelConfig(
        architecture="whisper",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("decoder_ffn_dim"),
        num_layers=layer_count(fields, "decoder_layers"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        max_position=rows + positions,
        norm=norm,
        ropes=(),
        layers=(layer,),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        audio=AudioSpec(tower=tower, projector=None),
        cross_attention=CrossAttentionSpec(rows=rows),
        learned_positions=positions,
    )


def _check_tower(tower: AudioTowerSpec, fields: Fields) -> None:
    if tower.num_heads < 1 or tower.hidden_size % tower.num_heads:
        raise UnsupportedModel(
            f"{fields.where}: {tower.num_heads} encoder_attention_heads don't divide d_model, "
            f"{tower.hidden_size}"
        )
    for key, size, most in (
        ("encoder_ffn_dim", tower.intermediate_size, MAX_INNER),
        ("num_mel_bins", tower.mel_bins, MAX_BINS),
    ):
        if not 1 <= size <= most:
            raise UnsupportedModel(f"{fields.where}: {key} is {size}; 1 to {most} are allowed")


_HALVES = ("source", "target")


def _positions(fields: Fields, key: str) -> int:
    count = fields.integer(key)
    if not 1 <= count <= MAX_POSITIONS:
        raise UnsupportedModel(
            f"{fields.where}: {key} is {count}; 1 to {MAX_POSITIONS} are allowed"
        )
    return count


WHISPER = Family(
    "whisper",
    ("WhisperForConditionalGeneration",),
    "Whisper",
    _hub,
    hub_names=_NAMES,
)
