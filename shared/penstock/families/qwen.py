"""Qwen, the first: Llama with biases on queries, keys and values, and other names.

Beyond the tokens that it was trained on, the makers' code changes rotation and queries with a
text's length (dynamic NTK, logn). None of it is computed here, so the context ends there.

Source: Bai et al., "Qwen technical report", 2023, and the makers' modeling_qwen.py.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.source import GGUFSource, HubSource, decoder
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec

TRAINED = 8192
"""Tokens of the releases whose frequencies have THETA. Their GGUF files don't say it, but only how
far the makers' code stretches them."""
THETA = 10_000.0
OF_TRAINING = ("attn_dropout_prob", "emb_dropout_prob", "softmax_in_fp32", "use_flash_attn")
DEFAULTS: dict[str, object] = {"kv_channels": 128, "max_position_embeddings": 8192}
"""Defaults of the makers' QWenConfig."""


def _hub(fields: Fields) -> ModelConfig:
    fields = fields.completed(**DEFAULTS)
    fields.ignore(*OF_TRAINING)
    hub.only(fields, rotary_pct=1.0, scale_attn_weights=True, tie_word_embeddings=False)
    trained = fields.integer("seq_length", TRAINED)
    ntk, logn = (fields.flag(key, True) for key in ("use_dynamic_ntk", "use_logn_attn"))
    bias, source = not fields.flag("no_bias", True), HubSource(fields)
    sizes = hub.sizes(
        fields.completed(head_dim=fields.integer("kv_channels")),
        inner=_half(fields.integer("intermediate_size"), fields.where),
    )
    if ntk or logn:
        sizes["max_position"] = min(sizes["max_position"], trained)
    norm = NormSpec(eps=source.eps(key="layer_norm_epsilon"))
    theta = fields.number("rotary_emb_base", THETA)
    return decoder(source, "qwen", sizes, [_layer(bias)], norm=norm, theta=theta)


def _half(inner: int, where: str) -> int:
    """Gate and up together have so many rows."""
    if inner % 2:
        raise UnsupportedModel(f"{where}: intermediate_size is {inner}; an even one is needed")
    return inner // 2


def _layer(bias: bool) -> LayerSpec:
    """bias: of all products but those of queries, keys and values, which have one anyway."""
    return LayerSpec(
        attention=AttentionSpec(qkv_bias=True, output_bias=bias),
        feed_forward=FeedForwardSpec(bias=bias),
    )


def _gguf(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    sizes["intermediate_size"] = _half(sizes["intermediate_size"], model.keys.where)
    rope = model.rope(sizes["head_dim"])
    if rope.theta == THETA:
        sizes["max_position"] = min(sizes["max_position"], TRAINED)
    layer = _layer(model.has("attn_output.bias"))
    return decoder(GGUFSource(model), "qwen", sizes, [layer], rope=rope)


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
QWEN = Family(
    "qwen",
    ("QWenLMHeadModel",),
    "Qwen",
    _hub,
    hub_names=TensorNames(
        {
            "wte": "embed_tokens",
            "ln_f": "norm",
            "ln_1": "input_layernorm",
            "ln_2": "post_attention_layernorm",
            "attn.c_proj": "self_attn.o_proj",
            "mlp.w1": "mlp.up_proj",
            "mlp.w2": "mlp.gate_proj",
            "mlp.c_proj": "mlp.down_proj",
        },
        fused={"attn.c_attn": QKV},
    ),
    gguf="qwen",
    read_gguf=_gguf,
    gguf_names=TensorNames(fused={"self_attn.qkv_proj": QKV}),
    unserved=frozenset({"visual", "use_cache_quantization"}),
)
