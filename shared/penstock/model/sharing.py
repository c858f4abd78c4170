"""What of a model ranks can't share. Plain arithmetic over the model's sizes."""

from __future__ import annotations

from penstock.errors import StartupError
from penstock.model.config import EncoderConfig, HeadConfig, ModelConfig, TransformersConfig
from penstock.model.mechanisms import (
    CHOSEN_BLOCKS,
    COMPRESSED,
    CROSS_ATTENTION,
    EXPERTS_BESIDE,
    HEAD_GATE,
    HYPER_CONNECTIONS,
    MAMBA1,
    OUTPUT_GATE,
    OWN_HEADS,
    OWN_INNER,
    PER_LAYER_INPUTS,
    QUERY_HEADS,
    REPEATED,
    SHARED_CHOICE,
    SHARED_KV,
    SPARSE_GATE,
    STREAMS,
    VALUES_OF_KEYS,
    mechanisms,
)
from penstock.model.prepared_model import PreparedModel

WHOLE = frozenset(
    {
        OWN_HEADS,
        OWN_INNER,
        VALUES_OF_KEYS,
        EXPERTS_BESIDE,
        SPARSE_GATE,
        MAMBA1,
        HEAD_GATE,
        QUERY_HEADS,
        CHOSEN_BLOCKS,
        COMPRESSED,
    }
)
"""What tensor-parallel ranks can't share."""
ONE_STAGE = frozenset({SHARED_KV, PER_LAYER_INPUTS, STREAMS, HYPER_CONNECTIONS, CROSS_ATTENTION})
"""What binds all layers to one rank."""
STAGE_BOUND = frozenset({SHARED_CHOICE, REPEATED})
"""What binds a layer to the stage of one before it."""
TILE = 16
"""Outputs that the CPU kernels compute together."""
GROUP = 32
"""Inputs of the CPU kernels' products that share a scale."""


def check_shared(
    config: ModelConfig, tensor: int, pipeline: int, *, whole_experts: bool = False
) -> None:
    """Raises StartupError if no backend can split the model over `tensor` ranks in each of
    `pipeline` stages. whole_experts: whether no expert is split. Of recurrent layers, the shards
    say it."""
    if tensor > config.num_heads:
        raise StartupError(
            f"tensor_parallel_size is {tensor}; the model has {config.num_heads} attention "
            "heads, and each rank needs one"
        )
    if tensor > min(config.intermediate_size, config.vocab_size):
        raise StartupError(f"tensor_parallel_size is {tensor}, more than the model's sizes")
    needs = mechanisms(config)
    one_stage = sorted(needs & ONE_STAGE) if tensor * pipeline > 1 else []
    if one_stage:
        raise StartupError(
            f"tensor_parallel_size and pipeline_parallel_size make {tensor * pipeline} ranks; the"
            f" model has {', '.join(one_stage)}, which one rank must hold: 1 is allowed"
        )
    bound = sorted(needs & STAGE_BOUND) if pipeline > 1 else []
    if bound:
        raise StartupError(
            f"pipeline_parallel_size is {pipeline}; the model has {', '.join(bound)}, which may be"
            " on another stage: 1 is allowed (tensor_parallel_size may be more)"
        )
    layers = () if config.vision is None else config.vision.added_behind
    levels = max(layers, default=-1) + 1
    if levels > -(-config.num_layers // pipeline):
        raise StartupError(
            f"pipeline_parallel_size is {pipeline}; a model of {config.num_layers} layers "
            f"whose tower adds rows behind the first {levels} of them has these in one stage"
        )
    whole = sorted(needs & WHOLE) if tensor > 1 else []
    if whole:
        raise StartupError(
            f"tensor_parallel_size is {tensor}; the model has {', '.join(whole)}, which one "
            "rank must hold: 1 is allowed (pipeline_parallel_size may be more)"
        )
    for layer in config.layers:
        experts = layer.feed_forward.experts
        if experts is None:
            continue
        split = () if whole_experts else (experts.inner,)
        inner = min((*split, experts.shared_inner or tensor))
        if tensor > inner:
            raise StartupError(
                f"tensor_parallel_size is {tensor}; the model's experts have an inner "
                f"dimension of {inner}, and each rank needs a part of it"
            )
    if pipeline > config.num_layers:
        raise StartupError(
            f"pipeline_parallel_size is {pipeline}; the model has {config.num_layers} layers,"
            " and each stage needs one"
        )


def split_obstacle(config: ModelConfig, tensor: int, *, whole_experts: bool = False) -> str | None:
    """Returns what of the model so many ranks can't share on the CPU kernels, or which of its sizes
    gives too little to each; or None. whole_experts: whether no expert is split."""
    if tensor == 1:
        return None
    if OUTPUT_GATE in mechanisms(config):
        return "the model's attention has gates, which this backend computes on one rank"
    sizes = {
        "the hidden size": (config.hidden_size, TILE),
        "the vocabulary": (config.vocab_size, GROUP),
    }
    for layer in config.layers:
        experts = layer.feed_forward.experts
        if experts is None:
            sizes["the feed-forward's inner dimension"] = (config.intermediate_size, GROUP)
            continue
        if not whole_experts:
            sizes["the experts' inner dimension"] = (experts.inner, GROUP)
        if experts.latent:
            sizes["the experts' latent dimension"] = (experts.latent, TILE)
        if experts.shared_inner:
            sizes["the shared expert's inner dimension"] = (experts.shared_inner, GROUP)
    for name, (size, unit) in sizes.items():
        if -(-size // unit) < tensor:
            return f"{name} is {size}: too little for {tensor} ranks, with at least {unit} for each"
    return None


def one_rank_only(prepared: PreparedModel, tensor: int, *, pooled: bool) -> str | None:
    """Returns why `tensor` ranks on the CPU kernels can't give what one gives, with its bits; None:
    they can. pooled: whether it gives vectors."""
    config = prepared.config
    if pooled or isinstance(config, EncoderConfig):
        return "a model that gives vectors is computed by one rank"
    if isinstance(config, TransformersConfig):
        return "transformers' own code computes the model on one rank"
    if isinstance(config, HeadConfig):
        return "a head generates nothing by itself"
    if config.pictures_apart:
        return "layers that attend to pictures alone are computed by one rank"
    if config.encoder_rows:
        return "one rank alone says when words are spoken"
    if any(layer.recurrent is not None for layer in config.layers):
        return "the CPU kernels compute recurrent layers on one rank"
    try:
        check_shared(config, tensor, 1)
    except StartupError as error:
        return str(error)
    return split_obstacle(config, tensor)
