"""ModernBERT: pre-norm layers with rotary positions, of which most see a window.

Source: Warner et al., "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder", 2024; keys
and defaults: transformers' ModernBertConfig.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import ClassifierHead, EncoderFamily, WordHead
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.llama_relatives import GGUF_FUSED
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.rope_spec import RopeSpec

GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0
DEFAULTS = {
    "vocab_size": 50_368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
}
IGNORED = (
    "classifier_pooling",  # read with the labels
    "cls_token_id",
    "decoder_bias",  # of the head that fills in masked words
    "deterministic_flash_attn",
    "embedding_dropout",
    "gradient_checkpointing",
    "initializer_cutoff_factor",
    "layer_norm_eps",  # norm_eps is the one that is read
    "mlp_dropout",
    "position_embedding_type",  # stated, and not read by the model
    "reference_compile",
    "repad_logits_with_grad",
    "sparse_pred_ignore_index",
    "sparse_prediction",
)


def _rope(fields: Fields, dims: int, kind: str, key: str, theta: float) -> RopeSpec:
    """Releases before 5 of transformers name a theta of each kind; later ones have a section."""
    stated = fields.number(key, theta)
    return hub.rope(fields, dims, kind=kind, theta=stated)


def _layers(fields: Fields) -> EncoderConfig:
    fields = fields.completed(**DEFAULTS)
    fields.ignore(*IGNORED)
    for key in ("hidden_activation", "classifier_activation"):
        hub.activation(fields, "gelu", key=key, default="gelu")
    sizes = hub.sizes(fields, tied=True)
    count, dim = sizes["num_layers"], sizes["head_dim"]
    every = fields.integer("global_attn_every_n_layers", 3)
    default = [hub.FULL if every and n % every == 0 else hub.SLIDING for n in range(count)]
    kinds = hub.layer_kinds(fields, count, default)
    window = hub.window(fields.completed(local_attention=128), "local_attention") // 2 + 1
    bias, inner_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    layers = tuple(
        LayerSpec(
            attention=AttentionSpec(
                window=window if kind == hub.SLIDING else None,
                rope=1 if kind == hub.SLIDING else 0,
                qkv_bias=bias,
                output_bias=bias,
            ),
            feed_forward=FeedForwardSpec(activation="gelu", bias=inner_bias),
            first_norm=number > 0,
        )
        for number, kind in enumerate(kinds)
    )
    eps = fields.number("norm_eps", 1e-5)
    return EncoderConfig(
        layers=ModelConfig(
            architecture="modernbert",
            **{**sizes, "tie_word_embeddings": True},
            norm=NormSpec(kind="layer", eps=eps, bias=fields.flag("norm_bias", False)),
            ropes=(
                _rope(fields, dim, hub.FULL, "global_rope_theta", GLOBAL_THETA),
                _rope(fields, dim, hub.SLIDING, "local_rope_theta", LOCAL_THETA),
            ),
            layers=layers,
            embedding_norm=True,
        ),
        head_bias=fields.flag("classifier_bias", False),
    )


def _gguf(model: GGUFMetadata) -> EncoderConfig:
    sizes, keys = model.sizes(), model.keys
    dim, window = sizes["head_dim"], keys.integer("attention.sliding_window", 0)
    hub.only(keys, hidden_act="gelu")
    every = keys.integer("attention.sliding_window_pattern", 3)
    bias, inner_bias = model.has("attn_qkv.bias"), model.has("ffn_up.bias")
    layers = []
    for number in range(sizes["num_layers"]):
        slides = window > 0 and every > 0 and number % every > 0
        attention = AttentionSpec(
            window=window // 2 + 1 if slides else None,
            rope=1 if slides else 0,
            qkv_bias=bias,
            output_bias=bias,
        )
        feed_forward = FeedForwardSpec(activation="gelu", bias=inner_bias)
        layer = LayerSpec(attention=attention, feed_forward=feed_forward, first_norm=number > 0)
        layers.append(layer)
    bias = "output_norm.bias" in model.tensors
    return EncoderConfig(
        layers=ModelConfig(
            architecture="modernbert",
            **{**sizes, "tie_word_embeddings": True},
            norm=NormSpec(kind="layer", eps=model.layer_norm_eps(), bias=bias),
            ropes=(
                model.rope(dim, theta=GLOBAL_THETA),
                model.rope(dim, theta=LOCAL_THETA, local=True),
            ),
            layers=tuple(layers),
            embedding_norm=True,
        ),
        head_bias="cls.bias" in model.tensors,
    )


MODERNBERT = EncoderFamily(
    "modernbert",
    ("modernbert",),
    gguf="modern-bert",
    read_gguf=_gguf,
    gguf_names=TensorNames(fused=GGUF_FUSED),
    head=ClassifierHead("head.dense", "classifier", "gelu", norm="head.norm", pooled="mean"),
    token_head="",
    words=WordHead("head.dense", "head.norm", "decoder"),
    read_layers=_layers,
    layer_names=TensorNames(
        modules={
            "embeddings.tok_embeddings": "embed_tokens",
            "embeddings.norm": "embedding_norm",
            "final_norm": "norm",
            "attn_norm": "input_layernorm",
            "attn.Wo": "self_attn.o_proj",
            "mlp_norm": "post_attention_layernorm",
            "mlp.Wo": "mlp.down_proj",
        },
        fused={
            "attn.Wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "mlp.Wi": ("mlp.gate_proj", "mlp.up_proj"),
        },
    ),
)
