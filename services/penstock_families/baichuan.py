"""Baichuan and Baichuan 2, 7B: Llama with one product of queries, keys and values. The rows of
Baichuan 2's output head are divided by their lengths.

The 13B models tell places apart by ALiBi, which isn't computed here.

Source: Yang et al., "Baichuan 2: open large-scale language models", 2023, and the makers'
modeling_baichuan.py.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.family import Family
from penstock.families.source import GGUFSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec

WIDE, DEEP = 5120, 40
"""Hidden size and layers of the 13B models."""
SECOND_VOCABULARY = 125_696
"""Tokens of Baichuan 2, which tell its GGUF files from those of the first."""


def _first(source: Source) -> ModelConfig:
    return _read(source, "baichuan")


def _second(source: Source) -> ModelConfig:
    return _read(source, "baichuan2")


def _read(source: Source, name: str) -> ModelConfig:
    """name: what config.json says that it is; a GGUF file's vocabulary says it."""
    if isinstance(source, GGUFSource):
        second = source.model.vocab_size == SECOND_VOCABULARY
        name = "baichuan2" if second else "baichuan"
    elif "max_position_embeddings" not in source.fields:
        raise _alibi(source.fields)
    source.activation("silu")
    source.only(tie_word_embeddings=False)
    source.ignore("model_max_length", "z_loss_weight")
    sizes = source.sizes()
    _check_rotates(sizes["hidden_size"], sizes["num_layers"], source.fields)
    return decoder(source, name, sizes, [LayerSpec()])


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
    of_hub(_first),
    hub_names=TensorNames(fused={"self_attn.W_pack": QKV}),
    gguf="baichuan",
    read_gguf=of_gguf(_first),
    gguf_names=TensorNames(pairs_adjacent=True),
)
BAICHUAN2 = Family(
    "baichuan2",
    ("BaichuanForCausalLM",),
    "Baichuan 2 7B",
    of_hub(_second),
    hub_names=TensorNames(fused={"self_attn.W_pack": QKV}, unit_rows=HEAD),
    gguf="baichuan",
    read_gguf=of_gguf(_second),
    gguf_names=TensorNames(pairs_adjacent=True, unit_rows=HEAD),
)
"""GGUF files have the head as the makers trained it, or already divided, which changes nothing
more."""
