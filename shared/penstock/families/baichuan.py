"""Baichuan and Baichuan 2, 7B: Llama with one product of queries, keys and values. The rows of
Baichuan 2's output head are divided by their lengths.

The 13B models tell places apart by ALiBi, which isn't computed here.

Source: Yang et al., "Baichuan 2: open large-scale language models", 2023, and the makers'
modeling_baichuan.py.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec, NormSpec

WIDE, DEEP = 5120, 40
"""Hidden size and layers of the 13B models."""
SECOND_VOCABULARY = 125_696
"""Tokens of Baichuan 2, which tell its GGUF files from those of the first."""


def _hub1(fields: Fields) -> ModelConfig:
    return _hub(fields, "baichuan")


def _hub2(fields: Fields) -> ModelConfig:
    return _hub(fields, "baichuan2")


def _hub(fields: Fields, name: str) -> ModelConfig:
    if "max_position_embeddings" not in fields:
        raise _alibi(fields)
    hub.activation(fields, "silu")
    hub.only(fields, tie_word_embeddings=False)
    fields.ignore("model_max_length", "z_loss_weight")
    sizes = hub.sizes(fields)
    _check_rotates(sizes["hidden_size"], sizes["num_layers"], fields)
    return ModelConfig(
        architecture=name,
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(LayerSpec(),),
    )


def _gguf(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    _check_rotates(sizes["hidden_size"], sizes["num_layers"], model.keys)
    second = model.vocab_size == SECOND_VOCABULARY
    return ModelConfig(
        architecture="baichuan2" if second else "baichuan",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(LayerSpec(),),
    )


def _check_rotates(hidden: int, layers: int, fields: Fields) -> None:
    if hidden == WIDE or layers == DEEP:
        raise _alibi(fields)


def _alibi(fields: Fields) -> UnsupportedModel:
    return UnsupportedModel(
        f"{fields.where}: this is a 13B Baichuan, which tells places apart by ALiBi; only the 7B "
        "models are served, whose queries and keys rotate"
    )


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
HEAD = frozenset({"lm_head"})
BAICHUAN = Family(
    "baichuan",
    ("BaiChuanForCausalLM",),
    "Baichuan 7B",
    _hub1,
    hub_names=TensorNames(fused={"self_attn.W_pack": QKV}),
    gguf="baichuan",
    read_gguf=_gguf,
    gguf_names=TensorNames(pairs_adjacent=True),
)
BAICHUAN2 = Family(
    "baichuan2",
    ("BaichuanForCausalLM",),
    "Baichuan 2 7B",
    _hub2,
    hub_names=TensorNames(fused={"self_attn.W_pack": QKV}, unit_rows=HEAD),
    gguf="baichuan",
    read_gguf=_gguf,
    gguf_names=TensorNames(pairs_adjacent=True, unit_rows=HEAD),
)
"""GGUF files have the head as the makers trained it, or already divided, which changes nothing
more."""
