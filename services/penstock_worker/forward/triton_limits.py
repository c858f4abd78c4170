"""Which models and settings the CUDA kernels can't run, and the tiles of those that they can."""

from __future__ import annotations

from collections.abc import Collection

import torch

from penstock.model import mechanisms as mechanism
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import STATE_BYTES, KVGroup, state_of
from penstock.protocol.to_worker import Setup
from penstock_kernels.triton.shared_memory import HOPPER, SharedMemory
from penstock_kernels.triton.tiles import attention_choice, latent_choice
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.triton import AttentionChoices, kinds_of_heads
from penstock_worker.forward.interface import WITHOUT_PICTURES
from penstock_worker.parallel.place import RankPlace

LARGEST_HEAD = 512
"""Largest head dimension of the attention kernels."""
LARGEST_TURNING = 256
"""Most numbers of a head that rotate in front of a latent."""
MOST_ACTIVE = 64
"""Experts of a token."""
LARGEST_LATENT = 512
"""Largest size of the latents that heads may share."""


def obstacle_of(shape: CacheShape, choices: AttentionChoices) -> str | None:
    """Returns why the kernels can't run this model, or None if they can."""
    if shape.value_in_key is not None:
        return _latent_obstacle(shape.value_in_key, shape.head_dim - shape.value_in_key)
    for heads in kinds_of_heads(shape):
        group, rows = shape.num_heads // heads.count, choices(heads).few.rows
        if group > rows:
            return f"{group} query heads share a KV head; at most {rows} can"
        if heads.size > LARGEST_HEAD or heads.size % 2:
            return f"a head's size is {heads.size}; it must be even and at most {LARGEST_HEAD}"
    return None


def _latent_obstacle(rank: int, turning: int) -> str | None:
    if rank > LARGEST_LATENT or turning > LARGEST_TURNING or turning % 2:
        return (
            f"a latent's size is {rank}, and of a head {turning} numbers rotate; at most "
            f"{LARGEST_LATENT} and an even number of at most {LARGEST_TURNING} are allowed"
        )
    return None


def attention_of(
    config: ModelConfig,
    dtypes: Collection[torch.dtype],
    *,
    batch_invariant: bool,
    shared: SharedMemory = HOPPER,
) -> AttentionChoices:
    """Returns the tiles of the model's attention. `dtypes`: of queries and of the cache; `shared`:
    the device's memory that tiles have to fit."""
    wider = torch.float32 if torch.float32 in dtypes else torch.bfloat16
    choice = attention_choice if config.latent is None else latent_choice
    return lambda heads: choice(heads.size, wider, batch_invariant=batch_invariant, shared=shared)


def crowded_router(config: ModelConfig) -> str | None:
    """Returns why a row can't have as many experts as the model gives it, or None if it can."""
    for layer in config.layers:
        experts = layer.feed_forward.experts
        if experts is not None and experts.active > MOST_ACTIVE:
            return f"a token has {experts.active} experts; at most {MOST_ACTIVE} are possible"
    return None


def crooked_checkpoints(shape: CacheShape, groups: tuple[KVGroup, ...]) -> str | None:
    """Returns why recurrent states can't be copied to blocks, or None if they can, or needn't
    be."""
    part = shape.block_size * shape.head_dim * shape.dtype.itemsize
    if state_of(groups) is None or part % STATE_BYTES == 0:
        return None
    return (
        f"a head's keys of a block take {part} bytes, and recurrent states are numbers of"
        f" {STATE_BYTES}: kv_block_size must be a multiple of {STATE_BYTES}"
    )


def ranks_with_towers(config: ModelConfig, place: RankPlace) -> str | None:
    """Returns why so many ranks can't compute this model, or None if they can."""
    if place.ranks == 1 or (config.vision is None and config.audio is None):
        return None
    has, also = mechanism.VISION, WITHOUT_PICTURES
    if config.audio is not None:
        has, also = mechanism.AUDIO, ""
    return f"the model has {has}, and {place.ranks} GPUs share it{also}"


def quantised_experts(setup: Setup, config: ModelConfig) -> str | None:
    """Returns why this model can't be quantised on load, or None if it can, or needn't be."""
    if setup.quantization == "none" or mechanism.EXPERTS not in mechanism.mechanisms(config):
        return None
    return (
        f"the model has {mechanism.EXPERTS}, which isn't quantised on load: quantization is "
        f"{setup.quantization}, and must be none"
    )
