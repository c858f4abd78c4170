"""Jina embeddings v3: XLM-RoBERTa with rotary positions in the place of its table. What it makes
vectors for (a query, a passage, a class, …) is chosen by a LoRA adapter; adapters are separate
files.

Source: Sturua et al., "jina-embeddings-v3: Multilingual embeddings with task LoRA", 2024; keys:
transformers' JinaEmbeddingsV3Config.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.bert_gguf import bert_sizes
from penstock.families.bert_reading import bert_encoder, rope_theta, rotating_head_dim
from penstock.families.family import EncoderFamily
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.tensor_names import bert_names
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig
from penstock.model.rope_spec import RopeSpec

THETA = 20_000.0


def _read(fields: Fields) -> EncoderConfig:
    activation = fields.text("hidden_act", "gelu")
    if activation != "gelu":
        raise UnsupportedModel(f"{fields.where}: hidden_act {activation!r} is not served; gelu is")
    hidden = fields.integer("hidden_size", 1024)
    heads = fields.integer("num_attention_heads", 16)
    dims = rotating_head_dim(hidden, heads, fields.where)
    return bert_encoder(
        "jina_embeddings_v3",
        vocab_size=fields.integer("vocab_size", 250_002),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", 4096),
        num_layers=fields.integer("num_hidden_layers", 24),
        num_heads=heads,
        max_position=fields.integer("max_position_embeddings", 8194),
        token_types=fields.integer("type_vocab_size", 1),
        layer_norm_eps=fields.number("layer_norm_eps", 1e-5),
        activation="gelu",
        rope=RopeSpec(theta=rope_theta(fields, THETA), dims=dims),
    )


def _gguf(model: GGUFMetadata) -> EncoderConfig:
    sizes = bert_sizes(model)
    return bert_encoder(
        "jina_embeddings_v3",
        **sizes,
        rope=model.rope(sizes["hidden_size"] // sizes["num_heads"], theta=THETA),
    )


JINA_EMBEDDINGS_V3 = EncoderFamily(
    "jina_embeddings_v3",
    ("jina_embeddings_v3",),
    read_layers=_read,
    gguf="jina-bert-v3",
    read_gguf=_gguf,
    layer_names=bert_names(
        # Files have the makers' names, adapters those of transformers' modules.
        qkv="mixer.Wqkv",
        output="mixer.out_proj",
        attention_norm="norm1",
        up="mlp.fc1",
        down="mlp.fc2",
        norm="norm2",
        further={
            "emb_ln": "embedding_norm",
            "post_attention_layernorm": "attention_output_norm",
            "post_mlp_layernorm": "feed_forward_output_norm",
        },
    ),
)
