"""Pooling models in transformers' own code, on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from penstock.errors import UnsupportedModel
from penstock.model.config import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.dtype import compute_dtype
from penstock_worker.forward.interface import require_no_adapters
from penstock_worker.forward.transformers import (
    cache_shape,
    computing_in,
    described,
    load_forward,
)
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.pooling.decoders import DecoderBody
from penstock_worker.pooling.heads import Head, decoder_head
from penstock_worker.pooling.recipe import PoolingRecipe, pooling_fingerprint
from penstock_worker.pooling.reference import load_decoder
from penstock_worker.weights.files import safetensors_tensors
from penstock_worker.weights.weights import Weights

HEAD = "score.weight"


def recipe(
    prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE
) -> PoolingRecipe:
    """Makes the recipe of a pooling model with the layers of a decoder, whose attention goes
    through transformers' interface. Raises Unable as the recipe for generating does."""
    require_no_adapters(setup)
    name, computing = computing_in(prepared, setup, ranks, headless=True)
    return PoolingRecipe(
        "transformers",
        name,
        "cpu",
        f"pooling {computing} {pooling_fingerprint(setup)}",
        lambda phases: load_decoder(_build, prepared, setup, threads, phases),
    )


def _build(
    prepared: PreparedModel, setup: Setup
) -> tuple[int, Callable[[int], DecoderBody], Head | None]:
    """Returns how the model is built (see pooling.decoders.build_decoder)."""
    shape = cache_shape(prepared, setup)
    with_blocks = load_forward(prepared, setup, shape, headless=True)
    return (
        ReferenceAttention.block_bytes(shape),
        lambda blocks: DecoderBody(with_blocks(blocks)),
        _head(prepared, setup),
    )


def _head(prepared: PreparedModel, setup: Setup) -> Head | None:
    if setup.pooling is None or not setup.pooling.labels:
        return None
    if setup.pooling.answers is not None:
        raise UnsupportedModel(
            "scores by the logits of two tokens are computed for models of a family only, and this "
            "one runs in transformers' code"
        )
    config = described(prepared.decoder)
    dtype: torch.dtype = compute_dtype(setup.dtype, prepared.weights)
    stored = safetensors_tensors(
        prepared.weights.files, lambda name: name if name == HEAD else None
    )
    return decoder_head(Weights(stored, dtype), len(setup.pooling.labels), config.hidden_size)
