"""Mamba 2, also Codestral Mamba: recurrent layers alone. No token has keys and values, and the
blocks of the KV cache hold copies of states.

Source: Dao and Gu, "Transformers are SSMs", 2024. A result is normed in each group by itself, as in
the authors' code, in vLLM and in llama.cpp; transformers does so on CUDA, and on a CPU it norms all
groups together.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.nemotron import NAMES
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec, NormSpec
from penstock.model.recurrent_spec import (
    Mamba2Spec,
    RecurrentSpec,
    result_numbers,
    state_numbers,
)

MAX_POSITION = 1 << 18
"""Tokens of a sequence, where config.json doesn't say: no layer counts them."""
OF_TRAINING = (
    "time_step_min",
    "time_step_max",
    "time_step_floor",
    "time_step_rank",
    "rescale_prenorm_residual",
)
OF_COMPUTATION = ("chunk_size", "residual_in_fp32")
WITHOUT_EFFECT = ("norm_before_gate",)
"""What files of releases say, and no code reads."""
MAX_HEAD_DIM = 512
"""No backend has larger heads."""
HEADS = 8
"""Heads that keys and values would have: so many ranks can share a model."""
TOKENS = 1 << 14
"""The states of a sequence have about as many numbers as the keys of so many tokens would have. In
blocks of 16 tokens, a copy of them takes some hundred: of fewer, each would be large for a sequence
that holds little else, and each of more has to be named in messages."""


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    fields.ignore(*OF_TRAINING, *OF_COMPUTATION, *WITHOUT_EFFECT)
    hub.only(fields, rms_norm=True)
    hidden, expand = fields.integer("hidden_size", 4096), fields.integer("expand", 2)
    groups = fields.integer("n_groups", 8)
    spec = Mamba2Spec(
        heads=fields.integer("num_heads", 128),
        head_dim=fields.integer("head_dim", 64),
        groups=groups,
        state=fields.integer("state_size", 128),
        kernel=fields.integer("conv_kernel", 4),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        norm_groups=groups,
        **recurrent.time_limits(fields),
    )
    if spec.inner != expand * hidden:
        raise UnsupportedModel(
            f"{fields.where}: {spec.heads} Mamba heads of {spec.head_dim} don't make up {expand} "
            f"times the hidden size {hidden}"
        )
    return without_attention(
        recurrent.checked(spec, fields.where),
        "mamba2",
        vocab_size=fields.integer("vocab_size", 32768),
        hidden_size=hidden,
        num_layers=bounds.layer_count(fields, "num_hidden_layers"),
        max_position=fields.integer("max_position_embeddings", MAX_POSITION),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        norm=NormSpec(eps=fields.number("layer_norm_epsilon", 1e-5)),
    )


def _gguf(model: GGUFMetadata) -> ModelConfig:
    keys = model.keys
    keys.ignore("attention.head_count", "feed_forward_length")  # 0: there are none
    spec = recurrent.gguf_mamba2(
        model,
        conv_bias=model.has("ssm_conv1d.bias"),
        bias=model.has("ssm_in.bias"),
        norm_groups=keys.integer("ssm.group_count"),
    )
    return without_attention(
        spec,
        "mamba2",
        vocab_size=model.vocab_size,
        hidden_size=keys.integer("embedding_length"),
        num_layers=bounds.layer_count(keys, "block_count"),
        max_position=keys.integer("context_length"),
        tie_word_embeddings="output.weight" not in model.tensors,
        norm=NormSpec(eps=model.rms_eps()),
    )


def without_attention(spec: RecurrentSpec, name: str, **sizes: Any) -> ModelConfig:
    """A model of such layers alone. name: of its family. sizes: further fields of ModelConfig."""
    keys = state_numbers(spec) * sizes["num_layers"] // TOKENS
    multiple = 16  # of head sizes, which the CPU kernels need
    size = -(-keys // (multiple * HEADS)) * multiple
    return ModelConfig(
        architecture=name,
        **sizes,
        intermediate_size=result_numbers(spec),
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=min(max(size, multiple), MAX_HEAD_DIM),
        ropes=(),
        layers=(LayerSpec(recurrent=spec, halves="mixer"),),
    )


MAMBA2 = Family(
    "mamba2",
    ("Mamba2ForCausalLM",),
    "Mamba 2",
    _hub,
    hub_names=NAMES,
    gguf="mamba2",
    read_gguf=_gguf,
)
