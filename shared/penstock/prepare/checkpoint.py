"""What a checkpoint says about itself, in whichever format it came."""

from __future__ import annotations

import math

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.bounds import MAX_LAYERS
from penstock.layer_spec import RopeSpec
from penstock.model_config import (
    EncoderConfig,
    GenerationDefaults,
    ModelConfig,
    PoolingConfig,
    WeightFiles,
)

MAX_SIZE = 1 << 24
MAX_HEADS = 65_536


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The normalised contents of a GGUF file or a hub folder. chat_template: "" for none."""

    config: ModelConfig | EncoderConfig
    generation: GenerationDefaults
    weights: WeightFiles
    tokenizer_json: bytes
    chat_template: str
    add_bos: bool
    pooling: PoolingConfig | None = None


def check_config(config: ModelConfig, where: str) -> ModelConfig:
    """Refuse shapes that can't be a model. Returns the config; raises UnsupportedModel."""
    bounds = {
        "vocab_size": MAX_SIZE,
        "hidden_size": MAX_SIZE,
        "intermediate_size": MAX_SIZE,
        "num_layers": MAX_LAYERS,
        "num_heads": MAX_HEADS,
        "num_kv_heads": MAX_HEADS,
        "head_dim": MAX_HEADS,
        "max_position": 1 << 30,
    }
    for field, limit in bounds.items():
        value = getattr(config, field)
        if not 1 <= value <= limit:
            raise UnsupportedModel(f"{where}: {field} is {value}; 1 to {limit} are allowed")
    if config.num_heads % config.num_kv_heads:
        raise UnsupportedModel(
            f"{where}: {config.num_heads} attention heads can't be shared out among "
            f"{config.num_kv_heads} key/value heads: the first must be a multiple of the second"
        )
    if config.head_dim % 2:
        raise UnsupportedModel(
            f"{where}: head_dim is {config.head_dim}; rotary embedding needs an even one"
        )
    numbers = [("the norms' eps", config.norm.eps)]
    numbers += [("rope_theta", rope.theta) for rope in config.ropes]
    scales = [layer.attention.scale for layer in config.layers]
    numbers += [("the scale of attention", scale) for scale in scales if scale is not None]
    for field, number in numbers:
        if isinstance(number, complex) or not math.isfinite(number) or number <= 0:
            raise UnsupportedModel(f"{where}: {field} is {number}; it must be positive")
    for rope in config.ropes:
        _check_yarn(rope, where)
    if len(config.layers) not in (1, config.num_layers):
        raise UnsupportedModel(
            f"{where}: {len(config.layers)} layers are described, and there are {config.num_layers}"
        )
    return config


def _check_yarn(rope: RopeSpec, where: str) -> None:
    scaling = rope.scaling
    if scaling is None or scaling.kind != "yarn":
        return
    if not 0 < scaling.beta_slow <= scaling.beta_fast or rope.theta <= 1:
        raise UnsupportedModel(
            f"{where}: yarn's beta_slow is {scaling.beta_slow:g}, beta_fast {scaling.beta_fast:g}, "
            f"rope_theta {rope.theta:g}; the first two must be positive and ascending, the third "
            "above 1"
        )


def check_token_ids(
    generation: GenerationDefaults,
    config: ModelConfig | EncoderConfig,
    highest_token: int,
    where: str,
) -> None:
    """Refuse a tokenizer that can make ids which the model has no embedding for."""
    if highest_token >= config.vocab_size:
        raise UnsupportedModel(
            f"{where}: the tokenizer's highest id is {highest_token}, but the model has only "
            f"{config.vocab_size} embeddings"
        )
    bos = generation.bos_token_id
    for token in (*generation.eos_token_ids, *(() if bos is None else (bos,))):
        if not 0 <= token < config.vocab_size:
            raise UnsupportedModel(
                f"{where}: the BOS or EOS id {token} is outside the vocabulary of "
                f"{config.vocab_size} tokens"
            )
