"""Scales of an FP8 cache: those of the checkpoint, or of what a trial step stores.

FP8 e4m3 holds numbers from 2^-9 to 448. Keys and values of a head that are mostly far smaller, or
larger, would lose their last bits or all of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.process import logs
from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.triton_build import TritonBuild
from penstock_worker.weights.cache_scales import stored_scales
from penstock_worker.weights.weights import Weights

log = logs.get(__name__)

TRIAL_TOKENS = 512
LARGEST = 448.0
"""Largest number of FP8 e4m3."""
MARGIN = 2.0
"""Factor by which keys and values may be larger than in the trial step. It costs little: steps
between neighbouring numbers are as fine relative to them, whatever their size."""


def with_scales(build: TritonBuild, weights: Weights) -> TritonBuild:
    """Returns the same build with the scales that its cache is to have. `weights`: not cut to the
    rank. Raises StartupError, and what `stored_scales` raises."""
    if build.shape.dtype != torch.float8_e4m3fn:
        return build
    origin, found = "the checkpoint", stored_scales(weights, build.model.shard)
    if found is None and build.setup.calculate_kv_scales:
        origin, found = "a trial step", calculated_scales(build)
    if found is None:
        log.info("keys and values in FP8 are not scaled: the checkpoint has no scales")
        return build
    log.info("keys and values in FP8 are scaled for each layer and head", scales_of=origin)
    return replace(build, scales=tuple(KVScales.of(*each) for each in found))


def calculated_scales(build: TritonBuild) -> list[tuple[Tensor, Tensor]]:
    """Scales of each layer's keys and values, from what a step of token ids that look random
    stores. Scales are powers of two, so that only FP8 rounds, and sums whose last bits differ give
    the same ones."""
    if build.model.config.encoder_rows:
        raise StartupError("calculate_kv_scales is not served for models with an encoder")
    attention, tokens = _stored_by_a_step(build)
    return [_of_layer(attention, layer, tokens) for layer in range(len(build.model.shard.layers))]


def _stored_by_a_step(build: TritonBuild) -> tuple[TritonAttention, int]:
    """Returns a cache in the type of activations, and how many tokens of each KV group it holds."""
    setup, groups = build.setup, len(build.shape.groups)
    tokens = min(TRIAL_TOKENS, setup.max_model_len, setup.max_num_batched_tokens)
    blocks = -(-tokens // setup.block_size)
    tables = [np.arange(group * blocks, (group + 1) * blocks) for group in range(groups)]
    plain = replace(build, shape=replace(build.shape, dtype=build.dtype))
    attention = plain.run_alone(
        Batch(
            # Knuth's multiplicative hash of their positions (1973).
            tokens=np.arange(tokens) * 2_654_435_761 % build.model.config.vocab_size,
            tables=tables[:1],
            starts=np.zeros(1, np.int64),
            counts=np.full(1, tokens),
            more_tables=tuple([table] for table in tables[1:]),
            slots=range(1),
        ),
        groups * blocks,
    )
    return attention, tokens


def _of_layer(attention: TritonAttention, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
    own, (group, _) = attention.of_layer(layer), attention.shape.place(layer)
    slots = attention.num_blocks // len(attention.shape.groups) * attention.shape.block_size
    if group < 0:  # It has neither keys nor values.
        one = torch.ones(len(own.keys), device=own.keys.device)
        return one, one
    part = slice(group * slots, group * slots + tokens)
    return _scale(own.keys[:, part]), _scale(own.values[:, part])


def _scale(stored: Tensor) -> Tensor:
    """[heads, slots, size] to [heads] float32, powers of two."""
    largest = stored.float().abs().amax((1, 2))
    mantissa, exponent = torch.frexp(largest * (MARGIN / LARGEST))
    power = torch.ldexp(torch.ones_like(largest), exponent - (mantissa == 0.5).int())
    return torch.where((largest > 0) & largest.isfinite(), power, 1.0)
