"""GTE, Alibaba's `NewModel`: BERT with rotary positions and gated feed-forwards. Its code lies on
the hub, not in transformers.

Source: Zhang et al., "mGTE: Generalized long-context text representation and reranking models for
multilingual text retrieval", 2024; keys: the config.json of its releases; fixed NTK scaling: Su,
"Transformer upgrade path 16", kexue.fm/archives/9706, 2023.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.bert_reading import bert_encoder, rotating_head_dim
from penstock.families.family import ClassifierHead, EncoderFamily
from penstock.families.hub_reading import refuse_unknown
from penstock.families.tensor_names import bert_names
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig
from penstock.model.rope_spec import RopeScaling, RopeSpec

IGNORED = (
    "logn_attention_clip1",  # of logn_attention_scale
    "pack_qkv",  # tensors say it
    "unpad_inputs",
    "use_memory_efficient_attention",
)
ONLY = {
    "hidden_act": "gelu",
    "layer_norm_type": "layer_norm",
    "position_embedding_type": "rope",
}
"""Settings of which one value is served."""


def _read(fields: Fields) -> EncoderConfig:
    for key, value in ONLY.items():
        if fields.text(key, value) != value:
            raise UnsupportedModel(
                f"{fields.where}: {key} {fields.text(key)!r} is not served; {value} is"
            )
    fields.ignore(*IGNORED)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    dims = rotating_head_dim(hidden, heads, fields.where)
    return bert_encoder(
        "gte",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=heads,
        max_position=fields.integer("max_position_embeddings"),
        token_types=fields.integer("type_vocab_size", 0),
        layer_norm_eps=fields.number("layer_norm_eps", 1e-12),
        rope=_rope(fields, dims),
        gated=True,
    )


def _rope(fields: Fields, dims: int) -> RopeSpec:
    theta, settings = fields.number("rope_theta", 10_000.0), fields.section("rope_scaling")
    kind, factor = settings.text("type", "ntk"), settings.number("factor", 1.0)
    refuse_unknown(settings, ())  # such as mixed_b
    if kind != "ntk" or factor <= 0 or theta <= 0:
        raise UnsupportedModel(
            f"{settings.where}: type {kind!r} by {factor:g} of rope_theta {theta:g} is not served; "
            "ntk is, by a positive factor"
        )
    if factor <= 1:  # which the model's code doesn't apply
        return RopeSpec(theta=theta, dims=dims)
    stretched = RopeScaling(kind="linear", factor=factor ** (2 / dims))
    return RopeSpec(theta=theta * factor, dims=dims, scaling=stretched)


GTE = EncoderFamily(
    "gte",
    ("new", "gte"),
    prefixes=("new",),
    head=ClassifierHead("pooler.dense", "classifier", "tanh"),
    read_layers=_read,
    layer_names=bert_names(
        query="attention.q_proj",
        key="attention.k_proj",
        value="attention.v_proj",
        qkv="attention.qkv_proj",
        output="attention.o_proj",
        attention_norm="attn_ln",
        up_gate="mlp.up_gate_proj",
        down="mlp.down_proj",
        norm="mlp_ln",
        plain_gate=True,
    ),
    unserved=frozenset({"logn_attention_scale"}),
)
