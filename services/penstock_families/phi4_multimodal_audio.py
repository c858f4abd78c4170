"""Phi-4-multimodal's hearing: a conformer whose vectors know how far apart they are by a table, and
two products, which have other weights where a prompt has pictures too.

Source: Microsoft, "Phi-4-mini technical report", 2025; keys: transformers'
Phi4MultimodalAudioConfig, and the makers' code.
"""

from __future__ import annotations

from typing import Any

from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.hearing import MAX_BINS, AudioFamily
from penstock.families.tower_names import TowerNames, under
from penstock.families.vision.phi4_multimodal import CLASSES, HALVES, HARMLESS, flat_decoder
from penstock.families.vision.reading import MAX_WIDTH, bounded, heads
from penstock.formats.fields import Fields
from penstock.model.audio_spec import AudioSpec, BiasedConformerSpec
from penstock.model.config import ModelConfig
from penstock.model.sound_projector_spec import TwofoldProjector

DEFAULTS: dict[str, object] = {
    "hidden_size": 1024,
    "intermediate_size": 1536,
    "num_blocks": 24,
    "num_attention_heads": 16,
    "ext_pw_out_channel": 1024,
    "depthwise_separable_out_channel": 1024,
    "kernel_size": 3,
    "input_size": 80,
    "time_reduction": 8,
    "bias_max_distance": 1000,
    "nemo_conv_channels": 1024,
}
"""Defaults of transformers' Phi4MultimodalAudioConfig."""
SWISH = ("swish", "silu")
MAX_REACH = 1024
"""Most vectors that the convolution of a layer reads."""
REDUCTIONS = (2, 4, 8, 16, 32)
"""Windows that may become a vector."""
INERT = ("audio_token_id", "dropout_rate", "feature_layer", "left_chunk", "nemo_final_size")
"""What changes nothing: of training, of streams, or read with the sounds' preparation."""
OF_MAKERS = {
    "attention_dim": "hidden_size",
    "attention_heads": "num_attention_heads",
    "linear_units": "intermediate_size",
    "depthwise_seperable_out_channel": "depthwise_separable_out_channel",
}
"""The makers' keys, where transformers calls the same otherwise."""
ONE_FORM: dict[str, object] = {
    "batch_norm": False,
    "bias_in_glu": True,
    "causal": True,
    "cnn_layer_norm": True,
    "ext_pw_kernel_size": 1,
    "input_layer": "nemo_conv",
}
"""What their file says of layers, in the one form that releases have."""
EMBEDDED: dict[str, object] = {
    "downsample_rate": 1,
    "projection_cls": "mlp",
    "use_conv_downsample": False,
    "use_qformer": False,
}
"""What it says of the projector."""


def _of_makers(fields: Fields) -> Fields:
    """The tower's settings by transformers' names."""
    hub.only(fields.section("embd_layer").section("audio_embd_layer"), **EMBEDDED)
    stated = fields.section("audio_processor").section("config")
    hub.only(stated, **ONE_FORM)
    biases = stated.section("relative_attention_bias_args")
    hub.only(biases, type="t5")
    values: dict[str, Any] = {
        OF_MAKERS.get(key, key): value
        for key, value in stated.values.items()
        if key not in ONE_FORM
    }
    values |= {
        "bias_max_distance": biases.values.get("t5_bias_max_distance"),
        "bias_symmetric": biases.values.get("t5_bias_symmetric"),
        "nemo_conv_channels": stated.section("nemo_conv_settings").values.get("conv_channels"),
    }
    return Fields(values, stated.where)


def _read(fields: Fields, section: Fields, text: ModelConfig) -> AudioSpec:
    if not section.values and "audio_processor" in fields:
        section = _of_makers(fields)
    section = section.completed(**DEFAULTS)
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    hub.only(section, chunk_size=-1, downsample_rate=1, depthwise_multiplier=1)
    hub.only(section, ext_pw_out_channel=hidden, depthwise_separable_out_channel=hidden)
    hub.only(section, nemo_activation="relu")
    for key in ("activation", "conv_activation", "conv_glu_type"):
        if section.text(key, "swish") not in SWISH:
            raise section.wrong(key, " or ".join(SWISH))
    count = heads(section, "num_attention_heads", hidden)
    hub.only(section, head_dim=hidden // count)
    reduction = section.integer("time_reduction")
    if reduction not in REDUCTIONS:
        raise section.wrong("time_reduction", ", ".join(map(str, REDUCTIONS)))
    section.ignore(*INERT)
    tower = BiasedConformerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        num_layers=layer_count(section, "num_blocks"),
        num_heads=count,
        mel_bins=bounded(section, "input_size", MAX_BINS),
        channels=bounded(section, "nemo_conv_channels", MAX_WIDTH),
        halvings=reduction.bit_length() - 1,
        distances=bounded(section, "bias_max_distance", MAX_WIDTH),
        symmetric=section.flag("bias_symmetric", False),
        reach=bounded(section, "kernel_size", MAX_REACH),
    )
    return AudioSpec(tower=tower, projector=TwofoldProjector())


_IN_LAYER: TowerNames = {
    # The makers' names.
    **{
        f"feed_forward_{at}.{theirs}": f"feed_forward_{at}.{ours}"
        for at in ("in", "out")
        for theirs, ours in {"net.0.linear": "gate_up_proj", "net.2": "down_proj"}.items()
    },
    **{f"self_attn.linear_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    "self_attn.linear_out": "self_attn.o_proj",
}
NAMES = under(
    "embed_tokens_extend.audio_embed",
    {
        "encoder": "",
        **under("encoder.encoders.*", _IN_LAYER, "layers.*"),
        "up_proj_for_speech": "projector.1",
        "down_proj_for_speech": "projector.2",
        "up_proj_for_vision_speech": "projector.beside.1",
        "down_proj_for_vision_speech": "projector.beside.2",
        "audio_projection.speech.0": "projector.1",
        "audio_projection.speech.2": "projector.2",
        "audio_projection.vision.0": "projector.beside.1",
        "audio_projection.vision.2": "projector.beside.2",
    },
)

PHI4_MULTIMODAL_AUDIO = AudioFamily(
    "phi4_multimodal",
    CLASSES,
    "Phi-4-multimodal",
    HALVES,
    _read,
    usual="phi4_multimodal",
    flat=flat_decoder,
    harmless=HARMLESS,
    ignored=tuple(HARMLESS),
    hub_names=NAMES,
)
