"""Families of several makers that are Llama but for one or two things.

SmolLM3 has no positions in every fourth layer; Seed-OSS has biases on queries, keys and values;
ERNIE 4.5, dense, has adjacent rotary pairs; AFM has squared relu and no gate; Code World Model has
windows in three of four layers; Phi-3, Phi-3.5 and Phi-4, dense, have fused projections and
stretched rotary positions, and Phi-4-mini heads that rotate in part; StarCoder2 has layer norms, a
feed-forward without a gate, biases everywhere, and a sliding window; StableLM 2 and StableLM 3B
have layer norms, and heads of which a quarter rotates.

Sources: Hugging Face, "SmolLM3", 2025; Yang et al., "RoPE to NoPE and back again", 2025; ByteDance
Seed, 2025; Baidu, "ERNIE 4.5", 2025; Arcee, "AFM-4.5B", 2025; Meta FAIR, "CWM", 2025; Abdin et al.,
"Phi-3 technical report", 2024; "Phi-4 technical report", 2024; Lozhkov et al., "StarCoder 2 and The
Stack v2", 2024; Bellagente et al., "Stable LM 2 1.6B technical report", 2024.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec


def _hub_smollm3(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes, bias = hub.sizes(fields, tied=True), fields.flag("attention_bias", False)
    count, interval = sizes["num_layers"], fields.integer("no_rope_layer_interval", 4)
    rotates = [int((number + 1) % interval != 0) for number in range(count)]
    if "no_rope_layers" in fields:
        rotates = fields.listed("no_rope_layers", int)
    if len(rotates) != count:
        raise fields.wrong("no_rope_layers", f"a list of {count} numbers")
    feed_forward = FeedForwardSpec(bias=fields.flag("mlp_bias", False))
    layers = [
        LayerSpec(
            attention=AttentionSpec(
                window=window, rope=0 if turns else None, qkv_bias=bias, output_bias=bias
            ),
            feed_forward=feed_forward,
        )
        for window, turns in zip(hub.windows_behind(fields, count), rotates, strict=True)
    ]
    return ModelConfig(
        architecture="smollm3",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=2_000_000.0),),
        layers=hub.shared(layers),
    )


def _gguf_smollm3(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    layers = [
        LayerSpec(attention=AttentionSpec(rope=0 if (number + 1) % 4 else None))
        for number in range(sizes["num_layers"])
    ]
    return ModelConfig(
        architecture="smollm3",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=hub.shared(layers),
    )


SMOLLM3 = Family(
    "smollm3",
    ("SmolLM3ForCausalLM",),
    "SmolLM3",
    _hub_smollm3,
    gguf="smollm3",
    read_gguf=_gguf_smollm3,
    gguf_names=TensorNames(pairs_adjacent=True),
)


def _hub_seed_oss(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields, default_head_dim=128)
    layer = LayerSpec(
        attention=AttentionSpec(
            qkv_bias=fields.flag("attention_bias", True),
            output_bias=fields.flag("attention_out_bias", False),
        ),
        feed_forward=FeedForwardSpec(bias=fields.flag("mlp_bias", False)),
    )
    return ModelConfig(
        architecture="seed_oss",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
    )


def _gguf_seed_oss(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    attention = AttentionSpec(
        qkv_bias=model.has("attn_q.bias"), output_bias=model.has("attn_output.bias")
    )
    return ModelConfig(
        architecture="seed_oss",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(LayerSpec(attention=attention),),
    )


SEED_OSS = Family(
    "seed_oss",
    ("SeedOssForCausalLM",),
    "Seed-OSS",
    _hub_seed_oss,
    gguf="seed_oss",
    read_gguf=_gguf_seed_oss,
    gguf_names=TensorNames({"attention_output_norm": "post_attention_layernorm"}),
)


def _hub_ernie4_5(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields, default_head_dim=128, tied=True)
    bias = fields.flag("use_bias", False)
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(bias=bias),
    )
    return ModelConfig(
        architecture="ernie4_5",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=500_000.0),),
        layers=(layer,),
    )


def _gguf_ernie4_5(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    bias = model.has("attn_q.bias")
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=bias, output_bias=model.has("attn_output.bias")),
        feed_forward=FeedForwardSpec(bias=model.has("ffn_up.bias")),
    )
    return ModelConfig(
        architecture="ernie4_5",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(layer,),
    )


ERNIE4_5 = Family(
    "ernie4_5",
    ("Ernie4_5ForCausalLM",),
    "ERNIE 4.5",
    _hub_ernie4_5,
    hub_names=TensorNames(pairs_adjacent=True),
    gguf="ernie4_5",
    read_gguf=_gguf_ernie4_5,
    gguf_names=TensorNames(pairs_adjacent=True),
)


def _hub_arcee(fields: Fields) -> ModelConfig:
    hub.activation(fields, "relu2", default="relu2")
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(
            activation="relu2", gated=False, bias=fields.flag("mlp_bias", False)
        ),
    )
    return ModelConfig(
        architecture="arcee",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
    )


def _gguf_arcee(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    feed_forward = FeedForwardSpec(activation="relu2", gated=False, bias=model.has("ffn_up.bias"))
    return ModelConfig(
        architecture="arcee",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(LayerSpec(feed_forward=feed_forward),),
    )


ARCEE = Family(
    "arcee",
    ("ArceeForCausalLM",),
    "AFM",
    _hub_arcee,
    gguf="arcee",
    read_gguf=_gguf_arcee,
    gguf_names=TensorNames(pairs_adjacent=True),
)


def _hub_cwm(fields: Fields) -> ModelConfig:
    """Three of four layers have a window."""
    hub.activation(fields, "silu")
    sizes, bias = hub.sizes(fields, default_head_dim=128), fields.flag("mlp_bias", False)
    count = sizes["num_layers"]
    usual = [hub.SLIDING if number % 4 else hub.FULL for number in range(count)]
    layers = [
        LayerSpec(
            attention=AttentionSpec(window=hub.window(fields) if kind == hub.SLIDING else None),
            feed_forward=FeedForwardSpec(bias=bias),
        )
        for kind in hub.layer_kinds(fields, count, usual)
    ]
    return ModelConfig(
        architecture="cwm",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=1_000_000.0),),
        layers=hub.shared(layers),
    )


CWM = Family("cwm", ("CwmForCausalLM",), "Code World Model", _hub_cwm)


FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def _hub_phi3(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    fields.ignore("full_attn_mod", "interpolate_factor")  # of training
    window = hub.window(fields) if "sliding_window" in fields else None
    return ModelConfig(
        architecture="phi3",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"], share=1.0),),
        layers=(LayerSpec(attention=AttentionSpec(window=window)),),
    )


GGUF_FUSED = {
    "self_attn.qkv_proj": FUSED["self_attn.qkv_proj"],
    "mlp.up_proj": FUSED["mlp.gate_up_proj"],
}


def _gguf_phi3(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    return ModelConfig(
        architecture="phi3",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.long_rope(sizes["head_dim"]),),
        layers=(LayerSpec(attention=AttentionSpec(window=model.window())),),
    )


PHI3 = Family(
    "phi3",
    ("Phi3ForCausalLM",),
    "Phi-3, Phi-4",
    _hub_phi3,
    hub_names=TensorNames(fused=FUSED),
    gguf="phi3",
    read_gguf=_gguf_phi3,
    gguf_names=TensorNames(fused=GGUF_FUSED),
)


def _hub_starcoder2(fields: Fields) -> ModelConfig:
    act = hub.activation(fields, "gelu_tanh", "gelu", default="gelu_pytorch_tanh")
    sizes, bias = hub.sizes(fields, tied=True), fields.flag("use_bias", True)
    window = hub.window(fields) if "sliding_window" in fields else None
    layer = LayerSpec(
        attention=AttentionSpec(window=window, qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(activation=act, gated=False, bias=bias),
    )
    fields.ignore("mlp_type", "norm_type")  # default and layer_norm, in all releases
    return ModelConfig(
        architecture="starcoder2",
        **sizes,
        norm=NormSpec(kind="layer", eps=fields.number("norm_epsilon", 1e-5), bias=True),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
    )


def _gguf_starcoder2(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    layer = LayerSpec(
        attention=AttentionSpec(
            qkv_bias=model.has("attn_q.bias"), output_bias=model.has("attn_output.bias")
        ),
        feed_forward=FeedForwardSpec(
            activation="gelu_tanh", gated=False, bias=model.has("ffn_up.bias")
        ),
    )
    return ModelConfig(
        architecture="starcoder2",
        **sizes,
        norm=NormSpec(kind="layer", eps=model.layer_norm_eps(), bias=True),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(layer,),
    )


STARCODER2 = Family(
    "starcoder2",
    ("Starcoder2ForCausalLM",),
    "StarCoder2",
    _hub_starcoder2,
    hub_names=TensorNames({"mlp.c_fc": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj"}),
    gguf="starcoder2",
    read_gguf=_gguf_starcoder2,
)


def _hub_stablelm(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    if fields.flag("qk_layernorm", False):
        raise UnsupportedModel(f"{fields.where}: qk_layernorm is true; only false is served")
    parallel = fields.flag("use_parallel_residual", False)
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=fields.flag("use_qkv_bias", False)),
        order="parallel" if parallel else "pre",
    )
    return ModelConfig(
        architecture="stablelm",
        **sizes,
        norm=NormSpec(kind="layer", eps=fields.number("layer_norm_eps", 1e-5), bias=True),
        ropes=(hub.rope(fields, sizes["head_dim"], share=0.25),),
        layers=(layer,),
    )


def _gguf_stablelm(model: GGUFMetadata) -> ModelConfig:
    sizes, keys = model.sizes(), model.keys
    parallel = keys.flag("use_parallel_residual", False)
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=model.has("attn_q.bias")),
        order="parallel" if parallel else "pre",
    )
    return ModelConfig(
        architecture="stablelm",
        **sizes,
        norm=NormSpec(kind="layer", eps=model.layer_norm_eps(), bias=True),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(layer,),
    )


STABLELM = Family(
    "stablelm",
    ("StableLmForCausalLM",),
    "StableLM",
    _hub_stablelm,
    gguf="stablelm",
    read_gguf=_gguf_stablelm,
)
