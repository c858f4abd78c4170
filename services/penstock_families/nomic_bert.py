"""Nomic BERT: BERT with rotary positions, gated feed-forwards and no biases but those of its norms.

Source: Nussbaum et al., "Nomic Embed: Training a Reproducible Long Context Text Embedder", 2024;
Nussbaum and Duderstadt, "Training sparse mixture of experts text embedding models", 2025; keys:
transformers' NomicBertConfig, and those of GPT-2 that releases before it have.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families.bert_gguf import GGUF_NAMES, bert_sizes, refuse_tensors
from penstock.families.bert_reading import bert_encoder, rope_theta, rotating_head_dim
from penstock.families.family import EncoderFamily
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.tensor_names import bert_names
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig
from penstock.model.layer_spec import ExpertsSpec
from penstock.model.rope_spec import RopeSpec

THETA = 1000.0
WITH_EXPERTS = "nomic-bert-moe"
"""What GGUF files of models with experts name as their architecture."""
OLD_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
"""Keys -> those of releases before transformers had the model."""
ONLY = {
    "prenorm": False,
    "causal": False,
    "parallel_block": False,
    "use_rms_norm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_interleaved": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "rotary_emb_fraction": 1.0,
    "rotary_scaling_factor": None,
    "rotary_emb_scale_base": None,
    "moe_every_n_layers": 0,
}
"""Settings of those releases of which one value is served."""
IGNORED = (
    "attn_pdrop",
    "dense_seq_output",
    "fused_bias_fc",
    "fused_dropout_add_ln",
    "head_dim",
    "pad_vocab_size_multiple",
    "parallel_block_tied_norm",
    "reorder_and_upcast_attn",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "use_flash_attn",
    "use_xentropy",
)


def _read(fields: Fields) -> EncoderConfig:
    for key, value in ONLY.items():
        if fields.values.get(key, value) != value:
            raise UnsupportedModel(
                f"{fields.where}: {key} {fields.values[key]!r} is not served; {value} is"
            )
    fields.ignore(*ONLY, *IGNORED)
    older = {key: fields.values[old] for key, old in OLD_NAMES.items() if old in fields}
    fields.ignore(*OLD_NAMES.values())
    stated = fields.completed(**older)
    activation = stated.text("hidden_act", "silu")
    if activation not in ("silu", "swiglu"):
        raise UnsupportedModel(
            f"{fields.where}: the activation {activation!r} is not served; silu is"
        )
    hidden, heads = stated.integer("hidden_size"), stated.integer("num_attention_heads")
    dims = rotating_head_dim(hidden, heads, fields.where)
    longest = stated.integer("max_position_embeddings", 2048)
    return bert_encoder(
        "nomic_bert",
        vocab_size=stated.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=stated.integer("intermediate_size"),
        num_layers=stated.integer("num_hidden_layers"),
        num_heads=heads,
        # Beyond, the positions of older releases are stretched, unless they aren't.
        max_position=min(longest, stated.integer("max_trained_positions", longest)),
        token_types=stated.integer("type_vocab_size", 2),
        layer_norm_eps=stated.number("layer_norm_eps", 1e-12),
        activation="silu",
        rope=RopeSpec(theta=rope_theta(stated, stated.number("rotary_emb_base", THETA)), dims=dims),
        gated=True,
        biases=False,
    )


def _gguf(model: GGUFMetadata) -> EncoderConfig:
    sizes = bert_sizes(model)
    if model.architecture == WITH_EXPERTS:
        return _gguf_with_experts(model, sizes)
    refuse_tensors(model, "attn_qkv.bias", "ffn_up.bias", of="a bias")
    return bert_encoder(
        "nomic_bert",
        **sizes,
        activation="silu",
        rope=model.rope(sizes["hidden_size"] // sizes["num_heads"], theta=THETA),
        gated=True,
        biases=False,
    )


def _gguf_with_experts(model: GGUFMetadata, sizes: dict[str, Any]) -> EncoderConfig:
    """Nomic Embed v2: every second layer has experts, chosen by a softmax over all; feed-forwards
    have no gates, and all other products biases. The experts' own bias isn't in such files."""
    every = model.keys.integer("moe_every_n_layers")
    if every < 2:
        raise model.keys.wrong("moe_every_n_layers", "a number of layers, at least 2,")
    experts = ExpertsSpec(
        **model.expert_counts(), inner=sizes["intermediate_size"], normalised=False
    )
    return bert_encoder(
        "nomic_bert",
        **sizes,
        activation="gelu",
        rope=model.rope(sizes["hidden_size"] // sizes["num_heads"], theta=THETA),
        experts=experts,
        experts_every=every,
    )


NOMIC_BERT = EncoderFamily(
    "nomic_bert",
    ("nomic_bert",),
    prefixes=("bert",),
    read_layers=_read,
    gguf="nomic-bert",
    gguf_also=(WITH_EXPERTS,),
    read_gguf=_gguf,
    gguf_names=GGUF_NAMES,
    layer_names=bert_names(
        qkv="attn.Wqkv",
        output="attn.out_proj",
        attention_norm="norm1",
        up="mlp.fc11",
        down="mlp.fc2",
        norm="norm2",
        further={"emb_ln": "embedding_norm", "mlp.fc12": "mlp.gate_proj"},
    ),
)
