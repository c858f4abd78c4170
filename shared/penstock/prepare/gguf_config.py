"""ModelConfig from the metadata of a GGUF file.

Source of the keys: the GGUF specification in the ggml project (docs/gguf.md).
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import FAMILIES, MODEL_NAMES, Family
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.model_config import ModelConfig, RopeScaling
from penstock.prepare.checkpoint import check_config

ROPE_FACTORS = "rope_freqs.weight"
"""Tensor of head_dim / 2 divisors, one for each rotary frequency."""


def read_config(file: GGUFFile) -> ModelConfig:
    """Raises UnsupportedModel for another architecture, or for a variant of one of ours that the
    blocks of the model can't compute."""
    where = str(file.path)
    fields = Fields(file.metadata, where)
    family = _family(fields)
    architecture = family.name
    keys = Fields(
        {
            key.removeprefix(f"{architecture}."): value
            for key, value in file.metadata.items()
            if key.startswith(f"{architecture}.")
        },
        f"{where}, {architecture}",
    )
    _refuse_variants(keys)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise UnsupportedModel(f"{where}: the tensor token_embd.weight is missing")
    num_heads = keys.integer("attention.head_count")
    hidden_size = keys.integer("embedding_length")
    if num_heads < 1 or ("attention.key_length" not in keys and hidden_size % num_heads):
        raise UnsupportedModel(
            f"{where}: {num_heads} attention heads don't divide the hidden size {hidden_size}"
        )
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads)
    _check_head_dim(keys, head_dim)
    config = ModelConfig(
        architecture=family.name,
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        intermediate_size=_same_in_all_layers(keys, "feed_forward_length"),
        num_layers=keys.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=_same_in_all_layers(keys, "attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position=keys.integer("context_length"),
        rms_norm_eps=_rounded(keys.number("attention.layer_norm_rms_epsilon")),
        rope_theta=keys.number("rope.freq_base", 10_000.0),
        rope_scaling=_rope_scaling(file, keys),
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias=family.always_qkv_bias or "blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        qk_norm=family.qk_norm,
    )
    config = msgspec.structs.replace(config, **family.gguf_values(keys))
    return check_config(config, where)


def _family(fields: Fields) -> Family:
    name = fields.text("general.architecture")
    if name not in FAMILIES:
        raise UnsupportedModel(
            f"{fields.where}: the architecture {name!r} is not served; "
            f"GGUF files of {', '.join(FAMILIES)} are ({MODEL_NAMES})"
        )
    return FAMILIES[name]


def _refuse_variants(keys: Fields) -> None:
    if keys.integer("expert_count", 0) > 0:
        raise UnsupportedModel(f"{keys.where}: mixture-of-experts models are not served")
    window = keys.integer("attention.sliding_window", 0)
    if 0 < window < keys.integer("context_length"):
        raise UnsupportedModel(
            f"{keys.where}: sliding-window attention (window {window}) is not served"
        )
    for key in ("logit_scale", "embedding_scale", "residual_scale", "attention.scale"):
        if key in keys and keys.number(key) not in (0.0, 1.0):
            raise UnsupportedModel(f"{keys.where}: {key} is {keys.number(key)}; only 1 is served")
    if "attention.causal" in keys and not keys.flag("attention.causal"):
        raise UnsupportedModel(
            f"{keys.where}: models without causal attention are pooling models, "
            "which are not served yet"
        )


def _check_head_dim(keys: Fields, head_dim: int) -> None:
    rotary = keys.integer("rope.dimension_count", head_dim)
    if rotary != head_dim:
        raise UnsupportedModel(
            f"{keys.where}: rotary embedding of {rotary} of {head_dim} dimensions is not served"
        )
    value_length = keys.integer("attention.value_length", head_dim)
    if value_length != head_dim:
        raise UnsupportedModel(
            f"{keys.where}: keys of {head_dim} and values of {value_length} dimensions: "
            "only equal ones are served"
        )


def _same_in_all_layers(keys: Fields, key: str, default: int | None = None) -> int:
    """A size that GGUF gives once, or once for each layer."""
    value = keys.values.get(key)
    if not isinstance(value, list):
        return keys.integer(key, default)
    if not value or any(item != value[0] for item in value):
        raise UnsupportedModel(f"{keys.where}: {key} differs between layers, which is not served")
    return Fields({key: value[0]}, keys.where).integer(key)


def _rounded(value: float) -> float:
    """A float32 as the short decimal that it was written as: 9.999999747378752e-06 is 1e-05."""
    return float(f"{value:.7g}")


def _rope_scaling(file: GGUFFile, keys: Fields) -> RopeScaling | None:
    kind = keys.text("rope.scaling.type", "none")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    if kind not in ("none", "linear"):
        raise UnsupportedModel(
            f"{keys.where}: RoPE scaling {kind!r} is not served; linear and rope_freqs are"
        )
    linear = kind == "linear" or "rope.scale_linear" in keys
    if linear and factor <= 0:
        raise UnsupportedModel(f"{keys.where}: the RoPE scaling factor is {factor}, not positive")
    linear = linear and factor != 1.0
    if ROPE_FACTORS not in file.tensors:
        return RopeScaling(kind="linear", factor=factor) if linear else None
    if linear:
        raise UnsupportedModel(
            f"{keys.where}: linear RoPE scaling together with {ROPE_FACTORS} is not served"
        )
    return RopeScaling(kind="precomputed")
