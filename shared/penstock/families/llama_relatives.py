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
from penstock.families.family import Family
from penstock.families.source import (
    OUTPUT,
    QUERY,
    UP,
    GGUFSource,
    HubSource,
    Source,
    decoder,
    of_gguf,
    of_hub,
)
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec


def _smollm3(source: Source) -> ModelConfig:
    source.activation("silu")
    sizes, bias = source.sizes(tied=True), source.bias(QUERY)
    count, interval = sizes["num_layers"], source.integer("no_rope_layer_interval", 4, without=4)
    rotates = [int((number + 1) % interval != 0) for number in range(count)]
    if "no_rope_layers" in source.fields:
        rotates = source.fields.listed("no_rope_layers", int)
    if len(rotates) != count:
        raise source.fields.wrong("no_rope_layers", f"a list of {count} numbers")
    feed_forward = FeedForwardSpec(bias=source.bias(UP, "mlp_bias"))
    layers = [
        LayerSpec(
            attention=AttentionSpec(
                window=window, rope=0 if turns else None, qkv_bias=bias, output_bias=bias
            ),
            feed_forward=feed_forward,
        )
        for window, turns in zip(source.windows_behind(count), rotates, strict=True)
    ]
    return decoder(source, "smollm3", sizes, layers, theta=2_000_000.0)


SMOLLM3 = Family(
    "smollm3",
    ("SmolLM3ForCausalLM",),
    "SmolLM3",
    of_hub(_smollm3),
    gguf="smollm3",
    read_gguf=of_gguf(_smollm3),
    gguf_names=TensorNames(pairs_adjacent=True),
)


def _seed_oss(source: Source) -> ModelConfig:
    source.activation("silu")
    layer = LayerSpec(
        attention=AttentionSpec(
            qkv_bias=source.bias(QUERY, default=True),
            output_bias=source.bias(OUTPUT, "attention_out_bias"),
        ),
        feed_forward=FeedForwardSpec(bias=source.bias(UP, "mlp_bias")),
    )
    return decoder(source, "seed_oss", source.sizes(head_dim=128), [layer])


SEED_OSS = Family(
    "seed_oss",
    ("SeedOssForCausalLM",),
    "Seed-OSS",
    of_hub(_seed_oss),
    gguf="seed_oss",
    read_gguf=of_gguf(_seed_oss),
    gguf_names=TensorNames({"attention_output_norm": "post_attention_layernorm"}),
)


def _ernie4_5(source: Source) -> ModelConfig:
    source.activation("silu")
    query, output, up = (source.bias(each, "use_bias") for each in (QUERY, OUTPUT, UP))
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=query, output_bias=output),
        feed_forward=FeedForwardSpec(bias=up),
    )
    sizes = source.sizes(head_dim=128, tied=True)
    return decoder(source, "ernie4_5", sizes, [layer], eps=1e-5, theta=500_000.0)


ERNIE4_5 = Family(
    "ernie4_5",
    ("Ernie4_5ForCausalLM",),
    "ERNIE 4.5",
    of_hub(_ernie4_5),
    hub_names=TensorNames(pairs_adjacent=True),
    gguf="ernie4_5",
    read_gguf=of_gguf(_ernie4_5),
    gguf_names=TensorNames(pairs_adjacent=True),
)


def _arcee(source: Source) -> ModelConfig:
    source.activation("relu2", default="relu2")
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=source.bias(QUERY), output_bias=source.bias(OUTPUT)),
        feed_forward=FeedForwardSpec(
            activation="relu2", gated=False, bias=source.bias(UP, "mlp_bias")
        ),
    )
    return decoder(source, "arcee", source.sizes(), [layer], eps=1e-5)


ARCEE = Family(
    "arcee",
    ("ArceeForCausalLM",),
    "AFM",
    of_hub(_arcee),
    gguf="arcee",
    read_gguf=of_gguf(_arcee),
    gguf_names=TensorNames(pairs_adjacent=True),
)


def _cwm(fields: Fields) -> ModelConfig:
    """Three of four layers have a window."""
    source = HubSource(fields)
    source.activation("silu")
    sizes, bias = source.sizes(head_dim=128), fields.flag("mlp_bias", False)
    count = sizes["num_layers"]
    usual = [hub.SLIDING if number % 4 else hub.FULL for number in range(count)]
    layers = [
        LayerSpec(
            attention=AttentionSpec(window=hub.window(fields) if kind == hub.SLIDING else None),
            feed_forward=FeedForwardSpec(bias=bias),
        )
        for kind in hub.layer_kinds(fields, count, usual)
    ]
    return decoder(source, "cwm", sizes, layers, eps=1e-5, theta=1_000_000.0)


CWM = Family("cwm", ("CwmForCausalLM",), "Code World Model", _cwm)


FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def _phi3(source: Source) -> ModelConfig:
    source.activation("silu")
    source.ignore("full_attn_mod", "interpolate_factor")  # of training
    sizes, layer = source.sizes(), LayerSpec(attention=AttentionSpec(window=source.window()))
    rope = None
    if isinstance(source, GGUFSource):
        rope = source.model.long_rope(sizes["head_dim"])
    return decoder(source, "phi3", sizes, [layer], eps=1e-5, share=1.0, rope=rope)


GGUF_FUSED = {
    "self_attn.qkv_proj": FUSED["self_attn.qkv_proj"],
    "mlp.up_proj": FUSED["mlp.gate_up_proj"],
}


PHI3 = Family(
    "phi3",
    ("Phi3ForCausalLM",),
    "Phi-3, Phi-4",
    of_hub(_phi3),
    hub_names=TensorNames(fused=FUSED),
    gguf="phi3",
    read_gguf=of_gguf(_phi3),
    gguf_names=TensorNames(fused=GGUF_FUSED),
)


def _starcoder2(source: Source) -> ModelConfig:
    act = source.activation("gelu_tanh", "gelu", default="gelu_pytorch_tanh")
    query, output, up = (source.bias(each, "use_bias", True) for each in (QUERY, OUTPUT, UP))
    window = None if isinstance(source, GGUFSource) else source.window()
    layer = LayerSpec(
        attention=AttentionSpec(window=window, qkv_bias=query, output_bias=output),
        feed_forward=FeedForwardSpec(activation=act, gated=False, bias=up),
    )
    source.ignore("mlp_type", "norm_type")  # default and layer_norm, in all releases
    norm = NormSpec(kind="layer", eps=source.layer_norm_eps(key="norm_epsilon"), bias=True)
    return decoder(source, "starcoder2", source.sizes(tied=True), [layer], norm=norm)


STARCODER2 = Family(
    "starcoder2",
    ("Starcoder2ForCausalLM",),
    "StarCoder2",
    of_hub(_starcoder2),
    hub_names=TensorNames({"mlp.c_fc": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj"}),
    gguf="starcoder2",
    read_gguf=of_gguf(_starcoder2),
)


def _stablelm(source: Source) -> ModelConfig:
    source.activation("silu")
    if source.flag("qk_layernorm", False):
        raise UnsupportedModel(f"{source.fields.where}: qk_layernorm is true; only false is served")
    parallel = source.flag("use_parallel_residual", False, gguf="use_parallel_residual")
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=source.bias(QUERY, "use_qkv_bias")),
        order="parallel" if parallel else "pre",
    )
    norm = NormSpec(kind="layer", eps=source.layer_norm_eps(), bias=True)
    return decoder(source, "stablelm", source.sizes(), [layer], norm=norm, share=0.25)


STABLELM = Family(
    "stablelm",
    ("StableLmForCausalLM",),
    "StableLM",
    of_hub(_stablelm),
    gguf="stablelm",
    read_gguf=of_gguf(_stablelm),
)
